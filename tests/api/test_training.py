"""m2dr.train with a loss, callbacks and early stopping of one's own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import EarlyStoppingCallback, TrainerCallback

import m2dr
from m2dr.training.losses import contrastive


@pytest.fixture
def given(tiny_backbone: Path, tiny_corpus: Path) -> dict[str, Any]:
    return {
        "variant": "full-dim", "corpus": str(tiny_corpus), "backbone": str(tiny_backbone),
        "dims": [8], "steps": 3, "batch_size": 4, "evaluate_steps": 0, "log_steps": 1,
        "report_to": "none", "device": "cpu", "dtype": "fp32",
    }  # fmt: skip


def test_loss_is_a_function_of_scores(given: dict[str, Any], tmp_path: Path) -> None:
    seen = []

    def own(logits: torch.Tensor, excluded: torch.Tensor) -> torch.Tensor:
        seen.append((logits.shape[-2:], excluded.shape))
        return contrastive(logits, excluded, 1.0)

    usual = m2dr.train(out=tmp_path / "usual", **given)
    same = m2dr.train(out=tmp_path / "same", loss=own, **given)
    other = m2dr.train(out=tmp_path / "other", loss=lambda x, _: x.mean(dim=(-2, -1)), **given)

    assert set(seen) == {((4, 4), (4, 4))}
    assert same.card.fingerprint == usual.card.fingerprint
    assert other.card.fingerprint != usual.card.fingerprint


def test_training_stops_early_on_dev(given: dict[str, Any], tmp_path: Path) -> None:
    changes = {"learning_rate": 1e-12, "steps": 9, "evaluate_steps": 1}  # a score that never rises
    stop, steps = EarlyStoppingCallback(early_stopping_patience=2), list[int]()

    class Watch(TrainerCallback):
        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            steps.append(state.global_step)

    m2dr.train(out=tmp_path / "m", callbacks=[stop, Watch()], **given | changes)

    assert steps == [1, 2, 3]
    with pytest.raises(m2dr.UserError, match="Early stopping needs a score"):
        m2dr.train(out=tmp_path / "none", callbacks=[stop], **given)
