"""`m2dr evaluate`: one command per kind of data."""

from collections.abc import Callable
from typing import Any

import click

from m2dr.cli.options import CUTS, MACHINE, OUT, ROOT, Command, options
from m2dr.cli.polite import echo
from m2dr.cli.tasks import classification, mteb, pairs, sts
from m2dr.errors import UserError


@click.group()
def evaluate() -> None:
    """Measure every cut of a model: table, CSV, JSON, runs and figure."""


_EVALUATE = options(
    CUTS,
    click.option(
        "--documents",
        default="trained",
        show_default=True,
        help="Whose layer's documents are searched: trained, same, last, cross (each), or a layer.",
    ),
    click.option(
        "--exits",
        type=click.Choice(["model", "index"]),
        default="model",
        show_default=True,
        help="What queries pass: the model's exits, or some fitted on the documents searched.",
    ),
    click.option(
        "--measure",
        "measures",
        multiple=True,
        help="As ir_measures writes them; repeatable. What is usual on the data by default.",
    ),
    click.option(
        "--runs",
        type=click.Choice(["whole", "all", "none"]),
        default="whole",
        show_default=True,
        help="Whose TREC runs are written: the largest cut's, all.",
    ),
    click.option("--again", is_flag=True, help="Measure again what was measured before."),
    click.option(
        "--against",
        multiple=True,
        help="A baseline: a folder of results, a cut FOLDER@L6D384, or a TREC run. Repeatable.",
    ),
    click.option("--costs", is_flag=True, help="Time each cut, too: latency, bytes, documents/s."),
    click.option("--grid", is_flag=True, hidden=True, expose_value=False),  # it always does
    ROOT,
    OUT,
    MACHINE,
)


def _corpus(what: str, default: str | None = None) -> Callable[[Command], Command]:
    """`--corpus`, repeatable; for several the mean comes last."""
    return click.option(
        "--corpus",
        "corpora",
        multiple=True,
        default=(default,) if default else (),
        show_default=default is not None,
        help=f"{what} Repeatable; the mean over several comes last.",
    )


@evaluate.command()
@_corpus("A folder in BEIR layout, or the name of one.")
@click.option("--suite", default="", help="beir13: its 13 public sets, those that are here.")
@click.option("--split", default="", show_default="test, and dev of msmarco")
@_EVALUATE
def beir(**request: Any) -> None:  # noqa: ANN401  # fields of EvaluateRequest
    """A BEIR dataset, or any corpus in its layout."""
    _evaluate(**request)


@evaluate.command()
@_corpus("A folder of MS MARCO files, or in BEIR layout.")
@click.option("--split", default="dev.small", show_default=True, help="As in qrels.SPLIT.tsv.")
@_EVALUATE
def msmarco(**request: Any) -> None:  # noqa: ANN401  # fields of EvaluateRequest
    """MS MARCO passages: collection.tsv, queries.*.tsv and qrels.*.tsv."""
    _evaluate(**request)


@evaluate.command()
@_corpus("irds:ID of the catalogue of ir_datasets, such as irds:beir/scifact/test.")
@click.option("--split", default="test", show_default=True, help="train, dev or test.")
@_EVALUATE
def irds(corpora: tuple[str, ...], **request: Any) -> None:  # noqa: ANN401  # as above
    """A data set of the catalogue of ir_datasets, downloaded when first used."""
    named = tuple(one if one.startswith("irds:") else f"irds:{one}" for one in corpora)
    _evaluate(corpora=named, **request)


@evaluate.command()
@_corpus("pydocs or pydocs:stdlib.", "pydocs")
@click.option("--split", default="test", show_default=True)
@_EVALUATE
def pydocs(**request: Any) -> None:  # noqa: ANN401  # fields of EvaluateRequest
    """The built-in corpus: the docstrings of this machine's Python."""
    _evaluate(**request)


def _evaluate(against: tuple[str, ...], costs: bool, **fields: Any) -> None:  # noqa: ANN401  # fields of EvaluateRequest
    from m2dr.verbs.evaluating import alongside
    from m2dr.verbs.evaluating.evaluate import EvaluateRequest, told
    from m2dr.verbs.evaluating.evaluate import evaluate as verb

    if costs and fields["exits"] == "index":
        raise UserError(
            "--costs measures a model with its own exits, and --exits index was asked for. Leave "
            "one of them out."
        )
    given = {key: value for key, value in fields.items() if value not in ((), None)}
    request = EvaluateRequest(**given)
    report = verb(request)
    alongside.keep_record(report)
    echo(told(report))
    for table in alongside.compared(request, report, against) if against else ():
        echo(f"\n{table}")
    if costs:
        alongside.measure_all_costs(request, report)
    echo(f"{report.seconds:,.0f} s; tables and runs in {report.folder}")
    for figure in report.figures:
        echo(str(figure))


for command in (sts, classification, pairs, mteb):
    evaluate.add_command(command)
