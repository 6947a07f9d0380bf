"""Search through a funnel: a short prefix finds a shortlist, and longer prefixes rank it."""

# Shapes in this file:
#   Q queries, m documents of a shortlist, H dims.

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from m2dr.core.arrays import Float64, Floats
from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.index.exact import ExactIndex
from m2dr.index.filters import Filter
from m2dr.index.searchable import Rows, Scores, Searchable, deepened
from m2dr.index.store import Store
from m2dr.index.vectors import check_depth, check_queries

_BYTES = 64 * 2**20  # of the vectors of shortlists that are read at once
_EXAMPLE = "a funnel is written like 32:1000,128:100,384"


@dataclass(frozen=True)
class Stage:
    """A stage that compares the first `dim` dims and keeps the best `keep` documents."""

    dim: int
    keep: int


@dataclass(frozen=True)
class Funnel:
    """Stages from a short prefix to a long one, and the dim of the last ranking.

    >>> print(Funnel.parse("32:1000,128:100,384"))
    32:1000,128:100,384
    """

    stages: tuple[Stage, ...]
    dim: int

    def __post_init__(self) -> None:
        keeps = [stage.keep for stage in self.stages]
        if not keeps or min(*keeps, *self.dims) < 1:
            raise UserError(f"The funnel {self} lacks a stage or a number from 1; {_EXAMPLE}.")
        if any(long <= short for short, long in pairwise(self.dims)):
            raise UserError(f"Dims must grow in a funnel, and in {self} they do not.")
        if any(after > before for before, after in pairwise(keeps)):
            raise UserError(f"Counts cannot grow in a funnel, and in {self} they do.")

    def __str__(self) -> str:
        return ",".join([*(f"{stage.dim}:{stage.keep}" for stage in self.stages), str(self.dim)])

    @property
    def dims(self) -> tuple[int, ...]:
        """Dims of all stages and of the last ranking, growing."""
        return (*(stage.dim for stage in self.stages), self.dim)

    @classmethod
    def parse(cls, word: str) -> "Funnel":
        """Read a funnel such as 32:1000,128:100,384: dim:documents that stay, then the last dim.

        Raises:
            UserError: the word is not a funnel.
        """
        *narrowing, last = word.replace(" ", "").split(",")
        stages = [re.fullmatch(r"(\d+):(\d+)", part) for part in narrowing]
        if not re.fullmatch(r"\d+", last) or not all(stages):
            raise UserError(f"The funnel {word!r} cannot be read; {_EXAMPLE}.")
        return cls(tuple(Stage(int(each[1]), int(each[2])) for each in stages if each), int(last))

    def check(self, width: int, k: int = 1) -> None:
        """Raise UserError unless vectors of `width` have its dims and `k` documents are left."""
        if self.dim > width:
            raise UserError(f"The funnel {self} ends at dim {self.dim}; the vectors have {width}.")
        if k > self.stages[-1].keep:
            left = self.stages[-1].keep
            raise UserError(f"{k} documents were asked for, and the funnel {self} leaves {left}.")


