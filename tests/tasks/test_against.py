import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.core.requests import CompareRequest
from m2dr.evaluation.grid import (
    Grid,
    QueryScores,
    read_grid,
    text_tables,
    write_grid,
    write_query_scores,
)
from m2dr.tasks.evaluating.compare import compare, compare_folders

QUERIES = [f"q{i}" for i in range(30)]
CUTS = (Cut(1, 8), Cut(2, 8))
DRAWN = np.random.default_rng(3).random((2, 30))


def results(
    folder: Path,
    values: np.ndarray,
    cuts: Sequence[Cut] = CUTS,
    queries: Sequence[str] = QUERIES,
    measures: Sequence[str] = ("nDCG@10", "RR@10"),
) -> Path:
    """A folder as `m2dr evaluate` leaves it."""
    scores = [QueryScores(name, tuple(cuts), tuple(queries), values) for name in measures]
    cells = {
        cut: dict.fromkeys(measures, row.mean()) for cut, row in zip(cuts, values, strict=True)
    }
    write_query_scores(scores, folder)
    write_grid(Grid(folder.name, "tiny", "test", len(queries), cells), folder)
    return folder


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return results(tmp_path / "mine", np.clip(DRAWN + [[0.3], [0.0]], 0, 2))


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    return results(tmp_path / "theirs", DRAWN)


def test_each_cell_is_compared_with_the_same_cut_of_the_other(mine: Path, theirs: Path) -> None:
    found = compare(mine, str(theirs))

    assert (found.model, found.baseline, found.measure) == ("mine", "theirs", "nDCG@10")
    assert [found.mark(cut) for cut in CUTS] == ["▲", "="]
    assert found.cells[Cut(1, 8)].wins == 30
    assert found.cells[Cut(2, 8)].ties == 30


def test_every_cell_is_compared_with_one_cut_when_it_is_named(mine: Path, theirs: Path) -> None:
    found = compare(mine, f"{theirs}@L2D8", "RR@10")

    assert (found.against, found.measure) == ("theirs at L2D8", "RR@10")
    expected = stats.ttest_rel(DRAWN[0] + 0.3, DRAWN[1]).pvalue
    assert found.cells[Cut(1, 8)].t_p == pytest.approx(expected, rel=1e-9)
    assert found.cells[Cut(2, 8)].difference == 0


def test_cuts_that_the_other_lacks_are_left_out_and_named(mine: Path, tmp_path: Path) -> None:
    less = results(tmp_path / "less", DRAWN[:1], CUTS[:1])

    found = compare(mine, str(less))

    assert set(found.cells) == {Cut(1, 8)}
    assert found.notes == ("less was not measured at L2D8, which are not compared",)


def write_run(path: Path, relevant_at: Mapping[str, int]) -> Path:
    """The relevant document of each query at a rank from 1."""
    lines = []
    for query, place in relevant_at.items():
        for rank in range(1, 4):
            name = "right" if rank == place else f"other{rank}"
            lines.append(f"{query} Q0 {name} {rank} {1 / rank} tag\n")
    path.write_text("".join(lines))
    return path


def write_qrels(path: Path, queries: Sequence[str]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{query}\t0\tright\t1\n" for query in queries))
    return path


def test_a_run_is_measured_by_the_judgements_that_the_results_keep(
    mine: Path, tmp_path: Path
) -> None:
    write_qrels(mine / "runs" / "qrels.tsv", QUERIES)
    run = write_run(tmp_path / "bm25.trec", {query: 2 for query in QUERIES[:27]})

    found = compare(mine, str(run), "RR@10")

    mean = (27 * 0.5 + 3 * 0) / 30
    assert found.against == "bm25.trec"
    assert found.cells[Cut(2, 8)].difference == pytest.approx(DRAWN[1].mean() - mean)
    assert found.notes == ("3 of 30 queries are not in bm25.trec and count as 0 there",)


def test_a_run_drops_the_querys_own_document_where_the_grid_did(mine: Path, tmp_path: Path) -> None:
    grid = read_grid(mine / "grid.json")
    write_grid(
        replace(grid, notes=("the query's own document is dropped from its ranking",)),
        mine,
    )
    qrels = write_qrels(tmp_path / "qrels.tsv", QUERIES)
    run = tmp_path / "own.trec"
    lines = [f"{q} Q0 {q} 1 2 tag\n{q} Q0 right 2 1 tag\n" for q in QUERIES]
    run.write_text("".join(lines))

    found = compare(mine, str(run), "RR@10", qrels=qrels)

    assert found.notes == ("the query's own document is dropped from own.trec too",)
    assert found.cells[Cut(2, 8)].difference == pytest.approx(DRAWN[1].mean() - 1)


def test_a_run_of_other_queries_is_refused(mine: Path, tmp_path: Path) -> None:
    qrels = write_qrels(tmp_path / "qrels.tsv", QUERIES)
    run = write_run(tmp_path / "dev.trec", dict.fromkeys([*QUERIES[:5], "other"], 1))

    with pytest.raises(UserError, match=r"dev.trec has other queries, such as .*has 1 others"):
        compare(mine, str(run), qrels=qrels)


def test_every_baseline_and_measure_makes_a_table_and_two_files(mine: Path, theirs: Path) -> None:
    request = CompareRequest(mine, (str(theirs), f"{theirs}@L2D8"), ("nDCG@10", "RR@10"))

    report = compare_folders(request)

    assert len(report.comparisons) == 4
    assert len({file.name for file in report.files}) == 8
    assert all(file.parent == mine for file in report.files)
    assert str(report).count("▲ better") == 4
    held = json.loads((mine / "nDCG@10-against-theirs-at-L2D8.json").read_text())
    assert held["against"] == "theirs at L2D8"
    shutil.rmtree(theirs)  # the files stand on their own


def test_other_exits_or_documents_are_named_where_systems_stand_side_by_side(
    mine: Path, theirs: Path
) -> None:
    write_grid(replace(read_grid(mine), system="exits of the index, documents of layer 2"), mine)
    own = {"system": "own exits, documents of each layer", "lengths": "queries of 64 tokens"}
    write_grid(replace(read_grid(theirs), **own), theirs)

    found = compare(mine, str(theirs))

    title, *_ = str(found).splitlines()
    assert "mine (exits of the index, documents of layer 2) against" in title
    assert "theirs (own exits, documents of each layer)" in title
    both = text_tables([read_grid(mine), read_grid(theirs)], ["RR@10"])
    assert "mine (exits of the index, documents of layer 2)" in both
    assert "these are different systems" in found.notes[0]
    assert "theirs: queries of 64 tokens" in found.notes[1]
