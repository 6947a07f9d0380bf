"""Model cards and fingerprints: what a model folder says of itself. Why: docs/decisions/0011."""

import hashlib
import json
import re
import shutil
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from m2dr.core.errors import UserError, command, counted
from m2dr.core.files import (
    json_sha256,
    list_folder,
    lock_folder,
    read_json,
    read_object,
    read_record,
    sha256_of,
    write_json,
)
from m2dr.core.records import (
    EXITS_FILE,
    EXPORTED_FILE,
    FORMAT,
    WEIGHTS_ALONE,
    ExportRecord,
    IndexExits,
    ModelCard,
)
from m2dr.model.backbones import read_sizes
from m2dr.model.hub import (
    ASIDE,
    CARD,
    EXITS,
    HEADS,
    MATRYOSHKA,
    SETTINGS,
    STATIC,
    TOKENIZER,
    WEIGHTS,
    behind_pooling,
    find_folder,
    is_half_written,
    table_chain,
    transformer_folder,
)
from m2dr.model.sentence_transformers import card_of_folder, embedding_width

TOKENIZERS = (TOKENIZER, "tokenizer_config.json", "special_tokens_map.json") + (
    ("added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "*.model")
)
_LARGEST = 2**31  # of any number in a card: counts of layers, dims and tokens stay below
_AGAIN = "Copy or download the model again."
_CARD_AGAIN = "Train the model again, or copy its whole folder again."
_FIT_ANY = (
    "Fit the exits of the index again for its corpus and model with: "
    f"{command('index', 'fit', overwrite=True)}"
)

# Fields that change no vector, so that they may differ between two copies of one model.
_IGNORED: dict[str, Collection[str]] = {
    "config.json": frozenset(
        ("_commit_hash", "_name_or_path", "name_or_path", "architectures", "auto_map", "dtype")
        + ("finetuning_task", "id2label", "label2id", "output_attentions", "output_hidden_states")
        + ("problem_type", "return_dict", "task_specific_params", "torch_dtype", "use_cache")
        + ("transformers_version",)
    ),
    TOKENIZER: frozenset(("truncation", "padding")),  # each call sets its own
    "tokenizer_config.json": frozenset(
        ("auto_map", "backend", "chat_template", "clean_up_tokenization_spaces", "is_local")
        + ("local_files_only", "max_length", "model_max_length", "name_or_path")
        + ("pad_to_multiple_of", "pad_token_type_id", "padding_side", "processor_class")
        + ("special_tokens_map_file", "stride", "tokenizer_file", "transformers_version")
        + ("truncation_strategy",)
    ),
    **dict.fromkeys(SETTINGS, frozenset(("max_seq_length",))),  # compared by the index's label
}

_File = tuple[Path, int, int, int]  # path, inode, size and time, which change with the content


def read_card(name: str | Path) -> ModelCard:
    """Return the card of a model folder, a backbone's folder or a hub id.

    Raises:
        UserError: no such folder or id, a damaged file, or files that are not those that m2dr.json
            was written for.
    """
    folder = find_folder(str(name))
    if (folder / CARD).exists():
        return _own_card(folder)
    card = card_of_folder(str(name), folder)
    return card.with_fingerprint(fingerprint(folder, card, backbone=True))


def read_card_file(path: Path) -> ModelCard:
    """Read m2dr.json alone, without checking the files beside it.

    Raises:
        UserError: the file is missing, not regular, damaged, of another format, or holds a value
            that no model has.
    """
    table = read_object(path, {"format": int, "cuts": list[tuple[int, int]]})
    if table.get("format") not in (WEIGHTS_ALONE, FORMAT):
        raise UserError(
            f"{path} has format {table.get('format')}, and this m2dr reads format {FORMAT}; "
            "use the m2dr that wrote it, or train again."
        )
    try:
        return _checked_card(table)
    except (msgspec.ValidationError, UserError) as error:
        raise UserError(f"{path} is damaged: it {error}. {_CARD_AGAIN}") from error


def write_card_file(card: ModelCard, path: Path) -> None:
    """Write m2dr.json."""
    table = asdict(card)
    table["cuts"] = [[cut.layer, cut.dim] for cut in card.cuts]
    write_json(path, table, sort_keys=True)


def _checked_card(table: dict[str, Any]) -> ModelCard:
    """Turn the object of m2dr.json, whose cuts are pairs, into a card."""
    cuts = table.get("cuts", [])
    if any(layer < 0 or dim < 1 for layer, dim in cuts):
        raise UserError(f"has cuts = {cuts}, and a cut has a layer from 0 and a dim from 1")
    if "cuts" in table:
        table["cuts"] = [{"layer": layer, "dim": dim} for layer, dim in cuts]
    card = msgspec.convert(table, ModelCard)
    for name in ("layers", "width", "query_length", "document_length", "temperature"):
        value = getattr(card, name)
        if not 0 < value < _LARGEST:
            raise UserError(f"has {name} = {value}, which no model has")
    for cut in card.cuts:
        if not card.lowest_layer <= cut.layer <= card.layers or cut.dim > card.width:
            raise UserError(
                f"has the cut {cut} among its cuts, and the model layers {card.lowest_layer} to "
                f"{card.layers} of {card.width} dims"
            )
    if not re.fullmatch("[0-9a-f]{64}", card.fingerprint):
        raise UserError("has a fingerprint that is no sha256")
    return card


def _own_card(folder: Path) -> ModelCard:
    """Return the card that m2dr wrote, if the files beside it are those that it was written for."""
    path = folder / CARD
    card = read_card_file(path)
    _refuse_other_config(path, card)
    for name in {"linear": (HEADS,), "fitted": (EXITS, STATIC)}.get(card.exit_head, ()):
        if not (folder / name).exists():
            raise UserError(
                f"{folder} lacks {name}, and {path.name} says that the model has exit heads; "
                "copy the whole folder again."
            )
    today = fingerprint(folder, card)
    found = hash_weights(folder) if card.format == WEIGHTS_ALONE else today
    if found != card.fingerprint and card.fingerprint == fingerprint(folder, card, backbone=True):
        return card  # an older folder, whose config.json has these fields from its backbone
    if found != card.fingerprint:
        raise UserError(
            f"The files in {folder} have fingerprint {found[:12]}, and {path.name} says "
            f"{card.fingerprint[:12]}: its weights, tokenizer or config.json, or attention or "
            f"exit_head in {path.name}; one of them was changed. Train or copy the model again."
        )
    return card.with_fingerprint(today)


def _refuse_other_config(path: Path, card: ModelCard) -> None:
    """Refuse a card and a config.json that do not describe the same encoder."""
    sizes = read_sizes(path.parent)
    pairs = {
        "layers": (card.layers, sizes.layers),
        "width": (card.width, embedding_width(path.parent, sizes, card.pooling)),
    }
    for name, (said, found) in pairs.items():
        if said != found:
            raise UserError(
                f"{path} has {name} = {said}, and the files beside it say {found}; one of them was "
                "changed. Train or copy the model again."
            )
    for name in ("query_length", "document_length"):
        if getattr(card, name) > sizes.tokens:
            raise UserError(
                f"{path} has {name} = {getattr(card, name)}, and the encoder beside it reads "
                f"{sizes.tokens} tokens at most. Train or copy the model again."
            )


def fingerprint(folder: Path, card: ModelCard, backbone: bool = False) -> str:
    """Return the sha256 of all that decides the vectors of a model folder, in hex.

    That is its weights, config.json, the files of its tokenizer, the modules behind its pooling,
    its attention and its kind of exit heads. Order and white space of JSON, and fields that change
    no vector, do not matter. Pooling, prefixes, lengths and similarity are compared by name, in an
    index's label.

    Args:
        folder: of the model.
        card: of the model; its own fingerprint is ignored.
        backbone: whether m2dr did not write config.json; then the dims that it says vectors may be
            cut to count too, as they always have.

    Raises:
        UserError: a file cannot be read, or is not JSON.
    """
    folder = folder.resolve()
    inner = transformer_folder(folder)
    behind = [*table_chain(folder), *behind_pooling(folder, card.similarity)]
    files = [
        file for name in ("config.json", *TOKENIZERS, *SETTINGS) for file in _files(inner, name)
    ]
    for row in behind:
        files += [*_files(folder / row.path, "config.json"), *_files(folder / row.path, WEIGHTS)]
    with ThreadPoolExecutor(1) as pool:  # hashing releases Python's lock, and JSON does not
        weights = pool.submit(hash_weights, folder)
        names = [file[0].relative_to(folder).as_posix() for file in files]
        parts = [*zip(names, (_hash_one(file, backbone) for file in files), strict=True)]
    told = [weights.result(), card.attention, card.exit_head, [row.kind for row in behind]]
    digest = hashlib.sha256(json.dumps(told).encode())
    for name, part in parts:
        digest.update(f"\n{name} {part}".encode())
    return digest.hexdigest()


def hash_weights(folder: Path) -> str:
    """Return the sha256 of the weights of a model folder, in hex."""
    return _hash(*_files(transformer_folder(folder.resolve()), "*.safetensors"))


def _files(folder: Path, pattern: str) -> Iterator[_File]:
    for path in sorted(folder.glob(pattern)):
        found = path.stat()
        yield path, found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=8)
