"""The door to FAISS: loaded where it is used, and its refusals as sentences."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from m2dr.errors import UserError, install


def load_faiss() -> Any:  # noqa: ANN401 - faiss has no type stubs
    """Import FAISS where it is used: --help must not wait for it.

    Raises:
        UserError: it is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise UserError(
            "Searching an index needs FAISS, and it is not installed. For an NVIDIA card the extra "
            f"is gpu instead of cpu. Install it with: {install('cpu')}"
        ) from error
    # FAISS scores small batches one vector at a time; BLAS takes 100 queries 13 times as fast. One
    # query alone is a product of a matrix and a vector: there BLAS only adds the threads' waiting.
    faiss.cvar.distance_compute_blas_threshold = 2
    return faiss


def words(error: RuntimeError) -> str:
    """What FAISS says is wrong, without where in its source it says so.

    >>> words(RuntimeError("Error in f() at /project/faiss/index_factory.cpp:12: no such index"))
    'no such index'
    """
    told = re.split(r"\.(?:cpp|cu|cuh|h):\d+: ", str(error))[-1]
    return re.sub(r"^Error: '.*?' failed: ", "", told).strip().rstrip(".")


@contextmanager
def refusing(what: str, remedy: str) -> Iterator[None]:
    """Turn a refusal of FAISS into a sentence.

    Args:
        what: FAISS was asked to do; follows "FAISS cannot".
        remedy: what to do instead.

    Raises:
        UserError: FAISS refused.
    """
    try:
        yield
    except RuntimeError as error:
        raise UserError(f"FAISS cannot {what}: {words(error)}. {remedy}") from error


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
