"""Figures of grids: quality over dims, heat maps, gaps between models, and quality over costs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, log10, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.evaluate.comparison import Published
from m2dr.evaluate.costs import Costs
from m2dr.evaluate.grid import Grid, format_score, require_distinct_names, require_same_queries
from m2dr.evaluate.pick import BYTES, LATENCY, Candidate, frontier, priced
from m2dr.evaluate.theme import (
    LIGHT,
    PALETTE,
    PLAIN,
    Theme,
    dims_axis,
    dress,
    faint_stroke,
    head,
    layer_colours,
    legend_below,
    name_panel,
    new_figure,
    save,
    stroke,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {LATENCY: "query latency, ms (median)", BYTES: "bytes per document"}
_MIDTONE = 0.45  # of the palette: from there on black text is easier to read than white
_ACROSS = 3  # panels side by side; four would be too small in print
_HIGH = 2.3  # inches of a panel of one layer
_STROKE: dict[str, Any] = {"marker": "o", "markersize": 3.5, "linewidth": 1.5}  # sizes in points


@dataclass(frozen=True)
class Series:
    """One entry of a legend, with a value for each cut."""

    name: str
    values: Mapping[Cut, float]
    published: bool = False  # drawn faint


def quality_over_dims(grids: Sequence[Grid], measure: str, path: Path) -> None:
    """Write `draw_quality_over_dims` to a file, in the format of its suffix."""
    save(draw_quality_over_dims(grids, measure), path)


def draw_quality_over_dims(grids: Sequence[Grid], measure: str, theme: Theme = LIGHT) -> "Figure":
    """Draw `measure` over the dims, one line per layer, one panel per model.

    Raises:
        UserError: there is no grid, two have one name, they are of different queries, or one does
            not hold `measure`.
    """
    require_same_queries(grids)
    require_distinct_names(grids)
    values = {grid.model: grid.values(measure) for grid in grids}
    dims = sorted({dim for grid in grids for dim in grid.dims})
    colours = layer_colours({layer for grid in grids for layer in grid.layers}, theme)
    rows = ceil(len(grids) / _ACROSS)
    across = max(3.2, 0.8 + 0.46 * len(dims))  # inches
    # The legend takes 0.21 inches a layer, which for deep encoders is more than the panels take.
    height = max(3.0 * rows + 0.5, 0.8 + 0.21 * len(colours))
    figure = new_figure(across * ceil(len(grids) / rows) + 1.0, height, theme)
    panels = {
        name: partial(_layer_lines, values=held, colours=colours) for name, held in values.items()
    }
    _draw_panels(figure, panels, rows, across, measure, dims, theme)
    for axes in figure.axes:
        axes.tick_params(labelbottom=True)
    _layer_legend(figure, colours, theme)
    head(figure, grids[0].heading(measure), theme, rows)
    return figure


def draw_heat_map(grid: Grid, measure: str, theme: Theme = LIGHT) -> "Figure":
    """Draw `measure` as coloured cells, layers as rows and dims as columns.

    Each cell shows its value, the best in bold; cuts that were not measured stay empty.

    Raises:
        UserError: `grid` does not hold `measure`.
    """
    from matplotlib import colormaps

    values = grid.values(measure)
    low, high = min(values.values()), max(values.values())
    table = [[values.get(Cut(layer, dim), nan) for dim in grid.dims] for layer in grid.layers]
    width, height = max(3.2, 1.0 + 0.58 * len(grid.dims)), 1.1 + 0.32 * len(grid.layers)
    figure = new_figure(width, height, theme)
    axes = figure.add_subplot()
    axes.imshow(table, cmap=colormaps[PALETTE], aspect="auto")
    for cut, value in values.items():
        axes.text(
            grid.dims.index(cut.dim),
            grid.layers.index(cut.layer),
            format_score(value),
            ha="center",
            va="center",
            fontsize=8,
            fontweight="bold" if cut == grid.best(measure) else "normal",
            color="white" if value < low + _MIDTONE * (high - low) else "black",
        )
    dress(axes, theme)
    axes.grid(visible=False)
    axes.set_xticks(range(len(grid.dims)), labels=[str(dim) for dim in grid.dims])
    axes.set_yticks(range(len(grid.layers)), labels=[str(layer) for layer in grid.layers])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="dim", ylabel="layer")
    name_panel(axes, grid.model, figure.get_figwidth(), theme)
    head(figure, grid.heading(measure), theme)
    return figure


def _layer_lines(axes: "Axes", values: Mapping[Cut, float], colours: Mapping[int, Any]) -> None:
    """Draw one line per layer, with a marker at each dim."""
    for layer in sorted({cut.layer for cut in values}):
        cuts = [cut for cut in sorted(values) if cut.layer == layer]
        heights = [values[cut] for cut in cuts]
        axes.plot([cut.dim for cut in cuts], heights, color=colours[layer], **_STROKE)


def _layer_legend(figure: "Figure", colours: Mapping[int, Any], theme: Theme) -> None:
    """Draw a legend of the layers beside the panels, deepest on top."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, **_STROKE) for colour in colours.values()]
    legend = figure.legend(
        handles,
        list(map(str, colours)),
        title="layer",
        loc="outside right center",
        frameon=False,
        labelcolor=theme.ink,
    )
    legend.get_title().set_color(theme.ink)


