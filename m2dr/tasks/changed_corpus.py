"""The documents of a collection that has changed: a corpus, and the texts that were added to it."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import cached_property
from pathlib import Path

from m2dr.core.errors import UserError
from m2dr.core.files import remove_stale_lock
from m2dr.core.progress import say
from m2dr.core.records import Document, Fields
from m2dr.data import pairs
from m2dr.data.dataset import (
    DOCUMENT_COLUMNS,
    DOCUMENT_IDS,
    DOCUMENT_TEXTS,
    Corpus,
    Dataset,
    open_corpus_file,
)
from m2dr.data.own_fields import METADATA, own_fields
from m2dr.data.readers import Line, identifier, optional_string, read_lines
from m2dr.index.changes import keep_fields
from m2dr.index.layout import store_folders_of, store_remedy, stored_layers
from m2dr.index.manifest import StoreManifest
from m2dr.index.searchable import Docids
from m2dr.index.store import Store, open_store
from m2dr.tasks.encode_texts import open_corpus

ID_KEYS, TEXT_KEYS = DOCUMENT_IDS, DOCUMENT_TEXTS  # of a line with a document


class ChangedCorpus:
    """The documents that a store holds, in its order: texts that were added come first."""

    def __init__(self, dataset: Dataset, store: Path, added: Iterable[Path]) -> None:
        """Open the files of added texts.

        Args:
            dataset: that was encoded first.
            store: its folder.
            added: files of documents, the oldest first.
        """
        self._dataset, self._store = dataset, store
        self._added = [open_corpus_file(path, parse_document) for path in added][::-1]

    def __len__(self) -> int:
        return len(self._docids)

    def __iter__(self) -> Iterator[Document]:
        return map(self.find, self._docids)

    def __contains__(self, docid: str) -> bool:
        return docid in self._rows

    def with_fields(self) -> Iterator[Document]:
        """See Corpus; those of a table have none."""
        return iter(self)

    def at(self, row: int) -> Document:
        """See Corpus."""
        return self.find(self._docids[row])

    def find(self, docid: str) -> Document:
        """See Corpus."""
        held: Corpus | None = next((one for one in self._added if docid in one), None)
        return self._dataset.document(docid) if held is None else held.find(docid)

    @cached_property
    def _docids(self) -> Docids:
        return open_store(self._store).docids

    @cached_property
    def _rows(self) -> Mapping[str, int]:
        return {docid: row for row, docid in enumerate(self._docids)}


def with_changes(dataset: Dataset, home: Path) -> Dataset:
    """Return a dataset with the documents that its stores hold, where those were changed.

    Args:
        dataset: that was encoded first.
        home: folder of the stores of all layers.

    Raises:
        UserError: a file of added texts is missing.
    """
    store = next(iter(store_folders_of(home)), None)
    manifest = StoreManifest.read(store) if store else None
    if store is None or manifest is None or not manifest.revision:
        return dataset
    added = [home / name for name in manifest.added]
    return dataset.with_corpus(ChangedCorpus(dataset, store, added))


def stored_corpus(name: str, root: Path, fingerprint: str) -> str:
    """Return the name of a corpus in the folder of indexes; its documents need not be at hand."""
    try:
        known = bool(stored_layers(root, name, fingerprint))
    except UserError:  # a path, which cannot name a folder of indexes
        known = False
    return name if known else open_corpus(name).name


def documents_of(name: str) -> Iterator[Document]:
    """Return the documents of a corpus, or of a JSONL file with a document on each line.

    Raises:
        UserError: there is no such corpus or file, or a line is malformed.
    """
    if not pairs.recognises(name):
        return open_corpus(name).documents_with_fields()
    first = next(read_lines(Path(name)), None)
    keys: Set[str] = first.json().keys() if first else set()
    if keys.isdisjoint(ID_KEYS) or not keys.isdisjoint(pairs.QUERY_KEYS):
        return open_corpus(name).documents_with_fields()
    return iter(open_corpus_file(Path(name), parse_document))


def parse_document(line: Line) -> Document:
    """Return the document of a line of a JSONL file, as BEIR, Tevatron or Anserini write it."""
    row = line.json()
    key = next((key for key in ID_KEYS if row.get(key) is not None), None)
    if key is None:
        found = ", ".join(map(repr, row)) or "none"
        raise line.error(f"has no {ID_KEYS[0]!r}; its keys are {found}.")
    text = next((key for key in TEXT_KEYS if key in row), "")
    if not text:
        found = ", ".join(map(repr, row))
        raise line.error(f"has no {' or '.join(map(repr, TEXT_KEYS))}; its keys are {found}.")
    docid = identifier(line, row[key], repr(key))
    title = optional_string(line, row, "title")
    fields = own_fields(row, DOCUMENT_COLUMNS)
    return Document(docid, optional_string(line, row, text), title, fields)


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
            keep_fields(home, rows, say)
        else:
            remove_stale_lock(home)
    except UserError as error:
        say(f"The fields of the documents are not kept, so no search can filter by them: {error}")


def fields_of_rows(dataset: Dataset, home: Path, store: Store) -> Iterator[Fields]:
    """Yield the fields of each stored document, those of deleted ones left out.

    Args:
        dataset: that was encoded first.
        home: folder of the stores of all layers.
        store: of one of them.

    Raises:
        UserError: the corpus lacks a document, or has them in another order.
    """
    manifest, written = store.manifest, store.complete.docids
    gone = set(store.tombstones.rows.tolist())
    added = {
        document.id: document.fields
        for name in manifest.added
        for document in open_corpus_file(home / name, parse_document)
    }
    corpus = dataset.documents_with_fields()
    for row, docid in enumerate(written):
        if row in gone:
            yield ()
        elif docid in added:
            yield added[docid]
        else:
            found = next((document for document in corpus if document.id == docid), None)
            if found is None:
                raise UserError(
                    f"{dataset.name} does not hold the document {docid!r}, or not at its place, "
                    f"and {store.folder} does. Encode the corpus again "
                    f"{store_remedy(store.folder, overwrite=True)}"
                )
            yield found.fields


def added_texts(home: Path, names: Iterable[str], left: Set[str]) -> Iterator[Document]:
    """Yield the added documents that are left, each as it was added last.

    Args:
        home: folder of the files.
        names: of the files, the oldest first.
        left: docids that the stores hold.
    """
    seen: set[str] = set()
    for name in reversed(tuple(names)):
        for document in open_corpus_file(home / name, parse_document):
            if document.id in left and document.id not in seen:
                yield document
            seen.add(document.id)
