"""The base class of everything that can be searched, with the rule for ties."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from m2dr.core.arrays import Float32, Floats, Int64
from m2dr.core.errors import UserError, counted
from m2dr.core.records import Cut, Label, Ranking, Run
from m2dr.index.docids import Docids
from m2dr.index.filters import Filter
from m2dr.index.vectors import answerable, check_depth, check_queries

Scores = Float32
Rows = Int64
Found = TypeVar("Found")
NamedHits = tuple[Sequence[str], Scores]  # docids of one query and their scores [n], best first

_NONE = Ranking((), ())
LISTED = 4  # documents in the lists that an engine reads, for each that is to be found
_SLACK = 16  # documents fetched beyond k, so that few queries must be searched again


class Manifest(Protocol):
    """What a store, an index or a collection records of its documents and their vectors."""

    @property
    def corpus(self) -> str: ...
    @property
    def documents(self) -> int: ...
    @property
    def layer(self) -> int: ...
    @property
    def label(self) -> Label: ...
    @property
    def docids(self) -> str: ...


class Searchable(ABC):
    """Documents of one layer, searched at one dim.

    Attributes:
        manifest: what is recorded of the documents.
        docids: by row.
    """

    manifest: Manifest
    docids: Docids

    @property
    @abstractmethod
    def dim(self) -> int:
        """Dims of a query that are compared."""

    @property
    def corpus(self) -> str:
        """Name of the corpus."""
        return self.manifest.corpus

    @property
    def documents(self) -> int:
        """Number of documents."""
        return self.manifest.documents

    @property
    def layer(self) -> int:
        """Transformer layers that encoded the documents."""
        return self.manifest.layer

    def accept(self, queries: Label, query: Cut) -> None:
        """Refuse queries that cannot be compared with the documents.

        Args:
            queries: their label.
            query: their cut.

        Raises:
            UserError: another model or another way of encoding, or another dim.
        """
        self.manifest.label.accept(queries, self.corpus)
        if query.dim != self.dim:
            raise UserError(f"Dim {query.dim} was asked for; this index has {self.dim}.")

    @abstractmethod
    def search(self, queries: Floats, k: int) -> tuple[Scores, Rows]:
        """Search for the best `k` documents, or for all when there are fewer.

        Args:
            queries: [Q, at least dim], not normalised.
            k: documents per query.

        Returns:
            Scores and rows, [Q, at most k], best first, ties in any order. A row of -1, which an
            engine that is not exact may leave at the end, is no document.

        Raises:
            UserError: the queries are too short or not finite, or k is below 1 or more than can be
                found.
        """

    @abstractmethod
    def where(self, wanted: Filter) -> "Searchable":
        """Return the same index, in which only documents that fit a filter are found.

        Raises:
            UserError: the fields of the documents are not known, or the filter does not fit them.
        """

    def with_search_params(self, search_params: Mapping[str, int]) -> "Searchable":
        """Return the same index with other parameters of searching, by name.

        Raises:
            UserError: there is no such parameter; only the engines of FAISS have some.
        """
        if search_params:
            names = ", ".join(search_params)
            raise UserError(f"--search-param {names} was given, but this engine has no settings.")
        return self

    def deeper(self, k: int) -> "Searchable":  # noqa: ARG002  # all are found
        """Return the same index, searched such that the best `k` are found, or nearly all."""
        return self

    def warnings(self, query: Cut) -> list[str]:
        """Return sentences that say why rankings of `query` may be worse than the model allows."""
        return self.manifest.label.warnings(query, Cut(self.layer, self.dim))

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
            queries: [Q, at least dim], not normalised; one of zeros finds nothing.
            k: documents per query.
            drop: per query id, a docid to leave out, such as the query's own document.

        Raises:
            UserError: the queries are too short or not finite, or k is below 1 or more than can
                be found.
        """
        check_depth(k)
        check_queries(queries, self.dim)
        has_vector = answerable(queries, self.dim)
        names = [name for name, has in zip(query_ids, has_vector, strict=True) if has]
        empty = dict.fromkeys(query_ids, _NONE)
        if not (self.documents and names):  # a filter may leave none
            return Run(empty)
        queries = queries[has_vector]
        drop = drop or {}
        depth = min(k + bool(drop), self.documents)
        hits = deepened(self._hits, queries, depth, self.deepest)
        rankings = {
            name: Ranking.of(docids, scores.tolist(), k, drop.get(name))
            for name, (docids, scores) in zip(names, hits, strict=True)
        }
        most = min(k, self.documents - bool(drop))
        if fewer := sum(len(ranking.docids) < most for ranking in rankings.values()):
            warnings.warn(
                f"{counted(fewer, 'queries')} found fewer than {most} documents: the engine "
                "searches a part of the index, which --search-param enlarges.",
                UserWarning,
                stacklevel=2,
            )
        return Run(empty | rankings)

    @property
    def deepest(self) -> int:
        """Documents per query that can be found, at most."""
        return self.documents

    def _hits(self, queries: Floats, k: int) -> Iterable[NamedHits]:
        """Yield the hits of each query [Q, at least dim]."""
        for scores, rows in zip(*self.search(queries, k), strict=True):
            yield self.docids.take(rows[rows >= 0]), scores[rows >= 0]


def deepened(
    look: Callable[[Floats, int], Iterable[tuple[Found, Scores]]],
    queries: Floats,
    k: int,
    most: int,
) -> list[tuple[Found, Scores]]:
    """Search deeper until the score of rank `k` has no more ties to fetch.

    An engine cuts through equal scores at any place. So a few documents more than `k` are fetched,
    and twice as many for the queries where the last of them may share the score of rank `k`.

    Args:
        look: searches to a depth; returns the documents of each query, best first, and scores.
        queries: [Q, dim].
        k: documents per query that must be right; at most `most`.
        most: documents per query that can be fetched.
    """
    results: dict[int, tuple[Found, Scores]] = {}
    pending, fetch = list(range(len(queries))), k + _SLACK
    while pending:
        results |= dict(zip(pending, look(queries[pending], min(fetch, most)), strict=True))
        scored = [(row, results[row][1]) for row in pending if fetch < most]
        pending = [row for row, s in scored if len(s) >= fetch and s[k - 1] == s[-1]]
        fetch *= 2
    return [results[row] for row in range(len(queries))]
