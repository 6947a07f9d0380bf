"""`m2dr pick`: pick the best cut within a budget, and list the cuts on the frontier."""

from dataclasses import asdict, dataclass
from typing import Any

from m2dr.core.errors import UserError, counted
from m2dr.core.records import Cut
from m2dr.core.report import Report
from m2dr.core.requests import PickRequest
from m2dr.evaluation.costs import (
    BYTES,
    COSTS,
    LATENCY,
    QUALITY,
    WORK,
    Budget,
    Candidate,
    Costs,
    frontier,
    millions,
    nothing_fits,
    pick,
    priced,
    read_costs,
    with_unit,
)
from m2dr.evaluation.grid import Grid, aligned, format_score, html_table, read_provenance
from m2dr.tasks.evaluating.compare import USUAL, grid_of


@dataclass(frozen=True)
class Choice(Report):
    """The chosen cut, and the candidates; `str` is the choice and the frontier as a table."""

    chosen: Candidate
    frontier: tuple[Candidate, ...]  # best quality first
    candidates: tuple[Candidate, ...]
    grid: Grid
    costs: Costs
    measure: str
    percentile: int  # of the latencies: 50 or 95
    whole: Cut  # the full model, whose quality is a share of 1
    budget: Budget

    def __repr__(self) -> str:
        quality = f"{self.measure} {format_score(self.chosen.quality)}"
        return f"<Choice {self.chosen.cut}: {quality}, of {counted(len(self.candidates), 'cuts')}>"

    def share(self, candidate: Candidate) -> float:
        """Return quality as a share of the full model's; 0 where that is 0."""
        full = self.grid.cells[self.whole][self.measure]
        return candidate.quality / full if full else 0.0

    def __str__(self) -> str:
        title, rows = self._table()
        return "\n".join([self._sentence(), "", title, *aligned(rows, left={0}), self.costs.setup])

    def _repr_html_(self) -> str:
        """Return the choice and the frontier as a notebook shows them."""
        return html_table(f"{self._sentence()}. {self._table()[0]}", self._table()[1])

    def _sentence(self) -> str:
        chosen, measure = self.chosen, self.measure
        costs = "; ".join(with_unit(name, value) for name, value in chosen.costs.items())
        return (
            f"{chosen.cut}: {measure} {format_score(chosen.quality)} "
            f"({self.share(chosen):.1%} of {self.whole}); {costs}"
        )

    def _table(self) -> tuple[str, list[list[str]]]:
        chosen, measure = self.chosen, self.measure
        rows = [["cut", measure, "share", "p50 ms", "p95 ms", "bytes", "M mult-adds", "docs/s"]]
        # Where multiply-adds have a ceiling, the chosen cut need not be on the frontier.
        outside = [] if chosen in self.frontier else [chosen]
        for candidate in [*self.frontier, *outside]:
            cost = self.costs.cells[candidate.cut]
            rows.append(
                [
                    f"{candidate.cut}{'*' if candidate == chosen else ''}",
                    format_score(candidate.quality),
                    f"{self.share(candidate):.1%}",
                    f"{cost.latency_p50_ms:.2f}",
                    f"{cost.latency_p95_ms:.2f}",
                    f"{cost.bytes_per_document:,}",
                    millions(cost.multiply_adds),
                    f"{cost.documents_per_second:,.0f}",
                ]
            )
        title = (
            f"Frontier: {measure} against query latency (p{self.percentile}) and bytes per "
            f"document; {len(self.frontier)} of {counted(len(self.candidates), 'cuts')}, * chosen"
        )
        return title, rows

    def record(self) -> dict[str, Any]:
        """Return the chosen cut and the frontier with the names of grid.json and costs.json."""

        def row(candidate: Candidate) -> dict[str, Any]:
            return {
                "layer": candidate.cut.layer,
                "dim": candidate.cut.dim,
                "value": candidate.quality,
                "share": self.share(candidate),
                **asdict(self.costs.cells[candidate.cut]),
            }

        return {
            "model": self.grid.model,
            "corpus": self.grid.corpus,
            "split": self.grid.split,
            "measure": self.measure,
            "percentile": self.percentile,
            "whole": [self.whole.layer, self.whole.dim],
            "budget": {**self.budget.ceilings, QUALITY: self.budget.floor},
            "chosen": row(self.chosen),
            "frontier": [row(candidate) for candidate in self.frontier],
            "notes": self.notes,
            "setup": self.costs.setup,
        }


def pick_cut(request: PickRequest) -> Choice:
    """Choose a cut of a grid.

    With a ceiling on a cost, the one of best quality that fits; with a floor of quality alone, the
    cheapest that is good enough; with neither, the best. Ties go to the cheaper.

    Raises:
        UserError: there is no grid, or its costs are not known and cannot be measured; or no cut
            fits, with the nearest ones and what they lack.
    """
    folder = request.folder
    folder = folder.with_name(request.named(folder.name))
    grid = grid_of(folder)
    floor_of, floor = request.at_least or ("", None)
    if floor_of and request.measure not in ("", floor_of):
        raise UserError(f"--at-least asks for {floor_of}, and --measure for {request.measure}.")
    if request.quality is not None and request.at_least:
        raise UserError("--quality and --at-least both say how good a cut must be; give one.")
    usual = USUAL if USUAL in grid.measures else grid.measures[0]
    measure = request.measure or floor_of or usual
    values = grid.values(measure)
    whole = grid.full
    if request.quality is not None:
        floor = request.quality * values[whole]
        if values[whole] <= 0:
            raise UserError(f"{measure} at {whole} is {values[whole]:g}; give --at-least.")
    if not (folder / COSTS).exists():
        raise UserError(f"{grid.model} has no costs; evaluate retrieval --costs measures them.")
    costs = read_costs(folder)
    candidates = priced(grid, costs, measure, request.percentile)
    ceilings = {
        LATENCY: request.latency_ms,
        BYTES: request.bytes_per_document,
        WORK: request.multiply_adds,
    }
    budget = Budget({name: at for name, at in ceilings.items() if at is not None}, floor)
    chosen = pick(candidates, budget)
    if chosen is None:
        raise UserError(nothing_fits(candidates, budget, measure))
    notes = []
    provenance = read_provenance(folder)
    if provenance and provenance.fingerprint != costs.fingerprint:
        notes.append(
            f"Note: the costs are of {costs.model} with other weights than the results have; "
            "measure them again"
        )
    if left := len(values) - len(candidates):
        notes.append(
            f"Note: {left} of {counted(len(values), 'cuts')} of the grid are no candidates, as "
            "their costs were not measured"
        )
    return Choice(
        chosen=chosen,
        frontier=tuple(frontier(candidates)),
        candidates=tuple(candidates),
        grid=grid,
        costs=costs,
        measure=measure,
        percentile=request.percentile,
        whole=whole,
        budget=budget,
        notes=tuple(notes),
    )
