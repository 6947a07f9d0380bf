"""The best documents so far of each query, as keys that sort by the rule for ties."""

# Shapes in this file:
#   C queries, D dims, N documents, m candidates: a query, a dim and a document each.

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from m2dr.index.exact.gathered import RUN, Gathered, where

_SPARE = 16  # slots beyond k, at least: the more, the rarer and the costlier a tidying
_LOW = 0xFFFFFFFF  # the half of a key that holds the place among ties
_NOTHING = torch.iinfo(torch.int64).min  # below every key
# Of a bar against the score it stands for: more than float32 rounds a product and a quotient by.
_ROUNDING = 1e-6
_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Places:
    """Where a row stands among documents of equal score: the higher place comes first."""

    of_row: Tensor | None  # [N] int64; the lower row comes first when None
    row_of: Tensor | None  # [N] int64

    @classmethod
    def of(cls, places: NDArray[np.int64] | None, device: str) -> "Places":
        """Places [N] on the device of the scan."""
        if places is None:
            return cls(None, None)
        of_row = torch.from_numpy(np.array(places, np.int64)).to(device)
        row_of = torch.empty_like(of_row)
        row_of[of_row] = torch.arange(len(of_row), device=device)
        return cls(of_row, row_of)

    def place(self, rows: Tensor) -> Tensor:
        """Places of rows, [m]."""
        return _LOW - rows if self.of_row is None else self.of_row[rows]

    def row(self, places: Tensor) -> Tensor:
        """Rows of places, any shape."""
        return _LOW - places if self.row_of is None else self.row_of[places]


