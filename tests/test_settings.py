from pathlib import Path

import pytest
from click.testing import CliRunner
from commands import parsed

from m2dr.cli import main
from m2dr.core.errors import UserError
from m2dr.core.trainings import read_pretrain_settings, read_train_settings


def test_options_and_words_overrule_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('steps = 1\nseed = 1\nvariant = "plain"\n')

    settings = read_train_settings(path, ["seed=2"], {"variant": "dims"})

    assert (settings.steps, settings.seed, settings.variant) == (1, 2, "dims")


@pytest.mark.parametrize("command", ["train", "pretrain"])
@pytest.mark.parametrize(
    ("option", "word", "told"),
    [
        ("--learning-rate=2e-5", "learning_rate=1e-4",
         "learning_rate is 0.0001 by --set and 2e-05 by --learning-rate; leave one of them out"),
        ("--steps=5", "steps=6", "steps is 6 by --set and 5 by --steps; leave one of them out"),
        ("--epochs=2", "epochs=1", "epochs is 1 by --set and 2.0 by --epochs; leave one"),
        ("--epochs=2", "steps=5", "steps = 5 changes nothing while epochs = 2; leave one of them"),
        ("--learning-rate=nan", "steps=5", "learning_rate = nan is not a number"),
        ("--learning-rate=0", "steps=5", "learning_rate must be above 0"),
        ("--batch-size=4", "batch_=8", "by --set and 4 by --batch-size; leave one of them out"),
    ],
)  # fmt: skip
def test_a_setting_has_one_value(command: str, option: str, word: str, told: str) -> None:
    word = word.replace("batch_", "batch_queries" if command == "train" else "batch_texts")

    done = CliRunner().invoke(main, [command, option, "--set", word])

    assert done.exit_code == 2
    assert told in done.stderr


@pytest.mark.parametrize(
    ("command", "words", "setting"),
    [
        ("train", "--learning-rate 2e-5", "learning_rate=2e-5"),
        ("train", "--epochs 2", "epochs=2"),
        ("train", "--batch-size 8", "batch_queries=8"),
        ("train", "--steps 8", "steps=8"),
        ("train", "--report-to none", "report_to=none"),
        ("pretrain", "--learning-rate 2e-5", "learning_rate=2e-5"),
        ("pretrain", "--batch-size 8", "batch_texts=8"),
    ],
)
def test_an_option_and_set_mean_the_same(command: str, words: str, setting: str) -> None:
    read = read_train_settings if command == "train" else read_pretrain_settings
    given = {n: v for n, v in parsed(f"m2dr {command} {words}").params.items() if v}

    assert read(None, [], given) == read(None, [setting]) == read(None, [setting], given)
    assert read(None, [setting]) != read(None)


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
