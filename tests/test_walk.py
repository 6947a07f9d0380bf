"""Train, index, search, evaluate and export in a subprocess, on the tiny world."""

import json
from pathlib import Path

import pytest
from shell import m2dr

TRAIN = ("--set", "document_length=16", "--set", "query_length=8", "--set", "evaluate_steps=4")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path, tiny_corpus: Path) -> Path:
    """A folder in which a model was trained and its documents indexed."""
    folder = tmp_path_factory.mktemp("walk")
    trained = m2dr(
        "train", "--variant", "full-dim", "--corpus", tiny_corpus, "--backbone", tiny_backbone,
        "--steps", "8", "--batch-size", "6", *TRAIN, cwd=folder, cold=True,
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    assert "8 steps" in trained.stdout
    indexed = m2dr(
        "index", "corpus", "--dim", "8", "--dim", "16", "--corpus", tiny_corpus, cwd=folder
    )  # fmt: skip
    assert indexed.returncode == 0, indexed.stderr
    assert "40 documents, 8 indexes" in indexed.stdout
    return folder


def test_training_leaves_a_model_its_log_and_no_checkpoints(place: Path) -> None:
    folder = place / "models" / "tiny-full-dim"
    card = json.loads((folder / "m2dr.json").read_text())

    assert {(4, 32), (4, 16), (1, 16), (1, 32)} <= {
        (cut["layer"], cut["dim"]) for cut in card["cuts"]
    }
    assert (card["variant"], card["documents"]) == ("full-dim", "same")
    assert list((folder / "tensorboard").glob("events.*"))
    assert not (folder / "checkpoints").exists()


def test_a_query_of_each_layer_finds_documents_with_their_times(
    place: Path, tiny_corpus: Path
) -> None:
    found = m2dr(
        "search", "--query-layer", "2", "--dim", "16", "-k", "3", "--corpus", tiny_corpus,
        "read the file", cwd=place,
    )  # fmt: skip

    assert found.returncode == 0, found.stderr
    assert [line.split()[0] for line in found.stdout.splitlines()[::2]] == ["1", "2", "3"]
    assert "tokenise" in found.stderr
    assert "encode" in found.stderr
    assert "Warning" not in found.stderr
