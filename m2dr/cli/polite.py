"""Errors as sentences, and the nearest command for one that does not exist."""

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
        try:
            return super().main([word for word in words if word != "--debug"], **kwargs)
        except Exception as error:
            sentence = str(error) if isinstance(error, UserError) else refusal_of(error)
            if debug or not sentence:
                raise
            stop(f"Error: {sentence}", STOPPED if isinstance(error, Interrupted) else MISTAKE)

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


@contextmanager
def _printable_refusals() -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        error.message = printable(error.message)  # type: ignore[misc]  # final, and shown as it is
        raise
