"""Engines: what they score, how they are built, named, tuned and rescored, and what is damaged."""

import errno
from pathlib import Path

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.index.codes import CODES, learn_code
from m2dr.index.engines import ENGINES, empty_index, factory_name
from m2dr.index.faiss import build_index, open_faiss
from m2dr.index.store import Store
from m2dr.index.vectors import prefixes
from m2dr.tasks.indexing.importing import vectors_of

Floats = NDArray[np.float32]


# How far a score of an engine that compresses may be off, here where lengths are below 8.
LOSS = {"flat-f16": 0.01, "int8": 0.2, "pq": 4, "ivf-pq": 4}


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

    index = open_faiss(build_index(store, dim, engine))
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

    index = open_faiss(build_index(store, 16, "hnsw"))

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
        open_faiss(folder)
    assert open_faiss(build_index(store, 8)).manifest.store == store.manifest.digest


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
        open_faiss(path.parent)


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
        open_faiss(folder)


faiss_writer = faiss.PyCallbackIOWriter  # as it is before a test replaces it


# Building, naming, tuning and rescoring


EVERY = pytest.mark.parametrize("engine", list(ENGINES))
INEXACT = [name for name in ENGINES if name != "flat"]


@EVERY
def test_a_folder_names_its_engine_and_opens_in_plain_faiss_the_same_each_time(
    store: Store, tmp_path: Path, engine: str
) -> None:
    folder = build_index(store, 8, engine)
    again = build_index(store, 8, engine, tmp_path / "again")

    assert (folder / "index").read_bytes() == (again / "index").read_bytes()
    assert folder.name == ("dim-8" if engine == "flat" else f"dim-8-{engine}")
    manifest = open_faiss(folder).manifest
    index = faiss.read_index(str(folder / "index"))
    assert (index.ntotal, index.d, manifest.engine) == (35, 8, engine)


@pytest.mark.parametrize("engine", INEXACT)
def test_candidates_scored_again_score_as_a_full_scan_does(
    store: Store, queries: Floats, engine: str
) -> None:
    names = list("abcde")
    exact = open_faiss(build_index(store, 12)).ranked(names, queries, 5).rankings
    index = open_faiss(build_index(store, 12, engine), search_params={"rescore": 7})

    for name, ranking in index.ranked(names, queries, 5).rankings.items():
        assert ranking.docids == exact[name].docids
        np.testing.assert_allclose(ranking.scores, exact[name].scores, atol=1e-6)


def test_another_store_is_not_rescored_with(store: Store, build, tmp_path: Path) -> None:
    other = build(tmp_path / "other", np.ones((35, 16), np.float32))

    with pytest.raises(UserError, match="was not cut from the vectors in"):
        open_faiss(build_index(store, 8, "int8"), other, {"rescore": 2})


def test_more_lists_are_looked_at_when_asked(build, tmp_path: Path) -> None:
    vectors = np.random.default_rng(3).normal(size=(2000, 16)).astype(np.float32)
    store = build(tmp_path / "layer-06", vectors, shard_rows=900)
    whole = open_faiss(build_index(store, 16)).search(vectors[:40] + 1, 10)[1]
    index = open_faiss(build_index(store, 16, "ivf"))

    def recall(nprobe: int) -> float:
        rows = index.with_search_params({"nprobe": nprobe}).search(vectors[:40] + 1, 10)[1]
        return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows, whole, strict=True)]))

    assert recall(1) < recall(8) < recall(51) == 1
    assert dict(index.manifest.search_params) == {"nprobe": 14}
    assert recall(14) == recall(index.search_params["nprobe"])


@pytest.mark.parametrize(
    ("engine", "params"), [("hnsw", {"efSearch": 1}), ("ivf", {"nprobe": 1}), ("ivf-pq", {})]
)
def test_an_engine_is_asked_deeply_enough_for_the_scale_of_a_hybrid(
    build, tmp_path: Path, engine: str, params: dict[str, int]
) -> None:
    vectors = np.random.default_rng(3).normal(size=(4000, 16)).astype(np.float32)
    store = build(tmp_path / "layer-06", vectors, shard_rows=900)
    whole = open_faiss(build_index(store, 16)).search(vectors[:20] + 1, 1000)[0]
    index = open_faiss(build_index(store, 16, engine)).with_search_params(params)

    scores = index.deeper(1000).search(vectors[:20] + 1, 1000)[0]

    scale = whole[:, 0] - whole[:, -1]
    assert (np.abs(scores[:, -1] - whole[:, -1]) < 0.05 * scale).all()


