"""The fields that a document has besides its id, its title and its text."""

from collections.abc import Collection, Iterator, Mapping
from datetime import date, time
from decimal import Decimal
from math import isfinite

from m2dr.core.records import Fields

METADATA = "metadata"  # of BEIR: an object whose keys are fields
_DEEPEST = 8  # objects inside each other; what lies deeper is left out


def own_fields(row: Mapping[str, object], known: Collection[str]) -> Fields:
    """Return the fields of a row, as texts: what is missing, empty or a list is left out.

    The keys of `metadata` are fields, and those of any other object follow its own name and a dot.

    Args:
        row: of a document.
        known: keys of its id, its title and its text.

    >>> own_fields({"_id": "d", "year": 1999, "metadata": {"open": True}}, ["_id"])
    (('year', '1999'), ('open', 'true'))
    """
    found: dict[str, str] = {}
    for name, value in row.items():
        if name not in known and name != METADATA:
            found |= _flattened(name, value, 1)
    held = row.get(METADATA)
    if isinstance(held, Mapping):
        for name, value in held.items():
            for path, text in _flattened(str(name), value, 1):
                found.setdefault(path, text)
    elif METADATA in row:
        found |= _flattened(METADATA, held, 1)
    return tuple(found.items())


def _flattened(name: str, value: object, depth: int) -> Iterator[tuple[str, str]]:
    """Yield the fields of a value: one, or those of an object."""
    if isinstance(value, Mapping):
        for key, inner in value.items() if depth < _DEEPEST else ():
            yield from _flattened(f"{name}.{key}", inner, depth + 1)
        return
    text = _text(value)
    if text.strip() and name.strip():
        yield _utf8(name), _utf8(text)


def _text(value: object) -> str:
    """Return a value as JSON and ISO 8601 write it; empty for one that is left out."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | Decimal):
        return str(value)
    if isinstance(value, float):
        return repr(value) if isfinite(value) else ""
    return value.isoformat() if isinstance(value, date | time) else ""


def _utf8(text: str) -> str:
    """Return a text without halves of surrogate pairs, which no file holds."""
    return text if text.isascii() else text.encode(errors="replace").decode()
