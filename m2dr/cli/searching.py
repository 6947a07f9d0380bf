"""`m2dr search`."""

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from m2dr.cli.options import CORPUS, FILE, MACHINE, MODEL, ROOT, Whole, options
from m2dr.cli.polite import echo
from m2dr.errors import UserError, command, counted

if TYPE_CHECKING:
    from m2dr.records.texts import Query
    from m2dr.verbs.searching.search import Answer, Searcher

_EXAMPLE = command("search", "read a file")
WAYS = options(
    click.option(
        "--engine", default="", help="An engine that was built, or exact, which needs none."
    ),
    click.option(
        "--funnel", default="", help="Shortlists by growing prefixes: 32:1000,128:100,384."
    ),
    click.option(
        "--exits",
        type=click.Choice(["index", "model"]),
        help="Of shallow queries: fitted on the index's documents, which is the default at layers "
        "that were not trained, or the model's own.",
    ),
    click.option("--index", default="", help="milvus:URI, or the folder of an index."),
    click.option("--set", "knobs", multiple=True, help="Of the engine, as nprobe=32; repeatable."),
    click.option(
        "--runtime",
        default="torch",
        show_default=True,
        help="What encodes queries: torch, onnx, openvino, or auto for the fastest here.",
    ),
)


@click.command()
@click.argument("text", required=False)
@CORPUS
@MODEL
@click.option(
    "--query-layer",
    type=Whole(min=0),
    default=None,
    help="Layers that the query runs through; all by default, 0 for a fitted model's table.",
)
@click.option(
    "--layer",
    type=Whole(min=0),
    default=None,
    help="Layer of the documents; what the model was trained for, by default.",
)
@click.option(
    "--dim", type=Whole(min=1), default=None, help="The longest that is built, by default."
)
@click.option(
    "-k",
    "k",
    type=Whole(min=1),
    default=10,
    show_default=True,
    help="Documents per query; 1000 is usual with --run.",
)
@WAYS
@click.option("--topics", type=FILE, help="Queries: id<tab>text lines, or JSONL.")
@click.option("--run", "run_file", type=FILE, help="Where the TREC run of --topics goes.")
@click.option(
    "--report", is_flag=True, help="Say what the way to search lost against a full scan, and saved."
)
@ROOT
@MACHINE
def search(
    text: str | None,
    k: int,
    topics: Path | None,
    run_file: Path | None,
    report: bool,
    knobs: tuple[str, ...],
    **request: Any,  # noqa: ANN401  # fields of SearchRequest
) -> None:
    """Search an index with a query; without one, ask for queries on a terminal."""
    if (topics is None) != (run_file is None):
        raise UserError("--topics names the queries and --run the file for the run; give both.")
    if text is not None and topics is not None:
        raise UserError("A query was given and --topics too; give one of them.")
    if text is None and topics is None and not sys.stdin.isatty():
        raise UserError(f"Nothing to search for: give a query, such as: {_EXAMPLE}")
    if text is not None and not text.strip():
        raise UserError(f"The query is empty; give it a word, such as: {_EXAMPLE}")
    from m2dr.verbs.searching import search as verb
    from m2dr.verbs.searching.opening import parse_knobs

    asked = {key: value for key, value in request.items() if value is not None}
    queries = verb.read_topics(topics) if topics else None  # a mistake in it is told at once
    searcher = verb.Searcher(verb.SearchRequest(**asked, knobs=parse_knobs(knobs)))
    echo(searcher.describe, err=True)
    for warning in searcher.warnings:
        echo(f"Warning: {warning}", err=True)
    if queries is not None and run_file:
        run = verb.search_topics(searcher, queries, run_file, k)
        echo(f"{counted(len(run), 'queries')}: {run_file}", beside=run_file)
        _report(searcher, queries, k, report, run_file)
        return
    searcher.warm_up()
    if text is not None:
        _show(searcher.search(text, k))
        _report(searcher, verb.as_queries([text]), k, report)
    else:
        _prompt(searcher, k)


def _report(
    searcher: "Searcher",
    queries: "list[Query]",
    k: int,
    wanted: bool,
    beside: Path | None = None,
) -> None:
    if wanted:
        from m2dr.verbs.searching.comparing import compare_with_scan

        echo(str(compare_with_scan(searcher, queries, k)), beside=beside)


def _prompt(searcher: "Searcher", k: int) -> None:
    """Queries from the terminal until an empty line or the end of input."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="backslashreplace")  # a wrong byte is no reason to leave
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
        snippet = " ".join(hit.text.split())
        short = snippet if len(snippet) <= 100 else snippet[:99] + "…"
        echo(f"{hit.rank:>3}  {hit.score:>8.4f}  {hit.docid}\n     {short}")
    echo(
        f"tokenise {answer.tokenise_ms:.2f} ms, encode {answer.encode_ms:.2f} ms, "
        f"search {answer.search_ms:.2f} ms",
        err=True,
    )
