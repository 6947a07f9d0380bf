"""m2dr.json, what a model folder says of its model: read with types, and written."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from m2dr.errors import UserError
from m2dr.jsontext import MismatchError, decode, read_object
from m2dr.records.card import FORMAT, WEIGHTS_ALONE, ModelCard

CARD = "m2dr.json"
_LARGEST = 2**31  # of any number in a card: what counts layers, dims and tokens stays below


def read_card_file(path: Path) -> ModelCard:
    """Read m2dr.json alone; the files beside it are not looked at.

    Raises:
        UserError: the file is missing, not regular, damaged, of another format, or holds a value
            that no model has.
    """
    remedy = "Train the model again, or copy its whole folder again."
    table = read_object(path, {"format": int, "cuts": list[tuple[int, int]]}, remedy, True)
    if table.get("format") not in (WEIGHTS_ALONE, FORMAT):
        raise UserError(
            f"{path} has format {table.get('format')}, and this m2dr reads format {FORMAT}; "
            "use the m2dr that wrote it, or train again."
        )
    try:
        return _checked(table)
    except (MismatchError, UserError) as error:
        raise UserError(f"{path} is damaged: it {error}. {remedy}") from error


def write_card_file(card: ModelCard, path: Path) -> None:
    """Write m2dr.json."""
    table = asdict(card)
    table["cuts"] = [[cut.layer, cut.dim] for cut in card.cuts]
    path.write_text(json.dumps(table, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _checked(table: dict[str, Any]) -> ModelCard:
    """Turn the object of m2dr.json, whose cuts are pairs, into a card."""
    cuts = table.get("cuts", [])
    if any(layer < 0 or dim < 1 for layer, dim in cuts):
        raise MismatchError(f"has cuts = {cuts}, and a cut has a layer from 0 and a dim from 1")
    if "cuts" in table:
        table["cuts"] = [{"layer": layer, "dim": dim} for layer, dim in cuts]
    card = cast(ModelCard, decode(table, ModelCard, ""))
    numbers = ("layers", "width", "query_length", "document_length", "temperature")
    for name in numbers:
        value = getattr(card, name)
        if not 0 < value < _LARGEST:
            raise MismatchError(f"has {name} = {value}, which no model has")
    for cut in card.cuts:
        if not card.lowest_layer <= cut.layer <= card.layers or cut.dim > card.width:
            raise MismatchError(
                f"has the cut {cut} among its cuts, and the model layers {card.lowest_layer} to "
                f"{card.layers} of {card.width} dims"
            )
    if not re.fullmatch("[0-9a-f]{64}", card.fingerprint):
        raise MismatchError("has a fingerprint that is no sha256")
    return card
