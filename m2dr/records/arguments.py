"""Checks of what Python callers pass: a wrong type is refused, with what is wanted."""

import operator
from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from typing import Any

from m2dr.errors import UserError


def strings(given: object, what: str) -> list[str]:
    """Return texts as a list.

    Args:
        given: any iterable of strings but a string or a mapping.
        what: how the sentence calls them, in the plural.

    Raises:
        UserError: it is none, or holds something else.

    >>> strings(("a", "b"), "queries")
    ['a', 'b']
    """
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise UserError(f"The {what} are of type {_kind(given)}. Give a list of strings.")
    texts = list(given)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(
                f"Number {number} of the {what} is of type {_kind(text)}. Give a list of strings."
            )
    return texts


def mappings(given: object, what: str) -> list[Mapping[str, Any]]:
    """Return dicts as a list.

    Args:
        given: any iterable of mappings but a mapping itself.
        what: how the sentence calls them, in the plural.

    Raises:
        UserError: it is none, or holds something else.
    """
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise UserError(f"The {what} are of type {_kind(given)}. Give a list of dicts.")
    rows = list(given)
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise UserError(
                f"Number {number} of the {what} is of type {_kind(row)}. Give a list of dicts."
            )
    return rows


def string(name: str, given: object) -> str:
    """Return a string argument.

    Raises:
        UserError: it is of another type.
    """
    if not isinstance(given, str):
        raise UserError(f"{name} is of type {_kind(given)}. Give a string.")
    return given


def path_or_name(name: str, given: object) -> str:
    """Return a name or a path as a string.

    Raises:
        UserError: it is of another type.
    """
    if not isinstance(given, str | PathLike):
        raise UserError(f"{name} is of type {_kind(given)}. Give a string or a path.")
    return str(fspath(given))


def whole_number(name: str, given: object, least: int) -> int:
    """Return a whole number of Python or numpy.

    Raises:
        UserError: it is a bool, a float or anything else, or below `least`.

    >>> whole_number("k", 10, 1)
    10
    """
    try:
        number = least - 1 if isinstance(given, bool) else operator.index(given)  # type: ignore[arg-type]  # TypeError tells
    except TypeError:
        number = least - 1
    if number < least:
        raise UserError(f"{name} = {given!r} was asked for. Give a whole number from {least}.")
    return number


def _kind(given: object) -> str:
    return type(given).__name__
