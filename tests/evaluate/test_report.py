import csv
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.evaluate.grid import (
    Grid,
    read_grid,
    text_comparison,
    text_cross,
    text_table,
    write_cross,
    write_csv,
    write_grid,
)

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    [
        "=HYPERLINK(1)",
        "+1",
        "-2",
        "@a",
        "\ta",
        "\ra",
        "a\rb",
        "'=1",
        "'",
        "＝1",
    ]  # a wide sign is a formula too
)
GRIDS = st.builds(
    Grid,
    model=WORDS,
    corpus=WORDS,
    split=WORDS,
    queries=st.integers(0, 10**6),
    cells=st.sets(WORDS, min_size=1, max_size=3).flatmap(
        lambda names: st.dictionaries(
            st.builds(Cut, st.integers(0, 40), st.integers(1, 4096)),
            st.fixed_dictionaries(
                {name: st.floats(allow_nan=False, allow_infinity=False) for name in sorted(names)}
            ),
            min_size=1,
            max_size=5,
        )
    ),
    notes=st.lists(WORDS, max_size=2).map(tuple),
    unit=WORDS,
    checks=st.lists(WORDS, max_size=2).map(tuple),
)
one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def grid(model: str, rows: dict[int, list[float]], notes: tuple[str, ...] = ()) -> Grid:
    """Rows are layers, columns the dims 8, 16, 32."""
    cells = {
        Cut(layer, dim): {"nDCG@10": value}
        for layer, row in rows.items()
        for dim, value in zip((8, 16, 32), row, strict=False)
    }
    return Grid(model, "pydocs", "test", 2234, cells, notes)


FULL = grid("full-dim", {2: [0.0645, 0.1277, 0.2], 12: [0.1, 1.0]}, ("own document dropped",))
PLAIN = grid("plain", {2: [0.1, 0.1277], 4: [0.3]})


def test_a_table_has_layers_down_and_dims_across_and_marks_the_best() -> None:
    assert text_table(FULL, "nDCG@10").splitlines() == [
        "full-dim: nDCG@10 on pydocs test, 2234 queries, * best",
        "layer      8      16     32",
        "    2  .0645   .1277  .2000",
        "   12  .1000  1.0000*     -",
        "Note: own document dropped",
    ]


def test_equally_good_cuts_are_all_marked() -> None:
    table = text_table(grid("mine", {1: [0.5, 0.5], 2: [0.5, 0.25]}), "nDCG@10")

    assert table.count(".5000*") == 3


def test_a_comparison_stacks_models_by_layer_and_marks_the_best_of_each_cut() -> None:
    assert text_comparison([FULL, PLAIN], "nDCG@10").splitlines() == [
        "nDCG@10 on pydocs test, 2234 queries, * best of its cut",
        "layer  model         8      16     32",
        "    2  full-dim  .0645   .1277* .2000",
        "       plain     .1000*  .1277*     -",
        "    4  plain     .3000       -      -",
        "   12  full-dim  .1000  1.0000      -",
        "Note (full-dim): own document dropped",
    ]


def test_models_of_one_name_are_not_compared() -> None:
    with pytest.raises(UserError, match="Two grids are called plain"):
        text_comparison([PLAIN, PLAIN], "nDCG@10")


@one_folder
@given(some=GRIDS)
def test_reading_what_was_written_gives_the_same_grid(some: Grid, tmp_path: Path) -> None:
    write_grid(some, tmp_path / "grid.json")

    assert read_grid(tmp_path / "grid.json") == some


@one_folder
@given(grids=st.lists(GRIDS, max_size=3))
def test_a_csv_has_one_line_per_value_with_all_its_digits(
    grids: list[Grid], tmp_path: Path
) -> None:
    write_csv(grids, tmp_path / "grids.csv")

    with (tmp_path / "grids.csv").open(encoding="utf-8", newline="") as file:
        cells = list(csv.reader(file))[1:]
    assert not any(
        word.startswith(tuple("=+-@\t\r＝")) for row in cells for word in row[:6]
    )  # as above
    names = [[word.removeprefix("'") for word in row] for row in cells]
    rows = [(*row[:3], int(row[3]), int(row[4]), row[5], float(row[6])) for row in names]
    assert rows == [
        (some.model, some.corpus, some.split, cut.layer, cut.dim, name, value)
        for some in grids
        for cut in some.cuts
        for name, value in some.cells[cut].items()
    ]


