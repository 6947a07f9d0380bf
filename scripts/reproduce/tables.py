"""The tables of a paper as they are printed: what was published, and beside it what was found."""

# Shapes in this file:
#   P places, or queries of all places.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from statistics import fmean, stdev
from typing import Any

import numpy as np
from claims import EXPERIMENTS, MODELS, Evaluation, Experiment, Table, grids, scaled
from errors import Array, scores_of_queries
from measuring import Measured

from m2dr.evaluation.significance import t_test

Results = Mapping[str, Sequence[Measured]]  # by model: one of each seed
ALPHA = 0.05


@dataclass(frozen=True)
class Cell:
    """A place in a table: of which model, on what, at which cut; and whether it is tested."""

    model: str
    on: str
    cut: str  # as published
    tested: bool
    small: str = ""  # the cut at small scale, where `scaled` says another

    def at(self, small: bool) -> str:
        """The cut to look at."""
        return (self.small or scaled(self.cut)) if small else self.cut


def cell_of(fields: Mapping[str, Any], model: str = "") -> Cell:
    """The cell of a block, a row and a column, or that of another model there."""
    cut = str(fields.get("cut", "L{layer}D{dim}")).format(**fields)
    named = (model or str(fields["model"])).format(**{**fields, "cut": cut})
    name = next((name for name in named.split("|") if name in MODELS), named)
    return Cell(
        name, fields.get("on", ""), cut, fields.get("tested", False), fields.get("small", "")
    )


def published(cell: Cell, experiment: Experiment) -> float | None:
    """What was published of a cell: of a claim on the same data, or of a whole grid."""
    alike = [
        one for one in EXPERIMENTS.values() if one.evaluation.name == experiment.evaluation.name
    ]
    for claim in (claim for one in alike for claim in one.claims):
        for known in (claim.above, claim.below):
            if (known.model, known.cut, claim.on) == (cell.model, cell.cut, cell.on):
                return known.value
    recipes = grids(experiment.evaluation.published, cell.on)
    return recipes.get(MODELS[cell.model].published, {}).get(cell.cut)


def values(cell: Cell, evaluation: Evaluation, found: Results, small: bool) -> list[float]:
    """What was found in a cell, a value of each seed; empty where it was not measured."""
    seeds = found.get(cell.model, ())
    cut, measure = cell.at(small), evaluation.measure
    if not all(one.holds(cut, measure, cell.on) for one in seeds):
        return []
    return [evaluation.unit * one.value(cut, measure, cell.on) for one in seeds]


def parts(cell: Cell, evaluation: Evaluation, found: Results, small: bool) -> Array:
    """What a test pairs: scores of the queries of a search, else means of the data sets; [P]."""
    cut, measure, rows = cell.at(small), evaluation.measure, list[Array]()
    for one in found[cell.model]:
        if evaluation.searches:
            places = one.on(cell.on)
            rows.append(np.concatenate([scores_of_queries(one, cut, measure, p) for p in places]))
        else:
            rows.append(np.array([one.value(cut, measure, place) for place in one.on(cell.on)]))
    mean: Array = np.mean(rows, axis=0)
    return mean


def marks(
    table: Table, fields: Mapping[str, Any], evaluation: Evaluation, found: Results, small: bool
) -> str:
    """The marks of a cell: above which others it is, by a paired t-test."""
    cell, made = cell_of(fields), ""
    for mark, model in table.marks.items() if cell.tested else ():
        other = cell_of(fields, model)
        if other.model == cell.model or not values(other, evaluation, found, small):
            continue
        sides = [parts(each, evaluation, found, small) for each in (cell, other)]
        if sides[0].shape != sides[1].shape or len(sides[0]) < 2:
            continue
        difference = sides[0] - sides[1]
        if difference.mean() > 0 and t_test(difference[None])[0] < ALPHA:
            made += mark
    return made


def text_of(table: Table, experiment: Experiment, found: Results, small: bool) -> str:
    """A table as printed, each cell twice: as published and as found, the mean ± over seeds.

    At small scale another model stands for the paper's, at the cut that stands for the printed one;
    rows of the same cuts are shown once.
    """
    evaluation, digits = experiment.evaluation, 2 if experiment.evaluation.unit > 1 else 4
    head, shown, printed = [label for label, _ in table.columns], set[object](), []
    every = [*product(table.blocks, table.rows)]
    for (block, first), (label, second) in reversed(every):  # the full model is the last row
        row = [first | second | column for _, column in table.columns]
        cells = [cell_of(fields) for fields in row]
        known = [values(cell, evaluation, found, small) for cell in cells]
        key = label, *((cell.model, cell.on, cell.at(small)) for cell in cells)
        if not any(known) or small and key in shown:
            continue
        shown.add(key)
        words = []
        for cell, fields, of_seeds in zip(cells, row, known, strict=True):
            was = published(cell, experiment)
            here = f"{fmean(of_seeds):.{digits}f}" if of_seeds else "–"
            here += f"±{stdev(of_seeds):.{digits}f}" if len(of_seeds) > 1 else ""
            here += marks(table, fields, evaluation, found, small) if of_seeds else ""
            words.append(("–" if was is None else f"{was:.{digits}f}", here))
        printed.append((block, [label, *(f"{was:>6} {here:<7}" for was, here in words)]))
    if not printed:
        return ""
    rows = [["", *(f"{name:^14}" for name in head)]]
    for block, of_block in groupby(reversed(printed), key=lambda pair: pair[0]):
        rows += [[block, *("" for _ in head)]] if block else []
        rows += [row for _, row in of_block]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head) + 1)]
    told = f"{table.title}: published, and here" + " at small scale" * small
    tests = f"; {' '.join(table.marks)}: p < {ALPHA:g}, paired t-test" if table.marks else ""
    body = ("  ".join(f"{w:<{n}}" for w, n in zip(row, widths, strict=True)) for row in rows)
    return "\n".join([told + tests, *(line.rstrip() for line in body)])
