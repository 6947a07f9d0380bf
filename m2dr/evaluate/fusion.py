"""Several runs become one: by ranks, or by scores brought to one scale."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean, pstdev
from types import MappingProxyType

from m2dr.errors import UserError, counted, nearest, were
from m2dr.records.run import Ranking, Run

RANK_OFFSET = 60  # k of Cormack et al., who found that it hardly matters
Scores = Mapping[str, float]  # by docid


@dataclass(frozen=True)
class Scale:
    """How the scores of one ranking are made comparable with those of another."""

    name: str
    summary: str
    of: Callable[[Scores], dict[str, float]]
    absent: Callable[[Scores], float]  # what a document counts that the ranking does not hold


def _min_max(scores: Scores) -> dict[str, float]:
    """From 0, the worst found, to 1, the best; where all are equal, all are the best."""
    low, high = min(scores.values()), max(scores.values())
    span = high - low
    return {name: (score - low) / span if span else 1.0 for name, score in scores.items()}


def _standard(scores: Scores) -> dict[str, float]:
    """Distance from the mean in standard deviations, of all that were found."""
    mean, deviation = fmean(scores.values()), pstdev(scores.values())
    return {
        name: (score - mean) / deviation if deviation else 0.0 for name, score in scores.items()
    }


def _lowest(scores: Scores) -> float:
    return min(scores.values())


SCALES = MappingProxyType(
    {
        scale.name: scale
        for scale in (
            Scale("min-max", "from 0 for the worst found to 1", _min_max, lambda _: 0.0),
            Scale("z", "distance from the mean in standard deviations", _standard, _lowest),
            Scale("none", "as they are", dict, _lowest),
        )
    }
)


def reciprocal_ranks(
    runs: Sequence[Run],
    weights: Sequence[float] = (),
    k: int = 1000,
    offset: float = RANK_OFFSET,
) -> Run:
    """Score a document by the sum over the runs of weight / (offset + rank), ranks from 1.

    Cormack, Clarke and Büttcher, Reciprocal Rank Fusion outperforms Condorcet and individual Rank
    Learning Methods, SIGIR 2009, where all weights are 1. A run that does not hold a document adds
    nothing to it.

    Args:
        runs: in any number.
        weights: one per run; all 1 when empty.
        k: how many documents of each query are kept.
        offset: 0 at least; the larger, the less the first ranks stand out.

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
    """Score a document by the weighted sum of its scores in the runs, each on one scale.

    Scores are scaled over the documents that a run found for the query. A document that it did not
    find counts as the worst that it did; a query that it does not hold counts 0 for all.

    Args:
        runs: in any number.
        weights: one per run; equal and 1 together when empty.
        k: how many documents of each query are kept.
        scale: a name in SCALES.

    Returns:
        Every query of any run, in the order in which they first appear.

    Raises:
        UserError: the weights are not one per run and from 0, there is no such scale, a score is
            infinite, or `k` is too small.
    """
    given = _weights(weights, len(runs), 1 / max(len(runs), 1))
    if scale not in SCALES:
        raise UserError(f"There is no scale {scale!r}. {nearest(scale, SCALES)}")

    def score(query: str) -> dict[str, float]:
        rankings = [run.rankings.get(query, Ranking((), ())) for run in runs]
        total = dict.fromkeys((docid for one in rankings for docid in one.docids), 0.0)
        for ranking, weight in zip(rankings, given, strict=True):
            _add(total, ranking, weight, SCALES[scale], query)
        return total

    return _fused(runs, score, k)


def _add(
    total: dict[str, float], ranking: Ranking, weight: float, scale: Scale, query: str
) -> None:
    """Add what one ranking says of each document."""
    if not ranking.docids:
        return
    scores = dict(zip(ranking.docids, ranking.scores, strict=True))
    if not all(map(isfinite, scores.values())):
        raise UserError(
            f"A score of query {query} is infinite and has no place on a scale. Correct the run, "
            f"or fuse by ranks."
        )
    scaled = scale.of(scores)
    absent = scale.absent(scaled)
    for docid in total:
        total[docid] += weight * scaled.get(docid, absent)


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


def _weights(weights: Sequence[float], runs: int, usual: float) -> Sequence[float]:
    if not weights:
        return [usual] * runs
    if len(weights) != runs:
        raise UserError(
            f"{counted(len(weights), 'weights')} {were(len(weights))} given for "
            f"{counted(runs, 'runs')}; give one for each."
        )
    if not all(isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        told = ", ".join(map(str, weights))
        raise UserError(f"The weights {told} were given; give numbers from 0, not all of them 0.")
    return weights
