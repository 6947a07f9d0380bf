"""Checks of the arguments of the Python interface, whose errors name the expected type."""

import operator
from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from typing import Any, TypeVar

from m2dr.core.errors import UserError, nearest

Item = TypeVar("Item")
Chosen = TypeVar("Chosen")


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
    found = _every(given, what, str, "strings")
    for number, text in enumerate(found):
        refuse_half_pair(text, number, what)
    return found


def refuse_half_pair(text: str, number: int, what: str) -> None:
    r"""Raise UserError for a text that UTF-8 cannot hold, such as "\ud800"."""
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        raise UserError(
            f"Number {number} of the {what} holds half a surrogate pair, which is not text. "
            "Give it without, as text.encode(errors='replace').decode() does."
        ) from None


def one_or_many(name: str, given: object) -> list[str]:
    """Return strings as a list; a single one may stand for itself.

    Raises:
        UserError: it is no iterable of strings.

    >>> one_or_many("measures", "nDCG@10")
    ['nDCG@10']
    """
    return strings([given] if isinstance(given, str) else given, name)


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


def one_of(name: str, given: Chosen, known: Iterable[object]) -> Chosen:
    """Return one of a few values; raise UserError for any other.

    >>> one_of("store", "f16", ("f16", "f32"))
    'f16'
    """
    values = tuple(known)
    if given not in values:
        hint = nearest(str(given), [str(value) for value in values if value != ""])
        raise UserError(f"{name} = {given!r} was asked for. {hint}")
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


def whole_numbers(name: str, given: object, least: int) -> tuple[int, ...]:
    """Return whole numbers in order, each once; a single one may stand for itself.

    Raises:
        UserError: it is no iterable, or a number is not a whole one or below `least`.

    >>> whole_numbers("dims", [384, 128], 1), whole_numbers("dims", 128, 1)
    ((128, 384), (128,))
    """
    many: Iterable[object] = (
        given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    )
    return tuple(sorted({whole_number(name, number, least) for number in many}))


def refuse_table(given: object, what: str) -> None:
    """Raise UserError for a table of pandas, polars or Arrow, whose items are its columns."""
    if hasattr(given, "columns"):
        raise UserError(
            f"The {what} are of type {_kind(given)}, a table. Give a list of its rows or of one "
            "column, as to_dict('records') and ['text'].tolist() of pandas return them."
        )


def _kind(given: object) -> str:
    return type(given).__name__


def _every(given: object, what: str, kind: type[Item], wanted: str) -> list[Item]:
    """Return an iterable as a list, all of whose items are of one type."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise UserError(f"The {what} are of type {_kind(given)}. Give a list of {wanted}.")
    refuse_table(given, what)
    items = list(given)
    for number, item in enumerate(items):
        if not isinstance(item, kind):
            raise UserError(
                f"Number {number} of the {what} is of type {_kind(item)}. Give a list of {wanted}."
            )
    return items
