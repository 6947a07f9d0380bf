"""`m2dr card`: write the model card of a folder again, with what was measured since."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from m2dr.core.errors import UserError, command, counted
from m2dr.core.files import lock_folder
from m2dr.core.records import ModelCard
from m2dr.core.requests import RESULTS, CardRequest
from m2dr.evaluate.figures import quality_over_dims
from m2dr.evaluate.grid import GRID
from m2dr.evaluate.measures import BEIR13
from m2dr.model.card_results import MeasuredGrid, hub_dataset
from m2dr.model.folder import read_card
from m2dr.model.hub import CARD
from m2dr.model.readme import (
    IMAGES,
    README,
    CardParts,
    read_earlier,
    read_training_settings,
    write_readme,
)
from m2dr.tasks.encoder import names_of
from m2dr.tasks.figures import ModelResult, plain, read_results
from m2dr.tasks.run_folder import SETTINGS


@dataclass(frozen=True)
class CardReport:
    """The card that was written."""

    path: Path
    grids: tuple[MeasuredGrid, ...]
    notes: tuple[str, ...]


def write_card(request: CardRequest) -> CardReport:
    """Write README.md from m2dr.json, the settings of the training and the model's results.

    What a person wrote between the two comments, and metadata that m2dr does not write, are kept.

    Raises:
        UserError: there is no model that m2dr wrote, README.md is of others, the folder is being
            written to, or no results of the model are in the folders that were named.
    """
    folder = request.model
    require_own(folder)
    card, earlier = read_card(str(folder)), read_earlier(folder)
    name = names_of([str(folder)])[0]
    found, notes = results_of(card, name, request)
    with lock_folder(folder):
        grids = tuple(_measured(one, folder) for one in found)
        settings = read_training_settings(folder / SETTINGS)
        write_readme(card, folder, CardParts(settings, grids, earlier, name))
    return CardReport(folder / README, grids, tuple(notes))


def require_own(folder: Path) -> None:
    """Raise UserError unless m2dr wrote a model into a folder."""
    if not (folder / CARD).is_file():
        what = "is no model that m2dr wrote" if folder.is_dir() else "is not there"
        made = command("train", out=folder if not folder.exists() else None)
        raise UserError(f"The folder {folder} {what}: no {CARD} is in it. Make one with: {made}")


def results_of(
    card: ModelCard, name: str, request: CardRequest
) -> tuple[list[ModelResult], list[str]]:
    """Return the results of a model, and sentences on those that were passed over."""
    if not request.results and not any(RESULTS.rglob(GRID)):
        return [], [f"There are no results in {RESULTS}/, so the card shows none."]
    every = read_results(request.results or (RESULTS,))
    own = [one for one in every if _is_of(one, card, name, request.model)]
    if not own and request.results:
        models = sorted({one.grid.model for one in every})
        again = command("evaluate", "retrieval", corpus="CORPUS", model=request.model)
        raise UserError(
            f"{', '.join(map(str, request.results))} holds results of {', '.join(models)[:200]}, "
            f"and none of {request.model} as it is now. Measure it with: {again}"
        )
    unknown = [one for one in own if one.provenance is None]
    by_name = f"{counted(len(unknown), 'grids')} without made.json taken by the name {name}."
    return own, [by_name] if unknown else []


def _is_of(result: ModelResult, card: ModelCard, name: str, folder: Path) -> bool:
    """Return whether results are of this model; older ones and means have only a name.

    A fingerprint does not cover pooling, prefixes and the similarity, so that two folders may share
    it. The folder that was measured may have been renamed since.
    """
    made = result.provenance
    if made is None:
        return bool(result.grid.model == name)
    measured = Path(made.model)
    is_another = measured.is_dir() and measured.resolve() != folder.resolve()
    return made.fingerprint == card.fingerprint and not is_another


def _measured(result: ModelResult, folder: Path) -> MeasuredGrid:
    """Return results as the card shows them, and draw their figure into the model folder."""
    grid, made = result.grid, result.provenance
    corpus = made.corpus if made else ""
    known = f"BeIR/{grid.corpus}" if grid.corpus in BEIR13 else grid.corpus
    image = f"{IMAGES}/{_file_name(grid.place, grid.model, grid.measures[0])}.png"
    quality_over_dims([grid], grid.measures[0], folder / image)
    return MeasuredGrid(
        corpus=grid.corpus,
        dataset=hub_dataset(corpus) or known,
        split=grid.split,
        size=counted(grid.queries, grid.unit),
        cells=grid.cells,
        notes=(*grid.notes, *grid.checks),
        command=made.command if made else "",
        image=image,
    )


def _file_name(*parts: str) -> str:
    """Return a file name that needs no escape in Markdown."""
    return "-".join("".join(c if c.isascii() else "-" for c in plain(part)) for part in parts)


def told(report: CardReport) -> Iterator[str]:
    """Yield the lines that say what the card shows."""
    for grid in report.grids:
        place = f"{grid.corpus} {grid.split}".strip()
        cuts = counted(len(grid.cells), "cuts")
        yield f"{place}: {', '.join(grid.measures)} of {cuts}"
    yield str(report.path)
