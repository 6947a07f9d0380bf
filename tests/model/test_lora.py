import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel

from m2dr.core.errors import UserError
from m2dr.model.backbones import BACKBONES, backbone_of
from m2dr.model.checkpoint import load, save
from m2dr.model.encoder import Encoder
from m2dr.model.lora import add_lora, merge_lora

IDS = torch.tensor([[2, 7, 9, 11, 20, 3], [2, 8, 3, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])


def wrapped(folder: Path, seed: int | None = 13) -> Encoder:
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
def vectors(encoder: Encoder) -> Tensor:
    return encoder(IDS, MASK)


@pytest.mark.parametrize("model_type", ["bert", "modernbert", "qwen3"])
def test_lora_changes_nothing_before_training(
    model_type: str, backbone: Callable[[str], Path]
) -> None:
    folder = backbone(model_type)

    torch.testing.assert_close(
        vectors(wrapped(folder, seed=None)), vectors(load(folder)[0]), atol=1e-6, rtol=1e-6
    )


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


def test_a_merged_weight_is_the_formula_of_the_paper(backbone: Callable[[str], Path]) -> None:
    encoder = wrapped(backbone("bert"))
    name = "encoder.layer.1.attention.self.query"
    layer = encoder.transformer.get_submodule(name)
    w, b, a = (
        layer.base_layer.weight,
        layer.lora_B["default"].weight,
        layer.lora_A["default"].weight,
    )
    expected = w.double() + 8 / 4 * b.double() @ a.double()

    merge_lora(encoder)

    merged = encoder.transformer.get_submodule(name).weight.double()
    torch.testing.assert_close(merged, expected, atol=1e-6, rtol=1e-6)


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


def test_lora_learns_through_checkpointed_blocks(backbone: Callable[[str], Path]) -> None:
    def gradients(checkpointed: bool) -> dict[str, Tensor | None]:
        encoder = wrapped(backbone("qwen3")).train()
        encoder.checkpoint_layers(checkpointed)
        torch.manual_seed(13)
        encoder(IDS, MASK).square().sum().backward()
        return {name: weight.grad for name, weight in encoder.named_parameters()}

    torch.testing.assert_close(gradients(True), gradients(False), atol=1e-4, rtol=1e-4)


def test_a_checkpoint_of_a_wrapped_encoder_is_read_back(
    backbone: Callable[[str], Path], tmp_path: Path
) -> None:
    before = wrapped(backbone("modernbert"))
    save_file(before.state_dict(), tmp_path / "model.safetensors")
    after = wrapped(backbone("modernbert"), seed=99)
    assert (vectors(after) - vectors(before)).abs().max() > 0.01

    after.load_state_dict(load_file(tmp_path / "model.safetensors"))

    torch.testing.assert_close(vectors(after), vectors(before), atol=0, rtol=0)


def test_lora_may_be_added_again_after_merging(backbone: Callable[[str], Path]) -> None:
    encoder = wrapped(backbone("bert"))
    merge_lora(encoder)
    learnt = vectors(encoder)

    add_lora(encoder, rank=2, alpha=4, dropout=0.0)

    torch.testing.assert_close(vectors(encoder.eval()), learnt, atol=1e-6, rtol=1e-6)


def test_transformers_opens_a_merged_model(backbone: Callable[[str], Path], tmp_path: Path) -> None:
    encoder, (_, tokenizer) = wrapped(backbone("llama")), load(backbone("llama"))
    merge_lora(encoder)
    save(encoder, tokenizer, encoder.card, tmp_path)

    _, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)

    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


def test_without_peft_the_extra_is_named(
    backbone: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, _ = load(backbone("bert"))
    monkeypatch.delitem(sys.modules, "peft", raising=False)
    monkeypatch.setattr("m2dr.model.lora.find_spec", lambda _: None)

    with pytest.raises(UserError, match=r"peft is not installed.* pip install 'm2dr\[lora\]'"):
        add_lora(encoder, 4, 8, 0.0)
