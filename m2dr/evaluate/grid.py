"""The measures of a model cut by cut: a grid, as tables of text, as CSV and as JSON."""

import csv
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isfinite
from pathlib import Path
from typing import Any, TypeVar

from m2dr.core.errors import UserError, counted, nearest
from m2dr.core.files import write_text
from m2dr.core.jsontext import JsonError, load_json, write_json
from m2dr.core.records import Cut

T = TypeVar("T")
FORMAT = 1  # of grid.json; raise it when this reader would misread an older file
# What a cell that a spreadsheet takes for a formula begins with; wide signs count too.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠", "'")


@dataclass(frozen=True)
class Grid:
    """The measures of one model, cut by cut; not every layer needs every dim.

    >>> cells = {Cut(2, 8): {"RR@10": 0.25}, Cut(2, 16): {"RR@10": 0.5}}
    >>> grid = Grid("full-dim", "pydocs", "test", 2234, cells)
    >>> grid.best("RR@10")
    Cut(layer=2, dim=16)
    """

    model: str  # its name in tables and legends
    corpus: str
    split: str
    queries: int  # number of queries that the means are over
    cells: Mapping[Cut, Mapping[str, float]]  # cut -> measure -> mean
    notes: tuple[str, ...] = ()  # how the values were measured, e.g. "own document dropped"
    unit: str = "queries"  # what `queries` counts; for sentence similarity it is "pairs"
    checks: tuple[str, ...] = ()  # a sentence for each check that failed, see m2dr.evaluate.checks

    def __post_init__(self) -> None:
        if not self.cells or not self.measures:
            raise UserError(f"The grid of {self.model} on {self.corpus} is empty; measure a cut.")
        for cut, values in self.cells.items():
            if values.keys() != self.cells[self.cuts[0]].keys():
                raise UserError(
                    f"The grid of {self.model} holds {', '.join(values)} for {cut} and "
                    f"{', '.join(self.measures)} for {self.cuts[0]}; measure all cuts alike."
                )
            odd = [name for name, value in values.items() if not isfinite(value)]
            if odd:
                raise UserError(
                    f"The {odd[0]} of {self.model} at {cut} is {values[odd[0]]}, which cannot be "
                    f"compared; measure that cut again."
                )

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Every cut that was measured, smallest layer first."""
        return tuple(sorted(self.cells))

    @property
    def layers(self) -> tuple[int, ...]:
        """Every layer of some cut, shallow first."""
        return tuple(sorted({cut.layer for cut in self.cells}))

    @property
    def dims(self) -> tuple[int, ...]:
        """Every dim of some cut, short first."""
        return tuple(sorted({cut.dim for cut in self.cells}))

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of the measures, which all cells share."""
        return tuple(next(iter(self.cells.values())))

    @property
    def place(self) -> str:
        """Corpus and split, such as 'pydocs test'; a file of sentence pairs has no split."""
        return f"{self.corpus} {self.split}" if self.split else self.corpus

    def heading(self, measure: str) -> str:
        """Return the title of a table or figure, as 'RR@10 on pydocs test, 2234 queries'."""
        return f"{measure} on {self.place}, {counted(self.queries, self.unit)}"

    def values(self, measure: str) -> dict[Cut, float]:
        """Return one measure of every cut, smallest layer first.

        Raises:
            UserError: the grid does not hold `measure`.
        """
        if measure not in self.measures:
            raise UserError(
                f"The grid of {self.model} on {self.corpus} does not hold {measure}. "
                f"{nearest(measure, self.measures)}"
            )
        return {cut: self.cells[cut][measure] for cut in self.cuts}

    def difference(self, other: "Grid", measure: str) -> dict[Cut, float]:
        """Return this model minus `other` at each cut that both measured.

        Raises:
            UserError: they were measured on different queries, or have no cut in common.
        """
        require_same_queries([self, other])
        mine, theirs = self.values(measure), other.values(measure)
        common = {cut: mine[cut] - theirs[cut] for cut in mine if cut in theirs}
        if not common:
            raise UserError(
                f"{self.model} and {other.model} have no cut in common; {self.model} has "
                f"{', '.join(map(str, mine))} and {other.model} {', '.join(map(str, theirs))}."
            )
        return common

    def best(self, measure: str) -> Cut:
        """Return the cut with the highest value; of equal ones the smallest."""
        values = self.values(measure)
        return max(values, key=lambda cut: values[cut])


