"""Compare the cuts of a model with a baseline, and with the scores of published recipes."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.resources import files
from math import isclose, nan
from pathlib import Path
from typing import Any

from m2dr.core.errors import UserError, counted, nearest
from m2dr.core.files import write_json, write_text
from m2dr.core.records import Cut
from m2dr.evaluate.grid import Grid, aligned, format_score, load_results, require_format
from m2dr.evaluate.significance import BETTER, SAME, WORSE, Paired

FORMAT = 1  # of the JSON file; raise it when this reader would misread an older file
# Recipes that are taken of a published set with many, where none are named.
_DEFAULT_RECIPES = ("BERT", "2DMSE", "FULL-DIM")
_FEW = 4  # a set of so many recipes is taken in full


@dataclass(frozen=True)
class Comparison:
    """One measure of each cut of a model, compared with a baseline."""

    model: str
    place: str  # corpus and split, such as "pydocs test"
    measure: str
    queries: int
    baseline: str  # its name, such as "plain", "plain at L6D384" or "bm25.trec"
    against: str  # what a cell is compared with: "the same cut of plain", "plain at L6D384"
    alpha: float  # significance level of the marks
    values: Mapping[Cut, float]  # of every cut of the model
    cells: Mapping[Cut, Paired]  # of the cuts that the baseline has too
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[int, ...]:
        """Every layer of the model's grid, shallow first."""
        return tuple(sorted({cut.layer for cut in self.values}))

    @property
    def dims(self) -> tuple[int, ...]:
        """Every dim of the model's grid, short first."""
        return tuple(sorted({cut.dim for cut in self.values}))

    def mark(self, cut: Cut) -> str:
        """Return the mark of a cell; empty for one that the baseline does not have."""
        return self.cells[cut].mark(self.alpha) if cut in self.cells else ""

    def is_of(self, grid: Grid) -> bool:
        """Return whether the compared values are those of a grid."""
        found = (grid.cells.get(cut, {}).get(self.measure, nan) for cut in self.cells)
        values = (self.values[cut] for cut in self.cells)
        return all(isclose(a, b, abs_tol=1e-9) for a, b in zip(values, found, strict=True))

    def counts(self) -> tuple[int, int, int]:
        """Return how many cells are better, not significantly different, and worse."""
        marks = [self.mark(cut) for cut in self.cells]
        return marks.count(BETTER), marks.count(SAME), marks.count(WORSE)


def comparison_table(comparison: Comparison) -> str:
    """Return tables of the marked values and of the differences, as text."""
    better, same, worse = comparison.counts()
    title = (
        f"{comparison.model} against {comparison.against}: {comparison.measure} on "
        f"{comparison.place}, {counted(comparison.queries, 'queries')}"
    )
    values = {
        cut: format_score(value) + (comparison.mark(cut) or " ")
        for cut, value in comparison.values.items()
    }
    differences = {cut: format_difference(one.difference) for cut, one in comparison.cells.items()}
    return "\n".join(
        [
            title,
            *_grid_lines(comparison, values, " "),
            against_note(comparison),
            f"{better} {BETTER}, {same} {SAME}, {worse} {WORSE}",
            *(f"Note: {note}" for note in comparison.notes),
            "",
            f"Difference of {comparison.measure}",
            *_grid_lines(comparison, differences, ""),
        ]
    )


def against_note(comparison: Comparison) -> str:
    """Return the legend of the marks of a table, in one line."""
    level = f"{comparison.alpha:g}".removeprefix("0")
    return (
        f"{BETTER} better, {WORSE} worse, {SAME} not significantly different from "
        f"{comparison.against}: paired randomisation test over "
        f"{counted(comparison.queries, 'queries')}, "
        f"two-sided, p <= {level} after Holm's correction over "
        f"{counted(len(comparison.cells), 'cells')}"
    )


