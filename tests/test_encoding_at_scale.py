"""Encoding by several processes, of which any may be killed, in bounded memory."""

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from shell import COMMAND, ENVIRONMENT, m2dr, python
from world import assert_alike, made, make_corpus

Made = tuple[dict[str, str], dict[str, torch.Tensor]]
QUICK = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("many") / "many", documents=800, length=14)


def words(corpus: Path, backbone: Path, *more: str) -> tuple[str | Path, ...]:
    return (
        "index", "corpus", "--corpus", corpus, "--model", backbone, "--layers", "2,4", "--dim", "8",
        "--shard-rows", "50", "--device", "cpu", *more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, tiny_backbone: Path
) -> Made:
    place = tmp_path_factory.mktemp("undisturbed")
    done = m2dr(*words(corpus, tiny_backbone), cwd=place)
    assert done.returncode == 0, done.stderr
    return made(place / "indexes")


def started(place: Path, *words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *map(str, words)], cwd=place, env=QUICK, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def until(reached: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not reached():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "it never got that far"
        time.sleep(0.005)


def records(place: Path) -> int:
    return len(list(place.glob("indexes/many/*/layer-04/vectors-*.json")))


def children(process: subprocess.Popen[str], mark: str) -> list[psutil.Process]:
    """Descendants whose command line holds `mark`."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if mark in " ".join(child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


def test_what_a_killed_worker_leaves_the_others_take(
    corpus: Path, tiny_backbone: Path, undisturbed: Made, tmp_path: Path
) -> None:
    process = started(tmp_path, *words(corpus, tiny_backbone, "--workers", "2"))

    until(lambda: records(tmp_path) >= 2, process)
    children(process, "spawn_main")[0].kill()
    told, _ = process.communicate(timeout=120)

    assert process.returncode == 0, told
    assert "Warning: a worker ended" in told
    assert_alike(tmp_path / "indexes", undisturbed)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_parent_that_is_stopped_leaves_no_workers_behind(
    how: signal.Signals, corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    process = started(tmp_path, *words(corpus, tiny_backbone, "--workers", "2"))
    until(lambda: records(tmp_path) >= 1, process)
    crew = children(process, "spawn_main")
    assert crew

    process.send_signal(how)
    told, _ = process.communicate(timeout=60)

    _, alive = psutil.wait_procs(crew, timeout=20)
    assert not alive
    if how == signal.SIGINT:
        assert process.returncode == 1, told
        assert re.search(r"stopped after \d+ of 800 documents; the same command goes on", told)
        assert "Traceback" not in told


def test_an_error_of_a_worker_ends_encoding_with_its_sentence(
    corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    backbone = tmp_path / "backbone"
    shutil.copytree(tiny_backbone, backbone)
    weights = load_file(backbone / "model.safetensors")
    weights["encoder.layer.1.output.LayerNorm.weight"].fill_(torch.nan)
    save_file(weights, backbone / "model.safetensors", {"format": "pt"})

    done = m2dr(*words(corpus, backbone, "--workers", "2"), cwd=tmp_path)

    assert done.returncode == 2, done.stderr
    assert "not finite" in done.stderr
    assert "Traceback" not in done.stderr


PEAK = """
import sys
from pathlib import Path
from m2dr.tasks.indexing.index import IndexRequest, index_corpus
index_corpus(IndexRequest(
    sys.argv[1], sys.argv[2], layers=(4,), dims=(8,), root=Path(sys.argv[3]), device="cpu",
    shard_rows=500, exits=False))
# Not ru_maxrss, which begins with what the parent had when it forked.
(peak,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(peak.split()[1])
"""


def test_memory_does_not_grow_with_the_corpus(tiny_backbone: Path, tmp_path: Path) -> None:
    """7,000 documents with their ids and tokens as Python objects take 20 MB.

    The least of three runs counts: on a busy machine a queue of shards is fuller, in some.
    """

    def peak(corpus: Path, place: Path) -> float:
        told = python("-c", PEAK, corpus, tiny_backbone, place, OMP_NUM_THREADS="1")
        return int(told.split()[-1]) / 1024  # MB

    few, many = (make_corpus(tmp_path / str(n) / "many", n) for n in (1_000, 8_000))
    differences = (
        peak(many, tmp_path / f"many{i}") - peak(few, tmp_path / f"few{i}") for i in range(3)
    )
    assert any(difference < 15 for difference in differences)
