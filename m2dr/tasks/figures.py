"""`m2dr figures`: draw the figures of the papers from results in folders."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from m2dr.core.errors import UserError
from m2dr.core.progress import progress
from m2dr.core.records import Cut
from m2dr.core.requests import FiguresRequest, OverlapRequest
from m2dr.evaluate.comparison import Published, published
from m2dr.evaluate.figures import (
    Picture,
    draw_gap_to,
    draw_gap_to_whole,
    draw_heat_map,
    draw_quality,
    draw_quality_over_dims,
    draw_tradeoff,
)
from m2dr.evaluate.grid import Grid
from m2dr.evaluate.overlap import Overlap, draw_overlap, overlap
from m2dr.evaluate.pick import BYTES, LATENCY
from m2dr.evaluate.results import ModelResult, by_place, joined_grid, read_results
from m2dr.evaluate.theme import THEMES, Theme, save
from m2dr.model.folder import read_card
from m2dr.tasks.encode_texts import embed_texts, open_corpus
from m2dr.tasks.encoder import names_of

SEPARATE = "separate"


def overlaps(request: OverlapRequest) -> list[Overlap]:
    """Return an overlap per model and dim, in that order.

    Raises:
        UserError: a model, corpus, layer or dim is not there.
    """
    if not request.models:
        return []
    # Most figures need no encoder, and need not wait for torch to load.
    from m2dr.model import checkpoint
    from m2dr.model.devices import choose_device, choose_dtype

    if request.texts < 3:
        raise UserError(f"{request.texts} texts were asked for; an overlap needs 3 or more.")
    dataset = open_corpus(request.corpus)
    rows = sorted(
        {i * dataset.document_count // request.texts for i in range(request.texts)}
    )  # fewer where the corpus has fewer
    texts = [dataset.document_at(row).content for row in rows]
    device = choose_device(request.device)
    found = []
    names = names_of(request.models)
    with progress("Encoding", len(texts) * len(names), "documents") as advance:
        for model, name in zip(request.models, names, strict=True):
            card = read_card(model)
            layer = card.layers if request.layer is None else request.layer
            card.check(Cut(layer, max(request.dims, default=1)), model)
            encoder, tokenizer = checkpoint.load(
                model, layer, device, choose_dtype(request.dtype, device)
            )
            vectors = embed_texts(encoder, tokenizer, texts, "document", [layer], advance)[0]
            for dim in request.dims or (_usual(vectors.shape[1]),):
                found.append(overlap(name, layer, vectors, dim, request.method))
    return found


def _usual(width: int) -> int:
    """Return the largest power of two within a third of the width.

    >>> _usual(384), _usual(768), _usual(32)
    (128, 256, 8)
    """
    return int(2 ** ((max(width, 6) // 3).bit_length() - 1))


@dataclass(frozen=True)
class Pictured:
    """The figures of one corpus and split, and why others are missing."""

    place: str
    results: tuple[ModelResult, ...]
    pictures: tuple[Picture, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class FiguresReport:
    """The figures that were drawn."""

    files: tuple[Path, ...]
    notes: tuple[str, ...]


def draw_figures(request: FiguresRequest) -> FiguresReport:
    """Draw all figures that the results allow, a folder per corpus and split.

    Raises:
        UserError: no grid is there, grids of one place are of different queries or have one name,
            a measure was not measured, or a name of something published is unknown.
    """
    look = THEMES[request.theme]
    files: list[Path] = []
    notes: list[str] = []
    for pictured in picture(request):
        folder = request.out / plain(pictured.place)
        notes += [f"{pictured.place}: {note}" for note in pictured.notes]
        files += _saved(pictured.pictures, folder, request.formats, look)
    compared = overlaps(request.overlap)
    if compared:
        title = f"Prefixes and full vectors: {request.overlap.corpus}"
        one = Picture("overlap", title, partial(draw_overlap, compared, title))
        files += _saved([one], request.out, request.formats, look)
    return FiguresReport(tuple(files), tuple(notes))


def picture(request: FiguresRequest) -> tuple[Pictured, ...]:
    """Return the figures of each corpus and split without saving them."""
    beside = published(request.published)
    places = by_place(read_results(request.results))
    reference = joined_grid(request.separate) if request.separate else None
    found = tuple(_pictured(request, place, held, beside, reference) for place, held in places)
    if reference and all(reference.place != place for place, _ in places):
        raise UserError(
            f"{request.separate} is of {reference.place}, and the results are of "
            f"{', '.join(place for place, _ in places)}; measure both on the same."
        )
    return found


def measures_of(request: FiguresRequest, results: Sequence[ModelResult]) -> tuple[str, ...]:
    """Return the measures asked for, or the first that every model has."""
    if request.measures:
        return request.measures
    common = [
        name
        for name in results[0].grid.measures
        if all(name in one.grid.measures for one in results)
    ]
    if not common:
        raise UserError(
            f"The models on {results[0].grid.place} have no measure in common; measure them alike."
        )
    return (common[0],)


def plain(name: str) -> str:
    """Return a name as a file name."""
    kept = "".join(char if char.isalnum() or char in "@.-_+" else "-" for char in name)
    return kept.strip(".-")[:120] or "figure"


def _pictured(
    request: FiguresRequest,
    place: str,
    held: tuple[ModelResult, ...],
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
    held: Sequence[ModelResult], measure: str, beside: Sequence[Published], reference: Grid | None
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


def _of_costs(held: Sequence[ModelResult], measure: str) -> Iterator[Picture]:
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
    pictures: Sequence[Picture], folder: Path, formats: Sequence[str], look: Theme
) -> Iterator[Path]:
    for one in pictures:
        figure = one.draw(look)
        for kind in formats:
            yield save(figure, folder / f"{one.name}.{kind}")
