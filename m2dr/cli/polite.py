"""Errors as sentences, and the nearest command for one that does not exist."""

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from m2dr.errors import Interrupted, UserError, nearest, refusal_of
from m2dr.io import is_stdout
from m2dr.verbs.progress import printable

MISTAKE, STOPPED = 2, 1  # exit codes
LONGEST = 2_000  # characters of an error


def echo(line: str = "", *, err: bool = False, beside: Path | None = None) -> None:
    """Print a line, whatever texts, ids and names of files it quotes: every command prints by this.

    Args:
        line: to print; control characters are shown as escapes.
        err: whether it goes to standard error.
        beside: a file that was written; where it is standard output, the line goes to the other.
    """
    click.echo(printable(line), err=err or (beside is not None and is_stdout(beside)))


class Polite(click.Group):
    """Shows what a person can fix as a sentence; every other error keeps its traceback."""

    def main(self, args: Sequence[str] | None = None, **kwargs: Any) -> Any:  # type: ignore[override]  # noqa: ANN401  # click's overloads
        """Run; `--debug` may stand anywhere."""
        words = list(sys.argv[1:] if args is None else args)
        debug = "--debug" in words
        _open_streams()
        try:
            _require_readable(words)
            return super().main([word for word in words if word != "--debug"], **kwargs)
        except Exception as error:
            sentence = str(error) if isinstance(error, UserError) else refusal_of(error)
            if debug or not sentence:
                raise
            code = STOPPED if isinstance(error, Interrupted) else MISTAKE
            stop(f"Error: {_readable(sentence)}", code)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:  # noqa: ANN401  # click's
        """Make a context; what click refuses may quote what was typed or found."""
        with _printable_refusals():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401  # click's
        """Run a command; the same."""
        with _printable_refusals():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest command when there is none of that name."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"There is no command {args[0]!r}. {nearest(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


def stop(sentence: str, code: int) -> NoReturn:
    """Say why, and end the process with this exit code."""
    echo(sentence, err=True)
    sys.exit(code)


def _readable(sentence: str) -> str:
    """Return a sentence on one line, without the middle of a file that it quotes."""
    line = sentence.replace("\n", "\\n")  # of a name, a word or a library that it quotes
    return line if len(line) <= LONGEST else f"{line[:1500]} … {line[-400:]}"


def _open_streams() -> None:
    r"""Give a process without streams empty ones, and let none refuse a character.

    A stream whose encoding lacks a character prints its number, as `\u65e5`; standard error of
    Python does so by itself.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the shell: `<&-`
            empty = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115  # kept to the end
            setattr(sys, name, empty)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _require_readable(words: Sequence[str]) -> None:
    """Refuse what no command can work with, before any of them begins.

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
