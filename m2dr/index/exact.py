"""Every prefix of a layer searched by a full scan, in one pass over its vectors; CPU or GPU."""

# Shapes in this file:
#   Q queries, C of them in a chunk, N documents, n of them in a block, H coordinates.

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from m2dr.errors import UserError
from m2dr.index.docids import Docids
from m2dr.index.vectors import Floats, check_depth, check_queries
from m2dr.records.card import Similarity
from m2dr.records.run import Ranking, Run

Found = tuple[NDArray[np.float32], NDArray[np.int64]]  # scores and rows, both [Q, k]

SCORES_BYTES = 32 * 2**20  # of one [C, n] matrix of scores; about four live at once
_ALIGN = 64  # rows; see _Block
_LOW = 0xFFFFFFFF  # the half of a key that holds the place among ties


def prefix_top_k(
    queries: Tensor | Floats,
    blocks: Iterable[tuple[int, Floats]],
    dims: Iterable[int],
    k: int,
    similarity: Similarity,
    device: str = "cpu",
    places: NDArray[np.int64] | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[int, Found]:
    """Search for the best `k` documents of each query, by each prefix.

    A longer prefix only adds coordinates: its products are those of the shorter one plus those of
    a block of coordinates, and its squared norms likewise. All dims together cost one full scan.

    Args:
        queries: [Q, H], not normalised.
        blocks: the row at which each block starts, and its vectors [n, H], not normalised.
        dims: the prefixes, none above H.
        k: how many documents for each.
        similarity: cosine normalises after cutting; a vector of length zero then scores 0.
        device: of the products, as torch names it.
        places: [N], no two the same and all from 0 to N - 1; of documents with equal scores
            the one with the higher place comes first. The lower row, when None.
        progress: told how many documents were scanned, again and again.

    Returns:
        Per dim, scores and rows, [Q, min(k, N)], best first.

    Raises:
        UserError: a dim does not fit the vectors, a query is not finite, or k is below 1.
    """
    check_depth(k)
    scan = _Scan(_on(queries, device), _increasing(dims), k, similarity, _Places.of(places, device))
    check_queries(scan.queries.cpu().numpy(), scan.dims[-1])
    size = 0
    with torch.inference_mode(), _full_precision():
        for start, vectors in blocks:
            size = max(size, -(-len(vectors) // _ALIGN) * _ALIGN)
            scan.add(_Block.of(start, vectors, size, scan.dims, device))
            if progress:
                progress(len(vectors))
        return {dim: scan.found(dim) for dim in scan.dims}


def prefix_runs(
    query_ids: Sequence[str],
    queries: Tensor | Floats,
    blocks: Iterable[tuple[int, Floats]],
    docids: Docids,
    dims: Iterable[int],
    k: int,
    similarity: Similarity,
    device: str = "cpu",
    drop: Mapping[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[int, Run]:
    """Rank as `prefix_top_k` does, ties by docid descending: one run per dim.

    Args:
        query_ids: Q of them.
        queries: [Q, H], not normalised.
        blocks: as `prefix_top_k` takes them; `Store.blocks()` makes them.
        docids: N of them.
        dims: the prefixes.
        k: how many documents for each query.
        similarity: as `prefix_top_k` takes it.
        device: as `prefix_top_k` takes it.
        drop: per query id, a docid to leave out, such as the query's own document.
        progress: as `prefix_top_k` takes it.

    Raises:
        UserError: a dim does not fit the vectors, a query is not finite, or k is below 1.
    """
    drop = drop or {}
    found = prefix_top_k(
        queries, blocks, dims, k + bool(drop), similarity, device, docids.ranks(), progress
    )
    return {
        dim: Run(
            {
                name: Ranking.of(docids.take(query_rows), query_scores, k, drop.get(name))
                for name, query_scores, query_rows in zip(query_ids, scores, rows, strict=True)
            }
        )
        for dim, (scores, rows) in found.items()
    }


@dataclass(frozen=True)
class _Places:
    """Where a row stands among documents of equal score: the higher place comes first."""

    of_row: Tensor | None  # [N] int64
    row_of: Tensor | None  # [N] int64

    @classmethod
    def of(cls, places: NDArray[np.int64] | None, device: str) -> "_Places":
        if places is None:
            return cls(None, None)
        of_row = torch.from_numpy(np.array(places, np.int64)).to(device)
        return cls(of_row, of_row.argsort())

    def place(self, rows: Tensor) -> Tensor:
        return _LOW - rows if self.of_row is None else self.of_row[rows]

    def row(self, places: Tensor) -> Tensor:
        return _LOW - places if self.row_of is None else self.row_of[places]


@dataclass(frozen=True)
class _Block:
    """Consecutive documents on the device, followed by zero rows.

    The zero rows make all blocks one size, a multiple of _ALIGN: a matrix product may round the
    same two vectors differently where it treats an edge, and copies of a document must tie.
    """

    start: int
    rows: int  # real ones
    vectors: Tensor  # [n, H] float32
    norms: Mapping[int, Tensor]  # per dim [n]

    @classmethod
    def of(
        cls, start: int, vectors: Floats, size: int, dims: Sequence[int], device: str
    ) -> "_Block":
        if vectors.shape[1] < dims[-1]:
            raise UserError(
                f"Dim {dims[-1]} was asked for, and the documents' vectors have "
                f"{vectors.shape[1]} coordinates. Choose dims up to {vectors.shape[1]}."
            )
        padded = np.zeros((size, dims[-1]), vectors.dtype)
        padded[: len(vectors)] = vectors[:, : dims[-1]]
        # Moved as stored, widened there: f16 crosses to a card in half the time.
        tensor = torch.from_numpy(padded).to(device).float()
        return cls(start, len(vectors), tensor, _norms(tensor, dims))


@dataclass
class _Scan:
    """The best documents so far, per dim.

    They are kept as one int64 key per document: its score in the upper half, so that keys sort as
    scores do, and its place among ties in the lower. The best k keys are then the right k
    documents, however many of them share a score.
    """

    queries: Tensor  # [Q, H] float32
    dims: tuple[int, ...]
    k: int
    similarity: Similarity
    places: _Places
    best: dict[int, list[Tensor]] = field(default_factory=dict)  # per dim, per chunk [C, <= k]
    norms: Mapping[int, Tensor] = field(default_factory=dict)  # per dim [Q]
    starts: range = range(0)  # of the chunks

    def add(self, block: _Block) -> None:
        """Compare all queries with a block; chunks are the same ones in every block."""
        if not self.best:
            chunk = max(1, SCORES_BYTES // (4 * len(block.vectors)))
            self.starts = range(0, len(self.queries), chunk)
            empty = [self.queries[i : i + chunk, :0].long() for i in self.starts]
            self.best = {dim: list(empty) for dim in self.dims}
            self.norms = _norms(self.queries, self.dims)
        for number, first in enumerate(self.starts):
            self._add_chunk(block, number, slice(first, first + self.starts.step))

    def _add_chunk(self, block: _Block, number: int, chunk: slice) -> None:
        queries = self.queries[chunk]
        products = queries.new_zeros(len(queries), len(block.vectors))
        for start, stop in pairwise((0, *self.dims)):
            products.addmm_(queries[:, start:stop], block.vectors[:, start:stop].mT)
            scores = products[:, : block.rows]
            if self.similarity == "cosine":
                scores = scores * _inverse(block.norms[stop][: block.rows])
                scores *= _inverse(self.norms[stop][chunk])[:, None]
            self.best[stop][number] = self._merged(self.best[stop][number], scores, block.start)

    def _merged(self, best: Tensor, scores: Tensor, start: int) -> Tensor:
        """The best k keys [C, <= k] of those so far and of `scores` [C, n]."""
        keep = min(self.k, best.shape[1] + scores.shape[1])
        floor = self._floor(best, scores)
        entering = scores >= floor[:, None]
        counts = entering.sum(dim=1)
        most = int(counts.max())
        if not most:
            return best
        query, column = entering.nonzero(as_tuple=True)  # ordered by query
        slot = torch.arange(len(query), device=query.device) - (counts.cumsum(0) - counts)[query]
        lowest = torch.iinfo(torch.int64).min  # below every key; there are `keep` others
        keys = best.new_full((len(best), most), lowest)
        keys[query, slot] = _keys(scores[query, column], self.places.place(column + start))
        return torch.cat([best, keys], dim=1).topk(keep, dim=1).values

    def _floor(self, best: Tensor, scores: Tensor) -> Tensor:
        """A score [C] that at least k documents of each query reach, or minus infinity."""
        if best.shape[1] == self.k:
            return _scores(best[:, -1])
        if scores.shape[1] >= self.k:
            return scores.topk(self.k, dim=1).values[:, -1]
        return scores.new_full((len(scores),), -torch.inf)

    def found(self, dim: int) -> Found:
        """Scores and rows, [Q, <= k], best first."""
        if not self.best.get(dim):  # no queries, or no documents
            return np.empty((len(self.queries), 0), np.float32), np.empty(
                (len(self.queries), 0), np.int64
            )
        keys = torch.cat(self.best[dim])
        rows = self.places.row(keys & _LOW)
        return _scores(keys).cpu().numpy(), rows.cpu().numpy()


def _keys(scores: Tensor, places: Tensor) -> Tensor:
    """Scores (float32) and places (below 2**32) as int64 that sort by score, then by place."""
    # Adding zero turns -0, which a product too small for float32 leaves, into 0. The bits of a
    # float sort as an integer once those of the negatives are flipped.
    bits = (scores + 0.0).view(torch.int32)
    return (_flipped(bits).long() << 32) | places


def _scores(keys: Tensor) -> Tensor:
    return _flipped((keys >> 32).int()).view(torch.float32)


def _flipped(bits: Tensor) -> Tensor:
    """Turn the order of negatives round, bits int32; twice is no change."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _norms(vectors: Tensor, dims: Sequence[int]) -> dict[int, Tensor]:
    """Length of each prefix of [n, H] vectors; summed in float64, per dim [n]."""
    squares, norms = vectors.new_zeros(len(vectors), dtype=torch.float64), {}
    for start, stop in pairwise((0, *dims)):
        squares = squares + vectors[:, start:stop].double().square().sum(dim=1)
        norms[stop] = squares.sqrt()
    return norms


def _inverse(norms: Tensor) -> Tensor:
    """One over each length, float32; 0 for a length of 0, whose scores are then 0 too."""
    # Below `tiny` one over the length would be infinite in float32.
    return torch.where(norms > torch.finfo(torch.float32).tiny, 1 / norms, 0.0).float()


def _increasing(dims: Iterable[int]) -> tuple[int, ...]:
    found = tuple(sorted(set(dims)))
    if not found or found[0] < 1:
        raise UserError(f"Dims {list(found)} were asked for. Name at least one, none below 1.")
    return found


def _on(queries: Tensor | Floats, device: str) -> Tensor:
    tensor = queries if isinstance(queries, Tensor) else torch.from_numpy(np.array(queries))
    return tensor.detach().to(device, torch.float32)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Multiply float32 as float32: training may have allowed TF32 or bf16, off by 1e-3."""
    card = torch.backends.cuda.matmul
    processor = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # made at import
    backends = (card, processor)
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "ieee"
        yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
