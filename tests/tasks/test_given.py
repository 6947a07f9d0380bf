"""Indexes of vectors that somebody else made: no model, queries by words or as vectors."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from commands import run
from http_serving import CPU, Server
from numpy.typing import NDArray
from world import make_corpus, make_model

import m2dr
from m2dr.core.errors import UserError
from m2dr.core.records import BridgeRecord, Cut
from m2dr.core.requests import (
    EvaluateRequest,
    FitIndexRequest,
    ImportRequest,
    SearchRequest,
    VerifyRequest,
)
from m2dr.data.loaders import open_dataset
from m2dr.evaluation.grid import read_grid
from m2dr.index.folder import IndexFolder
from m2dr.index.store import StoreWriter, open_store
from m2dr.maps.files import Maps
from m2dr.model import checkpoint
from m2dr.model.tokenizer import tokenize
from m2dr.model.words import WordTable, unit_rows
from m2dr.tasks.encoder import Encoder
from m2dr.tasks.evaluating.evaluate import evaluate
from m2dr.tasks.indexing.certificate import bridge_told, measure_bridge, span_of
from m2dr.tasks.indexing.fit_index import fit_index
from m2dr.tasks.indexing.importing import import_vectors, neighbours_kept
from m2dr.tasks.indexing.verify import verify
from m2dr.tasks.query import shape_of
from m2dr.tasks.searching.index_api import Index
from m2dr.tasks.searching.search import Searcher
from m2dr.tasks.vectors import rotation_of

Floats = NDArray[np.float32]
WIDTH = 24


def vectors_of(texts: list[str]) -> Floats:
    """Sums of a random vector per word, whose strongest dims come last."""
    generator = np.random.default_rng(5)
    words = sorted({word for text in texts for word in text.split()})
    table = generator.normal(size=(len(words), WIDTH)) * np.linspace(0.1, 2, WIDTH)
    known = dict(zip(words, table, strict=True))
    rows = np.stack([sum(known[word] for word in text.split()) for text in texts])
    return rows.astype(np.float32)


class World:
    """A corpus, the vectors of its documents and queries, and a folder for indexes."""

    def __init__(self, corpus: Path, folder: Path) -> None:
        self.corpus, self.root = str(corpus), folder / "indexes"
        dataset = open_dataset(self.corpus)
        self.queries, documents = dataset.queries("test"), list(dataset.documents())
        texts = [document.content for document in documents]
        every = vectors_of([*texts, *(query.text for query in self.queries)])
        self.documents, self.given = every[: len(texts)], every[len(texts) :]
        self.vectors, self.answers = folder / "v.npy", folder / "q.jsonl"
        np.save(self.vectors, self.documents)
        lines = [
            json.dumps({"custom_id": query.id, "embedding": vector.tolist()})
            for query, vector in reversed(list(zip(self.queries, self.given, strict=True)))
        ]
        self.answers.write_text("".join(f"{line}\n" for line in lines))

    def load(self, **options: object) -> Path:
        """Import the vectors, and return the folder of their index."""
        request = ImportRequest(self.vectors, self.corpus, root=self.root, store="f32")
        return import_vectors(replace(request, **options)).store.parent  # type: ignore[arg-type]

    def searcher(self, **options: object) -> Searcher:
        return Searcher(replace(SearchRequest(self.corpus, root=self.root), **options))  # type: ignore[arg-type]


@pytest.fixture
def world(tiny_corpus: Path, here: Path) -> World:
    shutil.copytree(tiny_corpus, here / "corpus")
    return World(here / "corpus", here)


def test_words_search_vectors_without_a_model(world: World) -> None:
    home = world.load(dims=(8, WIDTH))
    query, first = world.queries[0], world.queries[0].id.replace("q", "d")

    for where in (("--corpus", world.corpus), ("--index", home)):
        told = run("search", query.text, *where, "--indexes", world.root, "-k", "40")
        assert told.exit_code == 0, told.output
        assert f"queries at L0D{WIDTH} of" in told.stderr
    ranks = world.searcher().run(world.queries, 10).rankings
    best = [query.id.replace("q", "d") in ranks[query.id].docids for query in world.queries]
    assert sum(best) >= len(best) - 1
    for dim in (1, 8, 13, WIDTH):
        hits = world.searcher(dim=dim, engine="exact").search(query.text, 40).hits
        assert len(hits) == 40
    assert first in {hit.docid for hit in world.searcher(dim=8).search(query.text).hits}


@pytest.mark.parametrize("rotate", ["yes", "no"])
@pytest.mark.parametrize("has_ids", [True, False])
def test_words_learn_from_a_log_that_has_vectors(world: World, rotate: str, has_ids: bool) -> None:
    """Vectors that are the documents' turned round show that each belongs to its query."""
    texts = [query.text for query in world.queries]
    turned = -world.given
    if has_ids:
        lines = [f"{query.id}\t{query.text}\n" for query in world.queries]
        vectors = [
            json.dumps({"custom_id": query.id, "embedding": vector.tolist()}) + "\n"
            for query, vector in reversed(list(zip(world.queries, turned, strict=True)))
        ]
        Path("q2.jsonl").write_text("".join(vectors))
    else:
        lines = [f"{text}\n" for text in (texts[0], *texts)]  # as people ask, some again
        np.save("q2.npy", np.concatenate([turned[:1], turned]))
    log, given = (
        Path("log.tsv" if has_ids else "log.txt"),
        Path("q2.jsonl" if has_ids else "q2.npy"),
    )
    log.write_text("".join(lines))
    asked = {"queries": log, "query_vectors": given, "query_weight": 3.0, "rotate": rotate}

    bare = world.load(rotate=rotate, name="bare")
    logged = world.load(name="log", **asked)

    near = []
    for home in (bare, logged):
        (exits,) = home.glob("exits")
        rotation = rotation_of(IndexFolder(home), WIDTH)
        there = turned if rotation is None else turned @ rotation.T
        found = WordTable.open(exits).embed(texts)
        near.append((unit_rows(found) * unit_rows(there)).sum(axis=1))
    assert (near[1] > near[0]).all()
    with pytest.raises(UserError, match="has exits without"):
        world.load(name="bare", **asked)
    with pytest.raises(UserError, match="was given alone"):
        world.load(name="alone", queries=log)


