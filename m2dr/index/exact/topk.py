"""The k best documents of each query, selected by torch, on any device.

A document that may be among the best becomes a key, an int64 whose upper half sorts as its score
does and whose lower half by the rule for ties. So the largest k keys are the right k documents,
however many of them share a score.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from m2dr.core.errors import UserError, command

# Shapes in this file: C queries, D prefixes, N documents, n of a tile, m candidates.

RUN = 128  # consecutive scores that are compared by their best
LOW = 0xFFFFFFFF  # the half of a key that holds the place among ties
NOTHING = torch.iinfo(torch.int64).min  # below every key; its score is not a number
# Of a bar against the score it stands for: more than float32 rounds a product and a quotient by.
_ROUNDING = 1e-6
_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class TieOrder:
    """Places of rows among documents of equal score: the higher place comes first."""

    of_row: Tensor | None = None  # [N] int64; the lower row comes first when None
    row_of: Tensor | None = None  # [N] int64

    @classmethod
    def of(cls, places: NDArray[np.int64] | None, device: str) -> "TieOrder":
        """Build it on a device, of places [N], all from 0 to N - 1."""
        if places is None:
            return cls()
        of_row = torch.from_numpy(np.array(places, np.int64)).to(device)
        row_of = torch.empty_like(of_row)
        row_of[of_row] = torch.arange(len(of_row), device=device)
        return cls(of_row, row_of)


class TopK:
    """The k best documents so far of C queries at each of D prefixes."""

    def __init__(self, k: int, scales: Tensor, ties: TieOrder) -> None:
        """Begin with nothing found.

        Args:
            k: documents per query.
            scales: [D, C], by which the scores of each query are multiplied; none is negative.
            ties: the order of documents of equal score.
        """
        self._k, self._scales, self._ties = k, scales, ties
        self._keys = torch.full((*scales.shape, k), NOTHING, device=scales.device)  # the best
        # Per prefix: keys [C, m] that wait to be compared, and bars [C] for scores before they are
        # scaled.
        self._waiting: list[list[Tensor]] = [[] for _ in scales]
        self._bars: list[Tensor | None] = [None] * len(scales)

    def add(self, prefix: int, products: Tensor, inverse: Tensor | None, first: int) -> None:
        """Compare the documents of a tile with the best so far.

        Args:
            prefix: its number, below D.
            products: [C, n], of queries and documents.
            inverse: [n], by which the products of each document are multiplied; None: by 1.
            first: row of the first document.

        Raises:
            UserError: a score is not a number.
        """
        scores = products if inverse is None else products * inverse
        count, width = scores.shape
        bars, scales, waiting = self._bars[prefix], self._scales[prefix], self._waiting[prefix]
        if bars is None:
            bars = scores.new_full((count,), -torch.inf)
            if width >= self._k:
                bars = _bars(scores.topk(self._k, sorted=False).values.amin(dim=1) * scales, scales)
            self._bars[prefix] = bars
        # Few reach the bar, so runs of scores are compared by their best.
        runs = torch.nn.functional.pad(scores, (0, -width % RUN), value=-torch.inf)
        padded, runs = runs.shape[1], runs.reshape(-1, RUN)
        of_runs = bars.repeat_interleave(padded // RUN)
        near = _reaching(runs.amax(dim=1, keepdim=True), of_runs)
        found = _reaching(runs[near], of_runs[near])
        found = near[found // RUN] * RUN + found % RUN
        found = found[found % padded < width]
        if not len(found):
            return
        queries, columns = found // padded, found % padded
        reaching = scores[queries, columns]
        if bool(reaching.isnan().any()):
            raise not_a_number()
        rows = first + columns
        places = LOW - rows if self._ties.of_row is None else self._ties.of_row[rows]
        waiting.append(_rows_of_keys(queries, _keys(reaching * scales[queries], places), count))
        if sum(keys.shape[1] for keys in waiting) >= self._k:
            self._settle(prefix)

    def found(self, prefix: int) -> tuple[Tensor, Tensor]:
        """Return scores and rows of the best at a prefix, [C, k], best first."""
        self._settle(prefix)
        keys = self._keys[prefix].sort(dim=1, descending=True).values
        places = keys & LOW
        rows = LOW - places if self._ties.row_of is None else self._ties.row_of[places]
        return _scores(keys), rows

    def _settle(self, prefix: int) -> None:
        """Keep the best k of those so far and those that wait, and raise the bars."""
        if not self._waiting[prefix]:
            return
        together = torch.cat([self._keys[prefix], *self._waiting[prefix]], 1)
        self._waiting[prefix].clear()
        self._keys[prefix] = together.topk(self._k, sorted=False).values
        least = self._keys[prefix].amin(dim=1)
        self._bars[prefix] = _bars(_scores(least), self._scales[prefix])


def not_a_number() -> UserError:
    """Return the error for a score that is not a number."""
    return UserError(
        "A score is not a number, so documents cannot be ranked by it. Look at the vectors: a "
        "product of two of them is beyond float32, or a file is damaged, which this tells: "
        f"{command('index', 'verify')}"
    )


def _keys(scores: Tensor, places: Tensor) -> Tensor:
    """Return scores [m] (float32) and places [m] (below 2**32) as keys [m], int64."""
    # Adding zero turns -0, which a product too small for float32 leaves, into 0. The bits of a
    # float sort as an integer once those of the negatives are flipped.
    return (_flipped((scores + 0.0).view(torch.int32)).long() << 32) | places


def _rows_of_keys(queries: Tensor, keys: Tensor, count: int) -> Tensor:
    """Return keys [m] of queries [m], which ascend, as a row per query, [count, most of one]."""
    counts = queries.bincount(minlength=count)
    begins = counts.cumsum(0) - counts
    rows = keys.new_full((count, int(counts.max())), NOTHING)
    rows[queries, torch.arange(len(keys), device=keys.device) - begins[queries]] = keys
    return rows


def _scores(keys: Tensor) -> Tensor:
    """Return the scores of keys, any shape."""
    return _flipped((keys >> 32).int()).view(torch.float32)


def _flipped(bits: Tensor) -> Tensor:
    """Turn the order of negatives round, bits int32; twice is no change."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _bars(floors: Tensor, scales: Tensor) -> Tensor:
    """Return what scores [C] must reach to be at least the floors [C] once they are scaled.

    A floor that is not a number, of fewer than k documents, lets everything in; so does a scale of
    zero, whose scores are all equal.
    """
    bars = floors / scales
    lower = torch.where(bars.isinf(), bars, bars - (bars.abs() * _ROUNDING + _TINY / scales))
    return torch.where(scales > 0, lower, -torch.inf)


def _reaching(scores: Tensor, bars: Tensor) -> Tensor:
    """Return the positions [m] among scores [C, n] of those not below the bars [C]."""
    return (~(scores < bars[:, None])).view(-1).nonzero()[:, 0]
