"""Model folders: open and fingerprint, load and save.

A card is read without torch. Why a fingerprint, and of what: docs/decisions/0011.
"""

import hashlib
import json
import re
import shutil
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m2dr.core.errors import UserError
from m2dr.core.files import (
    explain_failure,
    file_state,
    json_sha256,
    list_folder,
    lock_folder,
    read_json,
    read_record,
    sha256_of,
    write_record,
)
from m2dr.core.progress import say_once
from m2dr.core.records import (
    CARD_FILE,
    EXITS_FILE,
    EXPORTED_FILE,
    GIVEN,
    Encoding,
    ExportRecord,
    IndexExits,
    Label,
    ModelCard,
)
from m2dr.core.variants import ExitHead
from m2dr.model import hub
from m2dr.model.backbones import backbone_of, cut_config, in_newest_form
from m2dr.model.embed import TextEncoder
from m2dr.model.folder import RUN, ModelFolder, card_of_folder

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

    from m2dr.model.encoder import DualEncoder
    from m2dr.model.tokenizer import ModelTokenizer

TOKENIZERS = (hub.TOKENIZER, "tokenizer_config.json", "special_tokens_map.json") + (
    ("added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "*.model")
)
_PROBE = 16  # tokens; no tokenizer puts more around a text

# Fields that change no vector, so that they may differ between two copies of one model.
_IGNORED: dict[str, Collection[str]] = {
    "config.json": frozenset(
        ("_commit_hash", "_name_or_path", "name_or_path", "architectures", "auto_map", "dtype")
        + ("finetuning_task", "id2label", "label2id", "output_attentions", "output_hidden_states")
        + ("problem_type", "return_dict", "task_specific_params", "torch_dtype", "use_cache")
        + ("transformers_version", "add_cross_attention", "attention_dropout", "is_decoder")
        + ("classifier_dropout", "sparse_pred_ignore_index", "sparse_prediction")
    ),
    hub.TOKENIZER: frozenset(("truncation", "padding")),  # each call sets its own
    "tokenizer_config.json": frozenset(
        ("auto_map", "backend", "chat_template", "clean_up_tokenization_spaces", "is_local")
        + ("local_files_only", "max_length", "model_max_length", "name_or_path")
        + ("pad_to_multiple_of", "pad_token_type_id", "padding_side", "processor_class")
        + ("special_tokens_map_file", "stride", "tokenizer_file", "transformers_version")
        + ("truncation_strategy",)
    ),
    # Compared by the index's label.
    **dict.fromkeys(hub.TRANSFORMER_SETTINGS, frozenset(("max_seq_length",))),
}

_loading = threading.Lock()  # of a backbone
_File = tuple[Path, *tuple[int, ...]]  # path and `file_state`


# Open


@dataclass(frozen=True)
class Model:
    """A model that was found, and whose card was read and whose files were checked, once.

    It is passed in place of its name, so that all that is made of it is made of the same files. It
    can be pickled; no weights are loaded.

    Attributes:
        name: folder or id as given; records have it.
        found: its folder; of imported vectors, theirs.
        card: with the lengths of texts that were asked for.
        own_lengths: of queries and documents, where others were asked for.
    """

    name: str
    found: ModelFolder = field(compare=False)
    card: ModelCard
    own_lengths: tuple[int, int] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.name

    @property
    def files(self) -> ModelFolder:
        """Its folder, whose files are those that it was opened with.

        Raises:
            UserError: one was changed since, or there are only imported vectors.
        """
        if self.card.variant == GIVEN:
            none = "has vectors and no model; take layer 0 or --query-vectors"
            raise UserError(f"{self.found.path} {none}.")
        if fingerprint(ModelFolder.read(self.found.path), self.card) != self.card.fingerprint:
            place = self.found.path
            raise UserError(f"Files in {place} are not those that {self} was opened with.")
        return self.found

    @property
    def folder(self) -> Path:
        """The path of `files`."""
        return self.files.path

    @property
    def last_layer_has_exit(self) -> bool:
        """Whether its last layer has a fitted exit, as in an exported cut."""
        from m2dr.model.exits import has_exit

        fitted = self.card.exit_head == "fitted" and self.card.layers > 0
        return fitted and has_exit(self.folder, self.card.layers)

    def with_lengths(
        self, query_length: int | None = None, document_length: int | None = None
    ) -> "Model":
        """Return the model with texts of other lengths; None leaves one as it is.

        Imported vectors keep theirs.

        Raises:
            UserError: the model does not read such a length.
        """
        lengths = {"query_length": query_length, "document_length": document_length}
        told: dict[str, Any] = {side: n for side, n in lengths.items() if n is not None}
        if not told or self.card.variant == GIVEN:
            return self
        longest = self.found.sizes.tokens
        for side, length in told.items():
            if not 1 <= length <= longest:
                raise UserError(f"{side} = {length} was asked for; {self} reads 1 to {longest}.")
        own = self.own_lengths or (self.card.query_length, self.card.document_length)
        return replace(self, card=replace(self.card, **told), own_lengths=own)

    def label(self, source: str = "") -> Label:
        """Return what stores keep of the vectors of this model.

        Args:
            source: the corpus, as given to m2dr.
        """
        own = vars(self.card.encoding)
        return Label(**own, cuts=self.card.cuts, model=self.name, source=source)

    def with_lengths_of(self, other: Encoding) -> "Model":
        """Return the model with the lengths of texts of an index."""
        return self.with_lengths(other.query_length, other.document_length)

    def on_this_machine(self) -> "Model":
        """Return the model, which was opened on another machine, as it lies on this one."""
        return replace(self, found=ModelFolder.read(hub.find_folder(self.name)))


def open_model(
    name: str | Path,
    query_length: int | None = None,
    document_length: int | None = None,
    revision: str = "",
) -> Model:
    """Find a model, read its card and check its files, without loading weights.

    Args:
        name: folder of a model or a backbone, or hub id; or the folder of an index whose vectors
            somebody else made.
        query_length: tokens of a query, in place of those of the model.
        document_length: tokens of a document, likewise.
        revision: branch, tag or commit of an id; its main branch by default.

    Raises:
        UserError: no such folder or id, a damaged file, files that are not those that m2dr.json
            was written for, or a length that the model does not read.
    """
    if (Path(name) / CARD_FILE).exists():
        card = read_record(Path(name) / CARD_FILE, ModelCard)
        return Model(str(name), ModelFolder(Path(name)), card)
    folder = ModelFolder.read(hub.find_folder(str(name), revision))
    model = Model(str(name), folder, _card_of(folder, str(name)))
    return model.with_lengths(query_length, document_length)


def read_card(name: str | Path) -> ModelCard:
    """Return the card of a model, as `open_model` reads it."""
    return open_model(name).card


def _card_of(folder: ModelFolder, name: str) -> ModelCard:
    path = folder.path / hub.CARD
    if not path.exists():
        card = card_of_folder(name, folder, hub.revision_of(folder.path))
        return replace(card, fingerprint=fingerprint(folder, card))
    card, sizes = read_card_file(path), folder.sizes
    here = sizes.layers, folder.width(card.pooling)
    if card.exit_head == "fitted" and card.exported_from:  # a cut; loading checks its exit
        here = sizes.layers, card.width
    if (card.layers, card.width) != here:
        raise UserError(f"{path} says {card.layers} and {card.width}, and its files {here}.")
    longest = max(card.query_length, card.document_length)
    if longest > sizes.tokens:
        raise UserError(f"{path} has texts of {longest} tokens; its encoder reads {sizes.tokens}.")
    for file in {"linear": (hub.HEADS,), "fitted": (hub.EXITS, hub.WORDS)}.get(card.exit_head, ()):
        if not (folder.path / file).exists():
            raise UserError(
                f"{folder.path} lacks {file}, and {hub.CARD} says that the model has it."
            )
    if fingerprint(folder, card) != card.fingerprint:
        place = folder.path
        raise UserError(f"Files in {place} were changed: {hub.CARD} has another fingerprint.")
    return card


def read_card_file(path: Path) -> ModelCard:
    """Read m2dr.json alone, without checking the files beside it.

    Raises:
        UserError: the file is missing, damaged, of another format, or holds a value that no model
            has.
    """
    card = read_record(path, ModelCard, sealed=False)
    sizes = (card.layers, card.width, card.query_length, card.document_length, card.temperature)
    layers = range(card.lowest_layer, card.layers + 1)
    if min(sizes) <= 0 or any(c.layer not in layers or c.dim > card.width for c in card.cuts):
        raise UserError(f"{path} holds sizes or cuts that no model has.")
    return card


def read_exported(folder: Path) -> ExportRecord | None:
    """Return the record of an exported cut; None in the folder of any other model."""
    path = folder / EXPORTED_FILE
    return read_record(path, ExportRecord) if path.exists() else None


def fingerprint(folder: ModelFolder, card: ModelCard) -> str:
    """Return the sha256 of all that decides the vectors of a model folder, in hex.

    That is its weights, config.json, the files of its tokenizer, the modules behind its pooling,
    its attention and its kind of exit heads. Order and white space of JSON, the version of
    transformers that saved config.json, and fields that change no vector do not matter: in a folder
    of m2dr neither do the dims that config.json says vectors may be cut to. Pooling, prefixes,
    lengths and similarity are compared by name, in an index's label.

    Args:
        folder: of the model.
        card: of the model; its own fingerprint is ignored.

    Raises:
        UserError: a file cannot be read, or is not JSON.
    """
    place, inner = folder.path.resolve(), folder.inner.resolve()
    behind = folder.behind(card.similarity)
    wanted = [(inner, name) for name in ("config.json", *TOKENIZERS, *hub.TRANSFORMER_SETTINGS)]
    wanted += [(place / row.path, name) for row in behind for name in ("config.json", hub.WEIGHTS)]
    files = [file for where, name in wanted for file in _files(where, name)]
    is_ours = (place / hub.CARD).exists()
    with ThreadPoolExecutor(1) as pool:  # hashing releases Python's lock, and JSON does not
        weights = pool.submit(_hash, *_files(inner, "*.safetensors"))
        names = [file[0].relative_to(place).as_posix() for file in files]
        parts = [*zip(names, (_hash_one(file, is_ours) for file in files), strict=True)]
    head = [weights.result(), card.attention, card.exit_head, [row.kind for row in behind]]
    digest = hashlib.sha256(json.dumps(head).encode())
    for name, part in parts:
        digest.update(f"\n{name} {part}".encode())
    return digest.hexdigest()


def _files(folder: Path, pattern: str) -> Iterator[_File]:
    for path in sorted(folder.glob(pattern)):
        yield path, *file_state(path)


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
def _hash_one(file: _File, is_ours: bool) -> str:
    """Hash a file; of JSON, the content without its layout and without ignored fields."""
    path = file[0]
    if path.suffix != ".json":
        return _hash(file)
    table = read_json(path)
    if isinstance(table, dict):
        table = in_newest_form(table) if path.name == "config.json" else table
        ignored = {*_IGNORED.get(path.name, ()), *(hub.MATRYOSHKA if is_ours else ())}
        table = {name: value for name, value in table.items() if name not in ignored}
    return json_sha256(table)


# Exits of an index


def check_exits(folder: Path, fingerprint: str, *names: str) -> None:
    """Refuse exits of an index that are another model's, or not the files of their record.

    Args:
        folder: of the exits.
        fingerprint: of the model that is to have them.
        names: of the files that will be read.

    Raises:
        UserError: the record, or a file, is missing, damaged, or of other exits.
    """
    record = read_record(folder / EXITS_FILE, IndexExits)
    if record.fingerprint != fingerprint:
        other = record.fingerprint[:12]
        raise UserError(f"The exits in {folder} are of model {other}, not {fingerprint[:12]}.")
    digests = dict(record.files)
    for path in (folder / name for name in names):
        if not path.is_file() or sha256_of(path) != digests.get(path.name):
            raise UserError(f"{path} is missing or not the file that was written; fit it again.")


def refuse_ended(model: Model) -> None:
    """Raise UserError for exits of an index where the last layer of a model has one of its own."""
    if model.last_layer_has_exit:
        raise UserError(f"The last layer of {model} has an exit of its own; take --exits model.")


# Load


def load(
    model: Model | str | Path,
    layer: int | None = None,
    device: "torch.device | str" = "cpu",
    dtype: "torch.dtype | str" = "fp32",
    exits: Path | None = None,
) -> "TextEncoder[DualEncoder]":
    """Load the first layers, or all of them, of a model or a backbone.

    Args:
        model: that was opened, or its folder or id.
        layer: number of layers; None for all. Layer 0 runs none, and the first one is loaded.
        device: of torch, or as `choose_device` takes it.
        dtype: of the weights of the backbone, of torch or as `choose_dtype` takes it.
        exits: folder of the exits of an index, in place of the model's own.

    Raises:
        UserError: no such model, changed files, weights that are missing or do not fit the
            configuration, fewer layers than asked for, exit heads that cannot be read, no
            tokenizer, or one of another model; exits that were changed or are another model's, or
            a model whose last layer ends in an exit of its own.
    """
    from transformers.utils import logging

    from m2dr.model.devices import choose_device, choose_dtype
    from m2dr.model.encoder import DualEncoder
    from m2dr.model.modules import modules_behind

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers does not annotate it
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # nor this
    device = choose_device(str(device))
    dtype = choose_dtype(dtype, device) if isinstance(dtype, str) else dtype
    model = model if isinstance(model, Model) else open_model(model)
    files, card = model.files, model.card
    folder = files.path
    if not any((folder / file).exists() for file in (hub.CARD, hub.MODULES, "1_Pooling")):
        taken = f"without other settings they are {card.pooling} and {card.similarity}"
        say_once(f"{model.name} names no pooling and no similarity; {taken}.")
    if exits is not None:
        refuse_ended(model)
        check_exits(exits, card.fingerprint, hub.EXITS, hub.WORDS)
    config = files.config()
    tokenizer = load_tokenizer(files)
    for length in ("query_length", "document_length"):
        tokenizer.require_room(getattr(card, length), f"{model} has {length}")
    if layer is not None:
        config = cut_config(config, max(layer, 1))  # a backbone has at least one
    encoder = DualEncoder(_load_transformer(files.inner, config, dtype), card)
    encoder.behind = modules_behind(files, card)
    _give_exits(encoder, folder, exits)
    return TextEncoder(encoder.to(device).eval(), tokenizer)


def _load_transformer(
    folder: Path, config: "PretrainedConfig", dtype: "torch.dtype"
) -> "PreTrainedModel":
    """Load the backbone of a folder.

    transformers changes classes of its own while it loads, and the default dtype of torch, which
    T5 and others compute with: one thread loads at a time, and the default stays what it is.
    """
    import torch

    from m2dr.model.devices import MadeIn

    row = backbone_of(config)
    options = {"add_pooling_layer": False} if row.pooler else {}
    failure = explain_failure(f"The model in {folder} cannot be loaded")
    with failure, _loading, MadeIn(dtype):
        transformer, report = row.model_class.from_pretrained(
            folder,
            config=config,
            dtype=torch.get_default_dtype(),
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=True,
            **options,
        )
    if report["missing_keys"]:
        raise UserError(f"The weights in {folder} lack {min(report['missing_keys'])} and others.")
    layers = re.compile(rf"(?:^|\.){re.escape(row.layers_path)}\.(\d+)\..*(?<!inv_freq)$")
    for name in sorted(report["unexpected_keys"]):
        found = layers.search(name)
        if found and int(found[1]) < config.num_hidden_layers:
            kind = config.model_type
            raise UserError(f"The weights in {folder} have {name}, which no layer of {kind} takes.")
    loaded: PreTrainedModel = transformer
    return loaded


def _give_exits(encoder: "DualEncoder", folder: Path, exits: Path | None) -> None:
    """Give an encoder the exit heads and the fitted exits of its folder, or those of an index."""
    from torch import nn

    from m2dr.model.exits import read_exits, read_heads

    card, layers, pooled = encoder.card, encoder.layers, encoder.pooled_width
    own = card.exit_head == "fitted"
    if card.exit_head == "linear" or (own and (folder / hub.HEADS).exists()):
        encoder.exit_heads = read_heads(folder, layers, pooled)
    if exits is not None or own:
        encoder.fitted = read_exits(exits or folder, layers, pooled, card.width)
    if encoder.fitted is not None and encoder.layers < card.layers:
        encoder.behind = nn.Sequential()  # it follows the last layer alone


def load_tokenizer(model: ModelFolder) -> "ModelTokenizer":
    """Load the tokenizer of a model or a backbone, without its weights.

    Raises:
        UserError: there is none, it is damaged, of another model, or has no words.
    """
    from transformers import AutoTokenizer

    from m2dr.model.tokenizer import ModelTokenizer, add_ends, lowercase

    folder = model.inner
    with explain_failure(f"The tokenizer in {folder} cannot be loaded"):
        inner = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        add_ends(inner, model.tokenizer)
        tokenizer = ModelTokenizer(inner, bool(model.transformer.get("do_lower_case")))
        if tokenizer.lowercases:
            lowercase(inner.backend_tokenizer)
        special = {str(token) for token in inner.added_tokens_decoder.values() if token.special}
        words = inner.get_vocab().keys() - special - set(inner.all_special_tokens)
        tokenizer(["a"], _PROBE)
    if not any(char.isalnum() for word in words for char in word):
        raise UserError(f"The tokenizer in {folder} has no vocabulary, only special tokens.")
    size = model.config().vocab_size
    beyond = frozenset(number for number in inner.get_vocab().values() if number >= size)
    last = max([tokenizer.pad_id, *(beyond - inner.added_tokens_decoder.keys())])
    if last >= size:
        raise UserError(f"The tokenizer in {folder} gives ids up to {last}; {size} have vectors.")
    return replace(tokenizer, beyond=beyond)


# Save


def save(
    encoder: "DualEncoder",
    tokenizer: "ModelTokenizer",
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
    from m2dr.model import modules as st
    from m2dr.model.card import read_training_settings, write_readme
    from m2dr.model.exits import write_exits, write_heads

    with folder_aside(folder) as aside:
        _write_transformer(encoder.transformer, card, aside)
        write_heads(encoder.exit_heads, aside)
        save_tokenizer(tokenizer, aside)
        if encoder.fitted is not None:
            write_exits(encoder.fitted, aside)
        if encoder.last_layer_has_exit:  # a module of m2dr runs it there, with the words
            st.write_fitted_cut(card, aside)
        else:  # a cut of one layer keeps no place for an exit head
            first = st.FIRST + (record is None)
            st.write_model_files(encoder, card, aside, tokenizer.lowercases, first)
        head: ExitHead = "linear" if encoder.exit_heads else "none"
        if encoder.fitted is not None:
            head = "fitted"
        card = replace(card, exit_head=head)
        write_record(aside / hub.CARD, card, sealed=False)
        card = replace(card, fingerprint=fingerprint(ModelFolder.read(aside), card))
        write_record(aside / hub.CARD, card, sealed=False)
        if record is not None:
            write_record(aside / EXPORTED_FILE, record)
        write_readme(card, aside, read_training_settings(folder / hub.RECORD), export=record)
    (folder / hub.CARD).unlink(missing_ok=True)
    for pattern in ("*.safetensors", hub.WEIGHTS_INDEX, EXPORTED_FILE, *TOKENIZERS):
        for path in folder.glob(pattern):  # of an earlier model
            path.unlink()
    for path in folder.glob("[0-9]*_*"):
        if path.name.partition("_")[2] in RUN:
            shutil.rmtree(path, ignore_errors=True)
    readable = (aside / hub.CARD).stat().st_mode  # safetensors lets only the owner read its files
    for path in sorted(aside.iterdir(), key=lambda path: path.name == hub.CARD):
        if path.is_file():
            path.chmod(readable)
        target = folder / path.name
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        path.replace(target)
    aside.rmdir()
    return card


def save_tokenizer(tokenizer: "ModelTokenizer", folder: Path) -> None:
    """Write a tokenizer without the truncation that the last call has set."""
    backend = getattr(tokenizer.inner, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    tokenizer.inner.save_pretrained(folder)


def _write_transformer(transformer: "PreTrainedModel", card: ModelCard, folder: Path) -> None:
    """Write config and weights, with a pooler where transformers' own class has one.

    config.json names the dims that servers of embeddings may cut vectors of the full model to.

    The pooler is an identity before its tanh, and nothing here uses it; without one, transformers
    and sentence-transformers would report missing weights and initialise them at random.
    """
    import torch

    state = transformer.state_dict()
    if backbone_of(transformer.config).pooler:
        width, like = transformer.config.hidden_size, next(iter(state.values()))
        state["pooler.dense.weight"] = torch.eye(width, dtype=like.dtype)
        state["pooler.dense.bias"] = torch.zeros(width, dtype=like.dtype)
    dims = card.served_dims
    for name, value in zip(hub.MATRYOSHKA, (True, list(dims)), strict=True):
        if dims:
            setattr(transformer.config, name, value)
        elif hasattr(transformer.config, name):  # the backbone's own
            delattr(transformer.config, name)
    transformer.save_pretrained(folder, state_dict=state)


def export_cut(model: Model, layer: int, folder: Path) -> ModelCard:
    """Write the first `layer` layers of a model as a model of their own, which other tools open.

    A prefix of the dims needs no export: it is cut from the vectors.

    Raises:
        UserError: the model has fewer layers, needs the others for its documents, or `folder`
            holds something or is being written to.
    """
    with locked_for_export(folder):
        card = model.card
        if card.documents == "last" and layer < card.layers:
            raise UserError(f"Documents of {model} come from its last layer, {card.layers}.")
        loaded = load(model, layer)
        cuts = tuple(cut for cut in card.cuts if cut.layer <= layer)
        exported = replace(card, layers=layer, cuts=cuts, exported_from=card.fingerprint)
        return save(*loaded, exported, folder)


def adopt(model: str | Path, folder: Path, pooling: str = "", **fields: Any) -> ModelCard:
    """Write a folder that m2dr did not write as a model, with what its files do not say.

    Args:
        model: folder or id, without an m2dr.json.
        folder: to write.
        pooling: of a ModelCard, or cls_avg, the mean of [CLS] and the mean of all tokens (AnglE);
            by default that of the folder.
        fields: others of the card, such as similarity, query_length and exits.

    Raises:
        UserError: the model has an m2dr.json, or modules behind another pooling; the pooling is
            unknown; a length that it does not read; or `folder` holds something.
    """
    import torch

    from m2dr.model.modules import Dense

    opened = open_model(model, fields.get("query_length"), fields.get("document_length"))
    files = opened.files
    if (files.path / hub.CARD).exists():
        raise UserError(f"{model} has an {hub.CARD}, which says what its vectors are.")
    card = replace(opened.card, **fields)
    if pooling and files.behind():
        raise UserError(f"{model} has modules behind its own pooling, {card.pooling}.")
    with locked_for_export(folder):
        loaded = load(opened)
        encoder = loaded.runtime
        if pooling == "cls_avg":
            pooling, half = "cls+mean", torch.eye(card.width) / 2
            encoder.behind = torch.nn.Sequential(Dense.of(torch.cat([half, half], dim=1)))
        encoder.card = replace(card, pooling=pooling or card.pooling)
        return save(*loaded, encoder.card, folder)


@contextmanager
def locked_for_export(folder: Path) -> Iterator[None]:
    """Lock a folder that a model is exported to.

    Raises:
        UserError: it holds something other than an incomplete model, or is being written to.
    """
    with lock_folder(folder):
        if list_folder(folder) and not hub.is_half_written(folder):
            raise UserError(f"{folder} is not empty; choose another --out.")
        yield


@contextmanager
def folder_aside(folder: Path) -> Iterator[Path]:
    """Lend an empty folder inside `folder` for the files of a model; it is removed on an error."""
    aside = folder / hub.ASIDE
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
