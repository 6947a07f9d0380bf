"""What a model folder says of itself, checked against the files beside it, without torch."""

from pathlib import Path

from m2dr.errors import UserError
from m2dr.model.backbones import read_sizes
from m2dr.model.card import CARD, read_card_file
from m2dr.model.fingerprint import fingerprint, hash_weights
from m2dr.model.foreign import embedding_width, foreign_card
from m2dr.model.places import EXITS, HEADS, STATIC, find_folder
from m2dr.records.card import WEIGHTS_ALONE, ModelCard


def read_card(name: str | Path) -> ModelCard:
    """Return what a model folder, a backbone's folder or a hub id says of itself.

    Raises:
        UserError: no such folder or id, a damaged file, or files that are not those that m2dr.json
            was written for.
    """
    folder = find_folder(str(name))
    if (folder / CARD).exists():
        return _own_card(folder)
    card = foreign_card(str(name), folder)
    return card.with_fingerprint(fingerprint(folder, card))


def _own_card(folder: Path) -> ModelCard:
    """The card that m2dr wrote, if the files beside it are those that it was written for."""
    path = folder / CARD
    card = read_card_file(path)
    _refuse_other_config(path, card)
    promised = {"linear": (HEADS,), "fitted": (EXITS, STATIC)}.get(card.exit_head, ())
    for name in promised:
        if not (folder / name).exists():
            raise UserError(
                f"{folder} lacks {name}, and {path.name} says that the model has exit heads; "
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
