"""Queries compared with every document, at several dims at once; CPU or GPU."""

# Shapes in this file:
#   Q queries, C of them in a chunk, H coordinates, D dims.

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from m2dr.index.exact.best import Best, TorchBest
from m2dr.index.exact.keys import Places
from m2dr.index.exact.tiles import Tile, inverse_lengths
from m2dr.records.card import Similarity


@dataclass(frozen=True)
class Asked:
    """What is to be found for each query.

    Attributes:
        dims: increasing.
        k: how many documents.
        similarity: cosine normalises after cutting.
        places: among documents of equal score.
    """

    dims: tuple[int, ...]
    k: int
    similarity: Similarity
    places: Places

    @property
    def cosine(self) -> bool:
        """Whether scores are divided by lengths."""
        return self.similarity == "cosine"


class Scan(ABC):
    """Queries that are compared with all documents.

    A longer prefix only adds coordinates: its products are those of the shorter one plus those of
    a block of coordinates, and its squared lengths likewise. Scores are divided by the
    lengths of documents, not by those of queries: that is left to the few that are kept.

    Attributes:
        tile: how many rows each tile has.
    """

    def __init__(
        self,
        chunks: Sequence[Tensor],
        asked: Asked,
        tile: int,
        floor: Tensor | None = None,
        kind: type[Best] = TorchBest,
    ) -> None:
        """Begin a scan.

        Args:
            chunks: the queries, [C, H] float32 on the device, not normalised.
            asked: what to find.
            tile: how many rows each tile has.
            floor: [D, Q], scores below which documents are left out, if they are known.
            kind: of what keeps the best.
        """
        self._chunks, self._asked, self.tile = chunks, asked, tile
        floors: Sequence[Tensor | None] = [None] * len(chunks)
        if floor is not None:
            floors = torch.split(floor, [len(chunk) for chunk in chunks], dim=1)
        self._best = [
            kind(asked.k, self._scales(chunk), asked.places, own)
            for chunk, own in zip(chunks, floors, strict=True)
        ]
        self._documents = 0

    def read(self, tiles: Iterable[Tile], progress: Callable[[int], None] | None = None) -> None:
        """Compare all queries with all documents.

        Args:
            tiles: of as many rows as `tile` says; with lengths, for cosine.
            progress: told how many documents were scanned, again and again.

        Raises:
            UserError: a score is not a number.
        """
        with _full_precision():
            for documents in self._read(tiles):
                self._documents += documents
                if progress:
                    progress(documents)
            for best in self._best:
                best.finish()

    @abstractmethod
    def _read(self, tiles: Iterable[Tile]) -> Iterator[int]:
        """Compare all queries with all tiles; how many documents, again and again."""

    def found(self, dim: int) -> tuple[Tensor, Tensor]:
        """Scores and rows, [Q, min(k, documents)], best first."""
        number = self._asked.dims.index(dim)
        parts = [best.found(number, self._documents) for best in self._best]
        scores, rows = zip(*parts, strict=True)
        return torch.cat(scores), torch.cat(rows)

    def short(self) -> Tensor:
        """Numbers of the queries whose floor was too high; what was found for them is not all."""
        return torch.cat([best.short(self._documents) for best in self._best]).nonzero()[:, 0]

    def _scales(self, chunk: Tensor) -> Tensor:
        """By which each dim's scores of a query are multiplied, [D, C]."""
        dims = self._asked.dims
        if self._asked.cosine:
            return torch.stack(list(inverse_lengths(chunk, dims).values()))
        return chunk.new_ones(len(dims), len(chunk))


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
