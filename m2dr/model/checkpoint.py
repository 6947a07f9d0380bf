"""Encoder to folder and back: a Hugging Face folder with a card, which other tools open too."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import torch
from safetensors import safe_open
from tokenizers import normalizers
from transformers import (
    AutoModel,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from m2dr.errors import UserError, counted
from m2dr.io import make_folder, refusing
from m2dr.jsontext import read_object
from m2dr.model.backbones import (
    backbone_of,
    cut_config,
    most_tokens,
    read_config,
    refuse_own_code,
)
from m2dr.model.card import CARD, read_card_file, write_card_file
from m2dr.model.encoder import Encoder
from m2dr.model.fingerprint import TOKENIZERS, fingerprint, hash_weights
from m2dr.model.foreign import (
    embedding_width,
    foreign_card,
    lowercases,
    modules_behind,
    write_sentence_transformers_files,
)
from m2dr.model.heads import last_head, load_heads, write_heads
from m2dr.model.places import ASIDE, HEADS, RUN, WEIGHTS_INDEX, find_folder, transformer_folder
from m2dr.model.readme import write_readme
from m2dr.records.card import WEIGHTS_ALONE, ModelCard

_AGAIN = "Train or download it again."
_VOCABULARIES = (("tokenizer.json",), ("vocab.txt",), ("vocab.json", "merges.txt"), ("*.model",))
_PROBE = 16  # tokens; more than any tokenizer puts around a text
_MOST_TIMES = 4  # what config.json may promise over what the weights hold, to be told by name

_CHARACTERS = 32  # of a long text are read at first for each token that is kept


@dataclass(frozen=True)
class Tokenizer:
    """Texts to token ids, as the backbone was taught them."""

    inner: PreTrainedTokenizerBase

    @property
    def pad_id(self) -> int:
        """What fills a row up; the mask hides it."""
        return int(self.inner.pad_token_id or 0)

    def __call__(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Return the ids of each text, special tokens included, none longer than `max_length`.

        Of a very long text only a beginning is tokenised, which gives the same ids: 10 MB of text
        take half a minute, and 256 tokens of it need a thousandth of that.

        Raises:
            UserError: that length leaves no room for a word.
        """
        if not texts:
            return []
        self.require_room(max_length, "length")
        return self._ids([self._beginning(text, max_length) for text in texts], max_length)

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

    def _beginning(self, text: str, max_length: int) -> str:
        """Return the text, or so much of a long one that its first `max_length` ids are the same.

        It ends with a word, before white space that every tokenizer takes for the end of one, and
        holds twice as many tokens as are kept: what follows has no say in those so far from it.
        """
        if self.inner.truncation_side != "right":  # the end of a text is kept
            return text
        characters = _CHARACTERS * max_length
        while len(text) > 2 * characters:
            end = max(text.rfind(space, 0, characters) for space in " \n\r\t")
            if end > 0:
                beginning = text[:end].rstrip()
                if len(self._ids([beginning], 2 * max_length)[0]) == 2 * max_length:
                    return beginning
            characters *= 4
        return text

    def require_room(self, length: int, name: str) -> None:
        """Refuse a length that special tokens use up: `tokenizers` then cuts nothing, or all."""
        around = self.inner.num_special_tokens_to_add()
        if length <= around:
            raise UserError(
                f"{name} = {length}, and the tokenizer puts {around} around each text, so that no "
                "word is left of it; ask for more tokens."
            )


def read_card(name: str | Path) -> ModelCard:
    """What a model folder, a backbone's folder or a hub id says of itself, without loading it.

    Raises:
        UserError: no such folder or id, a damaged file, or files that are not those that m2dr.json
            was written for.
    """
    folder = find_folder(str(name))
    if (folder / CARD).exists():
        return _own_card(folder)
    card = foreign_card(str(name), folder)
    return card.with_fingerprint(fingerprint(folder, card))


