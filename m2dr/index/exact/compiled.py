"""The best documents of each query, picked by compiled code, which reads every score once."""

# Shapes in this file:
#   C queries, n columns, N documents, s slots.

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from m2dr.index.exact.best import ROUNDING, TINY, Best
from m2dr.index.exact.gathered import not_a_number
from m2dr.index.exact.keys import LOW, NOTHING

Floats = NDArray[np.float32]
Longs = NDArray[np.int64]
Function = TypeVar("Function", bound=Callable[..., object])

_RUN = 128  # consecutive scores, of which most often none reaches the bar
_LOWER_ROW_FIRST = np.empty(0, np.int64)


class CompiledBest(Best):
    """On a processor: documents get their keys at once, and bars rise as soon as they can."""

    def compare(self, dim: int, scores: Tensor, rows: Sequence[range]) -> None:
        """As `Best` says."""
        queries = slice(dim * len(scores), (dim + 1) * len(scores))
        of_row = self._places.of_row
        for number, some in enumerate(rows):
            are_numbers = _enter(
                scores.numpy(),
                number * (scores.shape[1] // len(rows)),
                some.start,
                len(some),
                self.bar[dim].numpy(),
                self._scales[queries].numpy(),
                _LOWER_ROW_FIRST if of_row is None else of_row.numpy(),
                self._keys[queries].numpy(),
                self._used[queries].numpy(),
                self._k,
            )
            if not are_numbers:
                raise not_a_number()

    def finish(self) -> None:
        """Nothing was kept for later."""


def _compiled(function: Function) -> Function:
    """Compile at the first call, without holding other threads up, and keep it on disk."""
    compiled: Function
    try:
        compiled = njit(function, cache=True, nogil=True, error_model="numpy")
    except RuntimeError:  # no folder may be written to
        compiled = njit(function, nogil=True, error_model="numpy")
    return compiled


@_compiled
def _enter(
    scores: Floats,
    begin: int,
    first: int,
    count: int,
    bar: Floats,
    scales: Floats,
    of_row: Longs,
    keys: Longs,
    used: Longs,
    k: int,
) -> bool:
    """Give keys to what reaches the bar, and raise it.

    Args:
        scores: [C, n], unscaled.
        begin: column of the first.
        first: its row.
        count: how many columns.
        bar: [C].
        scales: [C].
        of_row: places [N]; empty when the lower row comes first.
        keys: [C, s].
        used: slots, [C].
        k: how many are wanted.

    Returns:
        Whether all scores are numbers.
    """
    for query in range(len(scores)):
        line, low = scores[query, begin : begin + count], bar[query]
        for start in range(0, count, _RUN):
            run = line[start : start + _RUN]
            if not _any_reaches(run, low):
                continue
            for column in range(len(run)):
                score = run[column]
                if score < low:
                    continue
                if np.isnan(score):
                    return False
                row = first + start + column
                place = of_row[row] if len(of_row) else LOW - row
                keys[query, used[query]] = _key(score * scales[query], place)
                used[query] += 1
                if used[query] == keys.shape[1]:
                    low = _tidied(keys[query], k, scales[query])
                    used[query] = k
        bar[query] = low
    return True


@_compiled
def _any_reaches(run: Floats, bar: np.float32) -> bool:
    """Whether a score may be among the best, or is not a number."""
    reaching = np.int32(0)
    for column in range(len(run)):
        # Of this type throughout, so that eight at a time are compared.
        reaching = np.int32(reaching + np.int32(not run[column] < bar))
    return bool(reaching)


@_compiled
def _tidied(keys: Longs, k: int, scale: np.float32) -> np.float32:
    """Keep the best k of a query's keys [s], and say what a score must reach now."""
    _put_best_first(keys, k)
    for slot in range(k, len(keys)):
        keys[slot] = NOTHING
    return _bar(keys[k - 1], scale)


@_compiled
def _put_best_first(keys: Longs, k: int) -> None:
    """Move the best k of distinct keys [s] to the front, the k-th to its place.

    As quickselect does; to compile `np.partition`, which does, takes 8 seconds.
    """
    begin, end = 0, len(keys) - 1
    while begin < end:
        pivot = keys[(begin + end) // 2]
        left, right = begin, end
        while left <= right:
            while keys[left] > pivot:
                left += 1
            while keys[right] < pivot:
                right -= 1
            if left <= right:
                keys[left], keys[right] = keys[right], keys[left]
                left += 1
                right -= 1
        if k - 1 <= right:
            end = right
        elif k - 1 >= left:
            begin = left
        else:
            return


@_compiled
def _key(score: np.float32, place: int) -> int:
    """As `keys_of` makes them."""
    bits = np.int64(np.float32(score + np.float32(0)).view(np.int32))
    return int(((bits ^ ((bits >> 31) & 0x7FFFFFFF)) << 32) | place)


@_compiled
def _bar(key: int, scale: np.float32) -> np.float32:
    """As `Best` raises it, to the score of a key."""
    bits = np.int32(key >> 32)
    bits = np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF))
    floor = bits.view(np.float32)
    if not scale > 0:
        return np.float32(-np.inf)
    bar = floor / scale
    if np.isinf(bar):
        return bar
    return np.float32(bar - (abs(bar) * ROUNDING + TINY / scale))
