"""`m2dr index add`, `delete` and `compact`: change the documents of stores and their indexes."""

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from m2dr.core.errors import UserError, command, counted, were
from m2dr.core.files import atomic_path, read_bytes, sha256_of, write_bytes
from m2dr.core.progress import process_count, say
from m2dr.core.records import Document
from m2dr.core.requests import (
    INDEXES,
    AddRequest,
    CompactRequest,
    DeleteRequest,
    IndexRequest,
    index_command,
)
from m2dr.data.dataset import open_corpus_file
from m2dr.index.changes import (
    Change,
    Outcomes,
    add_store,
    changing,
    commit,
    compact_store,
    delete_rows,
    forget_added,
    forget_encoded,
    is_compact,
    link,
    open_all,
)
from m2dr.index.exit_files import fitting_exits
from m2dr.index.field_files import field_file, write_fields
from m2dr.index.layout import ADDED, DIGITS, store_folder, stored_layers
from m2dr.index.manifest import FieldFile, StorePlan
from m2dr.index.store import Store
from m2dr.model.devices import own_device
from m2dr.model.document_encoder import refuse_absent
from m2dr.model.folder import read_card
from m2dr.tasks.changed_corpus import (
    added_texts,
    document_line,
    documents_of,
    parse_document,
    stored_corpus,
)
from m2dr.tasks.encode_store import EncodingJob
from m2dr.tasks.encode_texts import open_corpus
from m2dr.tasks.encoder import label_of, newest_model
from m2dr.tasks.make_stores import Workers, make_stores

NAMED = 3  # docids that a message names
CORPUS = "corpus.jsonl"  # of the documents that are being added: a folder in BEIR layout


@dataclass(frozen=True)
class ChangeReport:
    """What a change did."""

    home: Path  # folder of the stores of all layers
    documents: int  # now
    added: int
    deleted: int
    indexes: Outcomes  # of each index: its folder, and "kept", "appended", "rebuilt" or why not
    notes: tuple[str, ...]
    seconds: float


def add(request: AddRequest) -> ChangeReport:
    """Encode documents and add them to every store and index of a collection.

    Raises:
        UserError: a docid is there already or comes twice, there is no such collection, or a file
            is malformed; nothing has changed.
        Interrupted: Ctrl-C; the shards encoded so far are kept.
    """
    return add_documents(documents_of(request.documents), request)


def add_documents(documents: Iterable[Document], request: AddRequest) -> ChangeReport:
    """Add documents as `add` does; the request's own `documents` is not read."""
    begun = time.monotonic()
    if process_count() > 1:
        raise UserError(
            f"{process_count()} processes were to add documents, and one does. Start it alone; "
            "--workers shares its work."
        )
    workers = Workers(request.workers, request.backend)
    model, home = _home(request)
    with changing(home) as pending:
        stores = open_all(home)
        place = home / ADDED / CORPUS
        asked, docids = _write_added(documents, place, stores[0], request, pending)
        if pending and pending.request == asked:
            forget_added(home)
            return _report(home, stores, pending, begun)
        added = _encoded(request, model, place.parent, stores, len(docids), workers)
        texts = f"documents-{stores[0].manifest.revision + 1:05d}.jsonl"
        link(place, home / texts)
        gone = stores[0].docids.find(docids).values()
        made = [
            add_store(store, more, gone, texts, request.graph_threads, _fields(store, place))
            for store, more in zip(stores, added, strict=True)
        ]
        change = Change("add", asked, len(docids), len(gone), _outcomes(made))
        commit(home, change)
        _tell_of_fields(stores[0], made[0][0])
        return _report(home, [store for store, _ in made], change, begun)


def _fields(store: Store, place: Path) -> FieldFile | None:
    """Write the fields of the documents of a file that are added to a store, if it keeps them."""
    if store.manifest.fields is None:
        return None
    path = store.folder / field_file(store.manifest.revision + 1)
    documents = open_corpus_file(place, parse_document)
    return write_fields(path, lambda: (document.fields for document in documents))


def _tell_of_fields(before: Store, after: Store) -> None:
    """Print which fields are compared as text since documents were added."""
    if after.manifest.fields is None:
        return
    for name, kind in before.fields.kinds.items():
        if kind != "text" and after.fields.kinds[name] == "text":
            say(
                f"The field {name!r} is compared as text from now on: it held values of kind "
                f"{kind}, and an added document has another."
            )