@pytest.mark.parametrize("rotate", ["yes", "no"])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_given_queries_have_the_scores_of_their_vectors(
    world: World, rotate: str, similarity: str
) -> None:
    world.load(rotate=rotate, similarity=similarity)
    queries, documents = world.given.astype(float), world.documents.astype(float)
    if similarity == "cosine":
        queries, documents = (
            each / np.linalg.norm(each, axis=1, keepdims=True) for each in (queries, documents)
        )
    scores = queries @ documents.T
    rounding = 1e-5 * np.abs(scores).max()  # of float32: it grows with the scores

    run_by_id = world.searcher(query_vectors=world.answers).run(world.queries, 3)

    for query, expected in zip(world.queries, scores, strict=True):
        ranking = run_by_id.rankings[query.id]
        assert ranking.scores == pytest.approx(np.sort(expected)[::-1][:3], abs=rounding)
        assert ranking.docids[0] == f"d{expected.argmax()}"
    np.save("one.npy", world.given[2:3])
    in_order = world.searcher(query_vectors=Path("one.npy")).search("any text", 1)
    assert in_order.hits[0].docid == f"d{scores[2].argmax()}"


def test_the_newest_of_several_imports_is_searched(world: World) -> None:
    homes = {name: world.load(name=name) for name in ("b", "a")}
    for store in homes["b"].glob("layer-*/store.json"):
        os.utime(store, (1, 1))

    assert world.searcher().resolved.model.name == str(homes["a"])
    named = world.searcher(model=str(homes["b"]))
    assert named.resolved.index.path == homes["b"]


