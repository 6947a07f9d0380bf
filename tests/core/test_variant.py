from dataclasses import fields

import pytest

from m2dr.core.variants import CHOICES, VARIANTS, Variant

ROWS = pytest.mark.parametrize("variant", VARIANTS.values(), ids=list(VARIANTS))
PUBLISHED = {
    "plain", "separate", "mrl", "2dmse-v1", "2dmse", "full-dim", "dims", "score", "fixed-doc",
    "starbucks", "ese", "mipic", "2dmse-st", "starbucks-sts",
}  # fmt: skip


def test_each_published_recipe_is_a_row_and_so_are_our_own() -> None:
    assert VARIANTS.keys() == PUBLISHED | {"elastic", "exits"}
    assert all(VARIANTS[name].name == name for name in VARIANTS)


def test_no_two_rows_are_the_same_recipe() -> None:
    choices = {
        tuple(v for k, v in vars(row).items() if k not in ("name", "summary"))
        for row in VARIANTS.values()
    }

    assert len(choices) == len(VARIANTS)


def test_every_field_but_the_name_and_what_makes_a_separate_model_can_be_set() -> None:
    assert {field.name for field in fields(Variant)} - set(CHOICES) == {
        "name",
        "summary",
        "single_cut",
    }


@ROWS
def test_what_imitates_has_a_cut_below_the_whole_to_imitate_with(variant: Variant) -> None:
    below = variant.prefixes != "none" or variant.staircase or variant.full_dim

    assert variant.align == "none" or below


@ROWS
def test_full_width_and_last_layer_documents_are_said_of_shallow_layers_alone(
    variant: Variant,
) -> None:
    assert variant.shallow or not (variant.full_dim or variant.documents == "last")


@ROWS
def test_what_is_not_the_loss_of_a_cut_has_the_rest_of_alpha(variant: Variant) -> None:
    assert (variant.alpha < 1) == (variant.sia or variant.pic)


@pytest.mark.parametrize(
    ("base", "name", "changed"),
    [
        ("2dmse", "full-dim", {"full_dim": True}),
        ("2dmse", "dims", {"prefixes": "many"}),
        ("2dmse", "score", {"align": "score", "align_reduction": "mean"}),
        ("2dmse", "fixed-doc", {"documents": "last"}),
        ("2dmse", "ese", {"whole": False, "align_reduction": "mean"}),
        ("mrl", "mipic", {"alpha": 0.4, "sia": True, "pic": True}),
    ],
)
def test_a_recipe_that_came_from_another_changes_these_choices(
    base: str, name: str, changed: dict[str, object]
) -> None:
    before, after = vars(VARIANTS[base]), vars(VARIANTS[name])

    differing = {key: after[key] for key in after if after[key] != before[key]}

    assert differing == changed | {"name": name, "summary": after["summary"]}
