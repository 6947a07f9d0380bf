"""Lines of text files with their numbers, tables with a header, and checks of their values."""

import csv
import gzip
import json
import os
import zlib
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from math import isfinite, nan
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast
from weakref import finalize

import numpy as np

from m2dr.core.errors import UserError, counted, quoted
from m2dr.core.files import refuse_pipe

Row = dict[str, object]
_Cells = Iterator[tuple["Line", list[str]]]


class Line(NamedTuple):
    """One line of a file or row of a table, with its place.

    >>> str(Line(Path("a.tsv"), 3, "x").error("has one column, not two."))
    'a.tsv, line 3: has one column, not two.'
    """

    path: Path
    number: int  # from 1
    text: str  # without its line end; empty for a row of a table
    row: Row | None = None  # of a table; None where the text holds the values
    unit: str = "line"  # what is counted: lines of a text file, rows of another

    def error(self, reason: str) -> UserError:
        """Return the error to raise for this line: file, line number, reason."""
        return UserError(f"{self.path}, {self.unit} {self.number}: {reason}")

    def parsed(self) -> Any:  # any JSON value
        """Return the JSON value of the line."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError) as error:
            raise self.error(f"is not JSON ({error}).") from None

    def json(self) -> Row:
        """Return the JSON object of the line, or the values of the row by column."""
        row = self.parsed() if self.row is None else self.row
        if not isinstance(row, dict):
            raise self.error("is not a JSON object between braces.")
        return row


def read_lines(path: Path, *, once: bool = False, blank: bool = False) -> Iterator[Line]:
    """Yield the lines of a UTF-8 file, plain or gzipped, without the blank ones.

    Lines end at a line feed alone: `str.splitlines` would also cut at U+2028, which texts hold.

    Args:
        path: of the file.
        once: whether nothing else reads the file, so that it may be a pipe.
        blank: whether blank lines are yielded too.

    Raises:
        UserError: the file cannot be read, or a line is not UTF-8.
    """
    if not once:
        refuse_pipe(path)
    for number, raw in _raw_lines(path):
        if blank or not raw.isspace():
            yield _decoded(path, number, raw)


def begins_with(path: Path, first: bytes) -> bool:
    """Return whether a file, plain or gzipped, begins with these bytes.

    Raises:
        UserError: it cannot be read.
    """
    return next(_raw_lines(path), (0, b""))[1].startswith(first)


def is_gzipped(path: Path) -> bool:
    """Return whether the name ends in .gz."""
    return path.suffix == ".gz"


def _raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    opened = gzip.open if is_gzipped(path) else open
    try:
        with cast(BinaryIO, opened(path, "rb")) as file:
            yield from enumerate(file, start=1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is not a complete gzip file ({error}). Copy it again.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None


def _decoded(path: Path, number: int, raw: bytes) -> Line:
    if number == 1:
        raw = raw.removeprefix(BOM_UTF8)
    try:
        return Line(path, number, raw.decode().rstrip("\r\n"))
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 (byte {error.start + 1} of the line). Convert the file to UTF-8."
        raise Line(path, number, "").error(reason) from None


class IdTable(ABC):
    """The rows of a file by id, in 16 bytes per row.

    8.8 million passages take 212 MB with their offsets, where a dict of their ids would take more
    than 1 GB. Building the table parses every row, and refuses malformed rows and repeated ids.

    Args:
        identify: returns the id of a row; raises `line.error(...)` for a malformed one.
        ids: of all rows, in order.
    """

    def __init__(self, identify: Callable[[Line], str], ids: Iterable[str]) -> None:
        self._identify = identify
        unsorted = np.fromiter(map(hash, ids), dtype=np.int64)
        self._rows = np.argsort(unsorted, kind="stable")
        self._keys = unsorted[self._rows]
        self._refuse_repeats()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, name: str) -> bool:
        """Compare 64-bit hashes: wrong for one absent id in 2 million million at 8.8 M rows."""
        key = hash(name)
        position = int(np.searchsorted(self._keys, key))
        return position < len(self) and int(self._keys[position]) == key

    @abstractmethod
    def line(self, row: int) -> Line:
        """Return a row, counted from 0 without blank lines."""

    def find(self, name: str) -> Line:
        """Return the row that holds this id; raise KeyError when there is none."""
        key = hash(name)
        position = int(np.searchsorted(self._keys, key))
        while position < len(self) and int(self._keys[position]) == key:
            line = self.line(int(self._rows[position]))
            if self._identify(line) == name:
                return line
            position += 1  # another id of the same hash
        raise KeyError(name)

    def _refuse_repeats(self) -> None:
        same = np.flatnonzero(self._keys[1:] == self._keys[:-1])
        for position in same:
            first, second = (self.line(int(self._rows[position + step])) for step in (0, 1))
            if self._identify(first) == self._identify(second):
                raise _repeated(second, self._identify(second), first.path, first.number)


class LineTable(IdTable):
    """The offset and id of each line of a plain file, in 24 bytes per line.

    Args:
        path: not gzipped.
        identify: as in IdTable.
    """

    def __init__(self, path: Path, identify: Callable[[Line], str]) -> None:
        self.path = path
        self._starts = array("q")
        self._blanks = array("q")  # for each blank line, the number of rows above it
        super().__init__(identify, self._scan(identify))

    def _scan(self, identify: Callable[[Line], str]) -> Iterator[str]:
        end = 0
        for number, raw in _raw_lines(self.path):
            start, end = end, end + len(raw)
            if raw.isspace():
                self._blanks.append(len(self._starts))
                continue
            self._starts.append(start)
            yield identify(_decoded(self.path, number, raw))
        self._starts.append(end)

    def line(self, row: int) -> Line:
        """See IdTable; raise UserError where the file was cut short since it was opened."""
        start, end = self._starts[row], self._starts[row + 1]
        raw = os.pread(self._file, end - start, start)
        number = row + 1 + bisect_right(self._blanks, row)
        if len(raw) < end - start:
            raise Line(self.path, number, "").error(
                "has gone, as the file is shorter than it was when it was opened. Restore the file."
            )
        return _decoded(self.path, number, raw.partition(b"\n")[0] if self._blanks else raw)

    @cached_property
    def _file(self) -> int:
        # Not mapped: where a file is cut short, reading its map would end the process. Read by
        # offset: forked workers share one file position.
        file = os.open(self.path, os.O_RDONLY)
        finalize(self, os.close, file)
        return file


class DistinctLines:
    """The distinct texts of a plain file, without blank lines, in 8 bytes per line.

    Texts are compared by 64-bit hash: one in 2 million million is lost at 8.8 M lines.

    Args:
        path: not gzipped.

    Raises:
        UserError: the file cannot be read, or a line is not UTF-8.
    """

    def __init__(self, path: Path) -> None:
        refuse_pipe(path)
        self.path = path
        offsets, keys = array("q"), array("q")
        end = 0
        for number, raw in _raw_lines(path):
            start, end = end, end + len(raw)
            text = _decoded(path, number, raw).text
            if text.strip():
                offsets.append(start)
                keys.append(hash(text))
        _, first = np.unique(np.frombuffer(keys, dtype=np.int64), return_index=True)
        self._offsets = np.frombuffer(offsets, dtype=np.int64)[np.sort(first)]

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, row: int) -> str:
        """Return a text, counted from 0 in the order of the file."""
        start = int(self._offsets[row])
        with self.path.open("rb") as file:
            file.seek(start)
            return _decoded(self.path, 1 if start == 0 else 2, file.readline()).text


def identifier(line: Line, value: object, what: str) -> str:
    """Return an id, which holds no whitespace, as run files are separated by it.

    Args:
        line: where it was read.
        value: a string, or a whole number, which some writers of JSON leave unquoted.
        what: its name in an error message.
    """
    if isinstance(value, str) and value.isascii() and value.isalnum():
        return value  # the fast path: files of scores hold millions of ids
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise line.error(f"{what} is {value!r}, not a string.")
    if value.split() != [value] or "\0" in value:
        held = "a zero byte" if value.split() == [value] else "whitespace"
        reason = f"holds {held}, which run files cannot hold" if value.strip() else "is empty"
        raise line.error(f"{what} {value!r} {reason}. Give it an id without {held}.")
    return encodable(line, value, what)


def refuse_repeat(line: Line, name: str, seen: dict[str, tuple[Path, int]]) -> None:
    """Raise UserError when an id was seen before; `seen` has the file and line of each id."""
    here = (line.path, line.number)
    first = seen.setdefault(name, here)
    if first != here:
        raise _repeated(line, name, *first)


def _repeated(line: Line, name: str, path: Path, number: int) -> UserError:
    where = f"{line.unit} {number}" + (f" of {path}" if path != line.path else "")
    return line.error(f"the id {name!r} is already used in {where}.")


def encodable(line: Line, text: str, what: str) -> str:
    r"""Return the text; raise UserError when UTF-8 cannot hold it, as with JSON's "\ud800"."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise line.error(f"{what} holds half a surrogate pair, which is not text.") from None
    return text


