"""Pick a cut by quality and costs: the frontier, a budget, and the choice as text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import fsum
from typing import Any

from m2dr.core.errors import UserError, counted
from m2dr.core.records import Cut
from m2dr.evaluate.costs import Costs
from m2dr.evaluate.grid import Grid, aligned, format_score

LATENCY, BYTES, WORK = "latency", "bytes", "multiply_adds"  # costs, by name
PRICES = (LATENCY, BYTES)  # the costs that decide which of two cuts is cheaper
QUALITY = "quality"


@dataclass(frozen=True)
class Candidate:
    """One cut with its quality and its costs; of every cost, less is better."""

    cut: Cut
    quality: float
    costs: Mapping[str, float]

    def dominates(self, other: "Candidate", names: Sequence[str]) -> bool:
        """Return whether it is better than `other` in one respect at least, and worse in none."""
        pairs = [(self.costs[name], other.costs[name]) for name in names]
        pairs.append((-self.quality, -other.quality))
        return all(mine <= yours for mine, yours in pairs) and any(a < b for a, b in pairs)


@dataclass(frozen=True)
class Budget:
    """The limits of a choice: the highest costs and the lowest quality."""

    ceilings: Mapping[str, float] = field(default_factory=dict)
    floor: float | None = None

    def misses(self, candidate: Candidate) -> dict[str, float]:
        """Return by how much a cut misses each limit, as a share of it; empty when it fits.

        >>> Budget({"latency": 4.0}).misses(Candidate(Cut(6, 384), 0.3, {"latency": 5.0}))
        {'latency': 0.25}
        """
        over = {
            name: candidate.costs[name] / limit - 1
            for name, limit in self.ceilings.items()
            if candidate.costs[name] > limit
        }
        if self.floor is not None and candidate.quality < self.floor:
            over[QUALITY] = 1 - candidate.quality / self.floor
        return over


def priced(grid: Grid, costs: Costs, measure: str, percentile: int = 50) -> list[Candidate]:
    """Return the cuts of a grid whose costs are known, with their quality and costs.

    Args:
        grid: of one model.
        costs: of the same model.
        measure: of quality, one that the grid holds.
        percentile: of the latencies: 50 or 95.

    Raises:
        UserError: no cut of the grid has costs, or the grid does not hold `measure`.
    """
    found = []
    for cut, quality in grid.values(measure).items():
        if cut in costs.cells:
            cost = costs.cells[cut]
            latency = cost.latency_p95_ms if percentile == 95 else cost.latency_p50_ms
            held = {LATENCY: latency, BYTES: cost.bytes_per_document, WORK: cost.multiply_adds}
            found.append(Candidate(cut, quality, held))
    if not found:
        raise UserError(
            f"The costs of {grid.model} are of other cuts than its grid; measure them again."
        )
    return found


def frontier(candidates: Iterable[Candidate], names: Sequence[str] = PRICES) -> list[Candidate]:
    """Return the cuts that no other one dominates, best quality first.

    In the order below every cut comes after those that dominate it, and a dominated cut is always
    dominated by one that is kept; so each is compared with those kept so far.
    """
    kept: list[Candidate] = []
    for one in sorted(candidates, key=lambda c: (-c.quality, *(c.costs[n] for n in names), c.cut)):
        if not any(better.dominates(one, names) for better in kept):
            kept.append(one)
    return kept


def pick(
    candidates: Sequence[Candidate], budget: Budget, names: Sequence[str] = PRICES
) -> Candidate | None:
    """Return the best cut within a budget; None when none fits.

    With a ceiling on some cost it is the one of best quality, and of equal ones the cheapest. With
    a floor of quality alone it is the cheapest, and of equal ones the best. It is never dominated
    by another cut that fits.
    """
    price = prices(candidates, names)
    fitting = [one for one in candidates if not budget.misses(one)]
    if budget.floor is not None and not budget.ceilings:
        return min(fitting, key=lambda c: (price[c.cut], -c.quality, c.cut), default=None)
    return min(fitting, key=lambda c: (-c.quality, price[c.cut], c.cut), default=None)


def prices(candidates: Sequence[Candidate], names: Sequence[str] = PRICES) -> dict[Cut, float]:
    """Return one price per cut: the sum of its costs, each as a share of the highest one."""
    highest = {name: max(one.costs[name] for one in candidates) for name in names}
    return {one.cut: fsum(one.costs[n] / highest[n] for n in names) for one in candidates}


def near_misses(candidates: Sequence[Candidate], budget: Budget, count: int = 3) -> list[Candidate]:
    """Return the cuts that miss a budget least, by the sum of the misses; then the best."""
    lack = {one.cut: fsum(budget.misses(one).values()) for one in candidates}
    return sorted(candidates, key=lambda c: (lack[c.cut], -c.quality, c.cut))[:count]


@dataclass(frozen=True)
class Choice:
    """The chosen cut, and the candidates."""

    chosen: Candidate
    frontier: tuple[Candidate, ...]  # best quality first
    candidates: tuple[Candidate, ...]
    grid: Grid
    costs: Costs
    measure: str
    percentile: int  # of the latencies: 50 or 95
    whole: Cut  # the full model, whose quality is a share of 1
    budget: Budget
    notes: tuple[str, ...] = ()

    def share(self, one: Candidate) -> float:
        """Return quality as a share of the full model's; 0 where that is 0."""
        full = self.grid.cells[self.whole][self.measure]
        return one.quality / full if full else 0.0


