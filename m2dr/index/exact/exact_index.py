"""Full scans of a store or of vectors: an index of one dim, and all dims of a layer in one pass."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from m2dr.core.errors import UserError
from m2dr.core.records import Run, Similarity
from m2dr.index.exact.scan import scan
from m2dr.index.exact.tiles import PrefixSource, VectorSource
from m2dr.index.exact.topk import TieOrder
from m2dr.index.filters import Filter
from m2dr.index.searchable import Docids, Hits, Rows, Scores, Searchable, as_run, hits_of
from m2dr.index.store import Store
from m2dr.index.vectors import Floats, check_depth, check_queries, prefixes


class ExactIndex(Searchable):
    """A store searched without an index file: the first dims of each vector, by a full scan.

    The vectors stay in their files, which the system maps and caches; a small store is held in
    memory as well. Opening costs nothing; the first search also computes the lengths.

    Attributes:
        store: the store of the vectors.
        manifest: the manifest of the store.
        device: where the products are computed, as torch names it.
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
        self.store, self.manifest, self.device = store, store.manifest, device
        self._dim = dim
        self._source = PrefixSource(store, dim, device)

    @property
    def dim(self) -> int:
        """Dims of a query that are compared."""
        return self._dim

    @property
    def documents(self) -> int:
        """Number of documents."""
        return self.store.documents

    @property
    def store_folder(self) -> Path:
        """Folder of the store, whose records complete the commands in messages."""
        return self.store.folder

    def where(self, wanted: Filter) -> "ExactIndex":
        """See Searchable."""
        return ExactIndex(self.store.where(wanted), self.dim, self.device)

    def _other_dim(self, dim: int) -> str:
        return (
            f"{self.corpus} was opened at dimension {self.dim}. Open it at {dim}: its vectors "
            f"have {self.store.width}."
        )

    def search(self, queries: Tensor | Floats, k: int) -> tuple[Scores, Rows]:
        """Search for the best `k` documents, or for all when there are fewer.

        Args:
            queries: [Q, at least dim], not normalised.
            k: documents per query.

        Returns:
            Scores and rows, [Q, min(k, documents)], best first; of equal scores the higher docid.

        Raises:
            UserError: the queries are too short or not finite, k is below 1, or the store's files
                are not those that were written.
        """
        check_depth(k)
        vectors = _queries(queries, self.device, self.dim)
        scores, rows = scan(vectors, self._source, (self.dim,), k, self._ties)[self.dim]
        infinite = rows[np.isinf(scores)]
        if infinite.size:
            prefixes(self.store.rows(infinite), self.dim, "dot")  # refused, if it is not finite
        return scores, rows

    def _best(self, queries: Floats, k: int) -> Iterable[Hits]:
        return hits_of(self.store.docids, zip(*self.search(queries, k), strict=True))

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """Per row, the place of its docid when they are sorted; of equal scores, higher first."""
        return self.store.docids.ranks()

    @cached_property
    def _ties(self) -> TieOrder:
        return TieOrder.of(self.places, self.device)


def prefix_top_k(
    queries: Tensor | Floats,
    documents: Store | Floats,
    dims: Iterable[int],
    k: int,
    similarity: Similarity,
    device: str = "cpu",
    places: NDArray[np.int64] | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[int, tuple[Scores, Rows]]:
    """Search for the best `k` documents of each query, by each prefix.

    All dims together cost little more than the longest alone: benchmarks/exact.py.

    Args:
        queries: [Q, H], not normalised.
        documents: a store, or vectors [N, H], not normalised.
        dims: lengths of the prefixes, none above H.
        k: documents per query.
        similarity: cosine normalises after cutting; a vector of length zero then scores 0.
        device: where the products are computed, as torch names it.
        places: [N], no two the same and all from 0 to N - 1; of documents with equal scores
            the one with the higher place comes first. The lower row, when None.
        progress: called with the number of documents of each part that was scanned.

    Returns:
        Per dim, scores and rows, [Q, min(k, N)], best first.

    Raises:
        UserError: a dim does not fit the vectors, a query or a score is not finite, or k is
            below 1.
    """
    check_depth(k)
    wanted = tuple(sorted(set(dims)))
    if not wanted or wanted[0] < 1:
        raise UserError(f"Dims {list(wanted)} were asked for. Name at least one, none below 1.")
    source = VectorSource(documents, similarity, device)
    vectors, ties = _queries(queries, device, wanted[-1]), TieOrder.of(places, device)
    return scan(vectors, source, wanted, k, ties, progress)


def prefix_runs(
    query_ids: Sequence[str],
    queries: Tensor | Floats,
    documents: Store | Floats,
    docids: Docids,
    dims: Iterable[int],
    k: int,
    similarity: Similarity,
    device: str = "cpu",
    drop: Mapping[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[int, Run]:
    """Rank as `prefix_top_k` does, with ties by docid descending: one run per dim.

    Args:
        query_ids: Q of them.
        queries: [Q, H], not normalised.
        documents: as `prefix_top_k` takes them.
        docids: N of them.
        dims: lengths of the prefixes.
        k: documents per query.
        similarity: as `prefix_top_k` takes it.
        device: as `prefix_top_k` takes it.
        drop: per query id, a docid to leave out, such as the query's own document.
        progress: as `prefix_top_k` takes it.

    Raises:
        UserError: a dim does not fit the vectors, a query or a score is not finite, or k is
            below 1.
    """
    check_depth(k)
    drop = drop or {}
    by_dim = prefix_top_k(
        queries, documents, dims, k + bool(drop), similarity, device, docids.ranks(), progress
    )
    return {dim: as_run(query_ids, found, docids, k, drop) for dim, found in by_dim.items()}


def _queries(queries: Tensor | Floats, device: str, dim: int) -> Tensor:
    """Return queries [Q, at least dim] on the device, float32.

    Raises:
        UserError: they are too short, or not finite.
    """
    tensor = queries if isinstance(queries, Tensor) else torch.from_numpy(np.array(queries))
    tensor = tensor.detach().to(device, torch.float32)
    check_queries(tensor.cpu().numpy(), dim)
    return tensor
