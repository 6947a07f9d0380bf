"""A short prefix finds a shortlist and longer ones rank it: most documents are hardly read."""

# Shapes in this file:
#   Q queries, m documents of a shortlist, H coordinates.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError
from m2dr.index.exact import ExactIndex
from m2dr.index.label import Label
from m2dr.index.ranked import as_run
from m2dr.index.stages import Funnel
from m2dr.index.store import Store
from m2dr.index.vectors import Floats, check_depth, check_queries
from m2dr.records.cut import Cut
from m2dr.records.run import Run

_BYTES = 64 * 2**20  # of the vectors of shortlists that are read at once

Rows = NDArray[np.int64]
Doubles = NDArray[np.float64]


class Shortlister(Protocol):
    """What may search the shortest prefix."""

    def search(self, queries: Floats, k: int) -> tuple[NDArray[np.float32], Rows]:
        """Scores and rows, [Q, at most k], best first; a row of -1 is no document."""
        ...


@dataclass(frozen=True)
class FunnelReport:
    """What a funnel spends and what it finds.

    Attributes:
        stages: per stage its dim, the documents it compares and the multiply-adds of one query.
            An index that was given for the first one counts as a full scan.
        full: multiply-adds of a full scan at the last dim.
        k: how deep recall was measured.
        recall: the share of the exact best k at full width that the funnel found; mean over
            queries.
    """

    stages: tuple[tuple[int, int, int], ...]
    full: int
    k: int
    recall: float

    @property
    def spent(self) -> int:
        """Multiply-adds of one query at all stages."""
        return sum(cost for *_, cost in self.stages)

    @property
    def saving(self) -> float:
        """How many times fewer multiply-adds than the full scan."""
        return self.full / self.spent


