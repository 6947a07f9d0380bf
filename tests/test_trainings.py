"""Trainings beside the main path, as a person runs them: many cuts, a trial, words alone."""

import json
import signal
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from shell import m2dr, stopped_when
from world import TEXT, WORDS, make_backbone

SHORT = ("--set", "query_length=16", "--set", "document_length=16", "--set", "evaluate_steps=0")


def train(corpus: Path, backbone: Path) -> tuple[str | Path, ...]:
    return (
        "train", "--corpus", corpus, "--backbone", backbone, "--steps", "6", "--batch-size",
        "4", "--set", "save_steps=1", *SHORT,
    )  # fmt: skip


def test_separate_models_are_trained_one_by_one_and_go_on_after_a_kill(
    tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    words = (
        *train(tiny_corpus, tiny_backbone), "--variant", "separate", "--layers", "1,2", "--dims",
        "8,16", "--out", "bars",
    )  # fmt: skip
    second = tmp_path / "bars" / "L1D16" / "checkpoints" / "checkpoint-2" / "trainer_state.json"
    code, _ = stopped_when(second.exists, *words, cwd=tmp_path)
    assert code == -signal.SIGKILL
    first = load_file(tmp_path / "bars" / "L1D8" / "model.safetensors")
    refused = m2dr(*words, cwd=tmp_path)
    assert refused.returncode == 2
    assert "holds an interrupted training" in refused.stderr

    done = m2dr("train", "--resume", "--out", "bars", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "L1D8: trained already (1 of 4)" in done.stderr
    assert "4 models, 3 of them trained now" in done.stdout
    for cut, layers in (("L1D8", 1), ("L1D16", 1), ("L2D8", 2), ("L2D16", 2)):
        card = json.loads((tmp_path / "bars" / cut / "m2dr.json").read_text())
        expected = [{"layer": layers, "dim": int(cut.split("D")[1])}]
        assert (card["layers"], card["cuts"]) == (layers, expected)
    assert not (tmp_path / "bars" / "training.json").exists()
    again = load_file(tmp_path / "bars" / "L1D8" / "model.safetensors")
    assert all((first[name] == again[name]).all() for name in first)


@pytest.fixture(scope="module")
def masking_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny backbone with a tokenizer that has a mask."""
    from transformers import AutoTokenizer

    folder = make_backbone(tmp_path_factory.mktemp("masking") / "tiny")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.mask_token = "[UNK]"
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("".join(f"{' '.join(WORDS[i % 9 : i % 9 + 6])} {TEXT}\n" for i in range(9)))
    return path


def test_a_pretrained_folder_is_a_backbone_and_a_killed_one_goes_on_bit_for_bit(
    masking_backbone: Path, texts: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    words = (
        "pretrain", "--corpus", texts, "--backbone", masking_backbone, "--steps", "6",
        "--batch-size", "4", "--set", "length=16", "--set", "save_steps=1",
        "--set", 'checkpoints=["L1D8", "L2D16"]',
    )  # fmt: skip
    whole = m2dr(*words, "--out", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert "a new one is trained along" in whole.stderr
    third = tmp_path / "cut" / "checkpoints" / "checkpoint-3" / "trainer_state.json"
    code, _ = stopped_when(third.exists, *words, "--out", "cut", cwd=tmp_path)
    assert code == -signal.SIGKILL
    done = m2dr("pretrain", "--resume", "--out", "cut", cwd=tmp_path)
    assert done.returncode == 0, done.stderr

    ours = load_file(tmp_path / "cut" / "model.safetensors")
    theirs = load_file(tmp_path / "whole" / "model.safetensors")
    before = load_file(masking_backbone / "model.safetensors")
    assert all((ours[name] == theirs[name]).all() for name in theirs)
    assert any((theirs[name] != before[name]).any() for name in theirs)
    trained = m2dr(*train(tiny_corpus, tmp_path / "whole"), "--out", "next", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
