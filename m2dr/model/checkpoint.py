"""Model cards and fingerprints: what a model folder says of itself. Why: docs/decisions/0011."""

import hashlib
import json
import re
import shutil
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers.utils import logging

from m2dr.core.errors import UserError, command, counted
from m2dr.core.files import (
    explain_failure,
    json_sha256,
    list_folder,
    lock_folder,
    read_json,
    read_object,
    read_record,
    sha256_of,
    write_json,
    write_record,
)
from m2dr.core.records import (
    EXITS_FILE,
    EXPORTED_FILE,
    FORMAT,
    WEIGHTS_ALONE,
    ExportRecord,
    IndexExits,
    ModelCard,
    ModelExit,
)
from m2dr.model.backbones import backbone_of, cut_config, read_config, read_sizes, refuse_own_code
from m2dr.model.card import read_training_settings, write_readme
from m2dr.model.encoder import Encoder
from m2dr.model.exits import (
    FoldedExit,
    has_exit,
    last_head,
    load_exits,
    load_heads,
    read_table,
    write_exits,
    write_heads,
    write_table,
)
from m2dr.model.hub import (
    ASIDE,
    CARD,
    EXITS,
    HEADS,
    MATRYOSHKA,
    RECORD,
    RUN,
    SETTINGS,
    STATIC,
    TABLE_CHAIN,
    TOKENIZER,
    WEIGHTS,
    WEIGHTS_INDEX,
    behind_pooling,
    find_folder,
    is_half_written,
    table_chain,
    transformer_folder,
)
from m2dr.model.modules import (
    FIRST,
    modules_behind,
    write_modules,
    write_sentence_transformers_files,
    write_standalone_files,
)
from m2dr.model.st_folder import card_of_folder, embedding_width, lowercases
from m2dr.model.tokenizer import ModelTokenizer, lowercase

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


_AGAIN = "Train or download it again."
_COPY = "Copy the whole folder of the model again."
_VOCABULARIES = ((TOKENIZER,), ("vocab.txt",), ("vocab.json", "merges.txt"), ("*.model",))
_PROBE = 16  # tokens; no tokenizer puts more around a text
_MOST_TIMES = 4  # as many numbers as the weights hold may be in the encoder of config.json


def load(
    name: str | Path,
    layer: int | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    exits: Path | None = None,
) -> tuple[Encoder, ModelTokenizer]:
    """Load the first layers, or all of them, of a model or a backbone.

    Args:
        name: folder or id.
        layer: number of layers; None for all. Layer 0 runs none, and the first one is loaded.
        device: where to load it.
        dtype: of the weights of the backbone.
        exits: folder of the exits of an index, in place of the model's own.

    Raises:
        UserError: no such folder or id, weights that are missing or do not fit the
            configuration, fewer layers than asked for, exit heads that cannot be read, no
            tokenizer, or one of another model; exits that were changed or are another model's, or
            a model whose last layer ends in an exit of its own.
    """
    _quieten_transformers()
    folder, card = find_folder(str(name)), read_card(name)
    if exits is not None:
        refuse_ended(name)
        check_exits(exits, card.fingerprint, EXITS, STATIC)
    config = read_config(folder)
    tokenizer = load_tokenizer(folder)
    _refuse_other_vocabulary(tokenizer, config, folder)
    for length in ("query_length", "document_length"):
        tokenizer.require_room(getattr(card, length), f"{folder} has {length}")
    with explain_failure(f"The model in {folder} cannot be loaded"):
        _refuse_small_weights(folder, config)
    if layer is not None:
        config = cut_config(config, max(layer, 1))  # a backbone has at least one
    row = backbone_of(config)
    options = {"add_pooling_layer": False} if row.pooler else {}
    with explain_failure(f"The model in {folder} cannot be loaded"):
        transformer, report = row.model_class.from_pretrained(
            transformer_folder(folder),
            config=config,
            dtype=dtype,
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=True,
            **options,
        )
    if report["missing_keys"]:
        raise UserError(
            f"The weights in {folder} lack {counted(len(report['missing_keys']), 'tensors')} that "
            f"config.json promises, such as {min(report['missing_keys'])}; it is another model's, "
            "or damaged."
        )
    encoder = Encoder(transformer, card)
    encoder.behind = modules_behind(folder, card, encoder.pooled_width)
    _give_exits(encoder, folder, exits)
    return encoder.to(device).eval(), tokenizer


