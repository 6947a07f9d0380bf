"""Rows of a store that a filter leaves out, and what numbers the others have."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Shapes in this file: N rows in the files, D of them left out, n any number.

Longs = NDArray[np.int64]


@dataclass(frozen=True)
class Tombstones:
    """Rows that a filter leaves out.

    >>> gone = Tombstones(np.array([1, 4]))
    >>> gone.stored([0, 1, 2, 3]).tolist(), gone.left([0, 2, 3, 5, -1]).tolist()
    ([0, 2, 3, 5], [0, 1, 2, 3, -1])

    Attributes:
        rows: [D] of the files, increasing.
    """

    rows: Longs = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.rows)

    def stored(self, rows: ArrayLike) -> Longs:
        """Return the rows of the files [n] of rows among what is left [n]."""
        wanted = np.asarray(rows, np.int64)
        return wanted + np.searchsorted(self._before, wanted, side="right")

    def left(self, rows: ArrayLike) -> Longs:
        """Return the rows among what is left of rows of the files, any shape; -1 stays -1."""
        found = np.asarray(rows, np.int64)
        return found - np.searchsorted(self.rows, found)

    def kept(self, start: int, stop: int) -> Longs | None:
        """Return which rows from `start` to below `stop` are left, from 0; None for all."""
        first, last = np.searchsorted(self.rows, (start, stop))
        if first == last:
            return None
        return np.delete(np.arange(stop - start), self.rows[first:last] - start)

    def bitmap(self, rows: int) -> NDArray[np.uint8]:
        """Return a bit per row of the files, lowest first; 1 for those that are left."""
        bits = np.ones(rows, np.uint8)
        bits[self.rows] = 0
        return np.packbits(bits, bitorder="little")

    @cached_property
    def _before(self) -> Longs:
        """Rows that are left in front of each deleted one, [D]."""
        return self.rows - np.arange(len(self.rows))
