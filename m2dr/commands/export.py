"""`m2dr export`: write the first layers of a model, or its layer 0, as a model of its own."""

from pathlib import Path

from m2dr.errors import UserError
from m2dr.model.checkpoint import export_cut, load, save
from m2dr.model.folder import locked_for_export, read_card
from m2dr.model.static_formats import FORMATS, StaticFolder, export_static
from m2dr.pipelines.models import newest_model
from m2dr.records.model_card import ModelCard


def export(model: str, layer: int, out: Path) -> ModelCard:
    """Write the smaller model, and return its card."""
    return export_cut(model or newest_model(), layer, out)


def save_model(model: str, layers: int, out: Path) -> ModelCard:
    """Write the first layers of a model, or all of it under the card that it has.

    Raises:
        UserError: there is no such model, or `out` holds something or cannot be written.
    """
    if layers < read_card(model).layers:
        return export_cut(model, layers, out)
    with locked_for_export(out):
        encoder, tokenizer = load(model)
        return save(encoder, tokenizer, encoder.card, out)


def export_table(
    model: str,
    out: Path,
    format_name: str = "",
    dim: int | None = None,
    dtype: str = "",
    exits: Path | None = None,
) -> StaticFolder:
    """Write layer 0 for another tool, and return a description of it.

    Raises:
        UserError: as `export_static` does.
    """
    usual = next(iter(FORMATS))
    named = model or newest_model()
    return export_static(named, out, format_name or usual, dim, dtype or "fp32", exits)


def refuse_of_table(layer: int, **options: object) -> None:
    """Raise UserError when options of layer 0 were given for another layer."""
    given = [f"--{name}" for name, value in options.items() if value]
    if layer and given:
        raise UserError(
            f"{' and '.join(given)} of an export are for layer 0, and layer {layer} was asked for: "
            "its folder opens in sentence-transformers as it is, and a prefix is cut from its "
            "vectors. Leave them out."
        )
