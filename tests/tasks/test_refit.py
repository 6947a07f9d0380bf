"""Fitted exits in a training: before its first step, after its last, and trained alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from m2dr.core.errors import UserError
from m2dr.core.records import ModelCard
from m2dr.core.settings import TrainSettings
from m2dr.model import checkpoint
from m2dr.model.hub import EXITS, HEADS, WORDS
from m2dr.tasks.embed import embed_texts
from m2dr.tasks.training.train import train

QUERIES = ["open the file", "a list of numbers and a class of text", "path", "close"]


@pytest.fixture
def settings(tiny_backbone: Path, tiny_corpus: Path) -> TrainSettings:
    return TrainSettings(
        variant="plain", backbone=str(tiny_backbone), corpus=str(tiny_corpus), device="cpu",
        dtype="fp32", steps=3, batch_size=4, dropout=0.0, learning_rate=1e-3, seed=5,
        evaluate_steps=0,
    )  # fmt: skip


def trained(settings: TrainSettings, folder: Path, **changes: object) -> ModelCard:
    return train(replace(settings, **changes), folder).card


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def full_scores(folder: Path) -> np.ndarray:
    encoder, tokenizer = checkpoint.load(folder)
    found = embed_texts(encoder, tokenizer, QUERIES, "query", (encoder.layers,))[0]
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found @ found.T


@pytest.mark.parametrize("variant", ["plain", "elastic"])
def test_a_refit_leaves_the_trained_model_alone_and_gives_it_every_cut(
    variant: str, settings: TrainSettings, tmp_path: Path
) -> None:
    as_trained = trained(settings, tmp_path / "as trained", variant=variant, refit=False)
    card = trained(settings, tmp_path / "refit", variant=variant, refit=True)

    before, after = weights(tmp_path / "as trained"), weights(tmp_path / "refit")
    assert all(torch.equal(before[name], after[name]) for name in before)
    np.testing.assert_allclose(
        full_scores(tmp_path / "as trained"), full_scores(tmp_path / "refit"), atol=1e-5
    )
    assert (card.exit_head, card.documents, card.variant) == ("fitted", "last", variant)
    assert {cut.layer for cut in card.cuts} == set(range(card.layers + 1))
    assert as_trained.fit is None
    assert card.fit is not None
    assert card.fit.texts > 0
    assert (tmp_path / "refit" / WORDS).exists()
    assert not (tmp_path / "refit" / HEADS).exists()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_exits_alone_are_trained_beside_a_frozen_encoder(
    dtype: str, settings: TrainSettings, tmp_path: Path
) -> None:
    start = trained(settings, tmp_path / "start", dtype=dtype)
    ours = replace(settings, variant="exits", backbone=str(tmp_path / "start"), dtype=dtype)
    card = trained(ours, tmp_path / "exits", steps=8, learning_rate=1e-3)

    before, after = weights(tmp_path / "start"), weights(tmp_path / "exits")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    np.testing.assert_array_equal(full_scores(tmp_path / "start"), full_scores(tmp_path / "exits"))
    moved, kept = (load_file(tmp_path / name / EXITS) for name in ("exits", "start"))
    changed = {name for name in kept if not torch.equal(moved[name], kept[name])}
    assert {f"heads.{n}.weight" for n in range(1, start.layers)} <= changed
    assert all(name.startswith("heads.") for name in changed)
    assert (card.exit_head, card.documents) == ("fitted", "last")
    assert {cut.layer for cut in card.cuts} == set(range(card.layers + 1))


def test_training_exits_alone_lowers_the_loss(settings: TrainSettings, tmp_path: Path) -> None:
    ours = replace(settings, variant="exits", steps=40, learning_rate=1e-2, log_steps=5)

    report = train(replace(ours, batch_size=12), tmp_path / "exits")

    assert report.last_loss < report.first_loss
    with pytest.raises(UserError, match="freeze = true"):
        train(replace(ours, exit_head="none"), tmp_path / "none")


def test_a_training_from_a_fit_moves_the_layers_and_the_exits(
    settings: TrainSettings, tmp_path: Path
) -> None:
    card = trained(settings, tmp_path / "model", variant="full-dim", exit_head="fitted")
    backbone = weights(Path(settings.backbone))
    after = weights(tmp_path / "model")
    assert any(not torch.equal(backbone[name], after[name]) for name in backbone if name in after)
    assert card.exit_head == "fitted"
    assert {cut.layer for cut in card.cuts} >= {0, 1, card.layers}
    encoder, tokenizer = checkpoint.load(tmp_path / "model")
    assert np.isfinite(embed_texts(encoder, tokenizer, QUERIES, "query", (0, 1))).all()
