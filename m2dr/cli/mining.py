"""`m2dr mine`."""

from typing import Any

import click

from m2dr.cli.options import CORPUS, FILE, MACHINE, MODEL, ROOT, Whole
from m2dr.cli.polite import echo


@click.command()
@CORPUS
@click.option("--split", default="train", show_default=True, help="Whose queries.")
@MODEL
@click.option(
    "--with",
    "by",
    type=click.Choice(["model", "bm25"]),
    default="model",
    show_default=True,
    help="Who ranks: a model by its own index, or BM25, which needs none.",
)
@click.option(
    "--layer",
    type=Whole(min=0),
    default=None,
    help="Layers that the queries run through; all by default, 0 for a fitted model's table.",
)
@click.option(
    "--dim", type=Whole(min=1), default=None, help="The longest that is built, by default."
)
@click.option(
    "--depth",
    type=Whole(min=1),
    default=100,
    show_default=True,
    help="How many of the best documents are looked at.",
)
@click.option(
    "--negatives",
    type=Whole(min=1),
    default=16,
    show_default=True,
    help="Kept per query, the hardest first; m2dr train reads 64 at most.",
)
@click.option(
    "--skip",
    type=Whole(min=0),
    default=0,
    show_default=True,
    help="So many of the best are passed over: nobody judged them, and they may answer.",
)
@click.option(
    "--margin",
    type=float,
    default=0.95,
    show_default=True,
    help="Share of the answer's score that a negative may have; 0 for any.",
)
@click.option("--queries", type=Whole(min=1), default=None, help="The first so many.")
@click.option("--out", type=FILE, required=True, help="JSONL file of training groups.")
@ROOT
@click.option("--overwrite", is_flag=True, help="Replace the file.")
@MACHINE
def mine(**request: Any) -> None:  # noqa: ANN401  # fields of MineRequest
    """Find hard negatives: documents that rank high and are not known to answer."""
    from m2dr.verbs.mining.mine import MineRequest
    from m2dr.verbs.mining.mine import mine as verb

    given = {key: value for key, value in request.items() if value is not None}
    report = verb(MineRequest(**given))
    echo(report.line, beside=report.out)
