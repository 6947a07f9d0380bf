"""Where documents' vectors come from: a store, one that is searched again and again, an array."""

# Shapes in this file:
#   N documents, n of a tile.

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from m2dr.index.exact.gathered import RUN
from m2dr.index.exact.sizes import sizes
from m2dr.index.exact.tiles import Lengths, Tile, inverse_lengths, slices, tiles
from m2dr.index.store import HASHED_BYTES, Store
from m2dr.index.vectors import Floats
from m2dr.records.card import Similarity

Rows = NDArray[np.int64]

KEPT_BYTES = 128 * 2**20  # prefixes that take no more, as float32, stay in memory between queries
ROWS = 2**16  # of a view
TILE_BYTES = 2**29  # of a tile of prefixes that a gpu keeps: each tile costs a dozen small calls
_WIDENED = 1024  # rows at a time, of what is kept; on a gpu, as many as a view has


class Source(Protocol):
    """Vectors that can be read more than once."""

    @property
    def documents(self) -> int:
        """How many there are, N."""

    @property
    def most(self) -> int:
        """How many rows of a tile are worth asking for."""

    def tiles(self, size: int, dims: Sequence[int]) -> Iterator[Tile]:
        """All of them as tiles of `size` rows, up to the longest of increasing dims.

        Raises:
            UserError: they are too short.
        """

    def rows(self, ids: Rows) -> Floats:
        """Some of them, [n, at least the longest dim]."""


class ArraySource:
    """Vectors in memory."""

    def __init__(self, vectors: Floats, similarity: Similarity, device: str) -> None:
        """Search vectors [N, H], not normalised."""
        self._vectors, self._device = vectors, device
        self._lengths = _unknown(similarity)

    @property
    def documents(self) -> int:
        """How many there are."""
        return len(self._vectors)

    @property
    def most(self) -> int:
        """Those of a view."""
        return ROWS

    def tiles(self, size: int, dims: Sequence[int]) -> Iterator[Tile]:
        """All of them."""
        starts = range(0, self.documents, ROWS)
        blocks = ((start, self._vectors[start : start + ROWS]) for start in starts)
        return tiles(blocks, size, dims, self._device, self._lengths)

    def rows(self, ids: Rows) -> Floats:
        """Some of them."""
        found: Floats = self._vectors[ids]
        return found


class StoreSource:
    """A store's vectors, straight from its files."""

    def __init__(self, store: Store, similarity: Similarity, device: str) -> None:
        """Search a store."""
        self._store, self._similarity, self._device = store, similarity, device

    @property
    def documents(self) -> int:
        """How many there are."""
        return self._store.documents

    @property
    def most(self) -> int:
        """Those of a view."""
        return ROWS

    def tiles(self, size: int, dims: Sequence[int]) -> Iterator[Tile]:
        """All of them."""
        lengths = _unknown(self._similarity)
        return tiles(self._blocks(size), size, dims, self._device, lengths)

    def rows(self, ids: Rows) -> Floats:
        """Some of them."""
        return self._store.rows(ids)

    def _blocks(self, size: int) -> Iterable[tuple[int, Floats]]:
        """Views of its files; of int8, which is widened while it is read, a tile at a time."""
        rows = size if self._store.manifest.dtype == "int8" else ROWS
        return self._store.blocks(rows, compare=self._compares)

    @property
    def _compares(self) -> bool:
        """Whether files are compared with their digests: a scan for many queries takes longer."""
        return True


class PrefixSource(StoreSource):
    """One prefix of a store's vectors, for search after search.

    The vectors stay in their files, which the system maps and caches; a small store is held in
    memory as well, and on a gpu any store that takes no more than half of what is free there. The
    lengths are computed once.
    """

    def __init__(self, store: Store, dim: int, device: str) -> None:
        """Search a store at a dim, by the similarity of its model."""
        super().__init__(store, store.manifest.label.similarity, device)
        self._dim = dim

    def tiles(self, size: int, dims: Sequence[int]) -> Iterator[Tile]:
        """All of them, at its own dim."""
        if not self._keeps:
            return tiles(self._blocks(size), size, dims, self._device, self._lengths)
        return slices(self._kept, self.documents, size, self._lengths)

    @property
    def most(self) -> int:
        """Those of a view; of what a gpu keeps, all that TILE_BYTES hold."""
        if not (self._keeps and on_gpu(self._device)):
            return ROWS
        rows = min(TILE_BYTES // (4 * self._dim), self.documents)
        return -(-rows // RUN) * RUN

    @cached_property
    def _keeps(self) -> bool:
        return 4 * self._dim * self.documents <= kept_bytes(self._device)

    def rows(self, ids: Rows) -> Floats:
        """Some of them; those that a gpu keeps, from there, not here and there from files."""
        if not (self._keeps and on_gpu(self._device)):
            return super().rows(ids)
        found: Floats = self._kept[torch.from_numpy(ids).to(self._device)].cpu().numpy()
        return found

    def _few_at_a_time(self) -> Iterator[Tile]:
        """All of them, so that little is held beside what is kept."""
        rows = ROWS if on_gpu(self._device) else _WIDENED
        return tiles(self._blocks(rows), rows, (self._dim,), self._device, {})

    def _blocks(self, size: int) -> Iterable[tuple[int, Floats]]:
        return super()._blocks(size) if self._store.manifest.dtype == "int8" else self._views

    @property
    def _compares(self) -> bool:
        """Of one query at a time, those of a small store alone."""
        return self._store.bytes <= HASHED_BYTES

    @cached_property
    def _views(self) -> list[tuple[int, Floats]]:
        """Views of the store's files, kept: to map them anew costs as much as to read them."""
        return list(super()._blocks(ROWS))

    @cached_property
    def _lengths(self) -> Lengths:
        """One over the length of each prefix, for cosine."""
        if self._similarity != "cosine":
            return {}
        every = torch.empty(self.documents, device=self._device)
        for tile in self._few_at_a_time():
            lengths = inverse_lengths(tile.vectors, (self._dim,))[self._dim]
            every[tile.start : tile.start + tile.rows] = lengths[: tile.rows]
        return {self._dim: every}

    @cached_property
    def _kept(self) -> Tensor:
        """The prefixes [N and zero rows up to any tile's end, dim], float32."""
        beyond = sizes(self._device).within(self.most).tile.stop
        every = torch.zeros(self.documents + beyond, self._dim, device=self._device)
        for tile in self._few_at_a_time():
            every[tile.start : tile.start + tile.rows] = tile.vectors[: tile.rows]
        return every


def on_gpu(device: str) -> bool:
    """Whether a device, as torch names it, is a gpu."""
    return device != "cpu"


def kept_bytes(device: str) -> int:
    """Bytes of prefixes, at most, that stay in a device's memory between queries."""
    if not on_gpu(device):
        return KEPT_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    return free // 2


def _unknown(similarity: Similarity) -> Lengths | None:
    """None to compute lengths, for cosine; nothing where nobody divides by them."""
    return None if similarity == "cosine" else {}
