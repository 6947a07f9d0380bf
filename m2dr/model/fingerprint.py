"""One number for all files that decide a model's vectors. Why: docs/decisions/0011."""

import hashlib
import json
from collections.abc import Collection, Iterator
from functools import lru_cache
from glob import escape
from pathlib import Path
from typing import Any

from m2dr.errors import UserError
from m2dr.io import read_value
from m2dr.records.card import ModelCard

# Fields that change no vector, so that they may differ between two copies of one model.
_OF_CONFIG = frozenset(
    ("_commit_hash", "_name_or_path", "name_or_path", "architectures", "auto_map", "dtype")
    + ("finetuning_task", "id2label", "label2id", "output_attentions", "output_hidden_states")
    + ("problem_type", "return_dict", "task_specific_params", "torch_dtype", "use_cache")
    + ("transformers_version",)
)
_OF_TOKENIZER_CONFIG = frozenset(
    ("auto_map", "backend", "chat_template", "clean_up_tokenization_spaces", "is_local")
    + ("local_files_only", "max_length", "model_max_length", "name_or_path", "pad_to_multiple_of")
    + ("pad_token_type_id", "padding_side", "processor_class", "special_tokens_map_file", "stride")
    + ("tokenizer_file", "transformers_version", "truncation_strategy")
)
_OF_TOKENIZER = frozenset(("truncation", "padding"))  # the last call's; every call says its own
_IDLE: dict[str, Collection[str]] = {
    "config.json": _OF_CONFIG,
    "tokenizer.json": _OF_TOKENIZER,
    "tokenizer_config.json": _OF_TOKENIZER_CONFIG,
    "sentence_bert_config.json": frozenset(("max_seq_length",)),  # a part of the label by itself
}
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json") + (
    ("added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "*.model")
)
_REMEDY = "Copy or download the model again."

File = tuple[Path, int, int, int]  # and inode, size and time: what tells a file from a changed one


def fingerprint(folder: Path, card: ModelCard, modules: bool = False) -> str:
    """Return the sha256 of what decides the vectors of a model folder, in hex.

    That is its weights, config.json, the files of its tokenizer, and how the card lets tokens
    attend and layers end. Order and white space of JSON, and fields that change no vector, do not
    matter. Pooling, prefixes, lengths and similarity are compared by name, in an index's label.

    Args:
        folder: of the model.
        card: what it says of itself, or what is known of it.
        modules: whether sentence-transformers' modules decide too, as in a folder without
            m2dr.json.

    Raises:
        UserError: a file cannot be read, or is not JSON.
    """
    patterns = ["config.json", *TOKENIZERS, *(_of_modules(folder) if modules else ())]
    told = json.dumps([hash_weights(folder), card.attention, card.exit_head])
    files = (file for pattern in patterns for file in _files(folder, pattern))
    return _hash_all(told, folder.resolve(), *files)


def hash_weights(folder: Path) -> str:
    """Return the sha256 of the weights of a model folder, in hex."""
    return _hash(*_files(folder, "*.safetensors"))


def _files(folder: Path, pattern: str) -> Iterator[File]:
    for path in sorted(folder.resolve().glob(pattern)):
        found = path.stat()
        yield path, found.st_ino, found.st_size, found.st_mtime_ns


def _of_modules(folder: Path) -> Iterator[str]:
    """Patterns of the files of sentence-transformers' modules."""
    path = folder / "modules.json"
    if not path.exists():
        return
    yield from (path.name, "sentence_bert_config.json")
    there = {inner.name for inner in folder.iterdir()}
    for module in read_value(path, list[dict[str, object]], _REMEDY):
        place = module.get("path")
        if place:
            if not isinstance(place, str) or Path(place).name != place:
                raise UserError(
                    f"{path} has a module in {str(place)[:80]!r}, no folder beside it. {_REMEDY}"
                )
            if place in there:  # a module without settings has no folder
                yield from (f"{escape(place)}/config.json", f"{escape(place)}/*.safetensors")


@lru_cache(maxsize=8)
def _hash(*files: File) -> str:
    """Read once per process what a command asks of the card and again of the weights."""
    digest = hashlib.sha256()
    for path, *_ in files:
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


@lru_cache(maxsize=8)
def _hash_all(told: str, folder: Path, *files: File) -> str:
    digest = hashlib.sha256(told.encode())
    for file in files:
        path = file[0]
        part = _hash_json(path) if path.suffix == ".json" else _hash(file)
        digest.update(f"\n{path.relative_to(folder).as_posix()} {part}".encode())
    return digest.hexdigest()


def _hash_json(path: Path) -> str:
    """Hash what a file says, however it is laid out."""
    table: Any = read_value(path, object, _REMEDY)
    if isinstance(table, dict):
        idle = _IDLE.get(path.name, ())
        table = {name: value for name, value in table.items() if name not in idle}
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
