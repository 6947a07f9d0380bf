"""`m2dr index`: what makes indexes and looks after them."""

from typing import Any

import click

from m2dr.cli.options import CORPUS, MACHINE, MODEL, ROOT, refuse_both, whole_numbers


@click.group()
def index() -> None:
    """Encode documents once, and cut indexes from them."""


@index.command()
@CORPUS
@MODEL
@click.option("--dim", "dims", multiple=True, callback=whole_numbers, help="Repeatable.")
@click.option(
    "--layer",
    "layers",
    multiple=True,
    callback=whole_numbers,
    help="Repeatable; every layer the model was trained to search, by default.",
)
@click.option("--engine", default="flat", show_default=True, help="How to search.")
@click.option(
    "--shard-rows",
    type=click.IntRange(min=1),
    default=4096,
    show_default=True,
    help="Documents per file of vectors: what an interruption can cost.",
)
@click.option(
    "--store",
    type=click.Choice(["f16", "f32"]),
    default="f16",
    show_default=True,
    help="How vectors are kept.",
)
@ROOT
@click.option("--resume", is_flag=True, help="Go on after an interruption; the default.")
@click.option("--overwrite", is_flag=True, help="Encode again from the first document.")
@MACHINE
def corpus(resume: bool, **request: Any) -> None:  # noqa: ANN401  # fields of IndexRequest
    """Write a store per layer and an index per dim: indexes/CORPUS/MODEL/layer-NN/dim-K."""
    from m2dr.verbs.index import IndexRequest, index_corpus

    refuse_both(resume, request["overwrite"])
    report = index_corpus(IndexRequest(**request))
    for folder in report.folders:
        click.echo(str(folder))
    click.echo(
        f"{report.documents:,} documents, {len(report.folders)} indexes, "
        f"{report.bytes / 1e6:,.1f} MB, {report.seconds:,.0f} s"
    )
