"""The JSON codec: strict parsing, values checked against type hints, and records in files."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from m2dr.core.errors import UserError
from m2dr.core.files import read_bytes, read_regular, write_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Record = TypeVar("Record", bound=DataclassInstance)

FORMAT = 1  # of records; raise it when the new reader would misread older files
LATER = {"later": True}  # metadata of a field with a default, which older files may lack
DEEPEST = 100  # nesting of lists and objects; what m2dr writes has six levels
_TOO_DEEP = f"its lists and objects are nested more than {DEEPEST} deep"
_WIDEST = 2**63  # integers of arrays and files of weights are below


class JsonError(ValueError):
    """Text that is not JSON, or is JSON that programs read in different ways.

    Attributes:
        line: of the error, from 1; 0 for valid JSON that m2dr refuses.
        reason: the error, without the line.
    """

    def __init__(self, reason: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {reason}" if line else reason)
        self.line, self.reason = line, reason

    def at(self, where: object) -> UserError:
        """Return the error to raise; `where` names the source of the text, such as a file."""
        if self.line:
            return UserError(f"{where}, line {self.line}: is not JSON ({self.reason}).")
        return UserError(f"{where}: {self}.")


class MismatchError(ValueError):
    """A JSON value of another type than expected; the message names the value."""


def parse_json(text: str | bytes, strict: bool = True) -> Any:  # any JSON value
    """Return the value of a JSON text that is nested at most `DEEPEST` deep.

    Args:
        text: JSON; bytes are UTF-8.
        strict: whether numbers must be finite, integers within 64 bits and keys of an object
            unique. Files of published models are not: their tokenizers read up to 1e30 tokens.

    Raises:
        JsonError: the text is not such JSON.
    """
    hooks: dict[str, Any] = {
        "parse_float": _finite,
        "parse_int": _whole,
        "parse_constant": _finite,
        "object_pairs_hook": _object,
    }
    try:
        found = json.loads(
            text.decode("utf-8-sig") if isinstance(text, bytes) else text,
            **(hooks if strict else {}),
        )
    except JsonError:
        raise
    except (ValueError, RecursionError) as error:
        raise JsonError(reason_of(error), _line_of(error)) from error
    if _is_deep(found):
        raise JsonError(_TOO_DEEP)
    return found


def json_sha256(value: object, sort_keys: bool = True) -> str:
    """Return the SHA-256 of a value's JSON, in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=sort_keys).encode()).hexdigest()


# Files


def write_json(
    path: Path,
    value: object,
    *,
    sort_keys: bool = False,
    ensure_ascii: bool = True,
    allow_nan: bool = True,
) -> None:
    """Write a value as indented JSON, atomically; the options are those of `json.dumps`.

    Raises:
        UserError: the file cannot be written.
    """
    text = json.dumps(
        value, indent=2, sort_keys=sort_keys, ensure_ascii=ensure_ascii, allow_nan=allow_nan
    )
    write_text(path, f"{text}\n")


def load_json(path: Path) -> Any:  # any JSON value
    """Return the value of a regular JSON file, as `parse_json` does.

    Raises:
        OSError: it cannot be read, or is no file.
        JsonError: it is not JSON.
    """
    return parse_json(read_regular(path))


def read_value(
    path: Path, hint: object, remedy: str, strict: bool = False
) -> Any:  # what `hint` says
    """Read a JSON file of a type, such as `list[dict[str, str]]`.

    Args:
        path: the file.
        hint: its type, as `decode` takes it.
        remedy: what to do when it cannot be used; a sentence.
        strict: as in `parse_json`; False for files of published models.

    Raises:
        UserError: the file cannot be read, is not JSON, or a value has another type.
    """
    data = read_bytes(path, remedy)
    with _explain(path, lambda: remedy):
        return decode(parse_json(data, strict), hint, "")


def read_object(
    path: Path, hints: Mapping[str, object], remedy: str, strict: bool = False
) -> dict[str, Any]:
    """Read a JSON object of which some fields are known.

    Args:
        path: the file.
        hints: types of the known fields; each may be absent, and there may be others.
        remedy: as in `read_value`.
        strict: as in `read_value`.

    Raises:
        UserError: as `read_value`.
    """
    table: dict[str, Any] = read_value(path, dict[str, object], remedy, strict)
    with _explain(path, lambda: remedy):
        for name in hints.keys() & table.keys():
            table[name] = decode(table[name], hints[name], name)
    return table


