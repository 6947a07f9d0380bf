"""Measures: their names, the default ones of a dataset, and their values.

Shapes: Q judged queries, J judgements, A answered queries, k documents of a ranking.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import floor, fsum
from typing import TYPE_CHECKING

import numpy as np

from m2dr.core.arrays import Bools, Float64, Int64
from m2dr.core.errors import UserError, counted, nearest
from m2dr.core.progress import say
from m2dr.core.records import Judgement, Run

if TYPE_CHECKING:
    from ir_measures import Measure
    from ir_measures.providers import Evaluator as Provided
    from ir_measures.providers import Provider

Judged = Mapping[str, Mapping[str, float]]  # query id -> document id -> relevance

DEFAULT = ("nDCG@10", "RR@10", "R@100", "R@1000")

# Providers of ir_measures in order of preference. Left out are gdeval, which starts Perl and takes
# only numbers as query ids, and those that need subtopics or packages that are not installed.
_PROVIDERS = ("pytrec_eval", "msmarco", "judged", "compat")
_COMPARED = 2**22  # pairs of a judged and a ranked document that are compared at once
_HIGHEST = 1_000_000  # relevance; pytrec_eval allocates memory for each level below
# Names that other tools use, in lower case -> names of ir_measures.
_ALSO = {"recall": "R", "precision": "P", "map": "AP", "hit": "Success", "ndcg": "nDCG"}
# The folder names of the 13 public datasets of BEIR (Thakur et al. 2021), without MS MARCO, on
# which its models are trained.
BEIR13 = (
    "trec-covid",
    "nfcorpus",
    "nq",
    "hotpotqa",
    "fiqa",
    "arguana",
    "webis-touche2020",
    "quora",
    "dbpedia-entity",
    "scidocs",
    "fever",
    "climate-fever",
    "scifact",
)
OTHER_NAMES = {
    "webis-touche2020": ("touche-2020", "touche2020", "webis-touche2020-v2"),
    "dbpedia-entity": ("dbpedia",),
    "trec-covid": ("trec-covid-beir",),
}
_OTHERS = ("bioasq", "signal1m", "trec-news", "robust04", "cqadupstack")
_BEIR = (*BEIR13, *_OTHERS, *(name for names in OTHER_NAMES.values() for name in names))


@dataclass(frozen=True)
class DefaultMeasures:
    """The measures that papers report on some datasets, which are the default there."""

    name: str
    pattern: re.Pattern[str]  # searched in "corpus split", in lower case
    measures: tuple[str, ...]


_MARCO = r"ms[-_]?marco"
# The first row whose pattern is found decides.
DEFAULT_MEASURES = (
    # Judgements are 0 to 3; all measures but nDCG count 2 and 3 as relevant (Craswell et al. 2020).
    DefaultMeasures(
        "TREC deep learning",
        re.compile(r"(\b|_)(trec-)?dl[-_]?(20)?(19|20)(\b|_)|\b20(19|20)-?(pass|judged)"),
        ("nDCG@10", "AP(rel=2)", "R(rel=2)@100", "RR(rel=2)@10"),
    ),
    DefaultMeasures("MS MARCO dev", re.compile(rf"{_MARCO}.* \S*dev\S*$"), ("RR@10", "R@1000")),
    DefaultMeasures(
        "BEIR",
        re.compile(rf"(^|[\s/:])({'|'.join(map(re.escape, _BEIR))}|cqadupstack[/-]\w+)([\s/]|$)"),
        ("nDCG@10", "R@100"),
    ),
)
_OTHER_DATA = DefaultMeasures("other data", re.compile(""), DEFAULT)


@dataclass(frozen=True)
class RunScores:
    """The values of a run, per measure."""

    mean: Mapping[str, float]  # measure -> over all judged queries; a sum for counts such as NumRet
    per_query: Mapping[str, Mapping[str, float]]  # measure -> query id -> value


class Evaluator:
    """Measures runs with the same judgements.

    The queries are those of the judgements: one that is missing from the run, or found nothing,
    counts as 0 (trec_eval -c), and one without judgements does not count. A query whose judgements
    are all 0 or below counts as 0, as in trec_eval and pytrec_eval. Documents of negative relevance
    count as not judged, as in trec_eval. Fractions are gains of nDCG; other measures take the
    nearest whole number, of .5 the one above.

    Attributes:
        measures: each once, in the order asked.
        judged: query id -> document id -> relevance; a negative one is -1.
    """

    def __init__(self, judgements: Iterable[Judgement], names: Sequence[str] = DEFAULT) -> None:
        """Prepare to measure.

        Args:
            judgements: of all queries that count.
            names: of the measures, as ir_measures writes them.

        Raises:
            UserError: a measure is unknown, there is no judgement, or two contradict each other.
        """
        self.measures = parse(names)
        self.judged = judged = _by_query(judgements)
        # pytrec_eval ends ids at a zero byte and crashes on half a surrogate pair.
        self._codes = {q: {docid: f"j{i}" for i, docid in enumerate(judged[q])} for q in judged}
        others = [measure for measure in self.measures if not has_formula(measure)]
        fractions = sum(level % 1 != 0 for levels in judged.values() for level in levels.values())
        rounded = [str(m) for m in self.measures if m.NAME != "nDCG" or m in others]
        if fractions and rounded:
            counts = counted(fractions, "judgements", ",")
            say(f"Fractions of {counts} are rounded to whole numbers for {', '.join(rounded)}.")
        bounded: dict[str, dict[str, int]] = {}
        for i, (query, codes) in enumerate(self._codes.items()):
            bounded[str(i)] = {
                codes[docid]: floor(level + 0.5) for docid, level in judged[query].items()
            }
            if max(bounded[str(i)].values()) < 0:  # pytrec_eval would read outside its memory
                bounded[str(i)]["none"] = 0  # which changes no measure
        self._plans = _plans(others, bounded) if others else []

    @property
    def depth(self) -> int | None:
        """The deepest cutoff; None when a measure has none."""
        return _depth(self.measures)

    def scores(self, run: Run) -> RunScores:
        """Measure a run by the order of its documents; ties were broken when it was made."""
        computed = self._computed(self._ranks(run), lambda: run)
        per_query = {
            name: dict(zip(self.judged, found.tolist(), strict=True))
            for name, found in computed.items()
        }
        return RunScores({str(m): _mean(m, per_query[str(m)]) for m in self.measures}, per_query)

    def _computed(self, ranks: "JudgedRanks", run: Callable[[], Run]) -> dict[str, Float64]:
        """Return measure -> values of all judged queries, [Q]; `run` is for providers alone."""
        computed = {str(m): values(m, ranks) for m in self.measures if has_formula(m)}
        rankings = run() if self._plans else Run({})
        for depth, evaluator in self._plans:
            for metric in evaluator.iter_calc(self._coded(rankings, depth)):
                column = computed.setdefault(str(metric.measure), np.zeros(len(self.judged)))
                column[int(metric.query_id)] = metric.value
        return {str(measure): computed[str(measure)] for measure in self.measures}

    def _ranks(self, run: Run) -> "JudgedRanks":
        """Return the ranks of the judged documents."""
        rows, judged = self._rows
        rankings = [run.rankings.get(query) for query in self.judged]
        longest = max((len(one.docids) for one in rankings if one), default=0)
        ranked = np.full((len(rankings), longest), -1, np.int64)
        for line, one in zip(ranked, rankings, strict=True):
            for rank, docid in enumerate(one.docids if one else ()):
                line[rank] = rows.get(docid, -1)
        answered = np.array([place if one else -1 for place, one in enumerate(rankings)], np.int64)
        return judged.ranked(ranked, answered)

    @cached_property
    def _rows(self) -> "tuple[dict[str, int], JudgedRows]":
        """A number of each judged document, and the judgements by these numbers."""
        docids = dict.fromkeys(docid for levels in self.judged.values() for docid in levels)
        rows = {docid: row for row, docid in enumerate(docids)}
        return rows, JudgedRows.of(self.judged, rows)

    def _coded(self, run: Run, depth: int | None) -> dict[str, dict[str, float]]:
        """Return query number -> code of a document -> minus its rank.

        Scores without ties are needed because each provider breaks ties in its own way. A query
        that found nothing is left out, which makes it 0; Judged@10 would divide by its length.
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


