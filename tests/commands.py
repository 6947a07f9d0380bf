"""Commands that a message prints, read as click reads them."""

import shlex

import click

from m2dr.cli import main


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