def _give_exits(encoder: Encoder, folder: Path, exits: Path | None) -> None:
    """Give an encoder the exit heads and the fitted exits of its folder, or those of an index."""
    card = encoder.card
    if card.exit_head == "table":
        if encoder.layers == card.layers:
            sizes = encoder.pooled_width, card.width, len(encoder.words)
            encoder.fitted = read_table(folder, card.layers, *sizes)
        return
    own = card.exit_head == "fitted"
    if card.exit_head == "linear" or (own and (folder / HEADS).exists()):
        load_heads(encoder, folder)
    if exits is not None:
        load_exits(encoder, exits, fit_again(exits))
    elif own:
        load_exits(encoder, folder, _COPY)
    if encoder.fitted is not None and encoder.layers < card.layers:
        encoder.behind = nn.Sequential()  # it follows the last layer alone


def load_tokenizer(name: str | Path) -> ModelTokenizer:
    """Load the tokenizer of a model or a backbone, without its weights.

    Raises:
        UserError: there is none, it is damaged, it needs code of its own, or it has no words.
    """
    model = find_folder(str(name))
    folder = transformer_folder(model)
    if not any(all(any(folder.glob(name)) for name in names) for names in _VOCABULARIES):
        ways = ", ".join(" with ".join(names) for names in _VOCABULARIES)
        raise UserError(f"{folder} has no tokenizer: none of {ways} is there. {_COPY}")
    for path in (folder / "tokenizer_config.json", folder / "config.json"):
        if path.exists():
            table = read_object(path, {"auto_map": dict[str, object] | None})
            refuse_own_code(path, table.get("auto_map") or {}, ["AutoTokenizer"])
    with explain_failure(f"The tokenizer in {folder} cannot be loaded"):
        inner = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        tokenizer = ModelTokenizer(inner, lowercases(model))
        if tokenizer.lowercases:
            lowercase(inner.backend_tokenizer)
        special = {str(token) for token in inner.added_tokens_decoder.values() if token.special}
        words = inner.get_vocab().keys() - special - set(inner.all_special_tokens)
        tokenizer(["a"], _PROBE)
    if not any(char.isalnum() for word in words for char in word):
        raise UserError(
            f"The tokenizer in {folder} knows special tokens alone, so that all texts would be the "
            f"same to it; its vocabulary is missing. {_COPY}"
        )
    size = read_config(model).vocab_size
    return replace(tokenizer, beyond=frozenset(n for n in inner.get_vocab().values() if n >= size))


def check_vocabulary(name: str | Path) -> None:
    """Check that the tokenizer of a model gives ids that its encoder has an embedding of.

    Raises:
        UserError: it does not, or cannot be loaded.
    """
    folder = find_folder(str(name))
    _refuse_other_vocabulary(load_tokenizer(folder), read_config(folder), folder)


