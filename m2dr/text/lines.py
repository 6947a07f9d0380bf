"""Files of one record per line: read with the place of each, and found again by id."""

import gzip
import json
import mmap
import zlib
from array import array
from bisect import bisect_right
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np

from m2dr.errors import UserError
from m2dr.io import refuse_pipe
from m2dr.jsontext import reason_of


class Line(NamedTuple):
    """One line of a file, which knows where it stands.

    >>> str(Line(Path("a.tsv"), 3, "x").error("has one column, not two."))
    'a.tsv, line 3: has one column, not two.'
    """

    path: Path
    number: int  # from 1
    text: str  # without its line end

    def error(self, reason: str) -> UserError:
        """What to raise when this line is wrong: file, line number, reason."""
        return UserError(f"{self.path}, line {self.number}: {reason}")

    def json(self) -> dict[str, object]:
        """The JSON object that the line holds."""
        try:
            row = json.loads(self.text)
        except (ValueError, RecursionError) as error:
            raise self.error(f"is not JSON ({reason_of(error)}).") from None
        if not isinstance(row, dict):
            raise self.error("is not a JSON object between braces.")
        return row


def read_lines(path: Path, *, once: bool = False, blank: bool = False) -> Iterator[Line]:
    """Yield the lines of a UTF-8 file, plain or gzipped, without the blank ones.

    Lines end at a line feed alone: `str.splitlines` would also cut at U+2028, which texts hold.

    Args:
        path: of the file.
        once: nothing else reads it, so that it may be a pipe.
        blank: blank lines are yielded too.

    Raises:
        UserError: the file cannot be read, or a line is not UTF-8.
    """
    if not once:
        refuse_pipe(path)
    for number, raw in _raw_lines(path):
        if blank or not raw.isspace():
            yield _decoded(path, number, raw)


def begins_with(path: Path, first: bytes) -> bool:
    """Whether a file, plain or gzipped, begins with these bytes.

    Raises:
        UserError: it cannot be read.
    """
    return next(_raw_lines(path), (0, b""))[1].startswith(first)


def is_gzipped(path: Path) -> bool:
    """Whether the name says that the file is compressed."""
    return path.suffix == ".gz"


def _raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    opened = gzip.open if is_gzipped(path) else open
    try:
        with cast(BinaryIO, opened(path, "rb")) as file:
            yield from enumerate(file, start=1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is not a whole gzip file ({error}). Copy it again.") from None
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


class LineTable:
    """Where each line of a plain file begins and which id it holds, in 24 bytes per line.

    8.8 million passages fit in 212 MB, where a dict of their ids would take more than 1 GB. The
    first reading parses every line, so a table that exists stands for a file without malformed
    lines and without repeated ids.

    Args:
        path: not gzipped.
        identify: the id that a line holds; raises `line.error(...)` for a malformed line.
    """

    def __init__(self, path: Path, identify: Callable[[Line], str]) -> None:
        self.path = path
        self._identify = identify
        offsets, keys = array("q"), array("q")
        self._blanks = array("q")  # for each blank line, the number of rows above it
        end = 0
        for number, raw in _raw_lines(path):
            start, end = end, end + len(raw)
            if raw.isspace():
                self._blanks.append(len(offsets))
                continue
            offsets.append(start)
            keys.append(hash(identify(_decoded(path, number, raw))))
        self._offsets = np.frombuffer(offsets, dtype=np.int64)  # [rows] bytes
        unsorted = np.frombuffer(keys, dtype=np.int64)
        self._rows = np.argsort(unsorted, kind="stable")
        self._keys = unsorted[self._rows]
        self._refuse_repeats()

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, name: str) -> bool:
        """By 64-bit hash: an absent id passes for present once in 2 million million at 8.8 M."""
        key = hash(name)
        position = int(np.searchsorted(self._keys, key))
        return position < len(self) and int(self._keys[position]) == key

    def line(self, row: int) -> Line:
        """The line of a row, counted from 0 without the blank lines."""
        start = int(self._offsets[row])
        stop = self._bytes.find(b"\n", start)
        raw = self._bytes[start : stop if stop >= 0 else len(self._bytes)]
        return _decoded(self.path, row + 1 + bisect_right(self._blanks, row), raw)

    def find(self, name: str) -> Line:
        """The line that holds this id.

        Raises:
            KeyError: no line does.
        """
        key = hash(name)
        position = int(np.searchsorted(self._keys, key))
        while position < len(self) and int(self._keys[position]) == key:
            line = self.line(int(self._rows[position]))
            if self._identify(line) == name:
                return line
            position += 1  # another id of the same hash
        raise KeyError(name)

    @cached_property
    def _bytes(self) -> mmap.mmap:
        # Mapped rather than opened: forked workers would share, and move, one file position.
        with self.path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def _refuse_repeats(self) -> None:
        same = np.flatnonzero(self._keys[1:] == self._keys[:-1])
        for position in same:
            first, second = (self.line(int(self._rows[position + step])) for step in (0, 1))
            if self._identify(first) == self._identify(second):
                name = self._identify(second)
                raise second.error(f"the id {name!r} stands in line {first.number} already.")


class DistinctLines:
    """The lines of a plain file that are not blank, each text once, by place: 8 bytes per line.

    Two texts pass for one by their 64-bit hash, once in 2 million million at 8.8 M.

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
