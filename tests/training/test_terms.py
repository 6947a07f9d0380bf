"""The terms of each recipe, and how likely each draw of a step is."""

from collections import Counter
from dataclasses import replace
from math import log
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.core.variants import VARIANTS, Teacher, Variant, Weights
from m2dr.training.terms import StepTerms, layer_weight, possible_steps, weighed

L, H = 4, 16
SHALLOW, DIMS, WHOLE = (1, 2, 3), (2, 4, 8), Cut(L, H)
STAIRS = (Cut(1, 2), Cut(2, 4), Cut(3, 8))
ROWS = pytest.mark.parametrize("variant", VARIANTS.values(), ids=list(VARIANTS))


def asked(variant: Variant, **more: object) -> tuple[StepTerms, ...]:
    dims = (4,) if variant.prefixes == "one" else DIMS
    return possible_steps(variant, SHALLOW, dims, WHOLE, STAIRS, **more)


@ROWS
def test_no_cut_is_asked_the_same_twice(variant: Variant) -> None:
    for step in asked(variant):
        counts = Counter((term.cut, term.kind, term.teacher) for term in step.terms)
        assert set(counts.values()) == {1}


@ROWS
def test_every_teacher_and_every_cut_is_computed(variant: Variant) -> None:
    for step in asked(variant):
        for cut in {t.cut for t in step.terms} | {t.teacher for t in step.terms if t.teacher}:
            assert cut.layer in step.layers
            assert cut.dim in step.dims


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

    assert found[-1] == 1
    assert found[:-1] == sorted(found[:-1], reverse=True)
    assert all(0 < weight <= 1 for weight in found)
    if weights != "log-position-mean":
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
