"""`m2dr figures` and `m2dr report`: what was measured, to look at."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from m2dr.cli.options import FILE, FOLDER, MACHINE, Whole, options, whole_numbers
from m2dr.cli.polite import echo

if TYPE_CHECKING:
    from m2dr.verbs.evaluating.figures import FiguresRequest

_WHAT = options(
    click.argument("results", nargs=-1, type=FOLDER),
    click.option(
        "--measure",
        "measures",
        multiple=True,
        help="Of the figures; repeatable. The first that was measured by default.",
    ),
    click.option(
        "--separate",
        type=FOLDER,
        help="Results of a model, or of one model per cut, whose gap to the others is drawn.",
    ),
    click.option(
        "--published",
        multiple=True,
        help="Scores to draw beside: msmarco, beir13, starbucks-msmarco or starbucks-sts; some "
        "recipes of one as msmarco:FULL-DIM,BERT. Repeatable.",
    ),
    click.option(
        "--overlap",
        "overlap_models",
        multiple=True,
        help="Model whose prefixes are drawn over its whole vectors; repeatable.",
    ),
    click.option(
        "--corpus",
        default="pydocs",
        show_default=True,
        help="Whose documents --overlap encodes.",
    ),
    click.option(
        "--overlap-dims",
        callback=whole_numbers(1),
        help="Prefixes of --overlap, as 32,128; by default a third of the width.",
    ),
    click.option(
        "--overlap-layer", type=Whole(min=0), default=None, help="Of --overlap; the last."
    ),
    click.option(
        "--overlap-by",
        type=click.Choice(["pca", "tsne"]),
        default="pca",
        show_default=True,
        help="How the plane of --overlap is found; tsne needs the extra tasks.",
    ),
    MACHINE,
)


@click.command()
@_WHAT
@click.option(
    "--out", type=FOLDER, default=Path("figures"), show_default=True, help="Where figures go."
)
@click.option(
    "--format",
    "formats",
    type=click.Choice(["png", "svg"]),
    multiple=True,
    default=("png",),
    show_default=True,
    help="Repeatable.",
)
@click.option(
    "--look",
    type=click.Choice(["light", "dark"]),
    default="light",
    show_default=True,
    help="Paper.",
)
def figures(out: Path, formats: tuple[str, ...], look: str, **what: Any) -> None:  # noqa: ANN401  # fields of FiguresRequest
    """Draw the papers' figures from folders of results.

    RESULTS are folders that m2dr evaluate wrote: of one model, of several on one corpus, or
    results itself, which is the default.
    """
    from m2dr.verbs.evaluating.figures import draw_figures

    report = draw_figures(_request(out=out, formats=formats, look=look, **what))
    for note in report.notes:
        echo(f"Note: {note}", err=True)
    for file in report.files:
        echo(str(file))


@click.command()
@_WHAT
@click.option("--out", type=FILE, default=Path("report.html"), show_default=True, help="The page.")
@click.option("--title", default="", help="Of the page.")
@click.option(
    "--models",
    type=FOLDER,
    default=Path("models"),
    show_default=True,
    help="Where the models lie, whose settings the page shows.",
)
def report(out: Path, title: str, models: Path, **what: Any) -> None:  # noqa: ANN401  # fields of FiguresRequest
    """Write one page with the tables, figures, costs and settings of results.

    RESULTS are folders that m2dr evaluate wrote: of one model, of several on one corpus, or
    results itself, which is the default. The page is one file, and needs no network to be read.
    """
    from m2dr.verbs.evaluating.report import ReportRequest, write_report

    done = write_report(ReportRequest(_request(**what), out, title, models))
    for note in done.notes:
        echo(f"Note: {note}", err=True)
    echo(f"{done.path}: {done.bytes / 1e6:.1f} MB", beside=done.path)


def _request(
    results: tuple[Path, ...],
    overlap_models: tuple[str, ...],
    corpus: str,
    overlap_dims: tuple[int, ...],
    overlap_layer: int | None,
    overlap_by: str,
    device: str,
    dtype: str,
    **rest: Any,  # noqa: ANN401  # the other fields of FiguresRequest
) -> "FiguresRequest":
    from m2dr.verbs.evaluating.figures import RESULTS, FiguresRequest
    from m2dr.verbs.evaluating.overlaps import OverlapRequest

    overlap = OverlapRequest(
        overlap_models,
        corpus,
        overlap_dims,
        overlap_layer,
        way=overlap_by,
        device=device,
        dtype=dtype,
    )
    return FiguresRequest(results=results or (RESULTS,), overlap=overlap, **rest)
