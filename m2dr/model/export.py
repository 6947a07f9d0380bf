"""A cut becomes a smaller model on its own."""

from dataclasses import replace
from pathlib import Path

from m2dr.errors import UserError
from m2dr.io import contents, locked
from m2dr.model.checkpoint import load, read_card, save
from m2dr.model.places import is_half_written
from m2dr.records.card import ModelCard


def export_cut(model: str | Path, layer: int, folder: Path) -> ModelCard:
    """Write the first `layer` blocks of a model as a model, which any tool opens.

    A prefix needs no export: it is cut from the vectors.

    Raises:
        UserError: the model has fewer blocks, needs the others for its documents, or `folder`
            holds something or is being written to.
    """
    with locked(folder, "give another --out"):
        if contents(folder) and not is_half_written(folder):
            raise UserError(f"{folder} is not empty; choose another --out.")
        return _export(model, layer, folder)


def _export(model: str | Path, layer: int, folder: Path) -> ModelCard:
    card = read_card(model)
    if card.documents == "last" and layer < card.layers:
        raise UserError(
            f"Documents of {model} come from layer {card.layers}, so its first {layer} blocks "
            f"cannot encode any. Keep the model, and search with --query-layer {layer}."
        )
    encoder, tokenizer = load(model, layer)
    cuts = tuple(cut for cut in card.cuts if cut.layer <= layer)
    exported = replace(card, layers=layer, cuts=cuts, exported_from=card.fingerprint)
    return save(encoder, tokenizer, exported, folder)
