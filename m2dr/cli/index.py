"""`m2dr index`: make, change, check, list, import and push indexes."""

from dataclasses import asdict
from pathlib import Path

import click

from m2dr.cli.options import CommandGroup, json_option, options_of, refuse_both, takes
from m2dr.cli.terminal import MISTAKE, echo, echo_json, echo_table
from m2dr.core.errors import command, counted
from m2dr.core.requests import (
    INDEXES,
    PYDOCS,
    FitIndexRequest,
    ImportRequest,
    IndexRequest,
    PushRequest,
    VerifyRequest,
)


@click.group(cls=CommandGroup)
def index() -> None:
    """Encode documents once, and cut indexes from them."""


@index.command(
    examples=(
        "index corpus --dim 128",
        "index corpus --corpus scifact --dims 128,384 --engine hnsw",
    ),
)
@takes(IndexRequest)
@click.option("--resume", is_flag=True, help="Go on after an interruption; the default.")
def corpus(request: IndexRequest, resume: bool) -> None:
    """Encode a corpus: a store per layer and an index per dim.

    They are written to indexes/CORPUS/MODEL/layer-NN/dim-K.
    """
    from m2dr.tasks.index import index_corpus

    refuse_both(resume, request.overwrite)
    report = index_corpus(request)
    for folder in report.folders:
        echo(str(folder))
    for note in report.notes:
        echo(f"Note: {note}", err=True)
    echo(
        f"{counted(report.documents, 'documents', ',')}, "
        f"{counted(len(report.folders), 'indexes')}, "
        f"{report.bytes / 1e6:,.1f} MB, {report.seconds:,.0f} s"
    )


@index.command(
    examples=(
        "index fit",
        "index fit --corpus scifact --model minilm",
    ),
)
@takes(FitIndexRequest)
def fit(request: FitIndexRequest) -> None:
    """Fit exits on the documents of an index that has none.

    Queries of any layer search it then.
    """
    from m2dr.tasks.index import fit_index

    folder, record = fit_index(request)
    echo(f"{counted(record.fit.texts, 'documents')}: {folder}")


@index.command(
    "list",
    examples=(
        "index list",
        "index list --indexes /data/indexes --json",
    ),
)
@options_of(IndexRequest, "root")
@json_option
def list_(root: Path | None, as_json: bool) -> None:
    """List what is encoded and built, and what is half-written."""
    from m2dr.index.listing import list_stores

    stores = list_stores(root or INDEXES)
    if as_json:
        echo_json([asdict(store) for store in stores])
        return
    if not stores:
        made = command("index", "corpus", indexes=root if root != INDEXES else None)
        echo(f"{root or INDEXES}/ holds no store. Make one with: {made}")
        return
    names = ("corpus", "model", "fingerprint", "layer", "documents", "dtype", "MB")
    rows = [(*names, "dims and engines", "")]
    rows += [
        (
            store.corpus, store.model or "-", store.fingerprint, str(store.layer),
            f"{store.documents:,}", store.dtype,
            f"{store.bytes / 1e6:,.1f}", ", ".join(store.indexes) or "-",
            "" if store.finished else "half-written",
        )
        for store in stores
        if not store.problem
    ]  # fmt: skip
    echo_table(rows)
    for store in stores:
        if store.problem:
            echo(store.problem)


@index.command(
    examples=(
        "index verify",
        "index verify indexes/scifact --sample 100",
    ),
)
@takes(VerifyRequest)
@json_option
def verify(request: VerifyRequest, as_json: bool) -> None:
    """Check all files of stores and indexes against their checksums.

    A sample of the documents is encoded again. FOLDERS are stores, or folders above them; all
    of --indexes by default. Ends with exit code 2 if anything is wrong.
    """
    from m2dr.tasks.verify import verify as verify_stores

    verdicts = verify_stores(request)
    if as_json:
        echo_json([{**asdict(verdict), "is_well": verdict.is_well} for verdict in verdicts])
    for verdict in () if as_json else verdicts:
        sampled = (
            f", {counted(verdict.compared, 'documents')} encoded again" if verdict.compared else ""
        )
        echo(f"{verdict.folder}: {'ok' if verdict.is_well else 'WRONG'}{sampled}")
        for sentence in (*verdict.problems, *verdict.notes):
            echo(f"  {sentence}")
    if not all(verdict.is_well for verdict in verdicts):
        raise SystemExit(MISTAKE)


@index.command(
    "import",
    examples=(
        "index import --corpus scifact --model minilm --vectors v.npy --ids v.txt",
        "index import --corpus scifact --model minilm --pyserini folder",
    ),
)
@takes(ImportRequest, corpus={"value": PYDOCS})
def import_(request: ImportRequest) -> None:
    """Take vectors of another tool as a store and its indexes.

    They are not normalised after cutting. Queries of any model but --model are refused from
    then on. Give the same command with another --dim to index one more prefix. Pickles are not
    read.
    """
    from m2dr.tasks.import_vectors import import_vectors

    report = import_vectors(request)
    for folder in report.indexes:
        echo(str(folder))
    tried = f"{report.sampled} encoded again" if report.sampled else "none encoded again"
    echo(
        f"{counted(report.documents, 'documents', ',')} of width {report.width}, {tried}, "
        f"{report.seconds:,.0f} s: {report.store}"
    )


@index.command(
    examples=(
        "index push --to milvus --uri http://localhost:19530",
        "index push --to milvus --uri milvus.db --corpus scifact --dims 128",
    ),
)
@click.option("--to", type=click.Choice(["milvus"]), required=True, help="Target of the vectors.")
@takes(PushRequest)
def push(request: PushRequest, to: str) -> None:  # noqa: ARG001  # one target so far
    """Write indexes to Milvus, a collection per layer and dim.

    Given again, it goes on where it stopped. A collection is labelled with corpus, model, layer
    and dim, and other vectors are refused. Search it with m2dr search --index milvus:URI.
    """
    from m2dr.tasks.push import push_indexes

    report = push_indexes(request)
    for sent in report.collections:
        echo(
            f"{sent.name}: {counted(sent.documents, 'documents', ',')}, {sent.written:,} of them "
            f"written now ({sent.bytes / 1e6:,.1f} MB)"
        )
    echo(f"{counted(len(report.collections), 'collections')}, {report.seconds:,.0f} s")
