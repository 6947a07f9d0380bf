"""Documents as keys, which sort as their scores do, and by the rule for ties among equal ones."""

# Shapes in this file:
#   C queries, N documents, m candidates: a query, a dim and a document each.

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LOW = 0xFFFFFFFF  # the half of a key that holds the place among ties
NOTHING = torch.iinfo(torch.int64).min  # below every key


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
        return LOW - rows if self.of_row is None else self.of_row[rows]

    def row(self, places: Tensor) -> Tensor:
        """Rows of places, any shape."""
        return LOW - places if self.row_of is None else self.row_of[places]


def keys_of(scores: Tensor, places: Tensor) -> Tensor:
    """Scores [m] (float32) and places [m] (below 2**32) as keys [m], int64.

    The score is in the upper half, the place among ties in the lower. So the best k keys are the
    right k documents, however many of them share a score.
    """
    # Adding zero turns -0, which a product too small for float32 leaves, into 0. The bits of a
    # float sort as an integer once those of the negatives are flipped.
    bits = (scores + 0.0).view(torch.int32)
    return (_flipped(bits).long() << 32) | places


def scores_of(keys: Tensor) -> Tensor:
    """Scores of keys, any shape."""
    return _flipped((keys >> 32).int()).view(torch.float32)


def largest(keys: Tensor, k: int) -> Tensor:
    """The largest k of each row, [C, k], in any order."""
    if keys.device.type == "cpu":
        # Ten times as fast as torch's.
        return torch.from_numpy(np.partition(keys.numpy(), -k, axis=1)[:, keys.shape[1] - k :])
    return keys.topk(k, dim=1, sorted=False).values


def _flipped(bits: Tensor) -> Tensor:
    """Turn the order of negatives round, bits int32; twice is no change."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