def delete(request: DeleteRequest) -> ChangeReport:
    """Delete documents from every store and index of a collection.

    Their vectors stay in the files until the collection is compacted, and no search returns them.

    Raises:
        UserError: a docid is not there, all documents would be gone, or there is no such
            collection; nothing has changed.
    """
    docids = list(request.docids)
    if request.file is not None:
        data = read_bytes(request.file, "Name a file with a docid on each line.")
        lines = _text(data, request.file).split("\n")
        docids += [docid for line in lines if (docid := line.strip())]
    return delete_documents(docids, request)


def delete_documents(docids: Iterable[str], request: DeleteRequest) -> ChangeReport:
    """Delete documents as `delete` does; the request's own `docids` and `file` are not read."""
    begun = time.monotonic()
    wanted = sorted(set(docids))
    if not wanted:
        raise UserError("No docid was given. Name some, or a file of them by --file ids.txt.")
    _, home = _home(request)
    asked = hashlib.sha256("\n".join(["delete", *wanted]).encode()).hexdigest()
    with changing(home) as pending:
        stores = open_all(home)
        if pending and pending.request == asked:
            return _report(home, stores, pending, begun)
        rows = stores[0].docids.find(wanted)
        if absent := [docid for docid in wanted if docid not in rows]:
            raise UserError(
                f"{counted(len(wanted), 'documents', ',')} {were(len(wanted))} to be deleted, and "
                f"{home} does not hold {_few(absent)}. Nothing was deleted; leave those out."
            )
        if len(rows) == stores[0].documents:
            raise UserError(
                f"All documents of {home} were to be deleted, and a collection keeps one at least. "
                "Nothing was deleted; remove the folder instead, or add others first."
            )
        made = [delete_rows(store, rows.values()) for store in stores]
        change = Change("delete", asked, 0, len(rows), _outcomes(made))
        commit(home, change)
        return _report(home, [store for store, _ in made], change, begun)


def compact(request: CompactRequest) -> ChangeReport:
    """Write the stores and indexes of a collection anew, without the deleted documents.

    Raises:
        UserError: there is no such collection, or the disk refuses; nothing has changed.
    """
    begun = time.monotonic()
    _, home = _home(request)
    asked = hashlib.sha256(b"compact").hexdigest()
    with changing(home) as pending:
        stores = open_all(home)
        if pending and pending.request == asked:
            return _report(home, stores, pending, begun)
        first = stores[0]
        if all(map(is_compact, stores)):
            return _report(home, stores, Change("compact", asked, 0, 0), begun)
        lines = [
            document_line(document)
            for document in added_texts(home, first.manifest.added, set(first.docids))
        ]
        texts = f"documents-{first.manifest.revision + 1:05d}.jsonl"
        if lines:
            write_bytes(home / texts, "".join(lines).encode())
        names = (texts,) if lines else ()
        made = [compact_store(store, names, request.graph_threads) for store in stores]
        change = Change("compact", asked, 0, len(first.tombstones), _outcomes(made))
        commit(home, change)
        return _report(home, [store for store, _ in made], change, begun)


def _home(request: AddRequest | DeleteRequest | CompactRequest) -> tuple[str, Path]:
    """Return the model of a request, and the folder of the stores of all layers."""
    model = request.model or newest_model()
    fingerprint = read_card(model).fingerprint
    corpus = stored_corpus(request.corpus, request.root, fingerprint)
    if not stored_layers(request.root, corpus, fingerprint):
        made = index_command(IndexRequest(request.corpus, model, root=request.root))
        raise UserError(
            f"There is no store of {corpus} by model {fingerprint[:DIGITS]} in {request.root}/. "
            f"Make one with: {made}"
        )
    return model, store_folder(request.root, corpus, fingerprint, 1).parent


