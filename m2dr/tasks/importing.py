"""`m2dr index import`: the vectors of another tool become a store and its indexes."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.core.progress import progress
from m2dr.core.records import Cut, ModelCard
from m2dr.core.requests import SHARD_ROWS, ImportRequest
from m2dr.data.dataset import Dataset
from m2dr.data.vectors import Vectors, open_vectors, read_ids
from m2dr.index.faiss import build_index, check_engine
from m2dr.index.filters import FIELDS, write_fields
from m2dr.index.importing import open_pyserini
from m2dr.index.manifest import IMPORTED, INDEX, INDEX_DOCIDS, STORE, StorePlan, store_folder
from m2dr.index.store import (
    Store,
    begin_store,
    clear_store,
    end_sync,
    lock,
    open_store,
    text_digests,
)
from m2dr.index.vectors import prefixes
from m2dr.model import checkpoint
from m2dr.model.checkpoint import read_card
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.tasks.corpus import CorpusRows, open_corpus
from m2dr.tasks.encoder import embed_texts, label_of

# How far an imported vector may lie from the same document encoded here, where one document lies
# from another at 1: 16-bit numbers alone move it by .01, another layer or order of rows by about 1.
ALIKE = 0.1


@dataclass(frozen=True)
class ImportReport:
    """What was written."""

    store: Path
    indexes: tuple[Path, ...]
    documents: int
    width: int
    sampled: int  # documents that were encoded again and compared
    seconds: float


def import_vectors(request: ImportRequest) -> ImportReport:
    """Write a store labelled with the model that is named, and indexes of its prefixes.

    Vectors do not say who made them. The label is what the user says, so that queries of any other
    model are refused; and it is tried on a sample of the corpus, which the model encodes again.

    Raises:
        UserError: the files are malformed or do not fit, or the sample shows another model.
        Interrupted: Ctrl-C; the shards written so far are kept.
    """
    begun = time.monotonic()
    vectors = vectors_of(request.vectors, request.ids)
    card = read_card(request.model)
    layer = card.layers if request.layer is None else request.layer
    card.check(Cut(layer, 1))
    if vectors.width > card.width:
        raise UserError(
            f"The vectors of {vectors.path} have {vectors.width} dims, and those of the model "
            f"{card.width}."
        )
    dims = sorted(set(request.dims)) or [vectors.width]
    for dim in dims:
        if dim > vectors.width:
            raise UserError(f"Dim {dim} was asked for; {vectors.path} has {vectors.width}.")
        check_engine(request.engine, "", dim, card.similarity)
    dataset = None
    try:
        dataset = open_corpus(request.corpus)
    except UserError:
        if request.sample or vectors.ids is None:
            raise
    corpus = CorpusRows.of(dataset) if dataset else None
    rows = vectors.of(corpus.docids if corpus else vectors.ids or (), "documents", exactly=True)
    if dataset and request.sample:
        _try(request, vectors, rows, dataset, card, layer)
    name = dataset.name if dataset else request.corpus
    folder = store_folder(request.root, name, card.fingerprint, layer)
    label = label_of(card, request.model)
    plan = StorePlan(name, layer, vectors.width, label, request.store, SHARD_ROWS, IMPORTED)
    with lock(folder.parent):
        end_sync(folder.parent)
        if request.overwrite:
            clear_store(folder)
        if (folder / STORE).exists():
            raise UserError(f"{folder} holds vectors already; --overwrite replaces them.")
        store = _write_store(vectors, rows, folder, plan, corpus, dataset)
    indexes = tuple(build_index(store, dim, request.engine) for dim in dims)
    sampled = min(request.sample, store.documents)
    seconds = time.monotonic() - begun
    return ImportReport(store.folder, indexes, store.documents, store.width, sampled, seconds)


def vectors_of(path: Path, ids: Path | None = None) -> Vectors:
    """Open a file of vectors, or a folder of Pyserini.

    Raises:
        UserError: as `open_vectors` and `open_pyserini` do.
    """
    if not (path / INDEX).is_file():
        return open_vectors(path, ids)
    index, docids = open_pyserini(path), read_ids(ids or path / INDEX_DOCIDS)
    return Vectors(path, index.ntotal, index.d, index.reconstruct_batch, docids)


def _write_store(
    vectors: Vectors,
    rows: NDArray[np.int64],
    folder: Path,
    plan: StorePlan,
    corpus: CorpusRows | None,
    dataset: Dataset | None,
) -> Store:
    """Write rows of vectors, [N], as a store of a corpus, or without one of their ids."""
    docids = corpus.docids if corpus else vectors.ids or ()
    writer = begin_store(folder, plan)
    with progress("Importing", len(rows), "documents") as advance:
        for number, start in enumerate(range(0, len(rows), plan.shard_rows)):
            part = slice(start, start + plan.shard_rows)
            block = vectors.finite(rows[part])
            digests = text_digests(vector.tobytes() for vector in block)
            digests = corpus.digests[part].tobytes() if corpus else digests
            writer.write(number, docids[part], block, digests)
            advance(len(block))
    fields = (document.fields for document in dataset.documents()) if dataset else ()
    writer.finish(write_fields(folder / FIELDS, fields), corpus.fields if corpus else "")
    return open_store(folder)


def _try(
    request: ImportRequest,
    vectors: Vectors,
    rows: NDArray[np.int64],
    dataset: Dataset,
    card: ModelCard,
    layer: int,
) -> None:
    """Encode a few documents again, and refuse vectors that differ from them."""
    count = min(request.sample, len(rows))
    chosen = np.linspace(0, len(rows) - 1, count).astype(int)
    documents = [dataset.document_at(int(row)) for row in chosen]
    device = choose_device(request.device)
    # In bf16 the documents of some encoders lie as near to each other as to their fp32 vectors.
    dtype = choose_dtype("fp32" if request.dtype == "auto" else request.dtype, device)
    encoder, tokenizer = checkpoint.load(request.model, layer, device, dtype)
    texts = [document.content for document in documents]
    ours = embed_texts(encoder, tokenizer, texts, "document", [layer])[0][:, : vectors.width]
    theirs = vectors.finite(rows[chosen])
    # A cosine would not do: of some encoders, that of any two documents is near 1.
    a, b = (
        prefixes(each, vectors.width, card.similarity).astype(np.float64) for each in (ours, theirs)
    )
    between = np.linalg.norm(a - np.roll(a, 1, axis=0), axis=1).mean()
    unit = between or np.linalg.norm(a, axis=1).mean() or 1.0
    far = np.linalg.norm(a - b, axis=1) / unit
    for document, row, apart in zip(documents, rows[chosen], far, strict=True):
        if apart > ALIKE:
            raise UserError(
                f"Document {document.id!r} encoded by {request.model} at layer {layer} lies "
                f"{apart:.2f} times as far from row {row} of {vectors.path} as one document from "
                "another. Name the model and layer that made the vectors, or believe the names "
                "with --sample 0."
            )
