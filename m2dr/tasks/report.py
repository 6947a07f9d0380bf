"""`m2dr report`: write one page of tables, figures, settings, versions and commands."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from m2dr.core.errors import UserError, command, counted
from m2dr.core.files import write_text
from m2dr.core.jsontext import load_json
from m2dr.core.requests import FiguresRequest, ReportRequest
from m2dr.evaluate.html_report import PageContent, PageFigure, PlaceContent, html_page
from m2dr.evaluate.overlap import draw_overlap
from m2dr.evaluate.results import PROVENANCE, ModelResult, package_versions
from m2dr.evaluate.theme import LIGHT
from m2dr.model.hub import CARD, RECORD
from m2dr.tasks.figures import Pictured, measures_of, overlaps, picture
from m2dr.tasks.run_folder import SETTINGS

_SHEETS = (CARD, RECORD, SETTINGS)  # what a model folder may say of how it was made
_LONG = 400  # letters of a value that a table shows


@dataclass(frozen=True)
class PageReport:
    """The page that was written, and notes on what it lacks."""

    path: Path
    bytes: int
    notes: tuple[str, ...]


def write_report(request: ReportRequest) -> PageReport:
    """Write the page, whole or not at all.

    Raises:
        UserError: as `m2dr figures`.
    """
    if request.out.is_dir():
        raise UserError(
            f"{request.out} is a folder; name a file, such as {request.out}/report.html."
        )
    pictured = tuple(map(_current, picture(request.figures)))
    results = [one for place in pictured for one in place.results]
    models = {one.grid.model: _sheets(one, request.models) for one in results}
    notes = tuple(_notes(models, results))
    named = ", ".join(one.place for one in pictured)
    content = PageContent(
        title=request.title or f"Elastic retrieval: {named}",
        places=tuple(_place(request.figures, one) for one in pictured),
        figures=tuple(_overlap(request.figures)),
        models=models,
        versions=_versions(results),
        commands=tuple(dict.fromkeys(one.provenance.command for one in results if one.provenance)),
        written=f"Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by m2dr.",
        notes=notes,
    )
    page = html_page(content)
    write_text(request.out, page)
    told = [f"{one.place}: {note}" for one in pictured for note in one.notes]
    return PageReport(request.out, len(page.encode()), (*told, *notes))


def _current(one: Pictured) -> Pictured:
    """Leave out comparisons of results that were measured again since, with a note of each."""
    results, notes = [], list(one.notes)
    for result in one.results:
        kept = tuple(each for each in result.comparisons if each.is_of(result.grid))
        results.append(replace(result, comparisons=kept))
        notes += [
            f"{each.model} was measured again after it was compared with {each.baseline}; "
            f"compare them again with: {command('compare', result.folder, against='BASELINE')}"
            for each in result.comparisons
            if each not in kept
        ]
    return replace(one, results=tuple(results), notes=tuple(notes))


def _place(request: FiguresRequest, one: Pictured) -> PlaceContent:
    """Return the content of one corpus and split; heat maps are tables there."""
    wanted = [picture for picture in one.pictures if not picture.tabular]
    figures = tuple(PageFigure(picture.draw(LIGHT), picture.caption) for picture in wanted)
    measure = measures_of(request, one.results)[0]
    return PlaceContent(one.place, one.results, measure, figures, one.notes)


def _overlap(request: FiguresRequest) -> Iterator[PageFigure]:
    found = overlaps(request.overlap)
    if found:
        title = f"Prefixes and full vectors of {counted(len(found[0].full), 'documents')}"
        caption = (
            "The same documents by their full vectors (filled) and by a prefix (hollow), "
            "in one plane: the nearer, the more the prefix keeps."
        )
        yield PageFigure(draw_overlap(found, title, LIGHT), caption)


def _sheets(result: ModelResult, models: Path) -> dict[str, dict[str, str]]:
    """Return the settings that a model folder records; nothing if there is no folder."""
    name = result.grid.model.partition(".documents-")[0]
    known = result.provenance or result.costs  # both know the model's folder
    places = [*([Path(known.model)] if known and known.model else []), models / name]
    folder = next((place for place in places if (place / CARD).is_file()), None)
    found = {}
    if result.provenance:
        told = {"corpus": result.provenance.corpus, "fingerprint": result.provenance.fingerprint}
        found[PROVENANCE] = {"model": result.provenance.model, **told}
    if result.costs:
        found["costs.json"] = {
            "model": result.costs.model,
            "fingerprint": result.costs.fingerprint,
            "machine": result.costs.machine,
        }
    for sheet in _SHEETS if folder else ():
        path = (folder or models) / sheet
        if path.is_file():
            found[sheet] = _values(path)
    return found


def _values(path: Path) -> dict[str, str]:
    try:
        table = load_json(path)
        return {str(name): _short(value) for name, value in sorted(table.items())}
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{path} cannot be read: {error}. Mend it or take it away.") from error


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONG else f"{text[:_LONG]} …"


def _versions(results: Sequence[ModelResult]) -> dict[str, str]:
    """Return the versions that the results record, or else those of this environment."""
    found = package_versions()
    for one in results:
        found |= one.provenance.versions if one.provenance else {}
    return found


def _notes(models: Mapping[str, object], results: Sequence[ModelResult]) -> Iterator[str]:
    unknown = [name for name, sheets in models.items() if not sheets]
    if unknown:
        yield f"no model folder was found of {', '.join(unknown)}, so their settings are not here"
    silent = [str(one.folder) for one in results if not one.provenance]
    if silent:
        yield f"the results do not record the commands that made them: {', '.join(silent)}"
