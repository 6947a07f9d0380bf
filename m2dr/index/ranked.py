"""An engine's scores become a run that keeps the one rule for ties."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from m2dr.index.docids import Docids
from m2dr.index.vectors import Floats, check_depth
from m2dr.records.run import Ranking, Run

_SLACK = 16  # documents fetched beyond k, so that few queries must be searched again
_WIDER = 4  # times as many for those


class Scanned(Protocol):
    """What is asked of an index to rank with it; `opened.Index` is one."""

    @property
    def docids(self) -> Docids:
        """In row order."""
        ...

    @property
    def documents(self) -> int:
        """How many there are."""
        ...

    @property
    def exact(self) -> bool:
        """Whether `scan` misses nothing, and `score` may correct what it rounds."""
        ...

    @property
    def rescore(self) -> int:
        """How many candidates per wanted document `candidates` takes; 0: `scan` decides."""
        ...

    def prepare(self, queries: Floats) -> NDArray[np.float32]:
        """Queries as the engine compares them, [Q, dim]."""
        ...

    def scan(
        self, prepared: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Scores and rows [Q, k], best first; row -1 is no document."""
        ...

    def score(self, query: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Exact scores of rows, [n]."""
        ...

    def candidates(
        self, prepared: NDArray[np.float32], k: int
    ) -> list[tuple[NDArray[np.float32], NDArray[np.int64]]]:
        """Per query, exact scores and rows of what the engine proposes."""
        ...


@dataclass(frozen=True)
class _Found:
    """What one query found, in the engine's order. `complete`: no better document is missing."""

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]
    complete: bool


def search_ranked(
    index: Scanned,
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

    An engine that is not exact ranks what it found; one that rescores, what it proposed, by the
    exact scores.

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
    wanted = min(k + bool(drop), index.documents)
    fetch = wanted + _SLACK
    if index.rescore:
        return _rescored(index, query_ids, queries, k, drop)
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


def _rescored(
    index: Scanned, query_ids: Sequence[str], queries: Floats, k: int, drop: Mapping[str, str]
) -> Run:
    found = index.candidates(index.prepare(queries), min(k + bool(drop), index.documents))
    return Run(
        {
            name: Ranking.of(index.docids.take(rows), scores, k, drop.get(name))
            for name, (scores, rows) in zip(query_ids, found, strict=True)
        }
    )


def _search(
    index: Scanned, queries: Mapping[str, NDArray[np.float32]], wanted: int, fetch: int
) -> list[_Found]:
    prepared = np.stack(list(queries.values()))
    scores, rows = index.scan(prepared, fetch)
    return [
        _judged(index, query, wanted, query_scores, query_rows)
        for query, query_scores, query_rows in zip(prepared, scores, rows, strict=True)
    ]


def _judged(
    index: Scanned,
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
    everything = len(rows) == index.documents or rows[-1] < 0
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
    index: Scanned,
    query: NDArray[np.float32],
    rows: NDArray[np.int64],
    scores: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Scores [n] that do not depend on the row at which a vector lies."""
    return index.score(query, rows) if index.exact and len(rows) else scores


def as_run(
    query_ids: Sequence[str],
    found: tuple[NDArray[np.float32], NDArray[np.int64]],
    docids: Docids,
    k: int,
    drop: Mapping[str, str],
) -> Run:
    """Scores and rows [Q, any] as rankings of at most `k` documents, without those to drop.

    A row of -1 is no document.
    """
    return Run(
        {
            name: Ranking.of(docids.take(rows[rows >= 0]), scores[rows >= 0], k, drop.get(name))
            for name, scores, rows in zip(query_ids, *found, strict=True)
        }
    )
