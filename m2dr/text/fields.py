"""What a record's fields must be: checked where they are read, named by file and line."""

from collections.abc import Sequence
from math import isfinite, nan

from m2dr.text.lines import Line

Row = dict[str, object]


def identifier(line: Line, value: object, what: str) -> str:
    """An id: a run file is separated by whitespace, so an id holds none.

    Args:
        line: where it stands.
        value: a string, or a whole number, which some writers of JSON leave unquoted.
        what: how the error calls it.
    """
    if isinstance(value, str) and value.isascii() and value.isalnum():
        return value  # most ids, of which files of scores hold millions
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise line.error(f"{what} is {value!r}, not a string.")
    if value.split() != [value] or "\0" in value:
        held = "a zero byte" if value.split() == [value] else "whitespace"
        reason = f"holds {held}, which run files cannot carry" if value.strip() else "is empty"
        raise line.error(f"{what} {value!r} {reason}. Give it an id without {held}.")
    return valid(line, value, what)


def valid(line: Line, text: str, what: str) -> str:
    r"""The same text, refused when it holds half a character, as JSON's "\ud800" does."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise line.error(f"{what} holds half a surrogate pair, which is not text.") from None
    return text


def required(line: Line, row: Row, key: str) -> object:
    """The value of a key that must be there."""
    if key not in row:
        found = ", ".join(map(repr, row)) or "none"
        raise line.error(f"has no {key!r}; its keys are {found}.")
    return row[key]


def string(line: Line, row: Row, key: str) -> str:
    """A text that must be there; it may be empty."""
    value = required(line, row, key)
    if not isinstance(value, str):
        raise line.error(f"{key!r} is {value!r}, not a string.")
    return valid(line, value, repr(key))


def optional_string(line: Line, row: Row, key: str) -> str:
    """A text that may be absent or null: then empty."""
    return string(line, row, key) if row.get(key) is not None else ""


def optional_identifier(line: Line, row: Row, keys: Sequence[str]) -> str:
    """The id under the first of these keys that is there, else nothing."""
    for key in keys:
        if row.get(key) is not None:
            return identifier(line, row[key], repr(key))
    return ""


def number(line: Line, value: object, what: str) -> float:
    """Return a finite number; a text is read as one, as the cells of a table are."""
    try:
        found = float(value) if isinstance(value, int | float | str) else nan
    except (ValueError, OverflowError):
        found = nan
    if isinstance(value, bool) or not isfinite(found):
        raise line.error(f"{what} is {value!r}, not a finite number.")
    return found


def filled(line: Line, text: str, what: str) -> str:
    """The same text, refused when there is nothing to read in it."""
    if not text.strip():
        raise line.error(f"{what} is empty.")
    return text
