"""The documents of a collection that has changed: a corpus, and the texts that were added to it."""

import json
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cached_property
from pathlib import Path

from m2dr.data import pairs
from m2dr.data.dataset import (
    DOCUMENT_IDS,
    DOCUMENT_TEXTS,
    Corpus,
    Dataset,
    open_corpus_file,
)
from m2dr.data.readers import Line, identifier, optional_string, read_lines
from m2dr.errors import UserError
from m2dr.index.layout import store_folders_of, stored_layers
from m2dr.index.manifest import StoreManifest
from m2dr.index.searchable import Docids
from m2dr.index.store import open_store
from m2dr.pipelines.encode import open_corpus
from m2dr.records.texts import Document

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
        return open_corpus(name).documents()
    first = next(read_lines(Path(name)), None)
    keys: Set[str] = first.json().keys() if first else set()
    if keys.isdisjoint(ID_KEYS) or not keys.isdisjoint(pairs.QUERY_KEYS):
        return open_corpus(name).documents()
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
    return Document(docid, optional_string(line, row, text), optional_string(line, row, "title"))


def document_line(document: Document) -> str:
    """Return the line of a document in a file of added texts."""
    table = {"_id": document.id, "title": document.title, "text": document.text}
    return json.dumps(table, ensure_ascii=False) + "\n"


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
