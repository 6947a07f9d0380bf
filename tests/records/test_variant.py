import pytest

from m2dr.records.variant import VARIANTS, Variant

ROWS = pytest.mark.parametrize("variant", VARIANTS.values(), ids=list(VARIANTS))


@pytest.mark.parametrize(
    "name", ["plain", "separate", "mrl", "2dmse", "full-dim", "dims", "score", "fixed-doc"]
)
def test_each_published_recipe_is_a_row(name: str) -> None:
    assert VARIANTS[name].name == name


@ROWS
def test_a_summary_is_one_sentence_for_a_help_page(variant: Variant) -> None:
    assert variant.summary.endswith(".")
    assert len(variant.summary) < 80


def test_no_two_rows_are_the_same_recipe() -> None:
    choices = {
        tuple(v for k, v in vars(row).items() if k not in ("name", "summary"))
        for row in VARIANTS.values()
    }

    assert len(choices) == len(VARIANTS)


@ROWS
def test_what_imitates_has_a_short_prefix_to_imitate_with(variant: Variant) -> None:
    assert variant.align == "none" or variant.prefixes != "none"


@ROWS
def test_full_width_and_last_layer_documents_are_said_of_shallow_layers_alone(
    variant: Variant,
) -> None:
    assert variant.shallow or not (variant.full_dim or variant.documents == "last")


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("full-dim", {"full_dim": True}),
        ("dims", {"prefixes": "many"}),
        ("score", {"align": "score"}),
        ("fixed-doc", {"documents": "last"}),
    ],
)
def test_each_variant_of_2dmse_changes_one_choice(name: str, changed: dict[str, object]) -> None:
    base, row = vars(VARIANTS["2dmse"]), vars(VARIANTS[name])

    differing = {key: row[key] for key in row if row[key] != base[key]}

    assert differing == changed | {"name": name, "summary": row["summary"]}
