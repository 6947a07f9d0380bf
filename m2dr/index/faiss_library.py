"""Access to FAISS: loaded where it is used, with its refusals as UserErrors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError, install


def load_faiss() -> Any:
    """Import FAISS where it is used: --help must not wait for it.

    Raises:
        UserError: it is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise UserError(
            "Searching an index needs FAISS, and it is not installed. For an NVIDIA GPU the extra "
            f"is gpu instead of cpu. Install it with: {install('cpu')}"
        ) from error
    # FAISS scores small batches one vector at a time; BLAS takes 100 queries 13 times as fast. One
    # query alone is a product of a matrix and a vector: there BLAS only adds the threads' waiting.
    faiss.cvar.distance_compute_blas_threshold = 2
    return faiss


def reason_of(error: RuntimeError) -> str:
    """Return what FAISS says is wrong, without the place in its source.

    >>> reason_of(RuntimeError("Error in f() at /project/faiss/factory.cpp:12: no such index"))
    'no such index'
    """
    told = re.split(r"\.(?:cpp|cu|cuh|h):\d+: ", str(error))[-1]
    return re.sub(r"^Error: '.*?' failed: ", "", told).strip().rstrip(".")


@contextmanager
def refusing(what: str, remedy: str) -> Iterator[None]:
    """Turn a RuntimeError of FAISS into a UserError.

    Args:
        what: FAISS was asked to do; follows "FAISS cannot".
        remedy: what to do instead.

    Raises:
        UserError: FAISS refused.
    """
    try:
        yield
    except RuntimeError as error:
        raise UserError(f"FAISS cannot {what}: {reason_of(error)}. {remedy}") from error


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let FAISS use that many threads; as many as it likes when 0."""
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(number or before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


class BinaryIndex:
    """A faiss.IndexBinary that takes float vectors and returns scores, as other indexes do.

    Attributes:
        binary: the faiss.IndexBinary, over `dim` bits rounded up to whole bytes.
        d: dims of a vector.
    """

    def __init__(self, binary: Any, dim: int) -> None:
        self.binary = binary
        self.d = dim
        self.is_trained = True  # there is nothing to learn

    @property
    def ntotal(self) -> int:
        """Number of documents."""
        return int(self.binary.ntotal)

    def add(self, vectors: NDArray[np.float32]) -> None:
        """Add documents [n, dim]."""
        self.binary.add(packed(vectors))

    def search(
        self,
        queries: NDArray[np.float32],
        k: int,
        params: Any = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Search for the best k; a score is the share of equal bits less that of the others.

        Returns:
            Scores from -1 to 1 and rows, [Q, k], best first; row -1 is no document.
        """
        differ, rows = self.binary.search(packed(queries), k, params=params)
        # The bits that fill up the last byte agree in all vectors, so they count nowhere.
        scores = 1 - 2 * np.asarray(differ, np.float64) / self.d
        return scores.astype(np.float32), rows


def packed(vectors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the signs of values [n, dim] as bits, [n, dim / 8 rounded up] bytes; 0 is negative.

    >>> packed(np.array([[1.0, -1.0, 0.0]], np.float32)).tolist()
    [[128]]
    """
    return np.packbits(vectors > 0, axis=1)
