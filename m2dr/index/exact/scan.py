"""Every prefix of a layer searched by a full scan, in one pass over its vectors; CPU or GPU."""

# Shapes in this file:
#   Q queries, C of them in a chunk, n documents of a tile, H coordinates, G documents of a group.

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from m2dr.errors import UserError
from m2dr.index.exact.best import Best, Places
from m2dr.index.exact.tiles import Lengths, Tile, inverse_lengths
from m2dr.records.card import Similarity

_GROUP = 16  # documents whose best score is compared first; a power of two
_CROWDED = 8  # where one group of so many has a document that enters, every score is compared


@dataclass(frozen=True)
class Sizes:
    """How much is multiplied at once: scores should stay in a cache, calls be worth their cost."""

    queries: int  # of a chunk, at most
    scores: int  # of a chunk with a tile, about
    tile: range  # of documents: the fewest and the most; multiples of 64
    span: int  # documents, at most, whose scores are kept until the best are picked out

    def of_tile(self, queries: int) -> int:
        """Rows of a tile for a chunk of so many queries."""
        rows = self.scores // max(queries, 1) // 64 * 64
        return min(max(rows, self.tile.start), self.tile.stop)


PROCESSOR = Sizes(queries=1024, scores=2**20, tile=range(1024, 2048), span=2**16)
CARD = Sizes(queries=4096, scores=2**26, tile=range(2**14, 2**16), span=2**16)


def sizes(device: str) -> Sizes:
    """What suits a device, as torch names it."""
    return PROCESSOR if device == "cpu" else CARD


