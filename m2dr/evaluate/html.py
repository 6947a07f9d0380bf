"""Pieces of a page: every word is escaped once, here, and every table has a caption."""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# What XML, and so SVG, cannot hold: control characters, half a surrogate pair; and the controls of
# Latin-1, which browsers read as other letters.
_NO_XML = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def legal(text: str) -> str:
    r"""Return the text with a mark in place of each character that a page or a figure cannot hold.

    >>> legal("a\x1b[31mb\x00")
    'a\ufffd[31mb\ufffd'
    """
    return _NO_XML.sub("\ufffd", text)


def escape(text: str) -> str:
    """Return the text as HTML."""
    return html.escape(legal(text))


@dataclass(frozen=True)
class Cell:
    """One cell of a table; what stands in it is text, not HTML."""

    text: str
    heat: float | None = None  # 0 to 1: how strongly it is coloured
    strong: bool = False
    small: str = ""  # a second line
    title: str = ""  # shown by a pointer that rests on it


def tag(name: str, *inner: str, **attributes: str) -> str:
    """An element around HTML that is escaped already; an attribute's `_` is a hyphen.

    >>> tag("a", "here", href="#x", aria_label='say "x"')
    '<a href="#x" aria-label="say &quot;x&quot;">here</a>'
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{words}>{''.join(inner)}</{name}>"


def paragraphs(lines: Iterable[str], **attributes: str) -> str:
    """Each line as a paragraph."""
    return "".join(tag("p", escape(line), **attributes) for line in lines)


def bullets(lines: Sequence[str], **attributes: str) -> str:
    """A list; nothing where there are no lines."""
    items = [tag("li", escape(line)) for line in lines]
    return tag("ul", *items, **attributes) if items else ""


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[tuple[str, Sequence[Cell]]],
    kind: str = "",
) -> str:
    """A table that scrolls in a frame of its own, which the keyboard reaches.

    Args:
        caption: what it shows.
        head: of the columns, the first being that of the rows' heads.
        rows: head and cells.
        kind: CSS class.
    """
    first = tag("tr", *(tag("th", escape(word), scope="col") for word in head))
    body = [
        tag("tr", tag("th", escape(name), scope="row"), *map(_cell, cells)) for name, cells in rows
    ]
    made = tag(
        "table",
        tag("caption", escape(caption)),
        tag("thead", first),
        tag("tbody", *body),
        class_=kind or "plain",
    )
    return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label=caption)


def facts(caption: str, held: Mapping[str, str]) -> str:
    """Names and values as a table of two columns."""
    rows = [(name, [Cell(value)]) for name, value in held.items()]
    return table(caption, ["what", "value"], rows, "facts") if rows else ""


def details(summary: str, *inner: str) -> str:
    """What opens on demand, and is open in print."""
    return tag("details", tag("summary", escape(summary)), *inner)


def _cell(cell: Cell) -> str:
    inner = tag("strong", escape(cell.text)) if cell.strong else escape(cell.text)
    if cell.small:
        inner += tag("small", escape(cell.small))
    attributes = {"title": cell.title} if cell.title else {}
    if cell.heat is not None:
        attributes |= {"class_": "heat", "style": f"--heat:{100 * cell.heat:.0f}%"}
    return tag("td", inner, **attributes)
