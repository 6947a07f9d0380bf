"""Fuse several runs into one: by ranks, or by scores on one scale."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean, pstdev
from types import MappingProxyType

from m2dr.core.errors import UserError, counted, nearest, were
from m2dr.core.records import Ranking, Run

RANK_OFFSET = 60  # k of Cormack et al.
Scores = Mapping[str, float]  # by docid


@dataclass(frozen=True)
class ScoreScaling:
    """A way to make the scores of one ranking comparable with those of another."""

    name: str
    summary: str
    of: Callable[[Scores], dict[str, float]]
    absent: Callable[[Scores], float]  # the score of a document that the ranking does not hold


def _min_max(scores: Scores) -> dict[str, float]:
    """Scale scores to 0 (the lowest) to 1 (the highest); equal scores all become 1."""
    low, high = min(scores.values()), max(scores.values())
    span = high - low
    return {name: (score - low) / span if span else 1.0 for name, score in scores.items()}


def _standard(scores: Scores) -> dict[str, float]:
    """Return z-scores: the distance from the mean in standard deviations."""
    mean, deviation = fmean(scores.values()), pstdev(scores.values())
    return {
        name: (score - mean) / deviation if deviation else 0.0 for name, score in scores.items()
    }


def _lowest(scores: Scores) -> float:
    return min(scores.values())


SCALINGS = MappingProxyType(
    {
        scale.name: scale
        for scale in (
            ScoreScaling("min-max", "from 0 for the worst found to 1", _min_max, lambda _: 0.0),
            ScoreScaling("z", "distance from the mean in standard deviations", _standard, _lowest),
            ScoreScaling("none", "as they are", dict, _lowest),
        )
    }
)


def reciprocal_ranks(
    runs: Sequence[Run],
    weights: Sequence[float] = (),
    k: int = 1000,
    offset: float = RANK_OFFSET,
) -> Run:
    """Fuse runs by ranks: a document scores the sum over the runs of weight / (offset + rank).

    Ranks count from 1, and a run that does not hold a document adds nothing to it. Cormack, Clarke
    and Büttcher, Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods,
    SIGIR 2009, where all weights are 1.

    Args:
        runs: two or more.
        weights: one per run; all 1 when empty.
        k: number of documents kept per query.
        offset: 0 or more; the larger, the smaller the advantage of the first ranks.

    Returns:
        Every query of any run, in the order in which they first appear.

    Raises:
        UserError: the weights are not one per run and from 0, or `offset` or `k` is too small.
    """
    given = _weights(weights, len(runs), 1.0)
    if not (offset >= 0 and isfinite(offset)):
        raise UserError(f"{offset} was given as the offset of ranks; give 0 or more.")

    def score(query: str) -> dict[str, float]:
        total: dict[str, float] = {}
        for run, weight in zip(runs, given, strict=True):
            ranking = run.rankings.get(query, Ranking((), ()))
            for rank, docid in enumerate(ranking.docids, start=1):
                total[docid] = total.get(docid, 0.0) + weight / (offset + rank)
        return total

    return _fused(runs, score, k)


def interpolated(
    runs: Sequence[Run], weights: Sequence[float] = (), k: int = 1000, scale: str = "min-max"
) -> Run:
    """Fuse runs by scores: a document scores the weighted sum of its scaled scores in the runs.

    Scores are scaled over the documents that a run found for the query. A document that the run did
    not find gets the lowest of them; a run without the query adds 0 to all documents.

    Args:
        runs: two or more.
        weights: one per run; equal, with a sum of 1, when empty.
        k: number of documents kept per query.
        scale: a name in SCALINGS.

    Returns:
        Every query of any run, in the order in which they first appear.

    Raises:
        UserError: the weights are not one per run and from 0, there is no such scale, a score is
            infinite, or `k` is too small.
    """
    given = _weights(weights, len(runs), 1 / max(len(runs), 1))
    if scale not in SCALINGS:
        raise UserError(f"There is no scale {scale!r}. {nearest(scale, SCALINGS)}")

    scaling = SCALINGS[scale]

    def score(query: str) -> dict[str, float]:
        rankings = [run.rankings.get(query, Ranking((), ())) for run in runs]
        total = dict.fromkeys((docid for one in rankings for docid in one.docids), 0.0)
        for ranking, weight in zip(rankings, given, strict=True):
            scores = dict(zip(ranking.docids, ranking.scores, strict=True))
            if not all(map(isfinite, scores.values())):
                raise UserError(
                    f"A score of query {query} is infinite and cannot be scaled. Correct the run, "
                    f"or fuse by ranks."
                )
            if not scores:
                continue
            scaled = scaling.of(scores)
            absent = scaling.absent(scaled)
            for docid in total:
                total[docid] += weight * scaled.get(docid, absent)
        return total

    return _fused(runs, score, k)


def _fused(runs: Sequence[Run], score: Callable[[str], dict[str, float]], k: int) -> Run:
    if len(runs) < 2:
        raise UserError(
            f"{counted(len(runs), 'runs')} {were(len(runs))} given, and fusing takes two at least."
        )
    if k < 1:
        raise UserError(f"{k} documents per query were asked for. Ask for at least one.")
    rankings = {}
    for query in dict.fromkeys(query for run in runs for query in run.rankings):
        total = score(query)
        rankings[query] = Ranking.of(list(total), total.values(), k)
    return Run(rankings)


def _weights(weights: Sequence[float], runs: int, default: float) -> Sequence[float]:
    if not weights:
        return [default] * runs
    if len(weights) != runs:
        raise UserError(
            f"{counted(len(weights), 'weights')} {were(len(weights))} given for "
            f"{counted(runs, 'runs')}; give one for each."
        )
    if not all(isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        listed = ", ".join(map(str, weights))
        raise UserError(f"The weights {listed} were given; give numbers from 0, not all of them 0.")
    return weights