def draw_quality(
    grids: Sequence[Grid], measure: str, published: Sequence[Published] = (), theme: Theme = LIGHT
) -> "Figure":
    """Draw `measure` over the dims, one panel per layer, one line per model.

    Of `published`, the scores of this measure are drawn at the layers of the grids; the heading
    names their source.

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
    return _panels(series, measure, "\n".join([grids[0].heading(measure), *sources]), theme)


def draw_gap_to_whole(grids: Sequence[Grid], measure: str, theme: Theme = LIGHT) -> "Figure":
    """Draw the difference of each cut to the largest cut of the same model."""
    require_same_queries(grids)
    require_distinct_names(grids)
    series = []
    for grid in grids:
        values = grid.values(measure)
        full = values[max(values)]
        series.append(Series(grid.model, {cut: value - full for cut, value in values.items()}))
    title = f"Gap to the largest cut of the same model: {grids[0].heading(measure)}"
    return _panels(series, f"{measure} − full model", title, theme, zero=True)


def draw_gap_to(
    grids: Sequence[Grid], reference: Grid, measure: str, theme: Theme = LIGHT
) -> "Figure":
    """Draw the difference of each cut of `grids` to the same cut of `reference`.

    Raises:
        UserError: the grids are of different queries, or have no cut in common.
    """
    require_distinct_names(grids)
    series = [Series(grid.model, grid.difference(reference, measure)) for grid in grids]
    title = f"Gap to {reference.model}: {grids[0].heading(measure)}"
    return _panels(series, f"{measure} − {reference.model}", title, theme, zero=True)


def _panels(
    series: Sequence[Series], label: str, title: str, theme: Theme, zero: bool = False
) -> "Figure":
    """Draw one panel per layer, all on one scale; with `zero`, a line marks a difference of 0."""
    layers = sorted({cut.layer for one in series for cut in one.values})
    dims = sorted({cut.dim for one in series for cut in one.values})
    if not layers:
        raise UserError(f"There is nothing to draw: {title} has no cut.")
    from matplotlib.lines import Line2D

    rows = ceil(len(layers) / _ACROSS)
    across = max(2.9, 0.8 + 0.34 * len(dims)) if len(layers) > 1 else 4.5  # inches
    figure = new_figure(across * ceil(len(layers) / rows) + 0.3, _HIGH * rows + 0.5, theme)
    panels = {
        f"layer {layer}": partial(_lines, series=series, layer=layer, theme=theme, zero=zero)
        for layer in layers
    }
    _draw_panels(figure, panels, rows, across, label, dims, theme)
    handles = [Line2D([], [], **_stroke_of(one, place, theme)) for place, one in enumerate(series)]
    legend_below(figure, handles, [one.name for one in series], theme)
    head(figure, title, theme, rows)
    return figure


def _draw_panels(
    figure: "Figure",
    panels: Mapping[str, Callable[["Axes"], None]],
    rows: int,
    across: float,
    label: str,
    dims: Sequence[int],
    theme: Theme,
) -> None:
    """Draw panels over the dims, by name, in `rows` rows, each `across` inches wide.

    Panels share their scales; only the left ones have a label and ticks on the y axis, and only
    the lowest ones on the x axis.
    """
    columns = ceil(len(panels) / rows)
    first: Axes | None = None
    for place, (name, draw) in enumerate(panels.items()):
        axes = figure.add_subplot(rows, columns, place + 1, sharex=first, sharey=first)
        first = first or axes
        left, lowest = place % columns == 0, place + columns >= len(panels)
        draw(axes)
        dress(axes, theme)
        name_panel(axes, name, across, theme)
        axes.set_ylabel(label if left else "", **PLAIN)
        axes.set_xlabel("dim" if lowest else "")
        axes.tick_params(labelleft=left, labelbottom=lowest)
        dims_axis(axes, dims, across)


def _lines(axes: "Axes", series: Sequence[Series], layer: int, theme: Theme, zero: bool) -> None:
    """Draw one line per series at a layer."""
    if zero:
        axes.axhline(0, color=theme.ink, linewidth=0.8)
    for place, one in enumerate(series):
        cuts = [cut for cut in sorted(one.values) if cut.layer == layer]
        if cuts:
            drawn = _stroke_of(one, place, theme)
            axes.plot([cut.dim for cut in cuts], [one.values[cut] for cut in cuts], **drawn)


def _stroke_of(one: Series, place: int, theme: Theme) -> dict[str, Any]:
    return faint_stroke(theme, place) if one.published else stroke(theme, place)


def draw_tradeoff(
    grids: Sequence[Grid],
    costs: Mapping[str, Costs],
    measure: str,
    price: str,
    theme: Theme = LIGHT,
) -> "Figure":
    """Draw `measure` over a cost, for the models whose costs are known.

    The line is the frontier over all of them: no cut left of it is as good. Its cuts are named
    where there is room.

    Args:
        grids: of the same queries.
        costs: model -> its costs, for one of the grids at least.
        measure: one that all grids hold.
        price: the cost, a key of AXES.
        theme: of the figure.
    """
    from matplotlib.lines import Line2D

    require_same_queries(grids)
    require_distinct_names(grids)
    points: list[Candidate] = []
    strokes: dict[str, dict[str, Any]] = {}
    figure = new_figure(6.4, 4.2, theme)
    axes = figure.add_subplot()
    for place, grid in enumerate(grids):  # places as in the other figures
        if grid.model in costs:
            held = priced(grid, costs[grid.model], measure)
            strokes[grid.model] = {**stroke(theme, place), "linestyle": "none"}
            at = [point.costs[price] for point in held]
            axes.plot(at, [point.quality for point in held], alpha=0.85, **strokes[grid.model])
            points += held
    if not points:
        raise UserError("The costs of none of these models are known.")
    best = frontier(points, (price,))[::-1]
    # The frontier is drawn level from its last cut to the highest cost.
    paid = [point.costs[price] for point in points]
    steps = [(p.costs[price], p.quality) for p in best] + [(max(paid), best[-1].quality)]
    line: dict[str, Any] = {"color": theme.ink, "linewidth": 1.2}
    axes.step(*zip(*steps, strict=True), where="post", zorder=1, **line)
    _price_axis(axes, paid)
    axes.set_xlabel(AXES[price])
    axes.set_ylabel(measure, **PLAIN)
    dress(axes, theme)
    handles = [Line2D([], [], **drawn) for drawn in (*strokes.values(), line)]
    legend_below(figure, handles, [*strokes, "frontier"], theme)
    head(figure, f"{grids[0].heading(measure)}: quality against {price}", theme)
    _name_cuts(axes, [(p.cut, p.costs[price], p.quality) for p in best], theme)
    return figure


def _price_axis(axes: "Axes", values: Sequence[float]) -> None:
    """Make the x axis logarithmic, with three ticks at least, as plain numbers.

    Ticks are 1, 2, 5, 10, … where three of them are in the range, else in even steps; in a wide
    range they are powers of ten.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    axes.set_xscale("log")
    low, high = min(values), max(values)
    first, last = int(log10(low)) - 2, int(log10(high)) + 2
    steps = (1, 2, 5) if high < 1000 * low else (1,)  # others would touch
    ticks = [step * 10.0**power for power in range(first, last) for step in steps]
    left, right = low / 1.15, high * 1.15
    axes.set_xlim(left, right)
    inside = [tick for tick in ticks if left <= tick <= right]
    if len(inside) < 3:
        even = MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10], min_n_ticks=3)
        inside = [float(tick) for tick in even.tick_values(left, right) if left <= tick <= right]
    axes.xaxis.set_major_locator(FixedLocator(inside))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))


def _name_cuts(axes: "Axes", points: Sequence[tuple[Cut, float, float]], theme: Theme) -> None:
    """Write the names of the best cuts above them, leaving out those that would touch others.

    A name that would leave the panel is written below its cut, to the right.
    """
    from matplotlib.figure import Figure

    figure = axes.get_figure()
    if not isinstance(figure, Figure):  # a SubFigure or None, which are not used here
        return
    figure.draw_without_rendering()
    taken: list[Any] = []
    for cut, x, y in reversed(points):
        for place, side in (((-3, 5), "right"), ((5, -10), "left")):
            text = axes.annotate(
                str(cut),
                (x, y),
                xytext=place,
                textcoords="offset points",
                ha=side,
                fontsize=7.5,
                color=theme.ink,
            )
            box = text.get_window_extent()
            inside = axes.get_window_extent().padded(2)
            fits = inside.x0 <= box.x0 and inside.y0 <= box.y0 and box.y1 <= inside.y1
            touches = any(box.padded(2).overlaps(other) for other in taken)
            if fits and not touches:
                taken.append(box)
                break
            text.remove()
            if touches:
                break
