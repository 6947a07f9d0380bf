"""`m2dr evaluate sts`, `classification`, `pairs` and `mteb`: sentence tasks."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from m2dr.cli.options import CUTS, MACHINE, MODEL, OUT, Command, Whole, options
from m2dr.cli.polite import echo

if TYPE_CHECKING:
    from m2dr.verbs.evaluating.tasks import TaskReport, TaskRequest

COUNT = Whole(min=1)
SPLIT = click.option("--split", help="Which rows, of files that hold several splits.")
_REST = options(CUTS, OUT, MACHINE)


def _task(told: str) -> Callable[[Command], Command]:
    return click.option("--task", "tasks", multiple=True, required=True, help=f"{told} Repeatable.")


def _measure(names: Sequence[str], default: str) -> Callable[[Command], Command]:
    return click.option(
        "--measure",
        "measures",
        type=click.Choice(names, case_sensitive=False),
        multiple=True,
        help=f"What is printed and drawn, {default} by default; files hold all. Repeatable.",
    )


@click.command()
@_task("A file of scored sentence pairs, or NAME for data/sts/NAME.tsv; commas join files to one.")
@SPLIT
@_measure(["Spearman", "Pearson"], "Spearman")
@_REST
def sts(**request: Any) -> None:  # noqa: ANN401  # fields of StsRequest
    """Sentence similarity: how far cosines agree with what people said of pairs."""
    from m2dr.verbs.evaluating.sts import StsRequest, evaluate_sts

    asked = StsRequest(**_given(request))
    _show(asked, evaluate_sts(asked))


@click.command()
@_task("A folder of train.csv and test.csv, or NAME for data/classification/NAME.")
@click.option("--split", default="test", show_default=True, help="Which texts are tested.")
@click.option(
    "--protocol",
    type=click.Choice(["mteb", "full"]),
    default="mteb",
    show_default=True,
    help="A few texts per label, drawn again and again; or one fit on all.",
)
@click.option("--samples", type=COUNT, default=8, show_default=True, help="Texts per label (mteb).")
@click.option(
    "--experiments", type=COUNT, default=10, show_default=True, help="How many draws (mteb)."
)
@click.option("--iterations", type=COUNT, default=100, show_default=True, help="Of a fit, at most.")
@click.option("--seed", type=Whole(0, 2**32 - 1), default=42, show_default=True)
@_measure(["Accuracy", "F1"], "Accuracy")
@_REST
def classification(**request: Any) -> None:  # noqa: ANN401  # fields of ClassificationRequest
    """Text classification: a logistic regression on frozen vectors, accuracy and macro F1."""
    from m2dr.verbs.evaluating.classification import ClassificationRequest, evaluate_classification

    asked = ClassificationRequest(**_given(request))
    _show(asked, evaluate_classification(asked))


@click.command()
@_task("A file of sentence pairs labelled 1 or 0, or NAME in data/pair-classification.")
@SPLIT
@_measure(
    ["cosine-AP", "cosine-Accuracy", "cosine-F1", "dot-AP", "dot-Accuracy", "dot-F1"], "cosine-AP"
)
@_REST
def pairs(**request: Any) -> None:  # noqa: ANN401  # fields of PairsRequest
    """Pair classification: average precision, and accuracy and F1 at the best threshold."""
    from m2dr.verbs.evaluating.pairs import PairsRequest, evaluate_pairs

    asked = PairsRequest(**_given(request))
    _show(asked, evaluate_pairs(asked))


@click.command()
@click.option("--task", "tasks", multiple=True, required=True, help="As MTEB calls it; repeatable.")
@MODEL
@click.option(
    "--layer",
    type=Whole(min=0),
    help="Layers to run; all by default, 0 for a fitted model's table of tokens.",
)
@click.option("--dim", type=COUNT, help="Coordinates to keep; all by default.")
@OUT
@MACHINE
def mteb(**request: Any) -> None:  # noqa: ANN401  # fields of MtebRequest
    """Any task of the Massive Text Embedding Benchmark, at one cut; MTEB fetches its data."""
    from m2dr.mteb import MtebRequest, evaluate_mteb

    report = evaluate_mteb(MtebRequest(**_given(request)))
    for score in report.scores:
        echo(f"{score.value:.4f}  {score.measure} of {score.task}, split {score.split}")
    echo(f"{report.cut} of {report.model}, {report.seconds:,.0f} s; all in {report.folder}")


def _given(request: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in request.items() if value not in ((), None)}


def _show(asked: "TaskRequest", report: "TaskReport") -> None:
    from m2dr.verbs.evaluating.tasks import tables

    echo(tables(report, asked.measures))
    echo(f"{report.seconds:,.0f} s; tables in {asked.out}")
    for figure in report.figures:
        echo(str(figure))
