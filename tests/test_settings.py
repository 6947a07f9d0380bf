from pathlib import Path

import pytest

from m2dr.errors import UserError
from m2dr.settings.trainings import read_train_settings


def test_options_overrule_words_and_words_overrule_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('steps = 1\nseed = 1\nvariant = "plain"\n')

    settings = read_train_settings(path, ["seed=2", "variant=mrl"], {"variant": "dims"})

    assert (settings.steps, settings.seed, settings.variant) == (1, 2, "dims")


def test_a_setting_overrules_one_field_of_the_variant() -> None:
    recipe = read_train_settings(None, ["variant=fixed-doc", "full_dim=true"]).recipe()

    assert (recipe.documents, recipe.full_dim, recipe.align) == ("last", True, "pca")


def test_everything_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(UserError) as caught:
        read_train_settings(None, ["stepz=1", "seed=x", "layers=3", "full_dim=1", "dtype=fp8"])

    told = str(caught.value)
    assert "unknown setting 'stepz' (Did you mean steps?)" in told
    assert "seed = 'x' is not a whole number" in told
    assert "layers = 3 is not a list of whole numbers" in told
    assert "full_dim = 1 is not true or false" in told
    assert "dtype = 'fp8' is not one of auto, fp32, bf16" in told


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("layers=[-1, 2]", "layers that a training asks for count from 0, the embeddings"),
        ("dims=[0]", "dims from 1"),
        ('checkpoints=["L0D8"]', "checkpoints count layers from 1"),
    ],
)
def test_layers_dims_and_checkpoints_begin_somewhere(word: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        read_train_settings(None, [word])


def test_a_file_that_is_not_toml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("steps = = 1\n")

    with pytest.raises(UserError, match="run.toml is not TOML: .*line 1"):
        read_train_settings(path)


@pytest.mark.parametrize("key", ["query_prefix", "document_prefix"])
@pytest.mark.parametrize(
    ("word", "prefix"),
    [
        ("query: ", "query: "),
        ('"query: "', "query: "),
        ("'query: '", "query: "),
        (" query:\t", " query:\t"),
        ("Frage:\u00a0", "Frage:\u00a0"),
        ("7", "7"),
        ("true ", "true "),
        ("[Q] ", "[Q] "),
        ('"Q" asks: ', '"Q" asks: '),
        ('"a"\nb = 1', '"a"\nb = 1'),
        ("", ""),
        (" ", " "),
        ("a=b ", "a=b "),
    ],
)
def test_a_prefix_is_kept_byte_for_byte(key: str, word: str, prefix: str) -> None:
    assert getattr(read_train_settings(None, [f"{key}={word}"]), key) == prefix


def test_a_prefix_in_a_file_is_kept_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('query_prefix = "query: "\ndocument_prefix = " \\t"\n')

    settings = read_train_settings(path)

    assert (settings.query_prefix, settings.document_prefix) == ("query: ", " \t")


def test_spaces_around_other_words_mean_nothing() -> None:
    assert read_train_settings(None, ["pooling = mean "]).pooling == "mean"