@pytest.mark.parametrize(
    "factory", ["PCA4,Flat", "IVF4,SQ4", "OPQ2_4,IVF2_HNSW4,PQ2x4np", "IVF4,PQ4x4np,RFlat"]
)
def test_any_factory_string_becomes_an_index_beside_the_others(
    store: Store, queries: Floats, factory: str
) -> None:
    folder = build_index(store, 8, factory=factory)
    index = open_faiss(folder, search_params={"rescore": 35})

    assert folder.name == f"dim-8-{factory_name(factory)}"
    assert (index.manifest.factory, index.manifest.engine) == (factory, factory_name(factory))
    probing = index.with_search_params({"nprobe": 4} if "IVF" in factory else {})
    assert probing.search(queries, 5)[1].shape == (5, 5)
    assert build_index(store, 8, factory=factory) == folder


@pytest.mark.parametrize("documents", [1, 2, 5])
@EVERY
def test_a_corpus_of_a_few_documents_is_no_trouble(
    build, tmp_path: Path, queries: Floats, engine: str, documents: int
) -> None:
    store = build(tmp_path / "layer-06", queries[:documents])

    index = open_faiss(build_index(store, 16, engine))

    ranked = index.ranked(list("abcde"), queries, 10).rankings
    assert [len(ranking.docids) for ranking in ranked.values()] == [documents] * 5


def test_more_bits_and_rescoring_find_more(build, tmp_path: Path) -> None:
    vectors = np.random.default_rng(3).normal(size=(2000, 61)).astype(np.float32)
    store = build(tmp_path / "layer-06", vectors, shard_rows=2000)
    queries = vectors[:50] + np.random.default_rng(4).normal(size=(50, 61)).astype(np.float32)
    whole = open_faiss(build_index(store, 61)).search(queries, 10)[1]

    def recall(engine: str, params: dict[str, int]) -> float:
        rows = open_faiss(build_index(store, 61, engine), store, params).search(queries, 10)[1]
        return float(np.mean([np.isin(a, b).mean() for a, b in zip(rows, whole, strict=True)]))

    one, two, four = (recall(f"bits{bits}", {"rescore": 0}) for bits in (1, 2, 4))
    assert one < two < four
    assert recall("bits1", {}) > 0.8
    assert recall("bits2", {}) > 0.98
    assert recall("bits4", {}) > 0.99


# Folders of Pyserini


@pytest.mark.parametrize("recipe", ["Flat", "HNSW8", "IVF4,Flat"])
def test_a_pyserini_folder_gives_its_vectors(tmp_path: Path, vectors: Floats, recipe: str) -> None:
    index = faiss.index_factory(vectors.shape[1], recipe, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(tmp_path / "index"))
    (tmp_path / "docid").write_text("".join(f"d{row}\n" for row in range(len(vectors))))

    found = vectors_of(tmp_path)

    np.testing.assert_array_equal(found.finite(found.of(["d9", "d3"], "")), vectors[[9, 3]])
    (tmp_path / "index").write_bytes(b"IxFI")
    with pytest.raises(UserError, match="index does not give its vectors back"):
        vectors_of(tmp_path)


# Codes


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("dim", [5, 8, 16])
@pytest.mark.parametrize("name", CODES)
def test_decoded_vectors_score_as_the_engine_does(
    tmp_path, build, vectors: Floats, name: str, dim: int, similarity
) -> None:
    store: Store = build(tmp_path, vectors, similarity=similarity)
    documents = store.rows(range(store.documents))
    queries = np.random.default_rng(7).normal(size=(4, 16)).astype(np.float32)

    decoded = learn_code(name, dim, similarity, documents)
    index = open_faiss(build_index(store, dim, CODES[name]))
    if not index.exact:
        index = index.with_search_params({"rescore": 0})
    scores, rows = index.search(queries, 30)
    expected = prefixes(queries, dim, similarity) @ decoded(documents).T
    # Tables of products of few bits hold bytes.
    rounding = 0.02 * np.abs(scores).max() if name in "421" else 1e-5
    np.testing.assert_allclose(
        scores, np.take_along_axis(expected, rows, 1), rtol=1e-5, atol=rounding
    )


@pytest.mark.parametrize("name", CODES)
def test_each_document_adds_as_many_bytes_as_said(
    tmp_path, build, vectors: Floats, name: str
) -> None:
    few, many = (
        open_faiss(
            build_index(
                build(tmp_path / f"{times}", np.tile(vectors[:32], (times, 1))), 16, CODES[name]
            )
        )
        for times in (1, 3)
    )

    empty = empty_index(ENGINES[CODES[name]](0, 16).factory, 16)
    assert many.manifest.bytes - few.manifest.bytes == 64 * empty.sa_code_size()
