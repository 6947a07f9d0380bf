"""No gpu is needed: a stand-in takes the place of FAISS for gpus."""

import subprocess
from collections.abc import Iterator
from types import SimpleNamespace

import faiss
import numpy as np
import pytest

from m2dr.index.faiss import FaissIndex, build_index, on_gpu, open_faiss
from m2dr.index.library import gpu_refusal
from m2dr.index.store import Store


class Gpu:
    """What FAISS would move to a gpu; it counts how often it is asked."""

    def __init__(self, index: object) -> None:
        self.index, self.asked = index, 0

    def search(self, queries: np.ndarray, k: int, **how: object) -> tuple[np.ndarray, np.ndarray]:
        self.asked += 1
        return self.index.search(queries, k, **how)

    def add(self, vectors: np.ndarray) -> None:
        self.index.add(vectors)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    gpu_refusal.cache_clear()
    yield
    gpu_refusal.cache_clear()


@pytest.fixture
def index(store: Store) -> FaissIndex:
    return open_faiss(build_index(store, 8))


def stand_in(monkeypatch: pytest.MonkeyPatch, move: object, ended: object = None) -> None:
    """FAISS with gpus, and what the check in another process ends with."""
    monkeypatch.setattr(faiss, "StandardGpuResources", lambda: "resources", raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", move, raising=False)
    works = SimpleNamespace(returncode=0, stdout="the gpu works", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended or works)


def test_an_index_on_a_gpu_finds_the_same(index, queries, monkeypatch) -> None:
    made = []
    stand_in(monkeypatch, lambda _, __, each: made.append(Gpu(each)) or made[-1])

    moved, reason = on_gpu(index, number=3)

    assert reason == "FAISS searches on gpu 3."
    assert moved.ranked(["a"], queries[:1], 5) == index.ranked(["a"], queries[:1], 5)
    assert made[0].asked > 0


def test_more_documents_than_a_gpu_can_find_are_left_to_the_processor(
    index, queries, monkeypatch
) -> None:
    made = []
    stand_in(monkeypatch, lambda _, __, each: made.append(Gpu(each)) or made[-1])
    monkeypatch.setattr("m2dr.index.faiss.GPU_DEPTH", 10)
    moved = on_gpu(index)[0]

    moved.search(queries, 10)
    moved.search(queries, 11)

    assert made[0].asked == 1


def test_a_gpu_that_aborts_the_check_is_not_used_and_says_why(index, monkeypatch) -> None:
    told = "Faiss assertion 'err == cudaSuccess' failed in f() at x.cu:7: no kernel image"
    ended = SimpleNamespace(returncode=-6, stdout="", stderr=told)
    stand_in(monkeypatch, lambda *_: pytest.fail("moved"), ended)

    found = on_gpu(index)

    assert found == (None, "FAISS cannot use gpu 0: no kernel image.")


@pytest.mark.parametrize("factory", ["IVF4,Flat", "IVF4,PQ4x4", "OPQ4,IVF4,PQ4x4", "Flat", "HNSW4"])
def test_gpus_place_the_centroids_of_an_index(
    factory: str, store: Store, monkeypatch, tmp_path
) -> None:
    def build(folder: str) -> bytes:
        built = build_index(store, 8, "", tmp_path / folder, factory=factory)
        return (built / "index").read_bytes()

    expected, asked = build("processor"), []
    stand_in(monkeypatch, None)
    gpu_refusal.cache_clear()
    copy = faiss.clone_index
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", lambda own: asked.append(own) or copy(own))

    assert build("gpu") == expected
    # Trained and added to; residuals of product codes are taken on the processor.
    assert len(asked) == (2 if factory == "IVF4,Flat" else 1 if "IVF" in factory else 0)
