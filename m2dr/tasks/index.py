"""`m2dr index`: encode a corpus and build its indexes, change, import and push them."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from m2dr.core.errors import Interrupted, UserError
from m2dr.core.files import atomic_path
from m2dr.core.progress import progress
from m2dr.core.records import Cut, Document, Fields, ModelCard
from m2dr.core.requests import SHARD_ROWS, ImportRequest, IndexRequest, PushRequest
from m2dr.data.dataset import Dataset
from m2dr.index.faiss import build_index, check_engine
from m2dr.index.filters import FIELDS, write_fields
from m2dr.index.importing import ImportedVectors, open_npy, open_pyserini
from m2dr.index.manifest import (
    DIGITS,
    IMPORTED,
    STORE,
    IndexManifest,
    StoreManifest,
    StorePlan,
    built_dims,
    store_folder,
    stored_layers,
)
from m2dr.index.milvus import PushResult, Server, milvus_engine, push
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
from m2dr.tasks.corpus import document_line, named, open_corpus
from m2dr.tasks.encode_corpus import encode_stores
from m2dr.tasks.encoder import document_layers, embed_texts, label_of, newest_model
from m2dr.tasks.fit_index import fit_exits

CORPUS = "corpus.jsonl"  # of a folder in the layout of BEIR
# How far an imported vector may lie from the same document encoded here, where one document lies
# from another at 1: 16-bit numbers alone move it by .01, another layer or order of rows by about 1.
ALIKE = 0.1


# Encoding and building


@dataclass(frozen=True)
class IndexReport:
    """The indexes that were built."""

    folders: tuple[Path, ...]  # one per layer, dim and engine
    documents: int
    bytes: int  # of the vectors and indexes together
    seconds: float
    notes: tuple[str, ...] = ()  # where an index is not what its engine usually builds


def index_corpus(request: IndexRequest) -> IndexReport:
    """Encode the documents that are missing or have changed, and build the missing indexes."""
    begun = time.monotonic()
    model, card, layers, dims = check_index_request(request)
    ways = _ways(request)
    stores = encode_corpus(request, model, card, layers)
    jobs = [(store, dim, way) for store in stores for dim in sorted(set(dims)) for way in ways]
    with progress("Indexing", len(jobs) * stores[0].documents, "documents") as advance:
        folders = tuple(
            build_index(
                store, dim, engine, progress=advance, factory=factory, workers=request.graph_threads
            )
            for store, dim, (engine, factory) in jobs
        )
    files = {path for store in stores for path in store.folder.glob("vectors-*")}
    files |= {path for folder in folders for path in folder.iterdir()}
    size = sum(path.stat().st_size for path in files)
    notes = [f"{folder}: {note}" for folder in folders for note in IndexManifest.read(folder).notes]
    return IndexReport(folders, stores[0].documents, size, time.monotonic() - begun, tuple(notes))


def check_index_request(
    request: IndexRequest,
) -> tuple[str, ModelCard, tuple[int, ...], tuple[int, ...]]:
    """Return the model, its card, the layers and the dims of a request; nothing is written.

    Raises:
        UserError: there is no such model, layer, dim or engine.
    """
    model = request.model or newest_model()
    card = read_card(model, request.query_length, request.document_length)
    layers = request.layers or document_layers(card)
    dims = request.dims or (card.width,)
    for layer, dim in product(layers, dims):
        card.check(Cut(layer, dim))
        for engine, factory in _ways(request):
            check_engine(engine, factory, dim, card.similarity)
    return model, card, layers, dims


def _ways(request: IndexRequest) -> list[tuple[str, str]]:
    """Return engine and factory string of each index of a dim; one of the two is empty."""
    engines = request.engines or (() if request.factory else ("flat",))
    ways = [(engine, "") for engine in dict.fromkeys(engines)]
    return [*ways, ("", request.factory)] if request.factory else ways


def encode_corpus(
    request: IndexRequest, model: str, card: ModelCard, layers: Sequence[int]
) -> list[Store]:
    """Return a finished store per layer, as `encode_stores`; fit exits on the last if asked."""
    wanted = request.exits and not checkpoint.ends_fitted(model)
    job, dataset, stores = encode_stores(request, model, card, layers, wanted)
    if job.exits:
        fit_exits(replace(job, runtime=stores[-1].manifest.runtime), dataset, stores[-1])
    return stores


# Changing documents


@dataclass(frozen=True)
class ChangeReport:
    """What a change of documents did."""

    documents: int  # now
    added: int
    deleted: int  # those that were replaced count in both


def sync(
    request: IndexRequest,
    add: Iterable[Document] = (),
    delete: Iterable[str] = (),
    *,
    replace_same: bool = False,
) -> ChangeReport:
    """Change the corpus.jsonl of a folder, and then all stores and indexes that were made of it.

    Args:
        request: of the corpus, a folder with a corpus.jsonl, and its model.
        add: documents to add. One that is there with the same content is left as it is.
        delete: docids to delete.
        replace_same: whether documents of the same ids are replaced by those that are added.

    Raises:
        UserError: the corpus is no such folder, a docid to add is there already, one to delete is
            not, or no document would be left; nothing has changed then.
    """
    path = Path(named(request.corpus)[1]) / CORPUS
    if not path.is_file():
        raise UserError(
            f"Documents of {request.corpus} were to be changed, which is no folder with a "
            f"{CORPUS}; change them where they lie, and run m2dr index corpus."
        )
    new, gone = {document.id: document for document in add}, set(delete)
    absent, there, count = set(gone), dict[str, bool](), 0
    with atomic_path(path) as temporary:
        with temporary.open("w", encoding="utf-8") as file:
            for document in open_corpus(request.corpus).documents():
                absent.discard(document.id)
                if document.id in new:
                    fresh = new.pop(document.id)
                    there[document.id] = (fresh, fresh.fields) != (document, document.fields)
                    document = fresh
                if document.id not in gone:
                    file.write(document_line(document))
                    count += 1
            for document in new.values():
                file.write(document_line(document))
        if not replace_same and (others := [docid for docid, other in there.items() if other]):
            raise UserError(f"{path} holds {others[0]!r} already, and another text for it.")
        if absent:
            raise UserError(f"{path} does not hold {min(absent)!r}; nothing was deleted.")
        if not count + len(new):
            raise UserError(f"All documents of {path} were to be deleted, and one must stay.")
    card = read_card(request.model)
    name = open_corpus(request.corpus).name
    layers = stored_layers(request.root, name, card.fingerprint)
    if layers:
        last = store_folder(request.root, name, card.fingerprint, layers[-1])
        card = card.with_lengths_of(StoreManifest.read(last).label)
    encode_stores(request, request.model, card, layers)
    return ChangeReport(count + len(new), len(new) + len(there), len(gone) + sum(there.values()))


# Importing


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
    if request.pyserini is not None and request.vectors is None and request.ids is None:
        foreign = open_pyserini(request.pyserini)
    elif request.pyserini is None and request.vectors is not None and request.ids is not None:
        foreign = open_npy(request.vectors, request.ids)
    else:
        raise UserError("Vectors come from --vectors and --ids, or from --pyserini.")
    card = read_card(request.model)
    layer = card.layers if request.layer is None else request.layer
    card.check(Cut(layer, 1))
    if foreign.width > card.width:
        raise UserError(
            f"The vectors of {foreign.path} have {foreign.width} dims, and those of the model "
            f"{card.width}."
        )
    dims = sorted(set(request.dims)) or [foreign.width]
    for dim in dims:
        if dim > foreign.width:
            raise UserError(f"Dim {dim} was asked for; {foreign.path} has {foreign.width}.")
        check_engine(request.engine, "", dim, card.similarity)
    dataset, corpus, fields = None, request.corpus, dict[str, Fields]()
    try:
        dataset = open_corpus(request.corpus)
        corpus = dataset.name
    except UserError:
        if request.sample:
            raise
    if dataset and request.sample:
        _try(request, foreign, dataset, card, layer)
        fields = {document.id: document.fields for document in dataset.documents()}
    folder = store_folder(request.root, corpus, card.fingerprint, layer)
    label = label_of(card, request.model)
    plan = StorePlan(corpus, layer, foreign.width, label, request.store, SHARD_ROWS, IMPORTED)
    store = _import_store(foreign, folder, plan, fields, request.overwrite)
    indexes = tuple(build_index(store, dim, request.engine) for dim in dims)
    sampled = min(request.sample, store.documents)
    seconds = time.monotonic() - begun
    return ImportReport(store.folder, indexes, store.documents, store.width, sampled, seconds)


def _import_store(
    foreign: ImportedVectors,
    folder: Path,
    plan: StorePlan,
    fields: Mapping[str, Fields],
    overwrite: bool,
) -> Store:
    """Write vectors of another tool as a store."""
    count = len(foreign.docids)
    with lock(folder.parent), progress("Importing", count, "documents") as advance:
        end_sync(folder.parent)
        if overwrite:
            clear_store(folder)
        if (folder / STORE).exists():
            raise UserError(f"{folder} holds vectors already; --overwrite replaces them.")
        writer = begin_store(folder, plan)
        for number, start in enumerate(range(0, count, plan.shard_rows)):
            block = range(start, min(start + plan.shard_rows, count))
            vectors, docids = foreign.checked(block), foreign.docids[start : block.stop]
            digests = text_digests(vector.tobytes() for vector in np.ascontiguousarray(vectors))
            writer.write(number, docids, np.asarray(vectors, np.float32), digests)
            advance(len(block))
        writer.finish(write_fields(folder / FIELDS, (fields.get(d, ()) for d in foreign.docids)))
    return open_store(folder)


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
    # A cosine would not do: of some encoders, that of any two documents is near 1.
    a, b = (
        prefixes(each, foreign.width, card.similarity).astype(np.float64) for each in (ours, theirs)
    )
    between = np.linalg.norm(a - np.roll(a, 1, axis=0), axis=1).mean()
    unit = between or np.linalg.norm(a, axis=1).mean() or 1.0
    for row, apart in zip(rows, (np.linalg.norm(a - b, axis=1) / unit).tolist(), strict=True):
        if apart > ALIKE:
            raise UserError(
                f"Document {foreign.docids[row]!r} encoded by {request.model} at layer {layer} "
                f"lies {apart:.2f} times as far from row {row} of {foreign.path} as one document "
                f"from another. Name the model and layer that made the vectors, or believe the "
                f"names with --sample 0."
            )


# Pushing


@dataclass(frozen=True)
class PushReport:
    """The collections that lie in Milvus now."""

    collections: tuple[PushResult, ...]
    seconds: float


def push_indexes(request: PushRequest) -> PushReport:
    """Write the missing rows of stores to Milvus, a collection per layer and dim.

    Raises:
        UserError: there is no store, the server does not answer, or it holds something else.
        Interrupted: Ctrl-C; what was written is kept.
    """
    begun = time.monotonic()
    milvus_engine(request.engine)
    model = request.model or newest_model()
    card = read_card(model)
    corpus = open_corpus(request.corpus).name
    layers = request.layers or stored_layers(request.root, corpus, card.fingerprint)
    if not layers:
        raise UserError(
            f"{request.root}/ has no store of {corpus} by model {card.fingerprint[:DIGITS]}."
        )
    folders = [store_folder(request.root, corpus, card.fingerprint, layer) for layer in layers]
    jobs = []
    for store in map(open_store, folders):
        for dim in request.dims or built_dims(store.folder) or (store.width,):
            if not 1 <= dim <= store.width:
                raise UserError(f"Dim {dim} was asked for; {store.folder} has {store.width}.")
            jobs.append((store, dim))
    server, sent = Server(request.uri, request.token, create=True), []
    try:
        for store, dim in jobs:
            with progress("Pushing", store.documents, "documents") as advance:
                way, again = request.engine, request.overwrite
                sent.append(push(store, dim, server, way, overwrite=again, progress=advance))
    except KeyboardInterrupt:
        raise Interrupted(
            "Pushing stopped; the same command without --overwrite goes on from there."
        ) from None
    finally:
        server.close()
    return PushReport(tuple(sent), time.monotonic() - begun)