def measure(run: Run, judgements: Iterable[Judgement], names: Sequence[str] = DEFAULT) -> RunScores:
    """Measure one run; for several runs, use an Evaluator.

    >>> from m2dr.core.records import Ranking
    >>> run = Run({"q": Ranking.of(["d1", "d2"], [0.5, 0.7])})
    >>> measure(run, [Judgement("q", "d1", 1)], ["RR@10", "R@1"]).mean
    {'RR@10': 0.5, 'R@1': 0.0}
    """
    return Evaluator(judgements, names).scores(run)


def parse(names: Sequence[str]) -> tuple["Measure", ...]:
    """Return measures by their names, each once, in the order given.

    Raises:
        UserError: one is unknown, incomplete or not computed here.

    >>> parse(["nDCG@10", "MRR@10", "RR@10", "ndcg_cut_10", "recip_rank"])
    (nDCG@10, RR@10, RR)
    """
    return tuple(dict.fromkeys(map(_parse_one, names)))


def default_measures(corpus: str, split: str) -> DefaultMeasures:
    """Return the default measures of a split of a corpus, by their names alone.

    >>> default_measures("msmarco", "dev.small").measures
    ('RR@10', 'R@1000')
    >>> default_measures("scifact", "test").measures
    ('nDCG@10', 'R@100')
    """
    text = f"{corpus} {split}".lower()
    return next((row for row in DEFAULT_MEASURES if row.pattern.search(text)), _OTHER_DATA)


