"""`m2dr report`: one page with tables, figures, settings, versions and the commands behind them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from m2dr.errors import UserError, counted
from m2dr.evaluate.findings import Finding
from m2dr.evaluate.made import MADE, package_versions
from m2dr.evaluate.overlap import draw_overlap
from m2dr.evaluate.page import Content, PlaceContent, Shown, html_page
from m2dr.evaluate.style import LIGHT
from m2dr.io import write_text
from m2dr.jsontext import load_json
from m2dr.model.card import CARD
from m2dr.model.places import RECORD
from m2dr.verbs.evaluating.figures import FiguresRequest, Pictured, measures_of, picture
from m2dr.verbs.evaluating.overlaps import overlaps
from m2dr.verbs.models import MODELS
from m2dr.verbs.workplace import SETTINGS

_SHEETS = (CARD, RECORD, SETTINGS)  # what a model folder may say of how it was made
_LONG = 400  # letters of a value that a table shows


@dataclass(frozen=True)
class ReportRequest:
    """What `m2dr report` was asked."""

    figures: FiguresRequest = field(default_factory=FiguresRequest)
    out: Path = Path("report.html")
    title: str = ""  # empty: made of the corpora
    models: Path = MODELS  # where the models of the results lie


@dataclass(frozen=True)
class PageReport:
    """What was written, and what could not be said."""

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
    pictured = picture(request.figures)
    findings = [one for place in pictured for one in place.findings]
    models = {one.grid.model: _sheets(one, request.models) for one in findings}
    notes = tuple(_notes(models, findings))
    named = ", ".join(one.place for one in pictured)
    content = Content(
        title=request.title or f"Elastic retrieval: {named}",
        places=tuple(_place(request.figures, one) for one in pictured),
        figures=tuple(_overlap(request.figures)),
        models=models,
        versions=_versions(findings),
        commands=tuple(dict.fromkeys(one.made.command for one in findings if one.made)),
        written=f"Written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by m2dr.",
        notes=notes,
    )
    page = html_page(content)
    write_text(request.out, page)
    told = [f"{one.place}: {note}" for one in pictured for note in one.notes]
    return PageReport(request.out, len(page.encode()), (*told, *notes))


def _place(request: FiguresRequest, one: Pictured) -> PlaceContent:
    """Heat maps are left out: the page has them as tables, which can be read out and copied."""
    wanted = [picture for picture in one.pictures if not picture.tabular]
    figures = tuple(Shown(picture.draw(LIGHT), picture.caption) for picture in wanted)
    measure = measures_of(request, one.findings)[0]
    return PlaceContent(one.place, one.findings, measure, figures, one.notes)


def _overlap(request: FiguresRequest) -> Iterator[Shown]:
    found = overlaps(request.overlap)
    if found:
        title = f"Prefixes and whole vectors of {counted(len(found[0].whole), 'documents')}"
        caption = (
            "The same documents by their whole vectors (filled) and by a prefix (hollow), "
            "in one plane: the nearer, the more the prefix keeps."
        )
        yield Shown(draw_overlap(found, title, LIGHT), caption)


def _sheets(finding: Finding, models: Path) -> dict[str, dict[str, str]]:
    """What the folder of a model says of it; nothing where there is no folder."""
    name = finding.grid.model.partition(".documents-")[0]
    made = finding.made or finding.costs  # both know the model's folder
    places = [*([Path(made.model)] if made and made.model else []), models / name]
    folder = next((place for place in places if (place / CARD).is_file()), None)
    found = {}
    if finding.made:
        told = {"corpus": finding.made.corpus, "fingerprint": finding.made.fingerprint}
        found[MADE] = {"model": finding.made.model, **told}
    if finding.costs:
        found["costs.json"] = {
            "model": finding.costs.model,
            "fingerprint": finding.costs.fingerprint,
            "machine": finding.costs.machine,
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


def _versions(findings: Sequence[Finding]) -> dict[str, str]:
    """Those that the results record, else those of this environment."""
    found = package_versions()
    for one in findings:
        found |= one.made.versions if one.made else {}
    return found


def _notes(models: Mapping[str, object], findings: Sequence[Finding]) -> Iterator[str]:
    unknown = [name for name, sheets in models.items() if not sheets]
    if unknown:
        yield f"no model folder was found of {', '.join(unknown)}, so their settings are not here"
    silent = [str(one.folder) for one in findings if not one.made]
    if silent:
        yield f"the results do not record the commands that made them: {', '.join(silent)}"
