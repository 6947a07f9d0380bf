"""Costs of cuts, the frontier of quality and costs, and the best cut within a budget."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from pathlib import Path

from m2dr.core.errors import UserError, counted
from m2dr.core.records import Cut
from m2dr.evaluation.grid import Grid, format_score, read_cells, write_cells

COSTS = "costs.json"


@dataclass(frozen=True)
class Shape:
    """The sizes of an encoder that decide its multiply-adds; all of its layers are alike.

    Layer 0 runs no transformer layer: it sums rows of a table, one per word.
    """

    width: int  # dims of a token's state
    inner: int  # dims between the two matrices of the feed-forward part
    query_width: int  # number of heads times dims of a head
    key_width: int  # the same for keys and values, of which a backbone may have fewer heads
    gated: bool  # whether the feed-forward part has a third matrix, for its gate
    relative: int = 0  # vectors of relative positions that each layer projects and multiplies
    # Layer -> multiply-adds of its exit head and other modules behind pooling.
    exits: Mapping[int, int] = field(default_factory=dict)
    # Layer -> multiply-adds per word of the table that its exit reads.
    tables: Mapping[int, int] = field(default_factory=dict)

    def one_layer(self, tokens: int) -> int:
        """Return the multiply-adds of one layer for a text of `tokens` tokens.

        Every token attends to every other; masks save no multiply-adds. Norms, biases, softmax and
        positions are left out: they grow with the width, not with its square.
        """
        projections = tokens * self.width * 2 * (self.query_width + self.key_width)
        attention = 2 * tokens * tokens * self.query_width  # scores, then the weighted sum
        feed_forward = tokens * self.width * self.inner * (3 if self.gated else 2)
        relative = self.relative * self.query_width * (self.width + tokens)
        return projections + attention + feed_forward + relative

    def encode(self, layer: int, tokens: int) -> int:
        """Return the multiply-adds of a text of `tokens` tokens up to a layer's exit.

        Looking up word embeddings costs none.

        >>> shape = Shape(384, 1536, 384, 384, gated=False, tables={0: 384})
        >>> shape.encode(layer=6, tokens=12), shape.encode(layer=0, tokens=12)
        (128065536, 4608)
        """
        table = tokens * self.tables.get(layer, 0)
        return layer * self.one_layer(tokens) + table + self.exits.get(layer, 0)


def search_multiply_adds(documents: int, dim: int) -> int:
    """Return the multiply-adds of a full scan: one per document and dim."""
    return documents * dim


def bytes_per_document(dim: int) -> int:
    """Return the bytes of a document's vector in an exact index, in float32 without its id."""
    return 4 * dim


@dataclass(frozen=True)
class Cost:
    """The costs of one cut."""

    latency_p50_ms: float  # of one query (tokenise, encode, search), the median
    latency_p95_ms: float  # the 95th percentile
    documents_per_second: float  # encoding speed of the layer whose documents the cut searches
    bytes_per_document: int
    multiply_adds: int  # of one query, encoding and search; the mean over the measured queries
    parameters: int  # in memory to encode queries; at layer 0 those of its table and weights


@dataclass(frozen=True)
class Costs:
    """The costs of every cut of one model on one corpus and machine."""

    model: str  # folder or id, as m2dr was given it
    fingerprint: str
    corpus: str  # as m2dr was given it
    whole: Cut  # the full model: last layer, all dims
    documents_from: str  # layer whose documents all cuts search: "last" or its number; or "same"
    documents: int  # number that a query searches
    queries: int  # number that was timed
    query_tokens: float  # their mean length
    kept: str  # how the index stores vectors: f32
    machine: str  # processor, cores, device and dtype
    cells: Mapping[Cut, Cost]

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Every cut that was measured, smallest layer first."""
        return tuple(sorted(self.cells))

    @property
    def setup(self) -> str:
        """What was timed, on which machine."""
        return (
            f"One query at a time over {counted(self.documents, 'documents', ',')}, "
            f"{counted(self.queries, 'queries')} of {self.query_tokens:.1f} tokens; "
            f"{self.machine}; vectors stored as {self.kept}"
        )

    def document_layer(self, cut: Cut) -> int:
        """Return the layer whose documents the queries of a cut search."""
        if self.documents_from == "last":
            return self.whole.layer
        return cut.layer if self.documents_from == "same" else int(self.documents_from)


def write_costs(costs: Costs, folder: Path) -> None:
    """Write `costs.json`, atomically."""
    write_cells(folder / COSTS, costs)


def read_costs(folder: Path) -> Costs:
    """Read what `write_costs` wrote.

    Raises:
        UserError: there is no such file, or it is not one; with the file and what is wrong.
    """
    return read_cells(folder / COSTS, Costs)


# Picking a cut

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
        raise UserError(f"The costs of {grid.model} are of other cuts than its grid.")
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


def nothing_fits(candidates: Sequence[Candidate], budget: Budget, measure: str) -> str:
    """Return the message that names the cuts which miss a budget least, and by what."""

    def lacks(one: Candidate, name: str) -> str:
        if name == QUALITY:
            floor = format_score(budget.floor or 0)
            return f"{measure} {format_score(one.quality)}, not {floor}"
        return f"{with_unit(name, one.costs[name])}, not {with_unit(name, budget.ceilings[name])}"

    lack = {one.cut: fsum(budget.misses(one).values()) for one in candidates}
    nearest = [
        f"{one.cut} ({'; '.join(lacks(one, name) for name in budget.misses(one))})"
        for one in sorted(candidates, key=lambda c: (lack[c.cut], -c.quality, c.cut))[:3]
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
