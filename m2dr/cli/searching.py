"""`m2dr search`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from m2dr.cli.options import CORPUS, FILE, MACHINE, MODEL, ROOT
from m2dr.errors import UserError

if TYPE_CHECKING:
    from m2dr.verbs.search import Answer, Searcher


@click.command()
@click.argument("text", required=False)
@CORPUS
@MODEL
@click.option(
    "--query-layer",
    type=click.IntRange(min=1),
    default=None,
    help="Blocks that the query runs through; all by default.",
)
@click.option(
    "--layer",
    type=click.IntRange(min=1),
    default=None,
    help="Layer of the documents; what the model was trained for, by default.",
)
@click.option(
    "--dim", type=click.IntRange(min=1), default=None, help="The longest that is built, by default."
)
@click.option(
    "-k",
    "k",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Documents per query; 1000 is usual with --run.",
)
@click.option("--topics", type=FILE, help="Queries: id<tab>text lines, or JSONL.")
@click.option("--run", "run_file", type=FILE, help="Where the TREC run of --topics goes.")
@ROOT
@MACHINE
def search(
    text: str | None,
    k: int,
    topics: Path | None,
    run_file: Path | None,
    **request: Any,  # noqa: ANN401  # fields of SearchRequest
) -> None:
    """Search an index with a query; without one, ask for queries on a terminal."""
    if (topics is None) != (run_file is None):
        raise UserError("--topics names the queries and --run the file for the run; give both.")
    if text is not None and topics is not None:
        raise UserError("A query was given and --topics too; give one of them.")
    if text is None and topics is None and not sys.stdin.isatty():
        raise UserError('Nothing to search for: give a query, as in m2dr search "read a file".')
    from m2dr.verbs import search as verb

    asked = {key: value for key, value in request.items() if value is not None}
    searcher = verb.Searcher(verb.SearchRequest(**asked))
    click.echo(searcher.describe, err=True)
    for warning in searcher.warnings:
        click.echo(f"Warning: {warning}", err=True)
    if topics and run_file:
        run = verb.search_topics(searcher, topics, run_file, k)
        click.echo(f"{len(run)} queries: {run_file}")
        return
    searcher.warm_up()
    if text is not None:
        _show(searcher.search(text, k))
    else:
        _prompt(searcher, k)


def _prompt(searcher: "Searcher", k: int) -> None:
    """Queries from the terminal until an empty line or the end of input."""
    while True:
        try:
            text = click.prompt("Query (empty to stop)", default="", show_default=False)
        except click.Abort:
            return
        if not text.strip():
            return
        _show(searcher.search(text, k))


def _show(answer: "Answer") -> None:
    for hit in answer.hits:
        snippet = " ".join(hit.snippet.split())
        short = snippet if len(snippet) <= 100 else snippet[:99] + "…"
        click.echo(f"{hit.rank:>3}  {hit.score:>8.4f}  {hit.docid}\n     {short}")
    click.echo(
        f"tokenise {answer.tokenise_ms:.2f} ms, encode {answer.encode_ms:.2f} ms, "
        f"search {answer.search_ms:.2f} ms",
        err=True,
    )
