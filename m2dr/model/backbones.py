"""The supported architectures: where their layers and final norm are, and what config.json says."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m2dr.core.errors import UserError, quoted
from m2dr.core.records import Attention, Pooling

if TYPE_CHECKING:  # a model card is read without loading either
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel

_UNBOUNDED = 2**20  # tokens of a text at most, where no table of positions ends


@dataclass(frozen=True)
class Backbone:
    """One architecture. A new one is a row of BACKBONES, and the tests run over all rows."""

    model_type: str  # as config.json names it
    layers_path: str  # attribute path to the list of transformer layers
    final_norm: str | None = None  # attribute path to the norm behind the last layer
    pooler: bool = False  # has a head on the first token that retrieval does not use
    causal: bool = False  # by default a token attends only to those before it
    reserved: int = 0  # positions of max_position_embeddings that no token can have
    gated: bool = False  # the feed-forward part has a third matrix; T5 says so in config.json
    rotary: bool = False  # no table of positions ends, whatever config.json names
    plain_mask: bool = False  # tokens attend to all but padding, and take a mask [B, 1, 1, T]
    first_token: bool = True  # the tokenizer begins a text with a token for the whole of it
    layers_key: str = "num_hidden_layers"  # of config.json, the number of layers
    width_key: str = "hidden_size"  # of config.json, the dims of a state
    inner_key: str = "intermediate_size"  # of config.json, the dims inside the feed-forward part
    positions_key: str | None = "max_position_embeddings"  # None: a text may have any length
    class_name: str = "AutoModel"  # of transformers, the class that holds the encoder alone

    @property
    def size_keys(self) -> tuple[str, ...]:
        """The fields of config.json that name layers, width and, if any, positions."""
        ends = () if self.positions_key is None else (self.positions_key,)
        return (self.layers_key, self.width_key, *ends)

    @property
    def model_class(self) -> Any:  # AutoModel and PreTrainedModel share no type
        """The class of transformers that loads the encoder."""
        import transformers

        return getattr(transformers, self.class_name)

    def layers_of(self, transformer: "PreTrainedModel") -> "nn.ModuleList":
        """Return the transformer layers, in order."""
        layers: nn.ModuleList = attrgetter(self.layers_path)(transformer)
        return layers

    def final_norm_of(self, transformer: "PreTrainedModel") -> "nn.Module":
        """Return the final norm, which all exits of a pre-norm backbone pass, or the identity."""
        from torch import nn

        if self.final_norm is None:
            return nn.Identity()
        norm: nn.Module = attrgetter(self.final_norm)(transformer)
        return norm


_T5 = Backbone(
    "t5",
    "encoder.block",
    final_norm="encoder.final_layer_norm",
    plain_mask=True,
    first_token=False,
    layers_key="num_layers",
    width_key="d_model",
    inner_key="d_ff",
    positions_key=None,
    class_name="T5EncoderModel",
)
BACKBONES = {
    row.model_type: row
    for row in (
        Backbone("bert", "encoder.layer", pooler=True, plain_mask=True),
        Backbone("roberta", "encoder.layer", pooler=True, reserved=2, plain_mask=True),
        Backbone("xlm-roberta", "encoder.layer", pooler=True, reserved=2, plain_mask=True),
        Backbone(
            "distilbert",
            "transformer.layer",
            plain_mask=True,
            layers_key="n_layers",
            width_key="dim",
            inner_key="hidden_dim",
        ),
        Backbone("mpnet", "encoder.layer", pooler=True, reserved=2),
        Backbone("deberta-v2", "encoder.layer"),
        Backbone("nomic_bert", "layers", gated=True, rotary=True, plain_mask=True),
        Backbone("gte", "layers", gated=True, rotary=True, plain_mask=True),
        Backbone("modernbert", "layers", final_norm="final_norm", gated=True, rotary=True),
        _T5,
        replace(_T5, model_type="mt5", class_name="MT5EncoderModel"),
        replace(_T5, model_type="umt5", class_name="UMT5EncoderModel"),
        Backbone("llama", "layers", final_norm="norm", causal=True, gated=True, rotary=True),
        Backbone("qwen2", "layers", final_norm="norm", causal=True, gated=True, rotary=True),
        Backbone("qwen3", "layers", final_norm="norm", causal=True, gated=True, rotary=True),
        Backbone("mistral", "layers", final_norm="norm", causal=True, gated=True, rotary=True),
        Backbone("gemma2", "layers", final_norm="norm", causal=True, gated=True, rotary=True),
        Backbone("gemma3_text", "layers", final_norm="norm", causal=True, gated=True, rotary=True),
    )
}

# Settings of public models that transformers does not read, or not as one forward of a backbone,
# and the values, beside None, with which they ask for nothing.
_UNREAD: dict[str, tuple[object, ...]] = {
    "position_embedding_type": ("absolute",),  # relative_key of BERT, alibi of Jina's
    "conv_kernel_size": (0,),  # of DeBERTa-v2 in its two largest sizes: a layer that is no cut
    "rotary_emb_base": (1000,),  # of Nomic's mixture of experts
    "rotary_scaling_factor": (),  # of Nomic's for long texts
    "quantization_config": (),
    "is_decoder": (False,),  # an encoder that attends to earlier tokens alone
    "add_cross_attention": (False,),
}
# Ways to scale rotary positions; with others, vectors of a text depend on the longest of its batch.
_ROPES = ("default", "linear", "yarn", "llama3", "proportional")


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of an encoder in config.json."""

    layers: int
    width: int  # dims of a state
    tokens: int  # of a text at most, special ones included
    positions: int  # tokens of a text where the folder names no length


