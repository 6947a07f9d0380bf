"""A FAISS index of one prefix, open for search."""

# Shapes in this file:
#   Q queries, n rows or documents found.

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from m2dr.core.errors import UserError
from m2dr.index.engines import Engine
from m2dr.index.faiss_library import load_faiss
from m2dr.index.filters import Filter
from m2dr.index.layout import STORE
from m2dr.index.manifest import IndexManifest
from m2dr.index.search_params import available, checked, faiss_parameters
from m2dr.index.searchable import Docids, Hits, Rows, Scores, Searchable, hits_of, search_deeper
from m2dr.index.store import Store, open_store
from m2dr.index.tombstones import Tombstones
from m2dr.index.vectors import Floats, check_depth, check_queries, prefixes

FEW = 5_000  # documents that a filter leaves, at most, which are all scored exactly
_BLOCK = 2**16  # documents that are scored at once
GPU_DEPTH = 2048  # documents per query that FAISS on a gpu can find, or lists read, at most


@dataclass(frozen=True)
class FaissIndex(Searchable):
    """A FAISS index of one prefix, open for search."""

    manifest: IndexManifest
    docids: Docids
    engine: Engine
    faiss: Any  # faiss.Index, which has no type stubs, or BinaryIndex
    search_params: Mapping[str, int] = field(default_factory=dict)
    store: Store | None = None  # what candidates are rescored with
    gpu: Any = None  # the same index on a gpu
    deep: Any = None  # a full scan on the gpu, for more documents than FAISS finds there
    store_folder: Path | None = None  # the folder that holds the index, and its store if kept
    tombstones: Tombstones = field(default_factory=Tombstones)  # rows deleted, or filtered out
    filtered: bool = False

    @property
    def documents(self) -> int:
        """Number of documents; those that are deleted count no more, and have no row."""
        return self.manifest.documents - len(self.tombstones)

    @property
    def dim(self) -> int:
        """Dims of a query that are compared."""
        return self.manifest.dim

    @property
    def exact(self) -> bool:
        """Whether no better document can be missing."""
        return self.engine.exact

    @property
    def rescore(self) -> int:
        """Candidates per wanted document that are scored again with the store; 0: none."""
        return self.search_params.get("rescore", 0)

    def _other_dim(self, dim: int) -> str:
        origin = self.manifest.label.origin(self.store_folder)
        return (
            f"this index of {self.corpus} has dimension {self.dim}. Build theirs "
            f"{origin.remedy(layer=self.layer, dim=dim)}"
        )

    def with_search_params(
        self, search_params: Mapping[str, int], store: Store | None = None
    ) -> "FaissIndex":
        """Return the same index with other search parameters; the two share their memory.

        Args:
            search_params: `nprobe`, `efSearch` or `rescore`, as far as the engine has them.
            store: that the index was cut from; needed to rescore.

        Raises:
            UserError: the engine has no such parameter, a value is too small, or there is no store.
        """
        known = available(self.faiss, self.exact)
        merged = {**self.search_params, **checked(self.engine.name, search_params, known)}
        store = store or self.store
        if merged.get("rescore") and store is None:
            raise UserError(
                f"Engine {self.engine.name} rescores candidates with the store of "
                f"{self.corpus}, and none was given. Open it too, or set rescore to 0."
            )
        return replace(self, search_params=merged, store=store)

    def where(self, wanted: Filter) -> "FaissIndex":
        """See Searchable; the store has the fields, and finds what an engine may miss."""
        kept = self._same_store.where(wanted)
        return replace(
            self,
            docids=kept.docids,
            tombstones=kept.tombstones,
            store=kept,
            gpu=None,  # FAISS selects no rows there
            deep=None,
            filtered=True,
        )

    @property
    def _has_store(self) -> bool:
        return self.store_folder is not None and (self.store_folder / STORE).exists()

    @cached_property
    def _store_beside(self) -> Store:
        folder = self.store_folder
        if folder is None or not self._has_store:
            raise UserError(
                f"A filter was asked for, and the fields of the documents of {self.corpus} lie "
                f"beside their store, which is not in {folder}. Search the folder that the index "
                "was copied from, or copy the folder above it."
            )
        return open_store(folder)

    def prepare(self, queries: Floats) -> Scores:
        """Return queries [Q, at least dim], not normalised, as the engine compares them: [Q, dim].

        Raises:
            UserError: they are too short, or not finite.
        """
        check_queries(queries, self.dim)
        return prefixes(queries, self.dim, self.manifest.similarity)

    def search(
        self, queries: Floats, k: int, search_params: Mapping[str, int] | None = None
    ) -> tuple[Scores, Rows]:
        """Search for the best `k` documents, or for all when there are fewer.

        Args:
            queries: [Q, at least dim], not normalised.
            k: documents per query.
            search_params: as `with_search_params` takes them, for this search.

        Returns:
            Scores and rows, [Q, min(k, documents)], best first, ties in any order. An engine that
            is not exact may find fewer: the row is then -1, which is no document.

        Raises:
            UserError: the queries are too short or not finite, k is below 1, or the engine has no
                such parameter.
        """
        check_depth(k)
        index = self.with_search_params(search_params) if search_params else self
        prepared, k = index.prepare(queries), min(k, self.documents)
        if not index.rescore:
            return index.scan(prepared, k)
        scores = np.full((len(prepared), k), np.finfo(np.float32).min, np.float32)
        rows = np.full((len(prepared), k), -1, np.int64)
        for number, (exact, found) in enumerate(index.candidates(prepared, k)):
            best = np.argsort(-exact, kind="stable")[:k]
            scores[number, : len(best)], rows[number, : len(best)] = exact[best], found[best]
        return scores, rows

    def scan(self, prepared: Scores, k: int) -> tuple[Scores, Rows]:
        """Search with the engine alone, for what `prepare` returned; `k` as for `search`."""
        k = min(k, self.documents)
        if not len(prepared):
            return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
        if self.gpu is not None and self.deep is not None and k > GPU_DEPTH:
            found: tuple[Scores, Rows] = self.deep.search(prepared, k)
            return found
        scores, rows = self._left(prepared, k) if len(self.tombstones) else self._all(prepared, k)
        return (-scores if self.engine.l2 else scores), rows

    def _all(
        self, prepared: Scores, k: int, selector: Any = None
    ) -> tuple[Scores, Rows]:  # a faiss.IDSelector
        """Search with FAISS among all rows of its file, or those that a selector lets through."""
        deepest = max(k, self.search_params.get("nprobe", 1))
        on_gpu = self.gpu is not None and deepest <= GPU_DEPTH and selector is None
        index = self.gpu if on_gpu else self.faiss
        params = faiss_parameters(self.faiss, self.search_params, selector)
        found: tuple[Scores, Rows] = index.search(
            prepared, k, **({} if params is None else {"params": params})
        )
        return found

    def _left(self, prepared: Scores, k: int) -> tuple[Scores, Rows]:
        """Search among the rows that are not deleted.

        On a gpu, and where an engine takes no selector, as many more are fetched as are deleted.
        """
        if self.gpu is None and self._selector is not None:
            scores, rows = self._all(prepared, k, self._selector)
        else:
            scores, rows = self._all(prepared, k + len(self.tombstones))
            gone = np.isin(rows, self.tombstones.rows)
            order = np.argsort(gone | (rows < 0), axis=1, kind="stable")[:, :k]
            rows = np.take_along_axis(np.where(gone, -1, rows), order, axis=1)
            scores = np.take_along_axis(scores, order, axis=1)
        return scores, self.tombstones.left(rows)

    @cached_property
    def _selector(self) -> Any:  # faiss has no type stubs
        """A selector of the rows that are left; None where the engine heeds none."""
        faiss = load_faiss()
        nothing = np.zeros(-(-self.manifest.documents // 8), np.uint8)
        try:
            _, rows = self._all(
                np.ones((1, self.dim), np.float32), 1, faiss.IDSelectorBitmap(nothing)
            )
        except RuntimeError:
            return None
        bitmap = self.tombstones.bitmap(self.manifest.documents)
        return faiss.IDSelectorBitmap(bitmap) if (rows < 0).all() else None

    def score(self, query: Scores, rows: Rows) -> Scores:
        """Return exact scores [n] of some rows for one prepared query [dim].

        They are summed in float64, from the vectors of an exact engine or of the store, so that
        they do not depend on the row at which a vector lies.

        Raises:
            UserError: the engine is not exact, and there is no store.
        """
        if self.exact:
            stored = self.tombstones.stored(rows)
            vectors = self.faiss.reconstruct_batch(stored).astype(np.float64)
        elif self.store is not None:
            kept = self.store.rows(rows)
            vectors = prefixes(kept, self.dim, self.manifest.similarity).astype(np.float64)
        else:
            raise UserError(f"Engine {self.engine.name} holds no exact vectors to score with.")
        wide = query.astype(np.float64)
        if self.engine.l2:
            found = -np.square(vectors - wide).sum(axis=1)
        else:
            found = np.einsum("nd,d->n", vectors, wide)  # BLAS may round by the row
        return np.asarray(found, np.float32)

    def candidates(self, prepared: Scores, k: int) -> Iterator[tuple[Scores, Rows]]:
        """Yield per query `rescore` times `k` documents that the engine finds, scored exactly."""
        _, found = self.scan(prepared, k * self.rescore)
        for query, rows in zip(prepared, found, strict=True):
            kept = np.sort(rows[rows >= 0])
            yield self.score(query, kept), kept

    def _best(self, queries: Floats, k: int) -> Iterable[Hits]:
        """Return the best `k` documents of each query, with all that share the last score.

        An exact engine's scores are computed once more, in float64, for what it found: FAISS
        rounds one and the same vector differently at different rows, and then copies of a document
        would rank by the order in which they were added. An engine that is not exact ranks what it
        found; one that rescores, its candidates by their exact scores.
        """
        prepared = prefixes(queries, self.dim, self.manifest.similarity)
        if self.filtered and not self.exact:
            return hits_of(self.docids, self._all_of_few(prepared, k))
        return hits_of(self.docids, self._found(prepared, k))

    def _found(self, prepared: Scores, k: int) -> Iterable[tuple[Scores, Rows]]:
        if self.rescore:
            return self.candidates(prepared, k)

        def look(queries: Scores, fetch: int) -> Iterator[tuple[Scores, Rows] | None]:
            for query, scores, rows in zip(queries, *self.scan(queries, fetch), strict=True):
                yield self._complete(query, k, scores, rows)

        return search_deeper(prepared, k, self.documents, look)

    def _all_of_few(self, prepared: Scores, k: int) -> Iterator[tuple[Scores, Rows]]:
        """Yield what `_found` does; exact where few documents are left, or fewer than k are found.

        A graph or a few lists may miss the documents that a filter lets through.
        """
        if self.documents <= FEW:
            yield from map(self._scanned, prepared, [k] * len(prepared))
            return
        for query, (scores, rows) in zip(prepared, self._found(prepared, k), strict=True):
            yield (scores, rows) if (rows >= 0).sum() >= k else self._scanned(query, k)

    @property
    def _same_store(self) -> Store:
        """The store that the index was cut from, as it was then."""
        store = self.store or self._store_beside
        _refuse_other(store, self)
        return store

    def _scanned(self, query: Scores, k: int) -> tuple[Scores, Rows]:
        """Return exact scores and rows of the best `k` documents, with all that share the last."""
        scores, rows = np.empty(0, np.float32), np.empty(0, np.int64)
        for start in range(0, self.documents, _BLOCK):
            more = np.arange(start, min(start + _BLOCK, self.documents))
            scores = np.concatenate([scores, self.score(query, more)])
            rows = np.concatenate([rows, more])
            if len(scores) > k:
                kept = scores >= np.partition(scores, -k)[-k]
                scores, rows = scores[kept], rows[kept]
        return scores, rows

    def _complete(
        self, query: Scores, k: int, scores: Scores, rows: Rows
    ) -> tuple[Scores, Rows] | None:
        """Return what reaches the score of rank `k`; None where more documents may reach it.

        Args:
            query: [dim], as the engine compares it.
            k: documents that must be right.
            scores: [n] by the engine, descending.
            rows: [n]; -1 is no document.
        """
        everything = len(rows) == self.documents or rows[-1] < 0
        lowest = scores[-1]
        scores, rows = scores[rows >= 0], rows[rows >= 0]
        again = self.score(query, rows) if self.exact and len(rows) else scores
        if len(rows) <= k and everything:
            return again, rows
        # Twice what rounding moved any of these is what it may have hidden beyond them.
        rounding = 2 * np.abs(again - scores).max()
        last = np.partition(again, -k)[-k]
        kept = again >= last
        return (again[kept], rows[kept]) if everything or lowest + rounding < last else None


def _refuse_other(store: Store, index: FaissIndex) -> None:
    """Refuse a store that does not hold what an index does: it was changed after its opening."""
    held, made = store.manifest, index.manifest
    if held.digest != made.store:
        raise UserError(
            f"{store.folder} was changed after its index of dim {index.dim} was opened. Open the "
            "index again."
        )
