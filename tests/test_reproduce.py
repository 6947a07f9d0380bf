"""The claims and tables of published papers, as scripts/reproduce lists them, are what was published."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts" / "reproduce"))

import tables  # noqa: E402  # scripts import their neighbours by bare name, as python runs them
from claims import EXPERIMENTS, MODELS, Experiment, grids  # noqa: E402  # the same

EVERY = pytest.mark.parametrize("one", EXPERIMENTS.values(), ids=EXPERIMENTS)


@EVERY
def test_claims_say_that_the_higher_published_value_is_above(one: Experiment) -> None:
    for claim in one.claims:
        known = [cell.value for cell in (claim.above, claim.below)]
        assert known == [None, None] or known[0] > known[1], claim
        assert None not in known or "in words" in claim.source or "labelled" in claim.source
        for cell in (claim.above, claim.below):
            grid = grids(one.evaluation.published).get(MODELS[cell.model].published, {})
            if cell.cut in grid and cell.value is not None and not claim.on:
                # 82.65 and 82.66 are one
                assert cell.value == pytest.approx(grid[cell.cut], abs=0.011), claim
    keys = {(c.above, c.below, c.on, c.measure) for c in one.claims}
    assert len(one.claims) == len(keys)
    assert {c.on for c in one.claims} <= {"", *(Path(task).name for task in one.evaluation.tasks)}
    claimed = {cell.model for claim in one.claims for cell in (claim.above, claim.below)}
    trained = {model.name for model in one.models if not model.raw}
    assert trained <= claimed <= {model.name for model in one.models}, "none is trained for nothing"


@EVERY
def test_cells_of_tables_are_models_of_their_experiment_and_most_were_published(
    one: Experiment,
) -> None:
    names = {model.name for model in one.models}
    for table in one.tables:
        fields = [
            a | b | c for _, a in table.blocks for _, b in table.rows for _, c in table.columns
        ]
        cells = [tables.cell_of(each) for each in fields]
        assert {cell.model for cell in cells} & names, table.title
        assert {cell.model for cell in cells} <= MODELS.keys(), table.title
        assert any(tables.published(cell, one) is not None for cell in cells), table.title
