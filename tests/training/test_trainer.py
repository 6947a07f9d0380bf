"""What the subclass of transformers' Trainer adds, on a module of two numbers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from m2dr.core.errors import UserError
from m2dr.core.records import Document, Group, Query
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
    total = plan.steps * plan.batch * plan.settings.accumulate
    examples = Examples(
        4, lambda epoch, place: float(10 * epoch + place), total, plan.settings.seed
    )

    def tell(step: int, logged: Mapping[str, float]) -> None:
        told.append((step, dict(logged)))

    return Trainer(module, plan, examples, batch, None, tell)


def test_each_step_is_numbered_and_told_with_the_means_of_the_parts(tmp_path: Path) -> None:
    module, told = TwoNumbers(), []

    trainer_of(module, plan(tmp_path, save_steps=6), told).train()

    assert module.steps == list(range(6))
    assert [step for step, _ in told] == [1, 2, 3, 4, 5, 6]
    assert told[-1][1]["far"] == pytest.approx((1 + 2) / 2)  # logged after steps 1, 3 and 6
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-6"


def test_weights_that_are_no_numbers_are_never_kept(tmp_path: Path) -> None:
    trainer = trainer_of(TwoNumbers(blow_up_at=2), plan(tmp_path), [])

    with pytest.raises(UserError, match="encoder.weight is not finite after step 4"):
        trainer.train()

    assert last_complete_checkpoint(tmp_path).name == "checkpoint-2"


# Positions


def named(epoch: int, place: int) -> Group:
    return Group(Query(f"{epoch}", ""), Document(f"{place}", ""))


def read(examples: Examples[Group], positions: range) -> list[tuple[str, str]]:
    return [(examples[i].query.id, examples[i].positive.id) for i in positions]


def test_every_epoch_holds_every_example_once_in_an_order_of_its_own() -> None:
    examples = Examples(count=10, example=named, total=30, seed=13)

    epochs = [read(examples, range(10 * epoch, 10 * epoch + 10)) for epoch in range(3)]

    for number, epoch in enumerate(epochs):
        assert sorted(epoch) == sorted((str(number), str(place)) for place in range(10))
    orders = [tuple(place for _, place in epoch) for epoch in epochs]
    assert len(set(orders)) == 3


@given(order=st.permutations(range(30)), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=25)
def test_a_position_holds_the_same_example_whatever_was_read_before(
    order: list[int], seed: int
) -> None:
    straight = read(Examples(10, named, 30, seed), range(30))
    other = Examples(10, named, 30, seed)

    found = {i: read(other, range(i, i + 1))[0] for i in order}

    assert [found[i] for i in range(30)] == straight


# Checkpoints


def make_checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    save_file({"weight": torch.zeros(4)}, path / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({"step": step}, path / name)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


@pytest.mark.parametrize(
    "file",
    ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"],
)
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_half_written_checkpoint_is_passed_over(file: str, damage: str, tmp_path: Path) -> None:
    older, newer = make_checkpoint(tmp_path, 9), make_checkpoint(tmp_path, 10)
    assert last_complete_checkpoint(tmp_path) == newer
    content = (newer / file).read_bytes()
    (newer / file).unlink()
    if damage == "cut":
        (newer / file).write_bytes(content[: len(content) // 2])

    assert last_complete_checkpoint(tmp_path) == older


def test_of_several_processes_each_must_have_written_its_random_state(tmp_path: Path) -> None:
    older, newer = make_checkpoint(tmp_path, 9), make_checkpoint(tmp_path, 10)
    for rank in range(2):
        torch.save({"cpu": rank}, older / f"rng_state_{rank}.pth")
    torch.save({"cpu": 0}, newer / "rng_state_0.pth")

    assert last_complete_checkpoint(tmp_path, processes=2) == older

    torch.save({"cpu": 1}, newer / "rng_state_1.pth")
    assert last_complete_checkpoint(tmp_path, processes=2) == newer
    assert last_complete_checkpoint(tmp_path, processes=3) is None
