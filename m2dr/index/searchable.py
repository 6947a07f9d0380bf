"""What every way to search has in common, so that a searcher need not know which one it holds."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from m2dr.index.label import Label
from m2dr.index.vectors import Floats
from m2dr.records.cut import Cut
from m2dr.records.run import Run


class Searchable(Protocol):
    """Documents at one layer and dim, open for search."""

    @property
    def corpus(self) -> str:
        """Whose documents they are."""
        ...

    @property
    def documents(self) -> int:
        """How many there are."""
        ...

    @property
    def layer(self) -> int:
        """How many transformer blocks encoded them."""
        ...

    @property
    def dim(self) -> int:
        """How many coordinates of a query are looked at."""
        ...

    def accept(self, queries: Label, query: Cut) -> None:
        """Raise UserError unless the `query` cut of that label may search these documents."""
        ...

    def warnings(self, query: Cut) -> list[str]:
        """Say why rankings of `query` may be worse than this model can do."""
        ...

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
        ...
