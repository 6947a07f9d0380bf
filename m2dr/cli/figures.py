"""`m2dr figures` and `m2dr report`: results as figures, and as one page."""

from m2dr.cli.options import command, takes
from m2dr.cli.terminal import echo
from m2dr.core.requests import FiguresRequest, ReportRequest


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


@command(
    examples=(
        "report",
        "report results/scifact --out scifact.html --title SciFact",
    ),
)
@takes(ReportRequest, leave=("figures_out", "figures_formats", "figures_theme"))
def report(request: ReportRequest) -> None:
    """Write one page with the tables and figures of results.

    Costs and settings are on it too. RESULTS are folders that m2dr evaluate wrote: of one
    model, of several on one corpus, or results itself, which is the default. The page is one
    file, and needs no network to be read.
    """
    from m2dr.tasks.report import write_report

    done = write_report(request)
    for note in done.notes:
        echo(f"Note: {note}", err=True)
    echo(f"{done.path}: {done.bytes / 1e6:.1f} MB", beside=done.path)
