import csv
import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from m2dr.core.records import Cut
from m2dr.evaluation.comparison import Comparison, write_comparison
from m2dr.evaluation.significance import (
    Paired,
    bootstrap_interval,
    effect_size,
    holm,
    paired,
    randomisation_test,
)

Floats = NDArray[np.float64]


def pairs(cells: int, queries: int, gain: float = 0.0, seed: int = 5) -> tuple[Floats, Floats]:
    """Scores like reciprocal ranks: few values, many ties, far from normal."""
    generator = np.random.default_rng(seed)
    ranks = generator.integers(1, 12, size=(2, cells, queries))
    scores = np.where(ranks > 10, 0, 1 / ranks)
    return scores[0] + gain, scores[1]


def mean(values: Floats, axis: int = -1) -> Floats:
    return np.asarray(values).mean(axis=axis)


def test_the_t_test_is_that_of_scipy_on_the_scores_themselves() -> None:
    mine, theirs = pairs(6, 40, gain=0.05)

    found = paired(mine, theirs, resamples=100)

    expected = [stats.ttest_rel(a, b).pvalue for a, b in zip(mine, theirs, strict=True)]
    np.testing.assert_allclose([one.t_p for one in found], expected, rtol=1e-9)


@given(
    differences=st.lists(
        st.sampled_from([-0.5, -0.25, -0.1, 0.0, 0.1, 0.3, 1.0]), min_size=1, max_size=9
    )
)
def test_of_few_queries_the_randomisation_test_counts_every_pattern_of_signs(
    differences: list[float],
) -> None:
    observed = abs(sum(differences))
    patterns = list(product([1, -1], repeat=len(differences)))
    sums = [abs(sum(s * d for s, d in zip(signs, differences, strict=True))) for signs in patterns]

    found = randomisation_test(np.array([differences]))

    assert found == [sum(total >= observed - 1e-9 for total in sums) / len(patterns)]


def test_a_drawn_randomisation_test_agrees_with_the_one_of_scipy_within_its_chance() -> None:
    mine, theirs = pairs(3, 60, gain=0.06)

    found = randomisation_test(mine - theirs, 20_000)

    for p, row in zip(found, mine - theirs, strict=True):
        referee = stats.permutation_test(
            (row,), mean, permutation_type="samples", vectorized=True, n_resamples=20_000,
            rng=np.random.default_rng(1),
        )  # fmt: skip
        assert p == pytest.approx(referee.pvalue, abs=4 * np.sqrt(2 * 0.25 / 20_000))


def test_the_observed_signs_count_among_those_drawn() -> None:
    assert randomisation_test(np.ones((1, 60)), resamples=99) == [1 / 100]


def test_blocks_of_resamples_count_what_one_block_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = pairs(3, 12, gain=0.1)
    whole = randomisation_test(mine - theirs), bootstrap_interval(mine - theirs)

    monkeypatch.setattr("m2dr.evaluation.significance._AT_ONCE", 12 * 7)

    np.testing.assert_array_equal(randomisation_test(mine - theirs), whole[0])
    np.testing.assert_allclose(bootstrap_interval(mine - theirs), whole[1], atol=1e-12)


@given(p=st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_the_stepwise_rule(p: list[float]) -> None:
    places = sorted(range(len(p)), key=lambda i: p[i])
    expected, highest = [0.0] * len(p), 0.0
    for step, place in enumerate(places):
        highest = max(highest, min(1.0, p[place] * (len(p) - step)))
        expected[place] = highest

    np.testing.assert_array_equal(holm(p), expected)


def test_the_effect_is_cohens_d_of_the_differences() -> None:
    differences = np.array([[0.1, 0.3, -0.2, 0.4]])
    average = sum(differences[0]) / 4
    spread = (sum((d - average) ** 2 for d in differences[0]) / 3) ** 0.5

    assert effect_size(differences)[0] == pytest.approx(average / spread)


def test_the_interval_of_the_mean_is_that_of_scipys_bootstrap() -> None:
    mine, theirs = pairs(1, 80, gain=0.1)

    (low,), (high,) = bootstrap_interval(mine - theirs)

    referee = stats.bootstrap(
        (mine[0] - theirs[0],), np.mean, method="percentile", n_resamples=10_000,
        rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    assert (low, high) == pytest.approx((referee.low, referee.high), abs=0.005)


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([0.0] * 20, Paired(0, 0, 0, 0.0, 1, 1, 1, 1, 0, 20, 0)),
        ([0.25], Paired(0.25, 0.25, 0.25, None, 1, 1, 1, 1, 1, 0, 0)),
        ([0.0], Paired(0, 0, 0, 0.0, 1, 1, 1, 1, 0, 1, 0)),
        ([-0.5, -0.5], Paired(-0.5, -0.5, -0.5, None, 0, 0, 0.5, 0.5, 0, 0, 2)),
    ],
    ids=["no difference at all", "one query", "one query, no difference", "always the same"],
)
def test_scores_that_leave_a_test_undefined_are_answered_all_the_same(
    differences: list[float], expected: Paired
) -> None:
    zeros = np.zeros(len(differences))

    assert paired([differences], zeros) == (expected,)