def require_same_queries(grids: Iterable[Grid]) -> None:
    """Raise UserError unless there are `grids` and all were measured on the same queries."""
    settings = {(grid.place, grid.queries, grid.unit): grid.model for grid in grids}
    if not settings:
        raise UserError("No grid was given; pass the grid of at least one model.")
    if len(settings) > 1:
        found = "; ".join(
            f"{model} on {counted(queries, unit)} of {place}"
            for (place, queries, unit), model in settings.items()
        )
        raise UserError(
            f"Grids of different test sets cannot be compared: {found}. Measure all on the same."
        )


def average(grids: Sequence[Grid], corpus: str = "") -> Grid:
    """Return the mean of one model over several corpora, each with equal weight.

    Args:
        grids: at least one, all of the same model, cuts and measures.
        corpus: name of the mean; made of the names of the corpora when empty.
    """
    first = grids[0]
    cells = {
        cut: {
            name: fsum(grid.cells[cut][name] for grid in grids) / len(grids)
            for name in first.measures
        }
        for cut in first.cuts
    }
    places = [grid.place for grid in grids]
    notes = dict.fromkeys(note for grid in grids for note in grid.notes)
    return Grid(
        first.model,
        corpus or f"mean-of-{'+'.join(places)}",
        "",
        sum(grid.queries for grid in grids),
        cells,
        (*notes, f"the mean over {', '.join(places)}, each counted alike"),
        first.unit,
    )


def require_distinct_names(grids: Iterable[Grid]) -> None:
    """Raise UserError when two grids have the same model name."""
    names: set[str] = set()
    for grid in grids:
        if grid.model in names:
            raise UserError(
                f"Two grids are called {grid.model}, and a table could not tell them apart; "
                f"rename one of them."
            )
        names.add(grid.model)


def format_score(value: float) -> str:
    """Return a value with four decimals and no leading zero, as papers print measures.

    >>> format_score(0.31594), format_score(-0.02), format_score(1.0)
    ('.3159', '-.0200', '1.0000')
    """
    return f"{value:.4f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.4f}"


def text_table(grid: Grid, measure: str) -> str:
    """Return a table with layers as rows and dims as columns; a star marks the best cut.

    >>> cells = {Cut(2, 8): {"RR@10": 0.25}, Cut(2, 16): {"RR@10": 0.5}}
    >>> print(text_table(Grid("full-dim", "pydocs", "test", 2234, cells), "RR@10"))
    full-dim: RR@10 on pydocs test, 2234 queries, * best
    layer      8     16
        2  .2500  .5000*
    """
    values = grid.values(measure)
    top = max(values.values())
    rows = [["layer", *map(str, grid.dims)]]
    for layer in grid.layers:
        cuts = [Cut(layer, dim) for dim in grid.dims]
        rows.append([str(layer), *(_cell(values.get(cut), top) for cut in cuts)])
    title = f"{grid.model}: {grid.heading(measure)}, * best"
    return "\n".join([title, *_starred(rows), *_notes([grid])])


def text_comparison(grids: Sequence[Grid], measure: str) -> str:
    """Return a table of several models, grouped by layer; a star marks the best of each cut.

    Raises:
        UserError: there is no grid, two have one name, or they are of different queries.
    """
    require_same_queries(grids)
    require_distinct_names(grids)
    values = [grid.values(measure) for grid in grids]
    dims = sorted({dim for grid in grids for dim in grid.dims})
    rows = [["layer", "model", *map(str, dims)]]
    for layer in sorted({layer for grid in grids for layer in grid.layers}):
        cuts = [Cut(layer, dim) for dim in dims]
        tops = [_best_of([v[cut] for v in values if cut in v]) for cut in cuts]
        present = [pair for pair in zip(grids, values, strict=True) if layer in pair[0].layers]
        for place, (grid, held) in enumerate(present):
            cells = [_cell(held.get(cut), top) for cut, top in zip(cuts, tops, strict=True)]
            rows.append([str(layer) if place == 0 else "", grid.model, *cells])
    title = f"{grids[0].heading(measure)}, * best of its cut"
    return "\n".join([title, *_starred(rows, left={1}), *_notes(grids)])


