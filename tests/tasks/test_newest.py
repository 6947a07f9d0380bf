"""Which model a command takes that names none, and that it says so."""

import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from world import make_model

from m2dr.cli import main
from m2dr.core.errors import UserError
from m2dr.model.checkpoint import export_cut
from m2dr.tasks.encoder import newest_model

CHOSEN = "Model: models/trained, the newest in models/"
PASSED = "(exported or pre-trained, so not used: models/pretrained, models/cut)"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """models/: an older model and a newer one, then a cut of the newer and a pre-trained one."""
    place = tmp_path_factory.mktemp("place")
    models = place / "models"
    for name in ("older", "trained"):
        make_model(tiny_backbone, models / name, variant="plain")
    export_cut(models / "trained", 2, models / "cut")
    make_model(tiny_backbone, models / "pretrained", variant="smae")
    for second, name in enumerate(("older", "trained", "cut", "pretrained")):
        os.utime(models / name / "m2dr.json", (1_700_000_000 + second,) * 2)
    return place


pytestmark = pytest.mark.usefixtures("place")


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it that a test may change, and works in."""
    shutil.copytree(made, tmp_path / "place", copy_function=shutil.copy2)
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


def run(*words: str | Path) -> Result:
    result = CliRunner().invoke(main, list(map(str, words)))
    assert result.exit_code == 0, result.output
    return result


def test_exports_and_pre_trained_backbones_are_passed_over_and_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert newest_model() == "models/trained"
    assert capsys.readouterr().err == f"{CHOSEN} {PASSED}; --model names another.\n"

    shutil.rmtree("models/trained")
    assert newest_model() == "models/older"


def test_where_nothing_is_trained_the_others_are_named(place: Path) -> None:
    for name in ("older", "trained"):
        shutil.rmtree(place / "models" / name)

    with pytest.raises(
        UserError, match=r"only what was exported or pre-trained \(models/pretrained, models/cut\)"
    ):
        newest_model()


def test_a_damaged_model_that_may_be_the_newest_is_named(place: Path) -> None:
    (place / "models" / "trained" / "m2dr.json").write_text("{")

    with pytest.raises(UserError, match=r"models/trained/m2dr.json, line 1: is not JSON"):
        newest_model()


def test_the_bars_of_a_separate_training_are_no_candidates(place: Path) -> None:
    shutil.copytree(place / "models" / "trained", place / "models" / "bars" / "L2D8")

    assert newest_model() == "models/trained"


def test_every_command_that_chooses_a_model_says_which_and_why(
    place: Path, tiny_corpus: Path
) -> None:
    corpus = ("--corpus", tiny_corpus)
    told = [
        run("index", "corpus", *corpus, "--dim", "8", "--layer", "4"),
        run("search", *corpus, "--dim", "8", "read a file"),
        run("mine", *corpus, "--split", "train", "--out", "mined.jsonl"),
        run("evaluate", "retrieval", *corpus, "--layers", "4", "--dims", "8"),
        run("export", "--layers", "2", "--out", "exported"),
    ]
    for result in told:
        assert result.stderr.count(CHOSEN) == 1, result.output

    results = next((place / "results").rglob("trained"))
    by_folder = next((place / "indexes").rglob("dim-8"))
    for told_by, result in (
        ("whose results these are", run("pick", results, "--latency", "9999ms", "--measure-costs")),
        ("which encoded the documents", run("search", "--index", by_folder, *corpus, "read")),
    ):
        assert f"Model: models/trained, {told_by}" in result.stderr, result.output