def read_optional_object(path: Path, hints: Mapping[str, object], remedy: str) -> dict[str, Any]:
    """Read a JSON object as `read_object` does; it is empty where there is no file."""
    there = path.exists() or path.is_symlink()
    return read_object(path, hints, remedy) if there else {}


# Records: dataclasses as JSON objects with a format number


def write_record(path: Path, record: "DataclassInstance") -> None:
    """Write a record atomically; raise UserError when the file cannot be written."""
    table = {"format": FORMAT, **asdict(record)}
    write_json(path, table, sort_keys=True, ensure_ascii=False, allow_nan=False)


def dump_record(record: "DataclassInstance") -> str:
    """Return a record as JSON on one line."""
    table = {"format": FORMAT, **asdict(record)}
    return json.dumps(table, sort_keys=True, ensure_ascii=False, allow_nan=False)


def read_record(path: Path, kind: "type[Record]", remedy: Callable[[], str]) -> "Record":
    """Read a record that `write_record` wrote.

    Args:
        path: the file.
        kind: the dataclass of the record.
        remedy: returns what to do when the file cannot be used, as a sentence.

    Raises:
        UserError: the file is missing, is not JSON, has another format, or lacks a field.
    """
    try:
        text = read_regular(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}). {remedy()}") from error
    return parse_record(text, kind, str(path), remedy)


def parse_record(
    text: str | bytes, kind: "type[Record]", where: str, remedy: Callable[[], str]
) -> "Record":
    """Parse a record that `dump_record` returned.

    Args:
        text: JSON.
        kind: the dataclass of the record.
        where: the source of the text, as messages name it.
        remedy: as in `read_record`.

    Raises:
        UserError: the text is not JSON, has another format, or lacks a field.
    """
    with _explain(where, remedy):
        table = parse_json(text)
        if not isinstance(table, dict):
            raise MismatchError("holds no JSON object")
        found = table.pop("format", None)
        if found != FORMAT:
            raise MismatchError(f"has format {found}, and this m2dr reads format {FORMAT}")
        return cast("Record", decode(table, kind, ""))


@contextmanager
def _explain(where: object, remedy: Callable[[], str]) -> Iterator[None]:
    """Turn JsonError and MismatchError into a UserError that ends in the remedy."""
    try:
        yield
    except JsonError as error:
        raise UserError(f"{error.at(where)} {remedy()}") from error
    except MismatchError as error:
        raise UserError(f"{where} {error}. {remedy()}") from error


# Types


def decode(value: object, hint: object, where: str) -> object:
    """Return a JSON value as the type of a hint: lists become tuples, objects dataclasses.

    Args:
        value: from `parse_json`.
        hint: object, None, str, int, float, bool, Literal, a union, tuple, list, dict[str, …] or a
            dataclass of these. A float is finite, and may be written as a whole number.
        where: the name of the value in messages; empty for a whole file.

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


def _refuse(value: object, expected: str, where: str) -> NoReturn:
    has = f"has {where} = {quoted(value)}" if where else f"holds {quoted(value)}"
    raise MismatchError(f"{has} where {expected} belongs")


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
        raise MismatchError(f"has {where} = {quoted(value)}, which is none of {names}")
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
    problems += [f"has an unknown {quoted(name)}" for name in sorted(value.keys() - names)]
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


# Reasons


def quoted(value: object) -> str:
    """Return the repr of a value for a message, shortened to 60 characters."""
    return _short(repr(value))


def reason_of(error: Exception) -> str:
    """Return why `json.loads` or `tomllib.loads` refused a text."""
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    if "integer string conversion" in str(error):
        return "it holds a whole number of thousands of digits"
    return str(error)


def _line_of(error: Exception) -> int:
    if isinstance(error, UnicodeDecodeError):
        return error.object.count(b"\n", 0, error.start) + 1
    return error.lineno if isinstance(error, json.JSONDecodeError) else 0


def _finite(word: str) -> float:
    number = float(word)
    if not isfinite(number):
        raise JsonError(f"it holds {_short(word)}, which is not a finite number")
    return number


def _whole(word: str) -> int:
    if len(word) > len(str(-_WIDEST)) or not -_WIDEST <= int(word) < _WIDEST:
        raise JsonError(f"it holds {_short(word)}, a whole number of more than 64 bits")
    return int(word)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise JsonError(f"an object holds the key {quoted(twice)} twice")
    return table


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(DEEPEST + 1):
        nested = (one for one in level if isinstance(one, dict | list))
        level = [
            part for one in nested for part in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True


def _short(word: str) -> str:
    return word if len(word) <= 60 else f"{word[:60]}…"
