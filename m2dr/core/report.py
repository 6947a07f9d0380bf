"""What a task did or found, as a person and a program read it."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

Parameters = ParamSpec("Parameters")
AnyReport = TypeVar("AnyReport", bound="Report")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a task did or found; `str(report)` is what its command prints.

    Attributes:
        text: for a person; by default the files, one a line.
        files: files and folders that were written.
        seconds: that it took.
        notes: lines for standard error.
        exit_code: of the command.
    """

    text: str = field(default="", repr=False)
    files: tuple[Path, ...] = ()
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=(), repr=False)
    exit_code: int = field(default=0, repr=False)

    def __str__(self) -> str:
        return self.text or "\n".join(map(str, self.files))

    def record(self) -> Any:  # any JSON value
        """Return what the command prints with --json: its own fields, or else its text."""
        values = msgspec.to_builtins(self, enc_hook=str)  # a path becomes a text
        shared = {each.name: values.pop(each.name) for each in fields(Report)}
        written = {name: shared[name] for name in ("files", "seconds") if shared[name]}
        return (values or {"text": shared["text"]}) | written


def timed(task: Callable[Parameters, AnyReport]) -> Callable[Parameters, AnyReport]:
    """Return a task whose report says how long it took."""

    @functools.wraps(task)
    def run(*values: Parameters.args, **named: Parameters.kwargs) -> AnyReport:
        begun = time.monotonic()
        report = task(*values, **named)
        return replace(report, seconds=time.monotonic() - begun)

    return run
