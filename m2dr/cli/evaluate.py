"""`m2dr evaluate`: retrieval, with a command per layout of data, and sentence tasks."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from m2dr.cli.options import CommandGroup, json_option, options, takes
from m2dr.cli.terminal import echo, echo_json
from m2dr.core.requests import (
    ClassificationRequest,
    EvaluateRequest,
    MtebRequest,
    PairsRequest,
    StsRequest,
)

if TYPE_CHECKING:
    from m2dr.tasks.sentence_tasks import TaskReport


_MEAN = "of several the mean comes last."


@click.group(cls=CommandGroup)
def evaluate() -> None:
    """Measure every cut of a model: tables, runs and figures."""


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
            help="Baseline: a folder of results, a cut FOLDER@L6D384, or a TREC run. Repeatable.",
        ),
        click.option(
            "--costs", is_flag=True, help="Measure latency, bytes and encoding speed of each cut."
        ),
        json_option,
    )


@evaluate.command(
    examples=(
        "evaluate retrieval --corpus scifact --layers 2,4,6 --dims 64,384",
        "evaluate retrieval --corpus irds:beir/nfcorpus/test --json",
    ),
)
@_retrieval({}, leave=())
def retrieval(
    request: EvaluateRequest, against: tuple[str, ...], costs: bool, as_json: bool
) -> None:
    """Evaluate retrieval on any corpus.

    It may be in BEIR or MS MARCO layout, pydocs, irds:ID or hf:ID.
    """
    _evaluate(request, against, costs, as_json)


@evaluate.command(
    examples=(
        "evaluate beir --corpus scifact",
        "evaluate beir --suite beir13 --models minilm --costs",
    ),
)
@_retrieval({"help": f"Folder in BEIR layout, or the name of one; {_MEAN}"}, leave=())
def beir(request: EvaluateRequest, against: tuple[str, ...], costs: bool, as_json: bool) -> None:
    """Evaluate on a BEIR dataset, or any corpus in its layout."""
    _evaluate(request, against, costs, as_json)


@evaluate.command(
    examples=(
        "evaluate msmarco --corpus data/msmarco",
        "evaluate msmarco --corpus data/msmarco --layers 6 --runs all",
    ),
)
@_retrieval(
    {"help": f"Folder of MS MARCO files, or in BEIR layout; {_MEAN}"},
    {"value": "dev.small", "default": "", "help": "Split, as in qrels.SPLIT.tsv."},
)
def msmarco(request: EvaluateRequest, against: tuple[str, ...], costs: bool, as_json: bool) -> None:
    """Evaluate on MS MARCO passages.

    The files are collection.tsv, queries.*.tsv and qrels.*.tsv.
    """
    _evaluate(request, against, costs, as_json)


@evaluate.command(
    examples=(
        "evaluate irds --corpus irds:beir/scifact/test",
        "evaluate irds --corpus beir/nfcorpus/test --dims 64,128",
    ),
)
@_retrieval(
    {"help": f"ID in ir_datasets, such as irds:beir/scifact/test; {_MEAN}"},
    {"value": "test", "default": "", "help": "train, dev or test."},
)
def irds(request: EvaluateRequest, against: tuple[str, ...], costs: bool, as_json: bool) -> None:
    """Evaluate on a dataset of the catalogue of ir_datasets.

    It is downloaded when it is first used.
    """
    named = (one if one.startswith("irds:") else f"irds:{one}" for one in request.corpora)
    _evaluate(replace(request, corpora=tuple(named)), against, costs, as_json)


@evaluate.command(
    examples=(
        "evaluate pydocs",
        "evaluate pydocs --models minilm --costs",
    ),
)
@_retrieval(
    {"value": ("pydocs",), "help": f"pydocs or pydocs:stdlib; {_MEAN}"},
    {"value": "test", "default": ""},
)
def pydocs(request: EvaluateRequest, against: tuple[str, ...], costs: bool, as_json: bool) -> None:
    """Evaluate on the docstrings of this machine's Python.

    These are the built-in corpus, pydocs.
    """
    _evaluate(request, against, costs, as_json)


def _evaluate(
    request: EvaluateRequest, against: tuple[str, ...], costs: bool, as_json: bool
) -> None:
    from m2dr.tasks.evaluate import compared, keep_record, measure_all_costs
    from m2dr.tasks.evaluate import evaluate as measure

    report = measure(request)
    keep_record(report)
    comparisons = tuple(compared(request, report, against)) if against else ()
    if not as_json:
        echo(str(report))
        for one in comparisons:
            echo(f"\n{one}")
    measured = tuple(measure_all_costs(request, report)) if costs else ()
    if as_json:
        echo_json(report.record(comparisons, measured))
        return
    echo(f"{report.seconds:,.0f} s; tables and runs in {report.folder}")
    for figure in report.figures:
        echo(str(figure))


@evaluate.command(
    examples=(
        "evaluate sts --task stsb-test",
        "evaluate sts --task sick-test --layers 2,4,6 --measure Pearson",
    ),
)
@takes(StsRequest)
@json_option
def sts(request: StsRequest, as_json: bool) -> None:
    """Sentence similarity: correlations with what people said.

    The cosines of pairs are compared with their scores.
    """
    from m2dr.tasks.sentence_tasks import evaluate_sts

    _show(evaluate_sts(request), as_json)


@evaluate.command(
    examples=(
        "evaluate classification --task banking77",
        "evaluate classification --task data/mine --protocol full --measure F1",
    ),
)
@takes(ClassificationRequest)
@json_option
def classification(request: ClassificationRequest, as_json: bool) -> None:
    """Text classification: accuracy and macro F1.

    A logistic regression is fitted on frozen vectors.
    """
    from m2dr.tasks.sentence_tasks import evaluate_classification

    _show(evaluate_classification(request), as_json)


@evaluate.command(
    examples=(
        "evaluate pairs --task pairs.tsv",
        "evaluate pairs --task pairs.tsv --layers 2,4,6 --measure cosine-F1",
    ),
)
@takes(PairsRequest)
@json_option
def pairs(request: PairsRequest, as_json: bool) -> None:
    """Pair classification: average precision, accuracy and F1.

    Accuracy and F1 are those at the best threshold.
    """
    from m2dr.tasks.sentence_tasks import evaluate_pairs

    _show(evaluate_pairs(request), as_json)


def _show(report: "TaskReport", as_json: bool) -> None:
    if as_json:
        echo_json(report.record())
        return
    echo(str(report))
    echo(f"{report.seconds:,.0f} s; tables in {report.folder}")
    for figure in report.figures:
        echo(str(figure))


@evaluate.command(
    examples=(
        "evaluate mteb --task STS12",
        "evaluate mteb --task NFCorpus --layers 2,4,6 --dims 64,384",
    ),
)
@takes(MtebRequest)
@json_option
def mteb(request: MtebRequest, as_json: bool) -> None:
    """Any task of MTEB, at any cuts.

    The Massive Text Embedding Benchmark fetches its data.
    """
    from m2dr.integrations.mteb import evaluate_mteb

    report = evaluate_mteb(request)
    if as_json:
        echo_json(report.record())
    else:
        echo(str(report))
