"""Hits of a least score."""

import math
from pathlib import Path

import numpy as np
import pytest
from commands import done, run
from world import WORDS

import m2dr
from m2dr.core.errors import UserError
from m2dr.evaluation.runs import read_run

pytestmark = pytest.mark.filterwarnings("ignore:Cut ")
FP32 = {"device": "cpu", "dtype": "fp32"}
DRAW = np.random.default_rng(5)
DOCUMENTS = [{"id": f"d{n}", "text": " ".join(DRAW.choice(WORDS, 9))} for n in range(80)]
QUERY = "read the files"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    place = tmp_path_factory.mktemp("scored")
    (place / "model").symlink_to(tiny_model)
    m2dr.Index.build(
        place / "model", DOCUMENTS, name="c", folder=place / "indexes", dims=(8, 32), **FP32
    )
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


@pytest.mark.parametrize("least", ["p99", math.nan])
def test_what_is_no_number_is_refused(index: m2dr.Index, least: object) -> None:
    with pytest.raises(UserError, match="min_score"):
        index.search(QUERY, min_score=least)


def test_runs(place: Path, index: m2dr.Index) -> None:
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
    least = index.search(QUERY, k=20, layer=0).hits[-1].score
    done(*wide, "--run", place / "some.trec", "--min-score", least)

    every, some = (read_run(place / name).rankings["a"] for name in ("all.trec", "some.trec"))
    assert 0 < len(some.docids) < len(every.docids)
    assert min(some.scores) >= least > max(every.scores[len(some.docids) :])
    none = run("search", *asked, QUERY, "--min-score", "1.5").output
    assert "No document was found: none reaches --min-score 1.5." in none
