"""`m2dr index`: encode a corpus and build its indexes, change and push them."""

import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from m2dr.core.errors import Interrupted, UserError, counted, require
from m2dr.core.files import TEMPORARY_SUFFIX, atomic_path, lock_file, remove_files
from m2dr.core.files import fsync as sync_folder
from m2dr.core.progress import progress
from m2dr.core.records import Cut, Document
from m2dr.core.report import Report, timed
from m2dr.core.requests import IndexRequest, PushRequest, refuse_both
from m2dr.data.dataset import document_line, row_of_document
from m2dr.data.memory import CORPUS_FILE, document_of, passages_of
from m2dr.index.engines import check_engine
from m2dr.index.folder import IndexFolder
from m2dr.index.manifest import IndexManifest
from m2dr.index.milvus import PushResult, Server, check_milvus_engine, push
from m2dr.maps.log import read_log
from m2dr.model.checkpoint import Model, open_model
from m2dr.model.graphs import require_runtime
from m2dr.tasks.corpus import (
    CHANGED,
    WRITTEN,
    distinct_documents,
    model_for,
    name_of_corpus,
    named,
    open_corpus,
    options_of,
)
from m2dr.tasks.indexing.encode import EncodingJob, encode_stores
from m2dr.tasks.indexing.steps import Target, reach
from m2dr.tasks.models import document_layers, newest_model

# Encoding and building


@dataclass(frozen=True)
class IndexReport(Report):
    """The indexes that were built; `files` are their folders, one per layer, dim and engine."""

    documents: int
    bytes: int  # of the vectors and indexes together

    def __str__(self) -> str:
        end = (
            f"{counted(self.documents, 'documents', ',')}, "
            f"{counted(len(self.files), 'indexes')}, "
            f"{self.bytes / 1e6:,.1f} MB, {self.seconds:,.0f} s"
        )
        return "\n".join([*map(str, self.files), end])


@timed
def index_corpus(request: IndexRequest) -> IndexReport:
    """Encode the documents that are missing or have changed, and build the missing indexes."""
    refuse_both(request.resume, request.overwrite)
    request = replace(request, model=request.model or _model_for(request))
    model, layers, dims = check_index_request(request)
    target = encode_corpus(request, model, layers)
    ways = [(dim, *way) for dim in sorted(set(dims)) for way in _ways(request)]
    folders = reach(replace(target, engines=ways, threads=request.graph_threads))
    stores = target.stores
    files = {path for store in stores for path in store.folder.glob("vectors-*")}
    files |= {path for folder in folders for path in folder.iterdir()}
    size = sum(path.stat().st_size for path in files)
    notes = [
        f"Note: {folder}: {note}"  # where an index is not what its engine usually builds
        for folder in folders
        for note in IndexManifest.read(folder).notes
    ]
    return IndexReport(stores[0].documents, size, files=folders, notes=tuple(notes))


def check_index_request(request: IndexRequest) -> tuple[Model, tuple[int, ...], tuple[int, ...]]:
    """Return the model, the layers and the dims of a request; nothing is written.

    Raises:
        UserError: there is no such model, layer, dim or engine.
    """
    require_runtime(request.runtime)
    if request.dtype == "int8":
        require("openvino", "nncf")
    if request.backend == "ray":
        require("ray")
    model = open_model(request.model, request.query_length, request.document_length)
    card = model.card
    read_log(request.queries, request.query_weight)  # before anything is encoded
    layers = request.layers or document_layers(card)
    is_last = max(layers) == card.layers and not model.last_layer_has_exit
    if request.queries and not (is_last and request.exits is not False):
        raise UserError(f"{request.queries} is for fitting exits, but this index will have none.")
    dims = request.dims or (card.width,)
    for layer, dim in product(layers, dims):
        card.check(Cut(layer, dim))
        for engine, factory in _ways(request):
            check_engine(engine, factory, dim)
    return model, layers, dims


def _model_for(request: IndexRequest) -> str:
    """Return the newest model; of a corpus with nothing but vectors without a model, these."""
    corpus = name_of_corpus(request.corpus)
    stored = IndexFolder.found(request.root / corpus) if request.root.is_dir() else []
    if stored and all(index.card.exists() for index in stored):
        return model_for(corpus, request.root)
    return newest_model()


def _ways(request: IndexRequest) -> list[tuple[str, str]]:
    """Return engine and factory string of each index of a dim; one of the two is empty."""
    engines = request.engines or (() if request.factory else ("flat",))
    ways = [(engine, "") for engine in dict.fromkeys(engines)]
    return [*ways, ("", request.factory)] if request.factory else ways


