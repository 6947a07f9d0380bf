"""m2dr fit: the full model stays what it was, and every layer below gets an exit."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from shell import ENVIRONMENT, m2dr, stopped_when
from transformers import AutoTokenizer
from world import WORDS, make_model

from m2dr.cli import main
from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.core.trainings import FitSettings
from m2dr.model import checkpoint
from m2dr.model.backbones import BACKBONES
from m2dr.model.folder import read_card
from m2dr.model.hub import EXITS, STATIC
from m2dr.model.static import open_static
from m2dr.tasks import fit_heads
from m2dr.tasks.encode_texts import embed_texts
from m2dr.tasks.fit import fit
from m2dr.train import linear_fit as closed_form

SENTENCES = [
    f"{WORDS[i % 15]} {WORDS[i // 15]} " + " ".join(WORDS[i % 11 : i % 11 + i % 5])
    for i in range(99)
]
QUERIES = ["open the file", "a list of numbers and a class of text", "path", "close"]
Floats = NDArray[np.float32]
Places = NDArray[np.int64]


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
    encoder, tokenizer = checkpoint.load(model, layer)
    return embed_texts(encoder, tokenizer, QUERIES, "document", layers)


def scores(embeddings: Floats, similarity: str) -> Floats:
    if similarity == "cosine":
        embeddings = embeddings / np.linalg.norm(embeddings, axis=-1, keepdims=True)
    return embeddings @ embeddings.T


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("model_type", BACKBONES)
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


@pytest.mark.parametrize("inputs", ["tokens+layer", "layer", "all-layers"])
@pytest.mark.parametrize("identity", [0, 40])
def test_an_exit_gives_what_its_regression_gives(
    inputs: str,
    identity: int,
    tiny_backbone: Path,
    sentences: Path,
    tmp_path: Path,
) -> None:
    """Embeddings of held-out texts, in the encoder, have the cosine that the regression reports."""
    model = make_model(tiny_backbone, tmp_path / "model", similarity="cosine")
    out = fitted(model, sentences, tmp_path / "fitted", inputs=inputs, identity=identity)
    card = read_card(out)
    from m2dr.tasks.fit_texts import fit_texts

    texts = fit_texts(str(sentences), 10**6, FitSettings.seed).read(0, 10**6)
    held = [text for place, (_, text) in enumerate(texts) if place % 8 == 7]
    encoder, tokenizer = checkpoint.load(out)
    found = embed_texts(encoder, tokenizer, held, "document", (0, 1, 2, 3, 4))
    found /= np.linalg.norm(found, axis=-1, keepdims=True)
    assert card.fit is not None
    for layer, cosine in enumerate(card.fit.cosines):
        assert float((found[layer] * found[4]).sum(-1).mean()) == pytest.approx(cosine, abs=2e-4)


def test_a_cut_encoder_gives_the_vectors_of_the_full_one(
    tiny_backbone: Path, sentences: Path, tmp_path: Path
) -> None:
    for inputs in ("tokens+layer", "all-layers"):
        out = fitted(tiny_backbone, sentences, tmp_path / inputs, inputs=inputs, identity=8)
        full = vectors(out, (0, 1, 2, 3, 4))
        for layer in (0, 1, 2, 3, 4):
            cut = vectors(out, (layer,), layer)[0]
            assert np.allclose(cut, full[layer], atol=1e-5), (inputs, layer)


def test_layer_0_runs_no_layer_and_is_the_mean_of_a_table(
    tiny_backbone: Path, sentences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = fitted(tiny_backbone, sentences, tmp_path / "fitted", identity=16)
    encoder, tokenizer = checkpoint.load(out)
    monkeypatch.setattr(encoder.transformer, "forward", None)  # not called
    found = embed_texts(encoder, tokenizer, [*QUERIES, "[CLS]"], "query", (0,))[0]
    static = load_file(out / STATIC)
    table, weights = static["table"].float().numpy(), static["weights"].numpy()
    assert weights[:4].tolist() == [0, 0, 0, 0]
    for text, vector in zip(QUERIES, found, strict=False):
        ids = tokenizer([text], 64)[0]
        assert np.allclose(vector, weights[ids] @ table[ids] / weights[ids].sum(), atol=1e-5)
    assert not found[-1].any()  # a text without words


def test_a_fit_that_was_killed_gives_the_same_file(
    tiny_backbone: Path, sentences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("m2dr.tasks.fit.WINDOW", "m2dr.tasks.fit_heads.WINDOW"):
        monkeypatch.setattr(name, 16)
    monkeypatch.setattr("m2dr.tasks.fit.SAVE_EVERY", -1.0)
    settings = FitSettings(str(tiny_backbone), str(sentences), rotation="pca", texts=99)
    fit(settings, tmp_path / "whole")
    add, calls = fit_heads.Sums.add, []

    def dies(self: fit_heads.Sums, window: int, *texts: object) -> None:
        calls.append(window)
        if len(calls) == 4:
            raise RuntimeError("the power went")
        add(self, window, *texts)

    with monkeypatch.context() as patch:
        patch.setattr(fit_heads.Sums, "add", dies)
        with pytest.raises(RuntimeError):
            fit(settings, tmp_path / "killed")
    assert not (tmp_path / "killed" / "m2dr.json").exists()
    with pytest.raises(UserError, match="interrupted"):
        fit(settings, tmp_path / "killed")
    monkeypatch.setattr(
        fit_heads.Sums,
        "add",
        lambda self, window, *texts: (calls.append(window), add(self, window, *texts)),
    )
    fit(settings, tmp_path / "killed", resume=True)
    assert calls[4:] == [3, 4, 5, 6]  # the first three were kept
    for name in (EXITS, STATIC, "m2dr.json", "model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()
    assert not (tmp_path / "killed" / "checkpoints").exists()


def test_snippets_of_a_text_that_is_held_out_are_held_out_with_it(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(13)
    long = [" ".join(draw.choice(WORDS, 20)) for _ in range(40)]
    corpus = tmp_path / "long.txt"
    corpus.write_text("\n".join([*long, *SENTENCES[:24]]) + "\n")
    seen: list[tuple[int, int]] = []
    add = fit_heads.Sums.add

    def watched(self: fit_heads.Sums, window: int, sample: closed_form.Sample, of: Places) -> None:
        add(self, window, sample, of)
        texts = len(sample) - len(of)
        held = {place for place in range(texts) if place % 8 == 7}
        kept = sum(int(place) in held for place in of)
        assert len(self.held_out[window]) == len(held) + kept
        assert self.snippets == len(of) - kept
        assert len(self.vectors[window]) == texts  # whole texts alone, for the rotation
        seen.append((texts, len(of)))

    monkeypatch.setattr(fit_heads.Sums, "add", watched)
    out = fitted(tiny_backbone, corpus, tmp_path / "fitted")

    assert seen == [(64, 80)]  # two of each long one
    record = read_card(out).fit
    assert record is not None
    assert record.texts == 64 - 8
    assert 0 < record.snippets < 80


def test_more_texts_are_read_until_they_are_no_help(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tmp_path / "many.txt"
    corpus.write_text("\n".join(f"{WORDS[i % 15]} {WORDS[i // 15 % 15]} {i}" for i in range(400)))
    for name in ("m2dr.tasks.fit.WINDOW", "m2dr.tasks.fit_heads.WINDOW"):
        monkeypatch.setattr(name, 16)
    monkeypatch.setattr("m2dr.tasks.fit.FIRST", 32)
    settings = FitSettings(str(tiny_backbone), str(corpus), rotation="none")
    monkeypatch.setattr("m2dr.tasks.fit.ENOUGH", 2.0)  # nothing gains as much
    few = fit(settings, tmp_path / "few").texts
    monkeypatch.setattr("m2dr.tasks.fit.ENOUGH", -2.0)
    many = fit(settings, tmp_path / "many").texts
    assert (few, many) == (64 - 64 // 8, 400 - 400 // 8)


def test_a_fitted_model_can_be_fitted_again(
    tiny_backbone: Path, sentences: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once = fitted(tiny_backbone, sentences, tmp_path / "once")
    assert "was fitted before" not in capsys.readouterr().err
    twice = fitted(once, sentences, tmp_path / "twice", rotation="none")
    assert "once was fitted before, on 87 texts of sentences" in capsys.readouterr().err
    found, wanted = vectors(twice, (0, 2, 4)), vectors(once, (0, 2, 4))
    assert np.allclose(found, wanted, atol=0.03 * np.abs(wanted).max(axis=(1, 2), keepdims=True))
    rotated = fitted(once, sentences, tmp_path / "rotated")
    wanted = scores(vectors(once, (4,))[0], "dot")
    assert np.allclose(scores(vectors(rotated, (4,))[0], "dot"), wanted, rtol=1e-4, atol=1e-4)
    assert len(json.loads((rotated / "modules.json").read_text())) == 3  # one rotation, not two


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_fit_in_either_dtype_leaves_the_full_model_alone(
    dtype: str, tiny_backbone: Path, sentences: Path, tmp_path: Path
) -> None:
    out = fitted(tiny_backbone, sentences, tmp_path / "fitted", dtype=dtype)
    before, after = (load_file(f / "model.safetensors") for f in (tiny_backbone, out))
    assert all(torch.equal(before[name], after[name]) for name in before if "pooler" not in name)
    encoder, tokenizer = checkpoint.load(out, dtype=torch.bfloat16)
    found = embed_texts(encoder, tokenizer, QUERIES, "query", (0, 2, 4))
    wanted = vectors(out, (0, 2, 4))
    cosines = (
        (found * wanted).sum(-1) / np.linalg.norm(found, axis=-1) / np.linalg.norm(wanted, axis=-1)
    )
    assert cosines.min() > 0.99
    assert found.dtype == np.float32


def test_words_that_no_text_has_and_a_state_that_says_nothing(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    corpus = tmp_path / "same.txt"
    corpus.write_text("open\n" * 9)
    out = fitted(tiny_backbone, corpus, tmp_path / "fitted", identity=8)
    found = vectors(out, (0, 1, 2, 3, 4))
    assert np.isfinite(found).all()


def test_an_added_token_without_an_embedding_is_no_part_of_a_fit(
    tiny_backbone: Path, sentences: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_backbone, tmp_path / "backbone")
    inner = AutoTokenizer.from_pretrained(folder)
    inner.add_tokens(["zebra"])  # id 64 of 64 embeddings
    inner.save_pretrained(folder)
    out = fitted(make_model(folder, tmp_path / "model"), sentences, tmp_path / "fitted")

    encoder, tokenizer = checkpoint.load(out)
    assert len(open_static(out).embed(["open the file"])) == 1
    with pytest.raises(UserError, match="'zebra', a token that was added to the tokenizer as 64"):
        embed_texts(encoder, tokenizer, ["a file", "a zebra"], "document", (4,))
    sentences.write_text(sentences.read_text() + "the zebra reads\n")
    with pytest.raises(UserError, match="has no embedding in the model. Leave it out"):
        fitted(folder, sentences, tmp_path / "again")


def test_states_that_are_not_finite_are_refused(
    tiny_backbone: Path, sentences: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_backbone, broken)
    weights = load_file(broken / "model.safetensors")
    weights["encoder.layer.1.output.dense.bias"].fill_(float("nan"))
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="a state of layer 2 is not finite"):
        fitted(broken, sentences, tmp_path / "fitted")
    assert not (tmp_path / "fitted" / "m2dr.json").exists()


@pytest.mark.parametrize("name", [EXITS, STATIC])
def test_exits_that_are_missing_damaged_or_of_another_model_are_refused(
    name: str, tiny_backbone: Path, sentences: Path, tmp_path: Path
) -> None:
    out = fitted(tiny_backbone, sentences, tmp_path / "fitted")
    data = (out / name).read_bytes()
    (out / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match="fingerprint"):
        checkpoint.load(out)
    (out / name).unlink()
    with pytest.raises(UserError, match=f"lacks {name}"):
        checkpoint.load(out)


def test_a_trained_model_keeps_its_name_and_its_weights(
    tiny_backbone: Path, sentences: Path, tmp_path: Path
) -> None:
    model = make_model(tiny_backbone, tmp_path / "model", variant="plain", cuts=(Cut(4, 32),))
    card = read_card(fitted(model, sentences, tmp_path / "fitted"))
    assert (card.variant, card.backbone) == ("plain", read_card(model).backbone)


def test_processes_that_share_a_fit_write_what_one_writes(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    draw = np.random.default_rng(13)
    corpus = tmp_path / "many.txt"
    corpus.write_text("\n".join(f"{' '.join(draw.choice(WORDS, 5))} {i}" for i in range(2500)))
    words = ["fit", "--backbone", str(tiny_backbone), "--corpus", str(corpus), "--texts", "2500",
             "--rotation", "pca", "--device", "cpu", "--dtype", "fp32"]  # fmt: skip
    alone = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "one")])
    assert alone.exit_code == 0, alone.output
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "m2dr"]
    together = subprocess.run(
        [sys.executable, *launch, *words, "--out", str(tmp_path / "two")],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert together.returncode == 0, together.stderr[-2000:]
    assert not (tmp_path / "two" / "checkpoints").exists()
    for name in (EXITS, STATIC):
        one, two = (load_file(tmp_path / folder / name) for folder in ("one", "two"))
        for key, tensor in one.items():
            largest = float(tensor.float().abs().max())
            apart = 1e-3 if tensor.dtype == torch.float16 else 0  # the last digit of a half float
            assert torch.allclose(
                tensor.float(), two[key].float(), rtol=apart, atol=1e-6 * largest
            ), key


def test_kill_9_in_mid_fit_and_resume_give_the_same_files(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    draw = np.random.default_rng(13)
    texts = [f"{' '.join(draw.choice(WORDS, 30))} {i}" for i in range(6000)]
    corpus = tmp_path / "many.txt"
    corpus.write_text("\n".join(texts))
    words = ("fit", "--backbone", tiny_backbone, "--corpus", corpus, "--rotation", "pca",
             "--device", "cpu", "--dtype", "fp32", "--out")  # fmt: skip
    whole = m2dr(*words, tmp_path / "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    killed = tmp_path / "killed"

    code, told = stopped_when(
        lambda: (killed / "checkpoints" / "checkpoint-0.npz").exists(),
        *words, killed, cwd=tmp_path,
    )  # fmt: skip
    assert code == -signal.SIGKILL, told
    assert not (killed / "m2dr.json").exists()
    again = m2dr(*words, killed, cwd=tmp_path)
    assert again.returncode != 0
    assert "--resume" in again.stderr
    resumed = m2dr(*words, killed, "--resume", cwd=tmp_path)

    assert resumed.returncode == 0, resumed.stderr
    for name in (EXITS, STATIC, "m2dr.json", "model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (killed / name).read_bytes()
