"""Published numbers by set, recipe and cut: those of the package and those of published.json."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import fmean

from claims import BELOW, DIMS, SHALLOW, Cell

from m2dr.core.records import Cut
from m2dr.evaluate.comparison import published_sets

TABLES = Path(__file__).with_name("published.json")


@cache
def grids(name: str) -> Mapping[str, Mapping[str, float]]:
    """Recipe -> cut -> value of one set; empty where there is no such set."""
    held = json.loads(TABLES.read_text(encoding="utf-8"))["sets"]
    if name in held:
        return {
            recipe: {str(Cut(layer, dim)): value for layer, dim, value in cells}
            for recipe, cells in held[name]["models"].items()
        }
    sets = published_sets().get(name, ())
    return {one.recipe: {str(cut): value for cut, value in one.cells.items()} for one in sets}


def source(name: str) -> str:
    """Who published a set of published.json, and where."""
    found: str = json.loads(TABLES.read_text(encoding="utf-8"))["sets"][name]["source"]
    return found


def value(name: str, recipe: str, word: str) -> float:
    """A published number, or the mean of those that `shallow` and `below` stand for."""
    cells = grids(name)[recipe]
    if word in cells:
        return cells[word]
    cuts = {cut: Cut.parse(cut) for cut in cells}
    last, width = max(cut.layer for cut in cuts.values()), max(cut.dim for cut in cuts.values())
    dims = {SHALLOW: (width,), BELOW: DIMS}[word]
    return fmean(cells[w] for w, cut in cuts.items() if cut.layer < last and cut.dim in dims)


def cell(model: str, word: str, name: str, recipe: str, small_cut: str = "") -> Cell:
    """A cell of a model with the number that is published for it."""
    return Cell(model, word, round(value(name, recipe, word), 4), small_cut)
