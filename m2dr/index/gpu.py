"""FAISS on an NVIDIA GPU, where it really works there."""

import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from m2dr.core.errors import install
from m2dr.index.faiss_index import FaissIndex
from m2dr.index.faiss_library import BinaryIndex, load_faiss, reason_of

_PATIENCE = 120  # seconds for a gpu to answer: the first CUDA call on a machine can take 20
_WORKS = "the gpu works"


@dataclass(frozen=True)
class OnGpu:
    """An index on a gpu, or why it is not there."""

    index: FaissIndex | None
    reason: str  # a sentence, to be printed either way


def on_gpu(index: FaissIndex, number: int = 0) -> OnGpu:
    """Copy an index to a gpu; what the gpu cannot do still runs on the processor.

    These are more than `faiss_index.GPU_DEPTH` documents per query, unless the index has a `deep`
    scan for them, the vectors of exact scores, and rescoring. So the index stays in the
    processor's memory too.

    Args:
        index: open.
        number: of the gpu.

    Returns:
        The same index, searched on the gpu; or None and the reason, so that the caller tries the
        next way: a full scan on the gpu, then the processor.
    """
    reason = refusal(number)
    if reason:
        return OnGpu(None, f"FAISS cannot use gpu {number}: {reason}.")
    faiss = load_faiss()
    try:
        copy = _copied(faiss, index.faiss, number)
    # FAISS refuses; a wrapper has no such index; no function takes an index of this kind.
    except (RuntimeError, AttributeError, TypeError) as error:
        told = reason_of(error) if isinstance(error, RuntimeError) else str(error)
        return OnGpu(
            None, f"FAISS cannot move the {index.engine.name} index to gpu {number}: {told}."
        )
    return OnGpu(replace(index, gpu=copy), f"FAISS searches on gpu {number}.")


@cache
def refusal(number: int = 0) -> str:
    """Return why FAISS cannot use a gpu; empty when it can.

    The device count is not enough: a build for other gpus counts this one too. And FAISS aborts
    the process when CUDA refuses, so the check runs in another process.
    """
    faiss = load_faiss()
    if not hasattr(faiss, "StandardGpuResources"):
        return f"the installed one is for processors; in its place: {install('gpu')}"
    code = f"from m2dr.index.gpu import check_gpu; check_gpu({number})"
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the check did not end ({type(error).__name__})"
    if ended.returncode == 0 and _WORKS in ended.stdout:
        return ""
    told = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    return reason_of(RuntimeError(told[-1])) if told else f"the check ended with {ended.returncode}"


def check_gpu(number: int) -> None:
    """Add and search a few vectors on a gpu, and write to stdout that it works.

    Raises:
        RuntimeError: it does not.
    """
    faiss = load_faiss()
    vectors = np.eye(8, dtype=np.float32)
    plain = faiss.IndexFlatIP(8)
    moved = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), number, plain)
    moved.add(vectors)
    scores, rows = moved.search(vectors, 1)
    if not (np.array_equal(rows[:, 0], np.arange(8)) and np.allclose(scores, 1)):
        raise RuntimeError("it finds other vectors than those that were added")
    sys.stdout.write(_WORKS)


class _GpuCopy:
    """An index on a gpu, with what must live as long as it does."""

    def __init__(self, resources: Any, index: Any) -> None:
        self._resources = resources  # FAISS keeps no reference of its own
        self._index = index

    def search(self, queries: Any, k: int, **params: Any) -> Any:
        """Search as `faiss.Index` does."""
        return self._index.search(queries, k, **params)


def _copied(faiss: Any, index: Any, number: int) -> _GpuCopy:
    resources = faiss.StandardGpuResources()
    if isinstance(index, BinaryIndex):
        moved = faiss.index_binary_cpu_to_gpu(resources, number, index.binary)
        return _GpuCopy(resources, BinaryIndex(moved, index.d))
    return _GpuCopy(resources, faiss.index_cpu_to_gpu(resources, number, index))
