"""What sentence-transformers writes into a folder, read and written."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from torch import Tensor, nn
from transformers import PretrainedConfig

from m2dr.errors import UserError
from m2dr.jsontext import quoted, read_table
from m2dr.model.backbones import most_tokens, read_config, usual_pooling
from m2dr.model.modules import KINDS, Dense, Truncate, final_width, read_modules, write_modules
from m2dr.model.places import (
    DENSE,
    MODULES,
    SETTINGS,
    Listed,
    behind_pooling,
    listed_modules,
    transformer_folder,
)
from m2dr.records.card import ModelCard, Pooling, Similarity, modes_of
from m2dr.records.cut import Cut

POOLING_FLAGS: dict[str, Pooling] = {  # in the order in which vectors of several are joined
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "last",
}
POOLING_KEYS = {"word_embedding_dimension", "embedding_dimension", "pooling_mode", "include_prompt"}
LAST = {"lasttoken": "last"}  # the one mode that has another name there
TEMPERATURE: dict[Similarity, float] = {"dot": 1.0, "cosine": 0.05}
MAX_LENGTH = 256  # tokens of a document, where the folder asks for nothing else
_AGAIN = "Copy or download the model again."
_FIELDS: dict[str, object] = {  # of the files that are read here, each in one of them
    "prompts": dict[str, str | None] | None,
    **dict.fromkeys(("default_prompt_name", "similarity_fn_name", "model_type"), str | None),
    **dict.fromkeys(("max_seq_length", "query_length", "document_length"), int | None),
    "model_max_length": int | float | None,
    "truncate_dim": int | None,
    "do_lower_case": bool | None,
    "pooling_mode": str | list[str] | None,
    "include_prompt": bool,
    "modality_config": dict[str, object],
    **dict.fromkeys(POOLING_FLAGS, bool | None),
    **dict.fromkeys(
        ("model_args", "tokenizer_args", "config_args")
        + ("model_kwargs", "processor_kwargs", "config_kwargs"),
        dict[str, object] | None,
    ),
}
FIRST = 3  # number of the first module behind an exit head, whose own folder is DENSE

MODEL_SETTINGS = "config_sentence_transformers.json"
TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
# Settings of the Transformer: what m2dr reads, and those whose one value it runs.
READ = {"max_seq_length", "do_lower_case", "query_length", "document_length", "unpad_inputs"}
USUAL: dict[str, tuple[object, ...]] = {
    "transformer_task": (None, "feature-extraction"),
    "module_output_name": (None, "token_embeddings"),
    "processing_kwargs": (None, {}),
    "query_expansion": (None,),
    "tokenizer_name_or_path": (None,),
}
# Arguments of transformers that change no vector, or that m2dr settles by itself.
_LOADING = {"trust_remote_code", "cache_dir", "revision", "token", "local_files_only"}
_MODEL = {"add_pooling_layer", "attn_implementation", "device_map", "dtype", "low_cpu_mem_usage",
          "torch_dtype", "use_safetensors"}  # fmt: skip
ARGUMENTS: dict[str, set[str]] = {
    "model_args": _LOADING | _MODEL,
    "tokenizer_args": _LOADING | {"model_max_length", "padding_side", "use_fast"},
    "config_args": _LOADING | {"output_hidden_states", "use_cache"},
}
NEWER = {"model_args": "model_kwargs", "tokenizer_args": "processor_kwargs",
         "config_args": "config_kwargs"}  # fmt: skip


def foreign_card(name: str, folder: Path) -> ModelCard:
    """The card of a backbone as it comes: whole, untrained at any cut, pooled as it asks to be.

    Raises:
        UserError: the folder asks for something that m2dr does not run.
    """
    config = read_config(folder)
    layers = config.num_hidden_layers
    told = read_table(folder / MODEL_SETTINGS, _FIELDS, _AGAIN)
    similarity = _similarity(folder, told)
    pooling, whole_text = _pooling(folder)
    pooling = pooling or usual_pooling(config)
    query, document = _prompts(folder / MODEL_SETTINGS, told)
    if not whole_text and (query or document):
        raise UserError(
            f"The Pooling of {folder} leaves the tokens of a prompt out (include_prompt = false), "
            "which m2dr does not. Take another model."
        )
    width = embedding_width(folder, config, pooling)
    query_length, document_length = _lengths(folder, config)
    return ModelCard(
        backbone=name,
        variant="untrained",
        layers=layers,
        width=width,
        cuts=(Cut(layers, width),),
        documents="same",
        pooling=pooling,
        similarity=similarity,
        temperature=TEMPERATURE[similarity],
        query_prefix=query,
        document_prefix=document,
        query_length=query_length,
        document_length=document_length,
    )


def modules_behind(folder: Path, card: ModelCard, pooled_width: int) -> nn.Sequential:
    """Load the modules that every vector of a model passes behind its pooling and exit head."""
    listed = behind_pooling(folder, card.similarity)
    return read_modules(folder, listed, pooled_width, card.width)


def reshaping_module(folder: Path) -> str | None:
    """Return the first module that moves the vectors of a folder out of the space of its tokens."""
    trained = [row for row in behind_pooling(folder) if KINDS[row.kind].trained]
    return f"{trained[0].kind} ({trained[0].path})" if trained else None


def lowercases(folder: Path) -> bool:
    """Whether sentence-transformers would put texts of a folder in lower case first."""
    return bool(_transformer_settings(folder).get("do_lower_case"))


def write_sentence_transformers_files(
    card: ModelCard, folder: Path, head: Tensor | None = None, behind: nn.Sequential | None = None
) -> None:
    """What SentenceTransformer(folder) needs to give the same vectors.

    Args:
        card: says how to pool, what stands before a text and how long it may be.
        folder: of the model.
        head: [P, P], the exit head of the last layer in the folder, where it has one; P is the
            width of a pooled vector.
        behind: the modules that stand behind it.

    There is no module that normalises where vectors are compared by cosine: sentence-transformers
    cuts behind its modules, and a prefix must be cut first and normalised after. Its cosine does
    that by itself.
    """
    listed = [Listed("Transformer", ""), Listed("Pooling", "1_Pooling")]
    if head is not None:
        height, width = head.shape
        dense = Dense(width, height, bias=False, activation=nn.Identity(), residual=False)
        dense.linear.weight = nn.Parameter(head)
        (row,) = write_modules(nn.Sequential(dense), folder, int(DENSE[0]))
        listed.append(row)
    listed += write_modules(behind or nn.Sequential(), folder, FIRST)
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": row.path,
            "type": f"sentence_transformers.models.{row.kind}",
        }
        for i, row in enumerate(listed)
    ]
    settings: dict[str, object] = {
        "prompts": {"query": card.query_prefix, "document": card.document_prefix},
        "default_prompt_name": None,
        "similarity_fn_name": card.similarity,
    }
    if behind and isinstance(behind[-1], Truncate):
        settings["truncate_dim"] = card.width
    _write(folder / MODULES, modules)
    _write(folder / "1_Pooling" / "config.json", _pooling_config(card, folder))
    _write(folder / MODEL_SETTINGS, settings)
    _write(folder / SETTINGS[0], {"max_seq_length": card.document_length})


def _pooling_config(card: ModelCard, folder: Path) -> dict[str, object]:
    """The Pooling's config.json: flags that any version reads, or a list where order matters."""
    modes = modes_of(card.pooling)
    width = read_config(folder).hidden_size
    found: dict[str, object] = {"word_embedding_dimension": width}
    flags = {flag: mode in modes for flag, mode in POOLING_FLAGS.items()}
    if tuple(mode for mode in POOLING_FLAGS.values() if mode in modes) == modes:
        return found | flags
    theirs = {ours: name for name, ours in LAST.items()}
    return found | {"pooling_mode": [theirs.get(mode, mode) for mode in modes]}


