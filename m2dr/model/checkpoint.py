"""Load, save and export models: Hugging Face folders with a card, which other tools open too."""

import shutil
from dataclasses import replace
from math import prod
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedModel
from transformers.utils import logging

from m2dr.core.errors import UserError, command, counted
from m2dr.core.files import explain_failure, read_object, write_record
from m2dr.core.records import EXPORTED_FILE, ExportRecord, ModelCard, ModelExit
from m2dr.model.backbones import backbone_of, cut_config, read_config, refuse_own_code
from m2dr.model.card import read_training_settings, write_readme
from m2dr.model.encoder import Encoder
from m2dr.model.exits import (
    has_exit,
    last_head,
    load_exits,
    load_heads,
    write_exits,
    write_heads,
)
from m2dr.model.folded_exit import FoldedExit, read_table, write_table
from m2dr.model.folder import (
    TOKENIZERS,
    check_exits,
    fingerprint,
    fit_again,
    folder_aside,
    locked_for_export,
    read_card,
    write_card_file,
)
from m2dr.model.hub import (
    CARD,
    EXITS,
    HEADS,
    MATRYOSHKA,
    RECORD,
    RUN,
    STATIC,
    TABLE_CHAIN,
    TOKENIZER,
    WEIGHTS_INDEX,
    find_folder,
    transformer_folder,
)
from m2dr.model.modules import (
    FIRST,
    modules_behind,
    write_modules,
    write_sentence_transformers_files,
    write_standalone_files,
)
from m2dr.model.sentence_transformers import lowercases
from m2dr.model.tokenizer import ModelTokenizer, lowercase

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
