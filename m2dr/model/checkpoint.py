"""Encoder to folder and back: a Hugging Face folder with a card, which other tools open too."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn
from transformers import (
    AutoModel,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from m2dr.errors import UserError, command, counted
from m2dr.io import make_folder, refusing
from m2dr.jsontext import read_object
from m2dr.model.backbones import (
    backbone_of,
    cut_config,
    read_config,
    refuse_own_code,
)
from m2dr.model.card import CARD, write_card_file
from m2dr.model.encoder import Encoder
from m2dr.model.fingerprint import TOKENIZERS, fingerprint
from m2dr.model.folder import read_card
from m2dr.model.foreign import lowercases
from m2dr.model.heads import last_head, load_exits, load_heads, write_exits, write_heads
from m2dr.model.modules import modules_behind, write_sentence_transformers_files
from m2dr.model.places import (
    ASIDE,
    EXITS,
    HEADS,
    RUN,
    STATIC,
    WEIGHTS_INDEX,
    find_folder,
    transformer_folder,
)
from m2dr.model.readme import write_readme
from m2dr.model.tokenizer import BaseTokenizer, lowercase
from m2dr.records.card import ModelCard
from m2dr.records.variant import ExitHead

__all__ = ["Tokenizer", "load", "load_tokenizer", "read_card", "save"]

_AGAIN = "Train or download it again."
_COPY = "Copy the whole folder of the model again."
_VOCABULARIES = (("tokenizer.json",), ("vocab.txt",), ("vocab.json", "merges.txt"), ("*.model",))
_PROBE = 16  # tokens; more than any tokenizer puts around a text
_MOST_TIMES = 4  # what config.json may promise over what the weights hold, to be told by name


@dataclass(frozen=True)
class Tokenizer(BaseTokenizer):
    """Texts to token ids, as the backbone was taught them, by transformers."""

    inner: PreTrainedTokenizerBase
    lowercases: bool = False  # whether texts are put in lower case before all else

    @property
    def pad_id(self) -> int:
        """What fills a row up; the mask hides it."""
        return int(self.inner.pad_token_id or 0)

    def _ids(self, texts: list[str], max_length: int) -> list[list[int]]:
        out = self.inner(
            texts,
            truncation=True,
            max_length=max_length,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        rows: list[list[int]] = out["input_ids"]
        return rows

    @property
    def around(self) -> int:
        """How many special tokens stand around each text."""
        return int(self.inner.num_special_tokens_to_add())

    def _keeps_the_end(self) -> bool:
        return self.inner.truncation_side != "right"

    def ordinary_ids(self) -> list[int]:
        """Return the ids of all tokens but the special ones, increasing."""
        added = self.inner.added_tokens_decoder
        special = {number for number, token in added.items() if token.special}
        special |= set(self.inner.all_special_ids)
        return sorted(set(self.inner.get_vocab().values()) - special)

    def alone(self, ids: Sequence[int]) -> list[list[int]]:
        """Return for each id the row of a text of that token alone, special tokens around it."""
        bare: list[int] = self.inner("a", add_special_tokens=False)["input_ids"]
        around: list[int] = self.inner("a")["input_ids"]
        before = next(
            place
            for place in range(len(around) - len(bare) + 1)
            if around[place : place + len(bare)] == bare
        )
        left, right = around[:before], around[before + len(bare) :]
        return [[*left, number, *right] for number in ids]


def load(
    name: str | Path,
    layer: int | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    exits: Path | None = None,
) -> tuple[Encoder, Tokenizer]:
    """Load the first `layer` blocks, or all of them, of a model or a backbone.

    Args:
        name: folder or id.
        layer: blocks to load; None for all. Layer 0 runs none, and the first one is loaded.
        device: where to.
        dtype: of the weights of the backbone.
        exits: folder of the exits of an index, in place of the model's own.

    Raises:
        UserError: no such folder or id, weights that are missing or do not fit the
            configuration, fewer blocks than asked for, exit heads that cannot be read, no
            tokenizer, or one of another model.
    """
    _quieten_transformers()
    folder, card = find_folder(str(name)), read_card(name)
    config = read_config(folder)
    tokenizer = load_tokenizer(folder)
    _refuse_other_words(tokenizer, config, folder)
    for length in ("query_length", "document_length"):
        tokenizer.require_room(getattr(card, length), f"{folder} has {length}")
    with refusing(f"The model in {folder} cannot be loaded", _AGAIN):
        _refuse_promises(folder, config)
    if layer is not None:
        config = cut_config(config, max(layer, 1))  # layer 0 runs none, and no backbone has none
    options = {"add_pooling_layer": False} if backbone_of(config).pooler else {}
    with refusing(f"The model in {folder} cannot be loaded", _AGAIN):
        transformer, report = AutoModel.from_pretrained(
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
    own = card.exit_head == "fitted"
    if card.exit_head == "linear" or (own and (folder / HEADS).exists()):
        load_heads(encoder, folder)
    if exits is not None:
        load_exits(encoder, exits, f"Fit them again with: {command('index', 'fit', model=name)}")
    elif own:
        load_exits(encoder, folder, _COPY)
    if encoder.fitted is not None and encoder.blocks < card.layers:
        encoder.behind = nn.Sequential()  # of the last layer alone
    return encoder.to(device).eval(), tokenizer


def load_tokenizer(name: str | Path) -> Tokenizer:
    """The tokenizer of a model or a backbone, without its weights.

    Raises:
        UserError: there is none, it is damaged, it needs code of its own, or it knows no words.
    """
    whole = find_folder(str(name))
    folder = transformer_folder(whole)
    if not any(all(any(folder.glob(name)) for name in names) for names in _VOCABULARIES):
        ways = ", ".join(" with ".join(names) for names in _VOCABULARIES)
        raise UserError(
            f"{folder} has no tokenizer: none of {ways} is there. Copy the whole folder of the "
            "model again."
        )
    for path in (folder / "tokenizer_config.json", folder / "config.json"):
        if path.exists():
            table = read_object(path, {"auto_map": dict[str, object] | None}, _AGAIN)
            refuse_own_code(path, table.get("auto_map") or {}, ["AutoTokenizer"])
    with refusing(f"The tokenizer in {folder} cannot be loaded", _AGAIN):
        inner = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        tokenizer = Tokenizer(inner, lowercases(whole))
        if tokenizer.lowercases:
            lowercase(inner.backend_tokenizer)
        special = {str(token) for token in inner.added_tokens_decoder.values() if token.special}
        words = inner.get_vocab().keys() - special - set(inner.all_special_tokens)
        tokenizer(["a"], _PROBE)
    if not any(char.isalnum() for word in words for char in word):
        raise UserError(
            f"The tokenizer in {folder} knows special tokens alone, so that all texts would be one "
            "to it; its vocabulary is missing. Copy the whole folder of the model again."
        )
    return tokenizer


def save(encoder: Encoder, tokenizer: Tokenizer, card: ModelCard, folder: Path) -> ModelCard:
    """Write a model folder: aside first, its card last; a folder with a card is a finished one.

    Returns:
        The card, with the fingerprint of the files that were written, and with the exit heads
        that the encoder really has.
    """
    make_folder(folder)
    aside = folder / ASIDE
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        card = _write_aside(encoder, tokenizer, card, aside)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    (folder / CARD).unlink(missing_ok=True)
    _remove_earlier(folder)
    readable = (aside / CARD).stat().st_mode  # safetensors lets nobody else read what it writes
    for path in sorted(aside.iterdir(), key=lambda path: path.name == CARD):
        if path.is_file():
            path.chmod(readable)
        _replace(path, folder / path.name)
    aside.rmdir()
    return card


def _write_aside(encoder: Encoder, tokenizer: Tokenizer, card: ModelCard, aside: Path) -> ModelCard:
    _write_transformer(encoder.transformer, aside)
    write_heads(encoder, aside)
    if encoder.fitted is not None:
        write_exits(encoder.fitted, aside)
    _save_tokenizer(tokenizer, aside)
    if not encoder.ends_fitted:  # sentence-transformers has no module for what reads tokens
        head, behind = last_head(encoder), encoder.behind
        write_sentence_transformers_files(card, aside, head, behind, tokenizer.lowercases)
    card = replace(card, exit_head=_exit_head(encoder))
    card = card.with_fingerprint(fingerprint(aside, card))
    write_readme(card, aside)
    write_card_file(card, aside / CARD)
    return card


def _exit_head(encoder: Encoder) -> ExitHead:
    if encoder.fitted is not None:
        return "fitted"
    return "linear" if encoder.exit_heads else "none"


def _save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a tokenizer without the length of the last call, which is not its own."""
    backend = getattr(tokenizer.inner, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    tokenizer.inner.save_pretrained(folder)


def _write_transformer(transformer: PreTrainedModel, folder: Path) -> None:
    """Write config and weights, with a pooler where transformers' own class has one.

    The pooler maps the first token's state to its tanh and is in nobody's way; without it,
    transformers and sentence-transformers would report missing weights and draw random ones.
    """
    state = transformer.state_dict()
    if backbone_of(transformer.config).pooler:
        width, like = transformer.config.hidden_size, next(iter(state.values()))
        state["pooler.dense.weight"] = torch.eye(width, dtype=like.dtype)
        state["pooler.dense.bias"] = torch.zeros(width, dtype=like.dtype)
    transformer.save_pretrained(folder, state_dict=state)


def _quieten_transformers() -> None:
    """No bar and no report while loading: what matters of the report is checked here."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers does not annotate it
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # nor this


def _remove_earlier(folder: Path) -> None:
    """Files of an earlier model that the new one may not have."""
    for pattern in ("*.safetensors", WEIGHTS_INDEX, *TOKENIZERS):
        for path in folder.glob(pattern):
            path.unlink()
    for path in folder.glob("[0-9]*_*"):
        if path.name.partition("_")[2] in RUN:
            shutil.rmtree(path, ignore_errors=True)


def _replace(source: Path, target: Path) -> None:
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    source.replace(target)


def _refuse_promises(folder: Path, config: PretrainedConfig) -> None:
    """Refuse a configuration of an encoder far larger than the weights, before room is made.

    Where only some weights are missing, transformers says which.
    """
    held, tensors = 0, 0
    for path in set(transformer_folder(folder).glob("*.safetensors")) - {
        folder / name for name in (HEADS, EXITS, STATIC)
    }:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # no dict: it has keys, and cannot be iterated
                held, tensors = held + prod(file.get_slice(name).get_shape()), tensors + 1
    promised = config.num_hidden_layers  # each layer has a tensor, and more than one number
    if promised <= tensors:
        with torch.device("meta"):
            empty = AutoModel.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]  # transformers does not annotate it
        promised = sum(parameter.numel() for parameter in empty.parameters())
    if promised > _MOST_TIMES * held or config.num_hidden_layers > tensors:
        raise UserError(
            f"The weights in {folder} hold {tensors} tensors of {held:,} numbers, and config.json "
            f"promises {config.num_hidden_layers} layers, {promised:,} numbers and more; it is "
            "another model's, or damaged."
        )


def _refuse_other_words(tokenizer: Tokenizer, config: PretrainedConfig, folder: Path) -> None:
    """Refuse ids that have no embedding; special tokens that no text has may be without one."""
    inner = tokenizer.inner
    ids = [*inner.get_vocab().values()]
    known = [i for i in ids if i not in inner.added_tokens_decoder] + [tokenizer.pad_id]
    if max(known) >= config.vocab_size:
        raise UserError(
            f"The tokenizer in {folder} gives ids up to {max(known)}, and config.json says that "
            f"{config.vocab_size} have an embedding; one of them is another model's. Copy the "
            "whole folder of the model again."
        )