def text_cross(model: str, grids: Mapping[int, Grid], dim: int, measure: str) -> str:
    """Return a table with query layers as rows and document layers as columns, at one dim.

    Args:
        model: its name in the title.
        grids: document layer -> grid of that model, whose cuts are those of the queries.
        dim: one that all grids have.
        measure: one that all grids hold.
    """
    first = next(iter(grids.values()))
    values = {layer: grid.values(measure) for layer, grid in grids.items()}
    top = max(value for held in values.values() for cut, value in held.items() if cut.dim == dim)
    rows = [["queries", *map(str, grids)]]
    for layer in first.layers:
        rows.append([str(layer), *(_cell(values[one].get(Cut(layer, dim)), top) for one in grids)])
    title = f"{model}: {first.heading(measure)}, dim {dim}, documents by layer across, * best"
    return "\n".join([title, *_starred(rows)])


def write_cross(grids: Mapping[int, Grid], dim: int, path: Path) -> None:
    """Write all measures at one dim as CSV: a line per query layer, document layer and measure."""
    head = ("corpus", "split", "query_layer", "document_layer", "dim", "measure", "value")
    rows = [
        (grid.corpus, grid.split, cut.layer, layer, dim, name, value)
        for layer, grid in grids.items()
        for cut in grid.cuts
        if cut.dim == dim
        for name, value in grid.cells[cut].items()
    ]
    write_text(path, _csv([head, *rows]))


def write_csv(grids: Iterable[Grid], path: Path) -> None:
    """Write a CSV file with a line per model, cut and measure, values in full precision."""
    head = ("model", "corpus", "split", "layer", "dim", "measure", "value")
    rows = [
        (grid.model, grid.corpus, grid.split, cut.layer, cut.dim, name, value)
        for grid in grids
        for cut in grid.cuts
        for name, value in grid.cells[cut].items()
    ]
    write_text(path, _csv([head, *rows]))


def inert(name: str) -> str:
    """Return a name as a cell that no spreadsheet runs as a formula.

    A name that begins like a formula, or with an apostrophe, is prefixed with an apostrophe, so
    that removing one leading apostrophe gives the name back.

    >>> inert("=HYPERLINK(1)"), inert("'s"), inert("full-dim")
    ("'=HYPERLINK(1)", "''s", 'full-dim')
    """
    return f"'{name}" if name.startswith(_FORMULA) else name


