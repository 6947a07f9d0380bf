"""Grids as pictures. matplotlib lives here, and loads when something is drawn."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from math import ceil, log2, nan
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from m2dr.evaluate.aside import aside
from m2dr.evaluate.grid import Grid, require_distinct_names, require_same_queries, shown
from m2dr.records.cut import Cut

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours run from light to dark as layers go deeper, so that grey print keeps the order. Viridis is
# made for colour-blind readers; above this its yellow is lost on white paper.
_PALETTE, _LIGHTEST = "viridis", 0.9
_MIDTONE = 0.45  # of the palette: from there on black is easier to read on it than white
_DPI = 200
_ACROSS = 3  # panels side by side; a fourth would shrink below what print can bear
# Names come from users: a dollar sign in one is a dollar sign, never the start of a formula.
_PLAIN: dict[str, Any] = {"parse_math": False}
_STROKE: dict[str, Any] = {"marker": "o", "markersize": 3.5, "linewidth": 1.5}  # sizes in points


def quality_over_dims(grids: Sequence[Grid], measure: str, path: Path) -> None:
    """Draw `measure` over the dims, one line per layer, one panel per model, as a PNG.

    Raises:
        UserError: there is no grid, two have one name, they are of different queries, or one does
            not hold `measure`.
    """
    require_same_queries(grids)
    require_distinct_names(grids)
    values = [grid.values(measure) for grid in grids]
    dims = sorted({dim for grid in grids for dim in grid.dims})
    colours = _colours({layer for grid in grids for layer in grid.layers})
    rows = ceil(len(grids) / _ACROSS)
    columns = ceil(len(grids) / rows)
    across = max(3.2, 0.8 + 0.46 * len(dims))  # inches
    # The legend needs 0.21 inches a layer, which of deep encoders is more than the panels need.
    figure = _figure(across * columns + 1.0, max(3.0 * rows + 0.5, 0.8 + 0.21 * len(colours)))
    first = figure.add_subplot(rows, columns, 1)
    others = range(2, len(grids) + 1)
    panels = [
        first,
        *(figure.add_subplot(rows, columns, i, sharex=first, sharey=first) for i in others),
    ]
    for place, (axes, grid) in enumerate(zip(panels, grids, strict=True)):
        _lines(axes, values[place], colours)
        _name(axes, grid, across)
        axes.set_ylabel(measure if place % columns == 0 else "", **_PLAIN)
        axes.set_xlabel("dim" if place + columns >= len(grids) else "")
        axes.tick_params(labelleft=place % columns == 0)
        _ticks(axes, dims, across)
    _legend(figure, colours)
    _save(figure, grids[0].heading(measure), path, rows)


def heat_map(grid: Grid, measure: str, path: Path) -> None:
    """Draw `measure` as a table of coloured cells, layers down, dims across, as a PNG.

    Each cell shows its value; the best is bold, and a cut that was not measured stays white.

    Raises:
        UserError: `grid` does not hold `measure`.
    """
    from matplotlib import colormaps

    values = grid.values(measure)
    low, high = min(values.values()), max(values.values())
    table = [[values.get(Cut(layer, dim), nan) for dim in grid.dims] for layer in grid.layers]
    figure = _figure(max(3.2, 1.0 + 0.58 * len(grid.dims)), 1.1 + 0.32 * len(grid.layers))
    axes = figure.add_subplot()
    axes.imshow(table, cmap=colormaps[_PALETTE], aspect="auto")
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
    axes.set_xticks(range(len(grid.dims)), labels=[str(dim) for dim in grid.dims])
    axes.set_yticks(range(len(grid.layers)), labels=[str(layer) for layer in grid.layers])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="dim", ylabel="layer")
    _name(axes, grid, figure.get_figwidth())
    _save(figure, grid.heading(measure), path, rows=1)


def _lines(axes: "Axes", values: Mapping[Cut, float], colours: Mapping[int, Any]) -> None:
    """One line per layer, and a marker at each dim, so that a single dim is seen too."""
    for layer in sorted({cut.layer for cut in values}):
        cuts = [cut for cut in sorted(values) if cut.layer == layer]
        heights = [values[cut] for cut in cuts]
        axes.plot([cut.dim for cut in cuts], heights, color=colours[layer], **_STROKE)
    axes.grid(color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _ticks(axes: "Axes", dims: Sequence[int], width: float) -> None:
    """The dims themselves on a scale where each doubling is one step, in a panel `width` wide.

    Labels lean where two would touch, such as 1024 and 1536; a digit is 0.085 inches wide.
    """
    axes.set_xscale("log", base=2)
    axes.set_xticks(dims, labels=[str(dim) for dim in dims])
    axes.minorticks_off()
    doubling = (width - 0.7) / (1.1 * max(log2(dims[-1] / dims[0]), 1))  # inches, without margins
    gaps = [(log2(right / left) * doubling, len(str(right))) for left, right in pairwise(dims)]
    touching = any(gap < 0.085 * digits + 0.04 for gap, digits in gaps)
    axes.tick_params(axis="x", rotation=45 if touching else 0)


def _colours(layers: Collection[int]) -> dict[int, Any]:
    """Layer -> colour, deepest first, which is the darkest."""
    from matplotlib import colormaps

    step = _LIGHTEST / max(len(layers) - 1, 1)
    deepest_first = sorted(layers, reverse=True)
    return {layer: colormaps[_PALETTE](step * i) for i, layer in enumerate(deepest_first)}


def _legend(figure: "Figure", colours: Mapping[int, Any]) -> None:
    """Beside the panels, deepest on top, as the lines mostly lie."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, **_STROKE) for colour in colours.values()]
    figure.legend(
        handles, list(map(str, colours)), title="layer", loc="outside right center", frameon=False
    )


def _name(axes: "Axes", grid: Grid, width: float) -> None:
    """The model above its panel of `width` inches, on as many lines as it takes."""
    axes.set_title(fill(grid.model, int(width / 0.1)), fontsize=10, **_PLAIN)


def _figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches, that belongs to no global list and opens no window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=_DPI, layout="constrained")


def _save(figure: "Figure", title: str, path: Path, rows: int) -> None:
    """Put `title` above the `rows` of panels and write the figure as a PNG, whole or not at all."""
    figure.suptitle(fill(title, int(figure.get_figwidth() / 0.11)), fontsize=11, **_PLAIN)
    # Long names fold, and the panels keep their height: each further line is 0.18 inches.
    folds = rows * max(axes.get_title().count("\n") for axes in figure.axes)
    figure.set_figheight(
        figure.get_figheight() + 0.18 * (folds + figure.get_suptitle().count("\n"))
    )
    with aside(path) as unfinished, warnings.catch_warnings():
        # A model may be called by letters that the font has not; a box in their place will do.
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure.savefig(unfinished, format="png", metadata={"Software": None})
