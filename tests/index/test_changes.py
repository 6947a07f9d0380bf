"""Documents that are added, replaced, deleted and compacted: as if those left were encoded afresh."""

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.core.records import Run
from m2dr.index.changes import (
    Change,
    add_store,
    changing,
    commit,
    compact_store,
    delete_rows,
    open_all,
)
from m2dr.index.exact import ExactIndex
from m2dr.index.faiss_build import build_index, open_index
from m2dr.index.funnel import Funnel, FunnelIndex
from m2dr.index.layout import ADDED, CHANGE, NEXT, STORE, read_current
from m2dr.index.listing import list_stores
from m2dr.index.milvus import Server
from m2dr.index.milvus_index import open_collection, push
from m2dr.index.searchable import Searchable
from m2dr.index.store import Store, open_store

Vectors = NDArray[np.float32]
Build = Callable[..., Store]
QUERIES = np.random.default_rng(5).normal(size=(4, 16)).astype(np.float32)
NAMES = [f"q{number}" for number in range(len(QUERIES))]
ENGINES = ("flat", "hnsw", "ivf", "flat-l2", "flat-f16", "binary")


@dataclass
class World:
    """A collection of one layer or two, and what it should hold."""

    home: Path
    build: Build
    dtype: str = "f16"
    layers: tuple[int, ...] = (6,)
    held: dict[str, Vectors] = field(default_factory=dict)
    made: int = 0  # vectors so far
    draw: random.Random = field(default_factory=lambda: random.Random(13))

    def fresh(self, count: int) -> Vectors:
        self.made += 1
        found = np.random.default_rng(self.made).normal(size=(count, 16))
        return found.astype(np.float16).astype(np.float32)

    def folder(self, layer: int) -> Path:
        return self.home / f"layer-{layer:02d}"

    def begin(self, count: int = 23) -> None:
        vectors = self.fresh(count)
        self.held = {f"d{row}": vector for row, vector in enumerate(vectors)}
        for layer in self.layers:
            self.store(self.folder(layer), layer)

    def store(self, folder: Path, layer: int, names: list[str] | None = None) -> Store:
        names = list(self.held) if names is None else names
        vectors = np.array([self.held[name] for name in names]) * np.float32(layer / 2)
        return self.build(folder, vectors, names, layer=layer, dtype=self.dtype)

    def add(self, names: list[str]) -> None:
        for name, vector in zip(names, self.fresh(len(names)), strict=True):
            self.held.pop(name, None)
            self.held[name] = vector
        for layer in self.layers:
            self.store(self.folder(layer) / ADDED, layer, names)
        with changing(self.home):
            stores = open_all(self.home)
            gone = stores[0].docids.find(names).values()
            for store in stores:
                add_store(store, open_store(store.folder / ADDED), gone, "documents-1.jsonl")
            commit(self.home, Change("add", "", 1, 0))

    def delete(self, names: list[str]) -> None:
        for name in names:
            del self.held[name]
        with changing(self.home):
            for store in open_all(self.home):
                delete_rows(store, store.docids.find(names).values())
            commit(self.home, Change("delete", "", 0, 1))

    def compact(self) -> None:
        with changing(self.home):
            for store in open_all(self.home):
                compact_store(store, ())
            commit(self.home, Change("compact", "", 0, 0))

    def step(self) -> str:
        """Change it somehow; what was done."""
        names = list(self.held)
        kind = self.draw.choice(["add", "add", "delete", "delete", "replace", "compact"])
        some = self.draw.sample(names, min(len(names) - 3, self.draw.randint(1, 9)))
        if kind == "delete" and len(names) > 6:
            self.delete(some)
        elif kind == "replace" and some:
            self.add(some + [f"r{self.made}"])
        elif kind == "compact":
            self.compact()
        else:
            self.add([f"n{self.made}-{i}" for i in range(self.draw.randint(1, 12))])
        return kind


@pytest.fixture
def world(tmp_path: Path, build: Build) -> World:
    return World(tmp_path / "home", build)


def ways(folder: Path, store: Store, engines: tuple[str, ...]) -> dict[str, Searchable]:
    """All ways to search a store, each looking at every document."""
    every = {"hnsw": {"efSearch": 200}, "ivf": {"nprobe": 64}, "binary": {"rescore": 200}}
    found: dict[str, Searchable] = {
        engine: open_index(
            folder / ("dim-8" if engine == "flat" else f"dim-8-{engine}"),
            search_params=every.get(engine),
        )
        for engine in engines
    }
    return {
        **found,
        "exact": ExactIndex(store, 8),
        "funnel": FunnelIndex(store, Funnel.parse("4:12,16")),
        "funnel of flat": FunnelIndex(store, Funnel.parse("8:12,16"), found["flat"]),
    }


def same(one: Run, other: Run) -> bool:
    for name, ranking in one.rankings.items():
        assert ranking.docids == other.rankings[name].docids
        assert np.allclose(ranking.scores, other.rankings[name].scores, rtol=0, atol=1e-6)
    return True


