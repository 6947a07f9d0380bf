"""LoRA: train a few small matrices beside each linear layer instead of the layer itself.

Hu et al. 2021 (arXiv:2106.09685): W x becomes W x + (alpha / rank) B A x, with A [rank, in] random
and B [out, rank] zero before training, so that nothing changes at first.
"""

import torch
from torch import nn

from m2dr.core.errors import require
from m2dr.model.backbones import backbone_of
from m2dr.model.encoder import DualEncoder


def add_lora(encoder: DualEncoder, rank: int, alpha: int, dropout: float, seed: int = 13) -> None:
    """Add the two matrices to every linear map of the transformer layers, and freeze all else.

    Exit heads stay trainable. The layers remain the same modules and keep their hooks.

    Args:
        encoder: changed in place.
        rank: rows of A.
        alpha: the update is multiplied by alpha / rank.
        dropout: share of the dims of x that A does not see in training.
        seed: of A; no other random draw changes.

    Raises:
        UserError: peft is not installed.
    """
    require("peft")
    from peft import LoraConfig, inject_adapter_in_model

    transformer = encoder.transformer
    backbone = backbone_of(transformer.config)
    parts = backbone.layers_of(transformer).named_modules(prefix=backbone.layers_path)
    targets = [name for name, part in parts if isinstance(part, nn.Linear)]
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=targets)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inject_adapter_in_model(config, transformer)


def merge_lora(encoder: DualEncoder) -> None:
    """Merge the matrices into the linear maps beside them, and remove them.

    What is left is the plain backbone, all of it trainable again.
    """
    from peft.tuners.lora import LoraLayer

    transformer = encoder.transformer
    wrapped = [(n, m) for n, m in transformer.named_modules() if isinstance(m, LoraLayer)]
    for name, module in wrapped:
        module.merge()
        transformer.set_submodule(name, module.get_base_layer())
    if wrapped:
        del transformer.peft_config
    transformer.requires_grad_(True)
