"""Vectors and runs to and from other tools: `m2dr index push` and `import`, `bm25`, `fuse`."""

from pathlib import Path
from typing import Any

import click

from m2dr.cli.indexing import index
from m2dr.cli.options import CORPUS, FILE, FOLDER, MACHINE, MODEL, ROOT, Whole, whole_numbers
from m2dr.cli.polite import echo
from m2dr.errors import UserError, counted

LAYERS = click.option(
    "--layer",
    "layers",
    multiple=True,
    callback=whole_numbers(0),
    help="Repeatable; every layer that is stored, by default.",
)


@index.command()
@click.option("--to", type=click.Choice(["milvus"]), required=True, help="What the vectors go to.")
@click.option("--uri", required=True, help="http://HOST:19530, or FILE.db for Milvus Lite.")
@click.option("--token", default="", help="user:password or a key; $MILVUS_TOKEN by default.")
@CORPUS
@MODEL
@LAYERS
@click.option(
    "--dim",
    "dims",
    multiple=True,
    callback=whole_numbers(1),
    help="Repeatable; every dim that is built, or else the full width, by default.",
)
@click.option("--engine", default="flat", show_default=True, help="flat, hnsw or ivf.")
@ROOT
@click.option("--overwrite", is_flag=True, help="Replace collections of the same name.")
def push(to: str, **request: Any) -> None:  # noqa: ANN401, ARG001  # PushRequest; one target so far
    """Write indexes to Milvus, a collection per layer and dim; goes on where it stopped.

    A collection is labelled with corpus, model, layer and dim, and other vectors are refused.
    Search it with m2dr search --index milvus:URI.
    """
    from m2dr.verbs.indexing.push import PushRequest, push_indexes

    report = push_indexes(PushRequest(**request))
    for sent in report.collections:
        echo(
            f"{sent.name}: {counted(sent.documents, 'documents', ',')}, {sent.written:,} of them "
            f"written now ({sent.bytes / 1e6:,.1f} MB)"
        )
    echo(f"{counted(len(report.collections), 'collections')}, {report.seconds:,.0f} s")


@index.command("import")
@click.option("--vectors", type=FILE, help="X.npy: floats of shape [documents, width].")
@click.option("--ids", type=FILE, help="Docids of the rows of --vectors, one per line.")
@click.option("--pyserini", type=FOLDER, help="Instead: a folder with `index` and `docid`.")
@CORPUS
@click.option("--model", required=True, help="Folder or id of the model that made the vectors.")
@click.option(
    "--layer",
    type=Whole(min=0),
    default=None,
    help="Transformer layers that made them; all by default.",
)
@click.option(
    "--dim",
    "dims",
    multiple=True,
    callback=whole_numbers(1),
    help="Prefixes to index; repeatable. Their width by default.",
)
@click.option(
    "--sample",
    type=Whole(min=0),
    default=16,
    show_default=True,
    help="Documents that are encoded again to see whether --model and --layer are true. "
    "0: believe it, and take --corpus for a mere name.",
)
@click.option("--engine", default="flat", show_default=True, help="How to search.")
@click.option(
    "--store",
    type=click.Choice(["f16", "f32"]),
    default="f16",
    show_default=True,
    help="How vectors are kept.",
)
@ROOT
@click.option("--overwrite", is_flag=True, help="Replace a store that is there.")
@MACHINE
def import_(**request: Any) -> None:  # noqa: ANN401  # fields of ImportRequest
    """Take vectors of another tool, not normalised after cutting, as a store and its indexes.

    Queries of any model but --model are refused from then on. Give the same command with another
    --dim to index one more prefix. Pickles are not read.
    """
    from m2dr.verbs.indexing.importing import ImportRequest, import_vectors

    given = {key: value for key, value in request.items() if value is not None}
    report = import_vectors(ImportRequest(**given))
    for folder in report.indexes:
        echo(str(folder))
    tried = f"{report.sampled} encoded again" if report.sampled else "none encoded again"
    echo(
        f"{counted(report.documents, 'documents', ',')} of width {report.width}, {tried}, "
        f"{report.seconds:,.0f} s: {report.store}"
    )


@click.command()
@CORPUS
@click.option("--topics", type=FILE, help="Queries: id<tab>text lines, or JSONL.")
@click.option("--split", default="", help="Instead: the judged queries of a split of the corpus.")
@click.option("--run", "run_file", type=FILE, required=True, help="Where the TREC run goes.")
@click.option(
    "-k", "--k", "k", type=Whole(min=1), default=1000, show_default=True, help="Per query."
)
def bm25(**request: Any) -> None:  # noqa: ANN401  # fields of Bm25Request
    """Rank by words alone: a TREC run to fuse with, or a bar to clear."""
    from m2dr.verbs.searching.bm25run import Bm25Request
    from m2dr.verbs.searching.bm25run import bm25 as verb

    report = verb(Bm25Request(**request))
    if report.empty:
        echo(
            f"Warning: no word in common with any document, and no line: "
            f"{counted(report.empty, 'queries')}.",
            err=True,
        )
    echo(
        f"{counted(report.queries, 'queries', ',')} over "
        f"{counted(report.documents, 'documents', ',')}, "
        f"{report.seconds:,.0f} s: {report.run_file}",
        beside=report.run_file,
    )


@click.command()
@click.argument("runs", nargs=-1, type=FILE)
@click.option("--out", type=FILE, required=True, help="Where the fused TREC run goes.")
@click.option(
    "--how",
    type=click.Choice(["rrf", "interpolate"]),
    default="rrf",
    show_default=True,
    help="rrf: reciprocal ranks; interpolate: weighted scores, each run's on one scale.",
)
@click.option("--weights", default="", help="As .7,.3; all alike by default.")
@click.option(
    "-k",
    "--k",
    "k",
    type=Whole(min=1),
    default=1000,
    show_default=True,
    help="Kept per query.",
)
@click.option("--rrf-k", type=float, help="What is added to a rank; 60 by default.")
@click.option("--scale", help="min-max, z or none, of scores; min-max by default.")
def fuse(runs: tuple[Path, ...], weights: str, **request: Any) -> None:  # noqa: ANN401  # FuseRequest
    """Make one TREC run of several, of m2dr or of any other tool."""
    from m2dr.verbs.searching.fuse import FuseRequest
    from m2dr.verbs.searching.fuse import fuse as verb

    report = verb(FuseRequest(runs=runs, weights=_numbers(weights), **request))
    for warning in report.warnings:
        echo(f"Warning: {warning}", err=True)
    echo(
        f"{counted(report.queries, 'queries', ',')}, {counted(report.documents, 'lines', ',')}: "
        f"{report.out}",
        beside=report.out,
    )


def _numbers(words: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in words.split(",")) if words else ()
    except ValueError:
        raise UserError(f"--weights {words!r} is not a list of numbers such as .7,.3.") from None
