"""Frozen dataclasses as JSON files, sorted and indented so that two of them diff line by line."""

import json
from collections.abc import Callable
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from m2dr.errors import UserError
from m2dr.index.files import write_whole

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Record = TypeVar("Record", bound=DataclassInstance)

FORMAT = 1  # raise it when today's reader would misread yesterday's file
LATER = {"later": True}  # metadata of a field with a default: yesterday's file may lack it


class _MismatchError(ValueError):
    """The JSON is not the record that was expected; says where and why."""


def write_json(path: Path, record: "DataclassInstance") -> None:
    """Write `record` and the format number; the file is whole or as it was.

    Raises:
        UserError: the system refused to write.
    """
    write_whole(path, f"{dump(record, indent=2)}\n".encode())


def dump(record: "DataclassInstance", indent: int | None = None) -> str:
    """Return `record` and the format number as JSON."""
    table = {"format": FORMAT, **asdict(record)}
    return json.dumps(table, indent=indent, sort_keys=True, ensure_ascii=False, allow_nan=False)


def read_json(path: Path, kind: "type[Record]", remedy: Callable[[], str]) -> "Record":
    """Read what `write_json` wrote.

    Args:
        path: the file.
        kind: the dataclass that it holds.
        remedy: gives what to do when the file cannot be used, as a sentence.

    Raises:
        UserError: the file is missing, is not JSON, has another format, or lacks a field.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 (byte {error.start})"
    else:
        return parse(text, kind, str(path), remedy)
    raise UserError(f"{path} {problem}. {remedy()}")


def parse(text: str, kind: "type[Record]", where: str, remedy: Callable[[], str]) -> "Record":
    """Read what `dump` returned.

    Args:
        text: JSON.
        kind: the dataclass that it holds.
        where: where the text was found, the subject of the sentence that refuses it.
        remedy: gives what to do when it cannot be used, as a sentence.

    Raises:
        UserError: the text is not JSON, has another format, or lacks a field.
    """
    try:
        return _checked(json.loads(text), kind)
    except json.JSONDecodeError as error:
        problem = f"line {error.lineno}, is not JSON ({error.msg})"
    except _MismatchError as error:
        problem = str(error)
    raise UserError(f"{where} {problem}. {remedy()}")


def _checked(table: object, kind: "type[Record]") -> "Record":
    """Turn a JSON object with a format number into a record."""
    if not isinstance(table, dict):
        raise _MismatchError("holds no JSON object")
    found = table.pop("format", None)
    if found != FORMAT:
        raise _MismatchError(f"has format {found}, and this m2dr reads format {FORMAT}")
    return cast("Record", _decode(table, kind, ""))


def _decode(value: object, hint: object, where: str) -> object:
    """Check a JSON value against a type hint; lists become tuples, objects dataclasses."""
    if isinstance(hint, type) and is_dataclass(hint):
        return _decode_record(value, hint, where)
    if get_origin(hint) is tuple:
        return _decode_tuple(value, get_args(hint), where)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            known = ", ".join(get_args(hint))
            raise _MismatchError(f"has {where} = {value!r}, which is none of {known}")
    elif type(value) is not hint:
        raise _MismatchError(
            f"has {where} = {value!r} where {getattr(hint, '__name__', hint)} belongs"
        )
    return value


def _decode_record(value: object, hint: "type[DataclassInstance]", where: str) -> object:
    if not isinstance(value, dict):
        raise _MismatchError(f"has {where} = {value!r} where an object belongs")
    names = {field.name for field in fields(hint)}
    needed = {field.name for field in fields(hint) if not field.metadata.get("later")}
    problems = [f"lacks {name!r}" for name in sorted(needed - value.keys())]
    problems += [f"has an unknown {name!r}" for name in sorted(value.keys() - names)]
    if problems:
        raise _MismatchError(", ".join(problems) + (f" in {where}" if where else ""))
    hints = get_type_hints(hint)
    prefix = f"{where}." if where else ""
    return hint(**{name: _decode(value[name], hints[name], prefix + name) for name in value})


def _decode_tuple(value: object, hints: tuple[object, ...], where: str) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise _MismatchError(f"has {where} = {value!r} where a list belongs")
    if hints[-1] is Ellipsis:
        hints = hints[:1] * len(value)
    if len(hints) != len(value):
        raise _MismatchError(f"has {where} = {value!r} where {len(hints)} values belong")
    return tuple(
        _decode(part, hint, f"{where}[{number}]")
        for number, (part, hint) in enumerate(zip(value, hints, strict=True))
    )
