"""What evaluations left in folders: a grid per model, and beside it costs and comparisons."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from m2dr.errors import UserError, command
from m2dr.evaluate.comparison import FORMAT as COMPARISON_FORMAT
from m2dr.evaluate.comparison import Comparison
from m2dr.evaluate.costs import COSTS, Costs, read_costs
from m2dr.evaluate.grid import Grid, require_distinct_names, require_same_queries
from m2dr.evaluate.made import Made, read_made
from m2dr.evaluate.report import read_json
from m2dr.evaluate.significance import Paired
from m2dr.jsontext import JsonError, load_json
from m2dr.records.cut import Cut

T = TypeVar("T")
GRID = "grid.json"
_AGAINST = "*-against-*.json"


@dataclass(frozen=True)
class Finding:
    """One model on one corpus and split."""

    folder: Path
    grid: Grid
    costs: Costs | None  # None where they were not measured
    comparisons: tuple[Comparison, ...]
    made: Made | None  # None where nobody wrote it down


def find(folders: Sequence[Path]) -> tuple[Finding, ...]:
    """Every grid in these folders and below, in the order of their paths, each once.

    Raises:
        UserError: there is none, or a file of one is damaged or of another version.
    """
    paths: dict[Path, Path] = {}
    for folder in folders:
        found = _grids_in(folder)
        paths |= {path.resolve(): path for path in found if path.resolve() not in paths}
    return tuple(_read(path.parent) for path in paths.values())


def by_place(findings: Iterable[Finding]) -> list[tuple[str, tuple[Finding, ...]]]:
    """Those of one corpus and split together, which are the ones that compare.

    Raises:
        UserError: two of one place are of different queries, or have one name.
    """
    ordered = sorted(findings, key=lambda one: one.grid.place)
    places = [(name, tuple(held)) for name, held in groupby(ordered, lambda one: one.grid.place)]
    for _, held in places:
        require_same_queries(one.grid for one in held)
        require_distinct_names(one.grid for one in held)
    return places


def joined_grid(folder: Path, name: str = "separate") -> Grid:
    """The grid in a folder; where each cut has a model of its own, one grid of all of them.

    The models of single cuts are those whose names end in the cut, such as L2D32; of each, that
    cut alone is taken.

    Raises:
        UserError: there is no grid, or several that are not of single cuts.
    """
    grids = [one.grid for one in find([folder])]
    if len(grids) == 1:
        return grids[0]
    require_same_queries(grids)
    cells = {}
    for grid in grids:
        cut = _own_cut(grid)
        if cut is None or cut not in grid.cells:
            raise UserError(
                f"{folder} holds {len(grids)} grids, and {grid.model} is not called after one cut "
                f"that it has, such as L2D32; give the folder of one grid."
            )
        cells[cut] = grid.cells[cut]
    first = grids[0]
    return Grid(name, first.corpus, first.split, first.queries, cells, unit=first.unit)


def read_comparison(path: Path) -> Comparison:
    """Read what `m2dr.evaluate.comparison.write_comparison` wrote, of the cells that it compared.

    Raises:
        UserError: it is not such a file; with what is wrong.
    """
    return _parsed(path, "a comparison", _comparison)


def _grids_in(folder: Path) -> list[Path]:
    if (folder / GRID).is_file():
        return [folder / GRID]
    found = sorted(folder.glob(f"**/{GRID}"))
    if not found:
        what = "holds no results" if folder.is_dir() else "is not there"
        raise UserError(
            f"The folder {folder} {what} ({GRID} of some model, in it or below). "
            f"Make some with: {command('evaluate', 'pydocs', out=folder)}"
        )
    return found


def _read(folder: Path) -> Finding:
    return Finding(
        folder,
        read_json(folder / GRID),
        read_costs(folder) if (folder / COSTS).exists() else None,
        tuple(read_comparison(path) for path in sorted(folder.glob(_AGAINST))),
        read_made(folder),
    )


def _own_cut(grid: Grid) -> Cut | None:
    try:
        return Cut.parse(grid.model.rpartition("-")[2])
    except UserError:
        return None


def _comparison(data: Any) -> Comparison:  # noqa: ANN401 - anything may stand in a JSON file
    if data["format"] != COMPARISON_FORMAT:
        raise ValueError(
            f"its format is {data['format']!r} and this m2dr reads {COMPARISON_FORMAT}."
        )
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


def _parsed(path: Path, what: str, read: Callable[[Any], T]) -> T:
    try:
        return read(load_json(path))
    except JsonError as error:
        raise error.at(path) from error
    except KeyError as error:
        raise UserError(f"{path} is not {what} that m2dr wrote: it has no {error}.") from error
    except (OSError, UserError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not {what} that m2dr wrote: {error}") from error
