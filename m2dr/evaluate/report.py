"""Grids as plain text, CSV and JSON."""

import csv
import io
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from m2dr.errors import UserError
from m2dr.evaluate.grid import Grid, require_distinct_names, require_same_queries, shown
from m2dr.io import write_text
from m2dr.jsontext import JsonError, load_json
from m2dr.records.cut import Cut

T = TypeVar("T")

FORMAT = 1  # raise it when today's reader would misread yesterday's file
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠", "'")  # as a cell begins  # noqa: RUF001  # wide signs are formulas too


def text_table(grid: Grid, measure: str) -> str:
    """Layers down, dims across, the best cut marked with a star.

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
    return "\n".join([title, *_aligned(rows), *_notes([grid])])


def text_comparison(grids: Sequence[Grid], measure: str) -> str:
    """Several models, one under the other at each layer; the best of each cut has a star.

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
    return "\n".join([title, *_aligned(rows, left={1}), *_notes(grids)])


def text_cross(model: str, grids: Mapping[int, Grid], dim: int, measure: str) -> str:
    """Layers of the queries down, layers of the documents across, at one dim.

    Args:
        model: how the table calls it.
        grids: document layer -> grid of that model, whose cuts are those of the queries.
        dim: that all of them have.
        measure: that all of them hold.
    """
    first = next(iter(grids.values()))
    values = {layer: grid.values(measure) for layer, grid in grids.items()}
    top = max(value for held in values.values() for cut, value in held.items() if cut.dim == dim)
    rows = [["queries", *map(str, grids)]]
    for layer in first.layers:
        rows.append([str(layer), *(_cell(values[one].get(Cut(layer, dim)), top) for one in grids)])
    title = f"{model}: {first.heading(measure)}, dim {dim}, documents by layer across, * best"
    return "\n".join([title, *_aligned(rows)])


def write_cross(grids: Mapping[int, Grid], dim: int, path: Path) -> None:
    """The same for all measures as CSV: one line per query layer, document layer and measure."""
    rows: list[tuple[str | float, ...]] = [
        ("corpus", "split", "query_layer", "document_layer", "dim", "measure", "value")
    ]
    for layer, grid in grids.items():
        for cut in [cut for cut in grid.cuts if cut.dim == dim]:
            head = (grid.corpus, grid.split, cut.layer, layer, dim)
            rows += [(*head, name, value) for name, value in grid.cells[cut].items()]
    write_text(path, _csv(rows))


def write_csv(grids: Iterable[Grid], path: Path) -> None:
    """Write one line per model, cut and measure, with all the digits there are."""
    rows: list[tuple[str | float, ...]] = [
        ("model", "corpus", "split", "layer", "dim", "measure", "value")
    ]
    for grid in grids:
        for cut in grid.cuts:
            head = (grid.model, grid.corpus, grid.split, cut.layer, cut.dim)
            rows += [(*head, name, value) for name, value in grid.cells[cut].items()]
    write_text(path, _csv(rows))


def inert(name: str) -> str:
    """Return a name as a cell that no spreadsheet runs as a formula.

    One that begins as a formula does, or with an apostrophe, gets an apostrophe before it; without
    that it is the name again.

    >>> inert("=HYPERLINK(1)"), inert("'s"), inert("full-dim")
    ("'=HYPERLINK(1)", "''s", 'full-dim')
    """
    return f"'{name}" if name.startswith(_FORMULA) else name


