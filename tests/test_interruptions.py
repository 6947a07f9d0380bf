"""Kill -9 and Ctrl-C while training and while encoding: what was done is not lost."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from safetensors.numpy import load_file
from shell import m2dr, stopped_when
from transformers import TrainerCallback, TrainerState
from world import TEXT, WORDS, make_backbone

from m2dr.core.errors import Interrupted
from m2dr.core.settings import TrainSettings
from m2dr.tasks.training import train as verb

TRAIN = (
    "train", "--variant", "dims", "--steps", "40", "--batch-size", "4", "--set", "save_steps=10",
    "--set", "log_steps=5", "--set", "document_length=16", "--out", "model",
)  # fmt: skip


def train(corpus: Path, backbone: Path) -> tuple[str | Path, ...]:
    return (*TRAIN, "--corpus", corpus, "--backbone", backbone, "--set", "evaluate_steps=0")


def fingerprint_of(place: Path) -> str:
    found: str = json.loads((place / "model" / "m2dr.json").read_text())["fingerprint"]
    return found


def log_of(folder: Path) -> list[dict[str, Any]]:
    """What a training logged, without the seconds, which must not go back."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    seconds = [line.pop("seconds") for line in lines]
    assert seconds == sorted(seconds)
    return lines


def after(step: int, place: Path) -> Callable[[], bool]:
    """Whether a checkpoint of that step has begun to be written."""
    return (place / "model" / "checkpoints" / f"checkpoint-{step}").exists


def test_training_killed_and_resumed_ends_with_the_same_weights(
    tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    words = train(tiny_corpus, tiny_backbone)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for place in (whole, killed):
        place.mkdir()
    assert m2dr(*words, cwd=whole).returncode == 0

    code, _ = stopped_when(after(20, killed), *words, cwd=killed)
    assert code == -signal.SIGKILL
    for more in ((), ("--resume", "--seed", "14")):
        refused = m2dr(*words, *more, cwd=killed)
        assert refused.returncode == 2
        assert "resume" in refused.stderr or "seed differ" in refused.stderr
    done = m2dr("train", "--resume", "--out", "model", cwd=killed)

    assert done.returncode == 0, done.stderr
    assert fingerprint_of(killed) == fingerprint_of(whole)
    logged = log_of(whole / "model")
    assert [line["step"] for line in logged] == [1, *range(5, 41, 5)]
    assert log_of(killed / "model") == logged


def test_a_batch_system_that_stops_a_training_is_told_how_to_go_on(
    tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    words = train(tiny_corpus, tiny_backbone)

    code, told = stopped_when(after(10, tmp_path), *words, cwd=tmp_path, how=signal.SIGTERM)

    assert code == 1
    assert "--resume goes on" in told
    assert "Traceback" not in told


# Each has more to go on from than weights and moments: draws, projectors, dropout, batches
# of a step that is under way, a best checkpoint.
STATEFUL: dict[str, dict[str, Any]] = {
    "elastic": {"variant": "elastic", "dropout": 0.2},
    "mipic": {"variant": "mipic", "gradient_cache": 64},
    "lora": {"variant": "dims", "lora_rank": 4},
    "dynamic": {"variant": "ese", "weights": "dynamic", "accumulate": 2},
    "best": {"variant": "full-dim", "evaluate_steps": 2, "save_steps": 1},
}


@pytest.mark.parametrize("case", STATEFUL)
def test_whatever_a_recipe_has_learned_or_drawn_is_gone_on_from(
    case: str, tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    usual = {
        "corpus": str(tiny_corpus), "backbone": str(tiny_backbone), "steps": 6,
        "batch_size": 4, "save_steps": 2, "evaluate_steps": 0, "document_length": 16,
        "device": "cpu",
    }  # fmt: skip
    settings = TrainSettings(**{**usual, **STATEFUL[case]})
    whole = verb.train(settings, tmp_path / "whole")

    class Stop(TrainerCallback):
        def on_step_end(self, _: Any, state: TrainerState, *__: Any, **___: Any) -> None:
            if state.global_step == 5:
                raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="stopped at step 5;"):
        verb.train(settings, tmp_path / "stopped", callbacks=[Stop()])
    done = verb.train(settings, tmp_path / "stopped", resume=True)

    assert done.card == whole.card
    assert log_of(done.folder) == log_of(whole.folder)


def test_a_training_that_stopped_early_and_was_killed_ends_as_it_would_have(
    tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    settings = TrainSettings(
        corpus=str(tiny_corpus), backbone=str(tiny_backbone), variant="plain", steps=9,
        batch_size=4, evaluate_steps=1, early_stopping=2, learning_rate=1e-12, device="cpu",
    )  # fmt: skip
    whole = verb.train(settings, tmp_path / "whole")
    assert (whole.steps, whole.best_step) == (3, 1)

    with (
        patch.object(verb.checkpoint, "save", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        verb.train(settings, tmp_path / "stopped")
    done = verb.train(settings, tmp_path / "stopped", resume=True)

    assert (done.card, done.steps) == (whole.card, 3)
    assert log_of(done.folder) == log_of(whole.folder)


# Many cuts, and words alone


SHORT = ("--set", "query_length=16", "--set", "document_length=16", "--set", "evaluate_steps=0")


def six_steps(corpus: Path, backbone: Path) -> tuple[str | Path, ...]:
    return (
        "train", "--corpus", corpus, "--backbone", backbone, "--steps", "6", "--batch-size",
        "4", "--set", "save_steps=1", *SHORT,
    )  # fmt: skip


def test_separate_models_are_trained_one_by_one_and_go_on_after_a_kill(
    tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    words = (
        *six_steps(tiny_corpus, tiny_backbone), "--variant", "separate", "--layers", "1,2", "--dims",
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
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("".join(f"{' '.join(WORDS[i % 9 : i % 9 + 6])} {TEXT}\n" for i in range(9)))
    return path


def test_a_pretrained_folder_is_a_backbone_and_a_killed_one_goes_on_bit_for_bit(
    texts: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    masking_backbone = make_backbone(tmp_path / "masking", masks=True)
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
    trained = m2dr(*six_steps(tiny_corpus, tmp_path / "whole"), "--out", "next", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
