"""Many queries, divided among threads: each compares its own with all documents."""

# Shapes in this file:
#   Q queries, C of them in a chunk, n documents of a tile, H coordinates, D dims.

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from m2dr.index.exact.best import Best
from m2dr.index.exact.scan import Asked, Scan
from m2dr.index.exact.sharing import SLOTS, shared
from m2dr.index.exact.sizes import Sizes
from m2dr.index.exact.tiles import Tile

# Up to so many coordinates are multiplied anew for a longer prefix, which costs less than to take
# their products over.
_SCRATCH = 16


class ScanForMany(Scan):
    """Documents are scaled once for all queries, of which each thread has its chunks."""

    def __init__(
        self,
        queries: Tensor,
        asked: Asked,
        sizes: Sizes,
        threads: int,
        floor: Tensor | None,
        kind: type[Best],
    ) -> None:
        """Begin a scan of queries [Q, H]; `floor` and `kind` are as `Scan` takes them."""
        count = -(-len(queries) // sizes.queries)
        # As even as can be, and as many for each thread.
        chunks = queries.tensor_split(max(-(-count // threads) * threads, 1))
        super().__init__(chunks, asked, sizes.of_tile(len(chunks[0])), floor, kind)
        self._threads = threads
        self._ready = [self._room(queries) for _ in range(SLOTS if threads > 1 else 1)]
        self._scores = queries.new_empty(threads, len(chunks[0]), self.tile)

    def _room(self, like: Tensor) -> "_Ready":
        """For a tile."""
        dims, cosine = self._asked.dims, self._asked.cosine
        return _Ready([_Step.new(like, self.tile, *step, cosine) for step in pairwise((0, *dims))])

    def _read(self, tiles: Iterable[Tile]) -> Iterator[int]:
        for tile in shared(tiles, self._fill, self._compare, self._threads):
            yield tile.rows

    def _fill(self, slot: int, tile: Tile) -> None:
        """Make ready what every chunk is multiplied by."""
        ready = self._ready[slot]
        ready.rows = range(tile.start, tile.start + tile.rows)
        for (before, dim), step in zip(pairwise((0, *self._asked.dims)), ready.steps, strict=True):
            coordinates = tile.vectors[:, step.part]
            if not self._asked.cosine:
                step.documents.copy_(coordinates)
                continue
            torch.mul(coordinates, tile.inverse[dim][:, None], out=step.documents)
            if step.quotients is not None:
                step.quotients.copy_(_quotients(tile.inverse[dim], tile.inverse[before]))

    def _compare(self, slot: int, thread: int) -> None:
        """Compare a thread's chunks with a tile."""
        ready = self._ready[slot]
        for number in range(thread, len(self._chunks), self._threads):
            queries, best = self._chunks[number], self._best[number]
            scores = self._scores[thread][: len(queries)]
            for dim, step in enumerate(ready.steps):
                step.multiply(queries, scores)
                scores[:, len(ready.rows) :] = -torch.inf  # beyond the last document
                best.compare(dim, scores, [ready.rows])


@dataclass
class _Ready:
    """A tile, as every chunk is multiplied by it."""

    steps: list["_Step"]
    rows: range = range(0)


@dataclass(frozen=True)
class _Step:
    """From the scores of a prefix to those of the next."""

    part: slice  # the coordinates that are multiplied; the scores begin anew where it begins at 0
    documents: Tensor  # [n, of the part], scaled under cosine
    quotients: Tensor | None  # [n], by which the scores so far are multiplied before

    @classmethod
    def new(cls, like: Tensor, tile: int, before: int, dim: int, cosine: bool) -> "_Step":
        """Room for a step from one dim to another."""
        begin = before if before > _SCRATCH else 0
        quotients = like.new_empty(tile) if begin and cosine else None
        return cls(slice(begin, dim), like.new_empty(tile, dim - begin), quotients)

    def multiply(self, queries: Tensor, scores: Tensor) -> None:
        """Turn the scores [C, n] of the dim before into those of this one."""
        left, right = queries[:, self.part], self.documents.mT
        if not self.part.start:
            torch.mm(left, right, out=scores)
            return
        if self.quotients is not None:
            scores *= self.quotients
        scores.addmm_(left, right)


def _quotients(above: Tensor, below: Tensor) -> Tensor:
    """Quotients [n]; 1 for a divisor of 0, as which no score is divided but 0."""
    return torch.where(below > 0, above / below, 1)
