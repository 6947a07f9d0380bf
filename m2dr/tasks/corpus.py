"""Corpora by name, and digests that tell one version of a corpus from another."""

import hashlib
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.core.files import (
    absolute_path,
    cache_folder,
    file_state,
    json_sha256,
    lock_file,
    read_record,
    write_record,
)
from m2dr.core.progress import progress, say
from m2dr.core.records import Asked, Document
from m2dr.data import pydocs
from m2dr.data.dataset import Dataset, document_line
from m2dr.data.loaders import open_dataset
from m2dr.data.memory import Columns, Made, Passages, name_of_data
from m2dr.data.tables import is_table, name_of
from m2dr.index.bm25 import Bm25
from m2dr.index.docids import Docids, encode_docids
from m2dr.index.folder import IndexFolder
from m2dr.index.manifest import IMPORTED, StoreManifest
from m2dr.index.store import DIGEST_BYTES, Digests, Store, text_digests
from m2dr.maps.files import Maps
from m2dr.tasks.models import newest_model

CHANGED = "changed-corpus.jsonl"  # beside a corpus.jsonl, which it replaces once it is encoded
_SYNC = "m2dr index corpus encodes what has changed"
WRITTEN = ".written-by-m2dr"  # beside a corpus.jsonl that m2dr wrote; no other is ever changed


def open_corpus(name: str) -> Dataset:
    """Open the dataset of a name; see `m2dr.data.loaders.LOADERS`.

    Its indexes and results are called after its file or folder, or as NAME=PATH says.
    """
    called, path = named(name)
    if not pydocs.is_cached(path):
        say(f"Reading {path} from the docstrings of this Python, once; it takes up to a minute")
    dataset = open_dataset(path)
    dataset.name = called or dataset.name
    return dataset


def absolute(name: str) -> str:
    """Return the name of a corpus, or what a copy is of, as any working folder understands it."""
    called, path = named(name)
    path = Made.of(path).path
    path = str(absolute_path(Path(path))) if Path(path).exists() else path
    return f"{called}={path}" if called else path


def named(name: str) -> tuple[str, str]:
    """Return NAME and PATH of NAME=PATH; NAME is empty where a corpus is not written so."""
    called, _, path = name.partition("=")
    return (called, path) if path and not Path(name).exists() else ("", name)


def changed_corpus(name: str, columns: Columns | None, passages: Passages | None) -> str:
    """Return a corpus under its name, with columns renamed and long documents in passages."""
    called, path = named(name)
    path = name_of_data(path, columns, passages=passages)
    return f"{called}={path}" if called else path


def name_of_corpus(name: str) -> str:
    """Return the name of a corpus, of a file without reading it: its columns may have any name."""
    called, path = named(name)
    is_file = Path(path).is_file() and is_table(Path(path))
    return called or (name_of(Path(path)) if is_file else open_corpus(path).name)


def as_indexed(name: str, asked: Asked) -> tuple[str, Asked]:
    """Return a corpus with the columns and passages of its index, and what is asked with these.

    Those that were named now stand; a folder of `Index.build` holds its passages as they are.
    """
    called, path = named(name)
    made = Made.of(path)
    columns, passages = made.columns or asked.columns, made.passages or asked.passages
    now = replace(asked, columns=columns, passages=passages)
    if Path(made.path, WRITTEN).exists():
        return name, now
    original = f"{called}={made.path}" if called else made.path
    return changed_corpus(original, dict(columns), passages), now


def model_for(corpus: str, root: Path) -> str:
    """Return the model of a command that names none and searches an index; say which it is.

    It is that of the index of the corpus of this name; of several the newest, in which vectors that
    somebody else made count as a model. Without an index it is `newest_model`.

    Raises:
        UserError: there is no model.
    """
    indexes = IndexFolder.found(root / corpus) if root.is_dir() else []
    if not indexes:
        return newest_model()
    model = max(indexes, key=lambda index: index.written_at).model
    if len(indexes) > 1:
        say(f"Model: {model}, of the newest index of {corpus}; --model names another.")
    return model


