"""Vectors as their signs: one bit per coordinate, compared by how many agree."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Signs:
    """A faiss.IndexBinary that takes and returns what an index of vectors does.

    Attributes:
        binary: the faiss.IndexBinary, over `dim` bits rounded up to whole bytes.
        d: coordinates of a vector.
    """

    def __init__(self, binary: Any, dim: int) -> None:  # noqa: ANN401 - faiss has no type stubs
        self.binary = binary
        self.d = dim
        self.is_trained = True  # there is nothing to learn

    @property
    def ntotal(self) -> int:
        """How many documents there are."""
        return int(self.binary.ntotal)

    def add(self, vectors: NDArray[np.float32]) -> None:
        """Add documents [n, dim]."""
        self.binary.add(packed(vectors))

    def search(
        self,
        queries: NDArray[np.float32],
        k: int,
        params: Any = None,  # noqa: ANN401 - faiss has no type stubs
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Search for the best k; a score is the share of agreeing signs less that of the others.

        Returns:
            Scores from -1 to 1 and rows, [Q, k], best first; row -1 is no document.
        """
        differ, rows = self.binary.search(packed(queries), k, params=params)
        # The bits that fill up the last byte agree in all vectors, so they count nowhere.
        scores = 1 - 2 * np.asarray(differ, np.float64) / self.d
        return scores.astype(np.float32), rows


def packed(vectors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Signs [n, dim] as bytes [n, dim / 8 rounded up]; zero counts as negative.

    >>> packed(np.array([[1.0, -1.0, 0.0]], np.float32)).tolist()
    [[128]]
    """
    return np.packbits(vectors > 0, axis=1)
