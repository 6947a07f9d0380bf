"""How vectors are searched on a gpu, as a processor does it or with a stand-in."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from m2dr.index import exact
from m2dr.index.exact import ExactIndex, prefix_top_k, tiles
from m2dr.index.exact import scan as scanning
from m2dr.index.faiss import GPU_DEPTH, OnGpu
from m2dr.index.faiss_build import build_index, open_index
from m2dr.index.searchable import Docids, encode_docids
from m2dr.index.store import Store
from m2dr.tasks import resolve


@pytest.fixture
def gpu_sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The processor scans as a gpu does: in its tiles, and with all that fits kept there."""
    monkeypatch.setattr(tiles, "PROCESSOR", tiles.GPU)
    monkeypatch.setattr(tiles, "on_gpu", lambda _: True)
    monkeypatch.setattr(scanning, "on_gpu", lambda _: True)
    monkeypatch.setattr(tiles, "kept_bytes", lambda _: 2**40)
    monkeypatch.setattr(scanning, "COMPILED_SCORES", 2**62)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # a gpu is sent its work by one
    yield
    torch.set_num_threads(before)


def store_of(build, folder: Path, rows: int) -> Store:
    """A store whose products no rounding changes, and of which many are equal."""
    vectors = np.random.default_rng(3).integers(-3, 4, (rows, 16)).astype(np.float32)
    return build(folder, vectors, [f"d{row:06}" for row in range(rows)], "dot", shard_rows=500)


def best_of(queries: np.ndarray, store: Store, k: int) -> tuple[np.ndarray, np.ndarray]:
    """By numpy: score descending, then docid descending, which is the order of rows."""
    products = queries @ store.rows(range(store.documents)).astype(np.float32).T
    rows = np.lexsort((-np.arange(store.documents) + 0 * products, -products), axis=1)[:, :k]
    return np.take_along_axis(products, rows, axis=1), rows


@pytest.mark.usefixtures("gpu_sizes")
@pytest.mark.parametrize("tile_bytes", [2**29, 2**14])
@pytest.mark.parametrize(("queries", "k"), [(1, 10), (200, 10), (200, 150), (3, 2000)])
def test_what_a_gpu_keeps_is_searched_in_large_tiles(
    build, tmp_path: Path, monkeypatch, queries: int, k: int, tile_bytes: int
) -> None:
    monkeypatch.setattr(tiles, "TILE_BYTES", tile_bytes)
    store = store_of(build, tmp_path / "store", 3000)
    asked = np.random.default_rng(4).integers(-3, 4, (queries, 16)).astype(np.float32)
    index = ExactIndex(store, 16)

    scores, rows = index.search(asked, k)

    expected = best_of(asked, store, k)
    np.testing.assert_array_equal(scores, expected[0])
    np.testing.assert_array_equal(rows, expected[1])
    assert index._source.largest_tile == min(
        tile_bytes // 64, 3072
    )  # 3,000 rounded up to whole runs
    assert index._source.largest_tile % tiles.RUN == 0


@pytest.mark.usefixtures("gpu_sizes")
def test_a_gpu_reads_files_once(build, tmp_path: Path, monkeypatch) -> None:
    index = ExactIndex(store_of(build, tmp_path / "store", 3000), 16)
    asked = np.ones((200, 16), np.float32)
    first = index.search(asked, 150)
    monkeypatch.setattr(type(index.store), "rows", lambda *_: pytest.fail("a file was read"))
    monkeypatch.setattr(type(index.store), "blocks", lambda *_: pytest.fail("a file was read"))

    again = index.search(asked, 150)

    np.testing.assert_array_equal(first[1], again[1])


def test_queries_that_do_not_fit_into_a_gpu_together_are_searched_in_turn(monkeypatch) -> None:
    vectors = np.random.default_rng(1).integers(-3, 4, (300, 16)).astype(np.float32)
    told: list[int] = []
    whole = prefix_top_k(vectors[:50], vectors, [8, 16], 20, "dot")
    monkeypatch.setattr(scanning, "_at_once", lambda *_: 7)

    parts = prefix_top_k(vectors[:50], vectors, [8, 16], 20, "dot", progress=told.append)
    nobody = prefix_top_k(vectors[:0], vectors, [16], 20, "dot")[16]

    for dim, (scores, rows) in whole.items():
        np.testing.assert_array_equal(parts[dim][0], scores)
        np.testing.assert_array_equal(parts[dim][1], rows)
    assert sum(told) == 300
    assert nobody[0].shape == (0, 20)


def test_fewer_queries_at_once_where_a_gpu_has_less_memory(monkeypatch) -> None:
    queries = SimpleNamespace(device=torch.device("cuda", 1))
    found = []
    for free in (2**37, 2**33, 2**20):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 2**38))
        found.append(scanning._at_once(queries, (64, 128), 1000))

    assert 15 < found[0] / found[1] < 17
    assert 1000 < found[1] < 2**33 / (8 * 1000 * 2)
    assert found[2] == 1


def test_a_gpu_keeps_half_of_its_free_memory_at_most(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1000, 4000))

    assert tiles.kept_bytes("cuda:0") == 500
    assert tiles.kept_bytes("cpu") == tiles.KEPT_BYTES


class Gpu:
    """Stands for an index that FAISS holds on a gpu."""

    def search(self, queries: np.ndarray, k: int, **_: object) -> tuple[np.ndarray, np.ndarray]:
        assert k <= GPU_DEPTH
        return np.zeros((len(queries), k), np.float32), np.zeros((len(queries), k), np.int64)


def test_more_than_faiss_finds_on_a_gpu_is_scanned_there(
    build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(build, tmp_path / "store", 3000)
    index = open_index(build_index(store, 16, "flat"))
    monkeypatch.setattr(resolve, "_device", lambda _: "cuda")
    made: list[str] = []

    def scan(store: Store, dim: int, device: str) -> ExactIndex:
        made.append(device)
        return ExactIndex(store, dim)

    monkeypatch.setattr(exact, "ExactIndex", scan)
    monkeypatch.setattr(
        resolve, "on_gpu", lambda *_: OnGpu(resolve.replace(index, gpu=Gpu()), "It works.")
    )
    monkeypatch.setattr(
        type(index.faiss), "search", lambda *_, **__: pytest.fail("on the processor")
    )
    request = SimpleNamespace(device="cuda", search_params=())
    asked = np.random.default_rng(4).integers(-3, 4, (5, 16)).astype(np.float32)

    moved = resolve._on_device(index, request, store.folder)
    scores, rows = moved.search(asked, 2500)

    assert made == ["cuda"]
    expected = best_of(asked, store, 2500)
    np.testing.assert_array_equal(scores, expected[0])
    np.testing.assert_array_equal(rows, expected[1])
    assert moved.search(asked, 10)[1].shape == (5, 10)


@pytest.mark.parametrize(
    "names",
    [
        ["d1", "d10", "d2", "D", "é", "z", "𝄞", "\ufffd", "doc-000000001", "doc-00000000"],
        ["a", "ab", "abcdefgh", "abcdefghi", "abcdefg", "abcdefgh "],
        ["x" * 70, "x" * 71, "x", "y"],
        ["only"],
    ],
)
def test_docids_sort_as_strings_do(names: list[str]) -> None:
    ranks = Docids(encode_docids(names)).ranks()

    assert [name for _, name in sorted(zip(ranks.tolist(), names, strict=True))] == sorted(names)
