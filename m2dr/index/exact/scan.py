"""Every prefix of a layer searched by a full scan, in one pass over its vectors; CPU or GPU."""

# Shapes in this file:
#   Q queries, C of them in a chunk, n documents of a tile, H coordinates, D dims.

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from m2dr.index.exact.best import Best, Places
from m2dr.index.exact.gathered import RUN
from m2dr.index.exact.tiles import Tile, inverse_lengths
from m2dr.records.card import Similarity

# Up to so many coordinates are multiplied anew for a longer prefix, which costs less than to take
# their products over.
_SCRATCH = 16


@dataclass(frozen=True)
class Sizes:
    """How much is multiplied at once: scores should stay in a cache, calls be worth their cost."""

    queries: int  # of a chunk, at most
    scores: int  # of a chunk with a tile, about
    tile: range  # of documents: the fewest and the most; multiples of RUN
    span: int  # documents, at most, whose scores are kept until the best are picked out

    def of_tile(self, queries: int) -> int:
        """Rows of a tile for a chunk of so many queries."""
        rows = self.scores // max(queries, 1) // RUN * RUN
        return min(max(rows, self.tile.start), self.tile.stop)


PROCESSOR = Sizes(queries=1024, scores=2**20, tile=range(1024, 4096), span=2**16)
CARD = Sizes(queries=4096, scores=2**26, tile=range(2**14, 2**16), span=2**16)


def sizes(device: str) -> Sizes:
    """What suits a device, as torch names it."""
    return PROCESSOR if device == "cpu" else CARD


class Scan:
    """Queries that are compared with all documents, at several dims at once.

    A longer prefix only adds coordinates: its products are those of the shorter one plus those of
    a block of coordinates, and its squared lengths likewise. Scores are divided by the
    lengths of documents, not by those of queries: that is left to the few that are kept.

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
        self._best = [Best(k, self._scales(chunk), places) for chunk in self._chunks]
        self._documents = 0
        widest = len(self._chunks[0])
        self.tile = suited.of_tile(widest)
        # Few queries pick their best from several tiles at once: each call has its cost.
        columns = min(suited.scores // max(1, widest), suited.span)
        self._span = max(1, columns // self.tile) if len(self._chunks) == 1 else 1
        self._held: list[range] = []  # rows of the tiles of this span; their vectors are gone
        # Scores [C, columns] of a span, per dim; of one tile, they are used up at once.
        shape = (widest, self._span * self.tile)
        kept = len(self._dims) if self._span > 1 else 1
        self._scores = [queries.new_full(shape, -torch.inf) for _ in range(kept)]
        few = self._span > 1
        self._products = queries.new_empty(widest if few else 0, self.tile)
        # Of one query, its products coordinate by coordinate.
        alone = widest == 1 and queries.device.type == "cpu"
        self._terms = queries.new_empty(self.tile, self._dims[-1]) if alone else None
        # Of many queries, each dim's documents scaled; they are the same for all chunks.
        self._scaled = [queries.new_empty(0 if few else self.tile, dim) for dim in self._dims]

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
                self._held.append(range(tile.start, tile.start + tile.rows))
                if self._span > 1:
                    self._score_few(self._chunks[0], tile, columns)
                else:
                    self._compare(tile)
                self._documents += tile.rows
                if len(self._held) == self._span:
                    self._finish_span()
                if progress:
                    progress(tile.rows)
            if self._held:
                self._finish_span()

    def _finish_span(self) -> None:
        if self._span > 1:
            absent = [range(0)] * (self._span - len(self._held))
            for number, scores in enumerate(self._scores):
                self._best[0].compare(number, scores, [*self._held, *absent])
                scores.fill_(-torch.inf)
        self._held.clear()

    def found(self, dim: int) -> tuple[Tensor, Tensor]:
        """Scores and rows, [Q, min(k, documents)], best first."""
        number = self._dims.index(dim)
        with torch.inference_mode():
            parts = [best.found(number, self._documents) for best in self._best]
            scores, rows = zip(*parts, strict=True)
            return torch.cat(scores), torch.cat(rows)

    def _scales(self, chunk: Tensor) -> Tensor:
        """By which each dim's scores of a query are multiplied, [D, C]."""
        if self._cosine:
            return torch.stack(list(inverse_lengths(chunk, self._dims).values()))
        return chunk.new_ones(len(self._dims), len(chunk))

    def _compare(self, tile: Tile) -> None:
        steps = self._steps(tile)
        for chunk, best in zip(self._chunks, self._best, strict=True):
            for number, scores in enumerate(self._scored(chunk, steps, tile.rows)):
                best.compare(number, scores, self._held)

    def _score_few(self, queries: Tensor, tile: Tile, columns: slice) -> None:
        """Keep the scores of each dim; they are fewer than the coordinates, so they are scaled."""
        for (start, stop), kept in zip(pairwise((0, *self._dims)), self._scores, strict=True):
            self._add_products(queries[:, start:stop], tile.vectors[:, start:stop], start == 0)
            scores = kept[:, columns]
            if self._cosine:
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

    def _steps(self, tile: Tile) -> list["_Step"]:
        """What every chunk is multiplied by, one dim after the other; good until the next tile."""
        steps = []
        for number, (before, dim) in enumerate(pairwise((0, *self._dims))):
            begin = before if before > _SCRATCH else 0
            documents, quotients = tile.vectors[:, begin:dim], None
            if self._cosine:
                scaled = self._scaled[number][:, : dim - begin]
                documents = torch.mul(documents, tile.inverse[dim][:, None], out=scaled)
                if begin:
                    quotients = _quotients(tile.inverse[dim], tile.inverse[before])
            steps.append(_Step(slice(begin, dim), documents, quotients))
        return steps

    def _scored(self, queries: Tensor, steps: Iterable["_Step"], rows: int) -> Iterator[Tensor]:
        """Scores [C, n] of each dim in turn; good until the next."""
        scores = self._scores[0][: len(queries)]
        for step in steps:
            left, right = queries[:, step.part], step.documents.mT
            if not step.part.start:
                torch.mm(left, right, out=scores)
            else:
                if step.quotients is not None:
                    scores *= step.quotients
                scores.addmm_(left, right)
            scores[:, rows:] = -torch.inf  # beyond the last document
            yield scores


@dataclass(frozen=True)
class _Step:
    """From the scores of a prefix to those of the next."""

    part: slice  # the coordinates that are multiplied; the scores begin anew where it begins at 0
    documents: Tensor  # [n, of the part], scaled under cosine
    quotients: Tensor | None  # [n], by which the scores so far are multiplied before


def _quotients(above: Tensor, below: Tensor) -> Tensor:
    """Quotients [n]; 1 for a divisor of 0, as which no score is divided but 0."""
    return torch.where(below > 0, above / below, 1)


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
