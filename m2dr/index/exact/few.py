"""Few queries: their scores with several tiles are kept, and the best picked from all at once."""

# Shapes in this file:
#   Q queries, n documents of a tile, H coordinates, D dims.

from collections.abc import Iterable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from m2dr.index.exact.gathered import RUN
from m2dr.index.exact.scan import Asked, Scan
from m2dr.index.exact.sizes import Sizes
from m2dr.index.exact.tiles import Tile


class ScanForFew(Scan):
    """Each call of torch is divided among its threads, by documents."""

    def __init__(
        self, queries: Tensor, asked: Asked, sizes: Sizes, floor: Tensor | None = None
    ) -> None:
        """Begin a scan of queries [Q, H]; `floor` is as `Scan` takes it."""
        super().__init__([queries], asked, sizes.of_tile(len(queries)), floor)
        count = len(queries)
        columns = min(sizes.scores // max(1, count), sizes.span)
        self._span = max(1, columns // self.tile)
        self._held: list[range] = []  # rows of the tiles of this span; their vectors are gone
        # Scores [Q, columns] of a span, per dim.
        shape = (count, self._span * self.tile)
        self._scores = [queries.new_full(shape, -torch.inf) for _ in asked.dims]
        # [n / RUN, Q, RUN]. In one matrix product threads divide documents anywhere, which may
        # round copies differently, and hand each other rows, which is slow without a common cache.
        self._products = queries.new_empty(self.tile // RUN, count, RUN)

    def _read(self, tiles: Iterable[Tile]) -> Iterator[int]:
        for tile in tiles:
            columns = slice(len(self._held) * self.tile, (len(self._held) + 1) * self.tile)
            self._held.append(range(tile.start, tile.start + tile.rows))
            self._score(tile, columns)
            if len(self._held) == self._span:
                self._finish_span()
            yield tile.rows
        if self._held:
            self._finish_span()

    def _finish_span(self) -> None:
        absent = [range(0)] * (self._span - len(self._held))
        for number, scores in enumerate(self._scores):
            self._best[0].compare(number, scores, [*self._held, *absent])
            scores.fill_(-torch.inf)
        self._held.clear()

    def _score(self, tile: Tile, columns: slice) -> None:
        """Keep the scores of each dim; they are fewer than the coordinates, so they are scaled."""
        parts = tile.vectors.view(-1, RUN, tile.vectors.shape[1])
        queries = self._chunks[0].expand(len(parts), *self._chunks[0].shape)
        for (start, stop), every in zip(
            pairwise((0, *self._asked.dims)), self._scores, strict=True
        ):
            left, right = queries[..., start:stop], parts[..., start:stop].mT
            if start:
                self._products.baddbmm_(left, right)
            else:
                torch.bmm(left, right, out=self._products)
            kept = every[:, columns]
            scores, products = kept.view(len(kept), len(parts), RUN), self._products.transpose(0, 1)
            if self._asked.cosine:
                torch.mul(products, tile.inverse[stop].view(-1, RUN), out=scores)
            else:
                scores.copy_(products)
            if tile.rows < self.tile:
                kept[:, tile.rows :] = -torch.inf