def write_comparison(comparison: Comparison, path: Path) -> tuple[Path, Path]:
    """Write the statistics of all cells as `path`.json and `path`.csv, in full precision."""
    record = comparison_record(comparison)
    rows = record["cells"]
    table = io.StringIO()
    writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    paths = path.with_name(f"{path.name}.json"), path.with_name(f"{path.name}.csv")
    write_json(paths[0], record, ensure_ascii=False, allow_nan=False)
    write_text(paths[1], table.getvalue())
    return paths


def comparison_record(comparison: Comparison) -> dict[str, Any]:
    """Return what the JSON file holds of a comparison."""
    rows = [
        {
            "layer": cut.layer,
            "dim": cut.dim,
            "value": float(comparison.values[cut]),
            "mark": comparison.mark(cut),
            **asdict(comparison.cells[cut]),
        }
        for cut in sorted(comparison.cells)
    ]
    names = [field.name for field in fields(Comparison) if field.name != "values"]
    head = {name: getattr(comparison, name) for name in names}
    return {"format": FORMAT, **head, "cells": rows}


def read_comparison(path: Path) -> Comparison:
    """Read what `write_comparison` wrote.

    Raises:
        UserError: it is not such a file; with what is wrong.
    """
    return load_results(path, "a comparison", _comparison)


@dataclass(frozen=True)
class Published:
    """The scores of one recipe as published."""

    recipe: str
    measure: str  # as ir_measures writes it
    on: str  # dataset, such as "MS MARCO dev"
    cells: Mapping[Cut, float]
    source: str  # the publication


@cache
def published_sets() -> dict[str, tuple[Published, ...]]:
    """Return the sets of published scores: name -> its recipes, in the order of the source."""
    text = files("m2dr.evaluate").joinpath("published.json").read_text(encoding="utf-8")
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
    """Return the recipes that `asked` names, as SET for its main ones or SET:RECIPE,RECIPE.

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
                f"There are no published scores {name!r}. {nearest(name, published_sets())}"
            )
        held = {one.recipe: one for one in published_sets()[name]}
        if not recipes:
            found += [held[one] for one in held if len(held) <= _FEW or one in _DEFAULT_RECIPES]
        for recipe in filter(None, map(str.strip, recipes.split(","))):
            if recipe not in held:
                raise UserError(
                    f"The published scores {name!r} have no recipe {recipe!r}. "
                    f"{nearest(recipe, held)}"
                )
            found.append(held[recipe])
    return tuple(found)


def format_difference(value: float) -> str:
    """Return a difference with its sign, four decimals and no leading zero.

    >>> format_difference(0.0123), format_difference(-0.5), format_difference(0.00001)
    ('+.0123', '-.5000', '.0000')
    """
    if abs(value) < 0.00005:
        return ".0000"
    return ("+" if value > 0 else "") + format_score(value)


def _grid_lines(comparison: Comparison, cells: Mapping[Cut, str], hang: str) -> list[str]:
    """Return layers as rows and dims as columns; `hang` takes the place of a mark."""
    rows = [["layer", *(f"{dim}{hang}" for dim in comparison.dims)]]
    for layer in comparison.layers:
        found = [cells.get(Cut(layer, dim), f"-{hang}") for dim in comparison.dims]
        rows.append([str(layer), *found])
    return aligned(rows)


def _comparison(data: Any) -> Comparison:  # anything may stand in JSON
    require_format(data, FORMAT)
    rows = {Cut(int(row["layer"]), int(row["dim"])): row for row in data["cells"]}
    names = [field.name for field in fields(Paired)]
    words = {
        field.name: data[field.name]
        for field in fields(Comparison)
        if field.name not in ("values", "cells", "notes")
    }
    return Comparison(
        **words,
        values={cut: float(row["value"]) for cut, row in rows.items()},
        cells={cut: Paired(**{name: row[name] for name in names}) for cut, row in rows.items()},
        notes=tuple(map(str, data["notes"])),
    )