@pytest.mark.parametrize("seed", range(50))
def test_changes_rank_as_a_fresh_index_of_the_same_documents(
    seed: int, world: World, tmp_path: Path
) -> None:
    world.dtype, world.draw = ["f16", "f32", "int8"][seed % 3], random.Random(seed)
    world.begin()
    folder = world.folder(6)
    engines = ENGINES if seed % 10 == 0 else ENGINES[:3]
    for engine in engines:
        build_index(open_store(folder), 8, engine)
    steps = [world.step() for _ in range(world.draw.randint(2, 4))]

    store, fresh = open_store(folder), world.store(tmp_path / "fresh", 6)
    for engine in engines:
        build_index(fresh, 8, engine)
    assert sorted(store.docids) == sorted(world.held), steps
    assert list(store.docids) == list(fresh.docids)
    assert np.array_equal(store.rows(range(store.documents)), fresh.rows(range(fresh.documents)))
    others = ways(fresh.folder, fresh, engines)
    for name, way in ways(folder, store, engines).items():
        assert way.documents == len(world.held)
        k = min(7, way.documents)
        assert same(way.ranked(NAMES, QUERIES, k), others[name].ranked(NAMES, QUERIES, k)), name
    if seed % 5:
        return
    world.compact()
    compacted = open_store(folder)
    names = [shard.name for shard in compacted.manifest.shards]
    assert [(folder / name).read_bytes() for name in names] == [
        (fresh.folder / shard.name).read_bytes() for shard in fresh.manifest.shards
    ]
    assert (folder / "dim-8/index").read_bytes() == (fresh.folder / "dim-8/index").read_bytes()
    assert sorted(path.name for path in folder.glob("vectors-*")) == names


def test_all_documents_of_all_depths_but_no_deleted_one(world: World) -> None:
    world.begin(40)
    folder = world.folder(6)
    for engine in (*ENGINES, "pq"):
        build_index(open_store(folder), 8, engine)
    nearest = open_index(folder / "dim-8").ranked(["q"], QUERIES[:1], 30).rankings["q"].docids
    world.delete(list(nearest[:29]))

    store = open_store(folder)
    for name, way in ways(folder, store, (*ENGINES, "pq")).items():
        found = way.ranked(["q"], QUERIES[:1], 10, {"q": nearest[29]}).rankings["q"].docids
        assert not {*nearest} & {*found}, name
        assert len(found) == 10
        assert way.documents == 11


@pytest.mark.parametrize("engine", ["hnsw", "binary-hnsw"])
def test_deleted_documents_around_a_query_hide_no_others(world: World, engine: str) -> None:
    near = QUERIES[:1] + 0.05 * np.random.default_rng(1).normal(size=(400, 16))
    far = np.random.default_rng(2).normal(size=(1600, 16))
    vectors = np.concatenate([near, far]).astype(np.float32)
    world.held = {f"d{row}": vector for row, vector in enumerate(vectors)}
    world.store(world.folder(6), 6)
    folder = build_index(open_store(world.folder(6)), 16, engine)

    world.delete([f"d{row}" for row in range(len(near))])

    run = open_index(folder).ranked(["q"], QUERIES[:1], 100)
    best = ExactIndex(open_store(world.folder(6)), 16).ranked(["q"], QUERIES[:1], 100)
    assert len(run.rankings["q"].docids) == 100
    assert run.rankings["q"].docids == best.rankings["q"].docids
    alone = folder.parents[2] / "alone" / folder.name
    shutil.copytree(folder, alone)
    without = {"rescore": 0} if engine == "binary-hnsw" else {}
    found = open_index(alone, search_params=without).ranked(["q"], QUERIES[:1], 100)
    assert len(found.rankings["q"].docids) <= 100  # and no error


def test_layers_change_together_and_the_list_counts_what_is_deleted(world: World) -> None:
    world.layers = (2, 6)
    world.begin()
    build_index(open_store(world.folder(2)), 4)
    world.delete(["d3", "d11"])
    world.add(["x", "d5"])

    two, six = (open_store(world.folder(layer)) for layer in (2, 6))
    assert list(two.docids) == list(six.docids)
    assert "d3" not in two.docids
    assert [(one.documents, one.deleted) for one in list_stores(world.home)] == [(22, 3)] * 2
    assert np.array_equal(two.rows([21]) * 3, six.rows([21]))
    assert open_index(world.folder(2) / "dim-4").documents == 22


