"""The best documents so far of each query, as keys that sort by the rule for ties."""

# Shapes in this file:
#   C queries, N documents, m candidates: pairs of a query and a document.

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_SPARE = 128  # slots beyond k, at least: the more, the rarer and the costlier a tidying
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
    """The best k documents so far of C queries.

    Each is one int64: its score in the upper half, so that keys sort as scores do, and its place
    among ties in the lower. The best k keys are then the right k documents, however many of them
    share a score. Keys gather in spare slots and are tidied down to k when those are used up.

    Attributes:
        bar: [C, 1]. A document may be among the best k only when its unscaled score reaches it.
    """

    def __init__(self, k: int, scales: Tensor, places: Places) -> None:
        """Begin with nothing found.

        Args:
            k: how many documents for each query.
            scales: [C], by which a query's unscaled scores are multiplied; none is negative.
            places: among documents of equal score.
        """
        self._k, self._scales, self._places = k, scales, places
        slots = k + max(k, _SPARE)
        self._keys = scales.new_full((len(scales), slots), _NOTHING, dtype=torch.int64)
        self._used = torch.zeros_like(scales, dtype=torch.int64)  # [C] slots
        self.bar = scales.new_full((len(scales), 1), -torch.inf)

    def start(self, scores: Tensor) -> None:
        """Set the bar where k of the unscaled scores [C, n] reach it; `add` them afterwards."""
        if scores.shape[1] >= self._k:
            kth = scores.topk(self._k, dim=1, sorted=False).values.amin(dim=1)
            self._raise(slice(None), kth * self._scales)

    def add(self, counts: Tensor, scores: Tensor, rows: Tensor) -> None:
        """Take candidates in, ordered by query.

        Args:
            counts: [C], how many of the candidates are a query's.
            scores: [m], unscaled.
            rows: [m]; no row twice for one query, in all that is ever added.
        """
        keys = _keys(scores * self._scales.repeat_interleave(counts), self._places.place(rows))
        spare = self._keys.shape[1] - self._k
        most = int(counts.max())
        if most <= spare:
            self._put(keys, counts)
            return
        # More than there are slots for, of many equal scores: slot by slot.
        before = counts.cumsum(0) - counts
        slot = torch.arange(len(keys), device=keys.device) - before.repeat_interleave(counts)
        for first in range(0, most, spare):
            now = (first <= slot) & (slot < first + spare)
            self._put(keys[now], (counts - first).clamp(0, spare))

    def _put(self, keys: Tensor, counts: Tensor) -> None:
        """Add at most as many keys per query as there are spare slots."""
        queries, slots = self._keys.shape
        crowded = (self._used + counts > slots).nonzero()[:, 0]
        if len(crowded):
            self._tidy(crowded)
        # A query's keys lie together and go to consecutive slots.
        begin = torch.arange(0, queries * slots, slots, device=keys.device)
        shift = begin + self._used - (counts.cumsum(0) - counts)
        target = torch.arange(len(keys), device=keys.device) + shift.repeat_interleave(counts)
        self._keys.view(-1).scatter_(0, target, keys)
        self._used += counts

    def _tidy(self, crowded: Tensor) -> None:
        """Keep the best k of some queries, all of which have more."""
        kept = _largest(self._keys[crowded], self._k)
        self._keys[crowded, : self._k] = kept
        self._keys[crowded, self._k :] = _NOTHING
        self._used[crowded] = self._k
        self._raise(crowded, _scores(kept.amin(dim=1)))

    def _raise(self, queries: Tensor | slice, floor: Tensor) -> None:
        """Let in only what, scaled, may reach the floor, which k documents of a query do."""
        scales = self._scales[queries]
        bar = floor / scales
        lower = bar - (bar.abs() * _ROUNDING + _TINY / scales)
        lower = torch.where(bar.isinf(), bar, lower)
        # A scale of zero, whose scores are all equal, lets everything in.
        self.bar[queries, 0] = torch.where(scales > 0, lower, -torch.inf)

    def found(self, documents: int) -> tuple[Tensor, Tensor]:
        """Scores and rows of the best, [C, min(k, documents)], best first.

        Args:
            documents: how many were compared; those below the bar, too.
        """
        keys = _largest(self._keys, min(self._k, documents))
        keys = keys.sort(dim=1, descending=True).values
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
