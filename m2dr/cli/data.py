"""`m2dr data`: look at data before it is used."""

from dataclasses import asdict

import click

from m2dr.cli.options import CommandGroup, json_option, takes
from m2dr.cli.terminal import echo, echo_json, echo_table
from m2dr.core.requests import CheckRequest

FOUND = 1  # exit code of --strict


@click.group(cls=CommandGroup)
def data() -> None:
    """Look at data before it is used."""


@data.command(
    examples=(
        "data check pydocs",
        "data check pairs.jsonl --strict --json",
    ),
)
@takes(CheckRequest)
@json_option
def check(request: CheckRequest, as_json: bool) -> None:
    """Count what a corpus holds and what is wrong with it.

    It is read whole. NAME is what --corpus of other commands takes. Lengths are in words. A
    group is a query with a relevant document, as a training draws it.
    """
    from m2dr.tasks.data import check_data, tables

    report = check_data(request)
    if as_json:
        echo_json({**asdict(report), "problems": report.problems})
    else:
        for table in tables(report):
            echo_table(table, numbers=True)
            echo()
        for sentence in (*report.notes, *report.problems):
            echo(sentence)
    if request.strict and report.problems:
        raise SystemExit(FOUND)
