from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from m2dr.model.backbones import BACKBONES, backbone_of
from m2dr.model.checkpoint import load, save
from m2dr.model.encoder import DualEncoder
from m2dr.model.lora import add_lora, merge_lora

IDS = torch.tensor([[2, 7, 9, 11, 20, 3], [2, 8, 3, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])


def wrapped(folder: Path, seed: int | None = 13) -> DualEncoder:
    """An encoder with LoRA, as a training would leave it; as it begins when there is no seed."""
    encoder, _ = load(folder)
    encoder.add_exit_heads([2])
    torch.manual_seed(seed or 0)  # of every A
    add_lora(encoder, rank=4, alpha=8, dropout=0.1)
    for name, weight in encoder.named_parameters():
        if seed is not None and "lora_B" in name:
            nn.init.normal_(weight, std=0.3)
    return encoder.eval()


@torch.inference_mode()
def vectors(encoder: DualEncoder) -> Tensor:
    return encoder(IDS, MASK)


@pytest.mark.parametrize("model_type", BACKBONES)
def test_merging_keeps_what_was_learnt_in_a_plain_backbone(
    model_type: str, backbone: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = backbone(model_type)
    (plain, tokenizer), encoder = load(folder), wrapped(folder)
    learnt = vectors(encoder)
    assert (learnt - vectors(plain)).abs().max() > 0.01

    merge_lora(encoder)

    torch.testing.assert_close(vectors(encoder), learnt, atol=1e-5, rtol=1e-5)
    assert encoder.transformer.state_dict().keys() == plain.transformer.state_dict().keys()
    assert all(weight.requires_grad for weight in encoder.parameters())
    save(encoder, tokenizer, encoder.card, tmp_path)
    torch.testing.assert_close(vectors(load(tmp_path)[0]), learnt, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model_type", BACKBONES)
def test_only_lora_and_the_exit_heads_learn(
    model_type: str, backbone: Callable[[str], Path]
) -> None:
    encoder = wrapped(backbone(model_type)).train()
    transformer = encoder.transformer
    layers = backbone_of(transformer.config).layers_of(transformer)
    plain = backbone_of(transformer.config).layers_of(load(backbone(model_type))[0].transformer)
    linears = sum(isinstance(part, nn.Linear) for part in plain.modules())

    encoder(IDS, MASK).square().sum().backward()

    learning = {name for name, weight in encoder.named_parameters() if weight.requires_grad}
    assert {name for name, w in encoder.named_parameters() if w.grad is not None} == learning
    assert learning - {"exit_heads.2.weight"} == {n for n in learning if "lora_" in n}
    assert "exit_heads.2.weight" in learning
    assert len(learning) == 2 * linears + 1
    assert len(layers) == encoder.layers == 4