def default_split(corpus: str, splits: Collection[str]) -> str:
    """Return the split of a corpus that papers report: test, or dev of MS MARCO.

    Of a corpus with one split besides its training queries, it is that one.

    >>> default_split("msmarco", ("dev", "test", "train")), default_split("fiqa", ("dev", "test"))
    ('dev', 'test')
    >>> default_split("beir-msmarco", ("dev", "test")), default_split("mine", ("eval", "train"))
    ('dev', 'eval')
    """
    if corpus.lower().rpartition("-")[2] == "msmarco" and "dev" in splits:
        return "dev"
    if "dev.small" in splits:  # MS MARCO in its own layout
        return "dev.small"
    others = [split for split in splits if not split.startswith("train")]
    return others[0] if len(others) == 1 else "test"


def overall(name: str, values: Sequence[float]) -> float:
    """Return a measure over all queries: the mean, or the sum for counts such as NumRet."""
    total = fsum(values)
    return total if str(parse([name])[0].NAME).startswith("Num") else total / max(1, len(values))


def _parse_one(name: str) -> "Measure":
    import ir_measures
    from ir_measures.measures import registry

    measure: Measure | None
    try:
        measure = ir_measures.parse_measure(name)
    except NameError:
        measure = _of_trec_eval(name)
    except (ValueError, TypeError):
        raise UserError(f"{name!r} is no measure, such as nDCG@10 or P(rel=2)@5.") from None
    if measure is None:
        head = name.partition("@")[0].partition("(")[0]
        hint = nearest(_ALSO.get(head.casefold(), head), sorted(registry))
        raise UserError(f"No measure is called {name}. {hint}")
    problem = _problem(measure)
    if problem:
        raise UserError(f"{name} cannot be measured: {problem}.")
    return measure