def test_an_index_of_before_is_refused_and_one_of_later_leaves_out_what_is_deleted(
    world: World, tmp_path: Path
) -> None:
    world.begin()
    folder = build_index(open_store(world.folder(6)), 8)
    old = {path.name: path.read_bytes() for path in folder.iterdir()}
    world.delete(["d1"])
    for name, data in old.items():
        (folder / name).write_bytes(data)
    with pytest.raises(UserError, match="encoded anew since, or changed. Build it again with"):
        open_index(folder)

    built = build_index(open_store(world.folder(6)), 4, "hnsw")
    assert open_index(build_index(open_store(world.folder(6)), 8)).documents == 22
    alone = tmp_path / "alone"
    alone.mkdir()
    for path in built.iterdir():
        (alone / path.name).write_bytes(path.read_bytes())
    run = open_index(alone).ranked(NAMES, QUERIES, 22)
    assert all("d1" not in ranking.docids for ranking in run.rankings.values())
    next(alone.glob("deleted-*")).unlink()
    with pytest.raises(UserError, match="deleted-00001.i64 cannot be read"):
        open_index(alone)


def test_a_damaged_file_of_deleted_rows_is_refused(world: World) -> None:
    world.begin()
    world.delete(["d1", "d2"])
    path = next(world.folder(6).glob("deleted-*"))
    path.write_bytes(np.array([2, 1], "<i8").tobytes())

    with pytest.raises(UserError, match="is not the file of deleted documents that was written"):
        open_store(world.folder(6))


def test_what_was_prepared_and_not_made_changes_nothing(world: World) -> None:
    world.begin()
    folder = build_index(open_store(world.folder(6)), 8)
    store = open_store(world.folder(6))
    delete_rows(store, [0])  # and then the process was killed

    assert open_store(world.folder(6)).documents == open_index(folder).documents == 23
    assert (folder / NEXT).exists()
    with changing(world.home):
        pass
    assert not (folder / NEXT).exists()
    assert not list(world.home.rglob("deleted-*"))


def test_a_file_that_is_renamed_while_it_is_opened_is_opened_under_its_new_name(
    tmp_path: Path,
) -> None:
    path, new = tmp_path / "layer-06" / STORE, tmp_path / "layer-06" / NEXT / STORE
    new.parent.mkdir(parents=True)
    path.write_text("before")
    new.write_text("after")
    (tmp_path / CHANGE).write_text("{}")

    def read(found: Path) -> str:
        if new.exists():
            new.replace(path)  # by the process that makes the change
        if not found.exists():
            raise UserError(f"{found} is missing")
        return found.read_text()

    assert read_current(path, read) == "after"
    path.unlink()
    with pytest.raises(UserError, match="is missing"):
        read_current(path, read)


def test_indexes_that_can_are_appended_to(world: World) -> None:
    world.begin()
    for engine in ENGINES:
        build_index(open_store(world.folder(6)), 8, engine)
    world.held |= dict(zip(["x", "y"], world.fresh(2), strict=True))
    world.store(world.folder(6) / ADDED, 6, ["x", "y"])
    with changing(world.home):
        store = open_store(world.folder(6))
        _, outcomes = add_store(store, open_store(store.folder / ADDED), [], "documents-1.jsonl")

    assert {Path(folder).name: done for folder, done in outcomes} == {
        "dim-8": "appended", "dim-8-flat-l2": "appended", "dim-8-flat-f16": "appended",
        "dim-8-ivf": "appended", "dim-8-hnsw": "rebuilt", "dim-8-binary": "rebuilt",
    }  # fmt: skip


def test_a_collection_in_milvus_follows_changes(world: World, server: Server, uri: str) -> None:
    world.begin()

    def pushed() -> int:
        return push(open_store(world.folder(6)), 8, server).written

    def found() -> Run:
        manifest = open_store(world.folder(6)).manifest
        opened = open_collection(uri, manifest.corpus, manifest.label.fingerprint, 6, 8)
        assert opened.manifest.store == manifest.digest
        return opened.ranked(NAMES, QUERIES, 7)

    def exact() -> Run:
        return ExactIndex(open_store(world.folder(6)), 8).ranked(NAMES, QUERIES, 7)

    assert (pushed(), pushed()) == (23, 0)
    world.delete(["d3", "d4"])
    world.add(["x", "d5"])
    assert pushed() == 2
    assert same(found(), exact())
    world.delete(["x"])
    assert (pushed(), pushed()) == (0, 0)
    assert same(found(), exact())
    world.compact()
    assert pushed() == 21  # every row has another number
    assert same(found(), exact())


def test_a_push_that_was_stopped_in_a_change_is_refused_until_it_ends(
    world: World, server: Server, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.begin()
    push(open_store(world.folder(6)), 16, server)
    world.delete(["d3"])
    world.add(["x"])  # as many documents as before

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "upsert", stop)
    with pytest.raises(KeyboardInterrupt):
        push(open_store(world.folder(6)), 16, server)
    monkeypatch.undo()
    label = open_store(world.folder(6)).manifest.label
    with pytest.raises(UserError, match="is half-written"):
        open_collection(uri, "tiny", label.fingerprint, 6, 16)
    push(open_store(world.folder(6)), 16, server)
    found = open_collection(uri, "tiny", label.fingerprint, 6, 16).ranked(NAMES, QUERIES, 23)
    assert same(found, ExactIndex(open_store(world.folder(6)), 16).ranked(NAMES, QUERIES, 23))
