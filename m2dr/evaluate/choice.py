"""The cut that was picked, what it was picked from, and how to say so."""

from collections.abc import Sequence
from dataclasses import dataclass

from m2dr.errors import counted
from m2dr.evaluate.costs import Cost, Costs
from m2dr.evaluate.frontier import BYTES, LATENCY, QUALITY, Budget, Candidate, nearest
from m2dr.evaluate.grid import Grid, shown
from m2dr.records.cut import Cut

WORK = "multiply_adds"


@dataclass(frozen=True)
class Choice:
    """The chosen cut, and what it was chosen from."""

    chosen: Candidate
    frontier: tuple[Candidate, ...]  # best quality first
    candidates: tuple[Candidate, ...]
    grid: Grid
    costs: Costs
    measure: str
    percentile: int  # of the latencies
    whole: Cut  # whose quality is a share of 1
    budget: Budget
    notes: tuple[str, ...] = ()

    def share(self, one: Candidate) -> float:
        """Quality as a share of the whole encoder's; 0 where that is none."""
        whole = self.grid.cells[self.whole][self.measure]
        return one.quality / whole if whole else 0.0


def costs_of(cost: Cost, percentile: int) -> dict[str, float]:
    """What a frontier and a budget compare."""
    latency = {50: cost.latency_p50_ms, 95: cost.latency_p95_ms}[percentile]
    return {LATENCY: latency, BYTES: cost.bytes_per_document, WORK: cost.multiply_adds}


def choice_table(choice: Choice) -> str:
    """The chosen cut in a sentence, and the frontier as a table."""
    chosen, measure, costs = choice.chosen, choice.measure, choice.costs
    told = "; ".join(_told(name, value) for name, value in chosen.costs.items())
    return "\n".join(
        [
            f"{chosen.cut}: {measure} {shown(chosen.quality)} "
            f"({choice.share(chosen):.1%} of {choice.whole}); {told}",
            *(f"Note: {note}" for note in choice.notes),
            "",
            f"Frontier: {measure} against query latency (p{choice.percentile}) and bytes per "
            f"document; {len(choice.frontier)} of {counted(len(choice.candidates), 'cuts')}, * "
            "chosen",
            *_rows(choice),
            f"One query at a time over {counted(costs.documents, 'documents', ',')}, "
            f"{counted(costs.queries, 'queries')} of "
            f"{costs.query_tokens:.1f} tokens; {costs.machine}; coordinates as {costs.kept}",
        ]
    )


def nothing_fits(candidates: Sequence[Candidate], budget: Budget, measure: str) -> str:
    """The cuts that miss a budget least, and what each has that it should not."""
    told = [
        f"{one.cut} ({'; '.join(_lacks(one, budget, measure))})"
        for one in nearest(candidates, budget)
    ]
    return f"No cut fits the budget; the nearest are {', '.join(told)}. Raise a limit."


def _lacks(one: Candidate, budget: Budget, measure: str) -> list[str]:
    """What a cut has, and what it was to have."""
    found = []
    for name in budget.misses(one):
        if name == QUALITY:
            found.append(f"{measure} {shown(one.quality)}, not {shown(budget.floor or 0)}")
        else:
            limit = budget.ceilings[name]
            found.append(f"{_told(name, one.costs[name])}, not {_told(name, limit)}")
    return found


def _told(name: str, value: float) -> str:
    """A cost with its unit."""
    if name == LATENCY:
        return f"{value:.3g} ms"
    if name == BYTES:
        return f"{value:,.0f} bytes per document"
    return f"{_millions(value)} M multiply-adds"


def _millions(value: float) -> str:
    """Three digits at least, however small.

    >>> _millions(38_080), _millions(128_065_536), _millions(2_500_000_000)
    ('0.0381', '128', '2,500')
    """
    millions = value / 1e6
    return f"{millions:,.0f}" if millions >= 100 else f"{millions:.3g}"


def _rows(choice: Choice) -> list[str]:
    rows = [["cut", choice.measure, "share", "p50 ms", "p95 ms", "bytes", "M mult-adds", "docs/s"]]
    # Where multiply-adds have a ceiling, the chosen cut need not be on the frontier of the others.
    beside = [] if choice.chosen in choice.frontier else [choice.chosen]
    for one in [*choice.frontier, *beside]:
        cost = choice.costs.cells[one.cut]
        rows.append(
            [
                f"{one.cut}{'*' if one == choice.chosen else ''}",
                shown(one.quality),
                f"{choice.share(one):.1%}",
                f"{cost.latency_p50_ms:.2f}",
                f"{cost.latency_p95_ms:.2f}",
                f"{cost.bytes_per_document:,}",
                _millions(cost.multiply_adds),
                f"{cost.documents_per_second:,.0f}",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
