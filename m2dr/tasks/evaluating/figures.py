"""`m2dr figures`: draw the figures of the papers from folders of results."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from m2dr.core.errors import UserError
from m2dr.core.files import write_text
from m2dr.core.report import Report
from m2dr.core.requests import FiguresRequest
from m2dr.evaluation import figures
from m2dr.evaluation.costs import BYTES, COSTS, LATENCY, Costs, read_costs
from m2dr.evaluation.grid import (
    GRID,
    Grid,
    Provenance,
    by_code,
    read_grid,
    read_provenance,
    require_comparable,
    require_same_queries,
    tex_table,
    told_apart,
)
from m2dr.tasks.evaluating.compare import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEPARATE = "separate"
TEX = "tex"  # of the formats, that of tables
Drawings = Iterator[tuple[str, Callable[[], "Figure"]]]  # name of a file without its suffix


@dataclass(frozen=True)
class ModelResult:
    """What the folder of one model on one corpus and split holds."""

    folder: Path
    grid: Grid
    costs: Costs | None  # None: not measured
    provenance: Provenance | None  # None: not recorded


def draw_figures(request: FiguresRequest) -> Report:
    """Draw all figures that the results allow, a folder per corpus and split.

    Raises:
        UserError: no grid is there, grids of one place are of different queries or have one name,
            or a measure was not measured.
    """
    kinds = [kind for kind in request.formats if kind != TEX]
    files = []
    places = by_place(read_results(request.results))
    separate = joined_grid(request.separate) if request.separate else None
    if separate and all(separate.place != place for place, _ in places):
        raise UserError(f"{request.separate} was measured on {separate.place}; no results were.")
    for place, found in places:
        grids = [result.grid for result in found]
        reference = separate if separate and separate.place == place else None
        ends = (SEPARATE, f"-{SEPARATE}")
        reference = reference or next((g for g in grids if g.model.endswith(ends)), None)
        measures = request.measures or (_common_measure(grids),)
        for measure in measures:
            for name, draw in _drawings(found, measure, reference):
                figure = draw()
                for kind in kinds:
                    files.append(
                        figures.save_figure(figure, request.out / plain(place) / f"{name}.{kind}")
                    )
            if TEX in request.formats:
                files.append(request.out / plain(place) / f"{plain(measure)}.{TEX}")
                write_text(files[-1], tex_table(grids, measure))
    return Report(files=tuple(files))


OWN_EXITS = ".model-exits"  # ends the name of results by a model's own exits


def _drawings(results: Sequence[ModelResult], measure: str, reference: Grid | None) -> Drawings:
    """Yield all figures of one measure on one corpus and split: a row for each kind."""
    grids, name = told_apart([result.grid for result in results]), plain(measure)
    pairs = list(zip(grids, results, strict=True))
    costs = {grid.model: result.costs for grid, result in pairs if result.costs}
    known = {result.grid.model: grid for grid, result in pairs}
    own = {name: name.removesuffix(OWN_EXITS) for name in known if name.endswith(OWN_EXITS)}
    raw = {known[of].model: known[name] for name, of in own.items() if of in known}
    models = [grid for grid in grids if grid not in raw.values()]
    yield f"{name}-layers", partial(figures.draw_quality, grids, measure)
    if reference:
        others = [grid for grid, result in pairs if result.grid.model != reference.model]
        others = [grid for grid in others if set(grid.cuts) & set(reference.cuts)]
        if others:
            yield (
                f"{name}-gap-to-separate",
                partial(figures.draw_gap_to, others, reference, measure),
            )
    for price in (LATENCY, BYTES) if costs else ():
        yield (
            f"{name}-against-{price}",
            partial(figures.draw_tradeoff, grids, costs, measure, price),
        )
    yield f"{name}-models", partial(figures.draw_quality_over_dims, models, measure, raw)
    for grid in by_code(grids):
        yield f"{name}-heat-{plain(grid.model)}", partial(figures.draw_heat_map, grid, measure)


def _common_measure(grids: Sequence[Grid]) -> str:
    for name in grids[0].measures:
        if all(name in grid.measures for grid in grids):
            return name
    raise UserError(f"The models on {grids[0].place} have no measure in common.")


def read_results(folders: Sequence[Path]) -> tuple[ModelResult, ...]:
    """Read the results in these folders and below, each once, in the order of their paths.

    Raises:
        UserError: there is none, or a file of one is damaged.
    """
    paths: dict[Path, Path] = {}
    for folder in folders:
        here = folder / GRID
        below = [here] if here.is_file() else sorted(folder.glob(f"**/{GRID}"))
        if not below:
            raise UserError(f"The folder {folder} holds no results: no {GRID}, in it or below.")
        for path in below:
            paths.setdefault(path.resolve(), path)
    return tuple(
        ModelResult(
            path.parent,
            read_grid(path),
            read_costs(path.parent) if (path.parent / COSTS).exists() else None,
            read_provenance(path.parent),
        )
        for path in paths.values()
    )


def by_place(results: Sequence[ModelResult]) -> list[tuple[str, tuple[ModelResult, ...]]]:
    """Group results by corpus and split: those of one group can be compared.

    Raises:
        UserError: two of one place are of different queries, or have one name.
    """
    ordered = sorted(results, key=lambda result: result.grid.place)
    groups = groupby(ordered, lambda result: result.grid.place)
    places = [(name, tuple(group)) for name, group in groups]
    for _, group in places:
        require_comparable([result.grid for result in group])
    return places


def joined_grid(folder: Path, name: str = SEPARATE) -> Grid:
    """Read the grid of a folder, or join the grids of models that were trained for one cut each.

    The name of such a model ends in its cut, such as L2D32, and only that cut is taken of its grid.

    Raises:
        UserError: there is no grid, or several that are not of single cuts.
    """
    grids = [result.grid for result in read_results([folder])]
    if len(grids) == 1:
        return grids[0]
    require_same_queries(grids)
    cells = {}
    for grid in grids:
        word = grid.model.rpartition("-")[2]
        cut = next((cut for cut in grid.cuts if str(cut) == word), None)
        if cut is None:
            raise UserError(f"Of {len(grids)} grids in {folder}, {grid.model} names no cut.")
        cells[cut] = grid.cells[cut]
    first = grids[0]
    return Grid(name, first.corpus, first.split, first.queries, cells, unit=first.unit)
