"""Few queries: their scores with several tiles are kept, and the best picked from all at once."""

# Shapes in this file:
#   Q queries, n documents of a tile, H coordinates, D dims.

from collections.abc import Iterable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

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
        self._products = queries.new_empty(count, self.tile)
        # Of one query, its products coordinate by coordinate.
        alone = count == 1 and queries.device.type == "cpu"
        self._terms = queries.new_empty(self.tile, asked.dims[-1]) if alone else None

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
        queries = self._chunks[0]
        for (start, stop), kept in zip(pairwise((0, *self._asked.dims)), self._scores, strict=True):
            self._add_products(queries[:, start:stop], tile.vectors[:, start:stop], start == 0)
            scores = kept[:, columns]
            if self._asked.cosine:
                torch.mul(self._products, tile.inverse[stop], out=scores)
            else:
                scores.copy_(self._products)
            if tile.rows < self.tile:
                scores[:, tile.rows :] = -torch.inf

    def _add_products(self, queries: Tensor, documents: Tensor, anew: bool) -> None:
        """Add what some coordinates contribute; the first of them begin anew."""
        if self._terms is not None:
            # In a matrix product threads hand rows to one another, which takes more than twice
            # the time where they share no cache. Here each keeps to the rows that it widened.
            terms = torch.mul(documents, queries, out=self._terms[:, : documents.shape[1]])
            if anew:
                torch.sum(terms, dim=1, out=self._products[0])
            else:
                self._products[0] += terms.sum(dim=1)
        elif anew:
            torch.mm(queries, documents.mT, out=self._products)
        else:
            self._products.addmm_(queries, documents.mT)