class FunnelIndex:
    """A store searched through a funnel.

    Attributes:
        store: whose vectors rank the shortlists.
        funnel: its stages.
    """

    def __init__(
        self, store: Store, funnel: Funnel, first: Shortlister | None = None, device: str = "cpu"
    ) -> None:
        """Open a store for search.

        Args:
            store: of vectors at least as wide as the funnel.
            funnel: its stages.
            first: an index of the same documents at the shortest dim; a full scan when None.
            device: of the full scan, as torch names it.

        Raises:
            UserError: the vectors are shorter than the funnel's last dim.
        """
        funnel.check(store.width)
        self.store, self.funnel = store, funnel
        self._device = device
        self._first = first or ExactIndex(store, funnel.dims[0], device)

    @property
    def corpus(self) -> str:
        """Whose documents they are."""
        return self.store.manifest.corpus

    @property
    def documents(self) -> int:
        """How many there are."""
        return self.store.documents

    @property
    def layer(self) -> int:
        """How many transformer blocks encoded them."""
        return self.store.layer

    @property
    def dim(self) -> int:
        """How many coordinates of a query the last stage looks at."""
        return self.funnel.dim

    @property
    def multiply_adds(self) -> int:
        """Of one query at all stages; an index given for the first counts as a full scan."""
        return sum(cost for *_, cost in self._costs())

    def accept(self, queries: Label, query: Cut) -> None:
        """Raise UserError unless the `query` cut of that label may search these documents."""
        self.store.manifest.accept(queries, self.store.folder)
        if query.dim != self.dim:
            raise UserError(
                f"Queries of dimension {query.dim} were asked for, and the funnel {self.funnel} "
                f"ends at {self.dim}. End it at theirs."
            )

    def warnings(self, query: Cut) -> list[str]:
        """Say why rankings of `query` may be worse than this model can do."""
        label, folder = self.store.manifest.label, self.store.folder
        cuts = [Cut(self.layer, dim) for dim in self.funnel.dims]
        found = [
            text
            for cut in cuts
            for text in label.warnings(Cut(query.layer, cut.dim), cut, folder, self.dim)
        ]
        return list(dict.fromkeys(found))

    def search(self, queries: Floats, k: int) -> tuple[NDArray[np.float32], Rows]:
        """Search for the best `k` documents of what the funnel lets through.

        Args:
            queries: [Q, at least dim], not normalised.
            k: how many documents for each.

        Returns:
            Scores and rows, [Q, min(k, documents)], best first; of equal scores the higher docid.
            A row of -1, which an index given for the first stage may leave, is no document.

        Raises:
            UserError: the queries are too short or not finite, or k is below 1 or more than the
                funnel leaves.
        """
        check_depth(k)
        self.funnel.check(self.store.width, min(k, self.documents))
        check_queries(queries, self.dim)
        _, rows = self._first.search(queries, min(self.funnel.stages[0].keep, self.documents))
        most = max(1, _BYTES // (8 * self.store.width * max(1, rows.shape[1])))
        parts = [
            self._narrowed(queries[i : i + most], rows[i : i + most], k)
            for i in range(0, len(queries), most)
        ]
        if not parts:
            return np.empty((0, 0), np.float32), np.empty((0, 0), np.int64)
        scores, rows = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return scores, rows

    def ranked(
        self,
        query_ids: Sequence[str],
        queries: Floats,
        k: int,
        drop: Mapping[str, str] | None = None,
    ) -> Run:
        """Rank the best `k` documents of each query: score descending, then docid descending.

        Args:
            query_ids: Q of them.
            queries: [Q, at least dim], not normalised.
            k: how many documents for each query.
            drop: per query id, a docid to leave out, such as the query's own document.

        Raises:
            UserError: as for `search`; with `drop`, the funnel must leave one more than k.
        """
        check_depth(k)
        drop = drop or {}
        found = self.search(queries, k + bool(drop))
        return as_run(query_ids, found, self.store.docids, k, drop)

    def report(self, queries: Floats, k: int) -> FunnelReport:
        """Compare with the exact result at full width, for queries [Q, H]."""
        _, rows = self.search(queries, k)
        _, best = ExactIndex(self.store, self.store.width, self._device).search(queries, k)
        hits = [len(set(a) & set(b)) for a, b in zip(rows.tolist(), best.tolist(), strict=True)]
        recall = sum(hits) / max(1, best.size)
        return FunnelReport(self._costs(), self.documents * self.dim, k, recall)

    def _costs(self) -> tuple[tuple[int, int, int], ...]:
        left = [min(stage.keep, self.documents) for stage in self.funnel.stages]
        compared = (self.documents, *left)
        # The second stage begins anew, as the first may be an engine that only approximates.
        begun = (0, 0, *self.funnel.dims[1:-1])
        return tuple(
            (dim, documents, documents * (dim - before))
            for dim, documents, before in zip(self.funnel.dims, compared, begun, strict=True)
        )

    def _narrowed(self, queries: Floats, rows: Rows, k: int) -> tuple[NDArray[np.float32], Rows]:
        """Scores and rows [Q, <= k] of the best of a shortlist [Q, m], stage by stage."""
        products: Doubles = np.zeros(rows.shape)
        squares: Doubles = np.zeros(rows.shape)
        before = 0
        keeps = [*(stage.keep for stage in self.funnel.stages[1:]), k]
        for dim, keep in zip(self.funnel.dims[1:], keeps, strict=True):
            left, right = self._coordinates(rows, slice(before, dim)), queries[:, before:dim]
            # einsum rounds a vector alike wherever it lies, so copies of a document tie.
            products += np.einsum("qmd,qd->qm", left, right.astype(np.float64))
            squares += np.einsum("qmd,qmd->qm", left, left)
            scores = self._scores(products, squares, queries[:, :dim])
            scores[rows < 0] = -np.inf
            order = np.lexsort((-self._places[rows], -scores), axis=1)[:, :keep]
            products = np.take_along_axis(products, order, axis=1)
            squares = np.take_along_axis(squares, order, axis=1)
            scores = np.take_along_axis(scores, order, axis=1)
            rows = np.take_along_axis(rows, order, axis=1)
            before = dim
        return scores, rows

    def _coordinates(self, rows: Rows, part: slice) -> Doubles:
        """Some coordinates of documents [Q, m], as [Q, m, dim]; of any where there is none."""
        vectors = self.store.rows(np.maximum(rows, 0).reshape(-1))[:, part]
        return vectors.astype(np.float64).reshape(*rows.shape, -1)

    def _scores(self, products: Doubles, squares: Doubles, queries: Floats) -> NDArray[np.float32]:
        """Scores [Q, m] as float32; 0 where a vector has no length under cosine."""
        if self.store.manifest.label.similarity == "cosine":
            lengths = np.linalg.norm(queries.astype(np.float64), axis=1)[:, None] * np.sqrt(squares)
            products = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
        return products.astype(np.float32) + np.float32(0)  # -0 would rank below 0

    @cached_property
    def _places(self) -> Rows:
        """Per row, where its docid stands among documents of equal score."""
        if isinstance(self._first, ExactIndex):
            return self._first.places
        return self.store.docids.ranks()