def choice_table(choice: Choice) -> str:
    """Return the chosen cut as a line, and the frontier as a table."""
    chosen, measure, costs = choice.chosen, choice.measure, choice.costs
    values = "; ".join(_with_unit(name, value) for name, value in chosen.costs.items())
    return "\n".join(
        [
            f"{chosen.cut}: {measure} {format_score(chosen.quality)} "
            f"({choice.share(chosen):.1%} of {choice.whole}); {values}",
            *(f"Note: {note}" for note in choice.notes),
            "",
            f"Frontier: {measure} against query latency (p{choice.percentile}) and bytes per "
            f"document; {len(choice.frontier)} of {counted(len(choice.candidates), 'cuts')}, * "
            "chosen",
            *_rows(choice),
            costs.setup,
        ]
    )


def choice_record(choice: Choice) -> dict[str, Any]:
    """Return the chosen cut and the frontier with the names that grid.json and costs.json have."""
    grid, budget = choice.grid, choice.budget
    return {
        "model": grid.model,
        "corpus": grid.corpus,
        "split": grid.split,
        "measure": choice.measure,
        "percentile": choice.percentile,
        "whole": [choice.whole.layer, choice.whole.dim],
        "budget": {**budget.ceilings, QUALITY: budget.floor},
        "chosen": _record_of(choice, choice.chosen),
        "frontier": [_record_of(choice, one) for one in choice.frontier],
        "notes": choice.notes,
        "setup": choice.costs.setup,
    }


def _record_of(choice: Choice, one: Candidate) -> dict[str, Any]:
    head = {"layer": one.cut.layer, "dim": one.cut.dim, "value": one.quality}
    return {**head, "share": choice.share(one), **asdict(choice.costs.cells[one.cut])}


def nothing_fits(candidates: Sequence[Candidate], budget: Budget, measure: str) -> str:
    """Return the message that names the cuts which miss a budget least, and by what."""
    missing = [
        f"{one.cut} ({'; '.join(_lacks(one, budget, measure))})"
        for one in near_misses(candidates, budget)
    ]
    return f"No cut fits the budget; the nearest are {', '.join(missing)}. Raise a limit."


def _lacks(one: Candidate, budget: Budget, measure: str) -> list[str]:
    """Return the values of a cut that miss the budget, each with its limit."""
    found = []
    for name in budget.misses(one):
        if name == QUALITY:
            found.append(
                f"{measure} {format_score(one.quality)}, not {format_score(budget.floor or 0)}"
            )
        else:
            limit = budget.ceilings[name]
            found.append(f"{_with_unit(name, one.costs[name])}, not {_with_unit(name, limit)}")
    return found


def _with_unit(name: str, value: float) -> str:
    """Return a cost with its unit."""
    if name == LATENCY:
        return f"{value:.3g} ms"
    if name == BYTES:
        return f"{value:,.0f} bytes per document"
    return f"{_millions(value)} M multiply-adds"


def _millions(value: float) -> str:
    """Return a number in millions, with three digits at least.

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
                format_score(one.quality),
                f"{choice.share(one):.1%}",
                f"{cost.latency_p50_ms:.2f}",
                f"{cost.latency_p95_ms:.2f}",
                f"{cost.bytes_per_document:,}",
                _millions(cost.multiply_adds),
                f"{cost.documents_per_second:,.0f}",
            ]
        )
    return aligned(rows, left={0})
