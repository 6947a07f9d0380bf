"""What a reader wants to know first: the best cut, the cheapest good one, what elasticity costs."""

from collections.abc import Sequence

from m2dr.errors import counted
from m2dr.evaluate.findings import Finding
from m2dr.evaluate.frontier import PRICES, Candidate, prices
from m2dr.evaluate.grid import Grid, shown
from m2dr.evaluate.tradeoff import priced
from m2dr.records.cut import Cut

PLAIN = "plain"  # the recipe that trains the whole alone
GOOD_ENOUGH = 0.97  # of the whole encoder's quality


def sentences(findings: Sequence[Finding], measure: str) -> list[str]:
    """What was measured, then each model's best and smallest good cut, then what elasticity costs.

    Args:
        findings: at least one, all of one corpus and split.
        measure: that all of their grids hold.
    """
    first = findings[0].grid
    cuts = sum(len(one.grid.cuts) for one in findings)
    models, queries = counted(len(findings), "models"), counted(first.queries, first.unit)
    told = [
        f"{models} on {first.place}, {queries}, at {counted(cuts, 'cuts')} in all; "
        f"measured: {', '.join(first.measures)}."
    ]
    told += [_of_model(one, measure) for one in findings]
    return told + _price_of_elasticity([one.grid for one in findings], measure)


def _of_model(finding: Finding, measure: str) -> str:
    grid = finding.grid
    values = grid.values(measure)
    whole, best = max(values), grid.best(measure)
    told = f"{grid.model}: best {measure} {shown(values[best])} at {best}"
    if len(values) == 1 or values[whole] <= 0:
        return f"{told}."
    small = _smallest_good(finding, measure)
    if small == whole:
        return f"{told}; no smaller cut keeps {GOOD_ENOUGH:.0%} of what {whole} is worth."
    how = "cheapest" if finding.costs else "smallest"
    share = values[small] / values[whole]
    told += f"; the {how} cut worth {GOOD_ENOUGH:.0%} of {whole} is {small}, with {share:.1%}"
    return f"{told}{_cost_of(finding, small, whole)}."


def _smallest_good(finding: Finding, measure: str) -> Cut:
    """The cheapest where costs are known, else that of the fewest layers times coordinates.

    Those of layer 0 have no layers to count: the shortest of them comes before all others.
    """
    values = finding.grid.values(measure)
    whole = max(values)
    price: dict[Cut, float] = {cut: float(cut.layer * cut.dim) for cut in values}
    if finding.costs:
        points: Sequence[Candidate] = priced(finding.grid, finding.costs, measure).points
        price = prices(points, PRICES)
    good = [cut for cut in price if values[cut] >= GOOD_ENOUGH * values[whole]]
    return min(good, key=lambda cut: (price[cut], cut), default=whole)


def _cost_of(finding: Finding, small: Cut, whole: Cut) -> str:
    if not finding.costs or whole not in finding.costs.cells:
        return ""
    one, other = finding.costs.cells[small], finding.costs.cells[whole]
    return (
        f": a query takes {one.latency_p50_ms:.3g} ms where {whole} takes "
        f"{other.latency_p50_ms:.3g}, and a document {one.bytes_per_document:,} bytes where it "
        f"takes {other.bytes_per_document:,}"
    )


def _price_of_elasticity(grids: Sequence[Grid], measure: str) -> list[str]:
    """What the models have at the largest common cut, beside the one trained for it alone.

    That one is called plain, or ends so; where there is none, it is the best.
    """
    common = set(grids[0].cuts).intersection(*(grid.cuts for grid in grids))
    if len(grids) < 2 or not common:
        return []
    whole = max(common)
    values = {grid.model: grid.cells[whole][measure] for grid in grids}
    plain = [model for model in values if model == PLAIN or model.endswith(f"-{PLAIN}")]
    first = plain[0] if len(plain) == 1 else max(values, key=lambda model: values[model])
    others = [
        f"{model} {_signed(value - values[first])}"
        for model, value in values.items()
        if model != first
    ]
    return [
        f"What elasticity costs at {whole}: against {first} with {shown(values[first])}, "
        f"{', '.join(others)}."
    ]


def _signed(value: float) -> str:
    """A difference with its sign.

    >>> _signed(-0.0136), _signed(0.0), _signed(0.25)
    ('−.0136', '.0000', '+.2500')
    """
    if abs(value) < 0.00005:
        return ".0000"
    return ("+" if value > 0 else "−") + shown(abs(value))
