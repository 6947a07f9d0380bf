"""Times of rivals that take turns, memory, and tables in Markdown, without any package."""

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

Rivals = Mapping[str, Callable[[], object]]
Times = dict[str, list[float]]


def peak_memory() -> int:
    """Return the peak memory of this process in bytes.

    On Linux `ru_maxrss` starts at what the parent held when it started this process.
    """
    status = Path("/proc/self/status")
    if status.exists():
        fields = (line.split() for line in status.read_text(encoding="utf-8").splitlines())
        return next(1024 * int(words[1]) for words in fields if words[:1] == ["VmHWM:"])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # of macOS, in bytes


def timed(run: Callable[[], object]) -> float:
    """Return the seconds that something takes."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def in_turn(rivals: Rivals, rounds: int, warm_up: int = 0) -> Times:
    """Return the seconds of each rival in each round; who goes first changes from round to round.

    What else the machine does falls on all rivals alike, so ratios are taken within a round.
    """
    found: Times = {name: [] for name in rivals}
    for number in range(-warm_up, rounds):
        for name in list(rivals)[:: 1 if number % 2 == 0 else -1]:
            seconds = timed(rivals[name])
            if number >= 0:
                found[name].append(seconds)
    return found


def process(*words: object) -> str:
    """Run Python with some words in a process of its own; return what it printed."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Return the quotients within a round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def spread(values: Iterable[float], digits: int = 2) -> str:
    """Return the median, with the least and the most."""
    numbers = list(values)
    chosen = (statistics.median(numbers), min(numbers), max(numbers))
    middle, low, high = (f"{value:,.{digits}f}" for value in chosen)
    return f"{middle} ({low}–{high})"


def quartiled(values: Sequence[float], digits: int = 2) -> str:
    """Return the median, with the quartiles."""
    low, middle, high = (f"{each:.{digits}f}" for each in statistics.quantiles(values, n=4))
    return f"{middle} ({low} to {high})"


def table_row(*cells: object) -> str:
    """Return a row of a table in Markdown."""
    return f"| {' | '.join(map(str, cells))} |"


def table_head(*columns: object) -> str:
    """Return the head of a table in Markdown."""
    return f"{table_row(*columns)}\n|{'---|' * len(columns)}"