def _of_trec_eval(name: str) -> "Measure | None":
    """Return the measure that trec_eval calls so, such as ndcg_cut_10; None where it has none."""
    import ir_measures

    try:
        measures = ir_measures.parse_trec_measure(name)
    except ValueError:
        return None
    return measures[0] if len(measures) == 1 else None


def _problem(measure: "Measure") -> str:
    """Return why a measure cannot be computed here; empty when it can.

    ir_measures checks parameters by `assert`, which python -O skips, and pytrec_eval ends the
    process on a cutoff of 0.
    """
    from ir_measures.providers.base import NOT_PROVIDED

    known = measure.SUPPORTED_PARAMS
    for name in measure.params.keys() - known.keys():
        return f"it has no parameter {name}; it has {', '.join(known) or 'none'}"
    for name, spec in known.items():
        value = measure.params.get(name, NOT_PROVIDED)
        fits = spec.validate(value)  # type: ignore[no-untyped-call] # ir_measures is half typed
        if not fits:
            return f"its {name} is missing" if value is NOT_PROVIDED else f"its {name} is {value}"
        if (
            name in ("cutoff", "rel")
            and value is not NOT_PROVIDED
            and not (type(value) is int and 1 <= value < 2**31)
        ):
            return f"its {name} is {value} and must be a whole number from 1"
    if not (has_formula(measure) or any(one.supports(measure) for one in _providers())):
        return f"none of {', '.join(_PROVIDERS)} computes it in that form"
    return ""


def _providers() -> list["Provider"]:
    from ir_measures.providers import registry

    return [registry[name] for name in _PROVIDERS if registry[name].is_available()]


def _by_query(judgements: Iterable[Judgement]) -> dict[str, dict[str, float]]:
    """Return query id -> document id -> relevance, any negative one as -1.

    trec_eval treats all negative levels alike, and pytrec_eval writes outside its memory when all
    judgements of a query are below -1, as in some sets of TREC.
    """
    judged: dict[str, dict[str, float]] = {}
    for one in judgements:
        level = max(one.relevance, -1)
        if level > _HIGHEST:
            raise UserError(f"{one} has no degree of relevance.")
        known = judged.setdefault(one.query_id, {}).setdefault(one.document_id, level)
        if known != level:
            raise UserError(f"{one} contradicts another one, of relevance {known}.")
    if not judged:
        raise UserError("Nothing can be measured without judgements; none were given.")
    return judged


def _plans(measures: Sequence["Measure"], judged: Judged) -> list[tuple[int | None, "Provided"]]:
    """Return the evaluators of all measures, each with the depth of the rankings it needs.

    pytrec_eval takes all of its measures at once, to the deepest cutoff. The others sort in Python,
    so each gets rankings of its own cutoff. A depth of None means the full ranking.
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
    """Return the deepest cutoff of `measures`; None when one needs the full ranking.

    With `judged_only` a cutoff counts judged documents alone, which may have any rank.
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