def test_a_csv_names_its_columns(tmp_path: Path) -> None:
    write_csv([PLAIN], tmp_path / "grids.csv")

    lines = (tmp_path / "grids.csv").read_text().splitlines()
    assert lines[:2] == [
        "model,corpus,split,layer,dim,measure,value",
        "plain,pydocs,test,2,8,nDCG@10,0.1",
    ]


def test_crossed_layers_have_queries_down_and_documents_across(tmp_path: Path) -> None:
    grids = {2: grid("m.documents-02", {2: [0.1], 4: [0.2]}), 4: grid("m4", {2: [0.3], 4: [0.4]})}

    write_cross(grids, 8, tmp_path / "dim-8.csv")

    assert text_cross("m", grids, 8, "nDCG@10").splitlines() == [
        "m: nDCG@10 on pydocs test, 2234 queries, dim 8, documents by layer across, * best",
        "queries      2      4",
        "      2  .1000  .3000",
        "      4  .2000  .4000*",
    ]
    assert (tmp_path / "dim-8.csv").read_text().splitlines()[2] == "pydocs,test,4,2,8,nDCG@10,0.2"


def broken(**changes: object) -> str:
    """A grid file that is right but for `changes`."""
    cells = [{"layer": 2, "dim": 8, "measures": {"RR@10": 0.5}}]
    whole = {"format": 1, "model": "m", "corpus": "c", "split": "s", "queries": 1, "notes": []}
    return json.dumps(whole | {"cells": cells} | changes)


def broken_cell(**changes: object) -> str:
    """A grid file that is right but for `changes` in its one cell."""
    return broken(cells=[{"layer": 2, "dim": 8, "measures": {"RR@10": 0.5}} | changes])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{\n"model": ', "line 2: is not JSON"),
        ("[]", "is not a grid"),
        ("{}", "it has no 'format'"),
        (broken(format=2), "its format is 2 and this m2dr reads 1"),
        (broken(queries="9"), "its queries is '9' where int belongs"),
        (broken(queries=True), "its queries is True where int belongs"),
        (broken(alarms=[1]), "its alarm is 1 where str belongs"),
        (broken(unit=1), "its unit is 1 where str belongs"),
        (broken(model=None), "its model is None where str belongs"),
        (broken(cells=[]), "is empty"),
        (broken(cells=3), "not iterable"),
        (broken_cell(layer=-1), "a layer from 0 and a dim from 1"),
        (broken_cell(measures={"RR@10": "high"}), "its RR@10 is 'high' where float belongs"),
        (broken_cell(measures=[1]), "no attribute 'items'"),
        (broken_cell(measures={"RR@10": float("nan")}), "it holds NaN"),
        (broken(cells=[{"layer": 1, "dim": 8, "measures": {"RR": 0.5}}] * 2), "the cut L1D8 twice"),
        ("\ud800", "is not UTF-8"),
    ],
)
def test_what_is_not_a_grid_is_refused_with_the_file_and_the_reason(
    text: str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "grid.json"
    path.write_bytes(text.encode(errors="surrogatepass"))

    with pytest.raises(UserError, match=rf"grid\.json.*{problem}"):
        read_grid(path)


def test_a_grid_file_that_does_not_say_what_it_counts_counts_queries(tmp_path: Path) -> None:
    (tmp_path / "grid.json").write_text(broken())

    assert read_grid(tmp_path / "grid.json").unit == "queries"


def test_a_grid_file_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no grid file .*absent\.json"):
        read_grid(tmp_path / "absent.json")