def load(
    name: str | Path,
    layer: int | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> tuple[Encoder, Tokenizer]:
    """Load the first `layer` blocks, or all of them, of a model or a backbone.

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
        config = cut_config(config, layer)
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
    if card.exit_head == "linear":
        load_heads(encoder, folder)
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
        if lowercases(whole):
            _lowercase(inner)
        tokenizer = Tokenizer(inner)
        special = {str(token) for token in inner.added_tokens_decoder.values() if token.special}
        words = inner.get_vocab().keys() - special - set(inner.all_special_tokens)
        tokenizer(["a"], _PROBE)
    if not any(char.isalnum() for word in words for char in word):
        raise UserError(
            f"The tokenizer in {folder} knows special tokens alone, so that all texts would be one "
            "to it; its vocabulary is missing. Copy the whole folder of the model again."
        )
    return tokenizer


def _lowercase(tokenizer: PreTrainedTokenizerBase) -> None:
    """Let a tokenizer put texts in lower case first, as `do_lower_case` asks for."""
    backend = tokenizer.backend_tokenizer
    first = [normalizers.Lowercase(), *([backend.normalizer] if backend.normalizer else [])]
    backend.normalizer = normalizers.Sequence(first)


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
    for path in sorted(aside.iterdir(), key=lambda path: path.name == CARD):
        _replace(path, folder / path.name)
    aside.rmdir()
    return card


def _write_aside(encoder: Encoder, tokenizer: Tokenizer, card: ModelCard, aside: Path) -> ModelCard:
    _write_transformer(encoder.transformer, aside)
    write_heads(encoder, aside)
    _save_tokenizer(tokenizer, aside)
    write_sentence_transformers_files(card, aside, last_head(encoder), encoder.behind)
    card = replace(card, exit_head="linear" if encoder.exit_heads else "none")
    card = card.with_fingerprint(fingerprint(aside, card))
    write_readme(card, aside)
    write_card_file(card, aside / CARD)
    return card


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


def _own_card(folder: Path) -> ModelCard:
    """The card that m2dr wrote, if the files beside it are those that it was written for."""
    path = folder / CARD
    card = read_card_file(path)
    _refuse_other_config(path, card)
    if card.exit_head == "linear" and not (folder / HEADS).exists():
        raise UserError(
            f"{folder} lacks {HEADS}, and {path.name} says that the model has exit heads; "
            "copy the whole folder again."
        )
    today = fingerprint(folder, card)
    found = hash_weights(folder) if card.format == WEIGHTS_ALONE else today
    if found != card.fingerprint:
        raise UserError(
            f"The files in {folder} have fingerprint {found[:12]}, and {path.name} says "
            f"{card.fingerprint[:12]}: its weights, tokenizer or config.json, or attention or "
            f"exit_head in {path.name}; one of them was changed. Train or copy the model again."
        )
    return card.with_fingerprint(today)


def _refuse_other_config(path: Path, card: ModelCard) -> None:
    """Refuse a card and a config.json that do not describe the same encoder."""
    config = read_config(path.parent)
    pairs = {
        "layers": (card.layers, config.num_hidden_layers),
        "width": (card.width, embedding_width(path.parent, config, card.pooling)),
    }
    for name, (said, found) in pairs.items():
        if said != found:
            raise UserError(
                f"{path} has {name} = {said}, and the files beside it say {found}; one of them was "
                "changed. Train or copy the model again."
            )
    longest = most_tokens(config)
    for name in ("query_length", "document_length"):
        if getattr(card, name) > longest:
            raise UserError(
                f"{path} has {name} = {getattr(card, name)}, and the encoder beside it reads "
                f"{longest} tokens at most. Train or copy the model again."
            )


def _refuse_promises(folder: Path, config: PretrainedConfig) -> None:
    """Refuse a configuration of an encoder far larger than the weights, before room is made.

    Where only some weights are missing, transformers says which.
    """
    held, tensors = 0, 0
    for path in set(transformer_folder(folder).glob("*.safetensors")) - {folder / HEADS}:
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