def backbone_of(config: "PretrainedConfig") -> Backbone:
    """Return the row of BACKBONES for a configuration that `check_config` accepts."""
    return BACKBONES[config.model_type]


def sizes_of(config: Mapping[str, Any]) -> ModelSizes:
    """Return the sizes of a backbone that config.json, or transformers' form of it, names."""
    row = BACKBONES[config["model_type"]]
    layers, width, *ends = (config[key] for key in row.size_keys)
    positions = ends[0] - row.reserved if ends else _UNBOUNDED
    return ModelSizes(layers, width, _UNBOUNDED if row.rotary else positions, positions)


def check_config(path: Path, table: Mapping[str, Any]) -> None:
    """Refuse a backbone that m2dr does not know, or does not run as its config.json asks.

    Args:
        path: of the config.json.
        table: its content.

    Raises:
        UserError: its type has no row, it needs code of its own, or a setting changes vectors in a
            way that transformers does not follow.
    """
    kind = str(table.get("model_type"))
    if kind not in BACKBONES:
        known = ", ".join(BACKBONES)
        raise UserError(f"The backbone is of type {kind[:60]!r}, and m2dr knows {known}.")
    refuse_own_code(path, table, ("AutoConfig", "AutoModel", "AutoTokenizer"))
    rotary = BACKBONES[kind].rotary
    usual = (*(("rope", "rotary") if rotary else ()), *((True,) if BACKBONES[kind].causal else ()))
    for key in sorted(table.keys() & _UNREAD.keys()):
        if table[key] not in (None, *_UNREAD[key], *usual):
            asked = f"{key} = {quoted(table[key])}"
            raise UserError(f"{path} asks for {asked}, and m2dr runs {kind} without it.")
    ropes = [table.get(key) or {} for key in ("rope_scaling", "rope_parameters")]
    # One table, or one for each type of attention.
    ropes += [inner for rope in ropes for inner in rope.values() if isinstance(inner, dict)]
    for rope in filter(None, ropes):
        scaling = rope.get("rope_type") or rope.get("type") or "default"
        if scaling not in _ROPES or not rotary:
            known = ", ".join(_ROPES) if rotary else f"{kind} without rotary ones"
            raise UserError(f"{path} scales positions by {quoted(scaling)}; m2dr runs {known}.")


