"""Files that others wrote: opened where they are regular, and read with types."""

import json
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NoReturn,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from m2dr.errors import UserError, refusal_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LATER = {"later": True}  # metadata of a field with a default: yesterday's file may lack it
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


class MismatchError(ValueError):
    """The JSON is not what was expected; says where and why."""


def what_stands_at(path: Path) -> str:
    """Name what stands where a regular file belongs; empty when one is there. Nothing is opened."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "a link to nothing" if path.is_symlink() else "nothing"
    except OSError as error:
        return f"nothing that can be read ({error.strerror or error})"
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no file")


def read_bytes(path: Path, remedy: str) -> bytes:
    """Return the bytes of a regular file.

    Args:
        path: the file.
        remedy: what to do when it cannot be read; a sentence.

    Raises:
        UserError: the file is missing, not regular or not readable.
    """
    found = what_stands_at(path)
    if found:
        raise UserError(f"{path} is {found} where a file belongs. {remedy}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}). {remedy}") from error


def read_value(path: Path, hint: object, remedy: str) -> Any:  # noqa: ANN401  # what `hint` says
    """Read JSON of a type, such as `list[dict[str, str]]`.

    Raises:
        UserError: the file cannot be read, is not JSON, or a value has another type; with its name.
    """
    data = read_bytes(path, remedy)
    try:
        return decode(_parsed(data), hint, "")
    except MismatchError as error:
        raise UserError(f"{path} {error}. {remedy}") from error


def read_object(path: Path, hints: Mapping[str, object], remedy: str) -> dict[str, Any]:
    """Read a JSON object of which some fields are known.

    Args:
        path: the file.
        hints: the types of the fields that are known; each may be absent, and others may be there.
        remedy: what to do when it cannot be used; a sentence.

    Raises:
        UserError: as `read_value`.
    """
    table: dict[str, Any] = read_value(path, dict[str, object], remedy)
    try:
        for name in hints.keys() & table.keys():
            table[name] = decode(table[name], hints[name], name)
    except MismatchError as error:
        raise UserError(f"{path} {error}. {remedy}") from error
    return table


@contextmanager
def refusing(what: str, remedy: str) -> Iterator[None]:
    """Turn whatever a library raises for a damaged file into one sentence.

    Args:
        what: cannot be done, such as "The model in models/x cannot be loaded".
        remedy: what to do; a sentence.

    Raises:
        UserError: anything was raised but an interruption, or a refusal of the operating system
            that has a sentence of its own.
    """
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        if refusal_of(error):
            raise
        raise UserError(f"{what} ({reason_of(error)}). {remedy}") from error


def reason_of(error: BaseException) -> str:
    """Return an error's first words, at most two lines of them, without a full stop."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300].rstrip(".: ") or type(error).__name__


def decode(value: object, hint: object, where: str) -> object:
    """Check a JSON value against a type hint; lists become tuples, objects dataclasses.

    Args:
        value: what `json.loads` gave.
        hint: object, None, str, int, float, bool, Literal, a union, tuple, list, dict[str, …] or a
            dataclass of these. A float is finite, and may be written as a whole number.
        where: the name of the value, for the sentence that refuses it; empty for a whole file.

    Raises:
        MismatchError: a value of another type.
    """
    if hint is object:
        return value
    if isinstance(hint, type) and is_dataclass(hint):
        return _decode_record(value, hint, where)
    by_origin = {
        tuple: _decode_tuple,
        list: _decode_list,
        dict: _decode_dict,
        Union: _decode_union,
        UnionType: _decode_union,
        Literal: _decode_literal,
    }
    inner = by_origin.get(get_origin(hint))
    return inner(value, get_args(hint), where) if inner else _decode_plain(value, hint, where)


def _parsed(data: bytes) -> object:
    try:
        return json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise MismatchError(f"is not UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise MismatchError(f"line {error.lineno}, is not JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:  # thousands of digits; nested too deep
        raise MismatchError(f"is JSON that cannot be read ({reason_of(error)})") from error


def _refuse(value: object, expected: str, where: str) -> NoReturn:
    has = f"has {where} = {_short(value)}" if where else f"holds {_short(value)}"
    raise MismatchError(f"{has} where {expected} belongs")


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"


def _decode_plain(value: object, hint: object, where: str) -> object:
    if hint is float and type(value) is int:
        value = float(value) if abs(value) < 2**53 else value
    wanted = type(None) if hint is None else hint
    if type(value) is not wanted:
        _refuse(value, getattr(wanted, "__name__", str(wanted)), where)
    if isinstance(value, float) and not isfinite(value):
        _refuse(value, "a finite number", where)
    if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
        _refuse(value, "text that is Unicode", where)
    return value


def _decode_literal(value: object, known: tuple[object, ...], where: str) -> object:
    if not any(type(value) is type(one) and value == one for one in known):
        names = ", ".join(map(str, known))
        raise MismatchError(f"has {where} = {_short(value)}, which is none of {names}")
    return value


def _decode_union(value: object, hints: tuple[object, ...], where: str) -> object:
    problem = MismatchError(f"has no {where}")
    for hint in hints:
        if hint is type(None) and value is not None:
            continue  # of "text or null", the sentence names the text
        try:
            return decode(value, hint, where)
        except MismatchError as error:
            problem = error
    raise problem


def _decode_dict(value: object, hints: tuple[object, ...], where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        _refuse(value, "an object", where)
    prefix = f"{where}." if where else ""
    return {name: decode(part, hints[1], f"{prefix}{name}") for name, part in value.items()}


def _decode_list(value: object, hints: tuple[object, ...], where: str) -> list[object]:
    return list(_decode_tuple(value, (*hints, Ellipsis), where))


def _decode_record(value: object, hint: "type[DataclassInstance]", where: str) -> object:
    if not isinstance(value, dict):
        _refuse(value, "an object", where)
    names = {field.name for field in fields(hint)}
    needed = {field.name for field in fields(hint) if not field.metadata.get("later")}
    problems = [f"lacks {name!r}" for name in sorted(needed - value.keys())]
    problems += [f"has an unknown {_short(name)}" for name in sorted(value.keys() - names)]
    if problems:
        raise MismatchError(", ".join(problems) + (f" in {where}" if where else ""))
    hints = get_type_hints(hint)
    prefix = f"{where}." if where else ""
    return hint(**{name: decode(value[name], hints[name], prefix + name) for name in value})


def _decode_tuple(value: object, hints: tuple[object, ...], where: str) -> tuple[object, ...]:
    if not isinstance(value, list):
        _refuse(value, "a list", where)
    if hints[-1] is Ellipsis:
        hints = hints[:1] * len(value)
    if len(hints) != len(value):
        _refuse(value, f"{len(hints)} values", where)
    return tuple(
        decode(part, hint, f"{where}[{number}]")
        for number, (part, hint) in enumerate(zip(value, hints, strict=True))
    )
