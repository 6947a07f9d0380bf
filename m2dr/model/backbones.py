"""Where the blocks and the final norm sit, per architecture."""

from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from torch import nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from m2dr.errors import UserError
from m2dr.model.places import transformer_folder
from m2dr.records.card import Attention, Pooling


@dataclass(frozen=True)
class Backbone:
    """One architecture. A new one is a row of BACKBONES, and the tests run over all rows."""

    model_type: str  # as config.json names it
    blocks: str  # path to the list of transformer blocks
    final_norm: str | None = None  # path to the norm behind the last block of a pre-norm backbone
    pooler: bool = False  # has a head on the first token that retrieval does not use
    causal: bool = False  # as it comes, a token sees only those before it
    reserved: int = 0  # positions of max_position_embeddings that no token can have
    gated: bool = False  # the feed-forward part has a third matrix, which opens and closes

    def blocks_of(self, transformer: PreTrainedModel) -> nn.ModuleList:
        """The transformer blocks, in order."""
        blocks: nn.ModuleList = attrgetter(self.blocks)(transformer)
        return blocks

    def final_norm_of(self, transformer: PreTrainedModel) -> nn.Module:
        """What every exit passes before it is a state: the final norm, or nothing."""
        if self.final_norm is None:
            return nn.Identity()
        norm: nn.Module = attrgetter(self.final_norm)(transformer)
        return norm


BACKBONES = {
    row.model_type: row
    for row in (
        Backbone("bert", "encoder.layer", pooler=True),
        Backbone("roberta", "encoder.layer", pooler=True, reserved=2),
        Backbone("xlm-roberta", "encoder.layer", pooler=True, reserved=2),
        Backbone("distilbert", "transformer.layer"),
        Backbone("mpnet", "encoder.layer", pooler=True, reserved=2),
        Backbone("modernbert", "layers", final_norm="final_norm", gated=True),
        Backbone("llama", "layers", final_norm="norm", causal=True, gated=True),
        Backbone("qwen2", "layers", final_norm="norm", causal=True, gated=True),
        Backbone("qwen3", "layers", final_norm="norm", causal=True, gated=True),
    )
}


def backbone_of(config: PretrainedConfig) -> Backbone:
    """The row of a configuration."""
    if config.model_type not in BACKBONES:
        raise UserError(
            f"The backbone is of type {config.model_type!r}, whose blocks are not described; "
            f"m2dr knows {', '.join(BACKBONES)}. A new type is one row in m2dr/model/backbones.py."
        )
    return BACKBONES[config.model_type]


def read_config(folder: Path) -> PretrainedConfig:
    """The configuration of a backbone that m2dr knows.

    Raises:
        UserError: config.json is damaged, or of a type that has no row.
    """
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(transformer_folder(folder))
    except (OSError, ValueError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{folder / 'config.json'} cannot be read ({reason}).") from error
    backbone_of(config)
    return config


def attend(config: PretrainedConfig, attention: Attention | None) -> PretrainedConfig:
    """Let the tokens of a causal backbone see each other both ways, or only backwards again.

    `is_causal` is transformers' own field: its masks and its attention honour it, and config.json
    keeps it, so that whoever opens the folder attends the same way.

    Args:
        config: changed in place and returned.
        attention: None leaves the backbone's own way.

    Raises:
        UserError: a backbone whose tokens see each other cannot be made causal.
    """
    if backbone_of(config).causal:
        if attention is not None:
            config.is_causal = attention == "causal"
    elif attention == "causal":
        raise UserError(
            f"attention = causal was asked for; the tokens of a {config.model_type} backbone see "
            "each other both ways. Leave it out, or take a decoder such as llama or qwen3."
        )
    return config


def usual_pooling(config: PretrainedConfig) -> Pooling:
    """How a backbone that does not say otherwise is pooled.

    The last token of a causal backbone has seen all others. Of one that attends both ways, the
    mean is taken, as ESE does (Li et al. 2024, arXiv:2402.14776).
    """
    if not backbone_of(config).causal:
        return "cls"
    return "last" if getattr(config, "is_causal", True) else "mean"


def most_tokens(config: PretrainedConfig) -> int:
    """How long a text may be, in tokens with the special ones."""
    return int(config.max_position_embeddings) - backbone_of(config).reserved


def cut_config(config: PretrainedConfig, layer: int) -> PretrainedConfig:
    """The configuration of the same backbone with only its first `layer` blocks.

    The number of blocks lives in the configuration: without this, loading a folder of `layer`
    blocks would bring the missing ones back with random weights.
    """
    if not 1 <= layer <= config.num_hidden_layers:
        raise UserError(
            f"Layer {layer} was asked for; this encoder has 1 to {config.num_hidden_layers}."
        )
    fields = config.to_dict()
    if isinstance(fields.get("layer_types"), list):  # one entry per block, checked by transformers
        fields["layer_types"] = fields["layer_types"][:layer]
    count = "n_layers" if "n_layers" in fields else "num_hidden_layers"  # DistilBERT's own word
    return type(config).from_dict({**fields, count: layer})
