"""The base class of everything that can be searched, with the rule for ties; and docids."""

import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, overload

import numpy as np

from m2dr.core.arrays import Float32, Floats, Int64
from m2dr.core.errors import UserError, counted
from m2dr.core.records import Cut, Ranking, Run
from m2dr.index.filters import Filter
from m2dr.index.manifest import IndexManifest, Label, StoreManifest
from m2dr.index.vectors import check_depth, check_queries

if TYPE_CHECKING:
    from m2dr.index.milvus import CollectionManifest

Scores = Float32
Rows = Int64
Found = TypeVar("Found")
Hits = tuple[Sequence[str], Scores]  # docids of one query and their scores [n], best first

_NEWLINE = 10
_WORDS = 8  # of eight bytes: longer docids are sorted as strings, which takes less memory
_SLACK = 16  # documents fetched beyond k, so that few queries must be searched again


class Ranker(Protocol):
    """What ranks documents as `Searchable.ranked` does."""

    def ranked(
        self,
        query_ids: Sequence[str],
        queries: Floats,
        k: int,
        drop: Mapping[str, str] | None = None,
        texts: Sequence[str] = (),
    ) -> Run:
        """Rank the best `k` documents of each query."""


@dataclass(frozen=True, eq=False)
class Mixed:
    """Documents that are ranked by other vectors of the queries.

    Attributes:
        documents: that are ranked.
        vectors: of queries, from their vectors [Q, W] and texts.
    """

    documents: Ranker
    vectors: Callable[[Floats, Sequence[str]], Floats]

    def ranked(
        self,
        query_ids: Sequence[str],
        queries: Floats,
        k: int,
        drop: Mapping[str, str] | None = None,
        texts: Sequence[str] = (),
    ) -> Run:
        """Rank as `documents` does."""
        return self.documents.ranked(query_ids, self.vectors(queries, texts), k, drop, texts)


class Searchable(ABC):
    """Documents of one layer, searched at one dim.

    Attributes:
        manifest: what is recorded of the documents.
        docids: by row.
    """

    manifest: "StoreManifest | IndexManifest | CollectionManifest"
    docids: "Docids"

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

    def warnings(self, query: Cut) -> list[str]:
        """Return sentences that say why rankings of `query` may be worse than the model allows."""
        return self.manifest.label.warnings(query, Cut(self.layer, self.dim))

    def ranked(
        self,
        query_ids: Sequence[str],
        queries: Floats,
        k: int,
        drop: Mapping[str, str] | None = None,
        texts: Sequence[str] = (),  # noqa: ARG002  # which `Hybrid` reads
    ) -> Run:
        """Rank the best `k` documents of each query: score descending, then docid descending.

        Args:
            query_ids: Q of them.
            queries: [Q, at least dim], not normalised.
            k: documents per query.
            drop: per query id, a docid to leave out, such as the query's own document.
            texts: of the queries.

        Raises:
            UserError: the queries are too short or not finite, or k is below 1 or more than can
                be found.
        """
        check_depth(k)
        check_queries(queries, self.dim)
        if not self.documents:  # a filter leaves none
            return Run({name: Ranking((), ()) for name in query_ids})
        drop = drop or {}
        wanted = min(k + bool(drop), self.documents)
        run = run_of(query_ids, deepened(self._hits, queries, wanted, self.deepest), k, drop)
        most = min(k, self.documents - bool(drop))
        if fewer := sum(len(ranking.docids) < most for ranking in run.rankings.values()):
            warnings.warn(
                f"{counted(fewer, 'queries')} found fewer than {most} documents, as the engine "
                "looks at a part of the index; its settings (--search-param) widen that.",
                UserWarning,
                stacklevel=2,
            )
        return run

    @property
    def deepest(self) -> int:
        """Documents per query that can be found, at most."""
        return self.documents

    def _hits(self, queries: Floats, k: int) -> Iterable[Hits]:
        """Return the hits of each query [Q, at least dim]."""
        return hits_of(self.docids, zip(*self.search(queries, k), strict=True))


def deepened(
    look: Callable[[Floats, int], Iterable[tuple[Found, Scores]]],
    queries: Floats,
    k: int,
    most: int,
) -> list[tuple[Found, Scores]]:
    """Search until no document that was not fetched can share the score of rank `k`.

    An engine cuts through equal scores at any place. So a few documents more than `k` are fetched,
    and twice as many for the queries where the last of them may share the score of rank `k`.

    Args:
        look: returns what is found for each query, best first, with scores.
        queries: [Q, dim].
        k: documents per query that must be right; at most `most`.
        most: documents per query that can be fetched.
    """
    results: dict[int, tuple[Found, Scores]] = {}
    pending, fetch = list(range(len(queries))), k + _SLACK
    while pending:
        results |= dict(zip(pending, look(queries[pending], min(fetch, most)), strict=True))
        cut = [(row, results[row][1]) for row in pending if fetch < most]
        pending = [row for row, own in cut if len(own) >= fetch and own[k - 1] == own[-1]]
        fetch *= 2
    return [results[row] for row in range(len(queries))]


