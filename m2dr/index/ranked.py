"""An engine's scores become a run that keeps the one rule for ties."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from m2dr.index.engines import Index
from m2dr.index.vectors import Floats, check_depth
from m2dr.records.run import Ranking, Run

_SLACK = 16  # documents fetched beyond k, so that few queries must be searched again
_WIDER = 4  # times as many for those


@dataclass(frozen=True)
class _Found:
    """What one query found, in the engine's order. `complete`: no better document is missing."""

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]
    complete: bool


def search_ranked(
    index: Index,
    query_ids: Sequence[str],
    queries: Floats,
    k: int,
    drop: Mapping[str, str] | None = None,
) -> Run:
    """Rank the best `k` documents of each query: score descending, then docid descending.

    An engine cuts through equal scores at any place. So a little more than k is fetched, and more
    again for a query whose k-th score may be shared by documents that were not.

    An exact engine's scores are computed once more, in float64, for what it found: FAISS rounds
    one and the same vector differently at different rows, and then copies of a document would
    rank by the order in which they were added.

    Args:
        index: open.
        query_ids: Q of them.
        queries: [Q, at least dim], not normalised.
        k: how many documents for each query.
        drop: per query id, a docid to leave out, such as the query's own document.

    Raises:
        UserError: the queries are too short or not finite, or k is below 1.
    """
    check_depth(k)
    drop = drop or {}
    wanted = min(k + bool(drop), index.manifest.documents)
    fetch = wanted + _SLACK
    rankings: dict[str, Ranking] = {}
    pending = dict(zip(query_ids, index.prepare(queries), strict=True))
    while pending:
        again = {}
        for name, found in zip(pending, _search(index, pending, wanted, fetch), strict=True):
            if found.complete:
                docids = index.docids.take(found.rows)
                rankings[name] = Ranking.of(docids, found.scores, k, drop.get(name))
            else:
                again[name] = pending[name]
        pending, fetch = again, fetch * _WIDER
    return Run({name: rankings[name] for name in query_ids})


def _search(
    index: Index, queries: Mapping[str, NDArray[np.float32]], wanted: int, fetch: int
) -> list[_Found]:
    prepared = np.stack(list(queries.values()))
    scores, rows = index.scan(prepared, fetch)
    return [
        _judged(index, query, wanted, query_scores, query_rows)
        for query, query_scores, query_rows in zip(prepared, scores, rows, strict=True)
    ]


def _judged(
    index: Index,
    query: NDArray[np.float32],
    wanted: int,
    scores: NDArray[np.float32],
    rows: NDArray[np.int64],
) -> _Found:
    """Keep what reaches the score of rank `wanted`, and ask whether more may reach it.

    Args:
        index: open.
        query: [dim], as the engine compares it.
        wanted: how many documents must be right.
        scores: [n] by the engine, descending.
        rows: [n]; -1 is no document.
    """
    everything = len(rows) == index.manifest.documents or rows[-1] < 0
    lowest = scores[-1]
    scores, rows = scores[rows >= 0], rows[rows >= 0]
    if len(rows) <= wanted and everything:
        return _Found(rows, _exact(index, query, rows, scores), complete=True)
    again = _exact(index, query, rows, scores)
    # Twice what rounding moved any of these is what it may have hidden beyond them.
    rounding = 2 * np.abs(again - scores).max()
    last = np.partition(again, -wanted)[-wanted]
    kept = again >= last
    return _Found(rows[kept], again[kept], everything or bool(lowest + rounding < last))


def _exact(
    index: Index,
    query: NDArray[np.float32],
    rows: NDArray[np.int64],
    scores: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Scores [n] that do not depend on the row at which a vector lies."""
    if not index.engine.exact or not len(rows):
        return scores
    vectors = index.vectors(rows).astype(np.float64)
    again = np.einsum("nd,d->n", vectors, query.astype(np.float64))
    return np.asarray(again, np.float32)
