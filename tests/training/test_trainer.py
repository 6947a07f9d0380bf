"""What the subclass of transformers' Trainer adds, on a module of two numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from m2dr.core.errors import UserError
from m2dr.core.settings import RunSettings
from m2dr.training.trainer import Examples, Plan, Trainer, last_complete_checkpoint


class TwoNumbers(nn.Module):
    """A module with one number of the encoder and one of an exit head."""

    def __init__(self, blow_up_at: int = -1) -> None:
        super().__init__()
        self.encoder = nn.ParameterDict({"weight": torch.zeros(1)})
        self.exit_heads = nn.ParameterDict({"1": torch.zeros(1)})
        self.steps: list[int] = []
        self.batches: list[int] = []
        self._blow_up_at = blow_up_at

    def forward(self, values: Tensor, step: int, batch: int) -> tuple[Tensor, dict[str, Tensor]]:
        self.steps.append(step)
        self.batches.append(batch)
        loss = (self.encoder["weight"] + self.exit_heads["1"] - values).square().mean()
        if step == self._blow_up_at:
            loss = loss + 0 * torch.sqrt(self.encoder["weight"] - self.encoder["weight"]).sum()
        return loss, {"near": loss.detach(), "far": torch.tensor(float(step))}


def plan(folder: Path, steps: int = 6, **more: object) -> Plan:
    settings = RunSettings(
        learning_rate=1e-3, head_learning_rate=1e-2, warmup=0.0, weight_decay=0.0, log_steps=3,
        save_steps=2,
    )  # fmt: skip
    return Plan(replace(settings, **more), folder, folder / "logs", steps, 2, bf16=False, cpu=True)


def batch(values: Sequence[float]) -> Mapping[str, object]:
    return {"values": torch.tensor(values)}


def trainer_of(module: TwoNumbers, plan: Plan, told: list[tuple[int, dict[str, float]]]) -> Trainer:
    total = plan.examples
    examples = Examples(
        4, lambda epoch, place: float(10 * epoch + place), total, plan.settings.seed
    )

    def tell(step: int, logged: Mapping[str, float]) -> None:
        told.append((step, dict(logged)))

    return Trainer(module, plan, examples, batch, None, tell)


def test_each_step_is_numbered_and_told_with_the_means_of_the_parts(tmp_path: Path) -> None:
    module, told = TwoNumbers(), []

    trainer_of(module, plan(tmp_path), told).train()

    assert module.steps == list(range(6))
    assert [step for step, _ in told] == [1, 2, 3, 4, 5, 6]
    assert told[-1][1]["far"] == pytest.approx((1 + 2) / 2)  # logged after steps 1, 3 and 6
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-6"


def test_weights_that_are_no_numbers_are_never_kept(tmp_path: Path) -> None:
    trainer = trainer_of(TwoNumbers(blow_up_at=2), plan(tmp_path), [])

    with pytest.raises(UserError, match="encoder.weight is not finite after step 4"):
        trainer.train()

    assert last_complete_checkpoint(tmp_path).name == "checkpoint-2"
