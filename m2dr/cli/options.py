"""Options that several commands share."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from m2dr.errors import UserError

Command = TypeVar("Command", bound=Callable[..., Any])
Numbers = Callable[[click.Context, click.Parameter, str | Sequence[str] | None], tuple[int, ...]]


class _Named(click.Path):
    """A path that has a name: an empty one, as of a variable that is not set, would mean here."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401  # as click declares it
        """Refuse what names nothing."""
        if not str(value).strip() or "\0" in str(value):
            self.fail(f"{value!r} names nothing; for this folder write a dot.", param, ctx)
        return super().convert(value, param, ctx)


class Whole(click.IntRange):
    """A whole number of at most 64 bits, which every array and every loop can count to."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401  # as click declares it
        """Refuse what is larger."""
        number: int = super().convert(value, param, ctx)
        if abs(number) >= 2**63:
            self.fail(f"{str(value)[:40]}… has more than 64 bits.", param, ctx)
        return number


FOLDER = _Named(path_type=Path, file_okay=False)
FILE = _Named(path_type=Path, dir_okay=False)


def whole_numbers(least: int) -> Numbers:
    """Return what reads `2,4,6`, or an option given several times, as numbers from `least`."""

    def read(
        _: click.Context, __: click.Parameter, value: str | Sequence[str] | None
    ) -> tuple[int, ...]:
        words = value.split(",") if isinstance(value, str) else (value or ())
        words = [word.strip() for part in words for word in str(part).split(",")]
        for word in words:
            if not word.isdecimal() or len(word) > 18 or int(word) < least:
                raise click.BadParameter(f"{word!r} is not a whole number from {least}.")
        return tuple(sorted({int(word) for word in words}))

    return read


def options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, in the order of the help."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


MACHINE = options(
    click.option("--device", default="auto", help="auto, cpu, cuda or cuda:N."),
    click.option("--dtype", default="auto", help="auto, fp32 or bf16."),
)
MODEL = click.option(
    "--model", default="", help="Folder or id; the newest trained one in models/ by default."
)
CORPUS = click.option(
    "--corpus",
    default="pydocs",
    show_default=True,
    help="pydocs, a folder in BEIR or MS MARCO layout, a JSONL file of pairs, or irds:ID.",
)
ROOT = click.option(
    "--indexes",
    "root",
    type=FOLDER,
    default=Path("indexes"),
    show_default=True,
    help="Where indexes lie.",
)


OUT = click.option(
    "--out",
    type=FOLDER,
    default=Path("results"),
    show_default=True,
    help="Where tables, runs and figures go.",
)
CUTS = options(
    click.option(
        "--model",
        "models",
        multiple=True,
        help="Repeatable, to compare; the newest trained one in models/ by default.",
    ),
    click.option("--layers", callback=whole_numbers(0), help="As 0,2,4; all by default."),
    click.option(
        "--dims",
        callback=whole_numbers(1),
        help="As 32,128; by default powers of two from 8, and the full width.",
    ),
)


def refuse_both(resume: bool, overwrite: bool) -> None:
    """Raise UserError when both were given."""
    if resume and overwrite:
        raise UserError("--resume goes on and --overwrite begins again; give one of them.")
