"""bf16 on any processor: what must stay float32, and that every choice trains, encodes and searches."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import make_pairs
from referee import batch, encoded_batch, objective_of
from torch import Tensor

from m2dr.core.settings import TrainSettings
from m2dr.core.variants import VARIANTS, Compression
from m2dr.model.backbones import BACKBONES
from m2dr.model.checkpoint import load
from m2dr.tasks.training.train import Setup, prepare
from m2dr.training.losses import compressed, compressed_all, compressed_randomised
from m2dr.training.objective import EncodedBatch, Objective
from m2dr.training.terms import StepTerms

IDS = torch.tensor([[2, 7, 9, 11, 20, 3], [2, 8, 3, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
EXACT = {"atol": 0, "rtol": 0}


def mixed() -> AbstractContextManager[None]:
    return torch.autocast("cpu", torch.bfloat16)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(13))


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
    given = encoded_batch(asked, paper)

    torch.testing.assert_close(
        loss_and_gradients(objective, asked, given, autocast=True),
        loss_and_gradients(objective, asked, given, autocast=False),
        **EXACT,
    )


def loss_and_gradients(
    objective: Objective, asked: StepTerms, sides: EncodedBatch, autocast: bool
) -> tuple[Tensor, ...]:
    vectors = [side.detach().float() for side in (sides.queries, sides.documents)]
    leaves = [side.requires_grad_() for side in vectors]
    labels = None if sides.labels is None else sides.labels.float()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss, _ = objective(asked, EncodedBatch(*leaves, sides.excluded, labels))
    return loss.detach(), *torch.autograd.grad(loss, leaves)


def test_scores_are_float32_whatever_operator_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def naive(queries: Tensor, documents: Tensor, dims: Sequence[int], _: object) -> Tensor:
        return torch.stack([queries[..., :k] @ documents[..., :k].mT for k in dims], dim=1)

    monkeypatch.setattr("m2dr.training.objective.prefix_scores", naive)
    paper = batch("dot")
    objective = objective_of("elastic", paper).float()
    asked = objective.at(0)

    found = [
        loss_and_gradients(objective, asked, encoded_batch(asked, paper), autocast)
        for autocast in (True, False)
    ]

    torch.testing.assert_close(*found, **EXACT)


@pytest.mark.parametrize("how", ["dependencies", "embeddings", "max-k"])
def test_a_compressed_target_is_the_same_under_autocast(how: Compression) -> None:
    x = draw(12, 16)
    torch.manual_seed(1)
    expected = compressed(x, 8, how), compressed_all([x, 2 * x], 8, how)
    lottery = compressed_randomised(x, 8, 1)

    with mixed():
        ours = compressed(x, 8, how), compressed_all([x, 2 * x], 8, how)
        drawn = compressed_randomised(x, 8, 1)

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
    "starbucks": ("mistral", {"gradient_checkpointing": True, "lora_rank": 2}),
    "ese": ("t5", {"loss": "angle", "weights": "dynamic", "gradient_cache": 64}),
    "2dmse-st": ("gemma2", {"lora_rank": 2, "negatives": 1}),
    "starbucks-sts": ("nomic_bert", {"gradient_cache": 64}),
    "ml-embed": ("bert", {"gradient_cache": 64, "negatives": 1}),
    "mipic": ("gte", {"gradient_cache": 64, "pooling": "cls"}),
    "elastic": (
        "gemma3_text",
        {"gradient_cache": 64, "lora_rank": 2, "attention": "bidirectional"},
    ),
    "exits": ("deberta-v2", {"gradient_cache": 64, "negatives": 1}),
}
RUNS = [
    *((variant, model_type, fields) for variant, (model_type, fields) in CASES.items()),
    ("plain", "mt5", {}),
    ("full-dim", "umt5", {"lora_rank": 2}),
]


def setup_of(variant: str, folder: Path, corpus: Path, dtype: str, **fields: object) -> Setup:
    settings = TrainSettings(
        variant=variant, corpus=str(corpus), backbone=str(folder), batch_size=4, steps=2,
        query_length=16, document_length=24,
        evaluate_steps=0, dropout=0.0, lora_dropout=0.0, device="cpu", dtype=dtype,
        **{"pooling": "mean", **fields},
    )  # fmt: skip
    return prepare(settings, folder / "trained")


def gradient(setup: Setup) -> tuple[float, Tensor]:
    """Loss of the first step, and its gradient as one vector."""
    with torch.autocast("cpu", torch.bfloat16, enabled=setup.plan.bf16):
        chosen = [setup.examples[place] for place in range(4)]
        loss, _ = setup.module.train()(**setup.batch(chosen), step=0)
    loss.backward()
    found = [p.grad.flatten() for p in setup.module.parameters() if p.grad is not None]
    setup.module.zero_grad()
    return float(loss.detach()), torch.cat(found)


@pytest.mark.parametrize(("variant", "model_type", "fields"), RUNS)
def test_a_step_in_bf16_is_nearly_that_in_fp32(
    variant: str,
    model_type: str,
    fields: dict[str, Any],
    backbone: Callable[[str], Path],
    tiny_corpus: Path,
    tmp_path: Path,
) -> None:
    corpus = make_pairs(tmp_path / "scored.tsv") if "loss" in fields else tiny_corpus
    ours, theirs = (
        setup_of(variant, backbone(model_type), corpus, dtype, **fields)
        for dtype in ("bf16", "fp32")
    )

    (loss, slope), (exact_loss, exact_slope) = gradient(ours), gradient(theirs)

    assert all(p.dtype == torch.float32 for p in ours.module.parameters())
    assert loss == pytest.approx(exact_loss, rel=5e-3)
    assert float(torch.cosine_similarity(slope, exact_slope, dim=0)) > 0.999
