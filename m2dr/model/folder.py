"""A model folder: its JSON files, each read once, and what they say of its vectors; no torch.

What they ask for and m2dr does not run is refused. The modules that they list are run, and written,
by `modules.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, get_args

from m2dr.core.errors import UserError, quoted
from m2dr.core.files import explain_failure, read_json, read_optional_object
from m2dr.core.progress import say_once
from m2dr.core.records import Cut, ModelCard, Pooling, Side, Similarity, pooling_modes
from m2dr.model import hub
from m2dr.model.backbones import (
    BACKBONES,
    ModelSizes,
    check_config,
    default_pooling,
    refuse_own_code,
    sizes_of,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig

POOLING_FLAGS: dict[str, Pooling] = {  # in the order in which vectors of several are joined
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "last",
}
POOLING_KEYS = {"word_embedding_dimension", "embedding_dimension", "pooling_mode", "include_prompt"}
LAST = {"lasttoken": "last"}  # the one mode that is named otherwise in m2dr
TEMPERATURE: dict[Similarity, float] = {"dot": 1.0, "cosine": 0.05}
MAX_LENGTH = 256  # tokens of a document by default
_SIZES = {key for row in BACKBONES.values() for key in row.size_keys}
_FIELDS: dict[str, object] = {  # of all files that are read here
    "model_type": str,
    **dict.fromkeys((*_SIZES, "max_seq_length", "query_length", "document_length"), int | None),
    **dict.fromkeys(("auto_map", "rope_scaling", "rope_parameters"), dict[str, object] | None),
    **dict.fromkeys(("add_bos_token", "add_eos_token"), bool | None),
    "prompts": dict[str, str | None] | None,
    "default_prompt_name": str | None,
    "model_max_length": int | float | None,
    "truncate_dim": int | None,
    "pooling_mode": str | list[str] | None,
    "out_features": int,
}
# Names of prompts whose side is certain; of several, the first one with a text counts.
SIDES: dict[str, Side] = {
    **dict.fromkeys(("query", "search_query", "retrieval.query", "Retrieval-query"), "query"),
    **dict.fromkeys(("document", "passage", "corpus", "search_document"), "document"),
    **dict.fromkeys(("retrieval.passage", "Retrieval-document"), "document"),
}
_WORDS: dict[Side, re.Pattern[str]] = {  # of other names of prompts
    "query": re.compile("quer|question", re.I),
    "document": re.compile("doc|passage|corpus", re.I),
}
_VECTOR = "sentence_embedding"  # what sentence-transformers calls a text's vector
_IN_AND_OUT = ("module_input_name", "module_output_name")  # keys: what a module reads and writes
_TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
# Settings of the Transformer: those that m2dr reads, and those that must have one of some values.
_KEPT = "model_max_length"
READ = {"max_seq_length", "do_lower_case", "query_length", "document_length", "unpad_inputs", _KEPT}
FIXED: dict[str, tuple[object, ...]] = {
    "transformer_task": (None, "feature-extraction"),
    "module_output_name": (None, "token_embeddings"),
    "processing_kwargs": (None, {}),
    "query_expansion": (None,),
    "tokenizer_name_or_path": (None,),
}
# Tables of arguments for transformers, by their older and newer keys, and those that change no
# vector, or that m2dr sets by itself.
_TABLES = ("model_args", "tokenizer_args", "config_args") + (
    ("model_kwargs", "processor_kwargs", "config_kwargs")
)
_HARMLESS = {
    *("trust_remote_code", "cache_dir", "revision", "token", "local_files_only", "dtype"),
    *("add_pooling_layer", "attn_implementation", "device_map", "low_cpu_mem_usage", "use_fast"),
    *("torch_dtype", "use_safetensors", "model_max_length", "padding_side", "use_cache"),
    "output_hidden_states",
}
# Settings that the config.json of a module behind the pooling may hold.
MODULE_KEYS: dict[str, set[str]] = {
    "Dense": {"in_features", "out_features", "bias", "activation_function", "use_residual"},
    "LayerNorm": {"dimension"},
    "Normalize": set(),
    "Dropout": {"dropout"},
}
_TAKES = {"Dense": "in_features", "LayerNorm": "dimension"}  # of modules with weights
RUN = ("Transformer", "Pooling", *MODULE_KEYS)  # what m2dr runs

Table = Mapping[str, Any]


@dataclass(frozen=True)
class _ModuleRow:
    type: str
    path: str
    kwargs: object = None


@dataclass(frozen=True)
class ListedModule:
    """A module that texts pass, as modules.json lists it."""

    kind: str  # name of its class in sentence-transformers
    path: str  # folder inside the model's, empty for the model's own
    settings: Table = field(default_factory=dict)  # its config.json


@dataclass(frozen=True)
class ModelFolder:
    """The JSON files of a model folder; of imported vectors, which have none, a path alone.

    Attributes:
        path: the folder.
        modules: that a text passes; Transformer and Pooling where the folder lists none.
        is_listed: whether the folder lists its modules.
        settings: config_sentence_transformers.json.
        transformer: settings of the Transformer, in sentence_bert_config.json or the like.
        tokenizer: tokenizer_config.json.
    """

    path: Path
    modules: tuple[ListedModule, ...] = ()
    is_listed: bool = False
    settings: Table = field(default_factory=dict)
    transformer: Table = field(default_factory=dict)
    tokenizer: Table = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "ModelFolder":
        """Read a folder that holds a complete model.

        Raises:
            UserError: it holds none, or a file is damaged or asks for what m2dr does not run.
        """
        if hub.is_half_written(path):
            raise UserError(f"{path} holds an incomplete model; repeat the command that wrote it.")
        if (path / hub.CHECKPOINTS).exists() and not (path / hub.CARD).exists():
            # Weights beside them are those of an earlier model.
            raise UserError(f"{path} holds a training that is not finished.")
        listed = _listed(path)
        rows = listed or [ListedModule("Transformer", ""), ListedModule("Pooling", "1_Pooling")]
        inner = path / rows[0].path
        config = inner / "config.json"
        if not config.exists() and (path / hub.WORDS).exists():
            by = "m2dr.model.words.WordTable.open"
            raise UserError(f"{path} holds the words of layer 0 and no full model; {by} reads it.")
        if not config.exists() or (inner / hub.ADAPTER).exists():
            adapter = f"no config.json, or an adapter ({hub.ADAPTER})"
            raise UserError(f"{inner} holds no full model: {adapter}.")
        if not any(inner.glob("*.safetensors")):
            raise UserError(f"{path} has no weights as safetensors, the only format m2dr reads.")
        files = [path / row.path / "config.json" for row in rows]
        tables = [read_optional_object(file, _FIELDS) for file in files]
        check_config(config, tables[0])
        if listed and not tables[1]:
            raise UserError(f"{files[1]} is missing or empty.")
        tokenizer = inner / "tokenizer_config.json"
        given = read_optional_object(tokenizer, _FIELDS)
        refuse_own_code(tokenizer, given, ["AutoTokenizer"])
        modules = (ListedModule(r.kind, r.path, t) for r, t in zip(rows, tables, strict=True))
        settings = read_optional_object(path / hub.MODEL_SETTINGS, _FIELDS)
        transformer = _transformer_settings(inner)
        return cls(path, tuple(modules), bool(listed), settings, transformer, given)

    @property
    def inner(self) -> Path:
        """The folder of config, weights and tokenizer: its own but in old layouts."""
        return self.path / self.modules[0].path

    @cached_property
    def sizes(self) -> ModelSizes:
        """The sizes of the backbone; transformers knows those that config.json does not name."""
        table = self.modules[0].settings
        keys = BACKBONES[table["model_type"]].size_keys
        whole = all(table.get(key) is not None for key in keys)
        return sizes_of(table if whole else self.config().to_dict())

    def config(self) -> "PretrainedConfig":
        """Read config.json as transformers does.

        Raises:
            UserError: it cannot.
        """
        from transformers import AutoConfig

        with explain_failure(f"{self.inner / 'config.json'} cannot be read"):
            config: PretrainedConfig = AutoConfig.from_pretrained(
                self.inner, trust_remote_code=False
            )
        return config

    def behind(self, similarity: str = "dot") -> list[ListedModule]:
        """Return the modules behind the pooling, without the exit head.

        A Normalize at the end is left out where vectors are compared by cosine, which normalises
        them after they are cut.
        """
        heads = (self.path / hub.HEADS).exists()
        found = [row for row in self.modules[2:] if not (heads and row.path == hub.DENSE)]
        if found and found[-1].kind == "Normalize" and similarity == "cosine":
            found.pop()
        return found

    def width(self, pooling: str) -> int:
        """Return the dims of a vector behind the last module, or `truncate_dim` where it is less.

        Raises:
            UserError: a module asks for what m2dr does not run, or takes other dims than it gets.
        """
        width = len(pooling_modes(pooling)) * self.sizes.width
        for row in self.behind():
            place = f"{row.kind} in {self.path / row.path}"
            for key, value in row.settings.items():
                ignored = key in _IN_AND_OUT and value in (None, _VECTOR)
                if key not in MODULE_KEYS[row.kind] and not ignored:
                    raise UserError(f"{place} has {key} = {value!r}, which m2dr does not run.")
            takes = row.settings.get(_TAKES[row.kind]) if row.kind in _TAKES else width
            if takes != width:
                raise UserError(f"{place} takes {quoted(takes)} dims, and is given {width}.")
            width = row.settings.get("out_features", width)
        return min(self.settings.get("truncate_dim") or width, width)

    @property
    def reshaping_module(self) -> str | None:
        """The first module with weights behind the pooling, None without one."""
        trained = [row for row in self.behind() if row.kind in _TAKES]
        return f"{trained[0].kind} ({trained[0].path})" if trained else None

    @property
    def normalizes(self) -> bool:
        """Whether sentence-transformers gives vectors of length one."""
        return self.modules[-1].kind == "Normalize"


def _listed(folder: Path) -> list[ListedModule]:
    """Return the modules of modules.json, in order; none where the folder has no such file."""
    path, listed = folder / hub.MODULES, []
    for row in read_json(path, list[_ModuleRow]) if path.exists() else []:
        inner = PurePosixPath(row.path)
        if row.type == hub.FITTED_CUT:  # of m2dr itself, whose card says more
            continue
        package, _, name = row.type.rpartition(".")
        is_own = package.partition(".")[0] != "sentence_transformers"
        if is_own or row.kwargs or inner.is_absolute() or ".." in inner.parts:
            raise UserError(f"{path} names {row.type[:60]} in {row.path[:60]!r}, which is not run.")
        listed.append(ListedModule(name, row.path))
    kinds = [row.kind for row in listed]
    if kinds and (tuple(kinds[:2]) != RUN[:2] or {*kinds[2:]} - {*RUN[2:]}):
        names = ", ".join(kinds)[:90]
        raise UserError(f"{path} names {names}; m2dr runs {', '.join(RUN)}.")
    return listed


def _transformer_settings(inner: Path) -> dict[str, Any]:
    """Read the settings of the Transformer, with those among its arguments for transformers."""
    read = {
        p: read_optional_object(p, _FIELDS) for p in map(inner.joinpath, hub.TRANSFORMER_SETTINGS)
    }
    path, settings = next(((p, table) for p, table in read.items() if table), (inner, {}))
    for name in _TABLES:
        arguments = settings.pop(name, None) or {}
        settings |= {k: v for k, v in arguments.items() if k == _KEPT or k not in _HARMLESS}
    modality = settings.pop("modality_config", {})
    odd = {k: v for k, v in settings.items() if k not in READ and v not in FIXED.get(k, ())}
    if "message" in modality or modality.get("text", _TEXT) != _TEXT:
        odd["modality_config"] = modality
    if odd:
        raise UserError(f"{path} has {quoted(odd)}, which m2dr does not run.")
    return settings


def card_of_folder(name: str, folder: ModelFolder, revision: str) -> ModelCard:
    """Return the card of a folder that m2dr did not write: the full model, untrained at any cut.

    Raises:
        UserError: the folder asks for something that m2dr does not run.
    """
    similarity, pooling = _similarity(folder), _pooling(folder)
    width = folder.width(pooling)
    query, document = _prompt(folder, "query"), _prompt(folder, "document")
    whole_text = folder.modules[1].settings.get("include_prompt", True)
    if not whole_text and (query or document):
        path = folder.path
        raise UserError(f"The Pooling of {path} has include_prompt = false, not supported.")
    query_length, document_length = _lengths(folder)
    return ModelCard(
        backbone=name,
        variant="untrained",
        layers=folder.sizes.layers,
        width=width,
        cuts=(Cut(folder.sizes.layers, width),),
        documents="same",
        pooling=pooling,
        similarity=similarity,
        temperature=TEMPERATURE[similarity],
        query_prefix=query,
        document_prefix=document,
        query_length=query_length,
        document_length=document_length,
        revision=revision,
    )


def _similarity(folder: ModelFolder) -> Similarity:
    """Return how vectors are compared; the default of sentence-transformers is the cosine."""
    told = folder.settings
    kind, named = told.get("model_type", "SentenceTransformer"), told.get("similarity_fn_name")
    default: Similarity = "cosine" if folder.is_listed else "dot"
    known: dict[object, Similarity] = {None: default, "cosine": "cosine", "dot": "dot"}
    if kind != "SentenceTransformer" or named not in known:
        what = f"{str(kind)[:60]} with the similarity {quoted(named)}"
        raise UserError(f"{folder.path} is a {what}, not one vector per text with cosine or dot.")
    return known[named]


def _pooling(folder: ModelFolder) -> str:
    table = folder.modules[1].settings
    if not table:
        return default_pooling(folder.config())
    named = table.get("pooling_mode")
    if named is None:
        named = [mode for flag, mode in POOLING_FLAGS.items() if table.get(flag)]
    modes = [named] if isinstance(named, str) else named or ["mean"]
    modes = [LAST.get(mode, mode) for mode in modes]
    strange = [mode for mode in modes if mode not in get_args(Pooling)]
    strange += [key for key in table if key not in {*POOLING_FLAGS, *POOLING_KEYS}]
    if strange:
        path = folder.path / folder.modules[1].path / "config.json"
        raise UserError(f"{path} asks for {quoted(strange[0])}, not one of {get_args(Pooling)}.")
    return "+".join(modes)


def _lengths(folder: ModelFolder) -> tuple[int, int]:
    """Return the lengths of a query and of a document, in tokens with the special ones."""
    told, sizes = folder.transformer, folder.sizes
    most: Any = folder.tokenizer.get(_KEPT) or sizes.positions if folder.is_listed else MAX_LENGTH
    longest = told.get(_KEPT) or told.get("max_seq_length") or min(most, sizes.positions)
    asked = [told.get(f"{side}_length") or longest for side in ("query", "document")]
    query, document = (int(min(length, sizes.tokens)) for length in asked)
    return query, document


# Prompts


def side_of(prompt_name: str) -> Side | None:
    """Return the side that a name of a prompt speaks of; None where it names none, or both."""
    found = [side for side, words in _WORDS.items() if words.search(prompt_name)]
    return SIDES.get(prompt_name) or (found[0] if len(found) == 1 else None)


def default_prompt_name(settings: Table, side: Side) -> str | None:
    """Return the name of the default prompt, None where there is none or it is of the other side.

    Args:
        settings: of config_sentence_transformers.json.
        side: of the texts.
    """
    name: str | None = settings.get("default_prompt_name")
    return name if name is None or side_of(name) in (None, side) else None


def _prompt(folder: ModelFolder, side: Side) -> str:
    """Return the prompt of a side, and warn of one that may be meant and is not taken."""
    told = folder.settings
    prompts: Mapping[str, str | None] = told.get("prompts") or {}
    default = told.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise UserError(f"{folder.path} has no prompt {quoted(default)}, its default_prompt_name.")
    named = [prompts[n] for n, own in SIDES.items() if own == side and prompts.get(n) is not None]
    default = default_prompt_name(told, side)
    text = next(filter(None, named), None) or ("" if named else prompts.get(default or ""))
    if not text:
        sides = (side, None) if side == "query" else (side,)
        unread = [name for name, text in prompts.items() if text and side_of(name) in sides]
        if unread:
            texts = {"query": "queries", "document": "documents"}[side]
            say_once(
                f"{folder.path} has prompts named {quoted(', '.join(unread))} and none named {side}"
                f", so that {texts} get none; name one {side} in {hub.MODEL_SETTINGS}, or train "
                f"with --{side}-prefix."
            )
    return text or ""