def _pooling(folder: Path) -> tuple[str | None, bool]:
    """How a folder pools, None where it does not say, and whether it pools a prompt's tokens."""
    listed = listed_modules(folder)
    path = folder / (listed[1].path if listed else "1_Pooling") / "config.json"
    table = read_table(path, _FIELDS, _AGAIN)
    if not table:
        if listed:
            raise UserError(f"{path} is missing or empty; get the model again.")
        return None, True
    named = table.get("pooling_mode")
    if named is None:
        named = [LAST.get(mode, mode) for flag, mode in POOLING_FLAGS.items() if table.get(flag)]
    modes = [named] if isinstance(named, str) else named or ["mean"]
    odd = [key for key in table if key not in {*POOLING_FLAGS, *POOLING_KEYS}]
    strange = [mode for mode in modes if LAST.get(mode, mode) not in get_args(Pooling)] + odd
    if strange:
        raise UserError(
            f"{path} asks for the pooling {quoted(strange[0])}, which m2dr does not run; it runs "
            f"{', '.join(get_args(Pooling))}. Take another model."
        )
    return "+".join(LAST.get(mode, str(mode)) for mode in modes), table.get("include_prompt", True)


def _similarity(folder: Path, told: Mapping[str, Any]) -> Similarity:
    """How vectors are compared; sentence-transformers' own default is the cosine."""
    kind = told.get("model_type", "SentenceTransformer")
    if kind != "SentenceTransformer":
        raise UserError(
            f"{folder} holds a {str(kind)[:60]}, and m2dr opens models that give one vector per "
            "text (SentenceTransformer). Take another model."
        )
    named = told.get("similarity_fn_name")
    usual: Similarity = "cosine" if listed_modules(folder) else "dot"
    known: dict[object, Similarity] = {None: usual, "cosine": "cosine", "dot": "dot"}
    if named not in known:
        raise UserError(
            f"{folder / MODEL_SETTINGS} has similarity_fn_name = {quoted(named)}, and m2dr "
            "compares vectors by cosine or dot alone. Take another model."
        )
    return known[named]


