import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from m2dr.index.milvus_index import collection_cuts, open_collection, push
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.index import milvus, milvus_index
from m2dr.index.milvus import Server, collection_name, release
from m2dr.index.store import Store

pytest.importorskip("pymilvus")
pytest.importorskip("milvus_lite")

Floats = NDArray[np.float32]
WIDTH, BATCH = 16, 8  # dims, and documents in a message


@pytest.fixture
def own(build, vectors: Floats, tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    """A store whose corpus has the name of the test, so that no two tests share a collection."""
    return build(tmp_path / "store", vectors, corpus=request.node.name)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milvus_index, "BATCH_BYTES", BATCH * 4 * WIDTH)


def stopping(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server refuses every write but the first few."""
    upsert, sent = Server.upsert, []

    def counted(self: Server, *words: object) -> None:
        if len(sent) == after:
            raise UserError("The server went away.")
        sent.append(1)
        upsert(self, *words)

    monkeypatch.setattr(Server, "upsert", counted)


def name_of(store: Store, dim: int = WIDTH) -> str:
    return collection_name(store.manifest.corpus, store.manifest.label.fingerprint, Cut(6, dim))


def best(uri: str, store: Store, query: Floats, dim: int = WIDTH) -> str:
    label = store.manifest.label
    collection = open_collection(uri, store.manifest.corpus, label.fingerprint, 6, dim)
    return collection.ranked(["q"], query[None], 1).rankings["q"].docids[0]


def test_documents_of_layer_0_have_a_collection_of_their_own(
    uri: str, server: Server, build: Callable[..., Store], vectors: Floats, tmp_path: Path
) -> None:
    store = build(tmp_path / "layer-00", vectors, layer=0, corpus="of-layer-0")
    fingerprint = store.manifest.label.fingerprint

    sent = push(store, 8, server)

    assert sent.name.endswith("_L0D8")
    assert list(collection_cuts(uri, "of-layer-0", fingerprint)) == [Cut(0, 8)]
    collection = open_collection(uri, "of-layer-0", fingerprint, 0, 8)
    assert collection.layer == 0
    assert collection.ranked(["q"], vectors[3:4], 1).rankings["q"].docids == ("d3",)


def test_pushing_again_writes_nothing(server: Server, own: Store) -> None:
    first = push(own, WIDTH, server)

    told: list[int] = []
    again = push(own, WIDTH, server, progress=told.append)

    assert (first.documents, first.written, first.bytes) == (35, 35, 35 * WIDTH * 4)
    assert (again.documents, again.written, again.bytes) == (35, 0, 0)
    assert sum(told) == 35
    assert max(told) == BATCH


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_push_goes_on_where_it_was_stopped(
    uri: str, server: Server, own: Store, vectors: Floats, after: int, monkeypatch
) -> None:
    with monkeypatch.context() as patch:
        stopping(after, patch)
        with pytest.raises(UserError, match="went away"):
            push(own, WIDTH, server)
    there = server.count(name_of(own))
    with pytest.raises(UserError, match=f"is half-written: {there} of 35 documents. Go on"):
        best(uri, own, vectors[0])

    sent = push(own, WIDTH, server)

    assert there == {0: 0, 1: 8, 3: 18}[after]  # no batch crosses a shard's end, at 10
    assert (sent.written, sent.documents) == (35 - there, 35)
    assert [best(uri, own, vector) for vector in vectors[[0, 9, 34]]] == ["d0", "d9", "d34"]


def test_a_batch_that_is_there_in_part_is_sent_whole(
    uri: str, server: Server, own: Store, vectors: Floats
) -> None:
    push(own, WIDTH, server)
    server._client.delete(name_of(own), ids=[3, 12])

    sent = push(own, WIDTH, server)

    assert (sent.documents, sent.written) == (35, 8 + 8)
    assert best(uri, own, vectors[12]) == "d12"


def test_a_server_that_goes_away_is_a_sentence_and_the_push_goes_on(
    tmp_path: Path, own: Store, vectors: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    from milvus_lite.adapter.grpc.server import start_server_in_thread

    monkeypatch.setattr(milvus, "ANSWERING", 1.0)
    process, db, port = start_server_in_thread(str(tmp_path / "s.db"), host="127.0.0.1", port=0)
    server = Server(f"http://127.0.0.1:{port}")

    seen: list[int] = []

    def leaves(rows: int) -> None:
        seen.append(rows)
        if len(seen) == 2:
            process.stop(grace=0).wait()
            db.close()

    with pytest.raises(UserError, match=r"Milvus at http.* could not .*same command again") as told:
        push(own, WIDTH, server, progress=leaves)
    assert len(str(told.value)) < 600
    server.close()

    again = str(tmp_path / "s.db")
    second = Server(again)
    sent = push(own, WIDTH, second)
    assert (sent.documents, sent.written) == (35, 35 - 10)
    assert best(again, own, vectors[20]) == "d20"
    second.close()
    release(again)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"label": {"query_prefix": "ask: "}}, "query_prefix 'query: ', not 'ask: '"),
        ({"label": {"similarity": "dot"}}, "similarity 'cosine', not 'dot'"),
        ({"label": {"fingerprint": "0123456789ab" + "f" * 52}}, "fingerprint '0123"),
        ({"documents": 34}, "documents 35, not 34"),
        ({"texts": "0" * 64}, "store '"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_collection_of_other_vectors_is_refused(
    server: Server, own: Store, change: dict[str, Any], told: str
) -> None:
    push(own, WIDTH, server)
    label = replace(own.manifest.label, **change.pop("label", {}))
    other = replace(own, manifest=replace(own.manifest, label=label, **change))

    with pytest.raises(UserError, match=re.escape(told)) as refused:
        push(other, WIDTH, server)
    assert "was pushed with" in str(refused.value)
    assert "--overwrite" in str(refused.value)


def test_another_engine_is_refused_until_it_may_replace(server: Server, own: Store) -> None:
    push(own, WIDTH, server)

    with pytest.raises(UserError, match="engine 'flat', not 'hnsw'"):
        push(own, WIDTH, server, "hnsw")
    sent = push(own, WIDTH, server, "hnsw", overwrite=True)

    assert (sent.documents, sent.written) == (35, 35)
    assert server.manifest(sent.name).engine == "hnsw"


def test_what_something_else_wrote_is_refused(server: Server, own: Store, vectors: Floats) -> None:
    push(own, WIDTH, server)
    server.upsert(name_of(own), range(12, 13), ["alien"], vectors[:1])

    with pytest.raises(UserError, match="Row 12 of the collection .* is not what the store holds"):
        push(own, WIDTH, server)


def test_a_vector_that_something_else_wrote_is_refused(
    server: Server, own: Store, vectors: Floats
) -> None:
    push(own, WIDTH, server)
    server.upsert(name_of(own), range(8, 9), ["d8"], vectors[:1])

    with pytest.raises(UserError, match="Row 8 of the collection"):
        push(own, WIDTH, server)


def test_a_collection_that_m2dr_did_not_make_is_refused(server: Server, own: Store) -> None:
    server._client.create_collection(name_of(own), dimension=WIDTH)

    with pytest.raises(UserError, match="The label of the collection .* cannot be read"):
        push(own, WIDTH, server)


def test_a_label_of_a_newer_format_is_refused(server: Server, own: Store, monkeypatch) -> None:
    dump = milvus._label
    with monkeypatch.context() as patch:
        patch.setattr(milvus, "_label", lambda label: dump(label).replace('at": 1', 'at": 2'))
        push(own, WIDTH, server)

    with pytest.raises(UserError, match="has format 2, and this m2dr reads format 1"):
        push(own, WIDTH, server)


@pytest.mark.parametrize("dim", [0, 17])
def test_a_dim_that_the_store_does_not_have_is_refused(
    server: Server, own: Store, dim: int
) -> None:
    with pytest.raises(UserError, match=f"Dim {dim} was asked for; the vectors of .* have 16"):
        push(own, dim, server)


def test_an_unknown_engine_names_the_nearest(server: Server, own: Store) -> None:
    with pytest.raises(UserError, match="no engine 'flt' for Milvus. Did you mean flat"):
        push(own, WIDTH, server, "flt")
