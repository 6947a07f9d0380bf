"""Search through a funnel: a short prefix finds a shortlist, and longer prefixes rank it."""

# Shapes in this file:
#   Q queries, m documents of a shortlist, H dims.

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.index.exact import ExactIndex
from m2dr.index.filters import Filter
from m2dr.index.searchable import Rows, Scores, Searchable, deepened
from m2dr.index.store import Store
from m2dr.index.vectors import Floats, check_depth, check_queries

Doubles = NDArray[np.float64]

_BYTES = 64 * 2**20  # of the vectors of shortlists that are read at once
_EXAMPLE = "a funnel is written like 32:1000,128:100,384"


@dataclass(frozen=True)
class Stage:
    """A stage that compares the first `dim` dims and keeps the best `keep` documents."""

    dim: int
    keep: int


@dataclass(frozen=True)
class Funnel:
    """Stages from a short prefix to a long one, and the dim that ranks what is left.

    >>> print(Funnel.parse("32:1000,128:100,384"))
    32:1000,128:100,384
    """

    stages: tuple[Stage, ...]
    dim: int

    def __post_init__(self) -> None:
        if not self.stages:
            raise UserError(f"One stage narrows nothing; {_EXAMPLE}.")
        if any(stage.keep < 1 for stage in self.stages) or self.dims[0] < 1:
            raise UserError(f"The funnel {self} has a dim or a count below 1; {_EXAMPLE}.")
        for short, long in pairwise(self.dims):
            if long <= short:
                raise UserError(
                    f"Dims must grow in a funnel, and in {self} {long} follows {short}."
                )
        for before, after in pairwise(stage.keep for stage in self.stages):
            if after > before:
                raise UserError(
                    f"Counts cannot grow in a funnel, and in {self} {after} documents are to stay "
                    f"of {before}."
                )

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
        if not re.fullmatch(r"\d+", last):
            raise UserError(
                f"The funnel {word!r} ends in {last!r}, not in a dim without a count; {_EXAMPLE}."
            )
        found = [re.fullmatch(r"(\d+):(\d+)", part) for part in narrowing]
        for part, match in zip(narrowing, found, strict=True):
            if not match:
                raise UserError(
                    f"The stage {part!r} of the funnel {word!r} is not a dim and a count; "
                    f"{_EXAMPLE}."
                )
        stages = tuple(Stage(int(match[1]), int(match[2])) for match in found if match)
        return cls(stages, int(last))

    def check(self, width: int, k: int = 1) -> None:
        """Raise UserError unless vectors of `width` have its dims and `k` documents are left."""
        if self.dim > width:
            raise UserError(
                f"The funnel {self} ends at dim {self.dim}, and the vectors have {width}. Choose "
                f"dims up to {width}."
            )
        if k > self.stages[-1].keep:
            raise UserError(
                f"{k} documents per query were asked for, and the funnel {self} leaves "
                f"{self.stages[-1].keep}. Let more stay, or ask for fewer."
            )


class Shortlister(Protocol):
    """An index that can search the shortest prefix."""

    def search(self, queries: Floats, k: int) -> tuple[Scores, Rows]:
        """Return scores and rows, [Q, at most k], best first; a row of -1 is no document."""
        ...


@dataclass(frozen=True)
class FunnelReport:
    """What a funnel costs and what it finds.

    Attributes:
        stages: per stage its dim, the documents it compares and the multiply-adds of one query.
            An index that was given for the first one counts as a full scan.
        full: multiply-adds of a full scan at the last dim.
        k: depth at which recall was measured.
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


class FunnelIndex(Searchable):
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
        return int(getattr(self._first, "documents", self.store.documents))

    @property
    def deepest(self) -> int:
        """Documents per query that the funnel leaves, at most."""
        return min(self.documents, self.funnel.stages[-1].keep)

    @property
    def multiply_adds(self) -> int:
        """Of one query at all stages; an index given for the first counts as a full scan."""
        return sum(cost for *_, cost in self._costs())

    def where(self, wanted: Filter) -> "FunnelIndex":
        """See Searchable; the first stage is a full scan, of the documents that are left."""
        first = ExactIndex(self.store, self.funnel.dims[0], self._device).where(wanted)
        return FunnelIndex(self.store, self.funnel, first, self._device)

    def warnings(self, query: Cut) -> list[str]:
        """Return sentences that say why rankings of `query` may be worse than the model allows."""
        label, found = self.manifest.label, list[str]()
        for cut in (Cut(self.layer, dim) for dim in self.funnel.dims):
            found += label.warnings(Cut(query.layer, cut.dim), cut)
        return list(dict.fromkeys(found))

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
            best = np.lexsort((-self._places[rows], -scores))[:keep]
            shortlists[number, : len(best)] = rows[best]
        return shortlists

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

    def _narrowed(self, queries: Floats, rows: Rows, k: int) -> tuple[Scores, Rows]:
        """Return scores and rows [Q, <= k] of the best of a shortlist [Q, m], stage by stage."""
        products: Doubles = np.zeros(rows.shape)
        squares: Doubles = np.zeros(rows.shape)
        before = 0
        keeps = [*(stage.keep for stage in self.funnel.stages[1:]), k]
        for dim, keep in zip(self.funnel.dims[1:], keeps, strict=True):
            left, right = self._dims_of(rows, slice(before, dim)), queries[:, before:dim]
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

    def _dims_of(self, rows: Rows, part: slice) -> Doubles:
        """Return some dims of documents [Q, m], as [Q, m, dim]; of any document where row is -1."""
        vectors = self.store.rows(np.maximum(rows, 0).reshape(-1))[:, part]
        return vectors.astype(np.float64).reshape(*rows.shape, -1)

    def _scores(self, products: Doubles, squares: Doubles, queries: Floats) -> Scores:
        """Return scores [Q, m] as float32; 0 where a vector has length 0 under cosine."""
        if self.store.manifest.label.similarity == "cosine":
            lengths = np.linalg.norm(queries.astype(np.float64), axis=1)[:, None] * np.sqrt(squares)
            products = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
        return products.astype(np.float32) + np.float32(0)  # -0 would rank below 0

    @cached_property
    def _places(self) -> Rows:
        """Rank of each row's docid among documents of equal score, [documents]."""
        return self.store.docids.ranks()
