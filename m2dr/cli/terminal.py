"""What commands print, and errors as one sentence with an exit code."""

import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from m2dr.core.errors import Interrupted, UserError, nearest, os_error_message
from m2dr.core.progress import printable

MISTAKE, STOPPED = 2, 1  # exit codes
LONGEST = 2_000  # characters of an error that are printed
_UNCUT = 1_000  # characters of a summary; more than any has


def echo(line: str = "", *, err: bool = False, beside: Path | None = None) -> None:
    """Print a line of a command; it may quote any text, id or file name.

    Args:
        line: the line; control characters are printed as escapes.
        err: whether to print on standard error.
        beside: a file that was written; if it is standard output, print on standard error.
    """
    click.echo(printable(line), err=err or (beside is not None and str(beside) == "/dev/stdout"))


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


class WholeSummary(click.Command):
    """A command of which a list shows the whole first sentence: in a help, or as a shell completes.

    In a help it takes several lines if need be; at 80 columns each is short enough for one.
    """

    def get_short_help_str(self, limit: int = _UNCUT) -> str:  # noqa: ARG002  # click's
        """Return the first sentence of the help."""
        return super().get_short_help_str(_UNCUT)


class MainGroup(WholeSummary, click.Group):
    """The group of all commands: prints a UserError as a sentence, other errors as a traceback."""

    def main(self, args: Sequence[str] | None = None, **kwargs: Any) -> Any:  # type: ignore[override]  # click's overloads
        """Run a command line; `--debug` may stand anywhere in it."""
        words = list(sys.argv[1:] if args is None else args)
        debug = "--debug" in words
        _open_streams()
        try:
            _require_readable(words)
            return super().main([word for word in words if word != "--debug"], **kwargs)
        except Exception as error:
            sentence = str(error) if isinstance(error, UserError) else os_error_message(error)
            if debug or not sentence:
                raise
            code = STOPPED if isinstance(error, Interrupted) else MISTAKE
            stop(f"Error: {_readable(sentence)}", code)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:  # click's
        """Make a context; escape what a refusal of click quotes."""
        with _printable_refusals():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:  # click's
        """Run a command; escape what a refusal of click quotes."""
        with _printable_refusals():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; name the nearest one when there is none of that name."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"There is no command {args[0]!r}. {nearest(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


def stop(sentence: str, code: int) -> NoReturn:
    """Print a sentence on standard error, and end the process with this exit code."""
    echo(sentence, err=True)
    sys.exit(code)


def _readable(sentence: str) -> str:
    """Return a sentence on one line of at most LONGEST characters."""
    line = sentence.replace("\n", "\\n")
    return line if len(line) <= LONGEST else f"{line[:1500]} … {line[-400:]}"


def _open_streams() -> None:
    r"""Open streams that the shell closed, and print characters that none can encode as escapes.

    An escape is such as `\u65e5`; standard error of Python has them by itself.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the shell: `<&-`
            empty = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115  # kept to the end
            setattr(sys, name, empty)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _require_readable(words: Sequence[str]) -> None:
    """Refuse a command line that no command can work with.

    Raises:
        UserError: a word of the command line is not text, or the working folder is gone.
    """
    for number, word in enumerate(words, start=1):
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"Word {number} of the command, {word!r}, is not UTF-8 (character "
                f"{error.start + 1}); write it in UTF-8, or rename the file that it names."
            ) from None
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UserError(
            "The folder that this command was started in was deleted; change to one that exists, "
            "as with: cd ~"
        ) from None


@contextmanager
def _printable_refusals() -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        error.message = printable(error.message)  # type: ignore[misc]  # final, and shown as it is
        raise
