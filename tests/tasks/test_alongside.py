"""What `m2dr evaluate` leaves beside its grids when it is asked for more than them."""

import shutil
from pathlib import Path

import pytest
from commands import done

from m2dr.evaluation.grid import read_provenance
from m2dr.model.checkpoint import read_card
from m2dr.tasks.evaluating import evaluate


@pytest.fixture
def place(
    tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with a corpus and two models of the same weights."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_corpus, tmp_path / "corpus")
    for name in ("first", "second"):
        shutil.copytree(tiny_backbone, tmp_path / name)
    return tmp_path


@pytest.mark.usefixtures("place")
def test_each_grid_says_how_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate.sys, "argv", ["/bin/m2dr", "evaluate", "a corpus"])

    done(
        "evaluate", "retrieval", "--corpus", "corpus", "--layers", "2,4", "--dims", "8",
        "--model", "first", "--model", "second",
    )  # fmt: skip

    for name in ("first", "second"):
        made = read_provenance(Path("results/corpus/test") / name)
        assert made is not None
        assert (made.model, made.corpus, made.split) == (name, "corpus", "test")
        assert made.command == "m2dr evaluate 'a corpus'"
        assert made.fingerprint == read_card(name).fingerprint
        assert "torch" in made.versions
