"""Runs and judgements become measures. ir_measures and pytrec_eval live here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import fsum
from typing import TYPE_CHECKING

from m2dr.errors import UserError, nearest
from m2dr.records.run import Run
from m2dr.records.texts import Judgement

if TYPE_CHECKING:
    from ir_measures import Measure
    from ir_measures.providers import Evaluator as Provided
    from ir_measures.providers import Provider

Judged = Mapping[str, Mapping[str, int]]  # query id -> document id -> relevance

DEFAULT = ("nDCG@10", "RR@10", "R@100", "R@1000")

# Who computes, in order of preference. Left out: gdeval, which starts Perl and wants numbers as
# query ids, and whatever needs subtopics or packages that m2dr does not install.
_PROVIDERS = ("pytrec_eval", "msmarco", "judged", "compat")

_HIGHEST = 1_000_000  # relevance; far above any scale, far below what memory bears


@dataclass(frozen=True)
class Scores:
    """What a run is worth, per measure."""

    mean: Mapping[str, float]  # measure -> over all judged queries; a sum for counts such as NumRet
    per_query: Mapping[str, Mapping[str, float]]  # measure -> query id -> value

    @property
    def queries(self) -> int:
        """How many queries the means are over."""
        return max(map(len, self.per_query.values()), default=0)


class Evaluator:
    """Judgements prepared once, to score one run after the other.

    Queries are those of the judgements: one that the run does not know, or found nothing for,
    counts as 0 (trec_eval -c), and one that has no judgement does not count. A query whose
    judgements are all 0 or below does count, as 0, as in trec_eval and pytrec_eval. A negative
    relevance is what it is to trec_eval: in the pool, and not judged.

    Attributes:
        measures: each once, in the order asked.
        judged: query id -> document id -> relevance; a negative one is -1.
    """

    def __init__(self, judgements: Iterable[Judgement], names: Sequence[str] = DEFAULT) -> None:
        """Prepare to measure.

        Args:
            judgements: of every query that counts.
            names: measures as ir_measures writes them.

        Raises:
            UserError: a measure is unknown, there is no judgement, or two contradict each other.
        """
        self.measures = parse(names)
        self.judged = judged = _by_query(judgements)
        self._codes = {query: _codes(judged[query]) for query in judged}
        coded = [{self._codes[q][d]: level for d, level in judged[q].items()} for q in judged]
        self._plans = _plans(
            self.measures, {str(i): _bounded(levels) for i, levels in enumerate(coded)}
        )

    @property
    def depth(self) -> int | None:
        """The rank below which no measure looks; None when one looks to the end."""
        depths = [depth for depth, _ in self._plans]
        return None if None in depths else max(depth for depth in depths if depth is not None)

    @property
    def queries(self) -> int:
        """How many queries the means are over."""
        return len(self._codes)

    def scores(self, run: Run) -> Scores:
        """Measure `run`, whose order alone matters: ties were broken when it was made."""
        found: dict[str, dict[str, float]] = {str(measure): {} for measure in self.measures}
        for depth, evaluator in self._plans:
            for metric in evaluator.iter_calc(self._coded(run, depth)):
                found[str(metric.measure)][metric.query_id] = float(metric.value)
        per_query = {
            name: {query: values[str(i)] for i, query in enumerate(self._codes)}
            for name, values in found.items()
        }
        return Scores({str(m): _mean(m, per_query[str(m)]) for m in self.measures}, per_query)

    def _coded(self, run: Run, depth: int | None) -> dict[str, dict[str, float]]:
        """Query number -> code of a document -> minus its rank.

        That is a score without ties, whose order is the rank: providers break ties each in its own
        way, and the one of RR@10 in the opposite one to ours. A query that found nothing is left
        out, which makes it 0; the one of Judged@10 would divide by its length.
        """
        longest = max((len(ranking.docids) for ranking in run.rankings.values()), default=0)
        ranks = range(longest if depth is None else min(longest, depth))
        scores = [float(-rank) for rank in ranks]  # exact as float32 below 16 million
        unjudged = [f"u{rank}" for rank in ranks]
        coded = {}
        for i, (query, codes) in enumerate(self._codes.items()):
            docids = run.rankings[query].docids if query in run.rankings else ()
            ranked = zip(docids, unjudged, scores, strict=False)
            if docids:
                coded[str(i)] = {codes.get(docid, other): score for docid, other, score in ranked}
        return coded


def measure(run: Run, judgements: Iterable[Judgement], names: Sequence[str] = DEFAULT) -> Scores:
    """Measure one run; for several, keep an Evaluator.

    >>> from m2dr.records.run import Ranking
    >>> run = Run({"q": Ranking.of(["d1", "d2"], [0.5, 0.7])})
    >>> measure(run, [Judgement("q", "d1", 1)], ["RR@10", "R@1"]).mean
    {'RR@10': 0.5, 'R@1': 0.0}
    """
    return Evaluator(judgements, names).scores(run)


def parse(names: Sequence[str]) -> tuple["Measure", ...]:
    """Measures from their names, each once, in the order given.

    Raises:
        UserError: there is no name, or one is unknown, incomplete or not computed here.

    >>> parse(["nDCG@10", "MRR@10", "RR@10"])
    (nDCG@10, RR@10)
    """
    if not names:
        raise UserError(f"No measure was asked for; name at least one, such as {DEFAULT[0]}.")
    return tuple(dict.fromkeys(map(_parse_one, names)))


def overall(name: str, values: Sequence[float]) -> float:
    """What a measure is over all queries: the mean; a sum for counts such as NumRet."""
    total = fsum(values)
    return total if str(parse([name])[0].NAME).startswith("Num") else total / max(1, len(values))


def _parse_one(name: str) -> "Measure":
    import ir_measures

    try:
        found = ir_measures.parse_measure(name)
    except NameError:
        raise UserError(f"No measure is called {name}. {_hint(name)}") from None
    except (ValueError, TypeError):
        raise UserError(
            f"{name!r} is not written as a measure is, such as nDCG@10 or P(rel=2)@5."
        ) from None
    problem = _problem(found)
    if problem:
        raise UserError(f"{name} cannot be measured: {problem}.")
    return found


_ALSO = {"recall": "r", "precision": "p", "map": "ap", "hit": "success", "hits": "success"}


def _hint(name: str) -> str:
    """The measure that `name` may have meant; case is the usual slip."""
    from ir_measures.measures import registry

    head = name.partition("@")[0].partition("(")[0]
    known = {one.casefold(): one for one in sorted(registry)}
    close = get_close_matches(_ALSO.get(head.casefold(), head.casefold()), known, n=1)
    if not close:
        return nearest(head, known.values())
    meant = known[close[0]] + name[len(head) :]
    try:
        return f"Did you mean {_parse_one(meant)}?"
    except UserError:  # what follows the name is wrong too
        return f"Did you mean {known[close[0]]}?"


def _problem(found: "Measure") -> str:
    """Why `found` cannot be computed here; empty when it can.

    The library checks parameters by `assert`, gone under python -O, and pytrec_eval ends the
    whole process on a cutoff of 0.
    """
    from ir_measures.providers.base import NOT_PROVIDED

    known = found.SUPPORTED_PARAMS
    for name in found.params.keys() - known.keys():
        return f"it has no parameter {name}; it has {', '.join(known) or 'none'}"
    for name, spec in known.items():
        value = found.params.get(name, NOT_PROVIDED)
        fits = spec.validate(value)  # type: ignore[no-untyped-call] # ir_measures is half typed
        if not fits:
            return f"its {name} is missing" if value is NOT_PROVIDED else f"its {name} is {value}"
        if name in ("cutoff", "rel") and value is not NOT_PROVIDED and not _counts(value):
            return f"its {name} is {value} and must be a whole number from 1"
    if not any(provider.supports(found) for provider in _providers()):
        return f"none of {', '.join(_PROVIDERS)} computes it in that form"
    return ""


def _counts(value: object) -> bool:
    return type(value) is int and 1 <= value < 2**31


def _providers() -> list["Provider"]:
    from ir_measures.providers import registry

    return [registry[name] for name in _PROVIDERS if registry[name].is_available()]


def _by_query(judgements: Iterable[Judgement]) -> dict[str, dict[str, int]]:
    """Query id -> document id -> relevance, any negative one as -1.

    To trec_eval all negative levels are one, and pytrec_eval writes outside its memory when every
    judgement of a query is below -1, as some of TREC are. It also takes memory for each level
    below the highest.
    """
    judged: dict[str, dict[str, int]] = {}
    for one in judgements:
        level = max(int(one.relevance), -1)
        if level > _HIGHEST:
            raise UserError(
                f"Document {one.document_id} is judged {level} for query {one.query_id}, which is "
                f"no degree of relevance; check the columns of the judgements."
            )
        known = judged.setdefault(one.query_id, {}).setdefault(one.document_id, level)
        if known != level:
            raise UserError(
                f"Document {one.document_id} is judged both {known} and {level} for query "
                f"{one.query_id}; keep one of the two."
            )
    if not judged:
        raise UserError("Nothing can be measured without judgements; none were given.")
    return judged


def _codes(docids: Iterable[str]) -> dict[str, str]:
    """Document id -> a short name that is safe in C.

    pytrec_eval ends ids at a zero byte, crashes on half a surrogate pair, and gives a first query
    of the name "no query" the score 0.
    """
    return {docid: f"j{place}" for place, docid in enumerate(docids)}


def _bounded(levels: Mapping[str, int]) -> Mapping[str, int]:
    """Levels of a query, with one of 0 at least, of a document that nobody finds.

    It changes no measure; without it pytrec_eval reads outside its memory, often forever, when
    every judgement of a query is negative.
    """
    return levels if max(levels.values()) >= 0 else {**levels, "none": 0}


def _plans(measures: Sequence["Measure"], judged: Judged) -> list[tuple[int | None, "Provided"]]:
    """What evaluates which measures, and how deep a ranking it must see (None: to the end).

    pytrec_eval takes all of its measures at once, to the deepest cutoff. The others sort in Python,
    so each sees no more than its own cutoff.
    """
    from ir_measures.providers import registry

    pytrec = registry["pytrec_eval"]
    joint = [m for m in measures if pytrec.supports(m)]
    plans = [(_depth(joint), pytrec.evaluator(joint, judged))] if joint else []
    for single in [m for m in measures if m not in joint]:
        provider = next(p for p in _providers() if p.supports(single))
        plans.append((_depth([single]), provider.evaluator([single], judged)))
    return plans


def _depth(measures: Sequence["Measure"]) -> int | None:
    """The rank below which none of `measures` looks; None when one looks to the end.

    With `judged_only` the cutoff is counted among judged documents, which may lie anywhere.
    """
    deepest = 0
    for measure in measures:
        cutoff = None if measure.params.get("judged_only") else measure.params.get("cutoff")
        if cutoff is None:
            return None
        deepest = max(deepest, cutoff)
    return deepest


def _mean(measure: "Measure", values: Mapping[str, float]) -> float:
    aggregator = measure.aggregator()
    for value in values.values():
        aggregator.add(value)
    return float(aggregator.result())