def options_of(corpus: str, model: str, root: Path, whose: str = "--model") -> str:
    """Return the options that name an index, as a person writes them in a shell."""
    return shlex.join(["--corpus", corpus, whose, model, "--indexes", str(root)])


def refuse_imported(index: IndexFolder) -> None:
    """Raise a UserError with what replaces the vectors of an index, where others made them."""
    for manifest in map(index.record, index.layers):
        if manifest.runtime == IMPORTED:
            label, root = manifest.label, index.root(manifest.corpus)
            whose = "--name" if index.card.exists() else "--model"
            of = options_of(label.source or manifest.corpus, label.model, root, whose)
            raise UserError(
                f"{index} holds imported vectors, and none of other documents; m2dr index import "
                f"VECTORS {of} --overwrite replaces them by those of all documents."
            )


def write_documents(documents: Iterable[Document], path: Path) -> None:
    """Write a corpus.jsonl.

    Raises:
        UserError: two documents have one id, an id cannot stand in a run file, or there is none.
    """
    with path.open("w", encoding="utf-8") as file:
        for document in distinct_documents(documents):
            file.write(document_line(document))
        if not file.tell():
            raise UserError("No documents were given.")


def distinct_documents(documents: Iterable[Document]) -> Iterator[Document]:
    """Yield documents.

    Raises:
        UserError: two have one id.
    """
    seen: set[str] = set()
    for document in documents:
        if document.id in seen:
            raise UserError(f"Two documents have the id {document.id!r}.")
        seen.add(document.id)
        yield document


@dataclass(frozen=True)
class CorpusDigest:
    """Digests of the documents of a corpus: sha256 of ids, texts and fields, in hex."""

    docids: str
    texts: str
    fields: str

    @classmethod
    def of(cls, dataset: Dataset) -> "CorpusDigest":
        """Return the digest of a dataset, cached until its files change."""
        path = _digest_file(dataset)
        with suppress(UserError):  # it is missing or damaged
            return read_record(path, cls)
        return CorpusRows.of(dataset).digest

    def is_of(self, manifest: StoreManifest) -> bool:
        """Return whether a store was made from these documents; true if its texts are unknown."""
        texts = (self.docids, self.texts) == (manifest.docids, manifest.texts)
        return not manifest.knows_texts or (texts and manifest.field_texts in ("", self.fields))


def finish_change(dataset: Dataset, index: IndexFolder) -> None:
    """Replace corpus.jsonl by the changed one, if a change was killed after it swapped the stores.

    Args:
        dataset: not read yet.
        index: of its documents.
    """
    for path in map(Path, map(os.path.realpath, dataset.files)):
        changed = path.with_name(CHANGED)
        if not changed.exists():
            continue
        with suppress(UserError, OSError), lock_file(path):  # the change goes on, or none may write
            if index.layers:
                manifest = index.record()
                before, after = (CorpusDigest.of(open_dataset(str(p))) for p in (path, changed))
                if after.is_of(manifest) and not before.is_of(manifest):
                    changed.replace(path)


def check_documents(dataset: Dataset, index: IndexFolder) -> None:
    """Refuse the documents of a dataset in files, not read yet, if an index holds others.

    Raises:
        UserError: it does.
    """
    finish_change(dataset, index)
    if dataset.files and not CorpusDigest.of(dataset).is_of(index.record()):
        file = Made.of(str(dataset.files[0])).path  # and not its copy in the cache
        raise UserError(f"{index} holds other documents than {file}: {_SYNC}.")