def _hash(*files: _File) -> str:
    """Hash files, once per process: a command asks for the card and again for the weights."""
    digest = hashlib.sha256()
    for path, *_ in files:
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


@lru_cache(maxsize=64)
def _hash_one(file: _File, backbone: bool) -> str:
    """Hash a file; of JSON, the content without its layout and without ignored fields."""
    path = file[0]
    if path.suffix != ".json":
        return _hash(file)
    table: Any = read_json(path, object)
    if isinstance(table, dict):
        ignored = {*_IGNORED.get(path.name, ()), *(() if backbone else MATRYOSHKA)}
        table = {name: value for name, value in table.items() if name not in ignored}
    return json_sha256(table)


def check_exits(folder: Path, fingerprint: str, *names: str) -> None:
    """Refuse exits of an index that are another model's, or not the files of their record.

    Args:
        folder: of the exits.
        fingerprint: of the model that is to have them.
        names: of the files that will be read.

    Raises:
        UserError: the record, or a file, is missing, damaged, or of other exits.
    """
    record = _read_record(folder)
    if record.fingerprint != fingerprint:
        raise UserError(
            f"The exits in {folder} were fitted by model {record.fingerprint[:12]}, and model "
            f"{fingerprint[:12]} was to have them. {_how_to_fit(folder, record)}"
        )
    digests = dict(record.files)
    own = digests.keys() & {TOKENIZER} if STATIC in names else ()  # layer 0 may have one
    for name in (*names, *own):
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path} is missing. {_how_to_fit(folder, record)}")
        if sha256_of(path) != digests.get(name):
            raise UserError(
                f"{path} is not the file that was written. {_how_to_fit(folder, record)}"
            )


