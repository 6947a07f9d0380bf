from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from m2dr.model.backbones import BACKBONES, attend, default_pooling, sizes_of
from m2dr.model.checkpoint import export_cut, load, open_model, save
from m2dr.model.encoder import DualEncoder
from m2dr.model.folder import ModelFolder

DECODERS = [name for name, row in BACKBONES.items() if row.causal]
IDS = torch.tensor([[2, 7, 9, 11, 20, 3], [2, 8, 3, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
TEXTS = ["open the file", "a list of numbers and a class of text and a line of words"]


def both_ways(folder: Path) -> DualEncoder:
    encoder, _ = load(folder)
    encoder.card = replace(encoder.card, attention="bidirectional", pooling="cls")
    return encoder


@pytest.mark.parametrize("length", [6, 4], ids=["full", "padded"])
@pytest.mark.parametrize("model_type", DECODERS)
def test_a_later_token_changes_an_earlier_one_both_ways_alone(
    model_type: str, length: int, backbone: Callable[[str], Path]
) -> None:
    mask = (torch.arange(6) < length).long()[None]
    first, other = IDS[:1], IDS[:1].clone()
    other[0, length - 1] = 30
    encoder = both_ways(backbone(model_type)).train()

    assert (encoder(first, mask) - encoder(other, mask)).abs().amax(dim=2).min() > 1e-4
    encoder.card = replace(encoder.card, attention="causal")
    torch.testing.assert_close(encoder(first, mask), encoder(other, mask), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("model_type", DECODERS)
def test_whoever_opens_the_folder_attends_both_ways(
    model_type: str, backbone: Callable[[str], Path], tmp_path: Path
) -> None:
    encoder, tokenizer = load(backbone(model_type))
    encoder.card = replace(encoder.card, attention="bidirectional", pooling="mean")
    with torch.inference_mode():
        expected = encoder(IDS, MASK)
    save(encoder, tokenizer, encoder.card, tmp_path / "full")
    export_cut(open_model(tmp_path / "full"), 2, tmp_path / "cut")

    with torch.inference_mode():
        again = load(tmp_path / "full")[0](IDS, MASK)
        cut = load(tmp_path / "cut")[0](IDS, MASK)
        plain = AutoModel.from_pretrained(tmp_path / "full").eval()
        states = plain(input_ids=IDS[:1]).last_hidden_state  # without a mask: the other code path
    torch.testing.assert_close(again, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(cut, expected[:2], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(states.mean(dim=1), expected[-1, :1], atol=1e-5, rtol=1e-5)
    theirs = SentenceTransformer(str(tmp_path / "full"))
    rows = tokenizer(TEXTS, 256)
    ours = [encoder.embed(np.array([row]), np.ones((1, len(row)), int))[-1, 0] for row in rows]
    np.testing.assert_allclose(theirs.encode(TEXTS), ours, atol=1e-5)
    np.testing.assert_allclose(theirs.encode(TEXTS[:1]), ours[:1], atol=1e-5)


@pytest.mark.parametrize(
    ("model_type", "attention", "pooling"),
    [
        ("bert", None, "cls"),
        ("bert", "bidirectional", "cls"),
        ("qwen3", None, "last"),
        ("qwen3", "causal", "last"),
        ("qwen3", "bidirectional", "mean"),
    ],
)
def test_pooling_follows_what_a_token_has_seen(
    model_type: str, attention: str | None, pooling: str, backbone: Callable[[str], Path]
) -> None:
    config = ModelFolder.read(backbone(model_type)).config()
    assert default_pooling(attend(config, attention)) == pooling


@pytest.mark.parametrize("model_type", BACKBONES)
def test_sizes_are_read_as_transformers_reads_them(
    model_type: str, backbone: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ModelFolder.read(backbone(model_type))
    config = folder.config()

    with monkeypatch.context() as patch:
        patch.setattr(ModelFolder, "config", None)  # it is not asked
        sizes = folder.sizes

    assert sizes == sizes_of(config.to_dict())
