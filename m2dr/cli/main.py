"""The group of all commands, what they print, and errors as one sentence with an exit code."""

import functools
import inspect
import io
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from m2dr.cli.options import OnceCommand
from m2dr.core import VERSION
from m2dr.core.errors import Interrupted, UserError, nearest, sentence_of
from m2dr.core.option import option_of
from m2dr.core.progress import is_main_process, printable, say
from m2dr.core.records import as_utf8
from m2dr.core.report import Report
from m2dr.core.requests import Blend

MISTAKE, STOPPED = 2, 1  # exit codes
_NUMBER = re.compile(r"[-+.\d]+")
_BARE = {  # options whose number may be left out -> what they are then
    f"--{each.name.replace('_', '-')}": described.bare
    for each in fields(Blend)
    if (described := option_of(each)) and described.bare is not None
}


def echo(text: str, *, err: bool = False) -> None:
    """Print a text, on standard error if `err`; control characters are printed as escapes."""
    click.echo(printable(text), err=err)


def show(report: Report, as_json: bool) -> None:
    """Print a report, or its record as JSON; end with its exit code if that is not 0."""
    text = str(report)
    if as_json:
        text = json.dumps(report.record(), indent=2, allow_nan=False, default=os.fspath)
        text = text.replace("\x7f", "\\u007f")
    if text and is_main_process():
        echo(text, err=Path("/dev/stdout") in report.files)
    for note in report.notes:
        say(note)
    if report.exit_code:
        raise SystemExit(report.exit_code)


class _Command(OnceCommand):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give weights their default where no number follows; a query may."""
        for at, word in enumerate(args):
            if word in _BARE and not _NUMBER.fullmatch("".join(args[at + 1 : at + 2])):
                args[at] = f"{word}={_BARE[word]}"
        return super().parse_args(ctx, args)


class CommandGroup(click.Group):
    """A group of commands, which names the nearest where there is none of a name."""

    def task(
        self, name: str = "", cls: type[click.Command] = _Command
    ) -> Callable[[Callable[..., Report]], click.Command]:
        """Return a decorator that makes a command of a function, and prints its report.

        Its help is the docstring of the function, which ends in examples.

        Args:
            name: of the command; that of the function by default.
            cls: of the command.
        """

        def decorate(function: Callable[..., Report]) -> click.Command:
            @functools.wraps(function)
            def run(as_json: bool, **values: Any) -> None:  # of the options
                show(function(**values), as_json)

            told, _, examples = inspect.cleandoc(function.__doc__ or "").partition("\n\nExamples:")
            made = click.command(
                name or None,
                cls,
                help=told,
                short_help=" ".join(told.split("\n\n")[0].split()),
                epilog="\b\nExamples:" + examples.replace("\n    ", "\n  "),
            )(run)
            told = "Print JSON alone on standard output."
            made.params.append(click.Option(["--json", "as_json"], is_flag=True, help=told))
            self.add_command(made)
            return made

        return decorate

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; name the nearest one when there is none of that name."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"There is no command {args[0]!r}. {nearest(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


class _Main(CommandGroup):
    """The group of all commands: prints a mistake as a sentence, other errors as a traceback."""

    def main(self, args: Sequence[str] | None = None, **kwargs: Any) -> Any:  # type: ignore[override]  # click's overloads
        """Run a command line; `--debug` may stand anywhere in it."""
        words = list(sys.argv[1:] if args is None else args)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            if wrong := next((word for word in words if as_utf8(word) != word), ""):
                raise UserError(f"{wrong!r} is not UTF-8.")
            return super().main([word for word in words if word != "--debug"], **kwargs)
        except Exception as error:
            sentence = sentence_of(error)
            if "--debug" in words or not sentence:
                raise
            echo("Error: " + sentence.replace("\n", "\\n"), err=True)
            sys.exit(STOPPED if isinstance(error, Interrupted) else MISTAKE)


def _show_versions(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from m2dr.evaluation.grid import package_versions
    from m2dr.model.devices import device_names

    echo(f"m2dr {VERSION}")
    for name, version in package_versions().items():
        if name != "m2dr":
            echo(f"{name} {version}")
    for line in device_names():
        echo(line)
    ctx.exit()


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_versions,
    help="Show versions and devices.",
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show an error's traceback.")
def main() -> None:
    """Train one encoder, cut it to any layer and any dim, and search with the cut."""
    # Read when OpenMP loads: waiting threads that spin take the cores from those that work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    # Read at MKL's first product: else the last bit of a vector depends on the number of threads,
    # and so a store's checksums on how many workers wrote it. Costs nothing that can be measured.
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


def group(name: str, summary: str) -> CommandGroup:
    """Add a group of commands."""
    made = CommandGroup(name, help=summary, short_help=summary)
    main.add_command(made)
    return made