def fit_again(folder: Path) -> str:
    """Return the sentence that says how to fit the exits in a folder again."""
    try:
        return _how_to_fit(folder, _read_record(folder))
    except UserError:
        return _FIT_ANY


def told_of_exits(folder: Path) -> str:
    """Return what the exits of an index were fitted on, in words; some have no record."""
    if not (folder / EXITS_FILE).exists():
        return "documents of an index"
    found = _read_record(folder)
    return f"{counted(found.fit.texts, 'documents')} of the index of {found.corpus}"


def _read_record(folder: Path) -> IndexExits:
    return read_record(
        folder / EXITS_FILE,
        IndexExits,
    )


def _how_to_fit(folder: Path, record: IndexExits) -> str:
    if not record.again:
        return _FIT_ANY
    corpus, place = Path(record.corpus).parts, folder.parent.parent
    root = place.parents[len(corpus) - 1] if place.parts[-len(corpus) :] == corpus else None
    rest = command(indexes=None if root == Path("indexes") else root, overwrite=True)
    return f"Fit the exits of the index again with: {record.again}{rest.removeprefix('m2dr')}"


def read_exported(folder: Path) -> ExportRecord | None:
    """Return the record of an exported cut; None in the folder of any other model."""
    path = folder / EXPORTED_FILE
    return read_record(path, ExportRecord) if path.exists() else None


@contextmanager
def locked_for_export(folder: Path) -> Iterator[None]:
    """Lock a folder that a model is exported to.

    Raises:
        UserError: it holds something other than an incomplete model, or is being written to.
    """
    with lock_folder(folder):
        if list_folder(folder) and not is_half_written(folder):
            raise UserError(f"{folder} is not empty; choose another --out.")
        yield


@contextmanager
def folder_aside(folder: Path) -> Iterator[Path]:
    """Lend an empty folder inside `folder` for the files of a model; it is removed on an error."""
    aside = folder / ASIDE
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
