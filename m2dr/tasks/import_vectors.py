"""`m2dr index import`: make a store and its indexes of vectors from another tool."""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import Interrupted, UserError, counted
from m2dr.core.progress import progress, say
from m2dr.core.records import Cut, ModelCard, Similarity
from m2dr.core.requests import ImportRequest
from m2dr.data.dataset import Dataset
from m2dr.index.faiss_build import build_index, check_engine
from m2dr.index.import_vectors import ImportedVectors, import_store, open_npy, open_pyserini
from m2dr.index.layout import store_folder
from m2dr.index.manifest import StorePlan
from m2dr.index.store import Store
from m2dr.index.vectors import Floats, prefixes
from m2dr.model import checkpoint
from m2dr.model.checkpoint import read_card
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.tasks.changed_corpus import keep_fields_of
from m2dr.tasks.encode_texts import embed_texts, open_corpus
from m2dr.tasks.encoder import label_of

SHARD_ROWS = 16_384
# How far a vector may lie from the same document encoded here, where one document lies from
# another at 1: 16-bit numbers alone move it by .01, another layer or order of rows by about 1.
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
    foreign = _open(request)
    card = read_card(request.model)
    layer = card.layers if request.layer is None else request.layer
    card.check(Cut(layer, 1), request.model)
    _check_width(card, foreign, request.dims)
    for dim in request.dims or (foreign.width,):
        check_engine(request.engine, "", dim, card.similarity)
    if request.sample:
        dataset = open_corpus(request.corpus)
        corpus = dataset.name
        _try(request, foreign, dataset, card, layer)
    else:
        corpus = _name(request.corpus)
    label = label_of(card, request.model)
    plan = StorePlan(corpus, layer, foreign.width, label, request.store, SHARD_ROWS)
    folder = store_folder(request.root, corpus, card.fingerprint, layer)
    store = _write(foreign, folder, plan, request.overwrite)
    if request.sample:
        fields = {one.id: one.fields for one in dataset.documents()}
        keep_fields_of(folder.parent, lambda one: (fields.get(docid, ()) for docid in one.docids))
    dims = sorted(set(request.dims)) or [foreign.width]
    indexes = tuple(build_index(store, dim, request.engine) for dim in dims)
    spent = time.monotonic() - begun
    sampled = min(request.sample, store.documents)
    return ImportReport(folder, indexes, store.documents, store.width, sampled, spent)


def _name(corpus: str) -> str:
    """Return the name of the corpus; its documents need not be at hand."""
    try:
        return open_corpus(corpus).name
    except UserError:
        return corpus


def _open(request: ImportRequest) -> ImportedVectors:
    files = (request.vectors, request.ids)
    if request.pyserini is not None and files == (None, None):
        return open_pyserini(request.pyserini)
    if request.vectors is None or request.ids is None or request.pyserini is not None:
        raise UserError(
            "Vectors come from --vectors X.npy with --ids ids.txt, or from --pyserini FOLDER; give "
            "the two or the one."
        )
    return open_npy(request.vectors, request.ids)


def _check_width(card: ModelCard, foreign: ImportedVectors, dims: tuple[int, ...]) -> None:
    """Refuse vectors of another width than the model's, and dims above it."""
    if foreign.width > card.width:
        raise UserError(
            f"The vectors of {foreign.path} have {foreign.width} dims, and those of the "
            f"model {card.width}. Name the model that made them."
        )
    if dims and not 1 <= min(dims) <= max(dims) <= foreign.width:
        raise UserError(
            f"Dim {max(dims)} was asked for; the vectors of {foreign.path} have {foreign.width}."
        )


def _try(
    request: ImportRequest, foreign: ImportedVectors, dataset: Dataset, card: ModelCard, layer: int
) -> None:
    """Encode a few documents again, and refuse vectors that differ from them."""
    count = min(request.sample, len(foreign.docids))
    rows = sorted(set(np.linspace(0, len(foreign.docids) - 1, count).astype(int).tolist()))
    texts = [dataset.document(foreign.docids[row]).content for row in rows]
    device = choose_device(request.device)
    # In bf16 the documents of some encoders lie as near to each other as to their fp32 vectors.
    dtype = choose_dtype("fp32" if request.dtype == "auto" else request.dtype, device)
    encoder, tokenizer = checkpoint.load(request.model, layer, device, dtype)
    ours = embed_texts(encoder, tokenizer, texts, "document", [layer])[0][:, : foreign.width]
    theirs = np.concatenate([foreign.checked(range(row, row + 1)) for row in rows])
    for row, apart in zip(rows, _apart(ours, theirs, card.similarity).tolist(), strict=True):
        if apart > ALIKE:
            raise UserError(
                f"Document {foreign.docids[row]!r} encoded by {request.model} at layer {layer} "
                f"lies {apart:.2f} times as far from row {row} of {foreign.path} as one document "
                f"from another. Name the model and layer that made the vectors, or believe the "
                f"names with --sample 0."
            )
    say(
        f"{counted(len(rows), 'documents')} encoded again by {request.model} have the vectors "
        "imported"
    )


def _apart(ours: Floats, theirs: Floats, similarity: Similarity) -> NDArray[np.float64]:
    """Return the distance of two vectors of a document, relative to that between documents.

    A cosine would not do: of some encoders, that of any two documents is near 1.

    Args:
        ours: [n, width], in the order of `theirs`.
        theirs: [n, width].
        similarity: lengths count for dot alone.
    """
    a, b = (prefixes(each, each.shape[1], similarity).astype(np.float64) for each in (ours, theirs))
    lengths = np.linalg.norm(a, axis=1).mean()
    between = np.linalg.norm(a - np.roll(a, 1, axis=0), axis=1).mean()
    found: NDArray[np.float64] = np.linalg.norm(a - b, axis=1) / (between or lengths or 1.0)
    return found


def _write(foreign: ImportedVectors, folder: Path, plan: StorePlan, overwrite: bool) -> Store:
    try:
        with progress("Importing", len(foreign.docids), "documents") as advance:
            return import_store(foreign, folder, plan, overwrite=overwrite, progress=advance)
    except KeyboardInterrupt:
        raise Interrupted(
            "Importing stopped; the same command without --overwrite goes on from there."
        ) from None
