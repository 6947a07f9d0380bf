"""A store searched as it lies, without an index file."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from m2dr.errors import UserError
from m2dr.index.exact.keys import Places
from m2dr.index.exact.runs import Found, arrays, on
from m2dr.index.exact.scan import Asked
from m2dr.index.exact.search import search
from m2dr.index.exact.source import PrefixSource
from m2dr.index.label import Label
from m2dr.index.ranked import as_run
from m2dr.index.store import Store
from m2dr.index.vectors import Floats, check_depth, prefixes
from m2dr.records.cut import Cut
from m2dr.records.run import Run


class ExactIndex:
    """The first coordinates of a store's vectors, every one of them compared with each query.

    The vectors stay in their files, which the system maps and caches; a small store is held in
    memory as well. Opening costs nothing; the first search also computes the lengths.

    Attributes:
        store: whose vectors they are.
        dim: how many coordinates are compared.
        device: of the products, as torch names it.
    """

    def __init__(self, store: Store, dim: int, device: str = "cpu") -> None:
        """Open a store for search.

        Raises:
            UserError: its vectors are shorter than `dim`.
        """
        if not 1 <= dim <= store.width:
            raise UserError(
                f"Dim {dim} was asked for, and {store.folder} holds vectors of {store.width}. "
                f"Choose a dim from 1 to {store.width}."
            )
        self.store, self.dim, self.device = store, dim, device
        self._source = PrefixSource(store, dim, device)

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

    def accept(self, queries: Label, query: Cut) -> None:
        """Raise UserError unless the `query` cut of that label may search these documents."""
        self.store.manifest.accept(queries, self.store.folder)
        if query.dim != self.dim:
            raise UserError(
                f"Queries of dimension {query.dim} were asked for, and {self.corpus} was opened "
                f"at dimension {self.dim}. Open it at theirs: its vectors have {self.store.width}."
            )

    def warnings(self, query: Cut) -> list[str]:
        """Say why rankings of `query` may be worse than this model can do."""
        return self.store.manifest.label.warnings(
            query, Cut(self.layer, self.dim), self.store.folder
        )

    def search(self, queries: Tensor | Floats, k: int) -> Found:
        """Search for the best `k` documents, or for all when there are fewer.

        Args:
            queries: [Q, at least dim], not normalised.
            k: how many documents for each.

        Returns:
            Scores and rows, [Q, min(k, documents)], best first; of equal scores the higher docid.

        Raises:
            UserError: the queries are too short or not finite, k is below 1, or the store's files
                are not those that were written.
        """
        check_depth(k)
        similarity = self.store.manifest.label.similarity
        vectors = on(queries, self.device, self.dim)
        asked = Asked((self.dim,), min(k, self.documents), similarity, self._places)
        scores, rows = arrays(*search(vectors, self._source, asked)[self.dim])
        endless = rows[np.isinf(scores)]
        if endless.size:
            prefixes(self.store.rows(endless), self.dim, "dot")  # refused, if it is not finite
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
            UserError: the queries are too short or not finite, or k is below 1.
        """
        check_depth(k)
        drop = drop or {}
        found = self.search(queries, k + bool(drop))
        return as_run(query_ids, found, self.store.docids, k, drop)

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Per row, where its docid stands when they are sorted; of equal scores, higher first."""
        return self.store.docids.ranks()

    @cached_property
    def _places(self) -> Places:
        return Places.of(self.places, self.device)