def _csv(rows: Sequence[Sequence[str | float]]) -> str:
    cells = [[inert(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    # Left alone, csv writes a carriage return without quotes, and reads it as the end of a line.
    returns = any("\r" in cell for row in cells for cell in row if isinstance(cell, str))
    text = io.StringIO()
    dialect = csv.unix_dialect if returns else csv.excel  # the first quotes every cell
    csv.writer(text, dialect, lineterminator="\n").writerows(cells)
    return text.getvalue()


def write_json(grid: Grid, path: Path) -> None:
    """Write `grid` so that two files diff cut by cut, and `read_json` gives it back."""
    cells = []
    for cut in grid.cuts:
        measures = {name: float(value) for name, value in grid.cells[cut].items()}
        cells.append({"layer": cut.layer, "dim": cut.dim, "measures": measures})
    head = {"format": FORMAT, "model": grid.model, "corpus": grid.corpus, "split": grid.split}
    told = {"notes": list(grid.notes), "alarms": list(grid.alarms)}
    rest = {"queries": grid.queries, "unit": grid.unit, **told, "cells": cells}
    write_text(path, json.dumps(head | rest, indent=2) + "\n")


def read_json(path: Path) -> Grid:
    """Read what `write_json` wrote.

    Raises:
        UserError: the file cannot be read, or is not a grid; with the file and what is wrong.
    """
    try:
        return _grid(load_json(path))
    except FileNotFoundError:
        raise UserError(f"There is no grid file {path}; write one or correct the path.") from None
    except JsonError as error:
        raise error.at(path) from error
    except (OSError, UserError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a grid that m2dr wrote: {error}") from error
    except KeyError as error:
        raise UserError(f"{path} is not a grid that m2dr wrote: it has no {error}.") from error


def _notes(grids: Sequence[Grid]) -> list[str]:
    """Each note once, in the order of the grids, and of whom it is true unless of all."""
    lines = []
    for note in dict.fromkeys(note for grid in grids for note in grid.notes):
        holders = [grid.model for grid in grids if note in grid.notes]
        of_whom = "" if len(holders) == len(grids) else f" ({', '.join(holders)})"
        lines.append(f"Note{of_whom}: {note}")
    return lines


def _best_of(values: Sequence[float]) -> float | None:
    """The highest of several; a cut that one model alone has is no contest."""
    return max(values) if len(values) > 1 else None


def _cell(value: float | None, top: float | None) -> str:
    """A value, with a star on `top`; a dash for a cut that was not measured."""
    return "-" if value is None else shown(value) + "*" * (value == top)


def _aligned(rows: Sequence[Sequence[str]], left: Collection[int] = ()) -> list[str]:
    """Columns to the right, those in `left` to the left; a star hangs over, digits do not move."""
    hung = [
        [cell if cell.endswith("*") or i in left else f"{cell} " for i, cell in enumerate(row)]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*hung, strict=True)]
    return [
        " ".join(
            cell.ljust(width + 1) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in hung
    ]


def _grid(data: Any) -> Grid:  # noqa: ANN401 - anything may stand in a JSON file
    """A Grid from parsed JSON; ValueError, TypeError or KeyError when it is not one."""
    if data["format"] != FORMAT:
        raise ValueError(f"its format is {data['format']!r} and this m2dr reads {FORMAT}.")
    cells: dict[Cut, dict[str, float]] = {}
    for cell in data["cells"]:
        cut = Cut(_only(int, cell["layer"], "layer"), _only(int, cell["dim"], "dim"))
        if cut in cells:
            raise ValueError(f"it holds the cut {cut} twice.")
        cells[cut] = {name: _only(float, v, name) for name, v in cell["measures"].items()}
    words = [_only(str, data[key], key) for key in ("model", "corpus", "split")]
    notes = tuple(_only(str, note, "note") for note in data["notes"])
    queries = _only(int, data["queries"], "queries")
    unit = _only(str, data.get("unit", "queries"), "unit")  # older files count queries alone
    alarms = tuple(_only(str, one, "alarm") for one in data.get("alarms", []))
    return Grid(words[0], words[1], words[2], queries, cells, notes, unit, alarms)


def _only(kind: type[T], value: object, what: str) -> T:
    # Not isinstance: JSON's true is a bool, which Python takes for the whole number 1.
    if type(value) is not kind:
        raise ValueError(f"its {what} is {value!r} where {kind.__name__} belongs.")
    return value
