"""`m2dr compare` and `m2dr pick`: what a grid of results says."""

from m2dr.cli.options import command, json_option, takes
from m2dr.cli.terminal import echo, echo_json
from m2dr.core.requests import CompareRequest, PickRequest


@command(
    examples=(
        "compare results/pydocs/test/pydocs-fitted --against bm25.trec",
        "compare results/scifact/test/a --against results/scifact/test/b@L6D384",
    ),
)
@takes(CompareRequest)
@json_option
def compare(request: CompareRequest, as_json: bool) -> None:
    """Test which cuts differ significantly from a baseline.

    Each cell of a grid is compared by a paired test. FOLDER holds the results of one model, as
    results/pydocs/test/pydocs-full-dim.
    """
    from m2dr.evaluate.comparison import comparison_record
    from m2dr.tasks.compare import compare_folders, tables

    report = compare_folders(request)
    if as_json:
        found = [comparison_record(one) for one in report.comparisons]
        echo_json({"comparisons": found, "files": report.files})
        return
    echo(tables(report.comparisons))
    for file in report.files:
        echo(str(file))


@command(
    examples=(
        "pick results/pydocs/test/pydocs-fitted --latency 5ms",
        "pick results/scifact/test/minilm --quality 97% --json",
    ),
)
@takes(PickRequest)
@json_option
def pick(request: PickRequest, as_json: bool) -> None:
    """Name the best cut within a budget, and the Pareto frontier.

    FOLDER holds the results of one model, as results/pydocs/test/pydocs-full-dim. With a limit on
    latency, bytes or multiply-adds the best of the cuts that fit is named; with a least quality
    alone, the cheapest that reaches it, by all three costs alike. Ties go to the cheaper. Costs
    that are not known yet are measured on this machine.
    """
    from m2dr.evaluate.pick import choice_record, choice_table
    from m2dr.tasks.pick import commands, pick_cut

    choice = pick_cut(request)
    if as_json:
        echo_json({**choice_record(choice), "commands": commands(choice, request.root)})
        return
    echo(choice_table(choice))
    echo()
    for line in commands(choice, request.root):
        echo(line)
