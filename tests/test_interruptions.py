"""A training that is stopped goes on with all that its recipe has learned or drawn."""

import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from safetensors.torch import load_file, save_file
from shell import Forked
from transformers import TrainerCallback, TrainerState

from m2dr.core.errors import Interrupted, UserError
from m2dr.core.files import read_training_log
from m2dr.core.settings import TrainSettings
from m2dr.tasks.training import train as verb
from m2dr.tasks.training.run_folder import read_training


def log_of(folder: Path) -> list[dict[str, Any]]:
    """What a training logged, without the seconds, which must not go back."""
    lines = read_training_log(folder)
    seconds = [line.pop("seconds") for line in lines]
    assert seconds == sorted(seconds)
    return lines


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

    with pytest.raises(Interrupted, match="stopped at step 5; --resume goes on after step 4"):
        verb.train(settings, tmp_path / "stopped", callbacks=[Stop()])
    done = verb.train(settings, tmp_path / "stopped", resume=True)

    assert done.card == whole.card
    assert log_of(done.folder) == log_of(whole.folder)


def test_a_batch_system_that_stops_a_training_is_told_how_to_go_on(
    tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    words = (
        "train", "--variant", "plain", "--steps", "400", "--batch-size", "4", "--out", "model",
        "--corpus", tiny_corpus, "--backbone", tiny_backbone, "--set", "evaluate_steps=0",
        "--set", "save_steps=399",
    )  # fmt: skip
    told = tmp_path / "told.txt"
    command = Forked(words, tmp_path, [Path(os.devnull), Path(os.devnull), told])
    log = tmp_path / "model" / "log.jsonl"
    while not (log.exists() and "loss" in log.read_text()):
        assert not command.ended(0.01), told.read_text()
    os.kill(command.pid, signal.SIGTERM)

    assert command.wait(60) == 1
    found = re.search(r"stopped at step (\d+); --resume goes on after step (\d+)", told.read_text())
    assert found
    assert found[1] == found[2]  # a checkpoint is written at the stop
    assert "Traceback" not in told.read_text()


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


@pytest.mark.parametrize("what", ["training data", "backbone", "dtype"])
def test_a_training_does_not_go_on_with_something_else(
    what: str, tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    corpus = shutil.copytree(tiny_corpus, tmp_path / "corpus")
    backbone = shutil.copytree(tiny_backbone, tmp_path / "backbone")
    settings = TrainSettings(
        corpus=str(corpus), backbone=str(backbone), variant="plain", steps=3, batch_size=4,
        evaluate_steps=0, save_steps=1, device="cpu",
    )  # fmt: skip
    folder, changed = tmp_path / "model", f"The {what} of .* changed"
    with pytest.raises(KeyboardInterrupt), patch.object(verb, "run", side_effect=KeyboardInterrupt):
        verb.train(settings, folder)
    (folder / "checkpoints" / "checkpoint-1").mkdir()

    if what == "training data":
        lines = (corpus / "corpus.jsonl").read_text().splitlines(keepends=True)
        (corpus / "corpus.jsonl").write_text("".join(lines[::-1]))
    elif what == "backbone":
        weights = load_file(backbone / "model.safetensors")
        save_file({name: one + 1 for name, one in weights.items()}, backbone / "model.safetensors")
    else:  # that of the device it was begun on is gone on with
        given = {"corpus": str(corpus), "dtype": "auto"}
        begun, _ = read_training(TrainSettings, "", None, (), given, folder, resume=True)
        assert begun.dtype == "fp32"
        settings, changed = replace(settings, dtype="bf16"), "with fp32, .* go on with bf16"
    with pytest.raises(UserError, match=changed):
        verb.train(settings, folder, resume=True)
