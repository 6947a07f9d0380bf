"""Exits fitted on the documents of an index: shallow queries search its last layer."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from world import WORDS, assert_alike, made, make_model, write_beir

from m2dr import open_index
from m2dr.core.errors import UserError
from m2dr.core.files import json_sha256
from m2dr.core.records import EXITS_FILE, Cut, FitRecord
from m2dr.core.requests import (
    EvaluateRequest,
    FitIndexRequest,
    IndexRequest,
    QueryOptions,
    SearchRequest,
)
from m2dr.index.bm25 import Bm25
from m2dr.index.folder import IndexFolder
from m2dr.index.store import open_store
from m2dr.maps.files import Maps, ShortFile
from m2dr.maps.log import QUERY_WEIGHT
from m2dr.model import checkpoint, hub
from m2dr.model.words import WordTable, unit_rows
from m2dr.tasks.corpus import WRITTEN
from m2dr.tasks.evaluating.evaluate import evaluate
from m2dr.tasks.indexing import steps
from m2dr.tasks.indexing.fit_index import fit_index
from m2dr.tasks.indexing.index import index_corpus
from m2dr.tasks.query import open_queries, plan_query
from m2dr.tasks.searching.search import open_searcher

pytestmark = pytest.mark.usefixtures("exits_of_few")
Ask = Callable[..., IndexRequest]


def write_documents(folder: Path, length: int = 6) -> Path:
    """Write a corpus of 150 different documents, and 60 judged queries of dev from their words."""
    draw = np.random.default_rng(13)
    texts = [" ".join(draw.choice(WORDS, length)) for _ in range(150)]
    rows = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts)]
    queries = {"q0": texts[3]} | {f"dev{i}": texts[i][:20] for i in range(60)}
    dev = [(f"dev{i}", f"d{i}", 1) for i in range(60)]
    return write_beir(folder, rows, queries, test=[("q0", "d3", 1)], dev=dev)


@pytest.fixture
def long(ask: Ask, tmp_path: Path) -> Ask:
    """Ask for an index of documents that are long enough for spans, with a log."""
    documents, log = write_documents(tmp_path / "long", 14), tmp_path / "log.txt"
    draw = np.random.default_rng(14)
    log.write_text("".join(" ".join(draw.choice(WORDS, 3)) + "\n" for _ in range(40)))

    def request(root: str = "indexes", **changes: object) -> IndexRequest:
        return ask(root, **{"corpus": str(documents), "queries": log, **changes})

    return request


@pytest.fixture
def ask(tiny_backbone: Path, tmp_path: Path) -> Ask:
    model = make_model(tiny_backbone, tmp_path / "model", similarity="cosine")
    documents = write_documents(tmp_path / "many")

    def request(root: str = "indexes", **changes: object) -> IndexRequest:
        asked = IndexRequest(
            str(documents), str(model), root=tmp_path / root, device="cpu", shard_rows=32
        )
        return replace(asked, **changes)

    return request


def folder_of(request: IndexRequest) -> Path:
    (folder,) = request.root.glob("*/*/exits")
    return folder


def maps_of(request: IndexRequest) -> Maps:
    return Maps(IndexFolder(folder_of(request).parent))


def fit_of(request: IndexRequest) -> FitIndexRequest:
    return FitIndexRequest(request.corpus, request.model, root=request.root, device="cpu")


def search_of(request: IndexRequest) -> SearchRequest:
    return SearchRequest(request.corpus, request.model, root=request.root, layer=2, device="cpu")


def change(path: Path, **fields: object) -> None:
    table = {**json.loads(path.read_text()), **fields}
    if "digest" in table:
        del table["digest"]
        table["digest"] = json_sha256(table)
    path.write_text(json.dumps(table))


@pytest.mark.usefixtures("dtype")
def test_queries_of_every_layer_search_the_documents_of_the_last(ask: Ask) -> None:
    request = ask()
    index_corpus(request)
    assert not any(folder_of(request).glob("states-*"))
    opened = open_index(request.corpus, model=request.model, root=request.root, device="cpu")
    texts = ["open the file", "a list of numbers", "class module"]
    full = [answer.hits for answer in opened.search(texts, k=150)]
    places = [{hit.docid: hit.rank for hit in hits} for hits in full]
    for layer in (1, 2, 3):
        found = opened.search(texts, layer=layer, k=10)
        for answer, place in zip(found, places, strict=True):
            near = [place[hit.docid] for hit in answer.hits]
            assert np.median(near) < 40  # of 150; chance is 75
    # Words leave out the mean, which ranks too in a model that was never trained.
    lines = (Path(request.corpus) / "corpus.jsonl").read_text().splitlines()
    known = opened.search([json.loads(line)["text"] for line in lines], layer=0, k=150)
    ranks = [
        next(hit.rank for hit in each.hits if hit.docid == f"d{n}") for n, each in enumerate(known)
    ]
    assert np.median(ranks) < 40


@pytest.mark.usefixtures("dtype")
def test_exits_are_the_same_when_they_are_fitted_later(ask: Ask) -> None:
    whole = ask()
    index_corpus(whole)
    bare = ask("bare", exits=False)
    index_corpus(bare)
    assert not list(bare.root.glob("*/*/exits"))
    fit_index(fit_of(bare))
    (folder_of(bare).parent / "asked.json").unlink()  # that it has exits after all
    assert_alike(bare.root, made(whole.root))


def test_a_bridge_leaves_the_exits_as_they_are(ask: Ask) -> None:
    request = ask()
    index_corpus(request)
    before = (folder_of(request) / hub.EXITS).read_bytes()
    shallow = open_searcher(search_of(request)).vectors(["read the file"])

    fit_index(replace(fit_of(request), query_model=request.model))

    assert (folder_of(request) / hub.EXITS).read_bytes() == before
    np.testing.assert_array_equal(
        open_searcher(search_of(request)).vectors(["read the file"]), shallow
    )
    asked = EvaluateRequest((request.corpus,), (request.model,), dims=(32,), measures=("RR@10",),
                            root=request.root, query_model=request.model, device="cpu",
                            out=request.root / "results")  # fmt: skip
    (grid,) = evaluate(asked).grids
    assert [cut.layer for cut in grid.cells] == [0, 1, 2, 3, 4]
    by_model = replace(search_of(request), layer=None, query_model=request.model)
    searcher = open_searcher(by_model)
    (ranking,) = searcher.run(searcher.resolved.dataset.queries("test"), 10).rankings.values()
    assert grid.cells[Cut(4, 32)]["RR@10"] == 1 / (ranking.docids.index("d3") + 1)


def test_exits_of_other_documents_another_model_or_another_prefix_are_refused(ask: Ask) -> None:
    request = ask()
    index_corpus(request)
    folder = folder_of(request)
    record, maps = folder / EXITS_FILE, maps_of(request)
    whole = record.read_text()
    assert maps.are_fitted

    change(record, corpus="another")
    assert not maps.are_fitted
    with pytest.raises(UserError, match="no exits"):
        open_searcher(replace(search_of(request), exits="index"))
    record.write_text(whole)
    change(record, fingerprint="0" * 64)
    with pytest.raises(UserError, match="of model 000000000000"):
        checkpoint.load(request.model, exits=folder)
    record.write_text(whole)
    change(Path(request.model) / "m2dr.json", document_prefix="the file ")
    with pytest.raises(UserError, match="document_prefix"):
        fit_index(replace(fit_of(request), overwrite=True))
    index_corpus(replace(request, overwrite=True, exits=False))
    record.write_text(whole)
    assert not maps.are_fitted


@pytest.mark.parametrize("language", ["", "german", "none"])
def test_layer_0_is_words_of_the_corpus(language: str, ask: Ask) -> None:
    request = ask(exits=False)
    index_corpus(request)
    fitted = fit_index(replace(fit_of(request), language=language))
    (folder,), record = fitted.files, fitted.exits
    table, texts = WordTable.open(folder), ["decode a packed file", "list", "unheard", "?"]

    model = checkpoint.open_model(request.model)
    plan = plan_query(QueryOptions(), model, IndexFolder(folder.parent), 0)
    queries = open_queries(plan)

    found = queries.embed(queries.tokenize(texts), texts)
    np.testing.assert_array_equal(found, table.embed(texts))
    assert found.any(axis=1).tolist() == [True, True, False, False]
    assert record.fit.language == table.language == (language or "english")
    with pytest.raises(UserError, match="has exits of these documents"):
        fit_index(fit_of(request))
    (folder / hub.WORDS).write_bytes(b"")
    with pytest.raises(UserError, match=r"words\.safetensors is missing or not the file"):
        open_queries(plan)


@pytest.mark.filterwarnings("ignore:Cut L3D32 was not trained")
@pytest.mark.parametrize("exits", ["", "index", "model"])
def test_a_grid_ranks_as_a_search_does(
    exits: str, ask: Ask, tiny_backbone: Path, tmp_path: Path
) -> None:
    cuts = (Cut(2, 32), Cut(4, 32))  # layer 2 is trained, and keeps its own by default
    model = make_model(tiny_backbone, tmp_path / "trained", similarity="cosine", cuts=cuts)
    request = replace(ask(), model=str(model))
    layers = (2, 3, 4) if exits == "model" else (0, 1, 2, 3, 4)
    asked = EvaluateRequest(
        (request.corpus,), (request.model,), runs="all", exits=exits, root=request.root,
        out=tmp_path / "results", device="cpu", layers=layers,
    )  # fmt: skip
    (grid,) = evaluate(asked).grids

    assert (grid.model, grid.layers) == ("trained" + f".{exits}-exits" * bool(exits), layers)
    named = {"": "layers 0, 1, 3 pass", "index": "layers 0, 1, 2, 3 pass"}.get(exits, "pass")
    assert any(named in note for note in grid.notes) == bool(exits != "model")
    index_corpus(replace(request, dims=(32,), layers=(2, 3, 4)))
    opened = open_index(
        request.corpus, model=request.model, root=request.root, device="cpu", exits=exits
    )
    query = json.loads((Path(request.corpus) / "queries.jsonl").read_text().splitlines()[0])["text"]
    for layer in layers:
        (answer,) = opened.search([query], layer=layer, k=20)
        run = tmp_path / "results" / "many" / "test" / grid.model / "runs" / f"L{layer}D32.trec"
        lines = run.read_text().splitlines()[:20]
        assert [hit.docid for hit in answer.hits] == [line.split()[2] for line in lines]


def outdate(request: IndexRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Take 50 documents away, stop before the words follow, and return the corpus."""
    path = Path(request.corpus) / "corpus.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[50:]))
    with monkeypatch.context() as patch:
        patch.setattr(steps, "_refit_words", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            index_corpus(request)
    return path


def record_of(request: IndexRequest) -> FitRecord:
    return maps_of(request).record.fit


@pytest.mark.usefixtures("dtype")
def test_spans_and_a_log_are_rows_of_the_words(long: Ask) -> None:
    bare, logged = long("spans", queries=None), long("log", query_weight=1.0)
    for request in (bare, logged):
        index_corpus(request)
    spans, both = record_of(bare), record_of(logged)
    assert (spans.spans, spans.queries) == (37, 0)
    assert (both.spans, both.queries, both.query_weight) == (37, 40, 1.0)
    assert logged.queries is not None
    asked = logged.queries.read_text().splitlines()
    full = open_searcher(replace(search_of(bare), layer=None)).vectors(asked)
    near = [
        (unit_rows(WordTable.open(folder_of(r)).embed(asked)) * unit_rows(full)).sum(1).mean()
        for r in (bare, logged)
    ]
    assert near[1] > near[0]

    index_corpus(logged)


def test_another_language_is_refused_until_a_fit_replaces_the_words(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ask()
    index_corpus(request)
    german, told = replace(request, language="german"), "words of language english, not german"
    with pytest.raises(UserError, match=told):
        index_corpus(german)
    again = replace(fit_of(request), language="german")
    with pytest.raises(UserError, match=told):
        fit_index(replace(again, query_model=request.model))
    monkeypatch.setattr("m2dr.maps.files.FEWEST_DOCUMENTS", 1000)
    with pytest.raises(UserError, match=told):
        index_corpus(german)  # which would fit none
    fit_index(replace(again, overwrite=True))
    home = folder_of(request).parent
    words = Bm25.open(IndexFolder(home).bm25, open_store(home / "layer-04").docids)
    assert words is not None
    assert words.language == record_of(request).language == "german"
    index_corpus(german)


def test_texts_without_spaces_give_spans_too(
    ask: Ask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw, signs = np.random.default_rng(3), list("東京都日本首人口大学研究語活動物")
    texts = ["".join(draw.choice(signs, 40)) + "。" for _ in range(80)]
    path = tmp_path / "signs.jsonl"
    lines = [{"_id": f"d{n}", "text": text} for n, text in enumerate(texts)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    request = ask(corpus=str(path))
    index_corpus(request)
    spans = ShortFile.read(folder_of(request)).texts
    assert record_of(request).spans == len(spans) == 20
    assert "20 spans" in capsys.readouterr().err
    assert all(any(span in text for text in texts) and 6 <= len(span) <= 21 for span in spans)


def test_a_log_that_no_exit_would_learn_from_is_refused(
    long: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(why: str, do: Callable[..., object], request: object) -> None:
        with pytest.raises(UserError, match=why):
            do(request)

    logged, bare = long("log", query_weight=0.4), long("bare", queries=None)
    index_corpus(logged)
    index_corpus(bare)
    refused("has exits without .* of weight 1;", index_corpus, replace(logged, query_weight=1.0))
    for changes in ({"exits": False}, {"layers": (1,)}):
        refused("is for fitting exits, but this index", index_corpus, long("none", **changes))
    refused("given without --queries", index_corpus, replace(bare, query_weight=0.4))
    asked = replace(fit_of(bare), queries=logged.queries)
    refused("has exits without", fit_index, replace(asked, query_model=bare.model))
    path = outdate(bare, monkeypatch)
    refused("has exits without", fit_index, asked)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[10:]))
    store = folder_of(bare).parent / "layer-04" / "store.json"
    before = store.read_bytes()
    refused("has exits without", index_corpus, replace(bare, queries=logged.queries))
    assert store.read_bytes() == before  # refused before a document is encoded
    monkeypatch.setattr("m2dr.maps.files.FEWEST_DOCUMENTS", 1000)
    refused("90 < 1000", index_corpus, long("few"))


def test_a_log_counts_as_by_default(long: Ask) -> None:
    request = long()
    index_corpus(request)
    assert record_of(request).query_weight == QUERY_WEIGHT


def test_words_keep_the_spans_of_documents_that_stay(long: Ask) -> None:
    """After a change they are those of a fit of the same rows, and no word of others is kept."""
    request = long(query_weight=0.4)
    index_corpus(request)
    Path(request.corpus, WRITTEN).touch()
    before = ShortFile.read(folder_of(request))
    index = open_index(request.corpus, model=request.model, root=request.root, device="cpu")
    index.delete([f"d{n}" for n in range(50)])

    after = ShortFile.read(folder_of(request))
    gone = np.isin(before.digests, after.digests, invert=True).sum()
    assert 0 < gone < 37
    assert list(after.texts) == list(before.texts)[gone:]
    assert record_of(request).spans == len(after.digests) == 37 - gone
    again = WordTable.open(folder_of(request))
    assert again.alone is not None
    assert not np.allclose(again.table, again.alone, atol=1e-3)


def test_words_follow_the_documents_of_the_index_not_those_of_the_corpus_by_now(
    long: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = long(queries=None)
    index_corpus(request)
    path = outdate(request, monkeypatch)
    before = path.read_text()
    path.write_text(before.replace("list", "unseen"))
    with pytest.raises(UserError, match="holds other documents"):
        fit_index(fit_of(request))
    assert "unseen" not in WordTable.open(folder_of(request)).rows

    path.write_text(before)
    fit_index(fit_of(request))
    assert not maps_of(request).is_old()


@pytest.mark.parametrize("step", ["fit_lacking", "open_bm25"])
@pytest.mark.parametrize("keep", [150, 90])
def test_a_corpus_that_changes_while_it_is_indexed_is_refused_until_the_next_run(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, step: str, keep: int
) -> None:
    request = ask()
    path, reached = Path(request.corpus) / "corpus.jsonl", getattr(steps, step)

    def changed(*args: object, **options: object) -> object:
        lines = path.read_text().splitlines(keepends=True)[:keep]
        path.write_text("".join(line.replace("list", "unseen") for line in lines))
        return reached(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(steps, step, changed)
        with pytest.raises(UserError, match="changed since it was encoded; m2dr index corpus"):
            index_corpus(request)

    index_corpus(request)
    index_corpus(again := ask("again"))
    folders = folder_of(request), folder_of(again)
    one, other = (WordTable.open(folder) for folder in folders)
    assert one.rows == other.rows
    np.testing.assert_allclose(one.table, other.table, atol=1e-2)
    one_bm25, other_bm25 = (folder.with_name("bm25.safetensors") for folder in folders)
    assert one_bm25.read_bytes() == other_bm25.read_bytes()


def test_words_follow_the_vectors_of_the_last_layer_whichever_is_asked_for(long: Ask) -> None:
    first, whole = (long(root, queries=None, layers=(1, 4)) for root in ("first", "whole"))
    index_corpus(first)
    index_corpus(whole)
    path = Path(first.corpus) / "corpus.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[50:]))
    index_corpus(replace(first, layers=(1,)))
    index_corpus(whole)
    one, other = (WordTable.open(folder_of(request)).table for request in (first, whole))
    np.testing.assert_array_equal(one, other)


def test_exits_are_fitted_as_was_asked_before_where_nothing_is_named(
    long: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a fit that stopped before its record, and with --overwrite."""
    asked = {"language": "german", "query_weight": 0.4}
    whole, broken = long("whole", **asked), long("broken", **asked)
    index_corpus(whole)
    expected = {path.name: path.read_bytes() for path in folder_of(whole).iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(steps, "fit_exits", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            index_corpus(broken)

    index_corpus(long("broken", queries=None, shard_rows=None))

    assert {path.name: path.read_bytes() for path in folder_of(broken).iterdir()} == expected
    stems = [maps_of(each).index.bm25.read_bytes() for each in (whole, broken)]
    assert stems[0] == stems[1]
    fit_index(replace(fit_of(whole), overwrite=True))
    fit = record_of(whole)
    assert fit == record_of(broken)
    fit_index(replace(fit_of(whole), overwrite=True, query_weight=1.0))
    assert record_of(whole) != fit
    assert record_of(whole).log == fit.log
