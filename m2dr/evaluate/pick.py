"""Pick a cut by quality and costs: the frontier, and the best cut within a budget."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.evaluate.costs import Costs
from m2dr.evaluate.grid import Grid, format_score

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
    # The sum of the costs, each as a share of the highest one.
    highest = {name: max(one.costs[name] for one in candidates) for name in names}
    price = {one.cut: fsum(one.costs[n] / highest[n] for n in names) for one in candidates}
    fitting = [one for one in candidates if not budget.misses(one)]
    if budget.floor is not None and not budget.ceilings:
        return min(fitting, key=lambda c: (price[c.cut], -c.quality, c.cut), default=None)
    return min(fitting, key=lambda c: (-c.quality, price[c.cut], c.cut), default=None)


def near_misses(candidates: Sequence[Candidate], budget: Budget, count: int = 3) -> list[Candidate]:
    """Return the cuts that miss a budget least, by the sum of the misses; then the best."""
    lack = {one.cut: fsum(budget.misses(one).values()) for one in candidates}
    return sorted(candidates, key=lambda c: (lack[c.cut], -c.quality, c.cut))[:count]


def nothing_fits(candidates: Sequence[Candidate], budget: Budget, measure: str) -> str:
    """Return the message that names the cuts which miss a budget least, and by what."""

    def lacks(one: Candidate, name: str) -> str:
        if name == QUALITY:
            floor = format_score(budget.floor or 0)
            return f"{measure} {format_score(one.quality)}, not {floor}"
        return f"{with_unit(name, one.costs[name])}, not {with_unit(name, budget.ceilings[name])}"

    nearest = [
        f"{one.cut} ({'; '.join(lacks(one, name) for name in budget.misses(one))})"
        for one in near_misses(candidates, budget)
    ]
    return f"No cut fits the budget; the nearest are {', '.join(nearest)}."


def with_unit(name: str, value: float) -> str:
    """Return a cost with its unit."""
    if name == LATENCY:
        return f"{value:.3g} ms"
    if name == BYTES:
        return f"{value:,.0f} bytes per document"
    return f"{millions(value)} M multiply-adds"


def millions(value: float) -> str:
    """Return a number in millions, with three digits at least.

    >>> millions(38_080), millions(128_065_536), millions(2_500_000_000)
    ('0.0381', '128', '2,500')
    """
    return f"{value / 1e6:,.0f}" if value >= 1e8 else f"{value / 1e6:.3g}"
