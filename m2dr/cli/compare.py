"""`m2dr compare` and `m2dr pick`: what a grid of results says."""

from m2dr.cli.options import command, takes
from m2dr.cli.terminal import echo
from m2dr.settings.evaluate_requests import CompareRequest, PickRequest


@command()
@takes(CompareRequest)
def compare(request: CompareRequest) -> None:
    """Say which cells of a grid are significantly better or worse than a baseline.

    FOLDER holds the results of one model, as results/pydocs/test/pydocs-full-dim.
    """
    from m2dr.commands.compare import compare_folders, tables

    report = compare_folders(request)
    echo(tables(report.comparisons))
    for file in report.files:
        echo(str(file))


@command()
@takes(PickRequest)
def pick(request: PickRequest) -> None:
    """Name the best cut within a budget, and the cuts on the Pareto frontier.

    FOLDER holds the results of one model, as results/pydocs/test/pydocs-full-dim. With a limit on
    latency, bytes or multiply-adds the best of the cuts that fit is named; with a least quality
    alone, the cheapest that reaches it. Ties go to the cheaper. Costs that are not known yet are
    measured on this machine.
    """
    from m2dr.commands.pick import commands, pick_cut
    from m2dr.evaluate.pick import choice_table

    choice = pick_cut(request)
    echo(choice_table(choice))
    echo()
    for line in commands(choice, request.root):
        echo(line)
