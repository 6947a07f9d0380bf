"""Where the blocks and the final norm sit, per architecture."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import isfinite
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m2dr.errors import UserError
from m2dr.io import refusing
from m2dr.jsontext import read_object
from m2dr.model.places import transformer_folder
from m2dr.records.card import Attention, Pooling

if TYPE_CHECKING:  # a card is read without loading either
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel

_AGAIN = "Copy or download the model again."
_LAYERS, _SIZE = 2**12, 2**31  # more than any encoder has; transformers makes a list of the layers
_SIZES = {
    "num_hidden_layers": _LAYERS,
    "n_layers": _LAYERS,
    **dict.fromkeys(
        ("hidden_size", "dim", "num_attention_heads", "n_heads", "num_key_value_heads", "head_dim")
        + ("intermediate_size", "hidden_dim", "vocab_size", "max_position_embeddings"),
        _SIZE,
    ),
}
_FIELDS: dict[str, object] = {
    **dict.fromkeys(_SIZES, int | None),
    "model_type": str,
    "auto_map": dict[str, object] | None,
}


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
    plain_mask: bool = False  # tokens see all others but padding, and a mask [B, 1, 1, T] says so
    layers: str = "num_hidden_layers"  # what config.json calls the number of blocks
    width: str = "hidden_size"  # and the dims of a state

    def blocks_of(self, transformer: "PreTrainedModel") -> "nn.ModuleList":
        """The transformer blocks, in order."""
        blocks: nn.ModuleList = attrgetter(self.blocks)(transformer)
        return blocks

    def final_norm_of(self, transformer: "PreTrainedModel") -> "nn.Module":
        """What every exit passes before it is a state: the final norm, or nothing."""
        from torch import nn

        if self.final_norm is None:
            return nn.Identity()
        norm: nn.Module = attrgetter(self.final_norm)(transformer)
        return norm


BACKBONES = {
    row.model_type: row
    for row in (
        Backbone("bert", "encoder.layer", pooler=True, plain_mask=True),
        Backbone("roberta", "encoder.layer", pooler=True, reserved=2, plain_mask=True),
        Backbone("xlm-roberta", "encoder.layer", pooler=True, reserved=2, plain_mask=True),
        Backbone(
            "distilbert", "transformer.layer", plain_mask=True, layers="n_layers", width="dim"
        ),
        Backbone("mpnet", "encoder.layer", pooler=True, reserved=2),
        Backbone("modernbert", "layers", final_norm="final_norm", gated=True),
        Backbone("llama", "layers", final_norm="norm", causal=True, gated=True),
        Backbone("qwen2", "layers", final_norm="norm", causal=True, gated=True),
        Backbone("qwen3", "layers", final_norm="norm", causal=True, gated=True),
    )
}


@dataclass(frozen=True)
class Sizes:
    """What config.json says of the size of an encoder."""

    layers: int
    width: int  # dims of a state
    tokens: int  # of a text at most, special ones included


def backbone_of(config: "PretrainedConfig") -> Backbone:
    """The row of a configuration."""
    if config.model_type not in BACKBONES:
        raise UserError(
            f"The backbone is of type {config.model_type!r}, whose blocks are not described; "
            f"m2dr knows {', '.join(BACKBONES)}. A new type is one row in m2dr/model/backbones.py."
        )
    return BACKBONES[config.model_type]


def read_config(folder: Path) -> "PretrainedConfig":
    """The configuration of a backbone that m2dr knows.

    Raises:
        UserError: config.json is damaged, of a type that has no row, or of a model that needs code
            of its own.
    """
    from transformers import AutoConfig

    folder = transformer_folder(folder)
    _read_table(folder)
    with refusing(f"{folder / 'config.json'} cannot be read", _AGAIN):
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    backbone_of(config)
    return config


def read_sizes(folder: Path) -> Sizes:
    """Return the sizes of a backbone, without transformers where config.json names each of them.

    Raises:
        UserError: as for `read_config`.
    """
    table = _read_table(transformer_folder(folder))
    row = BACKBONES.get(str(table.get("model_type")))
    names = (row.layers, row.width, "max_position_embeddings") if row else ()
    others = {"num_hidden_layers", "n_layers", "hidden_size", "dim"} - {*names}
    if row is None or others & table.keys() or any(table.get(name) is None for name in names):
        config = read_config(folder)  # transformers knows the usual sizes, and other names
        return Sizes(config.num_hidden_layers, config.hidden_size, most_tokens(config))
    layers, width, positions = (table[name] for name in names)
    return Sizes(layers, width, positions - row.reserved)


def _read_table(folder: Path) -> dict[str, Any]:
    """Read config.json, refusing what no encoder of m2dr has."""
    path = folder / "config.json"
    table = read_object(path, _FIELDS, _AGAIN)
    _refuse_impossible(path, table)
    refuse_own_code(path, table.get("auto_map") or {}, ("AutoConfig", "AutoModel"))
    return table


def refuse_own_code(path: Path, auto_map: Mapping[str, object], classes: Collection[str]) -> None:
    """Refuse a model that names code of its own for one of transformers' classes.

    That code is never run. Without it transformers may know an architecture of the same name, and
    give other vectors.
    """
    for name in sorted(auto_map.keys() & set(classes)):
        raise UserError(
            f"{path} asks for code of its own (auto_map, {name}: {auto_map[name]}), which m2dr "
            "never runs, and without it the vectors would be others. Take a model that "
            "transformers knows by itself."
        )


def _refuse_impossible(path: Path, table: Mapping[str, object]) -> None:
    """Refuse numbers that no encoder has, before anything is made in their size."""
    for name, most in _SIZES.items():
        value = table.get(name)
        if isinstance(value, int) and not 1 <= value <= most:
            raise UserError(f"{path} has {name} = {value}, and 1 to {most} belong. {_AGAIN}")
    if not _is_finite(table):
        raise UserError(f"{path} holds a number that is not finite. {_AGAIN}")


def _is_finite(value: object) -> bool:
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return all(map(_is_finite, parts))
    return not isinstance(value, float) or isfinite(value)


def attend(config: "PretrainedConfig", attention: Attention | None) -> "PretrainedConfig":
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


def usual_pooling(config: "PretrainedConfig") -> Pooling:
    """How a backbone that does not say otherwise is pooled.

    The last token of a causal backbone has seen all others. Of one that attends both ways, the
    mean is taken, as ESE does (Li et al. 2024, arXiv:2402.14776).
    """
    if not backbone_of(config).causal:
        return "cls"
    return "last" if getattr(config, "is_causal", True) else "mean"


def most_tokens(config: "PretrainedConfig") -> int:
    """How long a text may be, in tokens with the special ones."""
    return int(config.max_position_embeddings) - backbone_of(config).reserved


def cut_config(config: "PretrainedConfig", layer: int) -> "PretrainedConfig":
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
    return type(config).from_dict({**fields, backbone_of(config).layers: layer})
