"""`m2dr figures`: results as figures."""

from m2dr.cli.options import command, takes
from m2dr.cli.terminal import echo
from m2dr.core.requests import FiguresRequest


@command(
    examples=(
        "figures",
        "figures results/pydocs --format svg --theme dark",
    ),
)
@takes(FiguresRequest)
def figures(request: FiguresRequest) -> None:
    """Draw the papers' figures from folders of results.

    RESULTS are folders that m2dr evaluate wrote: of one model, of several on one corpus, or
    results itself, which is the default.
    """
    from m2dr.tasks.figures import draw_figures

    report = draw_figures(request)
    for note in report.notes:
        echo(f"Note: {note}", err=True)
    for file in report.files:
        echo(str(file))
