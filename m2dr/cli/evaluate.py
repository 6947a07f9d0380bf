"""`m2dr evaluate`: retrieval, with a command per layout of data, and sentence tasks."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from m2dr.cli.completion import completer
from m2dr.cli.options import CommandGroup, options, takes
from m2dr.cli.terminal import echo
from m2dr.errors import UserError, counted
from m2dr.settings.evaluate_requests import (
    ClassificationRequest,
    EvaluateRequest,
    MtebRequest,
    PairsRequest,
    StsRequest,
    TaskRequest,
)

if TYPE_CHECKING:
    from m2dr.commands.sentence_tasks import TaskReport


_MEAN = "of several the mean comes last."


@click.group(cls=CommandGroup)
def evaluate() -> None:
    """Measure every cut of a model: table, CSV, JSON, runs and figure."""


def _retrieval(
    corpora: dict[str, Any],
    split: dict[str, Any] | None = None,
    leave: tuple[str, ...] = ("suite",),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the options of a command for retrieval; the arguments change two of them."""
    return options(
        takes(EvaluateRequest, leave, corpora=corpora, split=split or {}),
        click.option(
            "--against",
            multiple=True,
            shell_complete=completer("against"),
            help="Baseline: a folder of results, a cut FOLDER@L6D384, or a TREC run. Repeatable.",
        ),
        click.option(
            "--costs", is_flag=True, help="Measure latency, bytes and encoding speed of each cut."
        ),
        click.option("--grid", is_flag=True, hidden=True, expose_value=False),  # it always does
    )


@evaluate.command()
@_retrieval({}, leave=())
def retrieval(request: EvaluateRequest, against: tuple[str, ...], costs: bool) -> None:
    """Evaluate retrieval on any corpus: BEIR, MS MARCO, pydocs, irds:ID or hf:ID."""
    _evaluate(request, against, costs)


@evaluate.command()
@_retrieval({"help": f"Folder in BEIR layout, or the name of one; {_MEAN}"}, leave=())
def beir(request: EvaluateRequest, against: tuple[str, ...], costs: bool) -> None:
    """Evaluate on a BEIR dataset, or any corpus in its layout."""
    _evaluate(request, against, costs)


@evaluate.command()
@_retrieval(
    {"help": f"Folder of MS MARCO files, or in BEIR layout; {_MEAN}"},
    {"value": "dev.small", "default": "", "help": "Split, as in qrels.SPLIT.tsv."},
)
def msmarco(request: EvaluateRequest, against: tuple[str, ...], costs: bool) -> None:
    """Evaluate on MS MARCO passages: collection.tsv, queries.*.tsv and qrels.*.tsv."""
    _evaluate(request, against, costs)


@evaluate.command()
@_retrieval(
    {"help": f"ID in ir_datasets, such as irds:beir/scifact/test; {_MEAN}"},
    {"value": "test", "default": "", "help": "train, dev or test."},
)
def irds(request: EvaluateRequest, against: tuple[str, ...], costs: bool) -> None:
    """Evaluate on a dataset of the catalogue of ir_datasets, downloaded when first used."""
    named = (one if one.startswith("irds:") else f"irds:{one}" for one in request.corpora)
    _evaluate(replace(request, corpora=tuple(named)), against, costs)


@evaluate.command()
@_retrieval(
    {"value": ("pydocs",), "help": f"pydocs or pydocs:stdlib; {_MEAN}"},
    {"value": "test", "default": ""},
)
def pydocs(request: EvaluateRequest, against: tuple[str, ...], costs: bool) -> None:
    """Evaluate on the built-in corpus: the docstrings of this machine's Python."""
    _evaluate(request, against, costs)


def _evaluate(request: EvaluateRequest, against: tuple[str, ...], costs: bool) -> None:
    from m2dr.commands.evaluate import compared, keep_record, measure_all_costs, told
    from m2dr.commands.evaluate import evaluate as measure

    if costs and request.exits == "index":
        raise UserError(
            "--costs measures a model with its own exits, and --exits index was asked for. Leave "
            "one of them out."
        )
    report = measure(request)
    keep_record(report)
    echo(told(report))
    for table in compared(request, report, against) if against else ():
        echo(f"\n{table}")
    if costs:
        measure_all_costs(request, report)
    echo(f"{report.seconds:,.0f} s; tables and runs in {report.folder}")
    for figure in report.figures:
        echo(str(figure))


@evaluate.command()
@takes(StsRequest)
def sts(request: StsRequest) -> None:
    """Sentence similarity: correlations of cosines with what people said of pairs."""
    from m2dr.commands.sentence_tasks import evaluate_sts

    _show(request, evaluate_sts(request))


@evaluate.command()
@takes(ClassificationRequest)
def classification(request: ClassificationRequest) -> None:
    """Text classification: a logistic regression on frozen vectors, accuracy and macro F1."""
    from m2dr.commands.classification import evaluate_classification

    _show(request, evaluate_classification(request))


@evaluate.command()
@takes(PairsRequest)
def pairs(request: PairsRequest) -> None:
    """Pair classification: average precision, and accuracy and F1 at the best threshold."""
    from m2dr.commands.sentence_tasks import evaluate_pairs

    _show(request, evaluate_pairs(request))


def _show(request: TaskRequest, report: "TaskReport") -> None:
    from m2dr.commands.sentence_tasks import tables

    echo(tables(report, request.measures))
    echo(f"{report.seconds:,.0f} s; tables in {request.out}")
    for figure in report.figures:
        echo(str(figure))


@evaluate.command()
@takes(MtebRequest)
def mteb(request: MtebRequest) -> None:
    """Any task of the Massive Text Embedding Benchmark, at any cuts; MTEB fetches its data."""
    from m2dr.evaluate.grid import text_table
    from m2dr.integrations.mteb import evaluate_mteb

    report = evaluate_mteb(request)
    cuts = tuple(report.scores)
    if len(cuts) > 1:
        for grid in report.grids:
            echo(f"{text_table(grid, grid.measures[0])}\n")
        told = counted(len(cuts), "cuts")
    else:
        for score in report.scores[cuts[0]]:
            echo(f"{score.value:.4f}  {score.measure} of {score.task}, split {score.split}")
        told = str(cuts[0])
    echo(f"{told} of {report.model}, {report.seconds:,.0f} s; all in {report.folder}")
