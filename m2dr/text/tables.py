"""Files of columns with a header: TSV as benchmarks write it, CSV as spreadsheets do."""

import csv
from collections.abc import Iterator
from pathlib import Path

from m2dr.errors import counted
from m2dr.text.fields import Row
from m2dr.text.lines import Line, read_lines

_Cells = Iterator[tuple[Line, list[str]]]


def kind_of(path: Path) -> str:
    """What the name says that the file is, compressed or not.

    >>> kind_of(Path("stsb.train.tsv.gz"))
    '.tsv'
    """
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def read_table(path: Path) -> Iterator[tuple[Line, Row]]:
    """Rows by column name, in lower case, each with the line that it begins in.

    Columns of a .csv are parted by commas, and a cell between quotes may hold commas and line
    ends. In anything else they are parted by tabs and a quote is a quote: texts hold single ones.

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
    """The first row and the column names it holds, in lower case; None when there is no row."""
    first = next(_cells(path), None)
    return None if first is None else (first[0], [_plain(name) for name in first[1]])


def _cells(path: Path) -> _Cells:
    return _quoted(path) if kind_of(path) == ".csv" else _tabbed(path)


def _tabbed(path: Path) -> _Cells:
    return ((line, line.text.split("\t")) for line in read_lines(path))


def _quoted(path: Path) -> _Cells:
    lines: list[Line] = []  # of the row being read, which the parser may ask several of

    def texts() -> Iterator[str]:
        # Inside a quoted cell a blank line belongs to the text; between rows csv.reader skips it.
        for line in read_lines(path, blank=True):
            lines.append(line)
            yield f"{line.text}\n"

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
    names = [_plain(name) for name in header]
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise line.error(f"names the column {twice!r} twice. Rename one of them.")
    return names


def _plain(name: str) -> str:
    return name.strip().lower()
