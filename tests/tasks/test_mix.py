"""Words in the queries of the full model: in a search, a filter, a grid, its costs and the server."""

from pathlib import Path

import numpy as np
import pytest
from commands import done
from world import WORDS, make_model

import m2dr
from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.core.requests import EvaluateRequest
from m2dr.evaluation.grid import read_provenance
from m2dr.evaluation.runs import read_run
from m2dr.model.words import WordTable, unit_rows
from m2dr.tasks.evaluating.evaluate import evaluate

pytestmark = pytest.mark.filterwarnings("ignore:Cut ")
FP32 = {"device": "cpu", "dtype": "fp32"}
QUERY = "read the list of files"
ROOT = Path("indexes")


def documents() -> list[dict[str, object]]:
    draw = np.random.default_rng(3)
    return [
        {"id": f"d{n}", "text": " ".join(draw.choice(WORDS, 6)), "year": 2000 + n}
        for n in range(80)
    ]


@pytest.fixture
def model(tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(make_model(tiny_backbone, tmp_path / "model", similarity="cosine"))


@pytest.fixture
def index(model: str) -> m2dr.Index:
    m2dr.Index.build(model, documents(), name="c", dims=(8, 32), **FP32)
    return m2dr.open_index("indexes/c", model=model, **FP32)


def test_scores_are_those_of_the_sum(index: m2dr.Index) -> None:
    searcher = index.searcher(dim=8)
    (folder,) = ROOT.rglob("exits")
    words = unit_rows(WordTable.open(folder).embed([QUERY]))
    queries = unit_rows(searcher.vectors([QUERY])) + 0.25 * words
    encoder = m2dr.Encoder(index.resolved.model, **FP32)
    texts = [str(each["text"]) for each in documents()]
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
        assert index.searcher(layer).blend(query_mix=True).query_mix == 0
        mixed = index.search(QUERY, layer=layer, query_mix=True).hits
        assert mixed == index.search(QUERY, layer=layer).hits
    full = index.searcher()
    assert full.blend(query_mix=True).query_mix == 0.5
    with pytest.raises(UserError, match="not from 0 to 1"):
        index.search(QUERY, query_mix=1.5)


def test_an_index_without_words_is_refused(model: str) -> None:
    index = m2dr.Index.build(model, documents(), name="c", dims=(8,), exits=False, **FP32)

    with pytest.raises(UserError, match="no exits that were fitted on its documents"):
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