def required(line: Line, row: Row, key: str) -> object:
    """Return the value of a key that must be there."""
    if key not in row:
        found = ", ".join(map(repr, row)) or "none"
        raise line.error(f"has no {key!r}; its keys are {found}.")
    return row[key]


def string(line: Line, row: Row, key: str) -> str:
    """Return a text that must be there; it may be empty."""
    value = required(line, row, key)
    if not isinstance(value, str):
        raise line.error(f"{key!r} is {'null' if value is None else quoted(value)}, not a string.")
    return encodable(line, value, repr(key))


def optional_string(line: Line, row: Row, key: str) -> str:
    """Return a text; it is empty where the key is absent or null."""
    return string(line, row, key) if row.get(key) is not None else ""


def optional_identifier(line: Line, row: Row, keys: Sequence[str]) -> str:
    """Return the id under the first of these keys that the row has, else nothing."""
    for key in keys:
        if row.get(key) is not None:
            return identifier(line, row[key], repr(key))
    return ""


def number(line: Line, value: object, what: str, nor: str = "") -> float:
    """Return a finite number; a text is parsed, as the cells of a table are.

    Args:
        line: where it was read.
        value: what was read.
        what: its name in an error message.
        nor: what else it might have been, the end of the message.
    """
    try:
        found = float(value) if isinstance(value, int | float | str) else nan
    except (ValueError, OverflowError):
        found = nan
    if isinstance(value, bool) or not isfinite(found):
        raise line.error(f"{what} is {value!r}, not a finite number{nor}.")
    return found


