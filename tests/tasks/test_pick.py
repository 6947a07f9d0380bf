from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from m2dr.core.errors import UserError
from m2dr.core.files import write_record
from m2dr.core.records import Cut
from m2dr.core.requests import PickRequest
from m2dr.evaluation.costs import Cost, Costs, write_costs
from m2dr.evaluation.grid import PROVENANCE, Grid, Provenance, write_grid
from m2dr.tasks.evaluating.pick import pick_cut

# layer, dim, nDCG@10, p50, p95: quality rises with both, latency with the layer alone
TABLE = [
    (1, 8, 0.10, 1.0, 2.0), (1, 32, 0.20, 1.0, 2.0),
    (2, 8, 0.15, 2.0, 4.0), (2, 32, 0.39, 2.0, 4.0),
    (4, 8, 0.15, 4.0, 8.0), (4, 32, 0.40, 4.0, 8.0),
]  # fmt: skip


def costs_of(rows: list[tuple[Any, ...]], **changes: object) -> Costs:
    cells = {
        Cut(layer, dim): Cost(p50, p95, 100.0 / layer, 4 * dim, 1000 * layer + dim, 10 * layer)
        for layer, dim, _, p50, p95 in rows
    }
    costs = Costs(
        "models/mine", "abc", "pydocs", Cut(4, 32), "same", 40, 8, 5.5, "f32", "a machine", cells
    )
    return replace(costs, **changes)


def results(folder: Path, rows: list[tuple[Any, ...]] = TABLE, **changes: object) -> Path:
    cells = {Cut(layer, dim): {"nDCG@10": q, "RR@10": 1 - q} for layer, dim, q, _, _ in rows}
    write_grid(Grid("mine", "pydocs", "test", 9, cells), folder)
    write_costs(costs_of(rows, **changes), folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return results(tmp_path / "mine")


def picked(**asked: Any) -> Cut:  # fields of PickRequest
    return pick_cut(PickRequest(**asked)).chosen.cut


def test_bytes_and_multiply_adds_are_limits_too(folder: Path) -> None:
    assert picked(folder=folder, bytes_per_document=32) == Cut(2, 8)
    assert picked(folder=folder, multiply_adds=2032) == Cut(2, 32)
    assert picked(folder=folder, bytes_per_document=32, latency_ms=1) == Cut(1, 8)


def test_a_hybrid_has_results_of_its_own(folder: Path) -> None:
    better = [(layer, dim, 1 - quality, p50, p95) for layer, dim, quality, p50, p95 in TABLE]
    results(folder.with_name("mine.hybrid-0.4"), better)

    assert picked(folder=folder) == Cut(4, 32)
    assert picked(folder=folder, hybrid=0.4) == Cut(1, 8)
    with pytest.raises(UserError, match=r"mine\.hybrid-0\.2"):
        picked(folder=folder, hybrid=0.2)


def test_a_floor_may_be_a_value_of_any_measure(folder: Path) -> None:
    found = pick_cut(PickRequest(folder, at_least=("RR@10", 0.7)))

    assert (found.measure, found.chosen.cut) == ("RR@10", Cut(1, 8))


finite = st.sampled_from([0.05, 0.1, 0.2, 0.4, 0.8])
rows_of = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from([8, 16, 32]), finite, finite, finite),
    min_size=1, max_size=10, unique_by=lambda row: row[:2],
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows=rows_of, latency=st.none() | finite, size=st.none() | st.sampled_from([32, 64, 128]),
       share=st.none() | st.sampled_from([0.5, 0.9, 1.0]))  # fmt: skip
def test_picking_from_files_is_a_search_through_their_table(
    tmp_path: Path, rows: list[tuple[Any, ...]], latency: float | None, size: int | None,
    share: float | None,
) -> None:  # fmt: skip
    results(tmp_path, rows)
    whole = max(rows, key=lambda row: row[:2])[2]
    fitting = [
        row for row in rows
        if (latency is None or row[3] <= latency) and (size is None or 4 * row[1] <= size)
        and (share is None or row[2] >= share * whole)
    ]  # fmt: skip
    slowest, largest = max(row[3] for row in rows), max(row[1] for row in rows)

    def price(row: tuple[Any, ...]) -> float:
        return float(row[3] / slowest + row[1] / largest)

    alone = share is not None and latency is None and size is None
    request = PickRequest(tmp_path, latency_ms=latency, bytes_per_document=size, quality=share)
    if not fitting:
        with pytest.raises(UserError, match="No cut fits the budget"):
            pick_cut(request)
        return

    chosen = pick_cut(request).chosen

    best = min(
        fitting,
        key=lambda r: (price(r), -r[2], r[:2]) if alone else (-r[2], price(r), r[:2]),
    )
    assert (chosen.cut.layer, chosen.cut.dim) == best[:2]


def test_when_nothing_fits_the_nearest_are_named_with_what_they_lack(folder: Path) -> None:
    with pytest.raises(UserError, match="No cut fits the budget") as told:
        pick_cut(PickRequest(folder, latency_ms=1.5, quality=0.9))

    assert "L2D32 (2 ms, not 1.5 ms)" in str(told.value)
    assert "L1D32 (nDCG@10 .2000, not .3600)" in str(told.value)


def test_costs_of_a_model_that_was_trained_again_are_told_of(folder: Path) -> None:
    assert pick_cut(PickRequest(folder)).notes == ()

    made = Provenance("", "models/mine", "pydocs", "test", "def")
    write_record(folder / PROVENANCE, made)

    (note,) = pick_cut(PickRequest(folder)).notes
    assert "the costs are of models/mine with other weights" in note


def test_cuts_without_costs_are_counted(folder: Path) -> None:
    write_costs(costs_of(TABLE[:4]), folder)

    (note,) = pick_cut(PickRequest(folder)).notes

    assert "2 of 6 cuts" in note
