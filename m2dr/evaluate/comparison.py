"""Every cut of a model against a baseline: which cells are better, and how sure that is."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from m2dr.errors import counted
from m2dr.evaluate.grid import shown
from m2dr.evaluate.significance import BETTER, SAME, WORSE, Paired
from m2dr.io import write_text
from m2dr.records.cut import Cut

FORMAT = 1  # raise it when today's reader would misread yesterday's file


@dataclass(frozen=True)
class Comparison:
    """One measure of each cut of a model, beside what a baseline has there."""

    model: str
    place: str  # corpus and split, such as "pydocs test"
    measure: str
    queries: int
    baseline: str  # its name, such as "plain", "plain at L6D384" or "bm25.trec"
    against: str  # what each cell is compared with: "the same cut of plain", "plain at L6D384"
    alpha: float  # the level that cells are marked at
    values: Mapping[Cut, float]  # of the model, every cut
    cells: Mapping[Cut, Paired]  # those that the baseline has too
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
        """How the table marks a cell; empty for one that the baseline has not."""
        return self.cells[cut].mark(self.alpha) if cut in self.cells else ""

    def counts(self) -> tuple[int, int, int]:
        """How many cells are better, not significantly different, and worse."""
        marks = [self.mark(cut) for cut in self.cells]
        return marks.count(BETTER), marks.count(SAME), marks.count(WORSE)


def comparison_table(comparison: Comparison) -> str:
    """The values with their marks, the rule of the marks, and the differences under them."""
    better, same, worse = comparison.counts()
    title = (
        f"{comparison.model} against {comparison.against}: {comparison.measure} on "
        f"{comparison.place}, {counted(comparison.queries, 'queries')}"
    )
    values = {
        cut: shown(value) + (comparison.mark(cut) or " ")
        for cut, value in comparison.values.items()
    }
    differences = {cut: _signed(one.difference) for cut, one in comparison.cells.items()}
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
    """What the marks of a table mean, in one line."""
    level = f"{comparison.alpha:g}".removeprefix("0")
    return (
        f"{BETTER} better, {WORSE} worse, {SAME} not significantly different from "
        f"{comparison.against}: paired randomisation test over "
        f"{counted(comparison.queries, 'queries')}, "
        f"two-sided, p <= {level} after Holm's correction over "
        f"{counted(len(comparison.cells), 'cells')}"
    )


def write_comparison(comparison: Comparison, path: Path) -> tuple[Path, Path]:
    """Write `path`.json and `path`.csv, with all that is known of each cell and all the digits."""
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
    rest = {"format": FORMAT, **head, "cells": rows}
    text = json.dumps(rest, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    table = io.StringIO()
    writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    paths = path.with_name(f"{path.name}.json"), path.with_name(f"{path.name}.csv")
    write_text(paths[0], text)
    write_text(paths[1], table.getvalue())
    return paths


def _grid_lines(comparison: Comparison, cells: Mapping[Cut, str], hang: str) -> list[str]:
    """Layers down, dims across; `hang` stands where the marks of other rows hang over."""
    rows = [["layer", *(f"{dim}{hang}" for dim in comparison.dims)]]
    for layer in comparison.layers:
        found = [cells.get(Cut(layer, dim), f"-{hang}") for dim in comparison.dims]
        rows.append([str(layer), *found])
    return _aligned(rows)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _signed(value: float) -> str:
    """A difference with its sign, four decimals and no leading zero.

    >>> _signed(0.0123), _signed(-0.5), _signed(0.00001)
    ('+.0123', '-.5000', '.0000')
    """
    if abs(value) < 0.00005:
        return ".0000"
    return ("+" if value > 0 else "") + shown(value)
