"""An index of one prefix, open for search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError
from m2dr.index.docids import Docids
from m2dr.index.knobs import available, checked, parameters
from m2dr.index.label import Label
from m2dr.index.manifest import IndexManifest
from m2dr.index.ranked import search_ranked
from m2dr.index.recipes import Engine
from m2dr.index.store import Store
from m2dr.index.vectors import Floats, check_depth, check_queries, prefixes
from m2dr.records.cut import Cut
from m2dr.records.run import Run

Scores = NDArray[np.float32]
Rows = NDArray[np.int64]

CARD_DEPTH = 2048  # documents per query that FAISS on a card can find, or lists read, at most


@dataclass(frozen=True)
class Index:
    """An index of one prefix, open for search; a `searchable.Searchable`."""

    manifest: IndexManifest
    docids: Docids
    engine: Engine
    faiss: Any  # faiss.Index, which has no type stubs, or Signs
    knobs: Mapping[str, int] = field(default_factory=dict)
    store: Store | None = None  # what candidates are rescored with
    card: Any = None  # the same index on a card
    deep: Any = None  # a full scan on the card, a Searchable: for more than FAISS finds there
    beside: Path | None = None  # the folder it lies in with others of the same store

    @property
    def corpus(self) -> str:
        """Whose documents they are."""
        return self.manifest.corpus

    @property
    def documents(self) -> int:
        """How many there are."""
        return self.manifest.documents

    @property
    def layer(self) -> int:
        """How many transformer blocks encoded them."""
        return self.manifest.layer

    @property
    def dim(self) -> int:
        """How many coordinates of a query are looked at."""
        return self.manifest.dim

    @property
    def exact(self) -> bool:
        """Whether no better document can be missing."""
        return self.engine.exact

    @property
    def rescore(self) -> int:
        """How many candidates per wanted document are scored again by the store; 0: none."""
        return self.knobs.get("rescore", 0)

    def accept(self, queries: Label, query: Cut) -> None:
        """Raise UserError unless the `query` cut of that label may search this index."""
        self.manifest.accept(queries, query, self.beside)

    def warnings(self, query: Cut) -> list[str]:
        """Say why rankings of `query` may be worse than this model can do."""
        return self.manifest.warnings(query, self.beside)

    def with_knobs(self, knobs: Mapping[str, int], store: Store | None = None) -> "Index":
        """The same index, searched otherwise: the two share their memory.

        Args:
            knobs: `nprobe`, `efSearch` or `rescore`, as far as the engine has them.
            store: that the index was cut from; needed to rescore.

        Raises:
            UserError: the engine has no such knob, a value is too small, or there is no store.
        """
        known = available(self.faiss, self.exact)
        merged = {**self.knobs, **checked(self.engine.name, knobs, known)}
        store = store or self.store
        if merged.get("rescore") and store is None:
            raise UserError(
                f"Engine {self.engine.name} rescores candidates with the store of "
                f"{self.corpus}, and none was given. Open it too, or set rescore to 0."
            )
        return replace(self, knobs=merged, store=store)

    def prepare(self, queries: Floats) -> Scores:
        """Queries [Q, at least dim], not normalised, as the engine compares them: [Q, dim].

        Raises:
            UserError: they are too short, or not finite.
        """
        check_queries(queries, self.dim)
        return prefixes(queries, self.dim, self.manifest.similarity)

    def search(
        self, queries: Floats, k: int, knobs: Mapping[str, int] | None = None
    ) -> tuple[Scores, Rows]:
        """Search for the best `k` documents, or for all when there are fewer.

        Args:
            queries: [Q, at least dim], not normalised.
            k: how many documents for each.
            knobs: as `with_knobs` takes them, for this search.

        Returns:
            Scores and rows, [Q, min(k, documents)], best first, ties in any order. An engine that
            is not exact may find fewer: the row is then -1, which is no document.

        Raises:
            UserError: the queries are too short or not finite, k is below 1, or the engine has no
                such knob.
        """
        index = self.with_knobs(knobs) if knobs else self
        prepared = index.prepare(queries)
        return index._rescored(prepared, k) if index.rescore else index.scan(prepared, k)

    def scan(self, prepared: Scores, k: int) -> tuple[Scores, Rows]:
        """Search as the engine alone does, with what `prepare` returned."""
        check_depth(k)
        k = min(k, self.documents)
        if not len(prepared):
            return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
        if self.card is not None and self.deep is not None and k > CARD_DEPTH:
            found: tuple[Scores, Rows] = self.deep.search(prepared, k)
            return found
        most = max(k, self.knobs.get("nprobe", 1))
        index = self.faiss if self.card is None or most > CARD_DEPTH else self.card
        settings = parameters(self.faiss, self.knobs)
        how = {} if settings is None else {"params": settings}
        scores, rows = index.search(prepared, k, **how)
        return (-scores if self.engine.l2 else scores), rows

    def ranked(
        self,
        query_ids: Sequence[str],
        queries: Floats,
        k: int,
        drop: Mapping[str, str] | None = None,
    ) -> Run:
        """Rank the best `k` documents of each query: score descending, then docid descending.

        Raises:
            UserError: the queries are too short or not finite, or k is below 1.
        """
        return search_ranked(self, query_ids, queries, k, drop)

    def vectors(self, rows: Rows) -> Scores:
        """Return the documents' vectors as the engine holds them, [n, dim]."""
        found: Scores = self.faiss.reconstruct_batch(rows)
        return found

    def score(self, query: Scores, rows: Rows) -> Scores:
        """Exact scores [n] of some rows for one prepared query, whatever row they lie at.

        Summed in float64, from the vectors of an exact engine or of the store.
        """
        if self.exact:
            vectors = self.vectors(rows).astype(np.float64)
        elif self.store is not None:
            stored = self.store.rows(rows)
            vectors = prefixes(stored, self.dim, self.manifest.similarity).astype(np.float64)
        else:
            raise UserError(f"Engine {self.engine.name} holds no exact vectors to score with.")
        wide = query.astype(np.float64)
        if self.engine.l2:
            found = -np.square(vectors - wide).sum(axis=1)
        else:
            found = np.einsum("nd,d->n", vectors, wide)  # BLAS may round by the row
        return np.asarray(found, np.float32)

    def candidates(self, prepared: Scores, k: int) -> list[tuple[Scores, Rows]]:
        """Per query, `rescore` times `k` documents of the engine with their exact scores."""
        _, found = self.scan(prepared, k * self.rescore)
        kept = [np.sort(rows[rows >= 0]) for rows in found]
        return [(self.score(query, rows), rows) for query, rows in zip(prepared, kept, strict=True)]

    def _rescored(self, prepared: Scores, k: int) -> tuple[Scores, Rows]:
        check_depth(k)
        shape = (len(prepared), min(k, self.documents))
        scores = np.full(shape, np.finfo(np.float32).min, np.float32)
        rows = np.full(shape, -1, np.int64)
        for number, (exact, found) in enumerate(self.candidates(prepared, shape[1])):
            best = np.argsort(-exact, kind="stable")[: shape[1]]
            scores[number, : len(best)], rows[number, : len(best)] = exact[best], found[best]
        return scores, rows
