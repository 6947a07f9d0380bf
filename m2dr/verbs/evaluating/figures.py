"""`m2dr figures`: the papers' pictures from whatever evaluations left."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from m2dr.errors import UserError
from m2dr.evaluate.curves import draw_gap_to, draw_gap_to_whole, draw_quality
from m2dr.evaluate.figures import Picture, draw_heat_map, draw_quality_over_dims
from m2dr.evaluate.findings import Finding, by_place, find, joined_grid
from m2dr.evaluate.frontier import BYTES, LATENCY
from m2dr.evaluate.grid import Grid
from m2dr.evaluate.overlap import draw_overlap
from m2dr.evaluate.published import Published, published
from m2dr.evaluate.style import LIGHT, LOOKS, Look, save
from m2dr.evaluate.tradeoff import draw_tradeoff
from m2dr.verbs.evaluating.overlaps import OverlapRequest, overlaps

RESULTS = Path("results")  # where `m2dr evaluate` writes
SEPARATE = "separate"


@dataclass(frozen=True)
class FiguresRequest:
    """What `m2dr figures` was asked."""

    results: tuple[Path, ...] = (RESULTS,)  # of a model, of several, or all of them
    out: Path = Path("figures")
    measures: tuple[str, ...] = ()  # empty: the first of each grid
    formats: tuple[str, ...] = ("png",)
    look: str = LIGHT.name
    separate: Path | None = None  # results of models trained for one cut each
    published: tuple[str, ...] = ()  # SET or SET:RECIPE,RECIPE
    overlap: OverlapRequest = field(default_factory=OverlapRequest)


@dataclass(frozen=True)
class Pictured:
    """The figures of one corpus and split, and why others are not there."""

    place: str
    findings: tuple[Finding, ...]
    pictures: tuple[Picture, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class FiguresReport:
    """What was drawn."""

    files: tuple[Path, ...]
    notes: tuple[str, ...]


def draw_figures(request: FiguresRequest) -> FiguresReport:
    """Draw all that the results allow, a folder for each corpus and split.

    Raises:
        UserError: no grid is there, grids of one place are of different queries or have one name,
            a measure was not measured, or a name of something published is unknown.
    """
    look = LOOKS[request.look]
    files: list[Path] = []
    notes: list[str] = []
    for pictured in picture(request):
        folder = request.out / plain(pictured.place)
        notes += [f"{pictured.place}: {note}" for note in pictured.notes]
        files += _saved(pictured.pictures, folder, request.formats, look)
    compared = overlaps(request.overlap)
    if compared:
        title = f"Prefixes and whole vectors: {request.overlap.corpus}"
        one = Picture("overlap", title, partial(draw_overlap, compared, title))
        files += _saved([one], request.out, request.formats, look)
    return FiguresReport(tuple(files), tuple(notes))


def picture(request: FiguresRequest) -> tuple[Pictured, ...]:
    """What there is to draw of each corpus and split; nothing is drawn yet."""
    beside = published(request.published)
    places = by_place(find(request.results))
    reference = joined_grid(request.separate) if request.separate else None
    found = tuple(_pictured(request, place, held, beside, reference) for place, held in places)
    if reference and all(reference.place != place for place, _ in places):
        raise UserError(
            f"{request.separate} is of {reference.place}, and the results are of "
            f"{', '.join(place for place, _ in places)}; measure both on the same."
        )
    return found


def measures_of(request: FiguresRequest, findings: Sequence[Finding]) -> tuple[str, ...]:
    """Those asked for, or the first that every model of a place has."""
    if request.measures:
        return request.measures
    common = [
        name
        for name in findings[0].grid.measures
        if all(name in one.grid.measures for one in findings)
    ]
    if not common:
        raise UserError(
            f"The models on {findings[0].grid.place} have no measure in common; measure them alike."
        )
    return (common[0],)


def plain(name: str) -> str:
    """A name as a file name."""
    kept = "".join(char if char.isalnum() or char in "@.-_+" else "-" for char in name)
    return kept.strip(".-")[:120] or "figure"


def _pictured(
    request: FiguresRequest,
    place: str,
    held: tuple[Finding, ...],
    beside: Sequence[Published],
    reference: Grid | None,
) -> Pictured:
    pictures: list[Picture] = []
    notes: list[str] = []
    grids = [one.grid for one in held]
    if reference is None or reference.place != place:
        reference = next((grid for grid in grids if _is_separate(grid)), None)
    measures = measures_of(request, held)
    for measure in measures:
        pictures += _of_measure(held, measure, beside, reference)
    if not reference:
        notes.append(
            f"no results named {SEPARATE!r} are given, so the gap to them is not drawn; --separate "
            "names their folder"
        )
    without = [one.grid.model for one in held if one.costs is None]
    if without:
        notes.append(f"not in the figures of costs, which were not measured: {', '.join(without)}")
    for name in dict.fromkeys(one.measure for one in beside if one.measure not in measures):
        notes.append(f"published scores are {name}, which is not drawn; ask for --measure {name}")
    return Pictured(place, held, tuple(pictures), tuple(notes))


def _of_measure(
    held: Sequence[Finding], measure: str, beside: Sequence[Published], reference: Grid | None
) -> Iterator[Picture]:
    grids = [one.grid for one in held]
    name = plain(measure)
    yield Picture(
        f"{name}-layers",
        f"{measure} over the dims, a panel for each layer, a line for each model.",
        partial(draw_quality, grids, measure, beside),
    )
    yield Picture(
        f"{name}-gap-to-whole",
        f"What each cut gains or loses against the largest cut of its own model, in {measure}.",
        partial(draw_gap_to_whole, grids, measure),
    )
    others = [grid for grid in grids if reference and set(grid.cuts) & set(reference.cuts)]
    others = [grid for grid in others if reference and grid.model != reference.model]
    if reference and others:
        yield Picture(
            f"{name}-gap-to-separate",
            f"What each cut gains or loses against a model trained for that cut alone: {measure}.",
            partial(draw_gap_to, others, reference, measure),
        )
    yield from _of_costs(held, measure)
    yield Picture(
        f"{name}-models",
        f"{measure} over the dims, a panel for each model, a line for each layer.",
        partial(draw_quality_over_dims, grids, measure),
    )
    for grid in grids:
        yield Picture(
            f"{name}-heat-{plain(grid.model)}",
            f"{measure} of every cut of {grid.model}.",
            partial(draw_heat_map, grid, measure),
            tabular=True,
        )


def _of_costs(held: Sequence[Finding], measure: str) -> Iterator[Picture]:
    grids = [one.grid for one in held]
    costs = {one.grid.model: one.costs for one in held if one.costs}
    for price in (LATENCY, BYTES) if costs else ():
        yield Picture(
            f"{plain(measure)}-against-{price}",
            f"{measure} of every cut against {price}. The line is the frontier: no cut left of it "
            f"is as good.",
            partial(draw_tradeoff, grids, costs, measure, price),
        )


def _is_separate(grid: Grid) -> bool:
    return grid.model == SEPARATE or grid.model.endswith(f"-{SEPARATE}")


def _saved(
    pictures: Sequence[Picture], folder: Path, formats: Sequence[str], look: Look
) -> Iterator[Path]:
    for one in pictures:
        figure = one.draw(look)
        for kind in formats:
            yield save(figure, folder / f"{one.name}.{kind}")
