"""One HTML page with all that was measured: whole without a network, and without scripts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from m2dr.evaluate.findings import Finding
from m2dr.evaluate.html import bullets, escape, facts, paragraphs, tag
from m2dr.evaluate.sections import (
    alarms_and_notes,
    comparison_tables,
    cost_tables,
    heat_tables,
    settings_of,
)
from m2dr.evaluate.style import DARK, LIGHT, inks, inline_svg
from m2dr.evaluate.summary import sentences

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEAT = (
    "Layers down, dims across. All tables of a measure share one scale of colour; the best cut of "
    "each model is underlined."
)


@dataclass(frozen=True)
class Shown:
    """A figure of the page, drawn in the light look, and what it shows."""

    figure: "Figure"
    caption: str


@dataclass(frozen=True)
class PlaceContent:
    """What there is of one corpus and split."""

    place: str
    findings: tuple[Finding, ...]
    measure: str  # that the summary and the costs speak of
    figures: tuple[Shown, ...]
    notes: tuple[str, ...]  # why something is not there


@dataclass(frozen=True)
class Content:
    """Everything that a page says."""

    title: str
    places: tuple[PlaceContent, ...]
    figures: tuple[Shown, ...]  # of no place
    models: Mapping[str, Mapping[str, Mapping[str, str]]]  # model -> source -> name -> value
    versions: Mapping[str, str]
    commands: tuple[str, ...]
    written: str  # when, and with what
    notes: tuple[str, ...] = ()


def html_page(content: Content) -> str:
    """The page as text."""
    sections = [
        *(
            (f"place-{number}", one.place, _place(one, number))
            for number, one in enumerate(content.places, 1)
        ),
        *([("overlap", "Prefixes and whole vectors", _figures(content.figures, "overlap"))]
          if content.figures else []),
        ("models", "Models and their settings", _models(content)),
        ("made", "How this was made", _made(content)),
    ]  # fmt: skip
    links = [tag("li", tag("a", escape(name), href=f"#{key}")) for key, name, _ in sections]
    body = [
        tag("a", "Skip to the results", class_="skip", href="#main"),
        tag("header", tag("h1", escape(content.title)), paragraphs([content.written])),
        tag("nav", tag("ul", *links), aria_label="Contents"),
        tag("main", *(_section(*one) for one in sections), id="main"),
    ]
    head = (
        '<meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{tag('title', escape(content.title))}{tag('style', _style())}"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'
    )


def _section(key: str, name: str, inner: str) -> str:
    heading = tag("h2", escape(name), id=f"{key}-heading")
    return tag("section", heading, inner, id=key, aria_labelledby=f"{key}-heading")


def _place(one: PlaceContent, number: int) -> str:
    grids = [finding.grid for finding in one.findings]
    measures = dict.fromkeys(name for grid in grids for name in grid.measures)
    parts = [bullets(sentences(one.findings, one.measure)), tag("h3", "Alarms and notes")]
    parts += [alarms_and_notes(grids), bullets(one.notes, class_="muted")]
    for place, measure in enumerate(measures):
        held = [grid for grid in grids if measure in grid.measures]
        parts += [tag("h3", escape(measure)), paragraphs([_HEAT] if place == 0 else [])]
        parts.append(heat_tables(held, measure))
    compared = [comparison for finding in one.findings for comparison in finding.comparisons]
    if compared:
        parts += [tag("h3", "Comparisons"), comparison_tables(compared)]
    if any(finding.costs for finding in one.findings):
        parts += [tag("h3", "Costs"), cost_tables(one.findings, one.measure)]
    parts += [tag("h3", "Figures"), _figures(one.figures, f"figure-{number}")]
    return "".join(parts)


def _figures(figures: Sequence[Shown], key: str) -> str:
    made = []
    for number, one in enumerate(figures, 1):
        title = escape(f"{one.caption} {one.figure.get_suptitle()}".replace("\n", " "))
        svg = inline_svg(one.figure, f"{key}-{number}", title)
        frame = tag(
            "div", svg, class_="scroll", tabindex="0", role="region", aria_label=one.caption
        )
        made.append(tag("figure", frame, tag("figcaption", escape(one.caption))))
    return "".join(made)


def _models(content: Content) -> str:
    found = [
        tag("h3", escape(name)) + settings_of(name, held) for name, held in content.models.items()
    ]
    return "".join(found)


def _made(content: Content) -> str:
    parts = [tag("h3", "Commands")]
    if content.commands:
        parts.append(tag("pre", escape("\n".join(content.commands)), tabindex="0"))
    parts += [bullets(content.notes), tag("h3", "Versions")]
    parts.append(facts("Versions of what this page was made with", content.versions))
    return "".join(parts)


def _style() -> str:
    """The style sheet, and the inks of the figures on light and dark paper; print is light."""
    sheet = (files("m2dr") / "data" / "report.css").read_text(encoding="utf-8")
    light, dark = (
        ":root{" + ";".join(f"{name}:{colour}" for name, colour in inks(look).items()) + "}"
        for look in (LIGHT, DARK)
    )
    return f"{light}@media screen and (prefers-color-scheme: dark){{{dark}}}\n{sheet}"