def _prompts(path: Path, told: Mapping[str, Any]) -> tuple[str, str]:
    """What stands before a query and before a document: by its name, else the default prompt."""
    prompts, default = told.get("prompts") or {}, told.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise UserError(
            f"{path} has default_prompt_name = {quoted(default)}, and its prompts are "
            f"{quoted(list(prompts))}. Get the model again."
        )

    def of(names: Sequence[str]) -> str:
        name = next((name for name in names if prompts.get(name) is not None), default)
        return str(prompts.get(name) or "")

    return of(["query"]), of(["document", "passage", "corpus"])


def embedding_width(folder: Path, config: PretrainedConfig, pooling: str) -> int:
    """Return the dims of a vector: what the last module gives, or its first where it is cut."""
    pooled = len(modes_of(pooling)) * int(config.hidden_size)
    width = final_width(folder, behind_pooling(folder), pooled)
    dim: int | None = read_table(folder / MODEL_SETTINGS, _FIELDS, _AGAIN).get("truncate_dim")
    if dim is None:
        return width
    if dim < 1:
        raise UserError(f"{folder / MODEL_SETTINGS} has truncate_dim = {quoted(dim)}, no width.")
    return min(dim, width)


def _lengths(folder: Path, config: PretrainedConfig) -> tuple[int, int]:
    """Tokens of a query and of a document, special ones included, at most."""
    settings = _transformer_settings(folder)
    given = _arguments(settings, "tokenizer_args").get("model_max_length")
    usual: Any = MAX_LENGTH
    if listed_modules(folder):
        path = transformer_folder(folder) / "tokenizer_config.json"
        tokenizer = read_table(path, _FIELDS, _AGAIN)
        usual = tokenizer.get("model_max_length", most_tokens(config))
    longest = given or settings.get("max_seq_length") or usual
    asked = [settings.get(f"{side}_length") or longest for side in ("query", "document")]
    if not all(isinstance(length, int | float) and length >= 1 for length in asked):
        raise UserError(f"A text of {folder} may have {quoted(asked)} tokens, which is no length.")
    query, document = (int(min(length, most_tokens(config))) for length in asked)
    return query, document


def _transformer_settings(folder: Path) -> dict[str, Any]:
    """The settings of the Transformer.

    Raises:
        UserError: one of them asks for something that m2dr does not run.
    """
    inner = transformer_folder(folder)
    paths = [inner / name for name in SETTINGS]
    path = next((path for path in paths if read_table(path, _FIELDS, _AGAIN)), paths[0])
    settings = read_table(path, _FIELDS, _AGAIN)
    odd = _odd_settings(settings)
    if odd:
        raise UserError(
            f"{path} has {odd}, which m2dr does not run; its vectors would be others than those of "
            "sentence-transformers. Take another model."
        )
    return settings


def _odd_settings(settings: Mapping[str, Any]) -> str | None:
    """The first setting that m2dr neither reads nor may leave aside."""
    tables = {*ARGUMENTS, *NEWER.values(), "modality_config"}
    for name, value in settings.items():
        odd = name not in {*READ, *USUAL, *tables} or value not in USUAL.get(name, (value,))
        if odd or (name in tables and not isinstance(value, dict)):
            return f"{name[:60]} = {quoted(value)}"
    modality = settings.get("modality_config", {})
    if "message" in modality or modality.get("text", TEXT) != TEXT:
        return f"modality_config = {quoted(modality)}"
    for name, harmless in ARGUMENTS.items():
        for key, value in _arguments(settings, name).items():
            if key not in harmless:
                return f"{key[:60]} = {quoted(value)} among its {name}"
    return None


def _arguments(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Arguments for transformers, under their older or their newer name."""
    return (settings.get(name) or {}) | (settings.get(NEWER[name]) or {})


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
