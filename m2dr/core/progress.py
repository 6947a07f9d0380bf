"""Messages and progress on stderr, without control characters of the data."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from m2dr.core.errors import UserError, counted

Advance = Callable[[int], None]
_BARS: list[Any] = []  # that are shown now, of tqdm
LINE_EVERY = 10.0  # seconds between plain lines
_RANKS = {"RANK": "0", "WORLD_SIZE": "1"}  # set by torchrun, and defaults

# Characters that control a terminal or cannot be written: control characters except the line feed
# and the tab, halves of surrogate pairs, and characters that change the direction of writing
# (Unicode Standard Annex 9, section 2).
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def printable(text: str) -> str:
    r"""Return `text` with escapes for the characters that control a terminal.

    >>> printable("\x1b[2J a\u202eb")
    '\\x1b[2J a\\u202eb'
    """
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


@contextmanager
def progress(
    what: str, total: int, unit: str, detail: Callable[[], str] = lambda: ""
) -> Iterator[Advance]:
    """Show rate and time left while the caller advances; a bar on a terminal, else lines.

    With M2DR_PROGRESS=0 in the environment nothing is shown.

    Args:
        what: the work, such as "Encoding".
        total: number of units.
        unit: what is counted, in the plural.
        detail: returns a further detail, such as bytes written.
    """
    quiet = os.environ.get("M2DR_PROGRESS") == "0" or not is_main_process()
    if quiet:
        yield lambda _: None
        return
    shown = _bar if sys.stderr.isatty() else _lines
    with shown(printable(what), total, unit, detail) as advance:
        yield advance


def say(text: str) -> None:
    """Print one line to stderr, such as a choice made or a warning; only the main process does."""
    if is_main_process():
        for bar in _BARS:
            bar.clear()  # a line is written in its place, and it is drawn below
        sys.stderr.write(printable(text) + "\n")
        sys.stderr.flush()
        for bar in _BARS:
            bar.refresh()


@cache
def say_once(text: str) -> None:
    """Print a line as `say` does, at its first time in this process."""
    say(text)


def is_main_process() -> bool:
    """Return whether this is rank 0 of the processes that torchrun started."""
    return _rank_and_count()[0] == 0


def process_count() -> int:
    """Return the number of processes that torchrun or accelerate started."""
    return _rank_and_count()[1]


def _rank_and_count() -> tuple[int, int]:
    """Return the rank of this process and the number of processes.

    Raises:
        UserError: the variables that torchrun sets have other values.
    """
    rank, size = (os.environ.get(name) or default for name, default in _RANKS.items())
    if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
        raise UserError(f"RANK={rank} and WORLD_SIZE={size} are not those of torchrun.")
    return int(rank), int(size)


@contextmanager
def _bar(what: str, total: int, unit: str, detail: Callable[[], str]) -> Iterator[Advance]:
    from tqdm import tqdm

    with tqdm(desc=what, total=total, unit=f" {unit}", dynamic_ncols=True) as bar:
        _BARS.append(bar)

        def advance(count: int) -> None:
            bar.set_postfix_str(detail(), refresh=False)
            bar.update(count)

        try:
            yield advance
        finally:
            _BARS.remove(bar)


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
