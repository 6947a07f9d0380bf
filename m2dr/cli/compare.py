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
    from m2dr.tasks.compare import compare_folders

    report = compare_folders(request)
    if as_json:
        echo_json(report.record())
        return
    echo(str(report))
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
    from m2dr.tasks.pick import pick_cut

    choice = pick_cut(request)
    if as_json:
        echo_json({**choice.record(), "commands": choice.commands(request.root)})
        return
    echo(str(choice))
    echo()
    for line in choice.commands(request.root):
        echo(line)
