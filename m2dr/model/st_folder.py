"""Read and write the settings of sentence-transformers in a model folder, without torch.

The modules themselves are run by `modules.py`.
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from m2dr.core.errors import UserError, quoted
from m2dr.core.files import read_optional_object, write_json
from m2dr.core.records import Cut, ModelCard, Pooling, Side, Similarity, pooling_modes
from m2dr.model import hub
from m2dr.model.backbones import ModelSizes, default_pooling, read_config, read_sizes

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
_FIELDS: dict[str, object] = {  # of all files that are read here
    "prompts": dict[str, str | None] | None,
    "default_prompt_name": str | None,
    **dict.fromkeys(("max_seq_length", "query_length", "document_length"), int | None),
    "model_max_length": int | float | None,
    "truncate_dim": int | None,
    "pooling_mode": str | list[str] | None,
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
_MODULE_FIELDS: dict[str, object] = {"out_features": int}  # of a module's config.json
MODEL_SETTINGS = "config_sentence_transformers.json"
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


def card_of_folder(name: str, folder: Path, revision: str) -> ModelCard:
    """Return the card of a folder that m2dr did not write: the full model, untrained at any cut.

    Raises:
        UserError: the folder asks for something that m2dr does not run.
    """
    sizes = read_sizes(folder)
    told = read_optional_object(folder / MODEL_SETTINGS, _FIELDS)
    similarity = _similarity(folder, told)
    pooling, whole_text = _pooling(folder)
    pooling = pooling or default_pooling(read_config(folder))
    default = told.get("default_prompt_name")
    if default is not None and default not in (told.get("prompts") or {}):
        raise UserError(f"{folder} has no prompt {quoted(default)}, its default_prompt_name.")
    query, document = (_prompt(folder, told, side) for side in ("query", "document"))
    if not whole_text and (query or document):
        raise UserError(f"The Pooling of {folder} has include_prompt = false, which is not run.")
    width = embedding_width(folder, sizes, pooling)
    query_length, document_length = _lengths(folder, sizes)
    return ModelCard(
        backbone=name,
        variant="untrained",
        layers=sizes.layers,
        width=width,
        cuts=(Cut(sizes.layers, width),),
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


def side_of(prompt_name: str) -> Side | None:
    """Return the side that a name of a prompt speaks of; None where it names none, or both."""
    found = [side for side, words in _WORDS.items() if words.search(prompt_name)]
    return SIDES.get(prompt_name) or (found[0] if len(found) == 1 else None)


def default_prompt_name(settings: Mapping[str, Any], side: Side) -> str | None:
    """Return the name of the default prompt, None where there is none or it is of the other side.

    Args:
        settings: of config_sentence_transformers.json.
        side: of the texts.
    """
    name: str | None = settings.get("default_prompt_name")
    return name if name is None or side_of(name) in (None, side) else None


def _prompt(folder: Path, told: Mapping[str, Any], side: Side) -> str:
    """Return the prompt of a side, and warn of one that may be meant and is not taken."""
    prompts: Mapping[str, str | None] = told.get("prompts") or {}
    named = [prompts[n] for n, own in SIDES.items() if own == side and prompts.get(n) is not None]
    default = default_prompt_name(told, side)
    text = next(filter(None, named), None) or ("" if named else prompts.get(default or ""))
    if not text:
        sides = (side, None) if side == "query" else (side,)
        unread = [name for name, text in prompts.items() if text and side_of(name) in sides]
        if unread:
            _warn_of_prompts(folder, side, tuple(unread))
    return text or ""


@lru_cache
def _warn_of_prompts(folder: Path, side: Side, names: tuple[str, ...]) -> None:
    """Warn once of prompts that are not taken."""
    plural = {"query": "queries", "document": "documents"}[side]
    warnings.warn(
        f"{folder} has prompts named {quoted(', '.join(names))} and none named {side}, so that "
        f"{plural} get none; name one {side} in {MODEL_SETTINGS}, or train with --{side}-prefix.",
        UserWarning,
        stacklevel=2,
    )


def reshaping_module(folder: Path) -> str | None:
    """Return the first module with weights behind the pooling of a folder, None without one."""
    trained = [row for row in hub.behind_pooling(folder) if row.kind in _TAKES]
    return f"{trained[0].kind} ({trained[0].path})" if trained else None


def lowercases(folder: Path) -> bool:
    """Return whether sentence-transformers puts texts in lower case first for a folder."""
    return bool(_transformer_settings(folder).get("do_lower_case"))


def _pooling(folder: Path) -> tuple[str | None, bool]:
    """Return the pooling of a folder, None if it names none, and whether it includes the prompt."""
    listed = hub.listed_modules(folder)
    path = folder / (listed[1].path if listed else "1_Pooling") / "config.json"
    table = read_optional_object(path, _FIELDS)
    if not table:
        if listed:
            raise UserError(f"{path} is missing or empty.")
        return None, True
    named = table.get("pooling_mode")
    if named is None:
        named = [LAST.get(mode, mode) for flag, mode in POOLING_FLAGS.items() if table.get(flag)]
    modes = [named] if isinstance(named, str) else named or ["mean"]
    odd = [key for key in table if key not in {*POOLING_FLAGS, *POOLING_KEYS}]
    strange = [mode for mode in modes if LAST.get(mode, mode) not in get_args(Pooling)] + odd
    if strange:
        raise UserError(f"{path} asks for {quoted(strange[0])}, not one of {get_args(Pooling)}.")
    return "+".join(LAST.get(mode, str(mode)) for mode in modes), table.get("include_prompt", True)


def _similarity(folder: Path, told: Mapping[str, Any]) -> Similarity:
    """Return how vectors are compared; the default of sentence-transformers is the cosine."""
    kind, named = told.get("model_type", "SentenceTransformer"), told.get("similarity_fn_name")
    default: Similarity = "cosine" if hub.listed_modules(folder) else "dot"
    known: dict[object, Similarity] = {None: default, "cosine": "cosine", "dot": "dot"}
    if kind != "SentenceTransformer" or named not in known:
        what = f"{str(kind)[:60]} with the similarity {quoted(named)}"
        raise UserError(f"{folder} is a {what}, not one vector per text with cosine or dot.")
    return known[named]


def module_settings(folder: Path, kind: str, width: int) -> dict[str, Any]:
    """Read the config.json of a module.

    Args:
        folder: of the module.
        kind: a name in MODULE_KEYS.
        width: dims of its input.

    Raises:
        UserError: the file is damaged, asks for what m2dr does not run, or is made for vectors of
            another width.
    """
    settings = read_optional_object(folder / "config.json", _MODULE_FIELDS)
    for key, value in settings.items():
        ignored = key in _IN_AND_OUT and value in (None, _VECTOR)
        if key not in MODULE_KEYS[kind] and not ignored:
            raise UserError(f"{kind} in {folder} has {key} = {value!r}, which m2dr does not run.")
    takes = _TAKES.get(kind)
    if takes and settings.get(takes) != width:
        dims = quoted(settings.get(takes))
        raise UserError(f"{kind} in {folder} takes {dims} dims, and is given {width}.")
    return settings


def embedding_width(folder: Path, sizes: ModelSizes, pooling: str) -> int:
    """Return the dims of a vector behind the last module, or `truncate_dim` where it is smaller."""
    width = len(pooling_modes(pooling)) * sizes.width
    for row in hub.behind_pooling(folder):
        width = module_settings(folder / row.path, row.kind, width).get("out_features", width)
    dim: int | None = read_optional_object(folder / MODEL_SETTINGS, _FIELDS).get("truncate_dim")
    return min(dim or width, width)


def _lengths(folder: Path, sizes: ModelSizes) -> tuple[int, int]:
    """Return the lengths of a query and of a document, in tokens with the special ones."""
    settings = _transformer_settings(folder)
    default: Any = min(MAX_LENGTH, sizes.positions)
    if hub.listed_modules(folder):
        path = hub.transformer_folder(folder) / "tokenizer_config.json"
        tokenizer = read_optional_object(path, _FIELDS)
        default = min(tokenizer.get("model_max_length") or sizes.positions, sizes.positions)
    longest = settings.get(_KEPT) or settings.get("max_seq_length") or default
    asked = [settings.get(f"{side}_length") or longest for side in ("query", "document")]
    query, document = (int(min(length, sizes.tokens)) for length in asked)
    return query, document


def _transformer_settings(folder: Path) -> dict[str, Any]:
    """Read the settings of the Transformer.

    Raises:
        UserError: one of them asks for something that m2dr does not run.
    """
    inner = hub.transformer_folder(folder)
    paths = [inner / name for name in hub.TRANSFORMER_SETTINGS]
    path = next((path for path in paths if read_optional_object(path, _FIELDS)), paths[0])
    settings = read_optional_object(path, _FIELDS)
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


def write_modules_list(folder: Path, listed: Sequence[hub.ListedModule]) -> None:
    """Write modules.json, which lists the modules that a text passes."""
    _write_modules(
        folder, [(f"sentence_transformers.models.{row.kind}", row.path) for row in listed]
    )


def write_fitted_cut(folder: Path, card: ModelCard) -> None:
    """Write what sentence-transformers reads of a cut with a fitted exit, which m2dr runs there."""
    _write_modules(folder, [(hub.FITTED_CUT, "")])
    write_model_settings(folder, card)


def _write_modules(folder: Path, rows: Sequence[tuple[str, str]]) -> None:
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (kind, path) in enumerate(rows)
    ]
    write_json(folder / hub.MODULES, listed)


def write_model_settings(folder: Path, card: ModelCard, **more: object) -> None:
    """Write config_sentence_transformers.json: prompts, the similarity, and more settings."""
    settings = {
        "prompts": {"query": card.query_prefix, "document": card.document_prefix},
        "default_prompt_name": None,
        "similarity_fn_name": card.similarity,
    }
    write_json(folder / MODEL_SETTINGS, settings | more)
