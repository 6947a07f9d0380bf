"""Vectors of documents, read as tiles: of an array, of a store, or of one prefix of a store."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from m2dr.core.errors import UserError
from m2dr.core.records import Similarity
from m2dr.index.store import HASHED_BYTES, Store
from m2dr.index.vectors import Floats

# Shapes in this file: N documents, n of a tile, H dims of a vector, D prefixes.

KEPT_BYTES = 128 * 2**20  # prefixes that take no more, as float32, stay in memory between queries
TILE_BYTES = 2**29  # of a tile of prefixes that a gpu keeps: each tile costs a dozen small calls
BLOCK_ROWS = 2**16  # of a view of a file
RUN = 128  # the rows of a tile are a multiple of this
# Squares below lose digits in float32, and above they overflow: such sums are made in float64.
_SMALL, _LARGE = 1e-24, 1e36


@dataclass(frozen=True)
class TileSizes:
    """Queries and documents multiplied at once, so that scores stay in a cache and calls pay."""

    queries: int  # of a chunk, at most
    scores: int  # of a chunk and a tile, about
    rows: range  # of a tile: the fewest and the most; multiples of RUN

    def of_tile(self, queries: int, most: int) -> int:
        """Return how many rows a tile for so many queries has: a multiple of RUN, as `most` is."""
        rows = self.scores // queries // RUN * RUN
        return min(max(rows, self.rows.start), self.rows.stop, most)


PROCESSOR = TileSizes(queries=512, scores=2**20, rows=range(1024, 2048))
GPU = TileSizes(queries=4096, scores=2**26, rows=range(2**14, 2**24))


def on_gpu(device: str) -> bool:
    """Return whether a device, as torch names it, is a gpu."""
    return device != "cpu"


def kept_bytes(device: str) -> int:
    """Return how many bytes of prefixes may stay in a device's memory between queries."""
    return torch.cuda.mem_get_info(device)[0] // 2 if on_gpu(device) else KEPT_BYTES


@dataclass(frozen=True)
class Tile:
    """Consecutive documents.

    Attributes:
        start: row of the first.
        rows: how many there are.
        vectors: [rows, at least the longest dim] as stored, on the device; or those that a source
            keeps as float32, with rows of zeros up to the size of a tile.
        kept: whether they are kept.
    """

    start: int
    rows: int
    vectors: Tensor
    kept: bool = False

    def widened(self, out: Tensor) -> Tensor:
        """Return the vectors as float32 [n, H], zeros in the rows beyond the last document.

        All tiles of a scan have one size, a multiple of RUN: a matrix product may round the same
        two vectors differently where it treats an edge, and copies of a document must tie. So
        even float32 is copied to `out` [n, H]: where vectors lie in memory may change rounding.
        """
        if self.kept:
            return self.vectors
        out[: self.rows] = self.vectors[:, : out.shape[1]]
        out[self.rows :] = 0
        return out


class VectorSource:
    """Vectors that can be read more than once: of an array, or straight from a store's files.

    Attributes:
        documents: how many there are, N.
        cosine: whether scores are divided by lengths.
        device: of the tiles, as torch names it.
    """

    def __init__(self, vectors: Store | Floats, similarity: Similarity, device: str) -> None:
        """Read vectors [N, H], not normalised."""
        self._vectors = vectors
        self.documents = vectors.documents if isinstance(vectors, Store) else len(vectors)
        self.cosine, self.device = similarity == "cosine", device
        self._verified = True  # files are compared with their digests: a scan takes longer

    @property
    def sizes(self) -> TileSizes:
        """What suits the device."""
        return GPU if on_gpu(self.device) else PROCESSOR

    @property
    def largest_tile(self) -> int:
        """Rows of a tile, at most."""
        return BLOCK_ROWS

    def tiles(self, size: int, dim: int) -> Iterator[Tile]:
        """Yield all documents as tiles of at most `size` rows.

        Raises:
            UserError: the vectors have fewer than `dim` dims, or a file has changed.
        """
        for start, block in self._blocks(size):
            if block.shape[1] < dim:
                raise UserError(
                    f"Dim {dim} was asked for, and the documents' vectors have {block.shape[1]} "
                    f"dims. Choose dims up to {block.shape[1]}."
                )
            with warnings.catch_warnings():  # a file is mapped for reading only
                warnings.filterwarnings("ignore", "The given NumPy array is not writable")
                stored = torch.from_numpy(np.ascontiguousarray(block)).to(self.device)
            for first in range(0, len(stored), size):
                part = stored[first : first + size]
                yield Tile(start + first, len(part), part)

    def inverse_lengths(
        self,
        start: int,  # noqa: ARG002
        wide: Tensor,
        dims: Sequence[int],
    ) -> Tensor | None:
        """Return one over the length of each prefix of a tile [n, H], [D, n]; None for dot.

        Args:
            start: row of the first document.
            wide: the tile, widened.
            dims: lengths of the prefixes.
        """
        return inverse_lengths(wide, dims) if self.cosine else None

    def _blocks(self, size: int) -> Iterable[tuple[int, Floats]]:
        """Return views of many rows, each with the row at which it begins."""
        if isinstance(self._vectors, Store):
            # int8 is widened while it is read: a tile at a time.
            rows = size if self._vectors.manifest.dtype == "int8" else BLOCK_ROWS
            return self._vectors.blocks(rows, compare=self._verified)
        starts = range(0, self.documents, BLOCK_ROWS)
        return [(start, self._vectors[start : start + BLOCK_ROWS]) for start in starts]