def in_newest_form(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json as transformers 5 saves what it reads from an older one.

    Rotary positions become `rope_parameters`. What it writes on saving, and says nothing, is left
    out: tokens that are null, and kinds and windows of layers that all attend to everything or
    follow from a pattern that is named.

    Args:
        table: the content of a config.json.
    """
    new = {k: v for k, v in table.items() if v is not None or not k.endswith("_token_id")}
    if new.get("tie_word_embeddings") is True:
        del new["tie_word_embeddings"]
    ropes = [new.pop(key, None) or {} for key in ("rope_scaling", "rope_parameters")]
    thetas = [new.pop(key, None) for key in ("rope_theta", "global_rope_theta")]
    local = [new.pop(key, None) for key in ("local_rope_theta", "rope_local_base_freq")]
    theta: Any = next(filter(None, thetas), None)

    def full(rope: Mapping[str, Any]) -> dict[str, Any]:
        kind = rope.get("rope_type") or rope.get("type") or "default"
        rest = {key: value for key, value in rope.items() if key != "type"}
        return ({"rope_theta": theta} if theta else {}) | rest | {"rope_type": kind}

    rope = {**ropes[0], **ropes[1]}
    if base := next(filter(None, local), None):
        sliding = {"rope_theta": base, "rope_type": "default"}
        rope = {"sliding_attention": sliding, "full_attention": full(ropes[0])} | ropes[1]
    elif rope or theta:
        nested = any(isinstance(value, dict) for value in rope.values())
        rope = {k: full(v) for k, v in rope.items()} if nested else full(rope)
    new |= {"rope_parameters": rope} if rope else {}
    kinds, every = new.get("layer_types") or [], new.get("global_attn_every_n_layers")
    named = [f"{'sliding' if every and i % every else 'full'}_attention" for i in range(len(kinds))]
    if new.get("use_sliding_window") is False and not every:
        new.pop("sliding_window", None)
    if kinds == named and (every or new.get("use_sliding_window") is False):
        new.pop("layer_types", None)
    heads, width = new.get("num_attention_heads"), new.get("hidden_size")
    if heads and width and new.get("head_dim") == width // heads:
        del new["head_dim"]
    return new


def refuse_own_code(path: Path, table: Mapping[str, Any], classes: Collection[str]) -> None:
    """Refuse a model that brings code of its own for one of transformers' classes.

    That code is never run. Without it transformers may know an architecture of the same name, and
    give other vectors.

    Args:
        path: of a config.json or tokenizer_config.json.
        table: its content.
        classes: that it must not name.

    Raises:
        UserError: it names one of the classes.
    """
    auto_map: Mapping[str, object] = table.get("auto_map") or {}
    for name in sorted(auto_map.keys() & set(classes)):
        raise UserError(f"{path} needs its own Python code, auto_map {name}; m2dr runs none.")


def attend(config: "PretrainedConfig", attention: Attention | None) -> "PretrainedConfig":
    """Set the attention of a causal backbone: bidirectional, or causal.

    `is_causal` is transformers' own field: its masks and its attention honour it, and config.json
    keeps it, so that other tools attend the same way.

    Args:
        config: changed in place and returned.
        attention: None leaves the backbone's default.

    Raises:
        UserError: a bidirectional backbone cannot be made causal.
    """
    if _may_be_causal(config):
        if attention is not None:
            config.is_causal = attention == "causal"
    elif attention == "causal":
        raise UserError(f"attention = causal was asked for; {config.model_type} attends both ways.")
    return config


def _may_be_causal(config: "PretrainedConfig") -> bool:
    """Return whether `is_causal` counts; a Gemma may attend both ways by a field of its own."""
    return backbone_of(config).causal and not getattr(config, "use_bidirectional_attention", False)


def default_pooling(config: "PretrainedConfig") -> Pooling:
    """Return the pooling of a backbone whose folder names none.

    The last token of a causal backbone has seen all others. For one that attends both ways it is
    the mean, as in ESE (Li et al. 2024, arXiv:2402.14776), and for T5, which has no token for the
    whole text, as in Sentence-T5 (Ni et al. 2021, arXiv:2108.08877).
    """
    row = backbone_of(config)
    if not row.causal:
        return "cls" if row.first_token else "mean"
    return "last" if _may_be_causal(config) and getattr(config, "is_causal", True) else "mean"


def cut_config(config: "PretrainedConfig", layer: int) -> "PretrainedConfig":
    """Return the configuration of a backbone that keeps only its first `layer` layers.

    With the full configuration, loading a folder of `layer` layers would add the missing ones with
    random weights.

    Raises:
        UserError: the encoder has no such layer.
    """
    if not 1 <= layer <= config.num_hidden_layers:
        most = config.num_hidden_layers
        raise UserError(f"Layer {layer} was asked for; this encoder has 1 to {most}.")
    fields = config.to_dict()
    if isinstance(fields.get("layer_types"), list):  # one entry per layer, checked by transformers
        fields["layer_types"] = fields["layer_types"][:layer]
    return type(config).from_dict({**fields, backbone_of(config).layers_key: layer})


def relative_rows(config: "PretrainedConfig") -> int:
    """Return how many vectors of relative positions each layer projects and multiplies.

    Those of DeBERTa do both (He et al. 2020, arXiv:2006.03654, eq. 4), for content to position and
    for position to content; other backbones add a number, or turn queries and keys.
    """
    if not getattr(config, "relative_attention", False):
        return 0
    sizes = (getattr(config, name, -1) for name in ("position_buckets", "max_relative_positions"))
    span = next((size for size in sizes if size > 0), config.max_position_embeddings)
    return int(2 * span * len({"c2p", "p2c"} & {*(config.pos_att_type or ())}))
