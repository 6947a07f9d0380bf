"""Figures of grids: quality over dims, heat maps, gaps between models, and quality over costs.

Grids of one figure are of the same queries, each with a name of its own.

Every colour and stroke is in the tables at the top; the page of `m2dr serve` has the same colours.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from io import BytesIO
from math import ceil, nan
from pathlib import Path
from textwrap import fill
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from m2dr.core.files import atomic_path
from m2dr.core.records import Cut
from m2dr.evaluation.costs import BYTES, LATENCY, Candidate, Costs, frontier, priced
from m2dr.evaluation.grid import Grid, by_code, format_score

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 200
# Without what differs from run to run.
_METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": dict.fromkeys(("Date", "Creator", "Format")),
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
}
PLAIN: dict[str, Any] = {"parse_math": False}  # a dollar sign in a user's name starts no formula
AXES = {LATENCY: "query latency, ms (median)", BYTES: "bytes per document"}
# Deeper layers take later colours of viridis, which keeps its order in grey print and for
# colour-blind readers. Its lightest quarter is left out on light paper.
PALETTE, _FAR = "viridis", 0.75
_MIDTONE = 0.45  # of the palette: from there on black text is easier to read than white
# Each model has a marker and a dash of its own, so that figures can be read without colours.
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
_LAYER: dict[str, Any] = {"marker": "o", "markersize": 3.5, "linewidth": 1.5}  # sizes in points
_LEGEND_WIDTH = 34  # characters of a name before it wraps
_ACROSS = 3  # panels side by side; four would be too small in print

# Inks with a contrast of 3:1 to the paper at least, and 4.5:1 for text.
PAPER = "#ffffff"
INK = "#1b1f24"  # of text, axes and frontiers
RULE = "#e4e7eb"  # of grid lines, which need no contrast
# Distinct for colour-blind readers, after Okabe and Ito.
MODEL_COLOURS = (
    "#0a62a9", "#c04c00", "#007a5c", "#a8327c", "#7a6200", "#4d4fc4", "#9c1f1f", "#30363d",
)  # fmt: skip


def stroke(place: int) -> dict[str, Any]:
    """Return how the model at a place of the legend is drawn; sizes in points."""
    return {
        "color": MODEL_COLOURS[place % len(MODEL_COLOURS)],
        "marker": _MARKERS[place % len(_MARKERS)],
        "linestyle": _DASHES[place % len(_DASHES)],
        "markersize": 4.5,
        "linewidth": 1.5,
    }


RAW = "own exits"  # in a legend


def draw_quality_over_dims(
    grids: Sequence[Grid], measure: str, raw: Mapping[str, Grid] = MappingProxyType({})
) -> "Figure":
    """Draw `measure` over the dims, one line per layer, one panel per model.

    Args:
        grids: of the panels.
        measure: to draw.
        raw: by the name of a grid, that of its model by its own exits, in grey behind it.

    Raises:
        UserError: a grid does not hold `measure`.
    """
    from matplotlib import colormaps

    grids = by_code(grids)
    # Deepest first, which has the most contrast to the paper.
    layers = sorted({layer for grid in grids for layer in grid.layers}, reverse=True)
    colours = map(tuple, colormaps[PALETTE](np.linspace(0, _FAR, len(layers))))
    strokes = {
        str(layer): {"color": colour, **_LAYER}
        for layer, colour in zip(layers, colours, strict=True)
    }
    points: list[tuple[str, str, int, float]] = []
    for grid in grids:
        behind = raw[grid.model].values(measure) if grid.model in raw else {}
        for cut, value in sorted(behind.items()):
            ends = cut.dim == min(one.dim for one in behind if one.layer == cut.layer)
            points += [(grid.model, RAW, cut.dim, nan)] * ends  # a line per layer
            points.append((grid.model, RAW, cut.dim, value))
        points += [
            (grid.model, str(cut.layer), cut.dim, value)
            for cut, value in grid.values(measure).items()
        ]
    if raw:
        strokes[RAW] = {"color": "0.75", "linewidth": 1.0}
    return _draw_lines(points, strokes, measure, grids[0].heading(measure), beside="layer")


def draw_heat_map(grid: Grid, measure: str) -> "Figure":
    """Draw `measure` as coloured cells, layers as rows and dims as columns.

    Each cell shows its value, the best in bold; cuts that were not measured stay empty.

    Raises:
        UserError: `grid` does not hold `measure`.
    """
    from matplotlib import colormaps

    values, best = grid.values(measure), grid.best(measure)
    low, high = min(values.values()), max(values.values())
    table = [[values.get(Cut(layer, dim), nan) for dim in grid.dims] for layer in grid.layers]
    width, height = max(3.2, 1.0 + 0.58 * len(grid.dims)), 1.1 + 0.32 * len(grid.layers)
    figure = new_figure(width, height)
    axes = figure.add_subplot()
    axes.imshow(table, cmap=colormaps[PALETTE], aspect="auto")
    for cut, value in values.items():
        x, y = grid.dims.index(cut.dim), grid.layers.index(cut.layer)
        dark = value < low + _MIDTONE * (high - low)
        text = axes.text(x, y, format_score(value), ha="center", va="center", fontsize=8)
        text.set_color("white" if dark else "black")
        text.set_fontweight("bold" if cut == best else "normal")
    dress(axes)
    axes.grid(visible=False)
    axes.set_xticks(range(len(grid.dims)), labels=list(map(str, grid.dims)))
    axes.set_yticks(range(len(grid.layers)), labels=list(map(str, grid.layers)))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="dim", ylabel="layer")
    name_panel(axes, grid.model, width)
    head(figure, grid.heading(measure))
    return figure


_Series = Mapping[str, Mapping[Cut, float]]  # by the name in the legend, a value for each cut


def draw_quality(grids: Sequence[Grid], measure: str) -> "Figure":
    """Draw `measure` over the dims, one panel per layer, one line per model.

    Raises:
        UserError: a grid does not hold `measure`.
    """
    series = {grid.model: grid.values(measure) for grid in by_code(grids)}
    return _draw_layers(series, measure, grids[0].heading(measure))


def draw_gap_to(grids: Sequence[Grid], reference: Grid, measure: str) -> "Figure":
    """Draw the difference of each cut of `grids` to the same cut of `reference`.

    Raises:
        UserError: the grids are of different queries, or have no cut in common.
    """
    reference = by_code([reference])[0]
    series = {grid.model: grid.difference(reference, measure) for grid in by_code(grids)}
    title = f"Gap to {reference.model}: {grids[0].heading(measure)}"
    return _draw_layers(series, f"{measure} − {reference.model}", title, zero=True)


def _draw_layers(series: _Series, label: str, title: str, zero: bool = False) -> "Figure":
    """Draw one panel per layer; with `zero`, a line marks a difference of 0."""
    points = [
        (f"layer {layer}", name, cut.dim, value)
        for layer in sorted({cut.layer for values in series.values() for cut in values})
        for name, values in series.items()
        for cut, value in sorted(values.items())
        if cut.layer == layer
    ]
    strokes = {name: stroke(place) for place, name in enumerate(series)}
    figure = _draw_lines(points, strokes, label, title)
    for axes in figure.axes if zero else ():
        axes.axhline(0, color=INK, linewidth=0.8, zorder=1)
    return figure


def _draw_lines(
    points: Iterable[tuple[str, str, int, float]],
    strokes: Mapping[str, dict[str, Any]],
    label: str,
    title: str,
    beside: str = "",
) -> "Figure":
    """Draw lines in panels that share their scales.

    Only the left panels have a label and ticks on the y axis, and only the lowest on the x axis.

    Args:
        points: panel, line, x and y of each, in the order in which they are drawn.
        strokes: line -> how it is drawn, in the order of the legend.
        label: of the y axis.
        title: of the figure.
        beside: title of a legend at the right; without one it is below.
    """
    from matplotlib.lines import Line2D

    panels: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for panel, line, x, y in points:
        panels.setdefault(panel, {}).setdefault(line, []).append((x, y))
    ticks = sorted({x for lines in panels.values() for line in lines.values() for x, _ in line})
    rows = ceil(len(panels) / _ACROSS)
    columns = ceil(len(panels) / rows)
    across, high = max(3.2, 0.8 + 0.4 * len(ticks)), 3.0 if beside else 2.3  # inches of a panel
    figure = new_figure(across * columns + (1.0 if beside else 0.3), high * rows + 0.5)
    first: Axes | None = None
    for place, (name, lines) in enumerate(panels.items()):
        axes = figure.add_subplot(rows, columns, place + 1, sharex=first, sharey=first)
        first = first or axes
        left, lowest = place % columns == 0, place + columns >= len(panels)
        for line, at in lines.items():
            axes.plot(*zip(*at, strict=True), **strokes[line])
        dress(axes)
        name_panel(axes, name, across)
        axes.set_ylabel(label if left else "", **PLAIN)
        axes.set_xlabel("dim" if lowest else "")
        axes.tick_params(labelleft=left, labelbottom=lowest)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, labels=[str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.tick_params(axis="x", rotation=45 if ticks[-1] > 1000 else 0)  # four digits touch
    handles = [Line2D([], [], **drawn) for drawn in strokes.values()]
    if beside:
        # It takes 0.21 inches a line, which for deep encoders is more than the panels take.
        figure.set_figheight(max(figure.get_figheight(), 0.8 + 0.21 * len(handles)))
        look: dict[str, Any] = {"loc": "outside right center", "frameon": False, "labelcolor": INK}
        legend = figure.legend(handles, list(strokes), title=beside, **look)
        legend.get_title().set_color(INK)
    else:
        _legend_below(figure, handles, list(strokes))
    head(figure, title, rows)
    return figure


def draw_tradeoff(
    grids: Sequence[Grid], costs: Mapping[str, Costs], measure: str, price: str
) -> "Figure":
    """Draw `measure` over a cost, for the models whose costs are known.

    The line is the frontier over all of them: no cut left of it is as good. Its cuts are named
    where there is room.

    Args:
        grids: of the same queries.
        costs: model -> its costs, for one of the grids at least.
        measure: one that all grids hold.
        price: the cost, a key of AXES.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    points: list[Candidate] = []
    strokes: dict[str, dict[str, Any]] = {}
    figure = new_figure(6.4, 4.2)
    axes = figure.add_subplot()
    for place, grid in enumerate(grids):  # places as in the other figures
        if grid.model in costs:
            own = priced(grid, costs[grid.model], measure)
            strokes[grid.model] = {**stroke(place), "linestyle": "none"}
            at = [point.costs[price] for point in own]
            axes.plot(at, [point.quality for point in own], alpha=0.85, **strokes[grid.model])
            points += own
    best = frontier(points, (price,))[::-1]
    # The frontier is drawn level from its last cut to the highest cost.
    paid = [point.costs[price] for point in points]
    steps = [(p.costs[price], p.quality) for p in best] + [(max(paid), best[-1].quality)]
    line: dict[str, Any] = {"color": INK, "linewidth": 1.2}
    axes.step(*zip(*steps, strict=True), where="post", zorder=1, **line)
    axes.set_xscale("log")
    axes.margins(x=0.12)  # room for the first name
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(AXES[price])
    axes.set_ylabel(measure, **PLAIN)
    dress(axes)
    handles = [Line2D([], [], **drawn) for drawn in (*strokes.values(), line)]
    _legend_below(figure, handles, [*strokes, "frontier"])
    head(figure, f"{grids[0].heading(measure)}: quality against {price}")
    figure.draw_without_rendering()
    boxes: list[Any] = []  # of names, which are left out where they would touch another
    for point in best[::-1]:
        spot = (point.costs[price], point.quality)
        name = axes.annotate(  # up and to the left, where no cut is
            str(point.cut), spot, (-4, 3), textcoords="offset points", fontsize=7.5, ha="right"
        )
        name.set_color(INK)
        box = name.get_window_extent().padded(2)
        if any(box.overlaps(other) for other in boxes):
            name.remove()
        else:
            boxes.append(box)
    return figure


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure, sizes in inches, that pyplot does not know."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor=PAPER)
    setattr(figure, "_repr_png_", partial(_png_of, figure))  # noqa: B010  # what a notebook shows
    return figure


