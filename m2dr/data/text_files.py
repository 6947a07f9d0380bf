"""Text files: bytes that may be compressed, lines, cells between delimiters, and JSON.

What compresses a file is read from its first bytes, whatever its name says; a byte-order mark is
no text, and says whether a file is in UTF-16 or UTF-32. Any other is in UTF-8.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from m2dr.core.errors import UserError
from m2dr.core.files import file_state
from m2dr.core.records import as_utf8

if TYPE_CHECKING:
    import pyarrow as pa

LINE = "\0line"  # the column of a file without columns
_BLOCK = 2**24  # bytes of cells parsed at once; no row may be longer
_LINES = 2**22  # bytes of lines read at once
_MARK = b"\xef\xbb\xbf"  # of the byte order, in UTF-8
# By their marks, of which that of UTF-32 begins with the one of UTF-16.
_WIDE = {b"\xff\xfe\0\0": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}  # by the first bytes


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name the file in what a library says of it.

    Raises:
        UserError: it cannot be read.
    """
    import msgspec
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, msgspec.DecodeError, UnicodeError) as error:
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else str(error).splitlines()[0]
        raise UserError(f"{path} cannot be read: {reason.rstrip('.')}.") from None


def open_decompressed(path: Path) -> "pa.NativeFile":
    """Open the bytes of a file, decompressed, and in UTF-8 where a mark names another encoding."""
    import pyarrow as pa

    with path.open("rb") as file:
        start = file.read(4)
    kinds = [kind for first, kind in _COMPRESSED.items() if start.startswith(first)]
    opened = partial(pa.input_stream, str(path), compression=kinds[0] if kinds else None)
    with opened() as file:
        start = bytes(file.read(4))
    wide = [name for mark, name in _WIDE.items() if start.startswith(mark)]
    return pa.transcoding_input_stream(opened(), wide[0], "utf-8") if wide else opened()


def content(path: Path) -> str:
    """Return the text of a file, decompressed.

    Raises:
        UserError: it cannot be read, or is not in UTF-8.
    """
    with reading(path), open_decompressed(path) as file:
        return bytes(file.read()).decode("utf-8-sig")


def first_line(path: Path) -> str:
    """Return the first line of a text file that is not blank, or the beginning of a long one."""
    with reading(path), open_decompressed(path) as file:
        start = bytes(file.read(2**20)).decode("utf-8-sig", "replace").lstrip("\r\n ")
    return start.partition("\n")[0].rstrip("\r")


def lines(path: Path, blank: bool = False) -> "Iterator[pa.RecordBatch]":
    """Yield the lines of a file as one column; `blank` says whether empty ones are lines too."""
    import pyarrow as pa

    for block in _blocks(path):
        found = [line for line in block.splitlines() if line or blank]
        try:
            column = text_column(found)
        except pa.ArrowInvalid:
            raise _no_text(path) from None
        yield pa.record_batch([column], [LINE])


def text_column(parts: Sequence[bytes]) -> "pa.StringArray":
    """Return texts in UTF-8 as a column. `pyarrow.array` would load pandas, in half a second.

    Raises:
        pyarrow.ArrowInvalid: one is not in UTF-8.
    """
    import pyarrow as pa

    ends = np.cumsum([0, *map(len, parts)]).astype(np.int32)
    buffers = (pa.py_buffer(ends), pa.py_buffer(b"".join(parts)))
    column = pa.StringArray.from_buffers(len(parts), *buffers)
    column.validate(full=True)
    return column


def cells(path: Path, names: Sequence[str], delimiter: str) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of a file of cells, which are texts.

    A cell in quotes may hold delimiters and line ends, and quotes twice, as the library csv and
    pandas write it; a quote inside another cell is a character. Between tabs quotes are characters
    all through a file that has a cell whose first quote is not closed by its last.

    Args:
        path: of the file.
        names: of the columns, where the first line does not name them.
        delimiter: one character.

    Raises:
        UserError: a cell's quote is never closed, where cells do not stand between tabs.
    """
    import pyarrow as pa
    from pyarrow import csv

    quoted = _are_closed(path, delimiter, file_state(path))
    if quoted is False and delimiter != "\t":
        raise UserError(f"{path} has a cell whose quotation mark is never closed.")
    try:
        with open_decompressed(path) as file:
            yield from csv.open_csv(
                file,
                csv.ReadOptions(use_threads=False, block_size=_BLOCK, column_names=names or None),
                csv.ParseOptions(
                    delimiter=delimiter,
                    quote_char='"' if quoted else False,
                    newlines_in_values=bool(quoted),
                ),
                csv.ConvertOptions(default_column_type=pa.string(), strings_can_be_null=False),
            )
    except pa.ArrowInvalid as error:
        if "invalid UTF8" in str(error):
            raise _no_text(path) from None
        if "Empty CSV file" not in str(error):
            raise


def decoded(text: str | bytes) -> Any:
    """Return what JSON holds.

    NaN and Infinity, which Python writes and JSON has not, become null; half a surrogate pair
    becomes U+FFFD; raw control characters are kept.

    Raises:
        msgspec.DecodeError: it is no JSON.
    """
    import msgspec

    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        try:
            value = json.loads(text, parse_constant=lambda _: None, strict=False)
        except (ValueError, RecursionError):
            value = None
        if value is None:
            raise
    except RecursionError:
        raise msgspec.DecodeError("JSON is nested too deep") from None
    return json.loads(as_utf8(json.dumps(value, ensure_ascii=False)), parse_constant=lambda _: None)


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file in blocks of whole lines."""
    with open_decompressed(path) as file:
        rest = bytes(file.read(len(_MARK))).removeprefix(_MARK)
        while block := bytes(file.read(_LINES)):
            whole, end, rest = (rest + block).rpartition(b"\n")
            if end:
                yield whole + end
        if rest:
            yield rest


def _no_text(path: Path) -> UserError:
    """Return an error that names the first byte of a file that is not in UTF-8."""
    line = 1
    for block in _blocks(path):
        try:
            block.decode()
        except UnicodeDecodeError as error:
            line, byte = line + block.count(b"\n", 0, error.start), block[error.start]
            return UserError(f"{path}, line {line}: the byte 0x{byte:02x} is no UTF-8; convert it.")
        line += block.count(b"\n")
    return UserError(f"{path} is not in UTF-8; convert it.")


@lru_cache(maxsize=64)  # a file is opened several times, and its first row wanted alone
def _are_closed(
    path: Path,
    delimiter: str,
    state: tuple[int, ...],  # noqa: ARG001  # part of the key
) -> bool | None:
    """Return whether cells that begin with a quote are closed: between tabs, by their end.

    None if no cell begins with one.
    """
    ends = (delimiter.encode(), b"\r", b"\n")
    inside, found = False, None
    for block in _blocks(path):
        before, *rest = block.split(b'"')  # each of rest follows a quote
        number = 0
        while number < len(rest):
            after = rest[number]
            if not inside:
                inside = before.endswith(ends) or not (number or before)
                found = found or inside or None
            elif not after and number + 1 < len(rest):
                number += 1  # a quote that is written twice
            elif after and not after.startswith(ends) and delimiter == "\t":
                return False
            else:
                inside = False
            before = rest[number]
            number += 1
    return False if inside else found