class PrefixSource(VectorSource):
    """One prefix of a store's vectors, for search after search.

    The vectors stay in their files, which the system maps and caches. A small store is held in
    memory as well, and on a gpu any store that takes no more than half of what is free there. The
    lengths are computed once.
    """

    def __init__(self, store: Store, dim: int, device: str) -> None:
        """Read a store's vectors, cut to `dim`, for the similarity of its model."""
        super().__init__(store, store.manifest.label.similarity, device)
        self._dim = dim
        self._verified = store.bytes <= HASHED_BYTES  # digests of more take longer than a query
        self._viewed = store.manifest.dtype != "int8" and not len(store.tombstones)

    @property
    def largest_tile(self) -> int:
        """Rows of a view; of what a gpu keeps, all that TILE_BYTES hold."""
        if not (self._keeps and on_gpu(self.device)):
            return BLOCK_ROWS
        return rounded_up(min(TILE_BYTES // (4 * self._dim), self.documents))

    def tiles(self, size: int, dim: int) -> Iterator[Tile]:
        """Return all documents as tiles of at most `size` rows."""
        kept, _ = self._prepared
        if kept is None:
            return super().tiles(size, dim)
        starts = range(0, self.documents, size)
        return (Tile(i, min(size, self.documents - i), kept[i : i + size], True) for i in starts)

    def inverse_lengths(
        self,
        start: int,
        wide: Tensor,
        dims: Sequence[int],  # noqa: ARG002
    ) -> Tensor | None:
        """Return what was computed before, [1, n]; None for dot."""
        _, inverse = self._prepared
        return None if inverse is None else inverse[None, start : start + len(wide)]

    def _blocks(self, size: int) -> Iterable[tuple[int, Floats]]:
        return self._views if self._viewed else super()._blocks(size)

    @cached_property
    def _views(self) -> list[tuple[int, Floats]]:
        """Views of the files, kept: to map them anew costs as much as to read them."""
        return list(super()._blocks(BLOCK_ROWS))

    @cached_property
    def _keeps(self) -> bool:
        return 4 * self._dim * self.documents <= kept_bytes(self.device)

    @cached_property
    def _prepared(self) -> tuple[Tensor | None, Tensor | None]:
        """Prefixes [N, dim] as float32, if they are kept, and one over their lengths [N].

        Both are followed by zeros up to the end of any tile.
        """
        if not self._keeps and not self.cosine:
            return None, None
        end = self.documents + self.sizes.of_tile(1, self.largest_tile)
        kept = torch.zeros(end, self._dim, device=self.device) if self._keeps else None
        inverse = torch.zeros(end, device=self.device) if self.cosine else None
        rows = BLOCK_ROWS if on_gpu(self.device) else self.sizes.rows.start
        room = torch.empty(rows, self._dim, device=self.device)
        for tile in super().tiles(rows, self._dim):
            here, vectors = slice(tile.start, tile.start + tile.rows), tile.widened(room)
            if kept is not None:
                kept[here] = vectors[: tile.rows]
            if inverse is not None:
                inverse[here] = inverse_lengths(vectors, (self._dim,))[0, : tile.rows]
        return kept, inverse


def rounded_up(rows: int) -> int:
    """Return the next multiple of RUN."""
    return -(-rows // RUN) * RUN


def inverse_lengths(vectors: Tensor, dims: Sequence[int]) -> Tensor:
    """Return one over the length of each prefix of vectors [n, H], [D, n]; 0 for a length of 0."""
    squares = vectors.new_empty(len(dims), len(vectors))
    for number, (start, stop) in enumerate(pairwise((0, *dims))):
        part = vectors[:, start:stop]
        torch.linalg.vecdot(part, part, out=squares[number])
    for before, here in pairwise(squares):
        here += before  # one by one: on a gpu the running sum of torch is another one each time
    inverse = squares.rsqrt()
    odd = ((squares < _SMALL) | (squares > _LARGE)).nonzero()
    for number in sorted(set(odd[:, 0].tolist())):
        rows = odd[odd[:, 0] == number, 1]
        lengths = torch.linalg.vector_norm(
            vectors[rows, : dims[number]], dim=1, dtype=torch.float64
        )
        # Below `tiny` one over the length would be infinite in float32.
        kept = lengths > torch.finfo(torch.float32).tiny
        inverse[number, rows] = torch.where(kept, 1 / lengths, 0.0).float()
    return inverse
