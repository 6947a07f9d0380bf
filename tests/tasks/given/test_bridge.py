"""Queries of another model search given vectors, over a map that was fitted to them."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from http_serving import CPU, Server
from world import make_model

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
from m2dr.index.store import open_store
from m2dr.maps.files import Maps
from m2dr.model import checkpoint
from m2dr.model.tokenizer import tokenize
from m2dr.model.words import WordTable, unit_rows
from m2dr.tasks.encoder import Encoder
from m2dr.tasks.evaluating.evaluate import evaluate
from m2dr.tasks.indexing.certificate import bridge_told, measure_bridge, span_of
from m2dr.tasks.indexing.fit_index import fit_index
from m2dr.tasks.indexing.importing import import_vectors
from m2dr.tasks.indexing.verify import verify
from m2dr.tasks.query import shape_of
from m2dr.tasks.searching.index_api import Index
from m2dr.tasks.searching.search import Searcher, open_searcher

WIDE = 48  # of vectors that nobody has a model of
FP32 = {"device": "cpu", "dtype": "fp32"}
Search = Callable[..., Searcher]


@pytest.fixture
def model(tiny_model: Path) -> str:
    return str(tiny_model)


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
    return lambda **changes: open_searcher(replace(request, **changes))


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

    by_words = search(query_model=None, layer=0)
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
    monkeypatch.setattr("m2dr.tasks.indexing.steps.MOST_SPANS", 3)
    monkeypatch.setattr(
        "m2dr.tasks.indexing.steps.measure_bridge",
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
    search: Search, tiny_backbone: Path, tmp_path: Path
) -> None:
    other = make_model(tiny_backbone, tmp_path / "other", similarity="dot")
    with pytest.raises(UserError, match="was not fitted for queries of"):
        search(query_model=str(other))
    shutil.rmtree(search().resolved.index.path / "exits")
    with pytest.raises(UserError, match="has no exits"):
        search()
