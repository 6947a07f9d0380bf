"""Refuse settings that were given and have no effect on the training."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from m2dr.core.errors import UserError
from m2dr.core.trainings import TrainSettings
from m2dr.core.variants import CHOICES

if TYPE_CHECKING:
    from m2dr.tasks.recipe import Kind, Recipe

_SHALLOW = "shallow layers (shallow=true, in a recipe of several cuts)"
_ALIGNED = "cuts that imitate something (align=pca, embedding or score)"
_BELOW = "cuts below the full model"
_SEVERAL = "a recipe that trains several cuts by prefixes and layers, not by a staircase"
_TAUGHT = "distill=margin-mse or kl"
_DOCUMENTS = "a corpus of queries and documents"

# The condition under which each setting has an effect.
COUNTS_WITH = {
    "whole": "a recipe that trains several cuts",
    "shallow": f"{_SEVERAL}, and has prefixes or full_dim=true",
    "prefixes": _SEVERAL,
    "full_dim": f"{_SHALLOW}, and no staircase",
    "staircase": "a recipe that trains several cuts",
    "embeddings": f"{_SHALLOW}, and no layers of its own",
    "draw": "several shallow layers, prefixes or stairs to draw from",
    "documents": _SHALLOW,
    "align": f"{_BELOW}, and with something that they can imitate",
    "teacher": f"align=score and {_BELOW}",
    "squares": _ALIGNED,
    "compress": "align=pca and prefixes",
    "detach": "align=embedding",
    "together": "align=pca or embedding, on a corpus of queries and documents",
    "align_width": "align=embedding",
    "align_temperature": "align=pca or embedding",
    "align_reduction": _ALIGNED,
    "align_by_layer": f"{_ALIGNED} and weights of layers other than 1",
    "weights": _SHALLOW,
    "average": f"several {_BELOW}",
    "share": _BELOW,
    "align_weight": _ALIGNED,
    "sia": "alpha below 1",
    "pic": "alpha below 1",
    "full_checkpoints": "pic=true and alpha below 1",
    "exit_head": _SHALLOW,
    "freeze": "exit_head=fitted or linear",
    "layers": _SHALLOW,
    "faithful": "shallow layers of 2dmse-v1, 2dmse, full-dim, dims, score, fixed-doc and ese, and "
    "with loss=angle on pairs with a score where candidates is left out",
    "loss_weights": "loss=angle",
    "candidates": "loss=angle on pairs with a score",
    "relations_temperature": "sia=true and alpha below 1",
    "chain_temperature": "pic=true and alpha below 1",
    "head_learning_rate": "parts that begin untrained: exit heads, weights=dynamic or sia=true",
    "distill_weight": _TAUGHT,
    "contrastive_weight": _TAUGHT,
    "distill_temperature": _TAUGHT,
    "distill": _DOCUMENTS,
    "negatives": _DOCUMENTS,
    "negative_source": _DOCUMENTS,
    "split": _DOCUMENTS,
    "dev_queries": _DOCUMENTS,
    "dev_documents": _DOCUMENTS,
}
OF_DOCUMENTS = tuple(name for name, needs in COUNTS_WITH.items() if needs == _DOCUMENTS)
# Settings that are checked by comparing the recipe with and without them.
COMPARED = (
    *CHOICES,
    "faithful",
    "loss_weights",
    "candidates",
    "relations_temperature",
    "chain_temperature",
    "distill",
    "distill_weight",
    "contrastive_weight",
    "distill_temperature",
)


def refuse_idle(
    settings: TrainSettings,
    kind: "Kind",
    recipe: "Recipe",
    settle: Callable[[TrainSettings], "Recipe"],
) -> None:
    """Refuse a setting that differs from its default and has no effect.

    Args:
        settings: of the training.
        kind: what the corpus holds.
        recipe: the settings, resolved.
        settle: resolves other settings.

    Raises:
        UserError: there is one; the message says under which condition it has an effect.
    """
    for name in _idle(settings, kind, recipe, settle):
        value = getattr(settings, name)
        shown = list(value) if isinstance(value, tuple) else value
        raise UserError(
            f"{name} = {str(shown).lower() if isinstance(shown, bool) else shown} would change "
            f"nothing in {settings.variant} as it is set: it counts with {COUNTS_WITH[name]}. "
            "Leave it out."
        )


def _idle(
    settings: TrainSettings,
    kind: "Kind",
    recipe: "Recipe",
    settle: Callable[[TrainSettings], "Recipe"],
) -> Iterator[str]:
    if settings.layers and not settings.recipe().alone and not _is_shallow(recipe):
        yield "layers"
    found = effect(recipe)
    for name in given(settings, COMPARED):
        try:
            same = effect(settle(replace(settings, **{name: DEFAULTS[name]}))) == found
        except UserError:
            continue  # without it nothing can be trained, or another setting would not fit
        if same:
            yield name
    begins_untrained = recipe.card.exit_head == "linear" or any(
        True for _ in recipe.objective().parameters()
    )
    if given(settings, ["head_learning_rate"]) and not begins_untrained:
        yield "head_learning_rate"
    if kind != "documents":
        yield from given(settings, OF_DOCUMENTS)


DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(TrainSettings)}


def given(settings: TrainSettings, names: "list[str] | tuple[str, ...]") -> list[str]:
    """Return the settings that differ from both the default and the row of their variant."""
    row = settings.row
    usual = {name: getattr(row, name) if name in CHOICES else DEFAULTS[name] for name in names}
    return [name for name in names if getattr(settings, name) not in (DEFAULTS[name], usual[name])]


def effect(recipe: "Recipe") -> tuple[object, ...]:
    """Return all that the settings of `COMPARED` can change in a training or its model."""
    setting, variant = recipe.setting, recipe.variant
    terms = [term for chosen in recipe.choices for term in chosen.terms]
    kinds = {term.kind for term in terms}
    vectors = {kind.split()[0] for kind in kinds - {"retrieve", "distill", "align scores"}}
    shallow = _is_shallow(recipe)
    extra = 1 - recipe.variant.alpha  # what token relations and the chain count
    sia, pic = recipe.variant.sia and extra > 0, recipe.variant.pic and extra > 0
    trained = {term.cut.layer for term in terms}
    return (
        tuple(step.terms for step in recipe.choices),
        recipe.card.documents if shallow or pic else "",  # the chain reads documents, or not
        recipe.card.exit_head,
        recipe.variant.freeze,
        setting.loss,
        setting.loss_weights if setting.loss == "angle" else (),
        variant.squares if kinds - {"retrieve", "distill"} else None,
        (setting.distill, setting.distill_temperature) if "distill" in kinds else (),
        variant.compress if "align" in vectors else "",
        variant.detach if "imitate" in vectors else None,
        variant.align_temperature if vectors else None,
        variant.align_reduction if kinds - {"retrieve", "distill"} else None,
        setting.candidates if setting.loss == "angle" and recipe.scored else "",
        tuple(layer for layer in setting.learned if layer in trained),
        (recipe.related, setting.relations_temperature, [c.layer for c in recipe.path])
        if sia
        else (),
        (recipe.path, setting.chain_temperature) if pic else (),
        extra if sia or pic else None,
    )


def _is_shallow(recipe: "Recipe") -> bool:
    """Return whether a step trains a layer below the last."""
    last = recipe.full.layer
    return any(term.cut.layer < last for step in recipe.choices for term in step.terms)