def test_rounding_is_a_tie_for_every_test() -> None:
    base = np.linspace(0, 1, 30)

    (found,) = paired([base * (1 + 1e-15)], base)

    assert (found.difference, found.p, found.t_p, found.ties) == (0, 1, 1, 30)


@given(seed=st.integers(0, 99), queries=st.integers(1, 20))
def test_exchanging_the_two_systems_changes_signs_and_nothing_else(seed: int, queries: int) -> None:
    mine, theirs = pairs(2, queries, seed=seed)

    forth, back = paired(mine, theirs, resamples=200), paired(theirs, mine, resamples=200)

    for one, other in zip(forth, back, strict=True):
        assert (one.p, one.corrected, one.wins, one.losses) == (
            other.p, other.corrected, other.losses, other.wins,
        )  # fmt: skip
        assert one.difference == pytest.approx(-other.difference, abs=1e-12)
        assert one.low <= one.difference + 1e-12
        assert one.difference <= one.high + 1e-12


# Tables and files


def cell(difference: float, corrected: float) -> Paired:
    return Paired(difference, -0.1, 0.1, None, 0.01, 0.02, 0.001, corrected, 5, 3, 1)


COMPARISON = Comparison(
    model="full-dim",
    place="pydocs test",
    measure="nDCG@10",
    queries=9,
    baseline="plain",
    against="the same cut of plain",
    alpha=0.05,
    values={Cut(2, 8): 0.25, Cut(2, 16): 1.0, Cut(12, 8): 0.5, Cut(12, 16): 0.125},
    cells={
        Cut(2, 8): cell(0.0625, 0.05), Cut(2, 16): cell(-0.5, 0.01), Cut(12, 8): cell(0.00001, 1.0)
    },
    notes=("plain was not measured at L12D16, which are not compared",),
)  # fmt: skip


def test_a_table_marks_every_cell_and_says_by_which_rule() -> None:
    assert str(COMPARISON).splitlines() == [
        "full-dim against the same cut of plain: nDCG@10 on pydocs test, 9 queries",
        "layer      8       16",
        "    2  .2500▲  1.0000▼",
        "   12  .5000=   .1250",
        "▲ better, ▼ worse, = not significantly different from the same cut of plain: paired "
        "randomisation test over 9 queries, two-sided, p <= .05 after Holm's correction over 3 cells",
        "1 ▲, 1 =, 1 ▼",
        "Note: plain was not measured at L12D16, which are not compared",
        "",
        "Difference of nDCG@10",
        "layer       8      16",
        "    2  +.0625  -.5000",
        "   12   .0000       -",
    ]


def test_the_files_hold_each_cell_with_all_its_numbers(tmp_path: Path) -> None:
    as_json, as_csv = write_comparison(COMPARISON, tmp_path / "new" / "nDCG@10-against-plain")

    held = json.loads(as_json.read_text())
    assert (held["model"], held["baseline"]) == ("full-dim", "plain")
    assert held["notes"] == list(COMPARISON.notes)
    assert held["cells"][0] == {
        "layer": 2, "dim": 8, "value": 0.25, "mark": "▲", "difference": 0.0625, "low": -0.1,
        "high": 0.1, "effect": None, "t_p": 0.01, "t_corrected": 0.02, "p": 0.001,
        "corrected": 0.05, "wins": 5, "ties": 3, "losses": 1,
    }  # fmt: skip
    rows = list(csv.DictReader(as_csv.read_text().splitlines()))
    assert [row["mark"] for row in rows] == ["▲", "▼", "="]
    assert list(rows[0]) == list(held["cells"][0])
    assert as_json.name == "nDCG@10-against-plain.json"