def _write_added(
    documents: Iterable[Document],
    place: Path,
    store: Store,
    request: AddRequest,
    pending: Change | None,
) -> tuple[str, list[str]]:
    """Write the documents to add as a corpus that any process can open.

    What was encoded of the same documents before is kept; of others, it is removed.

    Returns:
        Digest of what is asked, and the docids.

    Raises:
        UserError: there are none, or a docid comes twice or is in the store.
    """
    before = sha256_of(place) if place.is_file() else ""
    docids: dict[str, None] = {}
    with _without_leftovers(place), atomic_path(place) as temporary:
        with temporary.open("w", encoding="utf-8") as file:
            for document in documents:
                if document.id in docids:
                    raise UserError(
                        f"{_named(request)} have the docid {document.id!r} twice. Nothing "
                        "was added; give each document its own id."
                    )
                docids[document.id] = None
                file.write(document_line(document))
        if not docids:
            raise UserError(f"{_named(request)} were to be added, and there are none.")
        digest = sha256_of(temporary)
        asked = hashlib.sha256(f"add {request.replace} {digest}".encode()).hexdigest()
        there = list(store.docids.find(docids))
        done = pending is not None and pending.request == asked
        if there and not (request.replace or done):
            raise _there_already(there, store, request)
        if before != digest:
            forget_encoded(place.parents[1])
    return asked, list(docids)


@contextmanager
def _without_leftovers(place: Path) -> Iterator[None]:
    """Remove the folder of a file that could not be written."""
    try:
        yield
    finally:
        with suppress(OSError):  # it is not empty
            place.parent.rmdir()


def _there_already(there: Sequence[str], store: Store, request: AddRequest) -> UserError:
    again = command(
        "index", "add", request.documents, corpus=request.corpus, model=request.model, replace=True,
        indexes=None if request.root == INDEXES else request.root,
    )  # fmt: skip
    how = f"with: {again}" if request.documents else "by replace=True."
    return UserError(
        f"{_named(request)} were to be added, and {store.folder.parent} holds {_few(there)} "
        f"already. Nothing was added; replace what is there {how}"
    )


def _named(request: AddRequest) -> str:
    """Return what a message calls the documents: those of Python code have no name."""
    return f"The documents of {request.documents}" if request.documents else "The documents"


def _encoded(
    request: AddRequest,
    model: str,
    folder: Path,
    stores: Sequence[Store],
    documents: int,
    workers: Workers,
) -> list[Store]:
    """Encode the documents in `folder` for every layer, or go on encoding them."""
    card = read_card(model)
    plans = []
    rows = min(store.manifest.shard_rows for store in stores)
    runtime = stores[-1].manifest.runtime
    refuse_absent(runtime, f"it made the vectors of {stores[-1].folder}")
    for store in stores:
        held = store.manifest
        held.label.accept(label_of(card, model), held.corpus, store.folder)
        if held.width != card.width:
            raise UserError(
                f"{store.folder} holds vectors of {held.width} dims, and {model} encodes documents "
                f"in {card.width}. Import the vectors of all documents again instead."
            )
        plan = StorePlan(held.corpus, held.layer, held.width, held.label, held.dtype, rows, runtime)
        plans.append((store.folder / ADDED, plan))
    device = own_device(request.device)
    job = EncodingJob(
        str(folder), documents, model, device, request.dtype, tuple(plans), runtime=runtime
    )
    return make_stores(job, open_corpus(str(folder)), workers, overwrite=False)


def _outcomes(made: Iterable[tuple[Store, Outcomes]]) -> Outcomes:
    return tuple(outcome for _, outcomes in made for outcome in outcomes)


def _report(home: Path, stores: Sequence[Store], change: Change, begun: float) -> ChangeReport:
    notes = []
    exits = fitting_exits(stores[-1].folder)
    if exits and (change.added or change.deleted):
        notes.append(f"{exits} stay as they were fitted, on the documents of before the change.")
    seconds = time.monotonic() - begun
    return ChangeReport(
        home,
        stores[0].documents,
        change.added,
        change.deleted,
        change.indexes,
        tuple(notes),
        seconds,
    )


def _few(docids: Sequence[str]) -> str:
    """Return the first few docids, and how many more there are."""
    more = len(docids) - NAMED
    named = ", ".join(map(repr, docids[:NAMED]))
    return f"{named} and {counted(more, 'others', ',')}" if more > 0 else named


def _text(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8. Save the docids as UTF-8, one per line.") from None
