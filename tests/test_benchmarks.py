"""Every benchmark and script starts, and those that take seconds on tiny sizes run."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from shell import python

ROOT = Path(__file__).parents[1]
SHARED = {"common", "timing", "gpu_cases"}  # what the others import
PYTHON = [
    *(path for path in sorted((ROOT / "benchmarks").glob("*.py")) if path.stem not in SHARED),
    *(path for path in sorted((ROOT / "scripts" / "reproduce").glob("*.py"))
      if "__main__" in path.read_text(encoding="utf-8")),
    *(ROOT / "scripts" / name for name in ("export_check", "page_pictures.py", "pyserini_check", "ranx_check")),
]  # fmt: skip
SHELL = [ROOT / "scripts" / name for name in ("on_a_gpu", "quickstart")]
TINY = {
    "engines.py": "vectors.npy --dim 16 --engine flat hnsw bits1 --count 20 --singles 3",
    "exact.py": "--documents 3000 --queries 20 --width 32 --k 10 --rounds 1",
    "scaling.py": "--documents-per-second 40 --scan-rate 5e9",
    "training_steps.py": "objective --batch 4 --rounds 1",
}


@pytest.mark.parametrize("path", [*PYTHON, *SHELL], ids=lambda path: path.name)
def test_it_starts(path: Path, tmp_path: Path) -> None:
    if path in SHELL:
        assert subprocess.check_output(["bash", path, "--help"], cwd=tmp_path)
    else:
        assert python(path, "--help", cwd=tmp_path, PYTHONPATH=str(ROOT))


@pytest.mark.parametrize("name", TINY)
def test_it_prints_a_table_of_tiny_sizes(name: str, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(2000, 32))
    np.save(tmp_path / "vectors.npy", vectors.astype(np.float32))

    words = (ROOT / "benchmarks" / name, *TINY[name].split())
    assert "|---|" in python(*words, cwd=tmp_path, PYTHONPATH=str(ROOT))


def test_every_case_of_a_gpu_runs_on_a_processor(tmp_path: Path) -> None:
    words = "training search --device cpu --tiny --out"

    words = (ROOT / "benchmarks" / "gpu.py", *words.split(), tmp_path)
    printed = python(*words, cwd=tmp_path, PYTHONPATH=str(ROOT))

    assert printed.count(" 0 failed") == 2
