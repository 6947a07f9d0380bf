"""Compare the cuts of a model with a baseline."""

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from m2dr.core.errors import counted
from m2dr.core.files import write_text
from m2dr.core.records import F32, Cut
from m2dr.evaluation.grid import aligned, as_json, format_score, write_cells
from m2dr.evaluation.significance import BETTER, SAME, WORSE, Paired


@dataclass(frozen=True)
class Comparison:
    """One measure of each cut of a model, compared with a baseline; `str` is its tables."""

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

    def mark(self, cut: Cut) -> str:
        """Return the mark of a cell; empty for one that the baseline does not have."""
        return self.cells[cut].mark(self.alpha) if cut in self.cells else ""

    def counts(self) -> tuple[int, int, int]:
        """Return how many cells are better, not significantly different, and worse."""
        marks = [self.mark(cut) for cut in self.cells]
        return marks.count(BETTER), marks.count(SAME), marks.count(WORSE)

    def __str__(self) -> str:
        """Return tables of the marked values and of the differences, as text."""
        better, same, worse = self.counts()
        level = f"{self.alpha:g}".removeprefix("0")
        queries = counted(self.queries, "queries")
        values = {
            cut: format_score(value) + (self.mark(cut) or " ") for cut, value in self.values.items()
        }
        differences = {cut: format_difference(one.difference) for cut, one in self.cells.items()}
        return "\n".join(
            [
                f"{self.model} against {self.against}: {self.measure} on {self.place}, {queries}",
                *self._lines(values, " "),
                f"{BETTER} better, {WORSE} worse, {SAME} not significantly different from "
                f"{self.against}: paired randomisation test over {queries}, two-sided, "
                f"p <= {level} after Holm's correction over {counted(len(self.cells), 'cells')}",
                f"{better} {BETTER}, {same} {SAME}, {worse} {WORSE}",
                *(f"Note: {note}" for note in self.notes),
                "",
                f"Difference of {self.measure}",
                *self._lines(differences, ""),
            ]
        )

    def record(self) -> dict[str, Any]:
        """Return what the JSON file holds: a row of all statistics for each compared cut."""
        coded = any(cut.code != F32 for cut in self.values)
        rows = [
            {
                "layer": cut.layer,
                "dim": cut.dim,
                **({"code": cut.code} if coded else {}),
                "value": self.values[cut],
                "mark": self.mark(cut),
                **asdict(paired),
            }
            for cut, paired in sorted(self.cells.items())
        ]
        head = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "values"}
        table: dict[str, Any] = as_json({**head, "cells": rows})
        return table

    def _lines(self, cells: Mapping[Cut, str], hang: str) -> list[str]:
        """Return layers as rows and dims as columns; `hang` takes the place of a mark."""
        dims = sorted({cut.dim for cut in self.values})
        rows = [["layer", *(f"{dim}{hang}" for dim in dims)]]
        for layer, code in sorted({(cut.layer, cut.code) for cut in self.values}):
            own = [cells.get(Cut(layer, dim, code), f"-{hang}") for dim in dims]
            rows.append([f"{layer}" + f" {code}" * (code != F32), *own])
        return aligned(rows)


def write_comparison(comparison: Comparison, path: Path) -> tuple[Path, Path]:
    """Write the statistics of all cells as `path`.json and `path`.csv, in full precision."""
    record = comparison.record()
    paths = path.with_name(f"{path.name}.json"), path.with_name(f"{path.name}.csv")
    table = io.StringIO()
    writer = csv.DictWriter(table, list(record["cells"][0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(record["cells"])
    write_cells(paths[0], record)
    write_text(paths[1], table.getvalue())
    return paths


def format_difference(value: float) -> str:
    """Return a difference with its sign, four decimals and no leading zero.

    >>> format_difference(0.0123), format_difference(-0.5), format_difference(0.00001)
    ('+.0123', '-.5000', '.0000')
    """
    if abs(value) < 0.00005:
        return ".0000"
    return ("+" if value > 0 else "") + format_score(value)
