import errno
from pathlib import Path

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.index.engines import ENGINES
from m2dr.index.faiss import build_index, open_index
from m2dr.index.store import Store

Floats = NDArray[np.float32]


# How far a score of an engine that compresses may be off, here where lengths are below 8.
LOSS = {"flat-f16": 0.01, "int8": 0.2, "pq": 4, "ivf-pq": 4}


@pytest.fixture
def queries() -> Floats:
    return np.random.default_rng(7).normal(size=(5, 16)).astype(np.float32)


def scan(store: Store, queries: Floats, dim: int) -> NDArray[np.float64]:
    """Scores [Q, documents] of a full scan in float64."""
    left = queries[:, :dim].astype(np.float64)
    right = store.rows(range(store.documents))[:, :dim].astype(np.float64)
    if store.manifest.label.similarity == "cosine":
        left /= np.linalg.norm(left, axis=1, keepdims=True)
        right /= np.linalg.norm(right, axis=1, keepdims=True)
    return left @ right.T


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("dim", [1, 8, 16])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_index_of_a_prefix_scores_by_that_prefix_alone(
    tmp_path: Path, build, vectors: Floats, queries: Floats, engine: str, dim: int, similarity
) -> None:
    store = build(tmp_path, vectors, similarity=similarity)

    index = open_index(build_index(store, dim, engine))
    scores, rows = index.search(queries, k=7)

    assert scores.shape == rows.shape == (5, 7)
    expected = scan(store, queries, dim)
    found = np.take_along_axis(expected, rows, axis=1)
    np.testing.assert_allclose(scores, found, rtol=1e-5, atol=1e-6 + LOSS.get(engine, 0))
    if engine == "flat":
        best = -np.sort(-expected, axis=1)[:, :7]
        np.testing.assert_allclose(scores, best, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("equal", "told"), [(1500, True), (10, False)])
def test_a_graph_of_many_equal_vectors_is_said_to_find_few(
    tmp_path: Path, build, equal: int, told: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    vectors = np.random.default_rng(0).normal(size=(3000, 16)).astype(np.float32)
    vectors[:equal] = vectors[0]
    store = build(tmp_path, vectors, [f"d{row}" for row in range(3000)], shard_rows=4096)

    index = open_index(build_index(store, 16, "hnsw"))

    _, rows = index.search(vectors[2000:2200], 1)
    assert (np.mean(rows[:, 0] == np.arange(2000, 2200)) < 0.95) == told
    assert ("many vectors are equal" in capfd.readouterr().err) == told


@pytest.mark.parametrize("name", ["index", "docid", "manifest.json"])
def test_an_index_with_a_damaged_file_is_built_again(store: Store, name: str) -> None:
    folder = build_index(store, 8)
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:-1] + b"?")

    build_index(store, 8)

    assert (folder / name).read_bytes() == whole


def test_an_index_of_an_older_store_is_refused_and_built_again(
    tmp_path: Path, build, vectors: Floats
) -> None:
    folder = build_index(build(tmp_path / "layer-06", vectors), 8)
    (tmp_path / "layer-06" / "store.json").unlink()
    store = build(tmp_path / "layer-06", -vectors)

    with pytest.raises(UserError, match="vectors that were changed since"):
        open_index(folder)
    assert open_index(build_index(store, 8)).manifest.store == store.manifest.digest


@pytest.mark.parametrize(
    ("dim", "reason"), [(None, "cannot be read by FAISS"), (4, "holds 70 vectors of 4 dims")]
)
def test_a_damaged_index_too_large_to_hash_is_still_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch, dim: int | None, reason: str
) -> None:
    monkeypatch.setattr("m2dr.core.files.HASHED_BYTES", 0)
    path = build_index(store, 8) / "index"
    size = path.stat().st_size
    if dim is None:
        path.write_bytes(b"IxFI" + b"\xff" * (size - 4))
    else:
        other = faiss.IndexFlatIP(dim)
        other.add(np.ones((35 * 8 // dim, dim), np.float32))
        faiss.write_index(other, str(path))

    assert path.stat().st_size == size
    with pytest.raises(UserError, match=reason):
        open_index(path.parent)


def test_a_full_disk_leaves_no_index_behind(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build_index(store, 8)
    (folder / "docid").write_text("damaged")

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(faiss, "PyCallbackIOWriter", lambda _: faiss_writer(refuse))
        with pytest.raises(OSError, match="No space left"):
            build_index(store, 8)
    with pytest.raises(UserError, match="holds no finished index"):
        open_index(folder)


faiss_writer = faiss.PyCallbackIOWriter  # as it is before a test replaces it
