"""The best documents so far of each query, at each dim."""

# Shapes in this file:
#   C queries, D dims, N documents, m candidates: a query, a dim and a document each.

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from m2dr.index.exact.gathered import Gathered, where
from m2dr.index.exact.keys import LOW, NOTHING, Places, keys_of, largest, scores_of

_OPENING = 4  # times k: so many first scores are kept, as much memory as the keys take
_SPARE = 16  # slots beyond k, at least: the more, the rarer and the costlier a tidying
# Of a bar against the score it stands for: more than float32 rounds a product and a quotient by.
ROUNDING = 1e-6
TINY = torch.finfo(torch.float32).tiny


class Best(ABC):
    """The best k documents so far of C queries at each of D dims.

    Their keys gather in spare slots, and are tidied down to k when those are used up.

    A query at a dim has one number: the dim's, times C, plus the query's.

    Attributes:
        bar: [D, C]. A document may be among the best k only when its unscaled score reaches it.
    """

    def __init__(self, k: int, scales: Tensor, places: Places, floor: Tensor | None = None) -> None:
        """Begin with nothing found.

        Args:
            k: how many documents for each query and dim.
            scales: [D, C], by which unscaled scores are multiplied; none is negative.
            places: among documents of equal score.
            floor: [D, C], scores below which documents are left out, if that is known.
        """
        self._k, self._places = k, places
        self._scales = scales.reshape(-1)
        self._slots = k + max(k, _SPARE)
        self._keys = torch.full(
            (scales.numel(), self._slots), NOTHING, dtype=torch.int64, device=scales.device
        )
        self._used = torch.zeros_like(self._scales, dtype=torch.int64)  # slots of each number
        self.bar = torch.full_like(scales, -torch.inf)
        if floor is not None:
            self._raise(slice(None), floor.reshape(-1))

    @abstractmethod
    def compare(self, dim: int, scores: Tensor, rows: Sequence[range]) -> None:
        """Consider documents that were not compared before.

        Args:
            dim: its number.
            scores: [C, n], unscaled; as many columns for each tile, and as many in every call.
            rows: of each tile's documents, which may be fewer than its columns.

        Raises:
            UserError: a score is not a number.
        """

    @abstractmethod
    def finish(self) -> None:
        """Consider what was kept for later.

        Raises:
            UserError: a score is not a number.
        """

    def _raise(self, numbers: Tensor | slice, floor: Tensor) -> None:
        """Let in only what, scaled, may reach the floor, which k documents do."""
        scales = self._scales[numbers]
        bar = floor / scales
        lower = bar - (bar.abs() * ROUNDING + TINY / scales)
        lower = torch.where(bar.isinf(), bar, lower)
        # A scale of zero, whose scores are all equal, lets everything in.
        self.bar.view(-1)[numbers] = torch.where(scales > 0, lower, -torch.inf)

    def short(self, documents: int) -> Tensor:
        """Of which queries too few documents reached the floor at some dim, [C] bool."""
        return (self._used.view_as(self.bar) < min(self._k, documents)).any(dim=0)

    def found(self, dim: int, documents: int) -> tuple[Tensor, Tensor]:
        """Scores and rows of the best at a dim, [C, min(k, documents)], best first.

        Args:
            dim: which of them, from 0.
            documents: how many were compared; those below the bar, too.
        """
        count = self.bar.shape[1]
        own = self._keys[dim * count : (dim + 1) * count]
        keys = largest(own, min(self._k, documents)).sort(dim=1, descending=True).values
        return scores_of(keys), self._places.row(keys & LOW)


class TorchBest(Best):
    """On any device.

    The first 4 k scores are kept until the k-th best of them is known: of these only k get keys.
    """

    def __init__(self, k: int, scales: Tensor, places: Places, floor: Tensor | None = None) -> None:
        """Begin with nothing found; arguments are as `Best` takes them."""
        super().__init__(k, scales, places, floor)
        dims, queries = scales.shape
        self._gathered = Gathered(dims, queries, k, sifted=floor is not None)
        # Of each dim that has no bar yet: its scores and their rows.
        self._opening: dict[int, list[tuple[Tensor, Sequence[range]]]]
        self._opening = {} if floor is not None else {dim: [] for dim in range(dims)}

    def compare(self, dim: int, scores: Tensor, rows: Sequence[range]) -> None:
        """As `Best` says."""
        if dim in self._opening:
            self._open(dim, scores, rows)
        else:
            self._gathered.add(dim, scores, rows, self.bar[dim])
        if self._gathered.enough():
            self._settle()

    def _open(self, dim: int, scores: Tensor, rows: Sequence[range]) -> None:
        """Keep the first scores of a dim until there are enough to set its bar."""
        held = self._opening[dim]
        last = (len(held) + 1) * scores.shape[1] >= _OPENING * self._k
        held.append((scores if last else scores.clone(), tuple(rows)))
        if last:
            self._set_bar(dim)

    def _set_bar(self, dim: int) -> None:
        """Let in what k of the first scores of a dim reach, if there are so many."""
        held = self._opening.pop(dim)
        if not held:
            return
        scores = torch.cat([some for some, _ in held], dim=1) if held[1:] else held[0][0]
        if scores.shape[1] >= self._k:
            numbers = slice(dim * len(scores), (dim + 1) * len(scores))
            self._raise(numbers, _kth(scores, self._k) * self._scales[numbers])
        for some, rows in held:
            self._gathered.add(dim, some, rows, self.bar[dim])

    def _settle(self) -> None:
        """Add the scores that reach the bar, of all runs that wait."""
        entering = self._gathered.taken(self.bar.view(-1))
        if entering is not None and len(entering.numbers):
            self._add(entering.numbers, entering.scores, entering.rows)

    def _add(self, numbers: Tensor, scores: Tensor, rows: Tensor) -> None:
        """Give keys [m] their slots, ordered by number."""
        keys = keys_of(scores * self._scales.index_select(0, numbers), self._places.place(rows))
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
        slots = shift.index_select(0, numbers) + torch.arange(len(keys), device=keys.device)
        self._keys.view(-1)[slots] = keys
        self._used += counts

    def _tidy(self, crowded: Tensor) -> None:
        """Keep the best k of some, all of which have more."""
        kept = largest(self._keys[crowded], self._k)
        self._keys[crowded, : self._k] = kept
        self._keys[crowded, self._k :] = NOTHING
        self._used[crowded] = self._k
        self._raise(crowded, scores_of(kept.amin(dim=1)))

    def finish(self) -> None:
        """As `Best` says."""
        for opening in tuple(self._opening):
            self._set_bar(opening)
        self._settle()


def _kth(scores: Tensor, k: int) -> Tensor:
    """The k-th best of each row of [C, n], [C]."""
    if scores.device.type == "cpu":
        return torch.from_numpy(np.partition(scores.numpy(), -k, axis=1)[:, -k].copy())
    return scores.topk(k, dim=1, sorted=False).values.amin(dim=1)