class Scan:
    """Queries that are compared with all documents, at several dims at once.

    A longer prefix only adds coordinates: its products are those of the shorter one plus those of
    a block of coordinates, and its squared lengths likewise.

    Attributes:
        tile: how many rows each tile has.
    """

    def __init__(
        self,
        queries: Tensor,
        dims: Sequence[int],
        k: int,
        similarity: Similarity,
        places: Places,
    ) -> None:
        """Begin a scan.

        Args:
            queries: [Q, H] float32 on the device, not normalised.
            dims: increasing.
            k: how many documents for each.
            similarity: cosine normalises after cutting.
            places: among documents of equal score.
        """
        suited = sizes(queries.device.type)
        count = -(-len(queries) // suited.queries)  # of chunks, as even as can be
        self._chunks = queries.tensor_split(max(count, 1))
        self._dims = tuple(dims)
        self._cosine = similarity == "cosine"
        self._best = [
            {dim: Best(k, scales, places) for dim, scales in self._scales(chunk).items()}
            for chunk in self._chunks
        ]
        self._begun = False
        self._documents = 0
        self.tile = suited.of_tile(len(self._chunks[0]))
        # Few queries pick their best from several tiles at once: each call has its cost.
        columns = min(suited.scores // max(1, len(self._chunks[0])), suited.span)
        self._span = max(1, columns // self.tile) if len(self._chunks) == 1 else 1
        self._held: list[Tile] = []  # of this span; their vectors are gone
        # Scores [C, columns] of a span, per dim; of one tile, they are used up at once.
        shape = (len(self._chunks[0]), self._span * self.tile)
        kept = self._dims if self._span > 1 else self._dims[-1:]
        self._scores = {dim: queries.new_full(shape, -torch.inf) for dim in kept}
        self._scaled = queries.new_empty(self.tile, self._dims[0])  # of one dim and many queries

    def read(self, tiles: Iterable[Tile], progress: Callable[[int], None] | None = None) -> None:
        """Compare all queries with all documents.

        Args:
            tiles: of as many rows as `tile` says; with lengths, for cosine.
            progress: told how many documents were scanned, again and again.

        Raises:
            UserError: a score is not a number.
        """
        with torch.inference_mode(), _full_precision():
            for tile in tiles:
                columns = slice(len(self._held) * self.tile, (len(self._held) + 1) * self.tile)
                self._held.append(tile)
                for chunk, best in zip(self._chunks, self._best, strict=True):
                    self._compare(chunk, best, tile, columns)
                self._documents += tile.rows
                if len(self._held) == self._span:
                    self._finish_span()
                if progress:
                    progress(tile.rows)
            if self._held:
                self._finish_span()

    def _finish_span(self) -> None:
        if self._span > 1:
            for dim, scores in self._scores.items():
                self._collect(self._best[0][dim], scores)
                scores.fill_(-torch.inf)
        self._held.clear()
        self._begun = True

    def found(self, dim: int) -> tuple[Tensor, Tensor]:
        """Scores and rows, [Q, min(k, documents)], best first."""
        with torch.inference_mode():
            parts = [best[dim].found(self._documents) for best in self._best]
            scores, rows = zip(*parts, strict=True)
            return torch.cat(scores), torch.cat(rows)

    def _scales(self, chunk: Tensor) -> Lengths:
        if self._cosine:
            return inverse_lengths(chunk, self._dims)
        return {dim: chunk.new_ones(len(chunk)) for dim in self._dims}

    def _compare(self, queries: Tensor, best: dict[int, Best], tile: Tile, columns: slice) -> None:
        if len(self._dims) == 1 and self._span == 1:
            self._compare_once(queries, best[self._dims[0]], tile)
            return
        products = queries.new_empty(len(queries), len(tile.vectors))
        for start, stop in pairwise((0, *self._dims)):
            left, right = queries[:, start:stop], tile.vectors[:, start:stop].mT
            if start:
                products.addmm_(left, right)
            else:
                torch.mm(left, right, out=products)
            every = self._scores.get(stop, self._scores[self._dims[-1]])[: len(queries)]
            scores = every[:, columns]
            if self._cosine:
                torch.mul(products, tile.inverse[stop], out=scores)
            else:
                scores.copy_(products)
            self._close(scores, tile)
            if self._span == 1:
                self._collect(best[stop], scores)

    def _compare_once(self, queries: Tensor, best: Best, tile: Tile) -> None:
        """One dim of many queries: documents are scaled, which are fewer than the scores."""
        (dim,) = self._dims
        documents = tile.vectors[:, :dim]
        if self._cosine:
            documents = torch.mul(documents, tile.inverse[dim][:, None], out=self._scaled)
        scores = self._scores[dim][: len(queries)]
        torch.mm(queries[:, :dim], documents.mT, out=scores)
        self._close(scores, tile)
        self._collect(best, scores)

    def _close(self, scores: Tensor, tile: Tile) -> None:
        """Rows beyond the last document are found by nobody."""
        if tile.rows < self.tile:
            scores[:, tile.rows :] = -torch.inf

    def _collect(self, best: Best, scores: Tensor) -> None:
        """Add the documents whose scores [C, n] reach the bar."""
        if not self._begun:
            best.start(scores)
        groups = scores.view(len(scores), _GROUP, scores.shape[1] // _GROUP)
        tops = groups.amax(dim=1)  # members of a group are n / G apart
        reached = (tops < best.bar).logical_not_()  # so that what is not a number is told, too
        reached = reached.view(-1).nonzero()[:, 0]
        if not len(reached):
            return
        _refuse_nan(tops.view(-1)[reached])
        crowded = len(reached) * _CROWDED > tops.numel()
        flat = _each(scores, best.bar) if crowded else _members(scores, best.bar, reached)
        query = flat // scores.shape[1]
        columns = flat - query * scores.shape[1]
        rows, real = self._rows(columns)
        if not bool(real.all()):
            flat, query, rows = flat[real], query[real], rows[real]
        counts = torch.bincount(query, minlength=len(scores))
        best.add(counts, scores.view(-1)[flat], rows)

    def _rows(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """The row of each column [m] of a span, and whether there is such a document."""
        if len(self._held) == self._span == 1:
            return columns + self._held[0].start, columns < self._held[0].rows
        absent = self._span - len(self._held)
        starts = columns.new_tensor([*(tile.start for tile in self._held), *[0] * absent])
        counts = columns.new_tensor([*(tile.rows for tile in self._held), *[0] * absent])
        number = columns // self.tile
        within = columns - number * self.tile
        return starts[number] + within, within < counts[number]


def _each(scores: Tensor, bar: Tensor) -> Tensor:
    """Flat positions of the scores [C, n] that reach the bar [C, 1]; increasing."""
    if scores.device.type == "cpu":
        # Five times as fast as torch's.
        return torch.from_numpy(np.flatnonzero(scores.numpy() >= bar.numpy()))
    return (scores >= bar).view(-1).nonzero()[:, 0]


def _members(scores: Tensor, bar: Tensor, reached: Tensor) -> Tensor:
    """The same, looked for in some groups only: flat positions in [C, n / G]."""
    step = scores.shape[1] // _GROUP
    query = reached // step
    first = reached + query * (scores.shape[1] - step)
    flat = first[:, None] + torch.arange(0, scores.shape[1], step, device=scores.device)
    entering = scores.view(-1)[flat] >= bar[query]
    return flat[entering].sort().values


def _refuse_nan(scores: Tensor) -> None:
    if bool(scores.isnan().any()):
        raise UserError(
            "A score is not a number, so documents cannot be ranked by it. Look at the vectors: "
            "a product of two of them is beyond float32."
        )


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
