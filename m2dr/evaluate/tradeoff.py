"""Quality against what it costs: every cut a point, and the frontier that none is better than."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import TYPE_CHECKING, Any

from m2dr.errors import UserError
from m2dr.evaluate.costs import Costs
from m2dr.evaluate.frontier import BYTES, LATENCY, Candidate, frontier
from m2dr.evaluate.grid import Grid, require_distinct_names, require_same_queries
from m2dr.evaluate.style import (
    LIGHT,
    PLAIN,
    Look,
    dress,
    head,
    legend_below,
    new_figure,
    stroke,
)
from m2dr.records.cut import Cut

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {LATENCY: "query latency, ms (median)", BYTES: "bytes per document"}


@dataclass(frozen=True)
class Priced:
    """One model's quality and costs at the cuts that have both."""

    model: str
    points: tuple[Candidate, ...]


def priced(grid: Grid, costs: Costs, measure: str) -> Priced:
    """Join a grid with its costs; medians of the latencies.

    Raises:
        UserError: no cut has both, or the grid does not hold `measure`.
    """
    values = grid.values(measure)
    points = tuple(
        Candidate(
            cut,
            values[cut],
            {LATENCY: cost.latency_p50_ms, BYTES: float(cost.bytes_per_document)},
        )
        for cut, cost in sorted(costs.cells.items())
        if cut in values
    )
    if not points:
        raise UserError(f"The costs of {grid.model} are of none of its cuts; measure them again.")
    return Priced(grid.model, points)


def draw_tradeoff(
    grids: Sequence[Grid],
    costs: Mapping[str, Costs],
    measure: str,
    price: str,
    look: Look = LIGHT,
) -> "Figure":
    """Draw `measure` against a price, for the models whose costs are known.

    The line is the frontier over all of them: no cut left of it is as good. Its cuts are named
    where there is room.

    Args:
        grids: of the same queries.
        costs: model -> its costs, at least one of them.
        measure: that all grids hold.
        price: a key of AXES.
        look: of the paper.
    """
    require_same_queries(grids)
    require_distinct_names(grids)
    models = [priced(grid, costs[grid.model], measure) for grid in grids if grid.model in costs]
    if not models:
        raise UserError("The costs of none of these models are known.")
    figure = new_figure(6.4, 4.2, look)
    axes = figure.add_subplot()
    places = {grid.model: place for place, grid in enumerate(grids)}  # one stroke in all figures
    strokes = [{**stroke(look, places[one.model]), "linestyle": "none"} for one in models]
    for one, drawn in zip(models, strokes, strict=True):
        at = [point.costs[price] for point in one.points]
        axes.plot(at, [point.quality for point in one.points], alpha=0.85, **drawn)
    best = frontier([point for one in models for point in one.points], (price,))[::-1]
    # Beyond its last cut the frontier goes on: paying more buys nothing.
    edge = max(point.costs[price] for one in models for point in one.points)
    steps = [(p.costs[price], p.quality) for p in best] + [(edge, best[-1].quality)]
    axes.step(*zip(*steps, strict=True), where="post", color=look.ink, linewidth=1.2, zorder=1)
    _price_axis(axes, [point.costs[price] for one in models for point in one.points])
    axes.set_xlabel(AXES[price])
    axes.set_ylabel(measure, **PLAIN)
    dress(axes, look)
    _legend(figure, models, strokes, look)
    head(figure, f"{grids[0].heading(measure)}: quality against {price}", look)
    _name_cuts(axes, [(p.cut, p.costs[price], p.quality) for p in best], look)
    return figure


def _price_axis(axes: "Axes", values: Sequence[float]) -> None:
    """On a scale where equal steps are equal factors, in plain numbers, three ticks at least.

    The ticks are 1, 2, 5, 10, …, where three of them fall into the range, and else even steps;
    powers of ten alone where the range is wide.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    axes.set_xscale("log")
    low, high = min(values), max(values)
    first, last = int(log10(low)) - 2, int(log10(high)) + 2
    steps = (1, 2, 5) if high < 1000 * low else (1,)  # more would touch
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


def _legend(
    figure: "Figure", models: Sequence[Priced], strokes: Sequence[dict[str, Any]], look: Look
) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **drawn) for drawn in strokes]
    line = Line2D([], [], color=look.ink, linewidth=1.2)
    legend_below(figure, [*handles, line], [*(one.model for one in models), "frontier"], look)


def _name_cuts(axes: "Axes", points: Sequence[tuple[Cut, float, float]], look: Look) -> None:
    """Write the best cuts' names above them; one that would touch another's is left out.

    That of the leftmost stands below and to the right, where it would leave the panel otherwise.
    """
    from matplotlib.figure import Figure

    figure = axes.get_figure()
    if not isinstance(figure, Figure):  # a figure within a figure is nothing that is drawn here
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
                color=look.ink,
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
