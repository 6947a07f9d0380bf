"""How far long work is: a bar on a terminal, plain lines elsewhere."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from m2dr.errors import counted

Advance = Callable[[int], None]
Say = Callable[[str], None]
LINE_EVERY = 10.0  # seconds between plain lines


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
    with (shown if is_first() else _nothing)(what, total, unit, detail) as advance:
        yield advance


def say(text: str) -> None:
    """One line beside the result: progress, a choice made, a warning."""
    if is_first():
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def is_first() -> bool:
    """Whether this is the process that speaks and writes, of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def processes_asked() -> int:
    """How many processes torchrun or accelerate started; each takes batches of its own."""
    return int(os.environ.get("WORLD_SIZE", "1"))


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
        TextColumn("{task.description}"),
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
