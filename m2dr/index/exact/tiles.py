"""Documents' vectors as a processor multiplies them: few rows at a time, widened to float32."""

# Shapes in this file:
#   n documents of a tile, H coordinates.

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from m2dr.errors import UserError
from m2dr.index.vectors import Floats

Lengths = Mapping[int, Tensor]  # per dim, one over the length of each prefix, float32

# Squares below lose digits in float32, and above they overflow: such sums are made in float64.
_SMALL, _LARGE = 1e-24, 1e36


@dataclass(frozen=True)
class Tile:
    """Consecutive documents on the device, followed by zero rows if there are too few.

    All tiles of a scan have one size, a multiple of 128: a matrix product may round the same two
    vectors differently where it treats an edge, and copies of a document must tie.
    """

    start: int
    rows: int  # real ones
    vectors: Tensor  # [n, H] float32, good until the next tile is made
    inverse: Lengths  # per dim [n]; empty when nobody divides by lengths


def tiles(
    blocks: Iterable[tuple[int, Floats]],
    size: int,
    dims: Sequence[int],
    device: str,
    lengths: Lengths | None,
) -> Iterator[Tile]:
    """Cut blocks into tiles, and those to the longest of `dims`.

    Args:
        blocks: the row at which each begins, and its vectors [rows, at least the longest dim].
        size: rows of a tile.
        dims: increasing.
        device: of the tiles.
        lengths: per dim [documents], if they are known; empty when they are not needed; None to
            compute them.

    Raises:
        UserError: the vectors are too short.
    """
    wide = torch.zeros(size, dims[-1], device=device)
    for start, block in blocks:
        _check(block, dims[-1])
        stored = _tensor(block).to(device)  # as stored: f16 crosses to a card in half the time
        for first in range(0, len(stored), size):
            part = stored[first : first + size, : dims[-1]]
            # Copied even when it is float32: where vectors lie in memory may change rounding.
            wide[: len(part)] = part
            if len(part) < size:
                wide[len(part) :] = 0
            here = start + first
            yield Tile(here, len(part), wide, _lengths(wide, dims, lengths, here))


def slices(vectors: Tensor, documents: int, size: int, lengths: Lengths) -> Iterator[Tile]:
    """Tiles of vectors that are on the device as float32.

    Args:
        vectors: [documents and zero rows up to the end of the last tile, dim].
        documents: how many of the rows are real.
        size: rows of a tile.
        lengths: per dim [documents]; empty when they are not needed.
    """
    for start in range(0, documents, size):
        rows = min(size, documents - start)
        wide = vectors[start : start + size]
        yield Tile(start, rows, wide, _lengths(wide, (), lengths, start))


def inverse_lengths(vectors: Tensor, dims: Sequence[int]) -> dict[int, Tensor]:
    """One over the length of each prefix of [n, H] vectors, per dim [n]; 0 for a length of 0."""
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
        part = vectors[rows, : dims[number]]
        lengths = torch.linalg.vector_norm(part, dim=1, dtype=torch.float64)
        # Below `tiny` one over the length would be infinite in float32.
        kept = lengths > torch.finfo(torch.float32).tiny
        inverse[number, rows] = torch.where(kept, 1 / lengths, 0.0).float()
    return dict(zip(dims, inverse, strict=True))


def _lengths(vectors: Tensor, dims: Sequence[int], known: Lengths | None, start: int) -> Lengths:
    if known is None:
        return inverse_lengths(vectors, dims)
    stop = start + len(vectors)
    return {dim: _padded(lengths[start:stop], len(vectors)) for dim, lengths in known.items()}


def _padded(lengths: Tensor, size: int) -> Tensor:
    missing = size - len(lengths)
    return torch.nn.functional.pad(lengths, (0, missing)) if missing else lengths


def _tensor(block: Floats) -> Tensor:
    with warnings.catch_warnings():
        # A store's file is mapped for reading only, and a tile is only read.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(block))


def _check(block: Floats, dim: int) -> None:
    if block.shape[1] < dim:
        raise UserError(
            f"Dim {dim} was asked for, and the documents' vectors have {block.shape[1]} "
            f"coordinates. Choose dims up to {block.shape[1]}."
        )
