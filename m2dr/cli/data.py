"""`m2dr data`: look at data before it is used."""

import json as codec
from dataclasses import asdict

import click

from m2dr.cli.options import CommandGroup, takes
from m2dr.cli.terminal import echo, echo_table
from m2dr.settings.index_requests import CheckRequest

FOUND = 1  # exit code of --strict


@click.group(cls=CommandGroup)
def data() -> None:
    """Look at data before it is used."""


@data.command()
@takes(CheckRequest)
def check(request: CheckRequest) -> None:
    """Read a corpus whole, and count what it holds and what is wrong with it.

    NAME is what --corpus of other commands takes. Lengths are in words. A group is a query with a
    relevant document, as a training draws it.
    """
    from m2dr.commands.data import check_data, tables

    report = check_data(request)
    if request.json:
        echo(codec.dumps({**asdict(report), "problems": report.problems}, indent=2))
    else:
        for table in tables(report):
            echo_table(table, numbers=True)
            echo()
        for sentence in (*report.notes, *report.problems):
            echo(sentence)
    if request.strict and report.problems:
        raise SystemExit(FOUND)
