"""`m2dr index`: what makes indexes and looks after them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from m2dr.cli.options import CORPUS, FOLDER, MACHINE, MODEL, ROOT, Whole, refuse_both, whole_numbers
from m2dr.cli.polite import MISTAKE, echo
from m2dr.errors import command, counted


@click.group()
def index() -> None:
    """Encode documents once, and cut indexes from them."""


@index.command()
@CORPUS
@MODEL
@click.option("--dim", "dims", multiple=True, callback=whole_numbers(1), help="Repeatable.")
@click.option(
    "--layer",
    "--layers",
    "layers",
    multiple=True,
    callback=whole_numbers(0),
    help="Repeatable, or as 2,4,6; every layer the model was trained to search, by default.",
)
@click.option(
    "--engine", "engines", multiple=True, help="How to search; repeatable, flat by default."
)
@click.option("--factory", default="", help="One more engine: any factory string of FAISS.")
@click.option(
    "--graph-threads",
    type=Whole(min=0),
    default=1,
    show_default=True,
    help="Threads that build hnsw; 0 for all. Only one builds the same bytes each time.",
)
@click.option(
    "--shard-rows",
    type=Whole(min=1),
    default=4096,
    show_default=True,
    help="Documents per file of vectors: what an interruption can cost.",
)
@click.option(
    "--store",
    type=click.Choice(["f16", "f32", "int8"]),
    default="f16",
    show_default=True,
    help="How vectors are kept.",
)
@click.option(
    "--workers",
    type=Whole(min=1),
    default=1,
    show_default=True,
    help="Processes that encode, each on a card or a share of the cores; on Ray, tasks at a time.",
)
@click.option(
    "--on",
    type=click.Choice(["here", "ray"]),
    default="here",
    show_default=True,
    help="ray: on the cluster at $RAY_ADDRESS, or on a local one.",
)
@click.option(
    "--exits/--no-exits",
    default=True,
    show_default=True,
    help="Fit exits on the documents, so that queries of any layer, 0 too, search the last one.",
)
@ROOT
@click.option("--resume", is_flag=True, help="Go on after an interruption; the default.")
@click.option("--overwrite", is_flag=True, help="Encode again from the first document.")
@MACHINE
def corpus(resume: bool, **request: Any) -> None:  # noqa: ANN401  # fields of IndexRequest
    """Write a store per layer and an index per dim: indexes/CORPUS/MODEL/layer-NN/dim-K."""
    from m2dr.verbs.indexing.index import index_corpus
    from m2dr.verbs.indexing.request import IndexRequest

    refuse_both(resume, request["overwrite"])
    report = index_corpus(IndexRequest(**request))
    if not report.folders:  # of several processes, the first one speaks
        return
    for folder in report.folders:
        echo(str(folder))
    for note in report.notes:
        echo(f"Note: {note}", err=True)
    echo(
        f"{counted(report.documents, 'documents', ',')}, "
        f"{counted(len(report.folders), 'indexes')}, "
        f"{report.bytes / 1e6:,.1f} MB, {report.seconds:,.0f} s"
    )


@index.command()
@CORPUS
@MODEL
@ROOT
@click.option("--overwrite", is_flag=True, help="Fit again where there are exits.")
@MACHINE
def fit(**request: Any) -> None:  # noqa: ANN401  # fields of FitIndexRequest
    """Fit exits on the documents of an index that has none: queries of any layer search it."""
    from m2dr.verbs.indexing.fit_index import FitIndexRequest, fit_index

    folder, record = fit_index(FitIndexRequest(**request))
    echo(f"{counted(record.fit.texts, 'documents')}: {folder}")


@index.command("list")
@ROOT
def list_(root: Path) -> None:
    """What is encoded and what is built, half-written stores with how far they are."""
    from m2dr.index.listing import list_stores

    stores = list_stores(root)
    if not stores:
        made = command("index", "corpus", indexes=None if root == Path("indexes") else root)
        echo(f"{root}/ holds no store. Make one with: {made}")
        return
    rows = [("corpus", "model", "layer", "documents", "dtype", "MB", "dims and engines", "")]
    rows += [
        (
            store.corpus, store.model, str(store.layer), f"{store.documents:,}", store.dtype,
            f"{store.bytes / 1e6:,.1f}", ", ".join(store.indexes) or "-",
            "" if store.finished else "half-written",
        )
        for store in stores
        if not store.problem
    ]  # fmt: skip
    _table(rows)
    for store in stores:
        if store.problem:
            echo(store.problem)


@index.command()
@click.argument("folders", nargs=-1, type=FOLDER)
@ROOT
@click.option("--corpus", default="", help="Where the documents are; the store's own by default.")
@click.option("--model", default="", help="What encoded them; the store's own by default.")
@click.option(
    "--sample",
    type=Whole(min=0),
    default=32,
    show_default=True,
    help="Documents of each store to encode again and compare; 0 for none.",
)
@MACHINE
def verify(folders: tuple[Path, ...], **request: Any) -> None:  # noqa: ANN401  # VerifyRequest
    """Read all files of stores and indexes again, and encode a sample of documents again.

    Ends with exit code 2 if anything is wrong.
    """
    from m2dr.verbs.indexing.verify import VerifyRequest
    from m2dr.verbs.indexing.verify import verify as verify_stores

    verdicts = verify_stores(VerifyRequest(folders=folders, **request))
    for verdict in verdicts:
        sampled = (
            f", {counted(verdict.compared, 'documents')} encoded again" if verdict.compared else ""
        )
        echo(f"{verdict.folder}: {'ok' if verdict.is_well else 'WRONG'}{sampled}")
        for sentence in (*verdict.problems, *verdict.notes):
            echo(f"  {sentence}")
    if not all(verdict.is_well for verdict in verdicts):
        raise SystemExit(MISTAKE)


def _table(rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        echo("  ".join(cells).rstrip())
