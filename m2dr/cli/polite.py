"""Errors as sentences, and the nearest command for one that does not exist."""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from m2dr.errors import Interrupted, UserError, nearest, refusal_of

MISTAKE, STOPPED = 2, 1  # exit codes


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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest command when there is none of that name."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"There is no command {args[0]!r}. {nearest(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


def stop(sentence: str, code: int) -> NoReturn:
    """Say why, and end the process with this exit code."""
    click.echo(sentence, err=True)
    sys.exit(code)