def _png_of(figure: "Figure") -> bytes:
    file = BytesIO()
    figure.savefig(file, format="png", metadata=_METADATA["png"])
    return file.getvalue()


def dress(axes: "Axes") -> None:
    """Set the inks of one panel: thin rules behind the lines, no frame at the top and right."""
    axes.set_facecolor(PAPER)
    axes.grid(color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color(INK)
    axes.tick_params(which="both", colors=INK)
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
        text.set_color(INK)


def name_panel(axes: "Axes", name: str, width: float) -> None:
    """Write a name above its panel of `width` inches, wrapped."""
    axes.set_title(fill(name, int(width / 0.1)), fontsize=10, color=INK, **PLAIN)


def _legend_below(figure: "Figure", handles: Sequence[Any], names: Sequence[str]) -> None:
    """Draw a legend under all panels, in as many columns as fit, and make the figure higher."""
    folded = [fill(name, _LEGEND_WIDTH) for name in names]
    longest = max(len(line) for name in folded for line in name.split("\n"))
    columns = max(1, min(len(folded), int(figure.get_figwidth() / (0.085 * longest + 0.6))))
    lines = ceil(len(folded) / columns) * max(name.count("\n") + 1 for name in folded)
    figure.set_figheight(figure.get_figheight() + 0.2 + 0.18 * lines)
    legend = figure.legend(
        handles,
        folded,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=9,
        handlelength=3.2,
        labelcolor=INK,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def head(figure: "Figure", title: str, rows: int = 1) -> None:
    """Write `title` above `rows` of panels; each wrapped line adds 0.18 inches to the figure."""
    width = int(figure.get_figwidth() / 0.1)
    lines = [fill(line, width) for line in title.split("\n")]
    figure.suptitle("\n".join(lines), fontsize=11, color=INK, **PLAIN)
    folds = rows * max(axes.get_title().count("\n") for axes in figure.axes)
    more = folds + figure.get_suptitle().count("\n")
    figure.set_figheight(figure.get_figheight() + 0.18 * more)


def save_figure(figure: "Figure", path: Path) -> Path:
    """Write a figure as .png, .svg or .pdf, atomically and reproducibly.

    Text is kept as text, for search, copying and screen readers.

    Raises:
        ValueError: matplotlib writes no file of that suffix.
    """
    from matplotlib import rc_context

    kind = path.suffix.removeprefix(".").lower()
    stable = rc_context({"svg.fonttype": "none", "svg.hashsalt": "m2dr", "pdf.fonttype": 42})
    with atomic_path(path) as unfinished, warnings.catch_warnings(), stable:
        # Letters that the font lacks, as in the name of a model, are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure.savefig(unfinished, format=kind, metadata=_METADATA.get(kind))
    return path
