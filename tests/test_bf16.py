"""bf16 on any processor: what must stay float32, and that every choice trains, encodes and searches."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import make_pairs
from referee import batch, objective_of, sides_of
from torch import Tensor
from world import WORDS

from m2dr.model.backbones import BACKBONES
from m2dr.model.checkpoint import load
from m2dr.model.encoder import Encoder
from m2dr.model.exits import pool
from m2dr.records.variant import VARIANTS
from m2dr.settings import PretrainSettings, TrainSettings
from m2dr.train.compress import compressed, compressed_all, compressed_by_lottery
from m2dr.train.objective import Sides
from m2dr.train.trial import try_steps
from m2dr.verbs.training import pretrain as pretraining
from m2dr.verbs.training.train import Setup, prepare, train

IDS = torch.tensor([[2, 7, 9, 11, 20, 3], [2, 8, 3, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
EXACT = {"atol": 0, "rtol": 0}
FLOAT32 = {"atol": 1e-6, "rtol": 1e-6}  # a product in bf16 is off by 1e-3


def mixed() -> AbstractContextManager[None]:
    return torch.autocast("cpu", torch.bfloat16)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(13))


@pytest.mark.parametrize("mask", [MASK, None], ids=["padded", "whole"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_mean_of_states_is_exact_under_autocast(
    dtype: torch.dtype, mask: Tensor | None
) -> None:
    states = draw(2, 6, 32).to(dtype)

    with mixed():
        pooled = pool(states, mask, "mean", torch.nn.Identity())

    weights = (MASK if mask is not None else torch.ones_like(MASK)).double()
    exact = (states.double() * weights[..., None]).sum(1) / weights.sum(1)[:, None]
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled.double(), exact, **FLOAT32)


SHARES = {
    "mean": MASK / MASK.sum(1, keepdim=True),
    "cls": torch.eye(6)[[0, 0]],
    "last": torch.eye(6)[MASK.sum(1) - 1],
}


@pytest.mark.parametrize("loaded", [torch.float32, torch.bfloat16], ids=["autocast", "loaded"])
@pytest.mark.parametrize("model_type", BACKBONES)
def test_states_in_bf16_leave_the_encoder_in_float32(
    model_type: str, loaded: torch.dtype, backbone: Callable[[str], Path]
) -> None:
    encoder, _ = load(backbone(model_type), dtype=loaded)
    encoder.add_exit_heads([2])
    head = encoder.exit_heads["2"].weight
    head.data = draw(32, 32) / 6
    for pooling, shares in SHARES.items():
        encoder.card = replace(encoder.card, pooling=pooling)
        heard: dict[int, Tensor] = {}

        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, loaded is torch.float32):
            vectors = encoder(IDS, MASK, [2, 4], tokens=heard.__setitem__, token_layers=[2, 4])

        states = torch.stack([heard[2], heard[4]]).double()
        exact = torch.einsum("bt,lbth->lbh", shares.double(), states)
        exact[0] = exact[0] @ head.detach().double().T
        assert vectors.dtype == torch.float32
        torch.testing.assert_close(vectors.double(), exact, atol=1e-5, rtol=1e-5)


ROWS = [(name, "contrastive", {}) for name in VARIANTS] + [
    ("mrl", "simcse", {}),
    ("ese", "cosent", {"weights": "dynamic"}),
    ("dims", "angle", {"compress": "embeddings"}),
    ("full-dim", "mnr", {"compress": "max-k"}),
]


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize(("name", "loss", "changes"), ROWS, ids=[f"{n}-{s}" for n, s, _ in ROWS])
def test_an_objective_is_the_same_number_under_autocast(
    name: str, loss: str, changes: dict[str, object], similarity: str
) -> None:
    paper = batch(similarity, loss, VARIANTS[name].documents)
    objective = objective_of(name, paper, changes).float()
    asked = objective.at(0)
    given = sides_of(asked, paper)
    labels = None if given.labels is None else given.labels.float()

    def found(autocast: bool) -> tuple[Tensor, ...]:
        vectors = [side.detach().float() for side in (given.queries, given.documents)]
        leaves = [side.requires_grad_() for side in vectors]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss, _ = objective(asked, Sides(*leaves, given.excluded, labels))
        return loss.detach(), *torch.autograd.grad(loss, leaves)

    torch.testing.assert_close(found(autocast=True), found(autocast=False), **EXACT)


@pytest.mark.parametrize("how", ["dependencies", "embeddings", "max-k"])
def test_a_compressed_target_is_the_same_under_autocast(how: Any) -> None:
    x = draw(12, 16)
    torch.manual_seed(1)
    expected = compressed(x, 8, how), compressed_all([x, 2 * x], 8, how)
    lottery = compressed_by_lottery(x, 8)

    with mixed():
        ours = compressed(x, 8, how), compressed_all([x, 2 * x], 8, how)
        torch.manual_seed(1)
        drawn = compressed_by_lottery(x, 8)

    torch.testing.assert_close(ours, expected, **EXACT)
    torch.testing.assert_close(drawn, lottery, **EXACT)


# Of every two columns each pair of choices that differ in code meets in some row.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("bert", {"lora_rank": 2}),
    "separate": ("roberta", {"dims": (8,), "gradient_cache": 64}),
    "mrl": ("qwen3", {"gradient_checkpointing": True}),
    "2dmse-v1": ("llama", {"exit_head": "linear", "gradient_cache": 64, "negatives": 1}),
    "2dmse": ("distilbert", {"exit_head": "linear", "similarity": "dot"}),
    "full-dim": ("modernbert", {"lora_rank": 2, "gradient_cache": 64}),
    "dims": ("mpnet", {"weights": "dynamic", "compress": "embeddings"}),
    "score": ("xlm-roberta", {"exit_head": "linear", "gradient_checkpointing": True}),
    "fixed-doc": ("qwen2", {"exit_head": "linear", "lora_rank": 2, "compress": "max-k"}),
    "starbucks": ("llama", {"gradient_checkpointing": True, "lora_rank": 2}),
    "ese": ("bert", {"loss": "angle", "weights": "dynamic", "gradient_cache": 64}),
    "mipic": ("modernbert", {"gradient_cache": 64, "pooling": "cls"}),
    "elastic": ("qwen3", {"gradient_cache": 64, "lora_rank": 2, "attention": "bidirectional"}),
}


def setup_of(variant: str, folder: Path, corpus: Path, dtype: str, **fields: Any) -> Setup:
    settings = TrainSettings(
        variant=variant, corpus=str(corpus), backbone=str(folder), batch_queries=4, steps=2,
        query_length=16, document_length=24,
        evaluate_steps=0, dropout=0.0, lora_dropout=0.0, device="cpu", dtype=dtype,
        **{"pooling": "mean", **fields},
    )  # fmt: skip
    return prepare(settings, folder)


def gradient(setup: Setup) -> tuple[float, Tensor]:
    """Loss of the first step, and its gradient as one vector."""
    with torch.autocast("cpu", torch.bfloat16, enabled=setup.plan.bf16):
        chosen = [setup.examples[place] for place in range(4)]
        loss, _ = setup.learner.train()(**setup.batch(chosen), step=0)
    loss.backward()
    found = [p.grad.flatten() for p in setup.learner.parameters() if p.grad is not None]
    setup.learner.zero_grad()
    return float(loss.detach()), torch.cat(found)


def test_every_variant_is_trained_here() -> None:
    assert CASES.keys() == VARIANTS.keys()
    assert {model_type for model_type, _ in CASES.values()} == set(BACKBONES)


@pytest.mark.parametrize("variant", CASES)
def test_a_step_in_bf16_is_nearly_that_in_fp32(
    variant: str, backbone: Callable[[str], Path], tiny_corpus: Path, tmp_path: Path
) -> None:
    model_type, fields = CASES[variant]
    corpus = make_pairs(tmp_path / "scored.tsv") if "loss" in fields else tiny_corpus
    ours, theirs = (
        setup_of(variant, backbone(model_type), corpus, dtype, **fields) for dtype in ("bf16", "fp32")
    )

    (loss, slope), (exact_loss, exact_slope) = gradient(ours), gradient(theirs)

    assert all(p.dtype == torch.float32 for p in ours.learner.parameters())
    assert loss == pytest.approx(exact_loss, rel=5e-3)
    assert float(torch.cosine_similarity(slope, exact_slope, dim=0)) > 0.999
    trial = try_steps(ours.learner, ours.plan, ours.examples, ours.batch, lambda _: None)
    assert trial.loss == pytest.approx(exact_loss, rel=0.5)
