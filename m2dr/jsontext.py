"""JSON that people or other programs wrote: read strictly, and refused with its line and reason."""

import errno
import json
from math import isfinite
from pathlib import Path
from typing import Any

from m2dr.errors import UserError

DEEPEST = 100  # lists and objects within one another; what m2dr writes has six
_WIDEST = 2**63  # whole numbers that arrays and files of weights can hold are below


class JsonError(ValueError):
    """Text that is not JSON, or JSON that no two programs read alike.

    Attributes:
        line: where it stops being JSON, from 1; 0 for JSON that m2dr refuses.
        reason: why, without the line.
    """

    def __init__(self, reason: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {reason}" if line else reason)
        self.line, self.reason = line, reason

    def at(self, where: object) -> UserError:
        """Return the sentence to raise; `where` names the file or whatever else held the text."""
        if self.line:
            return UserError(f"{where}, line {self.line}: is not JSON ({self.reason}).")
        return UserError(f"{where}: {self}.")


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401  # anything may stand in JSON
    """Return what a whole file of JSON holds.

    Stricter than `json.loads`: numbers are finite and whole ones have 64 bits, an object has each
    key once, and nothing is nested more than `DEEPEST` deep.

    Raises:
        JsonError: the text is anything else.
    """
    try:
        found = json.loads(
            text.decode("utf-8-sig") if isinstance(text, bytes) else text,
            parse_float=_finite,
            parse_int=_whole,
            parse_constant=_finite,
            object_pairs_hook=_object,
        )
    except JsonError:
        raise
    except (ValueError, RecursionError) as error:
        raise JsonError(reason_of(error), _line_of(error)) from error
    if _is_deep(found):
        raise JsonError(_DEEP)
    return found


def load_json(path: Path) -> Any:  # noqa: ANN401  # anything may stand in JSON
    """Return what a regular file of JSON holds, as `parse_json`.

    Raises:
        OSError: it cannot be read, or is no file.
        JsonError: it is not JSON.
    """
    return parse_json(read_regular(path))


def read_regular(path: Path) -> bytes:
    """Return the bytes of a file; where a FIFO stands instead, reading would wait without end.

    Raises:
        OSError: it cannot be read, or is a FIFO, a socket or a device.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.ENXIO, "a FIFO or a device stands there, not a file", str(path))
    return path.read_bytes()


def read_json_file(path: Path) -> Any:  # noqa: ANN401  # anything may stand in JSON
    """Return what a file of JSON holds, as `parse_json`.

    Raises:
        FileNotFoundError: there is no such file; what to do then is the caller's to say.
        UserError: it cannot be read or is not JSON; with the file, the line and the reason.
    """
    try:
        return load_json(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error
    except JsonError as error:
        raise error.at(path) from error


def reason_of(error: Exception) -> str:
    """Say why `json.loads` or `tomllib.loads` refused a text."""
    if isinstance(error, RecursionError):
        return _DEEP
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


_DEEP = f"its lists and objects are nested more than {DEEPEST} deep"


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
        raise JsonError(f"an object holds the key {_short(repr(twice))} twice")
    return table


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [part for whole in level for part in _parts(whole)]
        if not level:
            return False
    return True


def _parts(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _short(word: str) -> str:
    return word if len(word) <= 40 else f"{word[:40]}…"