def nonempty(line: Line, text: str, what: str) -> str:
    """Return the text; raise UserError when it is blank."""
    if not text.strip():
        raise line.error(f"{what} is empty.")
    return text


def suffix_of(path: Path) -> str:
    """Return the suffix of a file name in lower case, before any .gz.

    >>> suffix_of(Path("stsb.train.tsv.gz"))
    '.tsv'
    """
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def stem_of(path: Path) -> str:
    """Return a file name without its suffix and .gz.

    >>> stem_of(Path("sts/stsb.test.tsv.gz"))
    'stsb.test'
    """
    return path.name.removesuffix(".gz")[: -len(suffix_of(path))]


def read_table(path: Path) -> Iterator[tuple[Line, Row]]:
    """Yield rows by column name, in lower case, each with the line where it begins.

    Columns of a .csv are separated by commas, and a quoted cell may hold commas and line ends. In
    any other file they are separated by tabs, and quotes have no meaning: texts hold single ones.

    Raises:
        UserError: the file cannot be read, a row has more or fewer columns than the header, or the
            header names one twice.
    """
    cells = _cells(path)
    header = next(cells, None)
    if header is None:
        return
    names = _names(*header)
    for line, row in cells:
        if len(row) != len(names):
            raise line.error(
                f"has {counted(len(row), 'columns')}, and the header has {len(names)}: "
                f"{', '.join(names)}. Give the row one cell for each of them."
            )
        yield line, dict(zip(names, row, strict=True))


def header_of(path: Path) -> tuple[Line, list[str]] | None:
    """Return the first row and its column names in lower case; None when there is no row."""
    first = next(_cells(path), None)
    return None if first is None else (first[0], [name.strip().lower() for name in first[1]])


def _cells(path: Path) -> _Cells:
    return _quoted(path) if suffix_of(path) == ".csv" else _tabbed(path)


def _tabbed(path: Path) -> _Cells:
    return ((line, line.text.split("\t")) for line in read_lines(path))


def _quoted(path: Path) -> _Cells:
    lines: list[Line] = []  # of the current row, which may take several

    def texts() -> Iterator[str]:
        # Inside a quoted cell a blank line belongs to the text; between rows csv.reader skips it.
        for line in read_lines(path, blank=True):
            lines.append(line)
            yield f"{line.text}\n"

    csv.field_size_limit(2**31 - 1)  # of a cell; else 128 KB, and documents are longer
    rows = csv.reader(texts(), strict=True)
    try:
        for row in rows:
            if len(lines) > 1 or lines[0].text.strip():
                yield lines[0], row
            lines.clear()
    except csv.Error as error:
        raise lines[0].error(
            f"begins a row that is not CSV ({error}). Double the quotes inside a quoted cell, or "
            "write the file as .jsonl."
        ) from None


def _names(line: Line, header: list[str]) -> list[str]:
    names = [name.strip().lower() for name in header]
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        spelled = sorted({name.strip() for name in header if name.strip().lower() == twice})
        if spelled[1:]:
            raise line.error(
                f"names columns {' and '.join(map(repr, spelled))}, which differ in case alone, "
                "and case does not count. Rename one of them."
            )
        raise line.error(f"names the column {twice!r} twice. Rename one of them.")
    return names
