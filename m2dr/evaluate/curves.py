"""Several models over the dims, a panel for each layer: quality, and what it falls short of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from m2dr.errors import UserError
from m2dr.evaluate.grid import Grid, require_distinct_names, require_same_queries
from m2dr.evaluate.published import Published
from m2dr.evaluate.style import (
    LIGHT,
    PLAIN,
    Look,
    dims_axis,
    dress,
    faint_stroke,
    head,
    legend_below,
    name_panel,
    new_figure,
    stroke,
)
from m2dr.records.cut import Cut

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACROSS = 3  # panels side by side; a fourth would shrink below what print can bear
_HIGH = 2.3  # inches of a panel


@dataclass(frozen=True)
class Series:
    """One line of a legend: a number for each cut."""

    name: str
    values: Mapping[Cut, float]
    published: bool = False  # drawn faint: it was measured elsewhere


def draw_quality(
    grids: Sequence[Grid], measure: str, published: Sequence[Published] = (), look: Look = LIGHT
) -> "Figure":
    """Draw `measure` over the dims, a panel for each layer, a line for each model.

    Of `published`, only what has this measure is drawn, at the layers that some grid has; the
    heading names its source.

    Raises:
        UserError: there is no grid, two have one name, they are of different queries, or one does
            not hold `measure`.
    """
    require_same_queries(grids)
    require_distinct_names(grids)
    series = [Series(grid.model, grid.values(measure)) for grid in grids]
    layers = {layer for grid in grids for layer in grid.layers}
    beside = [one for one in published if one.measure == measure]
    beside = [one for one in beside if layers & {cut.layer for cut in one.cells}]
    for one in beside:
        cells = {cut: value for cut, value in one.cells.items() if cut.layer in layers}
        series.append(Series(f"{one.recipe} (published; {one.on})", cells, published=True))
    sources = dict.fromkeys(f"Published scores: {one.source}" for one in beside)
    return _panels(series, measure, "\n".join([grids[0].heading(measure), *sources]), look)


def draw_gap_to_whole(grids: Sequence[Grid], measure: str, look: Look = LIGHT) -> "Figure":
    """Draw what each cut gains over the largest cut of its own model; below 0 it loses."""
    require_same_queries(grids)
    require_distinct_names(grids)
    series = []
    for grid in grids:
        values = grid.values(measure)
        whole = values[max(values)]
        series.append(Series(grid.model, {cut: value - whole for cut, value in values.items()}))
    title = f"Gap to the largest cut of the same model: {grids[0].heading(measure)}"
    return _panels(series, f"{measure} − whole", title, look, zero=True)


def draw_gap_to(
    grids: Sequence[Grid], reference: Grid, measure: str, look: Look = LIGHT
) -> "Figure":
    """Draw what each cut of `grids` gains over the same cut of `reference`; below 0 it loses.

    Raises:
        UserError: of different queries, or no cut in common.
    """
    require_distinct_names(grids)
    series = [Series(grid.model, grid.difference(reference, measure)) for grid in grids]
    title = f"Gap to {reference.model}: {grids[0].heading(measure)}"
    return _panels(series, f"{measure} − {reference.model}", title, look, zero=True)


def _panels(
    series: Sequence[Series], label: str, title: str, look: Look, zero: bool = False
) -> "Figure":
    """Draw a panel per layer on one scale; with `zero`, a line where nothing is gained or lost."""
    layers = sorted({cut.layer for one in series for cut in one.values})
    dims = sorted({cut.dim for one in series for cut in one.values})
    if not layers:
        raise UserError(f"There is nothing to draw: {title} has no cut.")
    rows = ceil(len(layers) / _ACROSS)
    columns = ceil(len(layers) / rows)
    across = max(2.9, 0.8 + 0.34 * len(dims)) if len(layers) > 1 else 4.5  # inches
    figure = new_figure(across * columns + 0.3, _HIGH * rows + 0.5, look)
    first: Axes | None = None
    for place, layer in enumerate(layers):
        axes = figure.add_subplot(rows, columns, place + 1, sharex=first, sharey=first)
        first = first or axes
        if zero:
            axes.axhline(0, color=look.ink, linewidth=0.8)
        _lines(axes, series, layer, look)
        dress(axes, look)
        name_panel(axes, f"layer {layer}", across, look)
        axes.set_ylabel(label if place % columns == 0 else "", **PLAIN)
        axes.set_xlabel("dim" if place + columns >= len(layers) else "")
        axes.tick_params(labelleft=place % columns == 0)
        axes.tick_params(labelbottom=place + columns >= len(layers))
        dims_axis(axes, dims, across)
    _legend(figure, series, look)
    head(figure, title, look, rows)
    return figure


def _lines(axes: "Axes", series: Sequence[Series], layer: int, look: Look) -> None:
    for place, one in enumerate(series):
        cuts = [cut for cut in sorted(one.values) if cut.layer == layer]
        if cuts:
            drawn = faint_stroke(look, place) if one.published else stroke(look, place)
            axes.plot([cut.dim for cut in cuts], [one.values[cut] for cut in cuts], **drawn)


def _legend(figure: "Figure", series: Sequence[Series], look: Look) -> None:
    from matplotlib.lines import Line2D

    strokes = [
        faint_stroke(look, place) if one.published else stroke(look, place)
        for place, one in enumerate(series)
    ]
    handles = [Line2D([], [], **drawn) for drawn in strokes]
    legend_below(figure, handles, [one.name for one in series], look)
