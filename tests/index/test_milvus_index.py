import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from m2dr.index.milvus_index import MilvusCollection, collection_cuts, open_collection, push
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.core.records import Cut, Ranking, Run
from m2dr.index import milvus, milvus_index
from m2dr.index.exact import prefix_runs
from m2dr.index.faiss_build import build_index, open_index
from m2dr.index.manifest import Label
from m2dr.index.milvus import DEEPEST, MILVUS_ENGINES, Server, collection_name, cut_of
from m2dr.index.searchable import Searchable
from m2dr.index.store import Store

pymilvus = pytest.importorskip("pymilvus")
pytest.importorskip("milvus_lite")

Floats = NDArray[np.float32]


@pytest.fixture
def queries() -> Floats:
    return np.random.default_rng(7).normal(size=(5, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def shared(build, tmp_path_factory: pytest.TempPathFactory, uri: str) -> Store:
    """A store that lies in Milvus at dims 8 and 16."""
    data = np.random.default_rng(13).normal(size=(35, 16)).astype(np.float32)
    store = build(tmp_path_factory.mktemp("shared"), data, corpus="shared")
    server = Server(uri, create=True)
    for dim in (8, 16):
        push(store, dim, server)
    server.close()
    return store


@pytest.fixture
def named(
    build, vectors: Floats, tmp_path: Path, request: pytest.FixtureRequest
) -> Callable[..., Store]:
    """A store whose corpus has the name of the test, so that no two tests share a collection."""

    def named(data: Floats = vectors, docids: tuple[str, ...] = (), **settings: object) -> Store:
        return build(tmp_path / "store", data, docids, corpus=request.node.name, **settings)

    return named


def opened(uri: str, store: Store, dim: int) -> MilvusCollection:
    manifest = store.manifest
    return open_collection(uri, manifest.corpus, manifest.label.fingerprint, store.layer, dim)


def naive(store: Store, queries: Floats, dim: int, k: int) -> dict[str, list[tuple[str, float]]]:
    """Every score by itself in float64, ranked by score and then docid, both descending."""
    found = {}
    for number, query in enumerate(queries):
        q, pairs = query[:dim].astype(float), []
        for row in range(store.documents):
            d = store.rows([row])[0, :dim].astype(float)
            lengths = np.linalg.norm(q) * np.linalg.norm(d)
            cosine = store.manifest.label.similarity == "cosine"
            pairs.append((np.float32(q @ d / (lengths if cosine else 1)), store.docids[row]))
        best = sorted(pairs, reverse=True)[:k]
        found[f"q{number}"] = [(docid, float(score)) for score, docid in best]
    return found


def same(run: Run, expected: dict[str, list[tuple[str, float]]]) -> None:
    assert list(run.rankings) == list(expected)
    for name, ranking in run.rankings.items():
        assert list(ranking.docids) == [docid for docid, _ in expected[name]]
        assert list(ranking.scores) == pytest.approx([s for _, s in expected[name]], abs=1e-5)


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("dim", [1, 8, 16])
def test_a_collection_of_a_prefix_ranks_by_that_prefix_alone(
    uri: str, server: Server, named, queries: Floats, dim: int, similarity: str
) -> None:
    store = named(similarity=similarity)

    push(store, dim, server)

    run = opened(uri, store, dim).ranked([f"q{n}" for n in range(5)], queries, k=9)
    same(run, naive(store, queries, dim, 9))


@pytest.mark.parametrize("engine", MILVUS_ENGINES)
def test_every_kind_of_index_finds_what_is_nearest(
    uri: str, server: Server, named, queries: Floats, engine: str
) -> None:
    store = named()

    push(store, 16, server, engine)

    collection = opened(uri, store, 16)
    run = collection.ranked([f"q{n}" for n in range(5)], queries, k=5)
    assert collection.manifest.engine == engine
    same(run, naive(store, queries, 16, 5))


def test_faiss_itself_the_index_the_exact_engine_and_milvus_agree(
    uri: str, shared: Store, queries: Floats
) -> None:
    names = [f"q{n}" for n in range(5)]
    folder = build_index(shared, 8)

    prefix = queries[:, :8] / np.linalg.norm(queries[:, :8], axis=1, keepdims=True)
    docids = (folder / "docid").read_text().splitlines()
    scores, rows = faiss.read_index(str(folder / "index")).search(prefix, 10)
    plain = Run(
        {
            name: Ranking.of([docids[row] for row in query_rows], query_scores)
            for name, query_rows, query_scores in zip(names, rows, scores, strict=True)
        }
    )
    kind = shared.manifest.label.similarity
    runs = [
        plain,
        open_index(folder).ranked(names, queries, 10),
        prefix_runs(names, queries, shared, shared.docids, [8], 10, kind)[8],
        opened(uri, shared, 8).ranked(names, queries, 10),
    ]

    for run in runs[1:]:
        for name in names:
            assert run.rankings[name].docids == plain.rankings[name].docids
            found = pytest.approx(plain.rankings[name].scores, abs=1e-4)
            assert run.rankings[name].scores == found


def test_a_collection_is_searchable(uri: str, shared: Store, label: Label) -> None:

    collection: Searchable = opened(uri, shared, 8)

    assert (collection.corpus, collection.documents) == (shared.manifest.corpus, 35)
    assert (collection.layer, collection.dim) == (6, 8)
    collection.accept(label, Cut(2, 8))
    assert collection.warnings(Cut(6, 8)) == []
    assert "layer 2 search documents of layer 6" in " ".join(collection.warnings(Cut(2, 8)))


def test_copies_rank_by_docid_wherever_they_lie(uri: str, server: Server, named) -> None:
    rng = np.random.default_rng(3)
    data = rng.normal(size=(60, 16)).astype(np.float32)
    data[::2] = data[0]  # thirty copies, at rows that a server may round differently
    store = named(data)
    push(store, 16, server)
    queries = (data[:1] + 0.1 * rng.normal(size=(4, 16))).astype(np.float32)

    collection = opened(uri, store, 16)
    for k in (1, 3, 7, 8, 9, 40):
        run = collection.ranked([f"q{n}" for n in range(4)], queries, k)
        same(run, naive(store, queries, 16, k))


def test_scores_a_server_rounded_apart_are_mended(
    uri: str, server: Server, named, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = np.tile(np.linspace(1, 2, 16, dtype=np.float32), (30, 1))
    store = named(data)
    push(store, 16, server)
    search = Server.search

    def rounded(*words: object) -> list[list[milvus.Hit]]:
        hits = search(*words)  # type: ignore[arg-type]
        return [[(s * (1 - 1e-7 * (r % 3)), r, d) for s, r, d in each] for each in hits]

    monkeypatch.setattr(Server, "search", rounded)

    run = opened(uri, store, 16).ranked(["q"], data[:1], k=4)

    assert run.rankings["q"].docids == ("d9", "d8", "d7", "d6")


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None
)
@given(k=st.integers(1, 50), numbers=st.lists(st.integers(0, 34), max_size=6, unique=True))
def test_dropping_a_document_makes_room_for_the_next(
    uri: str, shared: Store, k: int, numbers: list[int]
) -> None:
    names, vectors = [f"d{n}" for n in numbers], shared.rows(numbers).astype(np.float32)

    run = opened(uri, shared, 16).ranked(names, vectors, k, {name: name for name in names})

    for number, name in enumerate(names):
        expected = naive(shared, vectors[[number]], 16, 35)["q0"]
        left = [docid for docid, _ in expected if docid != name][:k]
        assert list(run.rankings[name].docids) == left


def test_no_queries_find_nothing(uri: str, shared: Store) -> None:

    run = opened(uri, shared, 8).ranked([], np.empty((0, 16), np.float32), 3)

    assert run == Run({})


def test_many_queries_come_in_batches(
    uri: str, shared: Store, vectors: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"q{n}" for n in range(35)]
    collection = opened(uri, shared, 16)
    at_once = collection.ranked(names, vectors, 2)

    monkeypatch.setattr(milvus_index, "_ANSWERS", 40)

    batched = collection.ranked(names, vectors, 2)
    for name in names:
        assert batched.rankings[name].docids == at_once.rankings[name].docids


@pytest.mark.parametrize(
    ("k", "sentence"),
    [
        (0, "0 documents per query were asked for"),
        (DEEPEST + 1, "16,385 documents per query were asked for, and Milvus gives 16,384"),
    ],
)
def test_a_depth_that_milvus_does_not_give_is_refused(
    uri: str, shared: Store, queries: Floats, k: int, sentence: str
) -> None:
    collection = opened(uri, shared, 8)
    large = MilvusCollection(replace(collection.manifest, documents=10**6), collection.server)

    with pytest.raises(UserError, match=sentence):
        large.ranked(["q"], queries[:1], k)


def test_queries_of_another_model_or_dim_are_refused(uri: str, shared: Store, label: Label) -> None:
    collection = opened(uri, shared, 8)

    with pytest.raises(UserError, match="were encoded by model 0123456789ab"):
        collection.accept(replace(label, fingerprint="f" * 64), Cut(6, 8))
    with pytest.raises(UserError, match="encoded differently by the same model: query_prefix"):
        collection.accept(replace(label, query_prefix=""), Cut(6, 8))
    with pytest.raises(UserError, match="dimension 16 .*has dimension 8"):
        collection.accept(label, Cut(6, 16))


def test_a_cut_that_was_not_pushed_names_those_that_were(uri: str, shared: Store) -> None:
    corpus, fingerprint = shared.manifest.corpus, shared.manifest.label.fingerprint

    assert collection_cuts(uri, corpus, fingerprint) == (Cut(6, 8), Cut(6, 16))
    with pytest.raises(
        UserError, match=r"no L6D4 .*; there are L6D8, L6D16\. Push it with m2dr index push"
    ):
        opened(uri, shared, 4)


def test_a_collection_with_the_name_of_another_corpus_is_refused(
    uri: str, server: Server, named, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = named()
    push(store, 8, server)
    manifest = replace(server.manifest(collection_name(store.manifest.corpus, "0123456789ab", Cut(6, 8))), corpus="other")  # fmt: skip
    monkeypatch.setattr(Server, "manifest", lambda *_: manifest)

    with pytest.raises(UserError, match="holds other by model"):
        opened(uri, store, 8)


def test_a_name_in_milvus_is_letters_digits_and_underscores() -> None:
    names = {
        collection_name(corpus, "0123-4567", Cut(6, 8)) for corpus in ("a-b", "a_b", "a/b", "ä b")
    }

    assert len(names) == 4
    assert all(name.isascii() and name.replace("_", "").isalnum() for name in names)


@given(corpus=st.text(min_size=1, max_size=300), layer=st.integers(0, 99), dim=st.integers(1, 9999))
def test_a_cut_is_read_from_its_name_alone(corpus: str, layer: int, dim: int) -> None:
    name = collection_name(corpus.encode("utf-8", "ignore").decode(), "ab" * 32, Cut(layer, dim))

    assert len(name) < 255
    assert cut_of(name, corpus.encode("utf-8", "ignore").decode(), "ab" * 32) == Cut(layer, dim)
    assert cut_of(name, "other", "ab" * 32) is None or corpus == "other"
    assert cut_of(f"{name}_old", corpus.encode("utf-8", "ignore").decode(), "ab" * 32) is None


def test_an_address_that_is_none_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'localhost:19530' is no address of Milvus"):
        Server("localhost:19530")
    with pytest.raises(UserError, match="'ftp://host' is no address"):
        Server("ftp://user:secret@host")
    with pytest.raises(UserError, match="There is no Milvus Lite file .*absent.db"):
        Server(str(tmp_path / "absent.db"))
    with pytest.raises(UserError, match="There is no folder"):
        Server(str(tmp_path / "absent" / "x.db"), create=True)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_local_file_whose_connection_is_lost_is_connected_again(
    uri: str, server: Server, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    client, attempts = pymilvus.MilvusClient, []

    def losing(**words: object) -> pymilvus.MilvusClient:
        attempts.append(1)
        if len(attempts) <= lost:
            raise pymilvus.MilvusException(message="Fail connecting to server")
        return client(**words)

    monkeypatch.setattr(pymilvus, "MilvusClient", losing)

    again = Server(uri)

    assert again.names() == server.names()
    again.close()


def test_a_server_that_is_down_is_a_sentence_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(milvus, "CONNECTING", 0.5)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    with pytest.raises(UserError, match="Milvus at .* could not be opened") as refused:
        Server(f"http://root:secret@127.0.0.1:{port}")
    assert "secret" not in str(refused.value)


def test_an_absent_library_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pymilvus", None)

    with pytest.raises(UserError, match=r"pip install 'm2dr\[milvus\]'"):
        Server("http://localhost:19530")


def test_pushing_in_small_batches_writes_the_same(
    uri: str, server: Server, named, queries: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus_index, "BATCH_BYTES", 4 * 16 * 4)
    store, told = named(), []

    sent = push(store, 16, server, progress=told.append)

    assert (sent.documents, sent.written, sent.bytes) == (35, 35, 35 * 16 * 4)
    assert max(told) == 4
    assert sum(told) == 35
    same(opened(uri, store, 16).ranked(["q0"], queries[:1], 35), naive(store, queries[:1], 16, 35))


def test_connecting_closes_nobodys_log(tmp_path: Path) -> None:
    program = (
        "import logging, sys; handler = logging.FileHandler(sys.argv[1]);"
        "from m2dr.index.milvus import Server; Server(sys.argv[2], create=True).close();"
        "assert handler.stream is not None, 'closed'; assert not handler.stream.closed"
    )

    subprocess.run([sys.executable, "-c", program, tmp_path / "log", tmp_path / "a.db"], check=True)