def open_bm25(
    index: IndexFolder,
    store: Store,
    read: Callable[[], Dataset],
    *,
    rebuild: bool = False,
) -> Bm25:
    """Open BM25 of an index; rebuild it if the documents have changed.

    Its language is what was asked, or else that of the present file, of the maps, or of the texts.

    Args:
        index: with the file.
        store: the documents, in the order of its rows.
        read: opens the dataset with the texts; called only to build.
        rebuild: whether to build it again if its file is damaged, rather than to raise.

    Raises:
        UserError: there is no such language, or the dataset has other documents; or the file is
            damaged.
    """
    manifest, bm25 = store.manifest, None
    with suppress(UserError) if rebuild else nullcontext():
        bm25 = Bm25.open(index.bm25, store.docids, whole=rebuild)
    language = index.asked.language or (bm25.language if bm25 else Maps(index).language)
    digest = json_sha256([manifest.docids, manifest.texts])
    if bm25 is None or (bm25.digest, bm25.language) != (digest, language):
        dataset = read()
        documents = read_documents(dataset, range(store.documents), store)
        with progress("Indexing words for BM25", store.documents, "documents") as advance:
            bm25 = Bm25.of(documents, advance, language, digest)
        if bm25.docids.data != store.docids.data:
            raise UserError(f"{dataset.name} has other documents than {store.folder}.")
        bm25.write(index.bm25)
    return bm25


@dataclass(frozen=True)
class CorpusRows:
    """What stores record of the documents of a corpus, N of them."""

    docids: Docids
    digests: Digests  # of the texts
    fields: str  # digest of the fields of all documents

    @classmethod
    def of(cls, dataset: Dataset) -> "CorpusRows":
        """Read the documents of a corpus once."""
        path = _digest_file(dataset)
        lines, digests, fields = bytearray(), bytearray(), hashlib.sha256()
        with progress("Reading", dataset.document_count, "documents") as advance:
            for document in dataset.documents():
                lines += encode_docids([document.id])
                digests += text_digests([document.content])
                fields.update(repr(document.fields).encode())
                advance(1)
        rows = cls(
            Docids(bytes(lines)),
            np.frombuffer(bytes(digests), f"S{DIGEST_BYTES}"),
            fields.hexdigest(),
        )
        if dataset.files:
            write_record(path, rows.digest)
        return rows

    @property
    def digest(self) -> CorpusDigest:
        """The digest of these documents."""
        return CorpusDigest(
            hashlib.sha256(self.docids.data).hexdigest(),
            hashlib.sha256(self.digests.tobytes()).hexdigest(),
            self.fields,
        )

    def sources(self, store: Store) -> NDArray[np.int64]:
        """Return for each document a row of a store with the same text, [N]; -1 for none."""
        stored = store.digests()
        order = np.argsort(stored, kind="stable")
        ranks = np.minimum(np.searchsorted(stored, self.digests, sorter=order), len(stored) - 1)
        rows = order[ranks]
        return np.where(stored[rows] == self.digests, rows, -1)


def _digest_file(dataset: Dataset) -> Path:
    """Return the cache file of the digest of a dataset, named by the state of its files."""
    key = json_sha256([[str(path.resolve()), *file_state(path)] for path in dataset.files])
    return cache_folder() / "corpora" / f"{key}.json"


def read_documents(
    dataset: Dataset, rows: Sequence[int], store: Store | None = None
) -> Iterator[Document]:
    """Yield documents by row, in one pass over the corpus.

    Args:
        dataset: the corpus; its documents are found by id for a store that knows no texts.
        rows: increasing.
        store: of these documents.

    Raises:
        UserError: a document is missing, or is not the one whose vector the store has.
    """
    digests = store.digests().tobytes() if store and store.manifest.knows_texts else b""
    documents, start = dataset.documents(), 0
    for row in rows:
        if store and not digests:
            document: Document | None = dataset.document(store.docids[row])
        else:
            document, start = next(islice(documents, row - start, None), None), row + 1
        place = DIGEST_BYTES * row
        if document is None or (
            digests and text_digests([document.content]) != digests[place : place + DIGEST_BYTES]
        ):
            raise UserError(f"{dataset.name} has changed since it was encoded; {_SYNC}.")
        yield document


def read_texts(
    dataset: Dataset, rows: NDArray[np.int64], store: Store | None = None
) -> Iterator[str]:
    """Yield the texts of documents; arguments and errors as `read_documents`."""
    return (document.content for document in read_documents(dataset, rows.tolist(), store))
