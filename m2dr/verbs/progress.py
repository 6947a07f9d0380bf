"""What a person is told: lines, a bar on a terminal, and no control characters of the data."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from m2dr.errors import UserError, counted

Advance = Callable[[int], None]
Say = Callable[[str], None]
LINE_EVERY = 10.0  # seconds between plain lines
_PLACE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}  # what torchrun sets; without it
_LAUNCH = "Start the processes with torchrun, or for one alone: unset RANK LOCAL_RANK WORLD_SIZE"

# What a terminal obeys and does not show, or cannot be written: control characters but the line
# feed and the tab, halves of surrogate pairs, and characters that turn the direction of writing
# (Unicode Standard Annex 9, section 2).
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def printable(text: str) -> str:
    r"""Return `text` as it may be printed, with escapes where a terminal would obey.

    >>> printable("\x1b[2J a\u202eb")
    '\\x1b[2J a\\u202eb'
    """
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


@contextmanager
def progress(
    what: str, total: int, unit: str, detail: Callable[[], str] = lambda: ""
) -> Iterator[Advance]:
    """Show rate and time left while the caller advances; nothing is shown for no work.

    Args:
        what: what is done, such as "Encoding".
        total: how many units there are.
        unit: what is counted, in the plural.
        detail: what else there is to say just now, such as bytes written.
    """
    shown = _bar if sys.stderr.isatty() else _lines
    with (shown if is_first() else _nothing)(printable(what), total, unit, detail) as advance:
        yield advance


def say(text: str) -> None:
    """One line beside the result: progress, a choice made, a warning."""
    if is_first():
        sys.stderr.write(printable(text) + "\n")
        sys.stderr.flush()


def is_first() -> bool:
    """Whether this is the process that speaks and writes, of those that torchrun started."""
    return _place()[0] == 0


def processes_asked() -> int:
    """How many processes torchrun or accelerate started; each takes batches of its own."""
    return _place()[1]


def _place() -> tuple[int, int]:
    """Return the rank of this process and how many there are.

    Raises:
        UserError: the variables that torchrun sets hold something else.
    """
    found = {name: os.environ[name] for name in _PLACE if os.environ.get(name)}
    port = os.environ.get("MASTER_PORT", "0")
    for name, word in (*found.items(), ("MASTER_PORT", port)):
        if not (word.isascii() and word.isdecimal() and len(word) < 10):
            raise UserError(f"{name}={word} is not a whole number. {_LAUNCH}")
    rank, local, size = (int(found.get(name, usual)) for name, usual in _PLACE.items())
    lacking = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if size > 1 and lacking:
        raise UserError(f"WORLD_SIZE={size} is set and {', '.join(lacking)} not. {_LAUNCH}")
    if max(rank, local) >= max(size, 1):
        told = " ".join(f"{name}={word}" for name, word in found.items())
        raise UserError(f"{told}: ranks count from 0 and end below WORLD_SIZE. {_LAUNCH}")
    return rank, size


@contextmanager
def _nothing(*_: object) -> Iterator[Advance]:
    yield lambda _: None


@contextmanager
def _bar(what: str, total: int, unit: str, detail: Callable[[], str]) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    begun, done = time.monotonic(), 0
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total, rate="")

        def advance(count: int) -> None:
            nonlocal done
            done += count
            rate = done / max(time.monotonic() - begun, 1e-9)
            told = f"{rate:,.1f} {unit}/s {detail()}".rstrip()
            bar.update(task, advance=count, rate=told)

        yield advance


@contextmanager
def _lines(what: str, total: int, unit: str, detail: Callable[[], str]) -> Iterator[Advance]:
    begun, done, told = time.monotonic(), 0, time.monotonic()

    def advance(count: int) -> None:
        nonlocal done, told
        done += count
        now = time.monotonic()
        if now - told >= LINE_EVERY and done < total:
            told, rate = now, done / (now - begun)
            left = (total - done) / rate if rate else 0
            line = f"{what}: {done:,} of {counted(total, unit, ',')}, {rate:,.1f}/s"
            line += f", {left:,.0f} s left"
            say(", ".join(part for part in (line, detail()) if part))

    yield advance
    spent = max(time.monotonic() - begun, 1e-9)
    if done:
        say(f"{what}: {counted(done, unit, ',')} in {spent:,.1f} s, {done / spent:,.1f}/s")
