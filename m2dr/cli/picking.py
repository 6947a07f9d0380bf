"""`m2dr compare` and `m2dr pick`: what a grid says, and which of its cuts to take."""

import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import click

from m2dr.cli.options import FILE, FOLDER, MACHINE, ROOT
from m2dr.cli.polite import echo

Read = Callable[[click.Context, click.Parameter, str | None], float | None]


def _amount(what: str, units: Mapping[str, float], example: str) -> Read:
    """Read a number above 0 with a unit; `units` say how many of the option's own each one is."""

    def read(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
        if value is None:
            return None
        found = _NUMBER.fullmatch(value.strip().lower())
        number = float(found[1]) * units.get(found[2], 0) if found else 0.0
        if not isfinite(number) or number <= 0:
            raise click.BadParameter(f"{value!r} is no {what} above 0; write it as {example}.")
        return number

    return read


_NUMBER = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*([a-zµ%]*)")
_duration = _amount("time", {"": 1, "ms": 1, "s": 1000, "us": 0.001, "µs": 0.001}, "5ms or 0.1s")
_size = _amount("size", {"": 1, "b": 1, "kb": 1e3, "kib": 2**10}, "256, 1KB or 1KiB")
_count = _amount("number", {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}, "85000000 or 85M")
_share = _amount("share", {"": 1, "%": 0.01}, "0.97 or 97%")


def _floor(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, float] | None:
    """`nDCG@10=.3` as a measure and a value."""
    if value is None:
        return None
    measure, _equals, number = value.rpartition("=")
    try:
        floor = float(number)
    except ValueError:
        floor = float("nan")
    if not measure.strip() or not isfinite(floor):
        raise click.BadParameter(f"{value!r} is no measure and value, such as nDCG@10=.3.")
    return measure.strip(), floor


@click.command()
@click.argument("folder", type=FOLDER)
@click.option(
    "--against",
    multiple=True,
    required=True,
    help="Another folder of results, one cut of it as FOLDER@L6D384, or a TREC run; repeatable.",
)
@click.option(
    "--measure", "measures", multiple=True, help="Repeatable; nDCG@10 by default, where it is kept."
)
@click.option(
    "--alpha", type=float, default=0.05, show_default=True, help="Level that marks a cell."
)
@click.option("--qrels", type=FILE, help="Judgements for a run, where the results keep none.")
@click.option("--out", type=FOLDER, help="Where JSON and CSV go; FOLDER by default.")
def compare(**request: Any) -> None:  # noqa: ANN401  # fields of CompareRequest
    """Say which cells of a grid are significantly better or worse than a baseline.

    FOLDER holds the results of one model, as results/pydocs/test/pydocs-full-dim.
    """
    from m2dr.verbs.evaluating.against import CompareRequest, compare_folders, tables

    report = compare_folders(CompareRequest(**request))
    echo(tables(report.comparisons))
    for file in report.files:
        echo(str(file))


@click.command()
@click.argument("folder", type=FOLDER)
@click.option("--latency", "latency_ms", callback=_duration, help="Of one query, at most, as 5ms.")
@click.option(
    "--percentile",
    type=click.Choice(["50", "95"]),
    default="50",
    show_default=True,
    help="Of queries that must be as fast as --latency.",
)
@click.option("--bytes-per-document", callback=_size, help="In the index, at most, as 256 or 1KB.")
@click.option("--multiply-adds", callback=_count, help="Of one query, at most, as 85M.")
@click.option(
    "--quality", callback=_share, help="At least, as a share of the whole encoder's: 0.97 or 97%."
)
@click.option("--at-least", callback=_floor, help="At least, as nDCG@10=.3; or use --quality.")
@click.option("--measure", default="", help="nDCG@10 by default, where it is kept.")
@click.option("--measure-costs", is_flag=True, help="Measure costs again, though they are known.")
@click.option("--model", default="", help="To measure costs; models/NAME of FOLDER by default.")
@click.option("--corpus", default="", help="To measure costs; that of FOLDER by default.")
@ROOT
@MACHINE
def pick(percentile: str, **request: Any) -> None:  # noqa: ANN401  # fields of PickRequest
    """Name the best cut within a budget, and the cuts worth having at all.

    FOLDER holds the results of one model, as results/pydocs/test/pydocs-full-dim. With a limit on
    latency, bytes or multiply-adds the best of those that fit is named; with a floor of quality
    alone, the cheapest that is good enough. Ties go to the cheaper. Costs are measured on this
    machine when they are not known yet.
    """
    from m2dr.evaluate.choice import choice_table
    from m2dr.verbs.evaluating.pick import PickRequest, commands, pick_cut

    asked = PickRequest(percentile=int(percentile), **request)
    choice = pick_cut(asked)
    echo(choice_table(choice))
    echo()
    for line in commands(choice, asked.root):
        echo(line)
