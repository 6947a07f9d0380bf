"""Token ids of many texts as one array."""

# Shapes in this file: B texts of a batch, T tokens of its longest.

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from m2dr.text.tokens import Ints


@dataclass(frozen=True)
class Ragged:
    """Rows of any length, 4 bytes per token where lists of ints take up to 36.

    >>> rows = Ragged.of([[7, 8, 9], [5]])
    >>> ids, mask = rows.pad([1, 0], pad_id=0)
    >>> ids.tolist(), mask.tolist()
    ([[5, 0, 0], [7, 8, 9]], [[1, 0, 0], [1, 1, 1]])

    Attributes:
        tokens: [tokens] of all rows, one after the other.
        lengths: [rows].
    """

    tokens: NDArray[np.int32]
    lengths: Ints

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> "Ragged":
        """The same rows."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        tokens = np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum()))
        return cls(tokens, lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def some(self, rows: Sequence[int] | Ints) -> "Ragged":
        """Return some of the rows.

        >>> Ragged.of([[7, 8, 9], [5], [6, 4]]).some([2, 0]).tokens.tolist()
        [6, 4, 7, 8, 9]
        """
        ends = self.lengths.cumsum()
        parts = [self.tokens[ends[row] - self.lengths[row] : ends[row]] for row in rows]
        empty = np.empty(0, np.int32)
        return Ragged(np.concatenate([empty, *parts]), self.lengths[rows])

    def pad(self, rows: Sequence[int] | Ints, pad_id: int) -> tuple[Ints, Ints]:
        """Some rows as a rectangle: ids [B, T], and mask [B, T], 0 for padding at the end."""
        lengths = self.lengths[rows]
        starts = self.lengths.cumsum()[rows] - lengths
        columns = np.arange(lengths.max(initial=0))
        real = columns < lengths[:, None]
        ids = np.full(real.shape, pad_id, np.int64)
        ids[real] = self.tokens[(starts[:, None] + columns)[real]]
        return ids, real.astype(np.int64)
