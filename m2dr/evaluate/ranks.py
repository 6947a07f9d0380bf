"""Measures of many queries at once, from the ranks of judged documents alone."""

# Shapes in this file:
#   Q judged queries, J judgements, A answered queries, k documents of a ranking.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ir_measures import Measure

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_COMPARED = 2**22  # pairs of a judged and a ranked document compared at once; 16 MB of row numbers


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """Judgements as numbers: documents are rows of a store, queries places in a list."""

    queries: int  # Q
    query: Ints  # [J], from 0 to Q - 1, increasing
    row: Ints  # [J], -1 for a document that the store does not hold
    level: Ints  # [J]

    @classmethod
    def of(cls, judged: Mapping[str, Mapping[str, int]], rows: Mapping[str, int]) -> "JudgedRows":
        """Number the judgements.

        Args:
            judged: query id -> document id -> relevance.
            rows: document id -> row, of the judged documents that the store holds.
        """
        triples = [
            (place, rows.get(docid, -1), level)
            for place, levels in enumerate(judged.values())
            for docid, level in levels.items()
        ]
        query, row, level = np.array(triples, np.int64).reshape(-1, 3).T
        return cls(len(judged), query, row, level)

    def ranked(self, found: Ints, answered: Ints) -> "JudgedRanks":
        """Look up where each judged document stands.

        Args:
            found: [A, k] rows of the documents, best first; -1 where a ranking has ended.
            answered: [Q], the row of `found` that answers each query; -1 for one without answer.
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
    """Where each judged document stands in the ranking of its query."""

    judged: JudgedRows
    rank: Ints  # [J], from 1; 0 for one that was not found

    def relevant(self, level: int) -> Ints:
        """How many documents are judged `level` or higher, [Q]."""
        return self.count(self.judged.level >= level)

    def found(self, level: int, cutoff: int | None) -> Flags:
        """Which judgements are of documents of that level at rank `cutoff` or above, [J]."""
        high = (self.judged.level >= level) & (self.rank > 0)
        return high if cutoff is None else high & (self.rank <= cutoff)

    def count(self, which: Flags) -> Ints:
        """How many judgements of each query are among `which`, [Q]."""
        return np.bincount(self.judged.query[which], minlength=self.judged.queries)

    def total(self, which: Flags | Ints, values: Floats) -> Floats:
        """Sum the `values` of some judgements over each query, [Q]."""
        query = self.judged.query[which]
        sums = np.bincount(query, weights=values, minlength=self.judged.queries)
        return sums.astype(np.float64)  # of no judgement at all, numpy makes whole numbers


def takes(measure: "Measure") -> bool:
    """Whether `measure` needs no more than the ranks of judged documents, and has a formula here.

    >>> import ir_measures
    >>> takes(ir_measures.parse_measure("nDCG@10")), takes(ir_measures.parse_measure("Bpref"))
    (True, False)
    """
    return measure.NAME in FORMULAS and measure.params.keys() <= {"cutoff", "rel"}


def values(measure: "Measure", ranks: JudgedRanks) -> Floats:
    """The value of `measure`, one that is taken, for every judged query, [Q] in 0 to 1."""
    params = measure.params
    return FORMULAS[str(measure.NAME)](ranks, params.get("rel", 1), params.get("cutoff"))


def _ndcg(ranks: JudgedRanks, _: int, cutoff: int | None) -> Floats:
    """Järvelin and Kekäläinen 2002, as trec_eval has it: gain / log2(1 + rank), over the ideal.

    The gain is the relevance itself; one below 0 gains nothing.
    """
    judged = ranks.judged
    found = ranks.found(1, cutoff)
    gained = ranks.total(found, judged.level[found] / np.log2(ranks.rank[found] + 1.0))
    order, place = _within(judged, np.flatnonzero(judged.level > 0), -judged.level)
    order, place = (order, place) if cutoff is None else _upto(order, place, cutoff)
    return _share(gained, ranks.total(order, judged.level[order] / np.log2(place + 1.0)))


def _average_precision(ranks: JudgedRanks, rel: int, cutoff: int | None) -> Floats:
    """Mean over the relevant documents of the precision at their ranks, 0 for those not found."""
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


# By the name that ir_measures has for them: judged ranks, least relevance, cutoff -> [Q].
FORMULAS: Mapping[str, Callable[[JudgedRanks, int, int | None], Floats]] = {
    "nDCG": _ndcg,
    "AP": _average_precision,
    "RR": _reciprocal_rank,
    "R": _recall,
    "P": _precision,
    "Success": _success,
}


def _within(judged: JudgedRows, which: Ints, key: Ints) -> tuple[Ints, Ints]:
    """Some judgements by query and then by `key` [J], and the place of each in its query from 1."""
    order = which[np.lexsort((key[which], judged.query[which]))]
    query = judged.query[order]
    starts = np.searchsorted(query, query)
    return order, np.arange(len(order)) - starts + 1


def _upto(order: Ints, place: Ints, cutoff: int) -> tuple[Ints, Ints]:
    kept = place <= cutoff
    return order[kept], place[kept]


def _share(part: Floats | Ints, whole: Floats | Ints) -> Floats:
    """`part` over `whole`; 0 where there is nothing to have a part of."""
    shares: Floats = np.zeros(len(part))
    np.divide(part, whole, out=shares, where=np.asarray(whole) > 0)
    return shares


def without(
    found: Ints, scores: NDArray[np.float32], own: Sequence[int], k: int
) -> tuple[Ints, NDArray[np.float32]]:
    """Rankings of at most `k` documents, from which each query's own document is left out.

    Args:
        found: [A, at most k + 1] rows, best first.
        scores: as many.
        own: [A], the row to leave out; -1 for none.
        k: how many stay.

    Returns:
        Rows and scores, [A, at most k]; -1 and minus infinity where a ranking has ended.
    """
    kept = found != np.asarray(own, np.int64)[:, None]
    order = np.argsort(~kept, axis=1, kind="stable")[:, :k]  # what is left out goes to the end
    stays = np.take_along_axis(kept, order, axis=1)
    rows = np.where(stays, np.take_along_axis(found, order, axis=1), -1)
    return rows, np.where(stays, np.take_along_axis(scores, order, axis=1), -np.inf)
