"""Grids as pictures: every layer of a model as a line, or every cut as a coloured cell."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m2dr.evaluate.grid import Grid, require_distinct_names, require_same_queries, shown
from m2dr.evaluate.style import (
    LIGHT,
    PALETTE,
    PLAIN,
    Look,
    dims_axis,
    dress,
    head,
    layer_colours,
    name_panel,
    new_figure,
    save,
)
from m2dr.records.cut import Cut

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MIDTONE = 0.45  # of the palette: from there on black is easier to read on it than white
_ACROSS = 3  # panels side by side; a fourth would shrink below what print can bear
_STROKE: dict[str, Any] = {"marker": "o", "markersize": 3.5, "linewidth": 1.5}  # sizes in points


@dataclass(frozen=True)
class Picture:
    """A figure that is drawn when it is wanted."""

    name: str  # fit to name a file
    caption: str
    draw: Callable[[Look], "Figure"]
    tabular: bool = False  # it shows what a table shows too


def quality_over_dims(grids: Sequence[Grid], measure: str, path: Path) -> None:
    """Write `draw_quality_over_dims` as a PNG, or as the suffix says."""
    save(draw_quality_over_dims(grids, measure), path)


def heat_map(grid: Grid, measure: str, path: Path) -> None:
    """Write `draw_heat_map` as a PNG, or as the suffix says."""
    save(draw_heat_map(grid, measure), path)


def draw_quality_over_dims(grids: Sequence[Grid], measure: str, look: Look = LIGHT) -> "Figure":
    """Draw `measure` over the dims, one line per layer, one panel per model.

    Raises:
        UserError: there is no grid, two have one name, they are of different queries, or one does
            not hold `measure`.
    """
    require_same_queries(grids)
    require_distinct_names(grids)
    values = [grid.values(measure) for grid in grids]
    dims = sorted({dim for grid in grids for dim in grid.dims})
    colours = layer_colours({layer for grid in grids for layer in grid.layers}, look)
    rows = ceil(len(grids) / _ACROSS)
    columns = ceil(len(grids) / rows)
    across = max(3.2, 0.8 + 0.46 * len(dims))  # inches
    # The legend needs 0.21 inches a layer, which of deep encoders is more than the panels need.
    height = max(3.0 * rows + 0.5, 0.8 + 0.21 * len(colours))
    figure = new_figure(across * columns + 1.0, height, look)
    first = figure.add_subplot(rows, columns, 1)
    others = range(2, len(grids) + 1)
    panels = [
        first,
        *(figure.add_subplot(rows, columns, i, sharex=first, sharey=first) for i in others),
    ]
    for place, (axes, grid) in enumerate(zip(panels, grids, strict=True)):
        _lines(axes, values[place], colours)
        dress(axes, look)
        name_panel(axes, grid.model, across, look)
        axes.set_ylabel(measure if place % columns == 0 else "", **PLAIN)
        axes.set_xlabel("dim" if place + columns >= len(grids) else "")
        axes.tick_params(labelleft=place % columns == 0)
        dims_axis(axes, dims, across)
    _layer_legend(figure, colours, look)
    head(figure, grids[0].heading(measure), look, rows)
    return figure


def draw_heat_map(grid: Grid, measure: str, look: Look = LIGHT) -> "Figure":
    """Draw `measure` as a table of coloured cells, layers down, dims across.

    Each cell shows its value; the best is bold, and a cut that was not measured stays empty.

    Raises:
        UserError: `grid` does not hold `measure`.
    """
    from matplotlib import colormaps

    values = grid.values(measure)
    low, high = min(values.values()), max(values.values())
    table = [[values.get(Cut(layer, dim), nan) for dim in grid.dims] for layer in grid.layers]
    width, height = max(3.2, 1.0 + 0.58 * len(grid.dims)), 1.1 + 0.32 * len(grid.layers)
    figure = new_figure(width, height, look)
    axes = figure.add_subplot()
    axes.imshow(table, cmap=colormaps[PALETTE], aspect="auto")
    for cut, value in values.items():
        axes.text(
            grid.dims.index(cut.dim),
            grid.layers.index(cut.layer),
            shown(value),
            ha="center",
            va="center",
            fontsize=8,
            fontweight="bold" if cut == grid.best(measure) else "normal",
            color="white" if value < low + _MIDTONE * (high - low) else "black",
        )
    dress(axes, look)
    axes.grid(visible=False)
    axes.set_xticks(range(len(grid.dims)), labels=[str(dim) for dim in grid.dims])
    axes.set_yticks(range(len(grid.layers)), labels=[str(layer) for layer in grid.layers])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="dim", ylabel="layer")
    name_panel(axes, grid.model, figure.get_figwidth(), look)
    head(figure, grid.heading(measure), look)
    return figure


def _lines(axes: "Axes", values: Mapping[Cut, float], colours: Mapping[int, Any]) -> None:
    """One line per layer, and a marker at each dim, so that a single dim is seen too."""
    for layer in sorted({cut.layer for cut in values}):
        cuts = [cut for cut in sorted(values) if cut.layer == layer]
        heights = [values[cut] for cut in cuts]
        axes.plot([cut.dim for cut in cuts], heights, color=colours[layer], **_STROKE)


def _layer_legend(figure: "Figure", colours: Mapping[int, Any], look: Look) -> None:
    """Beside the panels, deepest on top, as the lines mostly lie."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, **_STROKE) for colour in colours.values()]
    legend = figure.legend(
        handles,
        list(map(str, colours)),
        title="layer",
        loc="outside right center",
        frameon=False,
        labelcolor=look.ink,
    )
    legend.get_title().set_color(look.ink)