def _quieten_transformers() -> None:
    """Switch off the progress bar and the load report of transformers; `load` checks the report."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers does not annotate it
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # nor this


def _refuse_other_vocabulary(
    tokenizer: ModelTokenizer, config: PretrainedConfig, folder: Path
) -> None:
    """Refuse a tokenizer that gives ids without an embedding, other than added tokens."""
    inner = tokenizer.inner
    ids = [*inner.get_vocab().values()]
    known = [i for i in ids if i not in inner.added_tokens_decoder] + [tokenizer.pad_id]
    if max(known) >= config.vocab_size:
        raise UserError(
            f"The tokenizer in {folder} gives ids up to {max(known)}, and config.json says that "
            f"{config.vocab_size} have an embedding; one of them is another model's. {_COPY}"
        )


def _refuse_small_weights(folder: Path, config: PretrainedConfig) -> None:
    """Refuse weights far smaller than the encoder of config.json, before memory is taken for it.

    Where only some weights are missing, transformers says which.
    """
    held, tensors = 0, 0
    others = {folder / name for name in (HEADS, EXITS, STATIC)}
    for path in set(transformer_folder(folder).glob("*.safetensors")) - others:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # no dict: it has keys, and cannot be iterated
                held, tensors = held + prod(file.get_slice(name).get_shape()), tensors + 1
    promised = config.num_hidden_layers  # each layer has a tensor, and more than one number
    if promised <= tensors:
        with torch.device("meta"):
            empty = backbone_of(config).build(config)
        promised = sum(parameter.numel() for parameter in empty.parameters())
    if promised > _MOST_TIMES * held or config.num_hidden_layers > tensors:
        raise UserError(
            f"The weights in {folder} hold {tensors} tensors of {held:,} numbers, and config.json "
            f"promises {config.num_hidden_layers} layers, {promised:,} numbers and more; it is "
            "another model's, or damaged."
        )


def ends_fitted(name: str | Path) -> bool:
    """Return whether the last layer of a model has a fitted exit, as in an exported cut.

    Raises:
        UserError: no such model, or its exits are missing or damaged.
    """
    card = read_card(name)
    fitted = card.exit_head == "fitted" and card.layers > 0
    return card.exit_head == "table" or fitted and has_exit(find_folder(str(name)), card.layers)


def refuse_ended(name: str | Path, corpus: str = "") -> None:
    """Refuse exits of an index for a model whose last layer has a fitted exit.

    Args:
        name: folder or id of the model.
        corpus: of the index, for the command in the message.

    Raises:
        UserError: it has one.
    """
    if ends_fitted(name):
        own = command("search", "a query", corpus=corpus, model=name, exits="model")
        raise UserError(
            f"Exits of an index were asked for, and the last layer of {name} ends in a fitted exit "
            f"of its own, which they would replace. Search with its own: {own}"
        )


def save(
    encoder: Encoder,
    tokenizer: ModelTokenizer,
    card: ModelCard,
    folder: Path,
    record: ExportRecord | None = None,
) -> ModelCard:
    """Write a model folder: into a folder inside it first, and the card last, when it is complete.

    Args:
        encoder: of the model.
        tokenizer: of the model.
        card: of the model.
        folder: to write.
        record: of an exported cut, whose vectors other tools give cut and normalised.

    Returns:
        The card, with the fingerprint of the files that were written, and the kind of exit heads
        that the encoder has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with folder_aside(folder) as aside:
        card = _write_aside(encoder, tokenizer, card, aside, record)
    (folder / CARD).unlink(missing_ok=True)
    _remove_earlier(folder)
    readable = (aside / CARD).stat().st_mode  # safetensors lets only the owner read its files
    for path in sorted(aside.iterdir(), key=lambda path: path.name == CARD):
        if path.is_file():
            path.chmod(readable)
        target = folder / path.name
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        path.replace(target)
    aside.rmdir()
    return card


def _write_aside(
    encoder: Encoder,
    tokenizer: ModelTokenizer,
    card: ModelCard,
    aside: Path,
    record: ExportRecord | None,
) -> ModelCard:
    _write_transformer(encoder.transformer, card, aside)
    write_heads(encoder, aside)
    save_tokenizer(tokenizer, aside)
    _write_exit(encoder, tokenizer, card, aside, record is not None)
    card = replace(card, exit_head=_exit_head(encoder))
    card = card.with_fingerprint(fingerprint(aside, card))
    settings = read_training_settings(aside.parent / RECORD)
    if record is not None:
        write_record(aside / EXPORTED_FILE, record)
    write_readme(card, aside, settings, export=record)
    write_card_file(card, aside / CARD)
    return card


