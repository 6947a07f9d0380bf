"""Properties of every objective, whatever its terms; the formulas are in test_recipes.py."""

import random
from collections import Counter
from dataclasses import replace
from math import log
from typing import get_args

import numpy as np
import pytest
import torch
from formulas import DIMS, SHALLOW, TAU, L
from hypothesis import given
from hypothesis import strategies as st
from referee import WHOLE, batch, encoded_batch, objective_of

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.core.variants import VARIANTS, Teacher, Variant, Weights
from m2dr.training.objective import Objective, Setting
from m2dr.training.terms import StepTerms, layer_weight, possible_steps, weighed

CHI_SQUARED = 26.1  # of nine equally likely outcomes, once in a thousand by chance alone
V1 = possible_steps(VARIANTS["2dmse-v1"], SHALLOW, DIMS, WHOLE)


def drawing(seed: int) -> Objective:
    return Objective(V1, WHOLE, Setting("dot", TAU, seed=seed))


def test_what_a_step_draws_depends_on_the_seed_and_the_step_alone() -> None:
    forwards = [drawing(13).at(step) for step in range(50)]
    resumed = drawing(13)
    for library in (random, np.random, torch):  # which a resumed run has in any state
        (library.manual_seed if library is torch else library.seed)(1)

    backwards = [resumed.at(step) for step in reversed(range(50))]

    assert backwards[::-1] == forwards
    assert [drawing(14).at(step) for step in range(50)] != forwards


def test_every_layer_and_prefix_comes_up_as_often_as_any_other() -> None:
    steps, objective = 6000, drawing(13)

    counts = Counter((a.layers[0], a.dims[0]) for a in map(objective.at, range(steps)))

    assert counts.keys() == {(layer, k) for layer in SHALLOW for k in DIMS}
    fair = steps / len(counts)
    spread = sum((count - fair) ** 2 / fair for count in counts.values())
    assert spread < CHI_SQUARED


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_names_the_part_that_is_none(value: float) -> None:
    paper = batch()
    objective = objective_of("full-dim", paper)
    asked = objective.at(0)
    sides = encoded_batch(asked, paper)
    broken = sides.queries.detach().clone()
    broken[1] = value

    with pytest.raises(UserError, match="not a number in its part layer-02/contrastive"):
        objective(asked, replace(sides, queries=broken))


# Terms


STAIRS = (Cut(1, 2), Cut(2, 4), Cut(3, 8))
ROWS = pytest.mark.parametrize("variant", VARIANTS.values(), ids=list(VARIANTS))


def asked(variant: Variant, **more: object) -> tuple[StepTerms, ...]:
    dims = (4,) if variant.prefixes == "one" else DIMS
    return possible_steps(variant, SHALLOW, dims, WHOLE, STAIRS, **more)


@ROWS
@pytest.mark.parametrize("teacher", ["width", "depth", "whole"])
def test_nothing_imitates_itself(variant: Variant, teacher: Teacher) -> None:
    changed = replace(variant, align="score", teacher=teacher)

    assert all(term.teacher != term.cut for step in asked(changed) for term in step.terms)


@ROWS
@pytest.mark.parametrize("align", ["none", "pca"])
def test_fixed_documents_are_the_last_layers_whatever_else_is_asked(
    variant: Variant, align: str
) -> None:
    """Also where no term is about the last layer: the deepest one asked is not it."""
    changed = replace(variant, documents="last", align=align, whole=variant.prefixes == "none")
    changed = replace(changed, whole=changed.whole and not changed.shallow)

    for step in asked(changed):
        assert step.document_layers == (L,)


@given(last=st.integers(1, 48), weights=st.sampled_from(get_args(Weights)))
def test_shallow_layers_never_count_more_than_those_before_them_and_the_last_one_1(
    last: int, weights: Weights
) -> None:
    variant = replace(VARIANTS["ese"], weights=weights)

    found = [layer_weight(variant, layer, last) for layer in range(1, last + 1)]

    assert found[-1] == (1 / last if weights == "mean" else 1)
    assert found[:-1] == sorted(found[:-1], reverse=True)
    assert all(0 < weight <= 1 for weight in found)
    if weights not in ("log-position-mean", "mean"):
        assert found[0] == 1


def test_places_are_those_of_the_layers_that_are_trained() -> None:
    stairs = [Cut(2, 2), Cut(3, 8)]
    variant = replace(VARIANTS["starbucks"], weights="log-position")

    (step,) = possible_steps(variant, SHALLOW, DIMS, WHOLE, stairs)

    weights = {t.cut.layer: t.weight for t in step.terms if t.kind == "retrieve"}
    assert weights == {2: 1, 3: 1 / (1 + log(2)), 4: 1}


@given(average=st.booleans(), share=st.floats(0.1, 2), align_weight=st.floats(0.1, 2))
def test_averaged_cuts_count_together_as_much_as_one(
    average: bool, share: float, align_weight: float
) -> None:
    changes = {"average": average, "share": share, "align_weight": align_weight}
    (step,) = asked(replace(VARIANTS["elastic"], **changes))

    below = [term for term in step.terms if term.cut != WHOLE]
    cuts = len({term.cut for term in below})
    times = 1 if average else cuts
    for kind, weight in (("retrieve", share), ("align scores", align_weight)):
        assert sum(t.weight for t in below if t.kind == kind) == pytest.approx(weight * times)


@pytest.mark.parametrize(
    "variant",
    [
        replace(VARIANTS["plain"], whole=False),
        replace(VARIANTS["mipic"], alpha=0),
        replace(VARIANTS["2dmse"], whole=False, share=0),
        replace(VARIANTS["2dmse-v1"], whole=False, prefixes="none", full_dim=False),
    ],
)
def test_a_recipe_that_trains_no_cut_to_retrieve_is_refused(variant: Variant) -> None:
    with pytest.raises(UserError, match=f"Variant {variant.name}, as it is set, trains no cut"):
        asked(variant)


def test_each_kind_of_cut_has_a_weight() -> None:
    steps = possible_steps(VARIANTS["2dmse-v1"], (1,), (8,), Cut(2, 32))

    (step,) = weighed(steps, (1.0, 2.0, 3.0, 0.0), Cut(2, 32))

    retrieving = {str(t.cut): t.weight for t in step.terms if t.kind == "retrieve"}
    assert retrieving == {"L2D32": 1.0, "L1D32": 2.0, "L2D8": 3.0}
    assert {t.kind for t in step.terms} == {t.kind for t in steps[0].terms}
    with pytest.raises(UserError, match="trains no cut"):
        weighed(steps, (0.0, 0.0, 0.0, 0.0), Cut(2, 32))
