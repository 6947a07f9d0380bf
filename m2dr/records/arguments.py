"""Checks of the arguments of the Python interface, whose errors name the expected type."""

import operator
from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from typing import Any, TypeVar

from m2dr.errors import UserError

Item = TypeVar("Item")


def strings(given: object, what: str) -> list[str]:
    """Return texts as a list.

    Args:
        given: an iterable of strings, itself neither a string nor a mapping.
        what: their name in messages, in the plural.

    Raises:
        UserError: it is anything else.

    >>> strings(("a", "b"), "queries")
    ['a', 'b']
    """
    return _every(given, what, str, "strings")


def mappings(given: object, what: str) -> list[Mapping[str, Any]]:
    """Return dicts as a list.

    Args:
        given: an iterable of mappings, itself no mapping.
        what: their name in messages, in the plural.

    Raises:
        UserError: it is anything else.
    """
    return _every(given, what, Mapping, "dicts")  # type: ignore[type-abstract]  # for isinstance


def string(name: str, given: object) -> str:
    """Return a string argument; raise UserError for another type."""
    if not isinstance(given, str):
        raise UserError(f"{name} is of type {_kind(given)}. Give a string.")
    return given


def path_or_name(name: str, given: object) -> str:
    """Return a name or a path as a string; raise UserError for another type."""
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
        number = least - 1 if isinstance(given, bool) else operator.index(given)  # type: ignore[arg-type]  # TypeError below
    except TypeError:
        number = least - 1
    if number < least:
        raise UserError(f"{name} = {given!r} was asked for. Give a whole number from {least}.")
    return number


def _kind(given: object) -> str:
    return type(given).__name__


def _every(given: object, what: str, kind: type[Item], wanted: str) -> list[Item]:
    """Return an iterable as a list, all of whose items are of one type."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise UserError(f"The {what} are of type {_kind(given)}. Give a list of {wanted}.")
    items = list(given)
    for number, item in enumerate(items):
        if not isinstance(item, kind):
            raise UserError(
                f"Number {number} of the {what} is of type {_kind(item)}. Give a list of {wanted}."
            )
    return items
