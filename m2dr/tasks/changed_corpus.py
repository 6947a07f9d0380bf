"""The documents of a collection that has changed: a corpus, and the texts that were added to it."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from m2dr.core.errors import UserError
from m2dr.core.files import remove_stale_lock
from m2dr.core.progress import say
from m2dr.core.records import Document, Fields
from m2dr.data.dataset import METADATA, Dataset
from m2dr.index.changes import keep_fields
from m2dr.index.layout import store_folders_of, stored_layers
from m2dr.index.manifest import StoreManifest
from m2dr.index.store import Store
from m2dr.tasks.encode_texts import open_corpus


def stored_corpus(name: str, root: Path, fingerprint: str) -> str:
    """Return the name of a corpus in the folder of indexes; its documents need not be at hand."""
    try:
        known = bool(stored_layers(root, name, fingerprint))
    except UserError:  # a path, which cannot name a folder of indexes
        known = False
    return name if known else open_corpus(name).name


def document_line(document: Document) -> str:
    """Return the line of a document in a file of texts; its fields are an object, as in BEIR."""
    table: dict[str, object] = {
        "_id": document.id, "title": document.title, "text": document.text
    }  # fmt: skip
    if document.fields:
        table[METADATA] = dict(document.fields)
    return json.dumps(table, ensure_ascii=False) + "\n"


def keep_fields_of(home: Path, rows: Callable[[Store], Iterable[Fields]]) -> None:
    """Write the fields of the documents of stores without them; without fields, say why.

    Args:
        home: folder of the stores of all layers.
        rows: as `keep_fields` takes it.
    """
    try:
        if any(StoreManifest.read(folder).fields is None for folder in store_folders_of(home)):
            keep_fields(home, rows)
        else:
            remove_stale_lock(home)
    except UserError as error:
        say(f"The fields of the documents are not kept, so no search can filter by them: {error}")


def fields_of_rows(dataset: Dataset, store: Store) -> Iterator[Fields]:
    """Yield the fields of each stored document.

    Args:
        dataset: that was encoded first.
        store: of one layer.

    Raises:
        UserError: the corpus lacks a document, or has them in another order.
    """
    corpus = dataset.documents()
    for docid in store.docids:
        found = next((document for document in corpus if document.id == docid), None)
        if found is None:
            raise UserError(
                f"{dataset.name} does not hold the document {docid!r}, or not at its place."
            )
        yield found.fields