class Best:
    """The best k documents so far of C queries at each of D dims.

    Each is one int64: its score in the upper half, so that keys sort as scores do, and its place
    among ties in the lower. The best k keys are then the right k documents, however many of them
    share a score. Keys gather in spare slots and are tidied down to k when those are used up.

    A query at a dim has one number: the dim's, times C, plus the query's.

    Attributes:
        bar: [D, C]. A document may be among the best k only when its unscaled score reaches it.
    """

    def __init__(self, k: int, scales: Tensor, places: Places) -> None:
        """Begin with nothing found.

        Args:
            k: how many documents for each query and dim.
            scales: [D, C], by which unscaled scores are multiplied; none is negative.
            places: among documents of equal score.
        """
        self._k, self._places = k, places
        self._scales = scales.reshape(-1)
        self._slots = k + max(k, _SPARE)
        self._keys = torch.full(
            (scales.numel(), self._slots), _NOTHING, dtype=torch.int64, device=scales.device
        )
        self._used = torch.zeros_like(self._scales, dtype=torch.int64)  # slots of each number
        self._gathered = Gathered(*scales.shape)
        self._begun: set[int] = set()  # dims
        self.bar = torch.full_like(scales, -torch.inf)

    def compare(self, dim: int, scores: Tensor, rows: Sequence[range]) -> None:
        """Consider documents that were not compared before.

        Args:
            dim: its number.
            scores: [C, n], unscaled; as many columns for each tile, and as many in every call.
            rows: of each tile's documents, which may be fewer than its columns.

        Raises:
            UserError: a score is not a number.
        """
        if dim not in self._begun:
            self._begin(dim, scores)
        self._gathered.add(dim, scores, rows, self.bar[dim])
        if self._gathered.enough():
            self._settle()

    def _begin(self, dim: int, scores: Tensor) -> None:
        """Set the bar of a dim where k of its first scores reach it."""
        self._begun.add(dim)
        if scores.shape[1] >= self._k:
            kth = scores.topk(self._k, dim=1, sorted=False).values.amin(dim=1)
            count = len(scores)
            numbers = slice(dim * count, (dim + 1) * count)
            self._raise(numbers, kth * self._scales[numbers])

    def _settle(self) -> None:
        """Add the scores that reach the bar, of all runs that wait."""
        runs = self._gathered.taken()
        if runs is None:
            return
        entering = where((runs.scores >= self.bar.view(-1)[runs.numbers, None]).view(-1))
        run = entering // RUN
        before = torch.arange(0, runs.scores.numel(), RUN, device=run.device)
        rows = (runs.first - before)[run] + entering
        if not runs.whole:
            real = where(rows < runs.end[run])
            entering, run, rows = entering[real], run[real], rows[real]
        numbers = runs.numbers[run]
        if not runs.ordered:
            numbers, order = numbers.sort(stable=True)
            entering, rows = entering[order], rows[order]
        if len(numbers):
            self._add(numbers, runs.scores.view(-1)[entering], rows)

    def _add(self, numbers: Tensor, scores: Tensor, rows: Tensor) -> None:
        """Give keys [m] their slots, ordered by number."""
        keys = _keys(scores * self._scales[numbers], self._places.place(rows))
        counts = torch.bincount(numbers, minlength=len(self._keys))
        spare = self._slots - self._k
        most = int(counts.max())
        if most <= spare:
            self._put(numbers, keys, counts)
            return
        # More than there are slots for, of many equal scores: slot by slot.
        turn = torch.arange(len(keys), device=keys.device) - (counts.cumsum(0) - counts)[numbers]
        for first in range(0, most, spare):
            now = (first <= turn) & (turn < first + spare)
            self._put(numbers[now], keys[now], (counts - first).clamp(0, spare))

    def _put(self, numbers: Tensor, keys: Tensor, counts: Tensor) -> None:
        """Add at most as many keys per number as there are spare slots."""
        crowded = where(self._used + counts > self._slots)
        if len(crowded):
            self._tidy(crowded)
        # The keys of one number lie together and go to consecutive slots.
        begin = torch.arange(0, self._keys.numel(), self._slots, device=keys.device)
        shift = begin + self._used - (counts.cumsum(0) - counts)
        self._keys.view(-1)[shift[numbers] + torch.arange(len(keys), device=keys.device)] = keys
        self._used += counts

    def _tidy(self, crowded: Tensor) -> None:
        """Keep the best k of some, all of which have more."""
        kept = _largest(self._keys[crowded], self._k)
        self._keys[crowded, : self._k] = kept
        self._keys[crowded, self._k :] = _NOTHING
        self._used[crowded] = self._k
        self._raise(crowded, _scores(kept.amin(dim=1)))

    def _raise(self, numbers: Tensor | slice, floor: Tensor) -> None:
        """Let in only what, scaled, may reach the floor, which k documents do."""
        scales = self._scales[numbers]
        bar = floor / scales
        lower = bar - (bar.abs() * _ROUNDING + _TINY / scales)
        lower = torch.where(bar.isinf(), bar, lower)
        # A scale of zero, whose scores are all equal, lets everything in.
        self.bar.view(-1)[numbers] = torch.where(scales > 0, lower, -torch.inf)

    def found(self, dim: int, documents: int) -> tuple[Tensor, Tensor]:
        """Scores and rows of the best at a dim, [C, min(k, documents)], best first.

        Args:
            dim: which of them, from 0.
            documents: how many were compared; those below the bar, too.

        Raises:
            UserError: a score is not a number.
        """
        self._settle()
        count = self.bar.shape[1]
        own = self._keys[dim * count : (dim + 1) * count]
        keys = _largest(own, min(self._k, documents)).sort(dim=1, descending=True).values
        return _scores(keys), self._places.row(keys & _LOW)


def _largest(keys: Tensor, k: int) -> Tensor:
    """The largest k of each row, [C, k], in any order."""
    if keys.device.type == "cpu":
        # Ten times as fast as torch's.
        return torch.from_numpy(np.partition(keys.numpy(), -k, axis=1)[:, keys.shape[1] - k :])
    return keys.topk(k, dim=1, sorted=False).values


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