def hits_of(docids: "Docids", found: Iterable[tuple[Scores, Rows]]) -> Iterator[Hits]:
    """Yield the hits of each query, from its scores and rows [n]; a row of -1 is no document."""
    for scores, rows in found:
        kept = rows >= 0
        yield docids.take(rows[kept]), scores[kept]


def run_of(query_ids: Sequence[str], hits: Iterable[Hits], k: int, drop: Mapping[str, str]) -> Run:
    """Return hits as rankings of at most `k` documents, without those to drop."""
    return Run(
        {
            name: Ranking.of(docids, scores, k, drop.get(name))
            for name, (docids, scores) in zip(query_ids, hits, strict=True)
        }
    )


class Docids(Sequence[str]):
    r"""The docids of a file, which stay bytes until asked for: 8 bytes each beside the file's own.

    >>> docids = Docids(b"d1\nd2\n")
    >>> len(docids), docids[1], docids.take([1, 0])
    (2, 'd2', ['d2', 'd1'])

    Attributes:
        data: as the file holds them.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        breaks = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
        self._starts = np.concatenate([[0], breaks + 1])  # one more than there are docids
        self._start = self._starts.data  # whose items are ints, four times as fast

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return self.take(range(*row.indices(len(self))))
        size = len(self)
        if not -size <= row < size:
            raise IndexError(f"Row {row} was asked for; there are {counted(size, 'docids')}.")
        row %= size
        return self.data[self._start[row] : self._start[row + 1] - 1].decode()

    def take(self, rows: Iterable[int]) -> list[str]:
        """Return the docids of `rows`, in that order."""
        return [self[int(row)] for row in rows]

    def find(self, docids: Iterable[str]) -> dict[str, int]:
        """Return the rows of those docids that are there, in one pass over all."""
        wanted = {docid.encode(errors="surrogatepass"): docid for docid in docids}
        lines = enumerate(self.data.split(b"\n"))
        return {wanted[line]: row for row, line in lines if line and line in wanted}

    def ranks(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the rank of each row's docid among the sorted docids, [documents].

        Among documents of equal score the higher rank comes first.
        """
        order = self._order()
        ranks = np.empty(len(self), np.int64)
        ranks[order] = np.arange(len(self))
        return ranks

    def repeated(self) -> tuple[int, int] | None:
        """Return two rows with the same docid; None where every docid comes once."""
        # By hashes first, which take 8 bytes each where a table of strings would take a hundred.
        hashes = np.fromiter(map(hash, self), np.int64, len(self))
        hashes.sort()
        suspects = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
        seen: dict[str, int] = {}
        for row, docid in enumerate(self if suspects else ()):
            if docid in seen:
                return seen[docid], row
            if hash(docid) in suspects:
                seen[docid] = row
        return None

    def _order(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the rows sorted by docid: UTF-8 sorts as the code points of strings do."""
        lengths = np.diff(self._starts) - 1
        words = -(-int(lengths.max(initial=0)) // 8)
        if words > _WORDS:
            return np.array(sorted(range(len(self)), key=self.__getitem__), np.int64)
        # Each docid as big-endian words of eight bytes, zeros behind it; and its length, which
        # tells it from one that ends in zeros.
        wide = np.zeros((len(self), 8 * words), np.uint8)
        letters = np.frombuffer(self.data, np.uint8)
        wide[np.arange(8 * words) < lengths[:, None]] = letters[letters != _NEWLINE]
        columns = wide.view(">u8").astype(np.uint64)
        return np.lexsort((lengths, *columns.T[::-1]))


def encode_docids(docids: Iterable[str]) -> bytes:
    r"""Return the docids as a file holds them.

    Raises:
        UserError: a docid is empty or holds a line break, which one line cannot hold.

    >>> encode_docids(["d1", "d2"])
    b'd1\nd2\n'
    """
    lines = bytearray()
    for row, docid in enumerate(docids):
        if not docid or "\n" in docid or "\r" in docid:
            raise UserError(f"Document {row} has the id {docid!r}: an id is one line, not empty.")
        lines += f"{docid}\n".encode()
    return bytes(lines)


def read_docids(path: Path, documents: int, sha256: str) -> Docids:
    """Read the docids of a store or index, and compare them with its manifest.

    Args:
        path: the file.
        documents: number of docids.
        sha256: of the file.

    Raises:
        UserError: the file is missing, or is not the one that was written.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    if hashlib.sha256(data).hexdigest() != sha256 or data.count(b"\n") != documents:
        raise UserError(f"{path} does not hold the docids that were written.")
    return Docids(data)
