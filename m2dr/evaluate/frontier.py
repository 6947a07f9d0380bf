"""Which cuts are worth having, and which of them fits a budget."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum

from m2dr.records.cut import Cut

# What makes a cut cheap, when quality does not decide: what a query costs, and what a document.
LATENCY, BYTES = "latency", "bytes"
PRICES = (LATENCY, BYTES)
QUALITY = "quality"


@dataclass(frozen=True)
class Candidate:
    """One cut, what it is worth and what it costs; of every cost, less is better."""

    cut: Cut
    quality: float
    costs: Mapping[str, float]

    def dominates(self, other: "Candidate", names: Sequence[str]) -> bool:
        """Whether it is nowhere worse than `other`, and somewhere better."""
        pairs = [(self.costs[name], other.costs[name]) for name in names]
        pairs.append((-self.quality, -other.quality))
        return all(mine <= yours for mine, yours in pairs) and any(a < b for a, b in pairs)


@dataclass(frozen=True)
class Budget:
    """What a cut may cost at most, and what it must be worth at least."""

    ceilings: Mapping[str, float] = field(default_factory=dict)
    floor: float | None = None

    def misses(self, candidate: Candidate) -> dict[str, float]:
        """By how much a cut misses each limit, as a share of that limit; empty when it fits.

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


def frontier(candidates: Iterable[Candidate], names: Sequence[str] = PRICES) -> list[Candidate]:
    """The cuts that no other one dominates, best quality first.

    Whoever dominates a cut stands before it in the order below, and whoever is dominated is
    dominated by one that is kept: each cut is compared with those kept so far.
    """
    kept: list[Candidate] = []
    for one in sorted(candidates, key=lambda c: (-c.quality, *(c.costs[n] for n in names), c.cut)):
        if not any(better.dominates(one, names) for better in kept):
            kept.append(one)
    return kept


def pick(
    candidates: Sequence[Candidate], budget: Budget, names: Sequence[str] = PRICES
) -> Candidate | None:
    """The cut to take within a budget; None when none fits.

    With a ceiling on some cost it is the one of best quality, and of equal ones the cheapest. With
    a floor of quality alone it is the cheapest, and of equal ones the best. Never one that another
    fitting cut dominates.
    """
    price = prices(candidates, names)
    fitting = [one for one in candidates if not budget.misses(one)]
    if budget.floor is not None and not budget.ceilings:
        return min(fitting, key=lambda c: (price[c.cut], -c.quality, c.cut), default=None)
    return min(fitting, key=lambda c: (-c.quality, price[c.cut], c.cut), default=None)


def prices(candidates: Sequence[Candidate], names: Sequence[str] = PRICES) -> dict[Cut, float]:
    """One number per cut: the sum of its costs, each as a share of the highest there is."""
    highest = {name: max(one.costs[name] for one in candidates) for name in names}
    return {one.cut: fsum(one.costs[n] / highest[n] for n in names) for one in candidates}


def nearest(candidates: Sequence[Candidate], budget: Budget, count: int = 3) -> list[Candidate]:
    """The cuts that miss a budget least, by the sum of what they lack; of equal ones the best."""
    lack = {one.cut: fsum(budget.misses(one).values()) for one in candidates}
    return sorted(candidates, key=lambda c: (lack[c.cut], -c.quality, c.cut))[:count]
