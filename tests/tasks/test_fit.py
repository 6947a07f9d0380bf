"""m2dr fit: the full model stays what it was, and every layer below gets an exit."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import done, refused
from numpy.typing import NDArray
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from world import WORDS, make_model, write_beir

from m2dr.core.errors import UserError
from m2dr.core.records import ModelCard
from m2dr.core.settings import FitSettings, TrainSettings
from m2dr.data.memory import name_of_data
from m2dr.model import checkpoint, hub
from m2dr.model.backbones import BACKBONES
from m2dr.model.checkpoint import open_model, read_card
from m2dr.model.words import WordTable
from m2dr.tasks.query import open_queries, plan_of_model
from m2dr.tasks.training.fit import fit, fit_texts
from m2dr.tasks.training.train import train

SENTENCES = [
    f"{WORDS[i % 15]} {WORDS[i // 15]} " + " ".join(WORDS[i % 11 : i % 11 + i % 5])
    for i in range(99)
]
QUERIES = ["open the file", "a list of numbers and a class of text", "path", "close"]
Floats = NDArray[np.float32]


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(SENTENCES) + "\n")
    return path


def fitted(model: Path, corpus: Path, out: Path, **settings: object) -> Path:
    asked = FitSettings(str(model), str(corpus), rotation="pca", device="cpu")
    fit(replace(asked, **settings), out)
    return out


def vectors(model: Path, layers: tuple[int, ...], layer: int | None = None) -> Floats:
    return checkpoint.load(model, layer).vectors(QUERIES, "document", layers)


def scores(embeddings: Floats, similarity: str) -> Floats:
    if similarity == "cosine":
        embeddings = embeddings / np.linalg.norm(embeddings, axis=-1, keepdims=True)
    return embeddings @ embeddings.T


@pytest.mark.parametrize(
    ("model_type", "similarity"),
    [(name, ("cosine", "dot")[place % 2]) for place, name in enumerate(BACKBONES)],
)
def test_the_full_model_is_the_backbone(
    model_type: str,
    similarity: str,
    backbone: Callable[[str], Path],
    sentences: Path,
    tmp_path: Path,
) -> None:
    pooling = {"bert": "cls", "roberta": "mean"}.get(
        model_type, "last" if BACKBONES[model_type].causal else "mean"
    )
    model = make_model(
        backbone(model_type), tmp_path / "model", pooling=pooling, similarity=similarity
    )
    out = fitted(model, sentences, tmp_path / "fitted")
    before, after = vectors(model, (4,))[0], vectors(out, (4,))[0]
    wanted = scores(before, similarity)
    assert np.allclose(
        scores(after, similarity), wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max()
    )
    assert not np.allclose(before, after, atol=1e-2)  # it is rotated
    kept, written = (load_file(folder / "model.safetensors") for folder in (model, out))
    assert all(torch.equal(kept[name], written[name]) for name in kept if "pooler" not in name)
    theirs = SentenceTransformer(str(out)).encode(QUERIES)
    if similarity == "cosine":
        after = after / np.linalg.norm(after, axis=1, keepdims=True)
    assert np.allclose(theirs, after, atol=1e-4 * np.abs(after).max())
    card = read_card(out)
    assert (card.variant, card.exit_head, card.documents) == ("fitted", "fitted", "last")
    assert {cut.layer for cut in card.cuts} == {0, 1, 2, 3, 4}
    cosines = card.fit.cosines if card.fit else ()
    assert all(cosine is not None and cosine > 0.3 for cosine in cosines)


def test_an_exit_gives_what_its_regression_gives(
    tiny_backbone: Path, sentences: Path, tmp_path: Path
) -> None:
    """Embeddings of held-out texts, in the encoder, have the cosine that the regression reports."""
    model = make_model(tiny_backbone, tmp_path / "model", similarity="cosine")
    fit_record = read_card(fitted(model, sentences, tmp_path / "fitted", dtype="fp32")).fit
    texts = [text for _, text in fit_texts(str(sentences), 10**6, FitSettings.seed).texts]
    found = checkpoint.load(tmp_path / "fitted").vectors(texts[7::8], "document", (1, 2, 3, 4))
    found /= np.linalg.norm(found, axis=-1, keepdims=True)
    assert fit_record is not None
    assert fit_record.spans == 0  # of texts so short
    cosines = (found[:3] * found[3]).sum(-1).mean(-1)
    np.testing.assert_allclose(fit_record.cosines, cosines, atol=2e-4)


def test_a_cut_encoder_gives_the_vectors_of_the_full_one(
    tiny_backbone: Path, sentences: Path, tmp_path: Path
) -> None:
    out = fitted(tiny_backbone, sentences, tmp_path / "fitted")
    full = vectors(out, (0, 1, 2, 3, 4))
    for layer in (0, 1, 2, 3, 4):
        np.testing.assert_allclose(vectors(out, (layer,), layer)[0], full[layer], atol=1e-5)
    table = WordTable.open(out)
    np.testing.assert_allclose(full[0], table.embed(QUERIES), atol=1e-6)
    queries = open_queries(plan_of_model(open_model(out), 2), device="cpu", dtype="fp32")
    found = queries.embed(queries.tokenize(QUERIES, "document"), QUERIES)
    np.testing.assert_allclose(found, full[2], atol=1e-5)


@pytest.mark.parametrize("verb", ["fit", "train"])
def test_what_cannot_be_a_backbone_is_refused(
    verb: str, tiny_backbone: Path, tiny_corpus: Path, sentences: Path, tmp_path: Path
) -> None:
    """A folder that would be written over, and a cut whose last layer ends in a fitted exit."""
    model = fitted(tiny_backbone, sentences, tmp_path / "model")
    done("export", "--model", model, "--cut", "L2D8", "--out", tmp_path / "cut")
    before = (model / "m2dr.json").read_bytes()

    for backbone, sentence in (("model", "give another --out"), ("cut", "fitted exit")):
        words = ["--backbone", tmp_path / backbone, "--corpus", tiny_corpus, "--device", "cpu"]
        assert sentence in refused(verb, *words, "--out", model, "--overwrite")
    assert (model / "m2dr.json").read_bytes() == before


def test_texts_of_a_file_of_documents_are_those_of_its_beir_folder(tmp_path: Path) -> None:
    rows = [
        {"_id": "1", "title": "A list", "text": "of numbers", "year": 1999},
        {"_id": "2", "title": "Path", "text": ""},
        {"_id": "3", "text": "open the file"},
    ]
    write_beir(tmp_path / "beir", rows, {"q": "path"}, test=[("q", "2", 1)])
    (tmp_path / "docs.jsonl").write_text((tmp_path / "beir" / "corpus.jsonl").read_text())

    for name in (str(tmp_path / "docs.jsonl"), name_of_data(rows)):
        found = fit_texts(name, 10, 0)
        assert found.texts == fit_texts(str(tmp_path / "beir"), 10, 0).texts
    assert {text for _, text in found.texts} == {"A list of numbers", "Path", "open the file"}


def test_rows_of_a_split_that_is_no_training_are_not_fitted(tmp_path: Path) -> None:
    rows = [{"text": "a list", "split": "train"}, {"text": "a path", "split": "test"}]
    (tmp_path / "split.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    assert fit_texts(str(tmp_path / "split.jsonl"), 10, 0).texts == [("document", "a list")]


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_file_without_a_text_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text(text)

    with pytest.raises(UserError, match="empty.txt holds no text to fit"):
        fit_texts(str(tmp_path / "empty.txt"), 10, 0)


# Fits in a training


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
    encoder = checkpoint.load(folder)
    found = encoder.vectors(QUERIES, "query", (encoder.runtime.layers,))[0]
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
    assert (tmp_path / "refit" / hub.WORDS).exists()
    assert not (tmp_path / "refit" / hub.HEADS).exists()


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
    moved, kept = (load_file(tmp_path / name / hub.EXITS) for name in ("exits", "start"))
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
    encoder = checkpoint.load(tmp_path / "model")
    assert np.isfinite(encoder.vectors(QUERIES, "query", (0, 1))).all()
