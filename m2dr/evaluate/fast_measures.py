"""Fast measures: those that follow from the ranks of judged documents, for all queries at once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from m2dr.core.records import Judgement, Run
from m2dr.evaluate.measures import Evaluator

if TYPE_CHECKING:
    from ir_measures import Measure

# Shapes in this file:
#   Q judged queries, J judgements, A answered queries, k documents of a ranking.

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_COMPARED = 2**22  # pairs of a judged and a ranked document that are compared at once


class RowEvaluator:
    """Measures the rankings of many cuts, given as rows of a store, with the same judgements.

    Measures that have a formula here are computed for all queries at once; the others are left to
    their providers, ranking by ranking.
    """

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
        evaluator = Evaluator(judgements, names)
        self.measures = tuple(map(str, evaluator.measures))
        self.depth = evaluator.depth
        self.query_ids = tuple(evaluator.judged)
        known = rows({docid for levels in evaluator.judged.values() for docid in levels})
        self.judged = JudgedRows.of(evaluator.judged, known)
        places = {query: place for place, query in enumerate(query_ids)}
        self._answered = np.array([places.get(query, -1) for query in evaluator.judged], np.int64)
        self._formulas = [measure for measure in evaluator.measures if has_formula(measure)]
        others = [name for name in self.measures if name not in map(str, self._formulas)]
        self._others = Evaluator(judgements, others) if others else None

    @property
    def unanswered(self) -> int:
        """The number of judged queries without a ranking."""
        return int((self._answered < 0).sum())

    @property
    def unknown_documents(self) -> int:
        """The number of judgements of documents that the store does not hold."""
        return int((self.judged.row < 0).sum())

    @property
    def unanswerable(self) -> int:
        """The number of judged queries without a relevant document."""
        relevant = self.judged.query[self.judged.level > 0]
        return self.judged.queries - len(np.unique(relevant))

    def per_query(self, found: Ints, run: Callable[[], Run]) -> dict[str, Floats]:
        """Return measure -> values of all judged queries, [Q].

        Args:
            found: [A, k] rows, best first; -1 after the end of a ranking.
            run: returns the same rankings by document id; called only if a provider needs them.
        """
        ranks = self.judged.ranked(found, self._answered)
        computed = {str(measure): values(measure, ranks) for measure in self._formulas}
        if self._others:
            theirs = self._others.scores(run()).per_query
            lists = {name: [theirs[name][q] for q in self.query_ids] for name in theirs}
            computed |= {name: np.array(one, np.float64) for name, one in lists.items()}
        return {name: computed[name] for name in self.measures}


def drop_own(
    found: Ints, scores: NDArray[np.float32], own: Sequence[int], k: int
) -> tuple[Ints, NDArray[np.float32]]:
    """Drop each query's own document from its ranking, and keep at most `k` others.

    Args:
        found: [A, at most k + 1] rows, best first.
        scores: of the same shape.
        own: [A], the row to drop; -1 for none.
        k: number of documents to keep.

    Returns:
        Rows and scores, [A, at most k]; -1 and minus infinity after the end of a ranking.
    """
    kept = found != np.asarray(own, np.int64)[:, None]
    order = np.argsort(~kept, axis=1, kind="stable")[:, :k]  # dropped ones go to the end
    stays = np.take_along_axis(kept, order, axis=1)
    rows = np.where(stays, np.take_along_axis(found, order, axis=1), -1)
    return rows, np.where(stays, np.take_along_axis(scores, order, axis=1), -np.inf)


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """Judgements as arrays: documents by their row in a store, queries by their place in a list."""

    queries: int  # Q
    query: Ints  # [J], from 0 to Q - 1, increasing
    row: Ints  # [J], -1 for a document that the store does not hold
    level: Ints  # [J]

    @classmethod
    def of(cls, judged: Mapping[str, Mapping[str, int]], rows: Mapping[str, int]) -> "JudgedRows":
        """Build the arrays.

        Args:
            judged: query id -> document id -> relevance.
            rows: document id -> row, of the judged documents in the store.
        """
        triples = [
            (place, rows.get(docid, -1), level)
            for place, levels in enumerate(judged.values())
            for docid, level in levels.items()
        ]
        query, row, level = np.array(triples, np.int64).reshape(-1, 3).T
        return cls(len(judged), query, row, level)

    def ranked(self, found: Ints, answered: Ints) -> "JudgedRanks":
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
    rank: Ints  # [J], from 1; 0: not found

    def relevant(self, level: int) -> Ints:
        """Return the number of documents judged `level` or higher, [Q]."""
        return self.count(self.judged.level >= level)

    def found(self, level: int, cutoff: int | None) -> Flags:
        """Return which documents judged `level` or higher were found up to rank `cutoff`, [J]."""
        high = (self.judged.level >= level) & (self.rank > 0)
        return high if cutoff is None else high & (self.rank <= cutoff)

    def count(self, which: Flags) -> Ints:
        """Return the number of judgements of each query among `which`, [Q]."""
        return np.bincount(self.judged.query[which], minlength=self.judged.queries)

    def total(self, which: Flags | Ints, values: Floats) -> Floats:
        """Return the sum of the `values` of some judgements over each query, [Q]."""
        query = self.judged.query[which]
        sums = np.bincount(query, weights=values, minlength=self.judged.queries)
        return sums.astype(np.float64)  # of no judgement, numpy returns integers


def has_formula(measure: "Measure") -> bool:
    """Return whether `measure` has a formula here, with no parameter but cutoff and rel.

    >>> from m2dr.evaluate.measures import parse
    >>> tuple(map(has_formula, parse(["nDCG@10", "Bpref"])))
    (True, False)
    """
    return measure.NAME in FORMULAS and measure.params.keys() <= {"cutoff", "rel"}


def values(measure: "Measure", ranks: JudgedRanks) -> Floats:
    """Return the values of a measure that has a formula, [Q], each 0 to 1."""
    params = measure.params
    return FORMULAS[str(measure.NAME)](ranks, params.get("rel", 1), params.get("cutoff"))


def _ndcg(ranks: JudgedRanks, _: int, cutoff: int | None) -> Floats:
    """Return gain / log2(1 + rank), summed, over the ideal (Järvelin and Kekäläinen 2002).

    As in trec_eval the gain is the relevance, and 0 where that is negative.
    """
    judged = ranks.judged
    found = ranks.found(1, cutoff)
    gained = ranks.total(found, judged.level[found] / np.log2(ranks.rank[found] + 1.0))
    order, place = _within(judged, np.flatnonzero(judged.level > 0), -judged.level)
    if cutoff is not None:
        order, place = order[place <= cutoff], place[place <= cutoff]
    return _share(gained, ranks.total(order, judged.level[order] / np.log2(place + 1.0)))


def _average_precision(ranks: JudgedRanks, rel: int, cutoff: int | None) -> Floats:
    """Return the mean precision at the ranks of the relevant documents, 0 for those not found."""
    which = np.flatnonzero(ranks.found(rel, cutoff))
    order, place = _within(ranks.judged, which, ranks.rank)
    return _share(ranks.total(order, place / ranks.rank[order]), ranks.relevant(rel))


def _reciprocal_rank(ranks: JudgedRanks, rel: int, cutoff: int | None) -> Floats:
    found = ranks.found(rel, cutoff)
    first = np.full(ranks.judged.queries, np.inf)
    np.minimum.at(first, ranks.judged.query[found], ranks.rank[found])
    return 1.0 / first


def _recall(ranks: JudgedRanks, rel: int, cutoff: int | None) -> Floats:
    return _share(ranks.count(ranks.found(rel, cutoff)), ranks.relevant(rel))


def _precision(ranks: JudgedRanks, rel: int, cutoff: int | None) -> Floats:
    return ranks.count(ranks.found(rel, cutoff)) / float(cutoff or 1)


def _success(ranks: JudgedRanks, rel: int, cutoff: int | None) -> Floats:
    return (ranks.count(ranks.found(rel, cutoff)) > 0).astype(np.float64)


# Name in ir_measures -> function of judged ranks, least relevance and cutoff, which returns [Q].
FORMULAS: Mapping[str, Callable[[JudgedRanks, int, int | None], Floats]] = {
    "nDCG": _ndcg,
    "AP": _average_precision,
    "RR": _reciprocal_rank,
    "R": _recall,
    "P": _precision,
    "Success": _success,
}


def _within(judged: JudgedRows, which: Ints, key: Ints) -> tuple[Ints, Ints]:
    """Sort some judgements by query and `key` [J]; return them and their places from 1 by query."""
    order = which[np.lexsort((key[which], judged.query[which]))]
    query = judged.query[order]
    starts = np.searchsorted(query, query)
    return order, np.arange(len(order)) - starts + 1


def _share(part: Floats | Ints, total: Floats | Ints) -> Floats:
    """Return `part` / `total`, and 0 where `total` is 0."""
    shares: Floats = np.zeros(len(part))
    np.divide(part, total, out=shares, where=np.asarray(total) > 0)
    return shares
