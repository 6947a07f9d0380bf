"""FAISS on an NVIDIA card, where it really works there."""

import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from m2dr.errors import install
from m2dr.index.library import load_faiss, words
from m2dr.index.opened import Index
from m2dr.index.signs import Signs

_PATIENCE = 120  # seconds for a card to answer: the first CUDA call on a machine can take 20
_WORKS = "the card works"
_GPU = install("gpu")


@dataclass(frozen=True)
class OnCard:
    """An index on a card, or why it is not there."""

    index: Index | None
    reason: str  # a sentence, to be printed either way


def on_card(index: Index, card: int = 0) -> OnCard:
    """Copy an index to a card, and leave what the card cannot do to the processor.

    Documents beyond `opened.CARD_DEPTH` per query, unless the index has a `deep` scan for them, the
    vectors of exact scores and rescoring still come from the processor's memory, so the index stays
    there too.

    Args:
        index: open.
        card: its number.

    Returns:
        The same index, searched on the card; or None and the reason, so that the caller tries the
        next way: a full scan on the card, then the processor.
    """
    reason = refusal(card)
    if reason:
        return OnCard(None, f"FAISS cannot use card {card}: {reason}.")
    faiss = load_faiss()
    try:
        copy = _copied(faiss, index.faiss, card)
    # FAISS refuses; a wrapper has no such index; no function takes an index of this kind.
    except (RuntimeError, AttributeError, TypeError) as error:
        told = words(error) if isinstance(error, RuntimeError) else str(error)
        return OnCard(
            None, f"FAISS cannot move the {index.engine.name} index to card {card}: {told}."
        )
    return OnCard(replace(index, card=copy), f"FAISS searches on card {card}.")


@cache
def refusal(card: int = 0) -> str:
    """Why FAISS cannot use a card; empty when it can.

    The device count is not believed: a build for other cards counts this one too. And a refusal
    of CUDA aborts the process from within FAISS, so the trial is another process.
    """
    faiss = load_faiss()
    if not hasattr(faiss, "StandardGpuResources"):
        return f"the installed one is for processors; in its place: {_GPU}"
    code = f"from m2dr.index.cards import trial; trial({card})"
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the trial did not end ({type(error).__name__})"
    if ended.returncode == 0 and _WORKS in ended.stdout:
        return ""
    told = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    return words(RuntimeError(told[-1])) if told else f"the trial ended with {ended.returncode}"


def trial(card: int) -> None:
    """Add and search a few vectors on a card, and write that it works.

    Raises:
        RuntimeError: it does not.
    """
    faiss = load_faiss()
    vectors = np.eye(8, dtype=np.float32)
    plain = faiss.IndexFlatIP(8)
    moved = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), card, plain)
    moved.add(vectors)
    scores, rows = moved.search(vectors, 1)
    if not (np.array_equal(rows[:, 0], np.arange(8)) and np.allclose(scores, 1)):
        raise RuntimeError("it finds other vectors than those that were added")
    sys.stdout.write(_WORKS)


class _Moved:
    """An index on a card, with what must live as long as it does."""

    def __init__(self, resources: Any, index: Any, dim: int = 0) -> None:  # noqa: ANN401 - faiss has no type stubs
        self._resources = resources  # FAISS keeps no reference of its own
        self._index = Signs(index, dim) if dim else index

    def search(self, queries: Any, k: int, **how: Any) -> Any:  # noqa: ANN401 - faiss has no type stubs
        """Search as `faiss.Index` does."""
        return self._index.search(queries, k, **how)


def _copied(faiss: Any, index: Any, card: int) -> _Moved:  # noqa: ANN401 - faiss has no type stubs
    resources = faiss.StandardGpuResources()
    if isinstance(index, Signs):
        moved = faiss.index_binary_cpu_to_gpu(resources, card, index.binary)
        return _Moved(resources, moved, index.d)
    return _Moved(resources, faiss.index_cpu_to_gpu(resources, card, index))
