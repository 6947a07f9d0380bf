"""Encoder to folder and back: a Hugging Face folder with a card, which other tools open too."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging

from m2dr.errors import UserError
from m2dr.jsontext import load_json
from m2dr.model.backbones import backbone_of, cut_config, read_config
from m2dr.model.encoder import Encoder
from m2dr.model.foreign import DENSE, foreign_card, write_sentence_transformers_files
from m2dr.model.heads import HEADS, last_head, load_heads, write_heads
from m2dr.model.places import ASIDE, CARD, find_folder, hash_weights
from m2dr.records.card import FORMAT, ModelCard
from m2dr.records.cut import Cut


@dataclass(frozen=True)
class Tokenizer:
    """Texts to token ids, as the backbone was taught them."""

    inner: PreTrainedTokenizerBase

    @property
    def pad_id(self) -> int:
        """What fills a row up; the mask hides it."""
        return int(self.inner.pad_token_id or 0)

    def __call__(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """Ids of each text, special tokens included, none longer than `max_length`."""
        if not texts:
            return []
        out = self.inner(
            list(texts),
            truncation=True,
            max_length=max_length,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        rows: list[list[int]] = out["input_ids"]
        return rows


def read_card(name: str | Path) -> ModelCard:
    """What a model folder, a backbone's folder or a hub id says of itself, without loading it."""
    folder = find_folder(str(name))
    if not (folder / CARD).exists():
        return foreign_card(str(name), folder).with_fingerprint(hash_weights(folder))
    return _read(folder / CARD)


def load(
    name: str | Path,
    layer: int | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> tuple[Encoder, Tokenizer]:
    """Load the first `layer` blocks, or all of them, of a model or a backbone.

    Raises:
        UserError: no such folder or id, weights that are missing or do not fit the
            configuration, fewer blocks than asked for, exit heads that cannot be read.
    """
    _quieten_transformers()
    folder, card = find_folder(str(name)), read_card(name)
    config = read_config(folder)
    if layer is not None:
        config = cut_config(config, layer)
    options = {"add_pooling_layer": False} if backbone_of(config).pooler else {}
    try:
        transformer, report = AutoModel.from_pretrained(
            folder, config=config, dtype=dtype, output_loading_info=True, **options
        )
        tokenizer = load_tokenizer(folder)
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise UserError(
            f"The model in {folder} cannot be loaded: {_first_line(error)}. "
            "Train or download it again."
        ) from error
    if report["missing_keys"]:
        raise UserError(
            f"The weights in {folder} lack {len(report['missing_keys'])} tensors that config.json "
            f"promises, such as {min(report['missing_keys'])}; it is another model's, or damaged."
        )
    encoder = Encoder(transformer, card)
    if card.exit_head == "linear":
        load_heads(encoder, folder)
    return encoder.to(device).eval(), tokenizer


def load_tokenizer(name: str | Path) -> Tokenizer:
    """The tokenizer of a model or a backbone, without its weights."""
    return Tokenizer(AutoTokenizer.from_pretrained(find_folder(str(name))))


def save(encoder: Encoder, tokenizer: Tokenizer, card: ModelCard, folder: Path) -> ModelCard:
    """Write a model folder: aside first, its card last; a folder with a card is a finished one.

    Returns:
        The card, with the fingerprint of the weights that were written, and with the exit heads
        that the encoder really has.
    """
    aside = folder / ASIDE
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    encoder.transformer.save_pretrained(aside)
    write_heads(encoder, aside)
    tokenizer.inner.save_pretrained(aside)
    write_sentence_transformers_files(card, aside, last_head(encoder))
    card = replace(card, exit_head="linear" if encoder.exit_heads else "none")
    card = card.with_fingerprint(hash_weights(aside))
    _write(card, aside / CARD)
    (folder / CARD).unlink(missing_ok=True)
    _remove_weights(folder)
    for path in sorted(aside.iterdir(), key=lambda path: path.name == CARD):
        _replace(path, folder / path.name)
    aside.rmdir()
    return card


def _quieten_transformers() -> None:
    """No bar and no report while loading: what matters of the report is checked here."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # transformers does not annotate it
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # nor this


def _remove_weights(folder: Path) -> None:
    """An earlier model's weights, of which the new one may not have all files."""
    for path in folder.glob("*.safetensors"):
        path.unlink()
    shutil.rmtree(folder / DENSE, ignore_errors=True)


def _replace(source: Path, target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    source.replace(target)


def _write(card: ModelCard, path: Path) -> None:
    table = asdict(card)
    table["cuts"] = [[cut.layer, cut.dim] for cut in card.cuts]
    path.write_text(json.dumps(table, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _read(path: Path) -> ModelCard:
    try:
        table = load_json(path)
        if table["format"] != FORMAT:
            raise UserError(
                f"{path} has format {table['format']}, and this m2dr reads format {FORMAT}; "
                "use the m2dr that wrote it, or train again."
            )
        cuts = tuple(Cut(layer, dim) for layer, dim in table.pop("cuts"))
        card = ModelCard(**table, cuts=cuts)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged ({_first_line(error)}); train the model again."
        ) from error
    if card.exit_head == "linear" and not (path.parent / HEADS).exists():
        raise UserError(
            f"{path.parent} lacks {HEADS}, and {path.name} says that the model has exit heads; "
            "copy the whole folder again."
        )
    found = hash_weights(path.parent)
    if found != card.fingerprint:
        raise UserError(
            f"The weights in {path.parent} have fingerprint {found[:12]}, and {path.name} says "
            f"{card.fingerprint[:12]}; one of them was changed. Train or copy the model again."
        )
    return card


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
