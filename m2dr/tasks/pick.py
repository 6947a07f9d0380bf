"""`m2dr pick`: pick the best cut within a budget, and list the cuts on the frontier."""

from pathlib import Path

from m2dr.core.errors import UserError, command
from m2dr.core.progress import say
from m2dr.core.records import Cut
from m2dr.core.requests import INDEXES, MODELS, CostsRequest, PickRequest
from m2dr.evaluate.costs import COSTS, Costs, measuring, read_costs
from m2dr.evaluate.grid import Grid, Provenance, read_provenance
from m2dr.evaluate.pick import (
    BYTES,
    LATENCY,
    WORK,
    Budget,
    Choice,
    frontier,
    nothing_fits,
    pick,
    priced,
)
from m2dr.tasks.compare import USUAL, grid_of
from m2dr.tasks.costs import measure_costs
from m2dr.tasks.ranking import INDEX_EXITS, pairing_of


def pick_cut(request: PickRequest) -> Choice:
    """Choose a cut of a grid.

    With a ceiling on a cost, the one of best quality that fits; with a floor of quality alone, the
    cheapest that is good enough; with neither, the best. Ties go to the cheaper.

    Raises:
        UserError: there is no grid, or its costs are not known and cannot be measured; or no cut
            fits, with the nearest ones and what they lack.
    """
    grid = grid_of(request.folder)
    measure = _measure(request, grid)
    values = grid.values(measure)
    whole = max(values)
    if request.quality is not None and values[whole] <= 0:
        raise UserError(
            f"The {measure} of {grid.model} at {whole} is {values[whole]:g}, of which no share can "
            f"be kept; give a floor as --at-least {measure}=VALUE."
        )
    costs = _costs(request, grid)
    if not values.keys() & costs.cells.keys():
        raise UserError(
            f"{request.folder / COSTS} knows none of the cuts of the grid. Measure them with: "
            f"{measuring(request.folder)}"
        )
    candidates = priced(grid, costs, measure, request.percentile)
    budget = _budget(request, values[whole])
    chosen = pick(candidates, budget)
    if chosen is None:
        raise UserError(nothing_fits(candidates, budget, measure))
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
        notes=tuple(_notes(request.folder, grid, costs, whole, len(candidates))),
    )


def _measure(request: PickRequest, grid: Grid) -> str:
    asked = request.at_least[0] if request.at_least else ""
    if asked and request.measure and asked != request.measure:
        raise UserError(
            f"--at-least asks for {asked} and --measure for {request.measure}; a cut is picked by "
            f"one measure."
        )
    if request.quality is not None and request.at_least:
        raise UserError("--quality and --at-least both say how good a cut must be; give one.")
    usual = USUAL if USUAL in grid.measures else grid.measures[0]
    return request.measure or asked or usual


def _budget(request: PickRequest, whole: float) -> Budget:
    ceilings = {
        LATENCY: request.latency_ms,
        BYTES: request.bytes_per_document,
        WORK: request.multiply_adds,
    }
    floor = request.at_least[1] if request.at_least else None
    if request.quality is not None:
        floor = request.quality * whole
    return Budget({name: at for name, at in ceilings.items() if at is not None}, floor)


def _costs(request: PickRequest, grid: Grid) -> Costs:
    """Read the costs kept with the grid; measure them if there are none or when asked to."""
    kept = (request.folder / COSTS).exists()
    if kept and not request.measure_costs:
        return read_costs(request.folder)
    known = _measured(request.folder) or read_provenance(request.folder)
    name, pairing = pairing_of(grid.model)
    by_index = name.endswith(INDEX_EXITS)
    model = request.model or (known.model if known else _model(name.removesuffix(INDEX_EXITS)))
    if not request.model:
        reason = "whose results these are" if known else "which has the name of these results"
        say(f"Model: {model}, {reason}; --model names another.")
    asked = CostsRequest(
        model=model,
        corpus=request.corpus or (known.corpus if known else grid.corpus),
        split=grid.split or "test",
        layers=grid.layers,
        dims=grid.dims,
        pairing=pairing,
        exits="index" if by_index else "model",
        root=request.root,
        device=request.device,
        dtype=request.dtype,
    )
    try:
        return measure_costs(asked, request.folder)
    except UserError as error:
        raise UserError(
            f"The costs of {request.folder} were to be measured, with --model {asked.model} "
            f"--corpus {asked.corpus}, and could not be: {error}"
        ) from error


def _measured(folder: Path) -> Costs | None:
    """Read the costs that are to be measured again, if they can be read."""
    try:
        return read_costs(folder)
    except UserError:
        return None


def _provenance(folder: Path) -> Provenance | None:
    """Read how the results were made, if that can be read."""
    try:
        return read_provenance(folder)
    except UserError:
        return None


def _model(name: str) -> str:
    """Find the model of a grid, by its name."""
    folder = MODELS / name
    if not folder.is_dir():
        raise UserError(
            f"The costs of {name} were never measured, and there is no {folder} to measure; "
            f"say where the model is with --model, and its corpus with --corpus."
        )
    return str(folder)


def _notes(folder: Path, grid: Grid, costs: Costs, whole: Cut, compared: int) -> list[str]:
    notes = []
    made = _provenance(folder)
    if made and made.fingerprint != costs.fingerprint:
        notes.append(
            f"the costs are of {costs.model} with other weights than the results have; measure "
            f"them with: {command('pick', folder, model=made.model, measure_costs=True)}"
        )
    if whole != costs.whole:
        notes.append(
            f"the grid does not reach the full model, {costs.whole}; shares are of {whole}"
        )
    if compared < len(grid.cuts):
        notes.append(f"costs of {len(grid.cuts) - compared} of {len(grid.cuts)} cuts are not known")
    return notes


def commands(choice: Choice, indexes: Path = INDEXES) -> list[str]:
    """Return the commands that use the chosen cut."""
    costs, cut = choice.costs, choice.chosen.cut
    documents = costs.document_layer(cut)
    root = None if indexes == INDEXES else indexes
    where = {"model": costs.model, "corpus": costs.corpus, "indexes": root}
    of_index = pairing_of(choice.grid.model)[0].endswith(INDEX_EXITS)
    # A search by queries of a shallow layer takes the exits of the index unless it is told.
    shallow = cut.layer < costs.whole.layer == documents
    exits = ("index" if of_index else "model") if shallow else None
    found = [
        command("index", "corpus", **where, layer=documents, dim=cut.dim),
        command(
            "search",
            "a query",
            **where,
            query_layer=cut.layer,
            document_layer=documents,
            dim=cut.dim,
            exits=exits,
        ),
    ]
    if costs.documents_from == "same" and cut.layer > 0 and cut != costs.whole:
        out = f"{costs.model.rstrip('/')}-{cut}"
        found.insert(0, command("export", costs.model, cut=cut, out=out))
    return found