def encode_corpus(
    request: IndexRequest, model: Model, layers: Sequence[int], fits: bool | None = None
) -> Target:
    """Return the target of a request without engines; its stores are finished, one per layer."""
    job, dataset, stores = encode_stores(request, model, layers, fits=fits)
    fits = job.keeps_states and any(job.index.exits.glob("states-*"))
    if stores[-1].layer == model.card.layers:
        job = EncodingJob.of_store(
            stores[-1], job.index, job.model, job.corpus, job.device, job.dtype
        )
    return Target(job, dataset, stores, fits)


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
    """Change the corpus.jsonl of a folder, and all stores and indexes of a model.

    The stores are swapped in at once, and the file right after them; a change that is killed in
    between ends when the index is opened.

    Args:
        request: of the corpus, a folder with a corpus.jsonl, and its model.
        add: documents to add; those with the same id and content are skipped.
        delete: docids to delete.
        replace_same: whether documents of the same ids are replaced by those that are added.

    Raises:
        UserError: the corpus is no such folder, or m2dr did not write it, a docid to add is there
            already or comes twice, one to delete is not there, or no document would be left;
            nothing has changed then.
    """
    path = Path(os.path.realpath(Path(named(request.corpus)[1]) / CORPUS_FILE))
    what = ""
    if not path.is_file():
        what = f"{request.corpus} has no {CORPUS_FILE} to change"
    elif not path.with_name(WRITTEN).exists():
        what = f"{path} was not written by m2dr and is kept"
    if what:
        of = options_of(request.corpus, request.model, request.root)
        raise UserError(f"{what}: change it, then run m2dr index corpus {of}.")
    with lock_file(path):
        return _change(request, path, add, set(delete), replace_same)


def _change(
    request: IndexRequest, path: Path, add: Iterable[Document], gone: set[str], replace_same: bool
) -> ChangeReport:
    model, changed = open_model(request.model), path.with_name(CHANGED)
    _ = model.folder  # which vectors that somebody else made do not have
    dataset = open_corpus(request.corpus)
    index = IndexFolder.of(request.root, dataset.name, model.card.fingerprint)
    passages = index.asked.passages  # of which a document may have several rows
    new = {
        document.id: [*passages_of([document], passages)] if passages else [document]
        for document in distinct_documents(add)
    }
    absent, old, count, deleted = set(gone), defaultdict[str, list[Document]](list), 0, 0
    remove_files(path.parent, f".{CHANGED}.*{TEMPORARY_SUFFIX}")  # of a change that was killed
    with atomic_path(changed) as temporary:
        with temporary.open("w", encoding="utf-8") as file:
            for document in dataset.documents():
                names = [document.id, *([document_of(document.id)] if passages else [])]
                absent.difference_update(names)
                rows = [] if gone.intersection(names) else [document]
                deleted += not rows
                for name in [name for name in names if name in new][:1]:
                    rows = [] if name in old else new[name]
                    old[name].append(document)
                file.writelines(map(document_line, rows))
                count += len(rows)
            for name in [name for name in new if name not in old]:
                file.writelines(map(document_line, new[name]))
                count += len(new[name])
        others = [name for name, rows in old.items() if not _are_alike(rows, new[name])]
        if others and not replace_same:
            raise UserError(f"{path} holds {others[0]!r} already, with another content.")
        if absent:
            raise UserError(f"{path} does not hold {min(absent)!r}; nothing was deleted.")
        if not count:
            raise UserError(f"All documents of {path} cannot be deleted; one must stay.")
        shutil.copymode(path, temporary)
    job, _, stores = encode_stores(request, model, index.layers, changed)
    changed.replace(path)
    sync_folder(path.parent)
    reach(Target(job, open_corpus(request.corpus), stores))
    deleted += sum(len(old[name]) for name in others)
    return ChangeReport(count, sum(map(len, new.values())), deleted)


def _are_alike(one: Iterable[Document], other: Iterable[Document]) -> bool:
    return [*map(row_of_document, one)] == [*map(row_of_document, other)]


# Pushing


@dataclass(frozen=True)
class PushReport(Report):
    """The collections that lie in Milvus now."""

    collections: tuple[PushResult, ...]

    def __str__(self) -> str:
        lines = [
            f"{sent.name}: {counted(sent.documents, 'documents', ',')}, {sent.written:,} of them "
            f"written now ({sent.bytes / 1e6:,.1f} MB)"
            for sent in self.collections
        ]
        count = counted(len(self.collections), "collections")
        return "\n".join([*lines, f"{count}, {self.seconds:,.0f} s"])


@timed
def push_indexes(request: PushRequest) -> PushReport:
    """Write the missing rows of stores to Milvus, a collection per layer and dim.

    Raises:
        UserError: there is no store, the server does not answer, or it holds something else.
        Interrupted: Ctrl-C; what was written is kept.
    """
    check_milvus_engine(request.engine)
    corpus = name_of_corpus(request.corpus)
    model = open_model(request.model or model_for(corpus, request.root))
    index = IndexFolder.of(request.root, corpus, model.card.fingerprint)
    layers = request.layers or index.layers
    if not layers:
        raise UserError(f"{request.root}/ has no store of {corpus} by the model.")
    jobs = []
    for store in map(index.store, layers):
        for dim in request.dims or index.dims(store.layer) or (store.width,):
            if not 1 <= dim <= store.width:
                raise UserError(f"Dim {dim} was asked for; {store.folder} has {store.width}.")
            jobs.append((store, dim))
    server, sent = Server(request.uri, request.token, create=True), []
    try:
        for store, dim in jobs:
            with progress("Pushing", store.documents, "documents") as advance:
                engine, overwrite = request.engine, request.overwrite
                sent.append(push(store, dim, server, engine, overwrite=overwrite, progress=advance))
    except KeyboardInterrupt:
        raise Interrupted("Pushing stopped; without --overwrite it goes on from there.") from None
    finally:
        server.close()
    return PushReport(tuple(sent))
