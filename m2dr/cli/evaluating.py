"""`m2dr evaluate`: one command per kind of data."""

from typing import Any

import click

from m2dr.cli.options import CUTS, MACHINE, OUT, ROOT, options


@click.group()
def evaluate() -> None:
    """Measure every cut of a model: table, CSV, JSON, runs and figure."""


_EVALUATE = options(
    CUTS,
    click.option(
        "--measure",
        "measures",
        multiple=True,
        help="As ir_measures writes them; repeatable. nDCG@10 RR@10 R@100 R@1000.",
    ),
    click.option(
        "--runs",
        type=click.Choice(["whole", "all", "none"]),
        default="whole",
        show_default=True,
        help="Whose TREC runs are written: the largest cut's, all.",
    ),
    ROOT,
    OUT,
    MACHINE,
)


@evaluate.command()
@click.option("--corpus", required=True, help="A folder in BEIR layout, or the name of one.")
@click.option("--split", default="test", show_default=True)
@_EVALUATE
def beir(**request: Any) -> None:  # noqa: ANN401  # fields of EvaluateRequest
    """A BEIR dataset, or any corpus in its layout."""
    _evaluate(**request)


@evaluate.command()
@click.option("--corpus", required=True, help="A folder of MS MARCO files, or in BEIR layout.")
@click.option("--split", default="dev.small", show_default=True, help="As in qrels.SPLIT.tsv.")
@_EVALUATE
def msmarco(**request: Any) -> None:  # noqa: ANN401  # fields of EvaluateRequest
    """MS MARCO passages: collection.tsv, queries.*.tsv and qrels.*.tsv."""
    _evaluate(**request)


@evaluate.command()
@click.option("--corpus", default="pydocs", show_default=True, help="pydocs or pydocs:stdlib.")
@click.option("--split", default="test", show_default=True)
@_EVALUATE
def pydocs(**request: Any) -> None:  # noqa: ANN401  # fields of EvaluateRequest
    """The built-in corpus: the docstrings of this machine's Python."""
    _evaluate(**request)


@evaluate.command()
@click.option(
    "--task",
    "tasks",
    multiple=True,
    required=True,
    help="A file of scored sentence pairs, or NAME for data/sts/NAME.tsv; repeatable.",
)
@CUTS
@click.option(
    "--measure",
    "measures",
    type=click.Choice(["Spearman", "Pearson"], case_sensitive=False),
    multiple=True,
    help="What is printed and drawn, Spearman by default; files hold both. Repeatable.",
)
@OUT
@MACHINE
def sts(**request: Any) -> None:  # noqa: ANN401  # fields of StsRequest
    """Sentence similarity: how far cosines agree with what people said of pairs."""
    from m2dr.verbs.sts import StsRequest, evaluate_sts, tables

    asked = StsRequest(**{key: value for key, value in request.items() if value != ()})
    report = evaluate_sts(asked)
    click.echo(tables(report, asked.measures))
    click.echo(f"{report.seconds:,.0f} s; tables in {asked.out}")
    for figure in report.figures:
        click.echo(str(figure))


def _evaluate(**fields: Any) -> None:  # noqa: ANN401  # fields of EvaluateRequest
    from m2dr.verbs.evaluate import EvaluateRequest, tables
    from m2dr.verbs.evaluate import evaluate as verb

    given = {key: value for key, value in fields.items() if value not in ((), None)}
    report = verb(EvaluateRequest(**given))
    click.echo(tables(report.grids))
    click.echo(f"{report.seconds:,.0f} s; tables and runs in {report.folder}")
    for figure in report.figures:
        click.echo(str(figure))
