"""Words beside vectors, by BM25 or in the queries: in a search, a filter, a grid, and after changes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import done, run
from world import WORDS

import m2dr
from m2dr.core.errors import UserError
from m2dr.core.records import Cut, Query
from m2dr.core.requests import Ask, Bm25Request, EvaluateRequest, IndexRequest, SearchRequest
from m2dr.data.loaders import open_dataset
from m2dr.evaluation.grid import read_provenance
from m2dr.evaluation.runs import read_run
from m2dr.index.bm25 import Bm25
from m2dr.model.words import WordTable, unit_rows
from m2dr.tasks.evaluating.evaluate import evaluate
from m2dr.tasks.indexing.index import index_corpus
from m2dr.tasks.searching.runs import bm25
from m2dr.tasks.searching.search import open_searcher

pytestmark = pytest.mark.filterwarnings("ignore:Cut ")
FP32 = {"device": "cpu", "dtype": "fp32"}
QUERY = "read the list of files"
DRAW = np.random.default_rng(3)
DOCUMENTS = [
    {"id": f"d{n}", "text": " ".join(DRAW.choice(WORDS, 6)), "year": 2000 + n} for n in range(80)
]


@pytest.fixture
def model(tiny_model: Path, here: Path) -> str:  # noqa: ARG001  # in which indexes lie
    return str(tiny_model)


@pytest.fixture
def index(model: str) -> m2dr.Index:
    m2dr.Index.build(model, DOCUMENTS, name="c", dims=(8, 32), **FP32)
    return m2dr.open_index("indexes/c", model=model, **FP32)


def expected(index: m2dr.Index, weight: float, wanted: str = "") -> list[tuple[str, float]]:
    """The scores by hand, of all documents; by BM25 alone of those that share a word."""
    ids = [str(hit.docid) for hit in index.search(QUERY, k=80, filter=wanted).hits]
    vectors = {hit.docid: hit.score for hit in index.search(QUERY, k=80, filter=wanted).hits}
    low, high = min(vectors.values()), max(vectors.values())
    every = Bm25.of(open_dataset("indexes/c").documents())
    scores = dict(zip(every.docids, every.scores(QUERY).tolist(), strict=True))
    best = max(scores[docid] for docid in ids)
    total = {
        docid: weight * scores[docid] / best + (1 - weight) * (vectors[docid] - low) / (high - low)
        for docid in ids
        if weight < 1 or scores[docid] > 0
    }
    return sorted(total.items(), key=lambda pair: -pair[1])


@pytest.mark.parametrize(("hybrid", "weight"), [(True, 0.4), (0.25, 0.25), (1, 1)])
@pytest.mark.parametrize("wanted", ["", "year >= 2041"])
@pytest.mark.parametrize("engine", ["flat", "exact"])
def test_hits_have_the_sum_of_both_scores(
    index: m2dr.Index, hybrid: float, weight: float, wanted: str, engine: str
) -> None:
    index = m2dr.open_index("indexes/c", model=index.resolved.model.name, engine=engine, **FP32)

    hits = index.search(QUERY, k=80, filter=wanted, hybrid=hybrid).hits

    by_hand = expected(index, weight, wanted)
    np.testing.assert_allclose(
        [hit.score for hit in hits], [score for _, score in by_hand], atol=1e-4
    )
    vectors = {hit.docid: hit.score for hit in index.search(QUERY, k=80, filter=wanted).hits}
    for hit in hits:
        assert hit.score == pytest.approx(dict(by_hand)[hit.docid], abs=1e-4)
        assert hit.vector_score == pytest.approx(vectors[hit.docid], abs=1e-5)
        assert hit.bm25_score is not None
    assert index.search(QUERY, k=1).hits[0].bm25_score is None


def test_words_follow_the_documents(index: m2dr.Index) -> None:
    (path,) = Path("indexes").rglob("bm25.safetensors")
    before, built = path.read_bytes(), path.stat().st_mtime_ns
    rare = [{"id": "new", "text": "zebras"}]

    index.add(rare)
    assert index.search("zebra", k=1, hybrid=1).hits[0].docid == "new"
    index.delete(["d3", "new"])
    assert index.search("zebra", k=1, hybrid=0.9).hits[0].bm25_score == 0
    index.add([DOCUMENTS[3]])

    index.search(QUERY, hybrid=True)
    kept = path.stat().st_mtime_ns
    index_corpus(IndexRequest("indexes/c", index.resolved.model.name, **FP32))
    assert path.stat().st_mtime_ns == kept > built
    assert path.read_bytes() != before  # d3 is last now
    path.write_bytes(before[:-9])
    fresh = m2dr.open_index("indexes/c", model=index.resolved.model.name, **FP32)
    with pytest.raises(UserError, match=r"bm25\.safetensors is not the file that was written"):
        fresh.search("list", hybrid=1)
    index_corpus(IndexRequest("indexes/c", index.resolved.model.name, **FP32))
    assert fresh.search("list", k=1, hybrid=1).hits[0].bm25_score
    bare = IndexRequest("indexes/c", index.resolved.model.name, exits=False, **FP32)
    index_corpus(replace(bare, language="none"))
    assert Bm25.open(path, fresh.searcher().documents.docids).language == "none"
    with pytest.raises(UserError, match="no stemmer of 'klingon'"):
        index_corpus(replace(bare, language="klingon"))


def test_the_command_line(index: m2dr.Index) -> None:
    words = ("search", "--corpus", "indexes/c", "--model", index.resolved.model.name)
    words += ("--device", "cpu", "--dtype", "fp32", "-k", "3")
    hits = index.search(QUERY, k=3, hybrid=0.4).hits

    for given in (("--hybrid", QUERY), ("--hybrid", ".4", QUERY), (QUERY, "--hybrid")):
        table = json.loads(done(*words, *given, "--json"))
        scores = [hit["score"] for hit in table["hits"]]
        assert scores == pytest.approx([hit.score for hit in hits], abs=1e-3)
        assert table["hits"][0]["bm25_score"] == pytest.approx(hits[0].bm25_score)
    assert run(*words, "--hybrid", "1.5", QUERY).exit_code == 2
    assert not json.loads(done(*words, "--hybrid", "1", "zzzz", "--json"))["hits"]


def test_a_weight_of_one_is_bm25(tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    """A run of a search and the grid of `m2dr evaluate` have the same rankings."""
    asked = {"corpus": str(tiny_corpus), "model": str(tiny_backbone), "root": tmp_path / "i"}
    index_corpus(IndexRequest(dims=(8,), **asked, **FP32))
    queries = open_dataset(str(tiny_corpus)).queries("test")
    bm25(Bm25Request(tmp_path / "bm25.trec", str(tiny_corpus), split="test"))
    words = read_run(tmp_path / "bm25.trec")

    for weight in (0.0, 0.3, 1.0):
        report = evaluate(
            EvaluateRequest(
                corpora=(str(tiny_corpus),), models=(str(tiny_backbone),), split="test",
                layers=(4,), dims=(8,), runs="all", hybrid=weight, costs=weight == 0.3, out=tmp_path / "results",
                root=tmp_path / "i", **FP32,
            )
        )  # fmt: skip
        name = report.grids[0].model
        assert ("hybrid" in name) == bool(weight)
        made = read_provenance(report.folder / name)
        assert made is not None
        assert made.blend["hybrid"] == weight
        for costs in report.costs:
            assert "BM25 of weight 0.3" in costs.machine
            assert costs.cells[Cut(4, 8)].bytes_per_document > 4 * 8
            words_too = ("--quality", "90%", "--hybrid", ".3")
            picked = done("pick", report.folder / "tiny-bert", *words_too)
            assert picked.startswith("L4D8: ")
        grid = read_run(report.folder / name / "runs" / "L4D8.trec")
        searcher = open_searcher(SearchRequest(dim=8, hybrid=weight, **asked, **FP32))
        mine = searcher.run([Query(query.id, query.text) for query in queries], 1000)
        for query, ranking in mine.rankings.items():
            scores, theirs = (
                dict(zip(ranking.docids, ranking.scores, strict=True)),
                grid.rankings[query],
            )
            assert {*theirs.docids} == {*ranking.docids}
            own = [scores[docid] for docid in theirs.docids]
            np.testing.assert_allclose(theirs.scores, own, atol=1e-3)
            if weight == 1:
                best = [
                    scores[docid] * words.rankings[query].scores[0]
                    for docid in words.rankings[query].docids
                ]
                np.testing.assert_allclose(words.rankings[query].scores, best, rtol=1e-5)


# Words in the queries


def test_scores_are_those_of_the_sum(index: m2dr.Index) -> None:
    searcher = index.searcher(dim=8)
    (folder,) = Path("indexes").rglob("exits")
    words = unit_rows(WordTable.open(folder).embed([QUERY]))
    queries = unit_rows(searcher.vectors([QUERY])) + 0.25 * words
    encoder = m2dr.Encoder(index.resolved.model.name, **FP32)
    texts = [str(each["text"]) for each in DOCUMENTS]
    vectors = unit_rows(encoder.encode_documents(texts)[:, :8])
    expected = unit_rows(queries[:, :8]) @ vectors.T

    for wanted, first in (("", 0), ("year >= 2040", 40)):
        hits = index.search(QUERY, dim=8, k=80, query_mix=0.25, filter=wanted).hits
        scores = {hit.docid: hit.score for hit in hits}
        assert sorted(scores) == sorted(f"d{n}" for n in range(first, 80))
        by_hand = [expected[0, int(docid[1:])] for docid in scores]
        np.testing.assert_allclose(list(scores.values()), by_hand, atol=1e-3)
    blended = index.search(QUERY, dim=8, k=80, query_mix=0.25, hybrid=True).hits
    for hit in blended:
        assert hit.vector_score == pytest.approx(expected[0, int(hit.docid[1:])], abs=1e-3)


def test_queries_that_read_words_stay_as_they_are(index: m2dr.Index) -> None:
    for layer in (0, 2):
        assert index.searcher(layer).blend(Ask(query_mix=0.5)).query_mix == 0
        mixed = index.search(QUERY, layer=layer, query_mix=True).hits
        assert mixed == index.search(QUERY, layer=layer).hits
    full = index.searcher()
    assert full.blend(Ask(query_mix=0.5)).query_mix == 0.5
    with pytest.raises(UserError, match="not from 0 to 1"):
        index.search(QUERY, query_mix=1.5)


def test_an_index_without_words_is_refused(model: str) -> None:
    index = m2dr.Index.build(model, DOCUMENTS, name="c", dims=(8,), exits=False, **FP32)

    with pytest.raises(UserError, match="no exits fitted on its documents"):
        index.search(QUERY, query_mix=True)
    assert index.search(QUERY, query_mix=0, k=3).hits


def test_a_mixed_grid_has_the_rankings_of_a_search(
    index: m2dr.Index, model: str, tmp_path: Path
) -> None:
    """Layers that read words are measured as they are, and results have a folder of their own."""
    folder = tmp_path / "indexes" / "c"
    (folder / "queries.jsonl").write_text('{"_id": "q0", "text": "read the list of files"}\n')
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("q0\td3\t1\n")
    runs = {}
    for mix in (0.0, 0.5):
        report = evaluate(
            EvaluateRequest(
                corpora=("indexes/c",), models=(model,), split="test", layers=(2, 4), dims=(8,),
                runs="all", query_mix=mix, costs=bool(mix), **FP32,
            )
        )  # fmt: skip
        name = report.grids[0].model
        assert name.endswith(".query-mix-0.5") == bool(mix)
        made = read_provenance(report.folder / name)
        assert made is not None
        assert made.blend["query_mix"] == mix
        for layer in (2, 4):
            path = report.folder / name / "runs" / f"L{layer}D8.trec"
            runs[layer, mix] = read_run(path).rankings["q0"]
            hits = index.search(QUERY, layer=layer, dim=8, k=80, query_mix=mix).hits
            scores = {hit.docid: hit.score for hit in hits}
            own = [scores[docid] for docid in runs[layer, mix].docids]
            np.testing.assert_allclose(runs[layer, mix].scores, own, atol=1e-3)
    assert runs[2, 0.0] == runs[2, 0.5]
    assert runs[4, 0.0].scores != runs[4, 0.5].scores
    (costs,) = report.costs
    assert "words of weight 0.5 in the queries" in costs.machine
    assert costs.cells[Cut(4, 8)].parameters > costs.cells[Cut(2, 8)].parameters
    done("pick", report.folder / "model", "--query-mix")