def _write_exit(
    encoder: Encoder, tokenizer: ModelTokenizer, card: ModelCard, aside: Path, alone: bool
) -> None:
    """Write fitted exits, and the modules that sentence-transformers runs behind the encoder.

    It has none for a fitted exit that is not folded.
    """
    fitted, lowercases = encoder.fitted, tokenizer.lowercases
    if isinstance(fitted, FoldedExit):
        write_standalone_files(card, aside, write_table(fitted, aside), lowercases)
    elif fitted is None and alone:
        listed = write_modules(encoder.behind, aside, FIRST)
        write_standalone_files(card, aside, listed, lowercases)
    else:
        if fitted is not None:
            write_exits(fitted, aside)
        if not encoder.ends_fitted:
            head, behind = last_head(encoder), encoder.behind
            write_sentence_transformers_files(card, aside, head, behind, lowercases)


def _exit_head(encoder: Encoder) -> ModelExit:
    if isinstance(encoder.fitted, FoldedExit):
        return "table"
    if encoder.fitted is not None:
        return "fitted"
    return "linear" if encoder.exit_heads else "none"


def save_tokenizer(tokenizer: ModelTokenizer, folder: Path) -> None:
    """Write a tokenizer without the truncation that the last call has set."""
    backend = getattr(tokenizer.inner, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    tokenizer.inner.save_pretrained(folder)


def _write_transformer(transformer: PreTrainedModel, card: ModelCard, folder: Path) -> None:
    """Write config and weights, with a pooler where transformers' own class has one.

    config.json names the dims that servers of embeddings may cut vectors of the full model to.

    The pooler is an identity before its tanh, and nothing here uses it; without one, transformers
    and sentence-transformers would report missing weights and initialise them at random.
    """
    state = transformer.state_dict()
    if backbone_of(transformer.config).pooler:
        width, like = transformer.config.hidden_size, next(iter(state.values()))
        state["pooler.dense.weight"] = torch.eye(width, dtype=like.dtype)
        state["pooler.dense.bias"] = torch.zeros(width, dtype=like.dtype)
    dims = card.served_dims
    for name, value in zip(MATRYOSHKA, (True, list(dims)), strict=True):
        if dims:
            setattr(transformer.config, name, value)
        elif hasattr(transformer.config, name):  # the backbone's own
            delattr(transformer.config, name)
    transformer.save_pretrained(folder, state_dict=state)


def _remove_earlier(folder: Path) -> None:
    """Remove files of an earlier model that the new one may not have."""
    for pattern in ("*.safetensors", WEIGHTS_INDEX, EXPORTED_FILE, *TOKENIZERS):
        for path in folder.glob(pattern):
            path.unlink()
    for path in folder.glob("[0-9]*_*"):
        if path.name.partition("_")[2] in (*RUN, *TABLE_CHAIN):
            shutil.rmtree(path, ignore_errors=True)


def export_cut(model: str | Path, layer: int, folder: Path) -> ModelCard:
    """Write the first `layer` layers of a model as a model of their own, which other tools open.

    A prefix of the dims needs no export: it is cut from the vectors.

    Raises:
        UserError: the model has fewer layers, needs the others for its documents, or `folder`
            holds something or is being written to.
    """
    with locked_for_export(folder):
        return _export(model, layer, folder)


def _export(model: str | Path, layer: int, folder: Path) -> ModelCard:
    card = read_card(model)
    if card.documents == "last" and layer < card.layers:
        raise UserError(
            f"Documents of {model} come from layer {card.layers}, so its first {layer} layers "
            f"cannot encode any. Keep the model, and search with --query-layer {layer}."
        )
    encoder, tokenizer = load(model, layer)
    cuts = tuple(cut for cut in card.cuts if cut.layer <= layer)
    exported = replace(card, layers=layer, cuts=cuts, exported_from=card.fingerprint)
    return save(encoder, tokenizer, exported, folder)
