"""The library FAISS: loaded when it is used, its errors as sentences, its threads and gpus."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from m2dr.core.errors import UserError, require
from m2dr.index.manifest import INDEX

Handle = Any  # a faiss.Index, which has no type stubs

GPU_PATIENCE = 120  # seconds for a gpu to answer: the first CUDA call on a machine can take 20
# Ends with an error unless the gpu finds what was added.
_GPU_CHECK = """
import faiss, numpy
index = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), {}, faiss.IndexFlatIP(8))
index.add(numpy.eye(8, dtype="float32"))
rows = index.search(numpy.eye(8, dtype="float32"), 1)[1][:, 0]
assert (rows == numpy.arange(8)).all(), "it finds other vectors than those that were added"
"""


def load_faiss() -> Any:
    """Import FAISS where it is used: --help must not wait for it.

    Raises:
        UserError: it is not installed.
    """
    require("faiss")
    import faiss

    # FAISS scores small batches one vector at a time; BLAS takes 100 queries 13 times as fast. One
    # query alone is a product of a matrix and a vector: there BLAS only adds the threads' waiting.
    faiss.cvar.distance_compute_blas_threshold = 2
    return faiss


def reason_of(error: Exception) -> str:
    """Return what FAISS says is wrong, without the place in its source.

    >>> reason_of(RuntimeError("Error in f() at /project/faiss/factory.cpp:12: no such index"))
    'no such index'
    """
    reason = re.split(r"\.(?:cpp|cu|cuh|h):\d+: ", str(error))[-1]
    return re.sub(r"^Error: '.*?' failed: ", "", reason).strip().rstrip(".")


def open_pyserini(folder: Path) -> Handle:
    """Open the FAISS `index` of a folder, as Pyserini and m2dr write it, to reconstruct its rows.

    An index that holds codes instead of vectors gives back approximations.

    Raises:
        UserError: it is missing, empty or no such index, or does not give its vectors back.
    """
    path, faiss = folder / INDEX, load_faiss()
    try:
        index = faiss.read_index(str(path))
        if hasattr(index, "make_direct_map"):
            index.make_direct_map()  # inverted lists know no rows without it
        if index.ntotal:
            index.reconstruct(0)  # asked for many at once, an index that cannot ends the process
    except RuntimeError as error:
        raise UserError(f"{path} does not give its vectors back: {reason_of(error)}.") from error
    if not index.ntotal:
        raise UserError(f"{path} holds no vectors.")
    return index


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turn a RuntimeError of FAISS into the UserError "FAISS cannot `what`"."""
    try:
        yield
    except RuntimeError as error:
        raise UserError(f"FAISS cannot {what}: {reason_of(error)}.") from error


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the FAISS threads of calls from this thread; 0 changes nothing."""
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count or before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


@cache
def gpu_refusal(number: int = 0) -> str:
    """Return why FAISS cannot use a gpu; empty when it can.

    The device count is not enough: a build for other gpus counts this one too. And FAISS aborts
    the process when CUDA refuses, so the check runs in another process.
    """
    if not hasattr(load_faiss(), "StandardGpuResources"):
        return "the installed FAISS is for processors; the extra gpu installs one for GPUs"
    command = [sys.executable, "-c", _GPU_CHECK.format(number)]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=GPU_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the check did not end ({type(error).__name__})"
    if not ended.returncode:
        return ""
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    return reason_of(RuntimeError(lines[-1])) if lines else f"it ended with {ended.returncode}"
