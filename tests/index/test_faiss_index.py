"""Engines other than flat: how they are built, named, tuned and rescored."""

from pathlib import Path

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.index.engines import ENGINES, factory_name
from m2dr.index.faiss import build_index, open_index
from m2dr.index.store import Store

Floats = NDArray[np.float32]
EVERY = pytest.mark.parametrize("engine", list(ENGINES))
INEXACT = [name for name in ENGINES if name != "flat"]


@pytest.fixture
def queries() -> Floats:
    return np.random.default_rng(7).normal(size=(5, 16)).astype(np.float32)


@EVERY
def test_a_folder_names_its_engine_and_opens_in_plain_faiss_the_same_each_time(
    store: Store, tmp_path: Path, engine: str
) -> None:
    folder = build_index(store, 8, engine)
    again = build_index(store, 8, engine, tmp_path / "again")

    assert (folder / "index").read_bytes() == (again / "index").read_bytes()
    assert folder.name == ("dim-8" if engine == "flat" else f"dim-8-{engine}")
    manifest = open_index(folder).manifest
    index = faiss.read_index(str(folder / "index"))
    assert (index.ntotal, index.d, manifest.engine) == (35, 8, engine)


@pytest.mark.parametrize("engine", INEXACT)
def test_candidates_scored_again_score_as_a_full_scan_does(
    store: Store, queries: Floats, engine: str
) -> None:
    names = list("abcde")
    exact = open_index(build_index(store, 12)).ranked(names, queries, 5).rankings
    index = open_index(build_index(store, 12, engine), search_params={"rescore": 7})

    for name, ranking in index.ranked(names, queries, 5).rankings.items():
        assert ranking.docids == exact[name].docids
        np.testing.assert_allclose(ranking.scores, exact[name].scores, atol=1e-6)


def test_another_store_is_not_rescored_with(store: Store, build, tmp_path: Path) -> None:
    other = build(tmp_path / "other", np.ones((35, 16), np.float32))

    with pytest.raises(UserError, match="was not cut from the vectors in"):
        open_index(build_index(store, 8, "int8"), other, {"rescore": 2})


def test_more_lists_are_looked_at_when_asked(build, tmp_path: Path) -> None:
    vectors = np.random.default_rng(3).normal(size=(2000, 16)).astype(np.float32)
    store = build(tmp_path / "layer-06", vectors, shard_rows=900)
    whole = open_index(build_index(store, 16)).search(vectors[:40] + 1, 10)[1]
    index = open_index(build_index(store, 16, "ivf"))

    def recall(nprobe: int) -> float:
        rows = index.with_search_params({"nprobe": nprobe}).search(vectors[:40] + 1, 10)[1]
        return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows, whole, strict=True)]))

    assert recall(1) < recall(8) < recall(51) == 1
    assert dict(index.manifest.search_params) == {"nprobe": 14}
    assert recall(14) == recall(index.search_params["nprobe"])


@pytest.mark.parametrize(
    "factory", ["PCA4,Flat", "IVF4,SQ4", "OPQ2_4,IVF2_HNSW4,PQ2x4np", "IVF4,PQ4x4np,RFlat"]
)
def test_any_factory_string_becomes_an_index_beside_the_others(
    store: Store, queries: Floats, factory: str
) -> None:
    folder = build_index(store, 8, factory=factory)
    index = open_index(folder, search_params={"rescore": 35})

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

    index = open_index(build_index(store, 16, engine))

    ranked = index.ranked(list("abcde"), queries, 10).rankings
    assert [len(ranking.docids) for ranking in ranked.values()] == [documents] * 5


def test_more_bits_and_rescoring_find_more(build, tmp_path: Path) -> None:
    vectors = np.random.default_rng(3).normal(size=(2000, 61)).astype(np.float32)
    store = build(tmp_path / "layer-06", vectors, shard_rows=2000)
    queries = vectors[:50] + np.random.default_rng(4).normal(size=(50, 61)).astype(np.float32)
    whole = open_index(build_index(store, 61)).search(queries, 10)[1]

    def recall(engine: str, params: dict[str, int]) -> float:
        rows = open_index(build_index(store, 61, engine), store, params).search(queries, 10)[1]
        return float(np.mean([np.isin(a, b).mean() for a, b in zip(rows, whole, strict=True)]))

    one, two, four = (recall(f"bits{bits}", {"rescore": 0}) for bits in (1, 2, 4))
    assert one < two < four
    assert recall("bits1", {}) > 0.8
    assert recall("bits2", {}) > 0.98
    assert recall("bits4", {}) > 0.99