def _csv(rows: Sequence[Sequence[str | float]]) -> str:
    cells = [[inert(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    # The csv module does not quote carriage returns by default, but reads them as line ends.
    returns = any("\r" in cell for row in cells for cell in row if isinstance(cell, str))
    text = io.StringIO()
    dialect = csv.unix_dialect if returns else csv.excel  # unix_dialect quotes every cell
    csv.writer(text, dialect, lineterminator="\n").writerows(cells)
    return text.getvalue()


def write_grid(grid: Grid, path: Path) -> None:
    """Write `grid` as JSON that `read_grid` reads; in a diff, each cut has lines of its own."""
    write_json(path, grid_record(grid))


def grid_record(grid: Grid) -> dict[str, Any]:
    """Return what grid.json holds of a grid."""
    cells = []
    for cut in grid.cuts:
        measures = {name: float(value) for name, value in grid.cells[cut].items()}
        cells.append({"layer": cut.layer, "dim": cut.dim, "measures": measures})
    return {
        "format": FORMAT,
        "model": grid.model,
        "corpus": grid.corpus,
        "split": grid.split,
        "queries": grid.queries,
        "unit": grid.unit,
        "notes": grid.notes,
        "alarms": grid.checks,
        "cells": cells,
    }


def read_grid(path: Path, remedy: str = "") -> Grid:
    """Read what `write_grid` wrote; `remedy` is a sentence that ends each message.

    Raises:
        UserError: the file cannot be read, or is not a grid; with the file and what is wrong.
    """
    absent = f"There is no grid file {path}; write one or correct the path."
    return load_results(path, "a grid", _grid, remedy, absent)


def load_results(
    path: Path, what: str, parse: Callable[[Any], T], remedy: str = "", absent: str = ""
) -> T:
    """Read a JSON file of results.

    Args:
        path: the file.
        what: what it should hold, such as "a grid".
        parse: turns the parsed JSON into a value; any error says that the file is another one.
        remedy: a sentence that ends each message.
        absent: the message when there is no file.

    Raises:
        UserError: the file cannot be read, or is another one; with its name and what is wrong.
    """
    after = f" {remedy}" if remedy else ""
    try:
        return parse(load_json(path))
    except JsonError as error:
        raise UserError(f"{error.at(path)}{after}") from error
    except (OSError, UserError, ValueError, TypeError, AttributeError, KeyError) as error:
        if absent and isinstance(error, FileNotFoundError):
            raise UserError(absent) from None
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        reason = reason.removesuffix(".")
        raise UserError(f"{path} is not {what} that m2dr wrote: {reason}.{after}") from error


def require_format(data: Any, number: int) -> None:  # anything may stand in JSON
    """Raise ValueError unless a JSON object of results has this format number."""
    if data["format"] != number:
        raise ValueError(f"its format is {data['format']!r} and this m2dr reads {number}.")


def aligned(
    rows: Sequence[Sequence[str]], left: Collection[int] = (), gap: str = "  "
) -> list[str]:
    """Return the rows of a table as lines, columns aligned to the right.

    Args:
        rows: cells, equally many in each row.
        left: columns that are aligned to the left instead.
        gap: what separates columns.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        gap.join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _notes(grids: Sequence[Grid]) -> list[str]:
    """Return each note once; one that does not hold for all grids names its models."""
    lines = []
    for note in dict.fromkeys(note for grid in grids for note in grid.notes):
        holders = [grid.model for grid in grids if note in grid.notes]
        of_whom = "" if len(holders) == len(grids) else f" ({', '.join(holders)})"
        lines.append(f"Note{of_whom}: {note}")
    return lines


def _best_of(values: Sequence[float]) -> float | None:
    """Return the highest of two or more values; None for fewer, of which none is marked."""
    return max(values) if len(values) > 1 else None


def _cell(value: float | None, top: float | None) -> str:
    """Return a value, with a star if it equals `top`; a dash for a cut that was not measured."""
    return "-" if value is None else format_score(value) + "*" * (value == top)


def _starred(rows: Sequence[Sequence[str]], left: Collection[int] = ()) -> list[str]:
    """Align rows whose cells may end in a star, so that stars do not move the digits."""
    padded = [
        [cell if cell.endswith("*") and i not in left else f"{cell} " for i, cell in enumerate(row)]
        for row in rows
    ]
    return aligned(padded, left, " ")


def _grid(data: Any) -> Grid:  # anything may stand in JSON
    """Return a grid from parsed JSON; raise ValueError, TypeError or KeyError if it is none."""
    require_format(data, FORMAT)
    cells: dict[Cut, dict[str, float]] = {}
    for cell in data["cells"]:
        cut = Cut(_only(int, cell["layer"], "layer"), _only(int, cell["dim"], "dim"))
        if cut in cells:
            raise ValueError(f"it holds the cut {cut} twice.")
        cells[cut] = {name: _only(float, v, name) for name, v in cell["measures"].items()}
    words = [_only(str, data[key], key) for key in ("model", "corpus", "split")]
    notes = tuple(_only(str, note, "note") for note in data["notes"])
    queries = _only(int, data["queries"], "queries")
    unit = _only(str, data.get("unit", "queries"), "unit")  # absent in older files
    checks = tuple(_only(str, one, "alarm") for one in data.get("alarms", []))
    return Grid(words[0], words[1], words[2], queries, cells, notes, unit, checks)


def _only(kind: type[T], value: object, what: str) -> T:
    # Not isinstance, for which JSON's true would be an int.
    if type(value) is not kind:
        raise ValueError(f"its {what} is {value!r} where {kind.__name__} belongs.")
    return value
