"""The page of `m2dr report`: the results as one HTML file that needs no network and no scripts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from m2dr.core.errors import counted
from m2dr.core.records import Cut
from m2dr.evaluate.comparison import Comparison, against_note, format_difference
from m2dr.evaluate.costs import Cost, Costs
from m2dr.evaluate.grid import Grid, format_score
from m2dr.evaluate.pick import frontier, priced, prices
from m2dr.evaluate.results import ModelResult
from m2dr.evaluate.theme import DARK, LIGHT, inks, inline_svg, legal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = "report.html.j2"
BASELINE = "plain"  # the recipe that trains the full model alone
GOOD_ENOUGH = 0.97  # share of the full model's quality
_COSTS = ("p50 ms", "p95 ms", "bytes", "M mult-adds", "documents/s")


@dataclass(frozen=True)
class PageFigure:
    """A figure in the light theme, and its caption."""

    figure: "Figure"
    caption: str


@dataclass(frozen=True)
class PlaceContent:
    """The results on one corpus and split."""

    place: str
    results: tuple[ModelResult, ...]
    measure: str  # of the summary and the costs
    figures: tuple[PageFigure, ...]
    notes: tuple[str, ...]  # why some figure is not there


@dataclass(frozen=True)
class PageContent:
    """Everything that the page shows."""

    title: str
    places: tuple[PlaceContent, ...]
    figures: tuple[PageFigure, ...]  # of no single place
    models: Mapping[str, Mapping[str, Mapping[str, str]]]  # model -> file -> name -> value
    versions: Mapping[str, str]  # package -> version
    commands: tuple[str, ...]
    written: str  # when, and by what
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    heat: float | None = None  # strength of the background colour, 0 to 1
    strong: bool = False
    small: str = ""  # a second line
    title: str = ""  # tooltip


@dataclass(frozen=True)
class Table:
    """One table of the page."""

    caption: str
    head: Sequence[str]  # of the columns, that of the row names first
    rows: Sequence[tuple[str, Sequence[Cell]]]  # name and cells
    kind: str = "plain"  # CSS class


def html_page(content: PageContent) -> str:
    """Return the page as text."""
    environment = Environment(
        loader=PackageLoader("m2dr.evaluate", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        finalize=lambda value: legal(value) if type(value) is str else value,
    )
    light, dark = (
        ";".join(f"{name}:{colour}" for name, colour in inks(theme).items())
        for theme in (LIGHT, DARK)
    )
    return environment.get_template(TEMPLATE).render(
        title=content.title,
        written=content.written,
        light=light,
        dark=dark,
        places=[_place(one, number) for number, one in enumerate(content.places, 1)],
        figures=_figures(content.figures, "overlap"),
        models={
            name: [_facts(f"{name}: {file}", values) for file, values in held.items() if values]
            for name, held in content.models.items()
        },
        commands=content.commands,
        notes=content.notes,
        versions=_facts("Versions of what this page was made with", content.versions),
    )


def sentences(results: Sequence[ModelResult], measure: str) -> list[str]:
    """Return a summary: what was measured, each model's best cut, and what elasticity costs.

    Args:
        results: at least one, all of one corpus and split.
        measure: one that all of their grids hold.
    """
    first = results[0].grid
    cuts = sum(len(one.grid.cuts) for one in results)
    models, queries = counted(len(results), "models"), counted(first.queries, first.unit)
    lines = [
        f"{models} on {first.place}, {queries}, at {counted(cuts, 'cuts')} in all; "
        f"measured: {', '.join(first.measures)}."
    ]
    lines += [_of_model(one, measure) for one in results]
    return lines + _price_of_elasticity([one.grid for one in results], measure)


def _of_model(result: ModelResult, measure: str) -> str:
    grid, values = result.grid, result.grid.values(measure)
    full, best = max(values), grid.best(measure)
    text = f"{grid.model}: best {measure} {format_score(values[best])} at {best}"
    if len(values) == 1 or values[full] <= 0:
        return f"{text}."
    small = _smallest_good(result, measure)
    if small == full:
        return f"{text}; no smaller cut keeps {GOOD_ENOUGH:.0%} of what {full} is worth."
    how = "cheapest" if result.costs else "smallest"
    share = values[small] / values[full]
    text += f"; the {how} cut worth {GOOD_ENOUGH:.0%} of {full} is {small}, with {share:.1%}"
    if not result.costs or full not in result.costs.cells:
        return f"{text}."
    one, other = result.costs.cells[small], result.costs.cells[full]
    return (
        f"{text}: a query takes {one.latency_p50_ms:.3g} ms where {full} takes "
        f"{other.latency_p50_ms:.3g}, and a document {one.bytes_per_document:,} bytes where it "
        f"takes {other.bytes_per_document:,}."
    )


def _smallest_good(result: ModelResult, measure: str) -> Cut:
    """Return the cheapest good cut where costs are known, else that of the least layers × dims.

    Without costs, good cuts of layer 0 come first, shortest first, as their product is 0.
    """
    values = result.grid.values(measure)
    full = max(values)
    price: dict[Cut, float] = {cut: float(cut.layer * cut.dim) for cut in values}
    if result.costs:
        price = prices(priced(result.grid, result.costs, measure))
    good = [cut for cut in price if values[cut] >= GOOD_ENOUGH * values[full]]
    return min(good, key=lambda cut: (price[cut], cut), default=full)


def _price_of_elasticity(grids: Sequence[Grid], measure: str) -> list[str]:
    """Compare the models at their largest common cut with the one trained for that cut alone.

    That one is called plain, or ends in -plain; where there is none, the best takes its place.
    """
    common = set(grids[0].cuts).intersection(*(grid.cuts for grid in grids))
    if len(grids) < 2 or not common:
        return []
    full = max(common)
    values = {grid.model: grid.cells[full][measure] for grid in grids}
    plain = [name for name in values if name == BASELINE or name.endswith(f"-{BASELINE}")]
    first = plain[0] if len(plain) == 1 else max(values, key=lambda model: values[model])
    others = [
        f"{model} {format_difference(value - values[first]).replace('-', '−')}"
        for model, value in values.items()
        if model != first
    ]
    return [
        f"What elasticity costs at {full}: against {first} with {format_score(values[first])}, "
        f"{', '.join(others)}."
    ]


def _place(one: PlaceContent, number: int) -> dict[str, Any]:
    """Return what the template shows of one corpus and split."""
    grids = [result.grid for result in one.results]
    measures = dict.fromkeys(name for grid in grids for name in grid.measures)
    return {
        "name": one.place,
        "summary": sentences(one.results, one.measure),
        "checks": [f"{grid.model}: {check}" for grid in grids for check in grid.checks],
        "notes": [f"{grid.model}: {note}" for grid in grids for note in grid.notes],
        "absent": one.notes,
        "measures": {name: _heat_tables(grids, name) for name in measures},
        "comparisons": [
            {"table": _comparison_table(each), "notes": (against_note(each), *each.notes)}
            for result in one.results
            for each in result.comparisons
        ],
        "costs": [
            _costs(result.grid, result.costs, one.measure) for result in one.results if result.costs
        ],
        "figures": _figures(one.figures, f"figure-{number}"),
    }


def _figures(figures: Sequence[PageFigure], key: str) -> list[dict[str, str]]:
    return [
        {
            "caption": one.caption,
            "svg": inline_svg(
                one.figure,
                f"{key}-{number}",
                f"{one.caption} {one.figure.get_suptitle()}".replace("\n", " "),
            ),
        }
        for number, one in enumerate(figures, 1)
    ]


def _facts(caption: str, values: Mapping[str, str]) -> Table:
    """Return names and values as a table of two columns."""
    rows = [(name, [Cell(value)]) for name, value in values.items()]
    return Table(caption, ["what", "value"], rows, "facts")


def _heat_tables(grids: Sequence[Grid], measure: str) -> list[Table]:
    """Return a coloured table for each grid that holds a measure; all share one colour scale."""
    held = [grid for grid in grids if measure in grid.measures]
    every = [value for grid in held for value in grid.values(measure).values()]
    low, high = min(every), max(every)

    def cell(values: Mapping[Cut, float], cut: Cut, best: Cut) -> Cell:
        if cut not in values:
            return Cell("–", title="not measured")
        heat = (values[cut] - low) / (high - low) if high > low else 1.0
        return Cell(format_score(values[cut]), heat, cut == best, title=f"{cut}: {values[cut]:.6f}")

    tables = []
    for grid in held:
        values, best = grid.values(measure), grid.best(measure)
        rows = [
            (str(layer), [cell(values, Cut(layer, dim), best) for dim in grid.dims])
            for layer in grid.layers
        ]
        caption = f"{grid.model}: {measure}; best {format_score(values[best])} at {best}"
        tables.append(Table(caption, ["layer", *map(str, grid.dims)], rows, "heated"))
    return tables


def _comparison_table(one: Comparison) -> Table:
    def cell(cut: Cut) -> Cell:
        if cut not in one.values:
            return Cell("–", title="not compared")
        paired = one.cells[cut]
        title = (
            f"{cut}: difference {paired.difference:+.4f}, 95 % between {paired.low:+.4f} and "
            f"{paired.high:+.4f}; corrected p {paired.corrected:.3g}; {paired.wins} won, "
            f"{paired.ties} tied, {paired.losses} lost"
        )
        text = f"{format_score(one.values[cut])} {one.mark(cut)}"
        return Cell(text, small=f"{paired.difference:+.4f}", title=title)

    better, same, worse = one.counts()
    rows = [(str(layer), [cell(Cut(layer, dim)) for dim in one.dims]) for layer in one.layers]
    caption = (
        f"{one.model} against {one.against}, {one.measure}; under each value the difference. "
        f"{counted(better, 'cells')} better, {same} not significantly different, {worse} worse"
    )
    return Table(caption, ["layer", *map(str, one.dims)], rows)


def _costs(grid: Grid, costs: Costs, measure: str) -> dict[str, Any]:
    """Return the frontier of a model and the costs of all of its cuts, as tables."""
    points = priced(grid, costs, measure)
    best = [one.cut for one in frontier(points)]
    values = grid.values(measure)
    full = values[max(values)]
    head = ["cut", measure, "share", *_COSTS]

    def row(cut: Cut) -> tuple[str, list[Cell]]:
        name = f"{cut} ●" if cut in best else str(cut)
        return name, _cost_cells(costs.cells[cut], values[cut], full)

    return {
        "model": grid.model,
        "frontier": Table(
            f"{grid.model}: the frontier of {measure} against latency and bytes (●)",
            head,
            [row(cut) for cut in best],
        ),
        "setup": f"{costs.setup}.",
        "cuts": Table(
            f"{grid.model}: costs of every measured cut", head, [row(one.cut) for one in points]
        ),
    }


def _cost_cells(cost: Cost, value: float, full: float) -> list[Cell]:
    texts = (
        format_score(value),
        f"{value / full:.1%}" if full else "–",
        f"{cost.latency_p50_ms:.2f}",
        f"{cost.latency_p95_ms:.2f}",
        f"{cost.bytes_per_document:,}",
        f"{cost.multiply_adds / 1e6:,.4g}",
        f"{cost.documents_per_second:,.0f}",
    )
    return list(map(Cell, texts))
