from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.core.records import Run
from m2dr.index import milvus
from m2dr.index.exact import prefix_runs
from m2dr.index.milvus import (
    MILVUS_ENGINES,
    MilvusCollection,
    Server,
    open_collection,
    push,
)
from m2dr.index.store import Store

pytest.importorskip("pymilvus")
pytest.importorskip("milvus_lite")

Floats = NDArray[np.float32]
WIDTH, BATCH = 16, 8  # dims, and documents in a message
NAMES = [f"q{number}" for number in range(5)]


@pytest.fixture
def named(
    build, vectors: Floats, tmp_path: Path, request: pytest.FixtureRequest
) -> Callable[..., Store]:
    """A store whose corpus has the name of the test, so that no two tests share a collection."""

    def named(data: Floats = vectors, **settings: object) -> Store:
        return build(tmp_path / "store", data, corpus=request.node.name, **settings)

    return named


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milvus, "BATCH_BYTES", BATCH * 4 * WIDTH)


def opened(uri: str, store: Store, dim: int | None = None) -> MilvusCollection:
    manifest = store.manifest
    return open_collection(uri, manifest.corpus, manifest.label.fingerprint, store.layer, dim)


def same(run: Run, other: Run) -> None:
    assert list(run.rankings) == list(other.rankings)
    for name, ranking in run.rankings.items():
        assert ranking.docids == other.rankings[name].docids
        assert ranking.scores == pytest.approx(other.rankings[name].scores, abs=1e-5)


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize(("dim", "engine"), [(3, "flat"), *((16, name) for name in MILVUS_ENGINES)])
def test_a_collection_ranks_as_a_scan(
    uri: str, server: Server, named, queries: Floats, dim: int, engine: str, similarity: str
) -> None:
    store = named(similarity=similarity)
    sent = push(store, dim, server, engine)

    collection = opened(uri, store)
    drop = {"q1": "d3"}

    assert (sent.documents, sent.written, sent.bytes) == (35, 35, 35 * dim * 4)
    assert (collection.documents, collection.layer, collection.dim) == (35, 6, dim)
    scan = prefix_runs(
        NAMES, queries, store, store.docids, [dim], 9, similarity, drop=drop
    )  # fmt: skip
    same(collection.ranked(NAMES, queries, 9, drop), scan[dim])
    scores, rows = collection.search(queries, 9)
    assert scores.shape == rows.shape == (5, 9)


def test_ties_of_any_number_rank_by_docid(uri: str, server: Server, named) -> None:
    store = named(np.ones((35, 16), np.float32))
    push(store, 16, server)

    run = opened(uri, store).ranked(["q"], np.ones((1, 16), np.float32), k=4)

    assert run.rankings["q"].docids == ("d9", "d8", "d7", "d6")


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_push_goes_on_where_it_was_stopped(
    uri: str, server: Server, named, after: int, monkeypatch
) -> None:
    store, ask, sent = named(), Server.ask, []

    def stopping(self: Server, what: str, *words: Any, **more: Any) -> Any:
        if what == "upsert":
            if len(sent) == after:
                raise UserError("The server went away.")
            sent.append(1)
        return ask(self, what, *words, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Server, "ask", stopping)
        with pytest.raises(UserError, match="went away"):
            push(store, WIDTH, server)
    with pytest.raises(UserError, match="is half-written: .* of 35"):
        opened(uri, store)
    seen: list[int] = []

    again = push(store, WIDTH, server, progress=seen.append)

    there = {0: 0, 1: 8, 3: 18}[after]  # no batch crosses a shard's end, at 10
    assert (again.written, again.documents, sum(seen)) == (35 - there, 35, 35)
    assert push(store, WIDTH, server).written == 0
    run = opened(uri, store).ranked(["q"], store.rows([34]), 1)
    assert run.rankings["q"].docids == ("d34",)


def test_a_collection_of_other_vectors_is_replaced_on_demand(server: Server, named) -> None:
    store = named()
    push(store, WIDTH, server)
    other = replace(store, manifest=replace(store.manifest, texts="0" * 64))

    for given in ((other, WIDTH, server), (store, WIDTH, server, "hnsw")):
        with pytest.raises(UserError, match="another engine or other vectors; --overwrite"):
            push(*given)
    sent = push(store, WIDTH, server, "hnsw", overwrite=True)

    assert (sent.documents, sent.written) == (35, 35)
    assert server.manifest(sent.name).engine == "hnsw"
