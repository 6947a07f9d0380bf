"""One number for all files that decide a model's vectors. Why: docs/decisions/0011."""

import hashlib
import json
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

from m2dr.jsontext import read_value
from m2dr.model.places import SETTINGS, WEIGHTS, behind_pooling, transformer_folder
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
    **dict.fromkeys(SETTINGS, frozenset(("max_seq_length",))),  # a part of the label by itself
}
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json") + (
    ("added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "*.model")
)
_REMEDY = "Copy or download the model again."

File = tuple[Path, int, int, int]  # and inode, size and time: what tells a file from a changed one


def fingerprint(folder: Path, card: ModelCard) -> str:
    """Return the sha256 of what decides the vectors of a model folder, in hex.

    That is its weights, config.json, the files of its tokenizer, the modules behind its pooling,
    and how the card lets tokens attend and layers end. Order and white space of JSON, and fields
    that change no vector, do not matter. Pooling, prefixes, lengths and similarity are compared by
    name, in an index's label.

    Args:
        folder: of the model.
        card: what it says of itself, or what is known of it.

    Raises:
        UserError: a file cannot be read, or is not JSON.
    """
    folder = folder.resolve()
    inner, behind = transformer_folder(folder), behind_pooling(folder, card.similarity)
    files = [
        file for name in ("config.json", *TOKENIZERS, *SETTINGS) for file in _files(inner, name)
    ]
    for row in behind:
        files += [*_files(folder / row.path, "config.json"), *_files(folder / row.path, WEIGHTS)]
    with ThreadPoolExecutor(1) as pool:  # hashing lets go of Python's lock, and JSON does not
        weights = pool.submit(hash_weights, folder)
        parts = [(file[0].relative_to(folder).as_posix(), _hash_one(file)) for file in files]
    told = [weights.result(), card.attention, card.exit_head, [row.kind for row in behind]]
    digest = hashlib.sha256(json.dumps(told).encode())
    for name, part in parts:
        digest.update(f"\n{name} {part}".encode())
    return digest.hexdigest()


def hash_weights(folder: Path) -> str:
    """Return the sha256 of the weights of a model folder, in hex."""
    return _hash(*_files(transformer_folder(folder.resolve()), "*.safetensors"))


def _files(folder: Path, pattern: str) -> Iterator[File]:
    for path in sorted(folder.glob(pattern)):
        found = path.stat()
        yield path, found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=8)
def _hash(*files: File) -> str:
    """Read once per process what a command asks of the card and again of the weights."""
    digest = hashlib.sha256()
    for path, *_ in files:
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


@lru_cache(maxsize=64)
def _hash_one(file: File) -> str:
    """Hash a file; of JSON what it says, however it is laid out."""
    path = file[0]
    if path.suffix != ".json":
        return _hash(file)
    table: Any = read_value(path, object, _REMEDY)
    if isinstance(table, dict):
        idle = _IDLE.get(path.name, ())
        table = {name: value for name, value in table.items() if name not in idle}
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
