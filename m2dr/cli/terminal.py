"""What commands print."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from m2dr.core.progress import printable


def echo(line: str = "", *, err: bool = False, beside: Path | None = None) -> None:
    """Print a line of a command; it may quote any text, id or file name.

    Args:
        line: the line; control characters are printed as escapes.
        err: whether to print on standard error.
        beside: a file that was written; if it is /dev/stdout, print on standard error.
    """
    click.echo(printable(line), err=err or str(beside) == "/dev/stdout")


def echo_all(lines: Iterable[object]) -> None:
    """Print lines, such as the paths of files that were written."""
    for line in lines:
        echo(str(line))


def warn(sentences: Iterable[str], label: str = "Note") -> None:
    """Print sentences on standard error, each behind a label."""
    for sentence in sentences:
        echo(f"{label}: {sentence}", err=True)


def echo_table(rows: Sequence[Sequence[str]], numbers: bool = False) -> None:
    """Print columns as wide as their widest cell; `numbers` aligns all but the first right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        align = str.rjust if numbers else str.ljust
        cells = (align(cell, width) for cell, width in zip(rest, widths[1:], strict=True))
        echo("  ".join((first.ljust(widths[0]), *cells)).rstrip())


def echo_json(value: object) -> None:
    """Print a value as JSON, with paths as texts; control characters are escaped as JSON has it."""
    text = json.dumps(value, indent=2, allow_nan=False, default=os.fspath)
    echo(text.replace("\x7f", "\\u007f"))
