"""Hits of a least score: a number, or one that few unrelated texts reach."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import done, refused, run
from world import WORDS, make_model

import m2dr
from m2dr.core.errors import UserError
from m2dr.core.files import write_record
from m2dr.core.records import EXITS_FILE
from m2dr.core.requests import FitIndexRequest
from m2dr.evaluation.runs import read_run
from m2dr.maps.files import Maps
from m2dr.tasks.indexing.fit_index import fit_index

pytestmark = pytest.mark.filterwarnings("ignore:Cut ")
FP32 = {"device": "cpu", "dtype": "fp32"}
DRAW = np.random.default_rng(5)
DOCUMENTS = [{"id": f"d{n}", "text": " ".join(DRAW.choice(WORDS, 9))} for n in range(80)]
QUERY = "read the files"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    place = tmp_path_factory.mktemp("scored")
    model = str(make_model(tiny_backbone, place / "model", similarity="cosine"))
    m2dr.Index.build(model, DOCUMENTS, name="c", folder=place / "indexes", dims=(8, 32), **FP32)
    return place


def opened(place: Path, **options: object) -> m2dr.Index:
    return m2dr.open_index(place / "indexes/c", model=str(place / "model"), **FP32, **options)


@pytest.fixture
def index(place: Path) -> m2dr.Index:
    return opened(place)


@pytest.mark.parametrize("options", [{"layer": 0}, {}, {"hybrid": 0.4}, {"dim": 8, "layer": 2}])
def test_hits_below_a_number_are_left_out(index: m2dr.Index, options: dict[str, float]) -> None:
    every = index.search(QUERY, k=80, **options)
    least = every[30].score  # hits of this very score stay

    some = index.search(QUERY, k=80, min_score=least, **options)

    assert list(some) == [hit for hit in every if hit.score >= least]
    assert list(index.search(QUERY, k=5, min_score=least, **options)) == list(every[:5])
    assert len(index.search(QUERY, min_score=2, **options)) == 0


@pytest.mark.parametrize("layer", [0, 2, 4])
def test_percentiles_are_those_of_texts_and_other_documents(layer: int, place: Path) -> None:
    """A text of three words is its own span, so that numpy can tell its scores."""
    texts = [" ".join(DRAW.choice(WORDS, 3)) for _ in range(60)]
    index = m2dr.Index.build(
        str(place / "model"), texts, folder=place / f"short-{layer}", dims=(8,), **FP32
    )
    searcher = index.searcher(layer, 8)

    answers = index.search(texts, k=60, layer=layer, dim=8)

    docids = list(searcher.documents.docids)
    others = [
        hit.score
        for docid, answer in zip(docids, answers, strict=True)
        for hit in answer
        if hit.docid != docid
    ]
    assert len(others) == 60 * 59
    for name in ("p50", "p90", "p95", "p99", "p99.9"):
        least = searcher.least(name, searcher.blend())
        assert least == pytest.approx(np.percentile(others, float(name[1:])), abs=1e-3)
        found = index.search(QUERY, k=60, layer=layer, dim=8, min_score=name)
        every = index.search(QUERY, k=60, layer=layer, dim=8)
        assert list(found) == [hit for hit in every if hit.score >= least]
    recorded = Maps(index.resolved.index).record.unrelated
    assert {(row.layer, row.dim) for row in recorded} == {
        (layer, dim) for layer in range(5) for dim in (8, 16, 32)
    }


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"dim": 12}, "knows no p99 of unrelated texts at L4D12; m2dr index fit finds it"),
        ({"hybrid": True}, "p99 is of scores by one model's vectors alone; give a number"),
        ({"query_mix": True}, "p99 is of scores by one model's vectors alone; give a number"),
        ({"min_score": "p98"}, "'p98' is neither a number nor one of p50, p90"),
    ],
)
def test_what_has_no_percentile_is_refused(
    place: Path, options: dict[str, object], told: str
) -> None:
    index = opened(place, engine="exact")
    with pytest.raises(UserError, match=told):
        index.search(QUERY, **{"min_score": "p99"} | options)


def test_an_index_without_percentiles_gets_them_by_a_fit(place: Path) -> None:
    index = opened(place)
    maps, request = Maps(index.resolved.index), index.resolved.request
    record, digest = maps.record, maps.digest
    write_record(maps.folder / EXITS_FILE, replace(record, unrelated=()))
    with pytest.raises(UserError, match="m2dr index fit finds it"):
        index.search(QUERY, min_score="p99")

    fit_index(FitIndexRequest(request.corpus, request.model, root=request.root, **FP32))

    assert maps.record == record
    assert maps.digest == digest
    assert len(index.search(QUERY, min_score="p50"))


def test_percentiles_stay_with_an_index_that_changes(index: m2dr.Index) -> None:
    maps = Maps(index.resolved.index)
    before = maps.record.unrelated

    index.add([{"id": "new", "text": "zebra files"}])

    assert maps.record.unrelated == before
    index.delete("new")


def test_runs_and_verdicts(place: Path, index: m2dr.Index) -> None:
    asked = (
        "--corpus",
        place / "indexes/c",
        "--model",
        place / "model",
        "--indexes",
        place / "indexes",
    )
    asked += ("--device", "cpu", "--dtype", "fp32")
    (place / "q.tsv").write_text(f"a\t{QUERY}\nb\tzzzz\n")
    wide = ("search", *asked, "--query-layer", 0, "--topics", place / "q.tsv", "-k", 80)

    assert "2 queries, 1 without a document: " in done(*wide, "--run", place / "all.trec")
    done(*wide, "--run", place / "some.trec", "--min-score", "p90")
    searcher = index.searcher(0)
    least = searcher.least("p90", searcher.blend())
    shown = done("index", "verify", place / "indexes")

    every, some = (read_run(place / name).rankings["a"] for name in ("all.trec", "some.trec"))
    assert 0 < len(some.docids) < len(every.docids)
    assert min(some.scores) >= least > max(every.scores[len(some.docids) :])
    assert re.search(rf"Unrelated texts at L0D32: p50 -?\d\.\d+, p90 {least:.3f}, p95", shown)
    dims = re.findall(r"Unrelated texts at L0D(\d+):", shown)
    assert dims == ["8", "32"]  # those that are built
    none = run("search", *asked, QUERY, "--min-score", "1.5").output
    assert "No document was found: none reaches --min-score 1.5." in none
    assert "'x' is neither a number nor one of p50" in refused(
        "search", *asked, "--min-score", "x", QUERY
    )
