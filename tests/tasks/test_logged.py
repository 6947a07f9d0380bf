"""The first and the last loss of a training are logged, however many steps it has."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from m2dr.core.settings import read_train_settings
from m2dr.tasks.train import train
from m2dr.train.trainer import Trainer

WORDS = (
    "batch_queries=4",
    "evaluate_steps=0",
    "document_length=16",
    "query_length=16",
    "dims=[16]",
)


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[float]]:
    """What each batch of a training cost, by the steps before it."""
    found: dict[int, list[float]] = {}
    compute = Trainer.compute_loss

    def kept(
        self: Trainer,
        model: torch.nn.Module,
        inputs: Mapping[str, object],
        *rest: object,
        **named: object,
    ) -> torch.Tensor:
        loss = compute(self, model, inputs, *rest, **named)
        found.setdefault(self.state.global_step, []).append(float(loss.detach()))
        return loss

    monkeypatch.setattr(Trainer, "compute_loss", kept)
    return found


def mean(losses: Mapping[int, list[float]], first: int, last: int) -> float:
    """Over the batches of the steps from `first` to `last`, which count from 1."""
    batches = [loss for step in range(first - 1, last) for loss in losses[step]]
    return sum(batches) / len(batches)


def logged(folder: Path) -> list[int]:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [event.step for event in events.Scalars("train/loss")]


@pytest.mark.parametrize(
    ("steps", "accumulate", "told"),
    [(1, 1, [1]), (3, 2, [1, 3]), (4, 1, [1, 3, 4])],
)
def test_first_and_last_loss_are_logged_and_told(
    steps: int, accumulate: int, told: list[int], losses: dict[int, list[float]],
    tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path,
) -> None:  # fmt: skip
    words = (*WORDS, f"steps={steps}", f"accumulate={accumulate}", "log_steps=3")
    options = {"backbone": str(tiny_backbone), "corpus": str(tiny_corpus), "device": "cpu"}

    report = train(read_train_settings(None, words, options), tmp_path / "model")

    assert logged(tmp_path / "model") == told
    assert report.first_loss == pytest.approx(mean(losses, 1, 1), rel=1e-4)
    since = told[-2] + 1 if len(told) > 1 else 1
    assert report.last_loss == pytest.approx(mean(losses, since, steps), rel=1e-4)
