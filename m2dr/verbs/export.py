"""`m2dr export`: the first blocks of a model become a model of their own."""

from pathlib import Path

from m2dr.model.export import export_cut
from m2dr.records.card import ModelCard
from m2dr.verbs.models import newest_model


def export(model: str, layer: int, out: Path) -> ModelCard:
    """Write the smaller model, and return what it says of itself."""
    return export_cut(model or newest_model(), layer, out)
