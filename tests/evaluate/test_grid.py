import pytest
from hypothesis import given
from hypothesis import strategies as st

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.evaluate.grid import (
    Grid,
    average,
    format_score,
    require_distinct_names,
    require_same_queries,
)

CELLS = {Cut(1, 8): 0.25, Cut(1, 16): 0.5, Cut(2, 16): 0.75}


def grid(cells: dict[Cut, float] = CELLS, model: str = "mine", corpus: str = "pydocs") -> Grid:
    return Grid(model, corpus, "test", 9, {cut: {"RR@10": value} for cut, value in cells.items()})


def test_layers_dims_and_cuts_come_smallest_first() -> None:
    backwards = grid(dict(reversed(CELLS.items())))

    assert backwards.layers == (1, 2)
    assert backwards.dims == (8, 16)
    assert backwards.cuts == tuple(CELLS)
    assert list(backwards.values("RR@10")) == list(CELLS)


values = st.dictionaries(
    st.builds(Cut, st.integers(1, 3), st.sampled_from([8, 16])), st.floats(0, 1), min_size=1
)


@given(mine=values, theirs=values)
def test_a_difference_is_mine_less_yours_where_both_were_measured(
    mine: dict[Cut, float], theirs: dict[Cut, float]
) -> None:
    theirs = theirs | {Cut(9, 9): 0.25}
    mine = mine | {Cut(9, 9): 0.75}

    difference = grid(mine).difference(grid(theirs), "RR@10")

    assert difference == {cut: mine[cut] - theirs[cut] for cut in mine.keys() & theirs.keys()}


@given(cells=values)
def test_no_cut_is_better_than_the_best(cells: dict[Cut, float]) -> None:
    some = grid(cells)

    assert cells[some.best("RR@10")] == max(cells.values())


def test_of_equally_good_cuts_the_smallest_is_the_best() -> None:
    assert grid({Cut(2, 8): 0.5, Cut(1, 16): 0.5}).best("RR@10") == Cut(1, 16)


def test_grids_without_a_common_cut_have_no_difference() -> None:
    with pytest.raises(UserError, match="mine has L1D8 and yours L2D8"):
        grid({Cut(1, 8): 0.5}).difference(grid({Cut(2, 8): 0.5}, model="yours"), "RR@10")


def test_grids_of_different_queries_are_not_compared() -> None:
    with pytest.raises(
        UserError, match="mine on 9 queries of pydocs test; mine on 9 queries of nf"
    ):
        grid().difference(grid(corpus="nfcorpus"), "RR@10")


def test_no_grid_at_all_is_refused() -> None:
    with pytest.raises(UserError, match="No grid was given"):
        require_same_queries([])


def test_a_heading_says_what_was_counted_and_leaves_out_a_split_that_there_is_not() -> None:
    cells = {Cut(1, 8): {"Spearman": 0.5}}

    assert grid().heading("RR@10") == "RR@10 on pydocs test, 9 queries"
    pairs = Grid("mine", "stsb", "", 1379, cells, unit="pairs")
    assert pairs.heading("Spearman") == "Spearman on stsb, 1379 pairs"


def test_queries_are_not_compared_with_as_many_pairs() -> None:
    pairs = Grid("yours", "pydocs", "test", 9, grid().cells, unit="pairs")

    with pytest.raises(UserError, match="mine on 9 queries of pydocs test; yours on 9 pairs of"):
        grid().difference(pairs, "RR@10")


def test_an_average_counts_each_corpus_alike_and_keeps_every_note_once() -> None:
    large = Grid("mine", "sick", "", 900, {Cut(1, 8): {"r": 0.25}}, ("both",), "pairs")
    small = Grid("mine", "stsb", "", 100, {Cut(1, 8): {"r": 0.75}}, ("both", "one"), "pairs")

    found = average([large, small])

    assert found == Grid(
        "mine", "mean-of-sick+stsb", "", 1000, {Cut(1, 8): {"r": 0.5}},
        ("both", "one", "the mean over sick, stsb, each counted alike"), "pairs",
    )  # fmt: skip


def test_two_grids_of_one_name_are_refused() -> None:
    with pytest.raises(UserError, match="Two grids are called mine"):
        require_distinct_names([grid(), grid()])


def test_a_measure_that_the_grid_does_not_hold_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"does not hold RR@1\. Did you mean RR@10\?"):
        grid().values("RR@1")


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        ({}, "is empty"),
        ({Cut(1, 8): {}}, "is empty"),
        ({Cut(1, 8): {"RR": 1.0}, Cut(1, 9): {"AP": 1.0}}, "AP for L1D9 and RR for L1D8"),
        ({Cut(1, 8): {"RR": float("nan")}}, "RR of mine at L1D8 is nan"),
    ],
    ids=["no cut", "no measure", "unlike cells", "not a number"],
)
def test_a_grid_that_cannot_be_compared_cannot_be_made(
    cells: dict[Cut, dict[str, float]], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        Grid("mine", "pydocs", "test", 9, cells)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.31594, ".3159"),
        (0.0, ".0000"),
        (-0.02, "-.0200"),
        (1.0, "1.0000"),
        (0.99999, "1.0000"),
        (-1.0, "-1.0000"),
        (10.5, "10.5000"),
        (100.25, "100.2500"),
    ],
)
def test_a_value_is_shown_with_four_decimals_and_no_leading_zero(value: float, text: str) -> None:
    assert format_score(value) == text