class FunnelIndex(Searchable):
    """A store searched through a funnel.

    Attributes:
        store: whose vectors rank the shortlists.
        funnel: its stages.
    """

    def __init__(
        self, store: Store, funnel: Funnel, first: Searchable | None = None, device: str = "cpu"
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
        self.store, self.manifest, self.funnel = store, store.manifest, funnel
        self.docids, self._device = store.docids, device
        self._first = first or ExactIndex(store, funnel.dims[0], device)

    @property
    def dim(self) -> int:
        """Dims of a query that the last stage compares."""
        return self.funnel.dim

    @property
    def documents(self) -> int:
        """Number of documents, of those that the first stage can find."""
        return self._first.documents

    @property
    def deepest(self) -> int:
        """Documents per query that the funnel leaves, at most."""
        return min(self.documents, self.funnel.stages[-1].keep)

    def deeper(self, k: int) -> "FunnelIndex":
        """See Searchable; each stage keeps `k` at least."""
        stages = tuple(Stage(stage.dim, max(stage.keep, k)) for stage in self.funnel.stages)
        funnel = Funnel(stages, self.funnel.dim)
        return FunnelIndex(self.store, funnel, self._first.deeper(k), self._device)

    def where(self, wanted: Filter) -> "FunnelIndex":
        """See Searchable; the first stage is a full scan, of the documents that are left."""
        first = ExactIndex(self.store, self.funnel.dims[0], self._device).where(wanted)
        return FunnelIndex(self.store, self.funnel, first, self._device)

    def warnings(self, query: Cut) -> list[str]:
        """Return sentences that say why rankings of `query` may be worse than the model allows."""
        label, sentences = self.manifest.label, list[str]()
        for cut in (Cut(self.layer, dim) for dim in self.funnel.dims):
            sentences += label.warnings(Cut(query.layer, cut.dim), cut)
        return list(dict.fromkeys(sentences))

    def search(self, queries: Floats, k: int) -> tuple[Scores, Rows]:
        """See Searchable; of equal scores the higher docid comes first, at every stage."""
        check_depth(k)
        self.funnel.check(self.store.width, min(k, self.documents))
        check_queries(queries, self.dim)
        rows = self._shortlists(queries, min(self.funnel.stages[0].keep, self.documents))
        at_once = max(1, _BYTES // (8 * self.store.width * max(1, rows.shape[1])))
        parts = [
            self._narrowed(queries[i : i + at_once], rows[i : i + at_once], k)
            for i in range(0, len(queries), at_once)
        ]
        if not parts:
            return np.empty((0, 0), np.float32), np.empty((0, 0), np.int64)
        scores, rows = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return scores, rows

    def _shortlists(self, queries: Floats, keep: int) -> Rows:
        """Return the rows that the first stage keeps, [Q, keep]; -1 is no document."""

        def look(queries: Floats, k: int) -> Iterable[tuple[Rows, Scores]]:
            for scores, rows in zip(*self._first.search(queries, k), strict=True):
                yield rows[rows >= 0], scores[rows >= 0]

        shortlists = np.full((len(queries), keep), -1, np.int64)
        hits = deepened(look, queries, keep, self.documents) if keep else []
        for number, (rows, scores) in enumerate(hits):
            best = np.lexsort((-self.docids.ranks[rows], -scores))[:keep]
            shortlists[number, : len(best)] = rows[best]
        return shortlists

    def _narrowed(self, queries: Floats, rows: Rows, k: int) -> tuple[Scores, Rows]:
        """Return scores and rows [Q, <= k] of the best of a shortlist [Q, m], stage by stage."""
        products: Float64 = np.zeros(rows.shape)
        squares: Float64 = np.zeros(rows.shape)
        before = 0
        keeps = [*(stage.keep for stage in self.funnel.stages[1:]), k]
        for dim, keep in zip(self.funnel.dims[1:], keeps, strict=True):
            vectors = self.store.rows(np.maximum(rows, 0).reshape(-1))[:, before:dim]
            left: Float64 = vectors.astype(np.float64).reshape(*rows.shape, -1)
            right = queries[:, before:dim]
            # einsum rounds a vector alike wherever it lies, so copies of a document tie.
            products += np.einsum("qmd,qd->qm", left, right.astype(np.float64))
            squares += np.einsum("qmd,qmd->qm", left, left)
            scores = self._scores(products, squares, queries[:, :dim])
            scores[rows < 0] = -np.inf
            order = np.lexsort((-self.docids.ranks[rows], -scores), axis=1)[:, :keep]
            products = np.take_along_axis(products, order, axis=1)
            squares = np.take_along_axis(squares, order, axis=1)
            scores = np.take_along_axis(scores, order, axis=1)
            rows = np.take_along_axis(rows, order, axis=1)
            before = dim
        return scores, rows

    def _scores(self, products: Float64, squares: Float64, queries: Floats) -> Scores:
        """Return scores [Q, m] as float32; 0 where a vector has length 0 under cosine."""
        if self.store.manifest.label.similarity == "cosine":
            lengths = np.linalg.norm(queries.astype(np.float64), axis=1)[:, None] * np.sqrt(squares)
            products = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
        return products.astype(np.float32) + np.float32(0)  # -0 would rank below 0
