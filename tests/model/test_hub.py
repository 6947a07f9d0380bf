"""Models of the hub at a revision, from a cache that was prepared."""

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from world import make_backbone

from m2dr.core.errors import UserError
from m2dr.core.settings import FitSettings, TrainSettings, read_settings
from m2dr.model.checkpoint import load, open_model, read_card
from m2dr.model.hub import find_folder
from m2dr.tasks.training.fit import fit
from m2dr.tasks.training.train import train

OLD, NEW = "a" * 40, "b" * 40
NAME = "someone/tiny"


def cache(folder: Path) -> Path:
    """A cache of one model at two commits: main is the new one, and v1 the old one."""
    inside = folder / "models--someone--tiny"
    for seed, commit in enumerate((OLD, NEW)):
        make_backbone(inside / "snapshots" / commit, seed=seed)
    (inside / "refs").mkdir()
    (inside / "refs" / "main").write_text(NEW)
    (inside / "refs" / "v1").write_text(OLD)
    return folder


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cache(tmp_path_factory.mktemp("cache") / "hub")


@pytest.fixture
def cached(prepared: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(prepared))
    monkeypatch.chdir(tmp_path)
    return prepared


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize(("name", "revision"), [("someone/else", ""), (NAME, "v9")])
def test_offline_nothing_is_said_of_ids_that_may_be_there(name: str, revision: str) -> None:
    at = f" at revision {revision}" if revision else ""
    told = f"{name} is no folder, and no id with a copy here{at}: the hub cannot be reached."

    with pytest.raises(UserError, match=f"^{told}$"):
        find_folder(name, revision)


def test_an_opened_model_is_one_commit_although_its_branch_moves(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = Path(shutil.copytree(prepared, tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(moving))

    opened = open_model(NAME)
    (moving / "models--someone--tiny" / "refs" / "main").write_text(OLD)
    assert load(opened)[0].card.revision == NEW
    with pytest.raises(UserError, match=rf"Files in .*{OLD} are not those that {NAME} was opened"):
        load(opened.on_this_machine())
    assert open_model(NAME, revision=NEW).folder == opened.folder
    assert open_model(NAME, revision="v1").card.revision == OLD == open_model(NAME).card.revision


@pytest.mark.usefixtures("cached")
def test_a_training_and_a_fit_begin_from_the_revision_and_record_it(
    tiny_corpus: Path, tmp_path: Path
) -> None:
    words = [
        f'backbone="{NAME}"', "revision=v1", f'corpus="{tiny_corpus}"', "steps=1", "device=cpu",
        "batch_size=4", "evaluate_steps=0", "dims=[8]", "learning_rate=1e-12", "freeze=false",
    ]  # fmt: skip
    train(read_settings(TrainSettings, None, words), tmp_path / "trained")
    (tmp_path / "texts.txt").write_text("read a file\nopen a list of lines\n" * 20)
    fit(FitSettings(NAME, "texts.txt", revision="v1", rotation="none"), tmp_path / "fitted")

    for name in ("trained", "fitted"):
        folder = tmp_path / name
        card = read_card(folder)
        assert (card.backbone, card.revision) == (NAME, OLD)
        assert json.loads((folder / "settings.json").read_text())["revision"] == "v1"
        readme = huggingface_hub.ModelCard.load(folder / "README.md")
        assert readme.data.base_model == NAME
        assert f'"revision": "{OLD}"' in readme.text
    fit(FitSettings(str(tmp_path / "trained"), "texts.txt", rotation="none"), tmp_path / "again")
    assert read_card(tmp_path / "again").revision == OLD  # it is still made of that backbone
