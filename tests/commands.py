"""Commands in this process: run, refused, or read as click reads them."""

import shlex

import click
from click.testing import CliRunner, Result

from m2dr.cli import main


def run(*words: object, **variables: str | None) -> Result:
    """What comes of a command, with other variables of the environment."""
    return CliRunner().invoke(main, list(map(str, words)), env=variables)


def done(*words: object) -> str:
    """What a command prints that ends well."""
    result = run(*words)
    assert result.exit_code == 0, result.output or repr(result.exception)
    return result.stdout


def refused(*words: object) -> str:
    """What is said about a mistake: nothing but a sentence, and exit code 2."""
    result = run(*words)
    assert result.exit_code == 2, result.output or repr(result.exception)
    assert "Traceback" not in result.output
    return result.stderr


def parsed(line: str) -> click.Context:
    """What click makes of a command, down to the last word; nothing is run."""
    words = shlex.split(line)
    if words[0] == "torchrun":
        words = words[words.index("-m") + 1 :]
    assert words[0] == "m2dr", line
    below: click.Command = main
    words = words[1:]
    while isinstance(below, click.Group):
        below = below.commands[words.pop(0)]
    return below.make_context(str(below.name), words)
