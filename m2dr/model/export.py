"""A cut becomes a smaller model on its own."""

from dataclasses import replace
from pathlib import Path

from m2dr.errors import UserError
from m2dr.model.checkpoint import load, save
from m2dr.records.card import ModelCard


def export_cut(model: str | Path, layer: int, folder: Path) -> ModelCard:
    """Write the first `layer` blocks of a model as a model, which any tool opens.

    A prefix needs no export: it is cut from the vectors.

    Raises:
        UserError: the model has fewer blocks, or `folder` holds something.
    """
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; choose another --out.")
    encoder, tokenizer = load(model, layer)
    card = encoder.card
    cuts = tuple(cut for cut in card.cuts if cut.layer <= layer)
    return save(encoder, tokenizer, replace(card, layers=layer, cuts=cuts), folder)
