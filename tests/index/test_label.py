from dataclasses import replace

import pytest

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.index.manifest import Label


def test_queries_of_the_same_model_are_accepted_wherever_the_model_lies(label: Label) -> None:
    label.accept(replace(label, model="elsewhere", cuts=()), "tiny")


def test_queries_of_another_model_are_refused_with_both_models_named(label: Label) -> None:
    other = replace(label, fingerprint="f" * 64, model="models/second")

    expected = (
        r"tiny were encoded by model 0123456789ab \(models/first\), and the queries come from "
        r"model ffffffffffff \(models/second\).*m2dr index corpus --corpus 'corpora/my tiny' --model models/second$"
    )
    with pytest.raises(UserError, match=expected):
        label.accept(other, "tiny")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("similarity", "dot"),
        ("pooling", "cls"),
        ("query_prefix", ""),
        ("document_prefix", "passage: "),
        ("query_length", 64),
        ("document_length", 256),
        ("document_layer", "last"),
    ],
)
def test_queries_encoded_otherwise_are_refused_with_both_values(
    label: Label, field: str, value: str | int
) -> None:
    with pytest.raises(UserError, match=f"{field} {getattr(label, field)!r} against {value!r}"):
        label.accept(replace(label, **{field: value}), "tiny")


def test_all_differences_are_told_at_once(label: Label) -> None:
    with pytest.raises(UserError, match=r"pooling .* against .*, similarity .* against"):
        label.accept(replace(label, pooling="cls", similarity="dot"), "tiny")


def test_trained_cuts_of_one_layer_give_no_warning(label: Label) -> None:
    assert label.warnings(Cut(6, 16), Cut(6, 16)) == []


def test_an_untrained_dim_is_named_with_the_dims_that_were_trained(label: Label) -> None:
    assert label.warnings(Cut(6, 12), Cut(6, 12)) == [
        "Cut L6D12 was not trained (dims 8, 16 of that layer were): expect worse rankings."
    ]


def test_an_untrained_layer_is_named_with_the_layers_that_were_trained(label: Label) -> None:
    assert label.warnings(Cut(3, 8), Cut(3, 8)) == [
        "Cut L3D8 was not trained (layers 1, 6 were): expect near random rankings."
    ]


def test_an_untrained_cut_of_the_documents_is_named_too(label: Label) -> None:
    last = replace(label, cuts=((1, 8), (6, 16)), document_layer="last")

    (warning,) = last.warnings(Cut(1, 8), Cut(6, 8))

    assert warning.startswith("Cut L6D8 was not trained (dims 16 of that layer were)")


def test_a_model_of_which_no_cut_was_trained_is_told_so(label: Label) -> None:
    (warning,) = replace(label, cuts=()).warnings(Cut(3, 5), Cut(3, 5))

    assert (
        warning
        == "Cut L3D5 was not trained (no cut of this model was): expect near random rankings."
    )


def test_a_shallow_query_is_warned_of_documents_that_are_not_aligned_with_it(
    label: Label,
) -> None:
    (warning,) = label.warnings(Cut(1, 8), Cut(6, 8))

    assert "not aligned" in warning
    assert warning.endswith(
        "m2dr index corpus --corpus 'corpora/my tiny' --model models/first --layer 1 --dim 8"
    )


def test_a_shallow_query_may_search_documents_of_the_last_layer_where_it_was_trained_to(
    label: Label,
) -> None:
    assert replace(label, document_layer="last").warnings(Cut(1, 8), Cut(6, 8)) == []


def test_shallow_documents_of_a_model_with_fixed_documents_are_named(label: Label) -> None:
    (warning,) = replace(label, document_layer="last").warnings(Cut(1, 8), Cut(1, 8))

    assert "against documents of layer 6" in warning
    assert warning.endswith(
        "m2dr index corpus --corpus 'corpora/my tiny' --model models/first --layer 6 --dim 8"
    )


def test_layer_0_is_a_layer_of_queries_and_documents_as_any_other(label: Label) -> None:
    fitted = replace(label, cuts=((0, 8), (6, 8)))

    assert fitted.warnings(Cut(0, 8), Cut(0, 8)) == []
    (untrained,) = fitted.warnings(Cut(0, 16), Cut(0, 16))
    assert untrained.startswith("Cut L0D16 was not trained (dims 8 of that layer were)")
    (apart,) = fitted.warnings(Cut(0, 8), Cut(6, 8))
    assert apart.endswith("--layer 0 --dim 8")
    last = replace(fitted, document_layer="last")
    assert last.warnings(Cut(0, 8), Cut(6, 8)) == []
    (shallow,) = last.warnings(Cut(0, 8), Cut(0, 8))
    assert shallow.endswith("--layer 6 --dim 8")