class RowEvaluator(Evaluator):
    """Measures the rankings of many cuts, given as rows of a store, with the same judgements."""

    def __init__(
        self,
        judgements: Sequence[Judgement],
        names: Sequence[str],
        query_ids: Sequence[str],
        rows: Callable[[Iterable[str]], Mapping[str, int]],
    ) -> None:
        """Prepare to measure.

        Args:
            judgements: of all queries that count.
            names: of the measures, as ir_measures writes them.
            query_ids: of the rankings that will be measured, in their order.
            rows: function of document ids; returns id -> row of those in the store.

        Raises:
            UserError: as `Evaluator` does.
        """
        super().__init__(judgements, names)
        self.query_ids = tuple(self.judged)
        known = rows({docid for levels in self.judged.values() for docid in levels})
        self.judged_rows = JudgedRows.of(self.judged, known)
        places = {query: place for place, query in enumerate(query_ids)}
        self._answered = np.array([places.get(query, -1) for query in self.judged], np.int64)

    @property
    def facts(self) -> dict[str, int]:
        """The numbers of judged queries and of judgements that `query_checks` tells of."""
        relevant = self.judged_rows.query[self.judged_rows.gain > 0]
        return {
            "unanswered": int((self._answered < 0).sum()),
            "unanswerable": self.judged_rows.queries - len(np.unique(relevant)),
            "unknown_documents": int((self.judged_rows.row < 0).sum()),
        }

    def per_query(self, found: Int64, run: Callable[[], Run]) -> dict[str, Float64]:
        """Return measure -> values of all judged queries, [Q].

        Args:
            found: [A, k] rows, best first; -1 after the end of a ranking.
            run: returns the same rankings by document id; called only if a provider needs them.
        """
        return self._computed(self.judged_rows.ranked(found, self._answered), run)


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """Judgements as arrays: documents by their row in a store, queries by their place in a list."""

    queries: int  # Q
    query: Int64  # [J], from 0 to Q - 1, increasing
    row: Int64  # [J], -1 for a document that the store does not hold
    gain: Float64  # [J]
    level: Int64  # [J], the nearest whole number

    @classmethod
    def of(cls, judged: Judged, rows: Mapping[str, int]) -> "JudgedRows":
        """Build the arrays.

        Args:
            judged: query id -> document id -> relevance.
            rows: document id -> row, of the judged documents in the store.
        """
        triples = [
            (place, rows.get(docid, -1), gain)
            for place, gains in enumerate(judged.values())
            for docid, gain in gains.items()
        ]
        query, row, gain = np.array(triples, np.float64).reshape(-1, 3).T
        level = np.floor(gain + 0.5).astype(np.int64)
        return cls(len(judged), query.astype(np.int64), row.astype(np.int64), gain, level)

    def ranked(self, found: Int64, answered: Int64) -> "JudgedRanks":
        """Look up the rank of each judged document.

        Args:
            found: [A, k] rows of the documents, best first; -1 after the end of a ranking.
            answered: [Q], the line of `found` of each query; -1 for a query without a ranking.
        """
        ranks = np.zeros(len(self.query), np.int64)
        line = answered[self.query]
        looked = np.flatnonzero((line >= 0) & (self.row >= 0))
        step = max(1, _COMPARED // max(1, found.shape[1]))
        for start in range(0, len(looked) if found.shape[1] else 0, step):
            some = looked[start : start + step]
            hits = found[line[some]] == self.row[some, None]
            ranks[some] = np.where(hits.any(axis=1), hits.argmax(axis=1) + 1, 0)
        return JudgedRanks(self, ranks)


@dataclass(frozen=True, eq=False)
class JudgedRanks:
    """The rank of each judged document in the ranking of its query."""

    judged: JudgedRows
    rank: Int64  # [J], from 1; 0: not found

    def relevant(self, level: int) -> Int64:
        """Return the number of documents judged `level` or higher, [Q]."""
        return self.count(self.judged.level >= level)

    def found(self, level: int, cutoff: int | None) -> Bools:
        """Return which documents judged `level` or higher were found up to rank `cutoff`, [J]."""
        high = (self.judged.level >= level) & (self.rank > 0)
        return high if cutoff is None else high & (self.rank <= cutoff)

    def count(self, which: Bools) -> Int64:
        """Return the number of judgements of each query among `which`, [Q]."""
        return np.bincount(self.judged.query[which], minlength=self.judged.queries)

    def total(self, which: Bools | Int64, values: Float64) -> Float64:
        """Return the sum of the `values` of some judgements over each query, [Q]."""
        query = self.judged.query[which]
        sums = np.bincount(query, weights=values, minlength=self.judged.queries)
        return sums.astype(np.float64)  # of no judgement, numpy returns integers


def has_formula(measure: "Measure") -> bool:
    """Return whether `measure` has a formula here, with no parameter but cutoff and rel.

    >>> from m2dr.evaluation.measures import parse
    >>> tuple(map(has_formula, parse(["nDCG@10", "Bpref"])))
    (True, False)
    """
    return measure.NAME in FORMULAS and measure.params.keys() <= {"cutoff", "rel"}


def values(measure: "Measure", ranks: JudgedRanks) -> Float64:
    """Return the values of a measure that has a formula, [Q], each 0 to 1."""
    params = measure.params
    return FORMULAS[str(measure.NAME)](ranks, params.get("rel", 1), params.get("cutoff"))


def _ndcg(ranks: JudgedRanks, _: int, cutoff: int | None) -> Float64:
    """Return gain / log2(1 + rank), summed, over the ideal (Järvelin and Kekäläinen 2002).

    As in trec_eval the gain is the relevance, and 0 where that is negative.
    """
    judged = ranks.judged
    found = (judged.gain > 0) & (ranks.rank > 0) & (ranks.rank <= (cutoff or np.inf))
    gained = ranks.total(found, judged.gain[found] / np.log2(ranks.rank[found] + 1.0))
    order, place = _within(judged, np.flatnonzero(judged.gain > 0), -judged.gain)
    if cutoff is not None:
        order, place = order[place <= cutoff], place[place <= cutoff]
    return _share(gained, ranks.total(order, judged.gain[order] / np.log2(place + 1.0)))


def _average_precision(ranks: JudgedRanks, rel: int, cutoff: int | None) -> Float64:
    """Return the mean precision at the ranks of the relevant documents, 0 for those not found."""
    which = np.flatnonzero(ranks.found(rel, cutoff))
    order, place = _within(ranks.judged, which, ranks.rank)
    return _share(ranks.total(order, place / ranks.rank[order]), ranks.relevant(rel))


def _reciprocal_rank(ranks: JudgedRanks, rel: int, cutoff: int | None) -> Float64:
    found = ranks.found(rel, cutoff)
    first = np.full(ranks.judged.queries, np.inf)
    np.minimum.at(first, ranks.judged.query[found], ranks.rank[found])
    return 1.0 / first


def _recall(ranks: JudgedRanks, rel: int, cutoff: int | None) -> Float64:
    return _share(ranks.count(ranks.found(rel, cutoff)), ranks.relevant(rel))


def _precision(ranks: JudgedRanks, rel: int, cutoff: int | None) -> Float64:
    return ranks.count(ranks.found(rel, cutoff)) / float(cutoff or 1)


def _success(ranks: JudgedRanks, rel: int, cutoff: int | None) -> Float64:
    return (ranks.count(ranks.found(rel, cutoff)) > 0).astype(np.float64)


# Name -> function of judged ranks, least relevance and cutoff, which returns [Q]. A measure of
# ir_measures is computed by its formula here where there is one, and by its provider otherwise.
FORMULAS: dict[str, Callable[[JudgedRanks, int, int | None], Float64]] = {
    "nDCG": _ndcg,
    "AP": _average_precision,
    "RR": _reciprocal_rank,
    "R": _recall,
    "P": _precision,
    "Success": _success,
}


def _within(judged: JudgedRows, which: Int64, key: Int64 | Float64) -> tuple[Int64, Int64]:
    """Sort some judgements by query and `key` [J]; return them and their places from 1 by query."""
    order = which[np.lexsort((key[which], judged.query[which]))]
    query = judged.query[order]
    starts = np.searchsorted(query, query)
    return order, np.arange(len(order)) - starts + 1


def _share(part: Float64 | Int64, total: Float64 | Int64) -> Float64:
    """Return `part` / `total`, and 0 where `total` is 0."""
    shares: Float64 = np.zeros(len(part))
    np.divide(part, total, out=shares, where=np.asarray(total) > 0)
    return shares
