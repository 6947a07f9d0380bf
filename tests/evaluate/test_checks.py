import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m2dr.core.records import Cut, ModelCard
from m2dr.evaluate.checks import (
    depth_checks,
    grid_checks,
    model_checks,
    outliers,
    query_checks,
    ranking_checks,
)
from m2dr.evaluate.grid import Grid

DIMS = (8, 16, 32, 64, 128, 256, 384)
SMOOTH = {
    Cut(layer, dim): 0.6 * (layer / 6) ** 0.3 * (place + 2) / 8
    for layer in range(1, 7)
    for place, dim in enumerate(DIMS)
}
CARD = ModelCard("minilm", "full-dim", 6, 384, (Cut(6, 384), Cut(2, 128)), "same", "mean",
                 "cosine", 0.05)  # fmt: skip


def test_a_grid_that_grows_has_no_outlier() -> None:
    assert outliers(SMOOTH, 300) == {}


@pytest.mark.parametrize("share", [0.1, 3.0], ids=["worse", "better"])
def test_layer_0_may_be_worse_or_better_than_the_layers(share: float) -> None:
    table = {Cut(0, dim): share * SMOOTH[Cut(1, dim)] for dim in DIMS}

    assert outliers(SMOOTH | table, 300) == {}


def test_a_cell_of_layer_0_that_fell_is_found_among_its_dims() -> None:
    table = {Cut(0, dim): SMOOTH[Cut(1, dim)] for dim in DIMS}

    assert outliers(SMOOTH | table | {Cut(0, 128): 0.0}, 300) == {
        Cut(0, 128): "below the neighbours of its layer"
    }


@pytest.mark.parametrize("cut", [Cut(3, 64), Cut(6, 384), Cut(1, 384)])
def test_a_cell_that_fell_is_found_wherever_it_stands(cut: Cut) -> None:
    found = outliers({**SMOOTH, cut: 0.0}, 300)

    assert list(found) == [cut]
    assert found[cut].startswith("below the neighbours of its")


@pytest.mark.parametrize("cut", [Cut(3, 16), Cut(1, 8)])
def test_a_cell_that_is_too_good_is_found(cut: Cut) -> None:
    found = outliers({**SMOOTH, cut: 0.95}, 300)

    assert list(found) == [cut]
    assert found[cut].startswith("above the neighbours")


@given(noise=st.lists(st.floats(-0.01, 0.01), min_size=42, max_size=42))
def test_noise_below_the_standard_error_is_no_outlier(noise: list[float]) -> None:
    noisy = {cut: value + extra for (cut, value), extra in zip(SMOOTH.items(), noise, strict=True)}

    assert outliers(noisy, 300) == {}


def test_the_check_of_a_cell_says_measure_cut_value_and_direction() -> None:
    cells = {cut: {"nDCG@10": value} for cut, value in {**SMOOTH, Cut(3, 64): 0.01}.items()}

    (check,) = grid_checks(Grid("m", "scifact", "test", 300, cells))

    assert check.startswith("nDCG@10 of L3D64 is .0100, far below the neighbours of its layer")


@pytest.mark.parametrize(
    ("names", "depth", "documents", "expected"),
    [
        (["R@1000"], 100, 5000, "R@1000 looks deeper than the 100 documents of a ranking: what"),
        (["R@100"], 40, 40, "the corpus has no more than 40, so recall that deep says nothing"),
    ],
)
def test_a_measure_above_what_the_run_allows_is_named(
    names: list[str], depth: int, documents: int, expected: str
) -> None:
    (check,) = depth_checks(names, depth, documents)

    assert expected in check


def test_what_the_judgements_lack_is_counted() -> None:
    assert depth_checks(["R@1000", "AP", "nDCG@10"], 1000, 5000) == []
    found = query_checks(50, unanswered=2, unanswerable=3, unknown_documents=4)

    assert [re.search(r"\d", check)[0] for check in found] == ["2", "3", "4"]
    assert "counted as 0" in found[0]
    assert "without a relevant document" in found[1]
    assert "corpus does not hold" in found[2]
    assert query_checks(50) == []


def test_rankings_that_say_nothing_are_counted_at_the_worst_cut() -> None:
    found = ranking_checks({Cut(1, 8): 3, Cut(2, 8): 5, Cut(3, 8): 0}, {Cut(1, 8): 1}, 9)

    assert found[0].startswith("5 of 9 queries give one score to all documents of a ranking at L2D8"
                               " (and at 1 more cut)")  # fmt: skip
    assert found[1].startswith("1 of 9 queries find no document at L1D8")
    assert ranking_checks({Cut(1, 8): 0}, {Cut(1, 8): 0}, 9) == []


def test_untrained_cuts_and_other_prefixes_are_told() -> None:
    cuts = [Cut(6, 384), Cut(1, 8)]

    found = model_checks(CARD, cuts, {"query_prefix": ("query: ", "")})

    assert found[0].startswith("The documents were encoded with query_prefix 'query: ' and")
    assert found[1].startswith("1 of 2 cuts were not trained and may be near random; trained are")
    assert model_checks(CARD, [Cut(6, 384)], {}) == []
    (untrained,) = model_checks(replace(CARD, variant="untrained"), cuts, {})
    assert untrained.startswith("minilm is measured without training")
