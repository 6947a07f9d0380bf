"""`m2dr search`, `m2dr mine`, `m2dr bm25` and `m2dr fuse`: ranked documents."""

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from m2dr.cli.options import FILE, NamedOption, Whole, command, cut_option, json_option, takes
from m2dr.cli.terminal import echo, echo_json
from m2dr.core.errors import UserError, counted
from m2dr.core.errors import command as command_line
from m2dr.core.requests import Bm25Request, FuseRequest, MineRequest, SearchRequest

if TYPE_CHECKING:
    from m2dr.core.records import Query
    from m2dr.tasks.search import Answer, Searcher

_EXAMPLE = command_line("search", "read a file")


@command(
    examples=(
        'search "read a file line by line"',
        "search --query-layer 4 --dim 128 --topics queries.tsv --run run.trec",
    ),
)
@click.argument("text", required=False)
@takes(SearchRequest)
@cut_option("query_layer")
@click.option(
    "--top-k",
    "-k",
    "top_k",
    cls=NamedOption,
    type=Whole(min=1),
    show_default="10",
    metavar="N",
    help="Documents per query; 1000 is usual with --run.",
)
@click.option("--topics", type=FILE, help="Queries: id<tab>text lines, or JSONL.")
@click.option("--run", "run_file", type=FILE, help="TREC run to write, of --topics.")
@click.option(
    "--report", is_flag=True, help="Compare with a full scan: recall, and the time it takes."
)
@json_option
def search(
    request: SearchRequest,
    text: str | None,
    top_k: int | None,
    topics: Path | None,
    run_file: Path | None,
    report: bool,
    as_json: bool,
) -> None:
    """Search an index with a query.

    Without one, queries are asked for on a terminal.
    """
    _refuse_mixed(text, topics, run_file, as_json)
    from m2dr.core.files import refuse_same_file
    from m2dr.data.qrels import read_topics
    from m2dr.tasks import search as verb

    refuse_same_file("--run", run_file, {"--topics": topics, "--corpus": request.corpus})
    queries = read_topics(topics) if topics else None  # before anything is loaded
    searcher = verb.Searcher(request)
    echo(searcher.describe, err=True)
    for warning in searcher.warnings:
        echo(f"Warning: {warning}", err=True)
    if queries is not None and run_file:
        top_k = verb.DEPTH if top_k is None else top_k
        run = verb.search_topics(searcher, queries, run_file, top_k)
        echo(f"{counted(len(run), 'queries')}: {run_file}", beside=run_file)
        _report(searcher, queries, top_k, report, run_file)
        return
    searcher.warm_up()
    if text is not None and as_json:
        answer = searcher.search(text, top_k)
        asked = verb.as_queries([text]) if report else None
        echo_json(verb.record_of(searcher, text, answer, asked, top_k or verb.DEPTH))
    elif text is not None:
        _show(searcher.search(text, top_k))
        _report(searcher, verb.as_queries([text]), top_k, report)
    else:
        _prompt(searcher, top_k)


def _refuse_mixed(
    text: str | None, topics: Path | None, run_file: Path | None, as_json: bool
) -> None:
    """Raise UserError unless the queries are given in one way."""
    if (topics is None) != (run_file is None):
        raise UserError("--topics names the queries and --run the file for the run; give both.")
    if text is not None and topics is not None:
        raise UserError("A query was given and --topics too; give one of them.")
    if text is None and topics is None and not (as_json or sys.stdin.isatty()):
        raise UserError(f"Nothing to search for: give a query, such as: {_EXAMPLE}")
    if text is None and as_json:
        raise UserError(f"--json prints the answer to one query; give it, such as: {_EXAMPLE}")
    if text is not None and not text.strip():
        raise UserError(f"The query is empty; give it a word, such as: {_EXAMPLE}")


def _report(
    searcher: "Searcher",
    queries: "list[Query]",
    k: int | None,
    wanted: bool,
    beside: Path | None = None,
) -> None:
    if wanted:
        from m2dr.tasks.search import DEPTH, compare_with_scan

        echo(str(compare_with_scan(searcher, queries, k or DEPTH)), beside=beside)


def _prompt(searcher: "Searcher", k: int | None) -> None:
    """Search for queries from the terminal until an empty line or the end of input."""
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
    missing = ""
    for hit in answer.hits:
        line = f"{hit.rank:>3}  {hit.score:>8.4f}  {hit.docid}"
        try:
            snippet = " ".join(hit.text.split())
        except UserError as error:
            missing = str(error)
            echo(line)
            continue
        echo(f"{line}\n     {snippet if len(snippet) <= 100 else snippet[:99] + '…'}")
    if not answer.hits:
        echo("No document was found: none fits the filter.", err=True)
    if missing:
        echo(f"Warning: {missing}", err=True)
    echo(
        f"tokenise {answer.tokenise_ms:.2f} ms, encode {answer.encode_ms:.2f} ms, "
        f"search {answer.search_ms:.2f} ms",
        err=True,
    )


@command(
    examples=(
        "mine --out groups.jsonl",
        "mine --retriever bm25 --corpus scifact --out groups.jsonl",
    ),
)
@takes(MineRequest)
def mine(request: MineRequest) -> None:
    """Find hard negatives to train with.

    These are documents that rank high and are not known to answer.
    """
    from m2dr.tasks.mine import mine as verb

    report = verb(request)
    echo(report.line, beside=report.out)


@command(
    examples=(
        "bm25 --split test --run bm25.trec",
        "bm25 --corpus scifact --topics queries.tsv --run bm25.trec",
    ),
)
@takes(Bm25Request)
def bm25(request: Bm25Request) -> None:
    """Rank by BM25: a lexical TREC run to fuse with, or a baseline."""
    from m2dr.tasks.runs import bm25 as verb

    report = verb(request)
    if report.empty:
        echo(
            f"Warning: {counted(report.empty, 'queries')} without a word in common with any "
            "document, and so without a line in the run.",
            err=True,
        )
    echo(
        f"{counted(report.queries, 'queries', ',')} over "
        f"{counted(report.documents, 'documents', ',')}, "
        f"{report.seconds:,.0f} s: {report.run_file}",
        beside=report.run_file,
    )


@command(
    examples=(
        "fuse bm25.trec dense.trec --out fused.trec",
        "fuse a.trec b.trec --method interpolate --weights .3,.7 --out c.trec",
    ),
)
@takes(FuseRequest)
def fuse(request: FuseRequest) -> None:
    """Make one TREC run of several, of m2dr or of any other tool."""
    from m2dr.tasks.runs import fuse as verb

    report = verb(request)
    for warning in report.warnings:
        echo(f"Warning: {warning}", err=True)
    echo(
        f"{counted(report.queries, 'queries', ',')}, {counted(report.documents, 'lines', ',')}: "
        f"{report.out}",
        beside=report.out,
    )
