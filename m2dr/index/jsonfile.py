"""Frozen dataclasses as JSON files, sorted and indented so that two of them diff line by line."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from m2dr.errors import UserError
from m2dr.index.files import write_whole
from m2dr.io import LATER, MismatchError, decode

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Record = TypeVar("Record", bound=DataclassInstance)

FORMAT = 1  # raise it when today's reader would misread yesterday's file

__all__ = ["FORMAT", "LATER", "dump", "parse", "read_json", "write_json"]


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


def read_json(path: Path, kind: "type[Record]", remedy: str) -> "Record":
    """Read what `write_json` wrote.

    Args:
        path: the file.
        kind: the dataclass that it holds.
        remedy: what to do when the file cannot be used; a sentence without its full stop.

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
    raise UserError(f"{path} {problem}. {remedy}.")


def parse(text: str, kind: "type[Record]", where: str, remedy: str) -> "Record":
    """Read what `dump` returned.

    Args:
        text: JSON.
        kind: the dataclass that it holds.
        where: where the text was found, the subject of the sentence that refuses it.
        remedy: what to do when it cannot be used; a sentence without its full stop.

    Raises:
        UserError: the text is not JSON, has another format, or lacks a field.
    """
    try:
        return _checked(json.loads(text), kind)
    except json.JSONDecodeError as error:
        problem = f"line {error.lineno}, is not JSON ({error.msg})"
    except MismatchError as error:
        problem = str(error)
    raise UserError(f"{where} {problem}. {remedy}.")


def _checked(table: object, kind: "type[Record]") -> "Record":
    """Turn a JSON object with a format number into a record."""
    if not isinstance(table, dict):
        raise MismatchError("holds no JSON object")
    found = table.pop("format", None)
    if found != FORMAT:
        raise MismatchError(f"has format {found}, and this m2dr reads format {FORMAT}")
    return cast("Record", decode(table, kind, ""))
