"""The k best documents of each query, selected on a processor by compiled code.

It reads every product once. numba compiles it at the first call and keeps it on disk.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from m2dr.index.exact.topk import LOW, TopK, not_a_number

# Shapes in this file: C queries, n documents of a tile, N of all.

Singles = NDArray[np.float32]
Longs = NDArray[np.int64]
Function = TypeVar("Function", bound=Callable[..., object])

_RUN = 64  # consecutive scores, of which most often none reaches the bar
_LOWER_ROW_FIRST = np.empty(0, np.int64)


class NumbaTopK(TopK):
    """The k best documents so far; the keys of each query are a heap, the least at its root."""

    def add(self, prefix: int, products: Tensor, inverse: Tensor | None, first: int) -> None:
        """Compare the documents of a tile with the best so far, as `TopK.add` does."""
        places = self._ties.of_row
        factors = products.new_ones(products.shape[1]) if inverse is None else inverse
        if not _enter(
            products.numpy(),
            factors.numpy(),
            self._scales[prefix].numpy(),
            first,
            _LOWER_ROW_FIRST if places is None else places.numpy(),
            self._keys[prefix].numpy(),
        ):
            raise not_a_number()


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
    products: Singles, factors: Singles, scales: Singles, first: int, places: Longs, keys: Longs
) -> bool:
    """Let documents into the heaps.

    Args:
        products: [C, n].
        factors: of documents, [n].
        scales: of queries, [C].
        first: row of the first document.
        places: of all documents [N]; empty when the lower row comes first.
        keys: heaps [C, k].

    Returns:
        Whether all scores that may enter are numbers.
    """
    for query in range(len(products)):
        scale, heap = scales[query], keys[query]
        bar = _score(heap[0])
        for start in range(0, len(factors), _RUN):
            run, lengths = products[query, start : start + _RUN], factors[start : start + _RUN]
            if not _any_reaches(run, lengths, scale, bar):
                continue
            for column in range(len(run)):
                score = run[column] * lengths[column] * scale
                if score < bar:
                    continue
                if np.isnan(score):
                    return False
                row = first + start + column
                key = _key(score, places[row] if len(places) else LOW - row)
                if key > heap[0]:
                    _replace_least(heap, key)
                    bar = _score(heap[0])
    return True


@_compiled
def _any_reaches(run: Singles, lengths: Singles, scale: np.float32, bar: np.float32) -> bool:
    """Return whether a score may be among the best, or is not a number."""
    reaching = np.int32(0)
    for column in range(len(run)):
        # Of this type throughout, so that eight at a time are compared.
        below = run[column] * lengths[column] * scale < bar
        reaching = np.int32(reaching + np.int32(not below))
    return bool(reaching)


@_compiled
def _replace_least(heap: Longs, key: int) -> None:
    """Put a key into a heap [k] instead of its least."""
    spot, child = 0, 1
    while child < len(heap):
        if child + 1 < len(heap) and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[spot] = heap[child]
        spot, child = child, 2 * child + 1
    heap[spot] = key


@_compiled
def _key(score: np.float32, place: int) -> int:
    """Return a key as `topk` makes them."""
    bits = np.int64(np.float32(score + np.float32(0)).view(np.int32))
    return int(((bits ^ ((bits >> 31) & 0x7FFFFFFF)) << 32) | place)


@_compiled
def _score(key: int) -> np.float32:
    """Return the score of a key, which is not a number for none."""
    bits = np.int32(key >> 32)
    return np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(np.float32)
