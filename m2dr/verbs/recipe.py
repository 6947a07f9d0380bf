"""Settings and a backbone become the recipe of one training: what is loaded, asked and written."""

from dataclasses import dataclass, replace

from m2dr.errors import UserError
from m2dr.model.backbones import most_tokens, read_config
from m2dr.model.checkpoint import read_card
from m2dr.model.foreign import TEMPERATURE
from m2dr.model.places import find_folder
from m2dr.records.card import ModelCard
from m2dr.records.cut import Cut
from m2dr.records.variant import Variant
from m2dr.settings import TrainSettings
from m2dr.train.objective import Objective, terms
from m2dr.verbs.models import usual_dims

USUAL_PREFIX = 128  # the retrieval paper's k


@dataclass(frozen=True)
class Recipe:
    """A variant meets a backbone."""

    variant: Variant
    card: ModelCard  # of the model to be: no fingerprint yet
    objective: Objective


def recipe_of(settings: TrainSettings) -> Recipe:
    """Settle every number that settings leave to the variant or to the backbone.

    Raises:
        UserError: layers or dims that the backbone does not have or the variant does not use.
    """
    variant, backbone = settings.recipe(), read_card(settings.backbone)
    _refuse_long(settings, backbone)
    layers = _layers(settings, variant, backbone)
    last = layers[0] if variant.alone and layers else backbone.layers
    whole = Cut(last, backbone.width)
    dims = _dims(settings, variant, whole)
    shallow = layers or tuple(range(1, last))
    asked = terms(variant, [layer for layer in shallow if layer < last], dims, whole)
    similarity = settings.similarity or backbone.similarity
    objective = Objective(
        asked,
        whole,
        variant.documents == "last",
        similarity,
        settings.temperature or TEMPERATURE[similarity],
    )
    card = replace(
        backbone,
        backbone=settings.backbone,
        variant=variant.name,
        layers=last,
        cuts=objective.cuts,
        documents=variant.documents,
        pooling=settings.pooling or backbone.pooling,
        similarity=similarity,
        temperature=objective.temperature,
        query_prefix=_or(settings.query_prefix, backbone.query_prefix),
        document_prefix=_or(settings.document_prefix, backbone.document_prefix),
        query_length=settings.query_length,
        document_length=settings.document_length,
        fingerprint="",
    )
    return Recipe(variant, card, objective)


def explain(recipe: Recipe) -> str:
    """The table of terms and weights of one step."""
    asked = recipe.objective.terms
    rows = [("cut", "asked", "weight"), *((str(t.cut), t.kind, f"{t.weight:.4f}") for t in asked)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    last = recipe.objective.documents_from_last
    source = "the last layer" if last else "the query's layer"
    head = [
        f"{recipe.variant.name}: {recipe.variant.summary}",
        f"Whole encoder {recipe.objective.whole}, documents from {source}, "
        f"similarity {recipe.card.similarity}, temperature {recipe.card.temperature:g}.",
    ]
    return "\n".join([*head, *(line.rstrip() for line in lines), f"{len(asked)} terms"])


def _refuse_long(settings: TrainSettings, backbone: ModelCard) -> None:
    longest = most_tokens(read_config(find_folder(settings.backbone)))
    for name in ("query_length", "document_length"):
        if getattr(settings, name) > longest:
            raise UserError(
                f"{name} = {getattr(settings, name)} was asked for; {backbone.backbone} reads "
                f"{longest} tokens at most."
            )


def _layers(settings: TrainSettings, variant: Variant, backbone: ModelCard) -> tuple[int, ...]:
    layers = tuple(sorted(set(settings.layers)))
    for layer in layers:
        backbone.check(Cut(layer, 1))
    if variant.alone and len(layers) > 1:
        raise UserError(
            f"Variant {variant.name} trains one layer alone; layers = {list(layers)} names "
            f"{len(layers)}. Train once per layer."
        )
    if layers and not (variant.shallow or variant.alone):
        raise UserError(
            f"Variant {variant.name} trains no shallow layers, so layers = {list(layers)} would do "
            "nothing. Leave it out, or set shallow=true."
        )
    return layers


def _dims(settings: TrainSettings, variant: Variant, whole: Cut) -> tuple[int, ...]:
    dims = tuple(sorted(set(settings.dims)))
    if dims and dims[-1] > whole.dim:
        raise UserError(f"Dim {dims[-1]} was asked for; this backbone has {whole.dim} coordinates.")
    if dims and variant.prefixes == "none":
        raise UserError(
            f"Variant {variant.name} trains no prefixes, so dims = {list(dims)} would do nothing. "
            "Leave it out, or set prefixes=one."
        )
    if len(dims) > 1 and variant.prefixes == "one":
        raise UserError(
            f"Variant {variant.name} trains one prefix; dims = {list(dims)} names {len(dims)}. "
            "Set prefixes=many for several."
        )
    if variant.alone:
        return dims
    return tuple(dim for dim in dims if dim < whole.dim) or _usual(variant, whole.dim)


def _usual(variant: Variant, width: int) -> tuple[int, ...]:
    """The prefixes of a recipe whose settings name none."""
    below = [dim for dim in usual_dims(width) if dim < width]
    if not below:
        raise UserError(f"A width of {width} has no usual prefix; name one with dims=[…].")
    if variant.prefixes == "many":
        return tuple(below)
    return (max(dim for dim in below if dim <= USUAL_PREFIX),)


def _or(value: str | None, other: str) -> str:
    return other if value is None else value
