"""The parts of a report: heat tables, comparisons, costs, settings; each from what was measured."""

from collections.abc import Mapping, Sequence

from m2dr.errors import counted
from m2dr.evaluate.comparison import Comparison, against_note
from m2dr.evaluate.costs import Cost
from m2dr.evaluate.findings import Finding
from m2dr.evaluate.frontier import frontier
from m2dr.evaluate.grid import Grid, shown
from m2dr.evaluate.html import Cell, bullets, details, facts, paragraphs, table, tag
from m2dr.evaluate.tradeoff import priced
from m2dr.records.cut import Cut


def heat_tables(grids: Sequence[Grid], measure: str) -> str:
    """A table for each model, layers down and dims across, coloured on one scale for all."""
    every = [value for grid in grids for value in grid.values(measure).values()]
    made = [_heat_table(grid, measure, min(every), max(every)) for grid in grids]
    return tag("div", *made, class_="tables")


def comparison_tables(comparisons: Sequence[Comparison]) -> str:
    """Values with their marks, and the differences under them."""
    return tag("div", *map(_comparison_table, comparisons), class_="tables wide")


def alarms_and_notes(grids: Sequence[Grid]) -> str:
    """What looks wrong, then what a reader must know; of which model each is true."""
    alarms = [f"{grid.model}: {alarm}" for grid in grids for alarm in grid.alarms]
    notes = [f"{grid.model}: {note}" for grid in grids for note in grid.notes]
    told = bullets(alarms, class_="alarms") if alarms else paragraphs(["No alarms."])
    return told + bullets(notes)


def cost_tables(findings: Sequence[Finding], measure: str) -> str:
    """The frontier of each model whose costs are known, and all of its cuts on demand."""
    return "".join(_cost_tables(one, measure) for one in findings if one.costs)


def settings_of(name: str, held: Mapping[str, Mapping[str, str]]) -> str:
    """What is known of how a model was made, a table for each file that says so."""
    return "".join(facts(f"{name}: {source}", values) for source, values in held.items())


def _heat_table(grid: Grid, measure: str, low: float, high: float) -> str:
    values = grid.values(measure)
    best = grid.best(measure)

    def cell(cut: Cut) -> Cell:
        if cut not in values:
            return Cell("–", title="not measured")
        heat = (values[cut] - low) / (high - low) if high > low else 1.0
        return Cell(shown(values[cut]), heat, cut == best, title=f"{cut}: {values[cut]:.6f}")

    rows = [(str(layer), [cell(Cut(layer, dim)) for dim in grid.dims]) for layer in grid.layers]
    caption = f"{grid.model}: {measure}; best {shown(values[best])} at {best}"
    return table(caption, ["layer", *map(str, grid.dims)], rows, "heated")


def _comparison_table(one: Comparison) -> str:
    def cell(cut: Cut) -> Cell:
        if cut not in one.values:
            return Cell("–", title="not compared")
        paired = one.cells[cut]
        told = (
            f"{cut}: difference {paired.difference:+.4f}, 95 % between {paired.low:+.4f} and "
            f"{paired.high:+.4f}; corrected p {paired.corrected:.3g}; {paired.wins} won, "
            f"{paired.ties} tied, {paired.losses} lost"
        )
        text = f"{shown(one.values[cut])} {one.mark(cut)}"
        return Cell(text, small=f"{paired.difference:+.4f}", title=told)

    better, same, worse = one.counts()
    rows = [(str(layer), [cell(Cut(layer, dim)) for dim in one.dims]) for layer in one.layers]
    caption = (
        f"{one.model} against {one.against}, {one.measure}; under each value the difference. "
        f"{counted(better, 'cells')} better, {same} not significantly different, {worse} worse"
    )
    head = ["layer", *map(str, one.dims)]
    notes = paragraphs([against_note(one), *one.notes], class_="muted")
    return tag("div", table(caption, head, rows), notes)


def _cost_tables(finding: Finding, measure: str) -> str:
    costs, grid = finding.costs, finding.grid
    if costs is None:
        return ""
    points = priced(grid, costs, measure).points
    best = frontier(points)
    values = grid.values(measure)
    whole = values[max(values)]
    head = ["cut", measure, "share", "p50 ms", "p95 ms", "bytes", "M mult-adds", "documents/s"]

    def row(cut: Cut, on: bool) -> tuple[str, list[Cell]]:
        return f"{cut} ●" if on else str(cut), _costs_of(costs.cells[cut], values[cut], whole)

    chosen = {one.cut for one in best}
    frontier_rows = [row(one.cut, True) for one in best]
    every = [row(one.cut, one.cut in chosen) for one in points]
    where = (
        f"One query at a time over {counted(costs.documents, 'documents', ',')}, "
        f"{counted(costs.queries, 'queries')} of "
        f"{costs.query_tokens:.1f} tokens; {costs.machine}; coordinates as {costs.kept}."
    )
    caption = f"{grid.model}: the frontier of {measure} against latency and bytes (●)"
    all_of_it = table(f"{grid.model}: costs of every measured cut", head, every)
    return (
        table(caption, head, frontier_rows)
        + paragraphs([where], class_="muted")
        + details(f"All {len(points)} cuts of {grid.model}", all_of_it)
    )


def _costs_of(cost: Cost, value: float, whole: float) -> list[Cell]:
    return [
        Cell(shown(value)),
        Cell(f"{value / whole:.1%}" if whole else "–"),
        Cell(f"{cost.latency_p50_ms:.2f}"),
        Cell(f"{cost.latency_p95_ms:.2f}"),
        Cell(f"{cost.bytes_per_document:,}"),
        Cell(f"{cost.multiply_adds / 1e6:,.4g}"),
        Cell(f"{cost.documents_per_second:,.0f}"),
    ]
