"""Scores that others printed, kept with the package so that a figure can show them beside ours."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from m2dr.errors import UserError, nearest
from m2dr.records.cut import Cut

# Of many recipes, those that a reader looks for; others are asked for by name.
_USUAL = ("BERT", "2DMSE", "FULL-DIM")
_FEW = 4  # recipes that are all shown


@dataclass(frozen=True)
class Published:
    """The cells of one recipe as its authors report them."""

    recipe: str
    measure: str  # as ir_measures writes it
    on: str  # what it was measured on, such as "MS MARCO dev"
    cells: Mapping[Cut, float]
    source: str  # who reports it, where


@cache
def published_sets() -> dict[str, tuple[Published, ...]]:
    """Name -> every recipe of that set, in the order of its source."""
    text = (files("m2dr") / "data" / "published.json").read_text(encoding="utf-8")
    return {
        name: tuple(
            Published(
                recipe,
                table["measure"],
                table["on"],
                {Cut(layer, dim): value for layer, dim, value in cells},
                table["source"],
            )
            for recipe, cells in table["models"].items()
        )
        for name, table in json.loads(text)["sets"].items()
    }


def published(asked: Sequence[str]) -> tuple[Published, ...]:
    """The recipes that `asked` names, as SET for its usual ones or SET:RECIPE,RECIPE.

    >>> [one.recipe for one in published(["msmarco", "beir13:MSE"])]
    ['BERT', '2DMSE', 'FULL-DIM', 'MSE']

    Raises:
        UserError: there is no such set or recipe.
    """
    found: list[Published] = []
    for word in asked:
        name, _, recipes = word.partition(":")
        if name not in published_sets():
            raise UserError(
                f"No published scores are called {name!r}. {nearest(name, published_sets())}"
            )
        held = {one.recipe: one for one in published_sets()[name]}
        found += [_only(held, recipe, name) for recipe in _recipes(recipes, list(held))]
    return tuple(found)


def _recipes(words: str, held: Sequence[str]) -> list[str]:
    if words:
        return [word.strip() for word in words.split(",")]
    return list(held) if len(held) <= _FEW else [name for name in _USUAL if name in held]


def _only(held: Mapping[str, Published], recipe: str, name: str) -> Published:
    if recipe not in held:
        raise UserError(
            f"The published scores of {name} hold no {recipe!r}. {nearest(recipe, held)}"
        )
    return held[recipe]
