"""Grids: their values, tables and files, and the scores of single queries."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.evaluation.grid import (
    SCORES_FILE,
    Grid,
    LayerScores,
    LayerScoresFile,
    QueryScores,
    average,
    join_layers,
    read_grid,
    read_query_scores,
    text_tables,
    write_csv,
    write_grid,
    write_query_scores,
)

WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
GRIDS = st.builds(
    Grid,
    model=WORDS,
    corpus=WORDS,
    split=WORDS,
    queries=st.integers(0, 10**6),
    cells=st.sets(WORDS, min_size=1, max_size=3).flatmap(
        lambda names: st.dictionaries(
            st.builds(Cut, st.integers(0, 40), st.integers(1, 4096)),
            st.fixed_dictionaries(dict.fromkeys(sorted(names), FINITE)),
            min_size=1,
            max_size=5,
        )
    ),
    notes=st.lists(WORDS, max_size=2).map(tuple),
    unit=WORDS,
    checks=st.lists(WORDS, max_size=2).map(tuple),
)
VALUES = st.dictionaries(
    st.builds(Cut, st.integers(1, 3), st.sampled_from([8, 16])), st.floats(0, 1), min_size=1
)
one_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50
)


def grid(model: str, rows: dict[int, list[float]], notes: tuple[str, ...] = ()) -> Grid:
    """Rows are layers, columns the dims 8, 16, 32."""
    cells = {
        Cut(layer, dim): {"nDCG@10": value}
        for layer, row in rows.items()
        for dim, value in zip((8, 16, 32), row, strict=False)
    }
    return Grid(model, "pydocs", "test", 2234, cells, notes)


def of(cells: dict[Cut, float], model: str = "mine", corpus: str = "pydocs") -> Grid:
    return Grid(model, corpus, "test", 9, {cut: {"RR@10": value} for cut, value in cells.items()})


FULL = grid("full-dim", {2: [0.0645, 0.1277, 0.2], 12: [0.1, 1.0]}, ("own document dropped",))
PLAIN = grid("plain", {2: [0.1, 0.1277], 4: [0.3]})


@given(mine=VALUES, theirs=VALUES)
def test_a_difference_is_over_common_cuts(mine: dict[Cut, float], theirs: dict[Cut, float]) -> None:
    mine, theirs = mine | {Cut(9, 9): 0.75}, theirs | {Cut(9, 9): 0.25}

    difference = of(mine).difference(of(theirs), "RR@10")

    assert difference == {cut: mine[cut] - theirs[cut] for cut in mine.keys() & theirs.keys()}


@given(cells=VALUES)
def test_the_best_is_the_smallest_of_the_highest(cells: dict[Cut, float]) -> None:
    assert of(cells).best("RR@10") == min(c for c in cells if cells[c] == max(cells.values()))


def test_grids_that_cannot_be_compared_are_refused() -> None:
    some = of({Cut(1, 8): 0.5})
    pairs = Grid("yours", "pydocs", "test", 9, some.cells, unit="pairs")
    for other, problem in (
        (of({Cut(2, 8): 0.5}, "yours"), "no cut in common"),
        (of({Cut(1, 8): 0.5}, corpus="nfcorpus"), "mine on 9 queries of nfcorpus"),
        (pairs, "yours on 9 pairs"),
    ):
        with pytest.raises(UserError, match=problem):
            some.difference(other, "RR@10")


def test_an_average_counts_each_corpus_alike() -> None:
    large = Grid("mine", "sick", "", 900, {Cut(1, 8): {"r": 0.25}}, ("both",), "pairs")
    small = Grid("mine", "stsb", "", 100, {Cut(1, 8): {"r": 0.75}}, ("both", "one"), "pairs")

    assert average([large, small]) == Grid(
        "mine", "mean-of-sick+stsb", "", 1000, {Cut(1, 8): {"r": 0.5}},
        ("both", "one", "the mean over sick, stsb, each counted alike"), "pairs",
    )  # fmt: skip
    assert small.heading("r") == "r on stsb, 100 pairs"


def test_a_table_has_layers_down_and_dims_across_and_marks_the_best() -> None:
    assert text_tables([FULL], ["nDCG@10"]).splitlines() == [
        "full-dim: nDCG@10 on pydocs test, 2234 queries, * best",
        "layer      8      16     32",
        "    2  .0645   .1277  .2000",
        "   12  .1000  1.0000*     -",
        "Note: own document dropped",
    ]


def test_a_comparison_stacks_models_by_layer_and_marks_the_best_of_each_cut() -> None:
    assert text_tables([FULL, PLAIN], ["nDCG@10"]).splitlines() == [
        "nDCG@10 on pydocs test, 2234 queries, * best of its cut",
        "layer  model         8      16     32",
        "    2  full-dim  .0645   .1277* .2000",
        "       plain     .1000*  .1277*     -",
        "    4  plain     .3000       -      -",
        "   12  full-dim  .1000  1.0000      -",
        "Note (full-dim): own document dropped",
    ]


@one_folder
@given(some=GRIDS)
def test_a_grid_reads_back_as_it_was_written(some: Grid, tmp_path: Path) -> None:
    write_grid(some, tmp_path)

    assert read_grid(tmp_path) == read_grid(tmp_path / "grid.json") == some


@one_folder
@given(grids=st.lists(GRIDS, max_size=3))
def test_a_csv_holds_every_digit(grids: list[Grid], tmp_path: Path) -> None:
    write_csv(grids, tmp_path / "grids.csv")

    with (tmp_path / "grids.csv").open(encoding="utf-8", newline="") as file:
        head, *cells = list(csv.reader(file))
    assert head == ["model", "corpus", "split", "layer", "dim", "measure", "value"]
    assert [(*row[:3], int(row[3]), int(row[4]), row[5], float(row[6])) for row in cells] == [
        (some.model, some.corpus, some.split, cut.layer, cut.dim, name, value)
        for some in grids
        for cut in some.cuts
        for name, value in some.cells[cut].items()
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"queries": "9"}, {"cells": {}}, {"cells": 3}, {"cells": {"L2": {"RR": 0.5}}},
        {"cells": {"L2D8": {"RR": "high"}}},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_grid_is_refused_with_the_file(
    changes: dict[str, object], tmp_path: Path
) -> None:
    write_grid(of({Cut(2, 8): 0.5}), tmp_path)
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    with pytest.raises(UserError, match=r"grid\.json is not a grid"):
        read_grid(path)


CUTS = (Cut(1, 8), Cut(2, 16))


def scores(name: str = "RR@10", ids: tuple[str, ...] = ("q1", "q2")) -> QueryScores:
    return QueryScores(name, CUTS, ids, np.arange(2.0 * len(ids)).reshape(2, -1))


@one_folder
@given(
    ids=st.lists(st.text(), min_size=1, max_size=4, unique=True),
    names=st.lists(st.text(min_size=1), min_size=1, max_size=3, unique=True),
    data=st.data(),
)
def test_scores_read_back_as_they_were_written(
    ids: list[str], names: list[str], data: st.DataObject, tmp_path: Path
) -> None:
    finite = arrays(np.float64, (2, len(ids)), elements=st.floats(-9, 9))
    some = [QueryScores(name, CUTS, tuple(ids), data.draw(finite)) for name in names]

    write_query_scores(some, tmp_path)

    again = read_query_scores(tmp_path)
    assert list(again) == names
    for one in some:
        assert (again[one.measure].cuts, again[one.measure].query_ids) == (CUTS, tuple(ids))
        np.testing.assert_array_equal(again[one.measure].values, one.values)


def test_scores_are_found_by_their_cut() -> None:
    assert scores().at(Cut(2, 16)).tolist() == [2.0, 3.0]
    with pytest.raises(UserError, match=r"no RR@10 scores of L2D8\. Did you mean"):
        scores().at(Cut(2, 8))
    for values in (np.array([[0.0, 1.0], [0.0, np.nan]]), np.zeros((1, 2))):
        with pytest.raises(UserError, match="not finite or not of shape"):
            QueryScores("RR", CUTS, ("a", "b"), values)


@pytest.mark.parametrize("cut", [0, 200, -30])
def test_a_damaged_file_of_scores_is_a_sentence(cut: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There are no scores of single queries"):
        read_query_scores(tmp_path)
    write_query_scores([scores()], tmp_path)
    whole = (tmp_path / SCORES_FILE).read_bytes()
    (tmp_path / SCORES_FILE).write_bytes(whole[:cut])

    with pytest.raises(UserError, match="is not a file of scores that m2dr wrote"):
        read_query_scores(tmp_path)


def part(layer: int) -> LayerScores:
    cuts = [Cut(layer, 8), Cut(layer, 16)]
    values = {cut: {"RR": np.array([cut.dim / 100, 0.5])} for cut in cuts}
    counts = dict.fromkeys(cuts, layer)
    return LayerScores.of(("q1", "q2"), values, counts, dict.fromkeys(cuts, 0), {"unanswered": 1})


def test_a_part_answers_its_own_question_alone(tmp_path: Path) -> None:
    file = LayerScoresFile(tmp_path, 2, 6, {"measures": ["RR"]})
    file.write(part(2))

    again = LayerScoresFile(tmp_path, 2, 6, {"measures": ["RR"]}).read()
    assert again is not None
    assert (again.tied, again.facts) == ({Cut(2, 8): 2, Cut(2, 16): 2}, {"unanswered": 1})
    np.testing.assert_array_equal(again.scores["RR"].values, [[0.08, 0.5], [0.16, 0.5]])
    assert LayerScoresFile(tmp_path, 2, 6, {"measures": ["AP"]}).read() is None
    assert LayerScoresFile(tmp_path, 2, 5, {"measures": ["RR"]}).read() is None
    file.path.write_bytes(file.path.read_bytes()[:100])
    assert file.read() is None


def test_parts_join_with_the_smallest_cut_first() -> None:
    joined = join_layers([part(3), part(1)])["RR"]

    assert joined.cuts == (Cut(1, 8), Cut(1, 16), Cut(3, 8), Cut(3, 16))
    assert joined.values[:, 0].tolist() == [0.08, 0.16, 0.08, 0.16]


def test_words_of_the_index_are_not_the_best_of_a_model_with_its_own_exits() -> None:
    cells = {Cut(0, 8): {"RR@10": 0.75}, Cut(2, 8): {"RR@10": 0.5}}
    mine = Grid("mine", "pydocs", "test", 9, cells, apart=(0,))

    assert mine.best("RR@10") == Cut(2, 8)
    assert ".5000*" in text_tables([mine])
    assert ".7500*" in text_tables([replace(mine, apart=())])
    alone = replace(mine, cells={Cut(0, 8): cells[Cut(0, 8)]})
    assert ".7500*" in text_tables([alone])


def test_other_lengths_of_texts_are_said() -> None:
    cells = {Cut(2, 8): {"RR@10": 0.5}}
    mine, theirs = (
        Grid(name, "pydocs", "test", 9, cells, lengths=f"queries of {n} tokens")
        for name, n in (("mine", 32), ("theirs", 64))
    )

    assert "Note (theirs): queries of 64 tokens" in text_tables([mine, theirs])
    assert "tokens" not in text_tables([mine, replace(mine, model="again")])