def test_query_vectors_that_do_not_fit_are_refused(world: World) -> None:
    world.load()
    searcher = world.searcher(query_vectors=world.answers)
    np.save("narrow.npy", world.given[:, :8])

    with pytest.raises(UserError, match="has 8 vectors for 1 query"):
        searcher.search("text")
    with pytest.raises(UserError, match="vectors of 8 dims, and documents have 24"):
        world.searcher(query_vectors=Path("narrow.npy"))
    with pytest.raises(UserError, match="stand for layer 1; leave"):
        world.searcher(query_vectors=world.answers, query_layer=0)


def test_prefixes_are_rotated_where_that_makes_them_search(world: World) -> None:
    home = world.load()

    stored = open_store(home / "layer-01").rows(range(40))
    raw, rotated = (
        neighbours_kept(each, WIDTH // 4, "cosine") for each in (world.documents, stored)
    )
    assert raw < 0.9 * rotated
    expected = world.documents @ world.documents.T
    np.testing.assert_allclose(stored @ stored.T, expected, atol=1e-5 * np.abs(expected).max())
    np.save(world.vectors, stored)
    shutil.rmtree(home)
    again = open_store(world.load() / "layer-01").rows(range(40))
    np.testing.assert_array_equal(again, stored)  # their prefixes search as they are


def test_a_further_dim_is_of_the_vectors_where_a_corpus_has_no_others(world: World) -> None:
    home = world.load()

    told = run("index", "corpus", world.corpus, "--dim", "4", "--indexes", world.root)

    assert told.exit_code == 0, told.stderr
    assert [*home.parent.glob("*/layer-*/dim-4")] == [home / "layer-01" / "dim-4"]


def test_without_a_model_nothing_is_encoded_and_nothing_changes(world: World) -> None:
    home = world.load()
    index = m2dr.Index.open(world.corpus, root=world.root)
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    words = ("--corpus", world.corpus, "--indexes", world.root, "--model", home)

    told = [
        run("search", "read", "--query-layer", "1", *words),
        run("index", "corpus", "--overwrite", *words),
        run("encode", world.corpus, "--out", "x.npy", "--model", home),
        run("export", "--model", home, "--cut", "L1D8", "--out", "small"),
    ]

    for result in told:
        assert result.exit_code == 2
        assert "has vectors and no model" in result.stderr, result.stderr
    for change in (lambda: index.add([{"id": "new", "text": "read"}]), lambda: index.delete("d1")):
        with pytest.raises(UserError, match="has vectors and no model"):
            change()
    with pytest.raises(UserError, match="A query is empty"):
        index.search(" ")
    assert before == {path: path.read_bytes() for path in before}
    verified = run("index", "verify", home)
    assert "ok" in verified.stdout
    assert "Nothing was encoded again" in verified.stdout


def test_an_import_goes_on_and_is_not_mixed_with_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = world.load(name="mine")
    files = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    shutil.rmtree(home)
    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "finish", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            world.load(name="mine")
    world.load(name="mine")
    assert files == {path: path.read_bytes() for path in files}
    shutil.rmtree(home / "exits")
    fitted = run("index", "fit", "--corpus", world.corpus, "--indexes", world.root)
    assert fitted.exit_code == 0, fitted.output
    assert files == {path: path.read_bytes() for path in files}
    shutil.rmtree(home / "exits")

    world.load(name="mine", dims=(8,))

    assert (home / "layer-01" / "dim-8" / "manifest.json").exists()
    assert files == {path: path.read_bytes() for path in files}
    np.save(world.vectors, world.documents[::-1])
    with pytest.raises(UserError, match="holds vectors already; --overwrite replaces them"):
        world.load(name="mine")
    world.load(name="mine", overwrite=True)
    (words,) = (home / "exits").glob("*.safetensors")
    assert words.read_bytes() != files[words]


def test_bad_vectors_leave_no_index(world: World) -> None:
    world.documents[7, 3] = np.nan
    np.save(world.vectors, world.documents)
    with pytest.raises(UserError, match=r"v\.npy: the vector in row 7 is not finite"):
        world.load()
    np.save(world.vectors, world.documents[:39])
    with pytest.raises(UserError, match="has 39 vectors for 40 documents"):
        world.load()
    assert not world.root.exists()


def test_a_weight_of_no_log_is_refused(world: World) -> None:
    with pytest.raises(UserError, match=r"--query-weight 0\.3 was given without --queries"):
        world.load(model="any", query_weight=0.3)
    assert not world.root.exists()


def test_a_log_too_large_for_float16_is_told_so(world: World) -> None:
    Path("log.txt").write_text("open\nread\n")
    np.save("large.npy", np.full((2, WIDTH), [[1.0], [70_000.0]], np.float32))
    asked = {"queries": Path("log.txt"), "query_vectors": Path("large.npy"), "rotate": "no"}
    with pytest.raises(UserError, match="vector of 'read' holds 70,000, .* ends at 65,504"):
        world.load(similarity="dot", **asked)


def test_one_document_is_an_index(world: World) -> None:
    Path("one.jsonl").write_text('{"_id": "d", "text": "read the file"}\n')
    np.save(world.vectors, world.documents[:1])
    request = ImportRequest(world.vectors, "one.jsonl", root=world.root)
    import_vectors(request)

    index = m2dr.Index.open("one.jsonl", root=world.root)
    hits = index.search("read").hits
    assert [hit.docid for hit in hits] == ["d"]
    assert np.isfinite(hits[0].score)
    assert not index.search("of no word that is known").hits


def test_a_saved_index_searches_elsewhere(world: World) -> None:
    home = world.load()
    index = m2dr.Index.open(world.corpus, root=world.root)
    expected = [hit.score for hit in index.search("read the file").hits]
    index.save("saved")
    shutil.rmtree(home)

    found = m2dr.Index.load("saved").search("read the file").hits

    assert [hit.score for hit in found] == expected


@pytest.mark.parametrize("rotate", ["yes", "no"])
def test_another_store_of_the_vectors_answers_by_embed_query(world: World, rotate: str) -> None:
    world.load(rotate=rotate, dims=(8,))
    index = m2dr.Index.open(world.corpus, root=world.root, dim=8)

    vector = index.embed_query("read the file")

    unit = world.documents / np.linalg.norm(world.documents, axis=1, keepdims=True)
    scores = unit @ np.array(vector, np.float32)
    hits = index.searcher(dim=WIDTH, engine="exact").search("read the file", 40).hits
    assert [hit.score for hit in hits] == pytest.approx(np.sort(scores)[::-1].tolist(), abs=1e-4)
    assert hits[0].docid == f"d{scores.argmax()}"


def test_a_grid_has_words_and_given_queries(world: World) -> None:
    world.load(name="mine")
    request = EvaluateRequest(
        (world.corpus,), dims=(8, WIDTH), measures=("RR@10",), root=world.root,
        query_vectors=world.answers,
    )  # fmt: skip

    (grid,) = evaluate(request).grids

    assert (grid.model, set(grid.cells)) == (
        "mine",
        {Cut(layer, dim) for layer in (0, 1) for dim in (8, WIDTH)},
    )
    ranked = world.searcher(query_vectors=world.answers).run(world.queries, 10).rankings
    ranks = [ranked[query.id].docids for query in world.queries]
    own = [query.id.replace("q", "d") for query in world.queries]
    rr = [1 / (r.index(d) + 1) if d in r else 0 for r, d in zip(ranks, own, strict=True)]
    assert grid.cells[Cut(1, WIDTH)]["RR@10"] == pytest.approx(np.mean(rr))
    rows = [json.loads(line) for line in world.answers.read_text().splitlines()]
    rows = [row | {"embedding": [-x for x in row["embedding"]]} for row in rows]
    world.answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (turned,) = evaluate(request).grids  # what was measured before had other queries
    assert turned.cells[Cut(1, WIDTH)] != grid.cells[Cut(1, WIDTH)]
    assert turned.cells[Cut(0, WIDTH)] == grid.cells[Cut(0, WIDTH)]
    (words,) = evaluate(replace(request, query_vectors=None)).grids
    assert {cut.layer for cut in words.cells} == {0}
    assert read_grid(Path("results/corpus/test/mine")).model == "mine"


def test_costs_and_a_pick_need_no_model(world: World) -> None:
    world.load(name="mine")
    request = EvaluateRequest(
        (world.corpus,), dims=(8, WIDTH), measures=("RR@10",), root=world.root, costs=True,
        query_vectors=world.answers,
    )  # fmt: skip

    (costs,) = evaluate(request).costs

    assert costs.cuts == (Cut(0, 8), Cut(0, WIDTH))
    assert costs.cells[Cut(0, 8)].multiply_adds > 40 * 8
    told = run("pick", "results/corpus/test/mine", "--multiply-adds", "1M")
    assert told.exit_code == 0, told.output
    assert told.stdout.startswith("L0D")


def test_a_server_answers_by_words(world: World, tmp_path: Path) -> None:
    home = world.load(name="mine")

    with Server("--index", home, *CPU, cwd=tmp_path) as server:
        answer = server.post("/search", {"query": "read the file", "k": 3, "dim": 8})
        embedded = server.post("/v1/embeddings", {"input": "read", "model": "mine"})
        above = server.post("/search", {"query": "read", "layer": 1})
        models = server.get("/models").json["indexes"]

    assert (answer.status, len(answer.json["results"][0]["hits"])) == (200, 3)
    assert (models[0]["model"], models[0]["layers"]) == ("mine", [0])
    assert (above.status, embedded.status) == (422, 422)
    assert embedded.message == "No model embeds documents of corpus."


def test_results_by_given_vectors_of_queries_have_a_name_of_their_own(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    corpus = make_corpus(tmp_path / "c")
    queries = open_dataset(str(corpus)).queries("test")
    np.savez("q.npz", ids=[q.id for q in queries], vectors=np.eye(len(queries), 32))
    asked = EvaluateRequest((str(corpus),), (str(tiny_backbone),), layers=(4,), dims=(32,))

    own = evaluate(asked)
    given = evaluate(replace(asked, query_vectors=Path("q.npz")))

    assert own.folder == given.folder
    assert [grid.model for grid in own.grids + given.grids] == [
        "tiny-bert",
        "tiny-bert.queries-given",
    ]
    assert "queries of layer 4 are given" in given.grids[0].notes


# Queries of another model, over a bridge


WIDE = 48  # of vectors that nobody has a model of
FP32 = {"device": "cpu", "dtype": "fp32"}
Search = Callable[..., Searcher]


@pytest.fixture(scope="module")
def model(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(
        make_model(tiny_backbone, tmp_path_factory.mktemp("b") / "model", similarity="cosine")
    )


@pytest.fixture
def search(model: str, tiny_corpus: Path, here: Path) -> Search:
    """Import vectors that are linear in those of the model, and fit the index for its queries."""
    shutil.copytree(tiny_corpus, here / "corpus")
    texts = [document.content for document in open_dataset("corpus").documents()]
    turn = np.linalg.qr(np.random.default_rng(3).normal(size=(WIDE, WIDE)))[0]
    vectors = Encoder(model, **FP32).encode_documents(texts)
    np.save("v.npy", (vectors @ turn[: vectors.shape[1]]).astype(np.float32))
    import_vectors(ImportRequest(Path("v.npy"), "corpus", root=Path("i"), store="f32"))
    fit_index(FitIndexRequest("corpus", root=Path("i"), query_model=model, **FP32))
    request = SearchRequest("corpus", root=Path("i"), query_model=model, **FP32)
    return lambda **changes: Searcher(replace(request, **changes))


def test_a_bridge_scores_documents_as_the_query_model_does(search: Search, model: str) -> None:
    searcher = search()
    home, queries = searcher.resolved.index.path, searcher.resolved.dataset.queries("test")
    texts, words = [query.text for query in queries], WordTable.open(home / "exits")
    own = Encoder(model, **FP32)
    vectors = own.encode_queries(texts)
    stored = open_store(home / "layer-01").rows(range(40))
    documents = [document.content for document in searcher.resolved.dataset.documents()]

    scores = vectors @ words.bridge @ stored.T
    expected = vectors @ own.encode_documents(documents).T

    alike = [np.corrcoef(pair)[0, 1] for pair in zip(scores, expected, strict=True)]
    assert min(alike) > 0.99
    both = unit_rows(vectors @ words.bridge) + unit_rows(words.embed(texts))
    np.testing.assert_allclose(searcher.vectors(texts), both, atol=1e-5)
    assert "queries at L1D48 of model" in searcher.describe


def test_what_a_bridge_is_worth_is_measured_on_documents_it_was_not_fitted_on(
    search: Search, model: str
) -> None:
    searcher = search()
    record = Maps(searcher.resolved.index).record.bridge
    documents = [document.content for document in searcher.resolved.dataset.documents()]
    own, names = Encoder(model, **FP32), list(searcher.documents.docids)
    places = [7, 15, 23, 31, 39]  # of eight documents one is held out
    spans = [span_of(documents[place], n + 1) for n, place in enumerate(places)]
    scores = own.encode_queries(spans) @ own.encode_documents(documents).T
    best = [[names[row] for row in np.argsort(-each)[:10]] for each in scores]

    by_words = search(query_model=None, query_layer=0)
    found, alone = (
        [[hit.docid for hit in answer] for answer in each.answers(spans, 10)]
        for each in (searcher, by_words)
    )

    def overlap(rankings: list[list[str]]) -> float:
        return np.mean([len({*a} & {*b}) / 10 for a, b in zip(rankings, best, strict=True)])

    assert record is not None
    assert (record.spans, record.documents, record.model) == (5, 40, "model")
    measured = (record.overlap, record.words_overlap)
    assert measured == pytest.approx((overlap(found), overlap(alone)), abs=1e-4)
    told = verify(VerifyRequest(root=Path("i")))
    assert f"{record.overlap:.0%} of the ten best by model's own vectors" in str(told)


def test_more_held_out_documents_than_are_searched_for_are_spread_evenly(
    search: Search, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searcher = search()
    measured: list[list[str]] = []
    monkeypatch.setattr("m2dr.tasks.indexing.fit_index.MOST_SPANS", 3)
    monkeypatch.setattr(
        "m2dr.tasks.indexing.fit_index.measure_bridge",
        lambda *given: measured.append(given[2]) or measure_bridge(*given),
    )

    fit_index(FitIndexRequest("corpus", root=Path("i"), query_model=model, **FP32))

    documents = [document.content for document in searcher.resolved.dataset.documents()]
    assert measured == [[documents[row] for row in (7, 15, 31)]]  # of 7, 15, 23, 31 and 39
    record = Maps(searcher.resolved.index).record.bridge
    assert record is not None
    assert record.spans == 3


@pytest.mark.parametrize(("overlap", "advised"), [(0.4, False), (0.2, True)])
def test_a_bridge_is_advised_against_where_words_alone_find_more(
    overlap: float, advised: bool
) -> None:
    told = bridge_told(BridgeRecord("b", 250, 2000, overlap, 0.31))

    assert ("search without --query-model" in told) == advised


def test_layers_below_and_grids_stay_at_hand(search: Search, model: str) -> None:
    searcher = search()
    queries = searcher.resolved.dataset.queries("test")
    index = Index(searcher.resolved.request)
    request = EvaluateRequest(("corpus",), dims=(WIDE,), measures=("RR@10",), root=Path("i"),
                              query_model=model, runs="all", **FP32)  # fmt: skip

    (grid,) = evaluate(request).grids

    assert set(grid.cells) == {Cut(0, WIDE), Cut(1, WIDE)}
    for layer, searched in ((0, search(query_model="")), (1, searcher)):
        hits = searched.run(queries, 10).rankings.values()
        ranks = [r.docids for r in hits]
        own = [query.id.replace("q", "d") for query in queries]
        rr = [1 / (r.index(d) + 1) if d in r else 0 for r, d in zip(ranks, own, strict=True)]
        assert grid.cells[Cut(layer, WIDE)]["RR@10"] == pytest.approx(np.mean(rr))
        text = queries[0].text
        assert index.search(text, layer=layer).hits[0].docid == ranks[0][0]


def test_costs_are_those_of_the_query_model(search: Search, model: str) -> None:
    home = search().resolved.index.path
    request = EvaluateRequest(("corpus",), dims=(WIDE,), measures=("RR@10",), root=Path("i"),
                              query_model=model, costs=True, **FP32)  # fmt: skip

    (measured,) = evaluate(request).costs

    words, over = WordTable.open(home / "exits"), measured.cells[Cut(1, WIDE)]
    own, tokenizer = checkpoint.load(model)
    queries = [query.text for query in open_dataset("corpus").queries("test")]
    tokens = [len(row) for row in tokenize(own.card, tokenizer, queries, "query")]
    encoding = [shape_of(own).encode(own.layers, n) + n * WIDE for n in tokens]
    matrix = own.card.width * WIDE
    assert over.multiply_adds == pytest.approx(np.mean(encoding) + matrix + 40 * WIDE, abs=1)
    numbers = sum(p.numel() for p in own.parameters())
    assert over.parameters == numbers + matrix + words.table.size + words.weights.size
    assert over.latency_p50_ms > measured.cells[Cut(0, WIDE)].latency_p50_ms
    assert "queries of layer 1 are of model" in measured.machine


def test_a_server_answers_by_the_query_model(search: Search, model: str, tmp_path: Path) -> None:
    expected = [hit.docid for hit in search().search("read the file", 5).hits]
    where = ("--corpus", "corpus", "--indexes", "i", "--query-model", model)

    with Server(*where, *CPU, cwd=tmp_path) as server:
        hits = server.hits(query="read the file", k=5)
        (served,) = server.get("/models").json["indexes"]
        refused = server.post("/v1/embeddings", {"input": "read", "model": served["model"],
                                                 "side": "document"})  # fmt: skip

    assert (hits, served["layers"]) == (expected, [0, 1])
    own = {cut["layer"]: cut["multiply_adds"] for cut in served["costs"]}
    assert own[1] > own[0]
    assert (refused.status, "No model embeds documents" in refused.message) == (422, True)


def test_a_refit_changes_the_bridge_alone(search: Search, model: str) -> None:
    folder = search().resolved.index.path / "exits"
    before, record = WordTable.open(folder), (folder / "exits.json").read_bytes()
    request = FitIndexRequest("corpus", root=Path("i"), query_model=model, **FP32)

    fit_index(request)

    assert (folder / "exits.json").read_bytes() == record  # with the digest of the words
    with pytest.raises(UserError, match="has exits of these documents"):
        fit_index(replace(request, query_model=""))
    fit_index(replace(request, query_model="", overwrite=True))
    words = WordTable.open(folder)
    assert words.bridge is None
    np.testing.assert_array_equal(words.table, before.table)


def test_queries_without_a_bridge_are_refused(
    search: Search, tiny_backbone: Path, model: str, tmp_path: Path
) -> None:
    other = make_model(tiny_backbone, tmp_path / "other", similarity="dot")
    with pytest.raises(UserError, match="was not fitted for queries of"):
        search(query_model=str(other))
    wanted = EvaluateRequest(("corpus",), root=Path("i"), query_model=model, **FP32)
    folder = search().resolved.index.path / "exits"
    shutil.rmtree(folder)
    with pytest.raises(UserError, match="has no exits"):
        search()
    with pytest.raises(UserError, match="has no exits"):
        evaluate(wanted)
