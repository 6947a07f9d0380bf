"""Settings from a file, from words and from options."""

from pathlib import Path

import pytest

from m2dr.core.errors import UserError
from m2dr.core.requests import FiguresRequest
from m2dr.core.settings import TrainSettings, read_settings, request_of


def test_options_overrule_words_and_words_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('steps = 1\nseed = 1\nvariant = "plain"\nbatch_size = 8\n')

    settings = read_settings(TrainSettings, path, ["seed=2", "variant=mrl"], {"variant": "dims"})

    assert (settings.steps, settings.seed, settings.variant) == (1, 2, "dims")
    assert settings.batch_size == 8


def test_typed_steps_overrule_the_epochs_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("epochs = 3.0\n")

    assert read_settings(TrainSettings, path, (), {"steps": 1}).epochs == 0
    assert read_settings(TrainSettings, path, ["steps=1", "epochs=2"]).epochs == 2


def test_a_file_extends_another(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text("steps = 5\nseed = 1\n")
    (tmp_path / "more.toml").write_text('extends = "base.toml"\nseed = 2\n')

    settings = read_settings(TrainSettings, tmp_path / "more.toml")

    assert (settings.steps, settings.seed) == (5, 2)


@pytest.mark.parametrize(
    ("word", "name", "value"),
    [
        ("layers=2,4", "layers", (2, 4)),
        ("layers=[2, 4]", "layers", (2, 4)),
        ("layers=2", "layers", (2,)),
        ("checkpoints=L2D8", "checkpoints", ("L2D8",)),
        ("epochs=2", "epochs", 2.0),
        ("share=.5", "share", 0.5),
        ("term_weights=[1, .5, 1, 1.5]", "term_weights", (1.0, 0.5, 1.0, 1.5)),
        ("batch_size=4", "batch_size", 4),
        ("pooling = mean ", "pooling", "mean"),
        ("full_dim=true", "full_dim", True),
        ("query_prefix=query: ", "query_prefix", "query: "),
        ('query_prefix="query: "', "query_prefix", "query: "),
        ("query_prefix=7", "query_prefix", "7"),
        ("query_prefix=[Q] ", "query_prefix", "[Q] "),
        ("query_prefix=", "query_prefix", ""),
    ],
)
def test_word_is_toml_or_text(word: str, name: str, value: object) -> None:
    assert getattr(read_settings(TrainSettings, None, [word]), name) == value


def test_all_mistakes_are_named_at_once() -> None:
    words = ["stepz=1", "seed=x", "dropout=1", "dtype=fp8"]
    with pytest.raises(UserError) as caught:
        read_settings(TrainSettings, None, words)

    told = str(caught.value)
    for part in ("mean steps?", "seed = 'x'", "dropout = 1", "dtype = 'fp8'"):
        assert part in told


def test_a_setting_overrules_one_field_of_the_variant() -> None:
    recipe = read_settings(TrainSettings, None, ["variant=fixed-doc", "full_dim=true"]).recipe()

    assert (recipe.documents, recipe.full_dim, recipe.align) == ("last", True, "pca")


def test_one_of_several_choices_is_taken_and_a_long_value_is_cut_in_messages() -> None:
    assert request_of(FiguresRequest, {"format": "pdf"}).formats == ("pdf",)
    with pytest.raises(UserError, match="not one of png") as caught:
        request_of(FiguresRequest, {"format": ["gif"] * 1000})
    assert len(str(caught.value)) < 300
