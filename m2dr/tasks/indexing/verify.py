"""`m2dr index verify`: check the files of stores and indexes, and encode a sample again."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from m2dr.core.errors import UserError, counted
from m2dr.core.files import list_folder
from m2dr.core.progress import progress
from m2dr.core.records import EXITS_FILE, Document
from m2dr.core.report import Report
from m2dr.core.requests import VerifyRequest
from m2dr.data.dataset import Dataset
from m2dr.index.bm25 import Bm25
from m2dr.index.docids import Docids
from m2dr.index.faiss import index_problems
from m2dr.index.folder import IndexFolder
from m2dr.index.manifest import MANIFEST, PARTIAL, STORE, built_indexes, store_folders
from m2dr.index.store import Store, open_store
from m2dr.maps.files import Maps
from m2dr.model import checkpoint
from m2dr.model.checkpoint import Model, open_model, read_card
from m2dr.tasks.corpus import CorpusRows, as_indexed, named, open_corpus
from m2dr.tasks.indexing.certificate import bridge_told
from m2dr.tasks.vectors import rotation_of

# Bf16 against fp32 gives .9999, int8 against fp32 .998 with wide outliers.
LEAST_STORED_COSINE = 0.99


@dataclass(frozen=True)
class Verdict:
    """The faults found in one store's folder."""

    folder: Path
    problems: tuple[str, ...]
    compared: int  # documents that were encoded again
    notes: tuple[str, ...] = ()  # what could not be looked at

    @property
    def is_well(self) -> bool:
        """Whether no fault was found."""
        return not self.problems

    def __str__(self) -> str:
        again = f", {counted(self.compared, 'documents')} encoded again" * bool(self.compared)
        head = f"{self.folder}: {'ok' if self.is_well else 'WRONG'}{again}"
        return "\n  ".join([head, *self.problems, *self.notes])


@dataclass(frozen=True)
class VerifyReport(Report):
    """The verdicts on all stores."""

    verdicts: tuple[Verdict, ...]

    def record(self) -> Any:  # a list
        """Return a row per store."""
        rows = zip(super().record()["verdicts"], self.verdicts, strict=True)
        return [row | {"is_well": verdict.is_well} for row, verdict in rows]


def verify(request: VerifyRequest) -> VerifyReport:
    """Compare checksums of all files, compare the texts, and encode a sample of them again.

    What the layers of an index share is in the verdict of the first of them.

    Raises:
        UserError: there is no store to look at.
    """
    folders = []
    for folder in request.folders or (request.root,):
        if not (stores := store_folders(folder)):
            raise UserError(f"{folder} holds no store.")
        folders += stores
    folders, corpus_of = list(dict.fromkeys(folders)), lru_cache(1)(_corpus)
    first = {IndexFolder.holding(folder): folder for folder in reversed(folders)}
    shared = {folder: [*_shared_problems(index)] for index, folder in first.items()}
    verdicts = tuple(
        _verdict(folder, request, shared.get(folder, []), corpus_of) for folder in folders
    )
    verdicts = tuple(
        replace(verdict, notes=(*verdict.notes, *_measured(IndexFolder.holding(verdict.folder))))
        if verdict.folder in shared and verdict.is_well
        else verdict
        for verdict in verdicts
    )
    code = 0 if all(verdict.is_well for verdict in verdicts) else 2
    return VerifyReport(verdicts, text="\n".join(map(str, verdicts)), exit_code=code)


_Corpus = tuple[Dataset, CorpusRows]


def _corpus(name: str) -> _Corpus:
    dataset = open_corpus(name)
    return dataset, CorpusRows.of(dataset)


def _shared_problems(index: IndexFolder) -> Iterator[str]:
    """Yield a sentence for each fault in the files that the layers of an index share."""
    checks: list[Callable[[], object]] = [partial(Bm25.open, index.bm25, Docids(b""), whole=True)]
    if index.card.exists():
        checks.append(lambda: rotation_of(index, read_card(index.path).width))
    if Maps(index).exist:
        checks.append(partial(_check_maps, Maps(index)))
    if index.int8.exists():
        checks.append(partial(_check_int8, index))
    for check in checks:
        try:
            check()
        except UserError as error:
            yield str(error)
    parts = [
        (index.exits, (EXITS_FILE,)),
        *((path, (STORE, PARTIAL)) for path in index.layer_folders),
    ]
    parts += [(path, (MANIFEST,)) for path in index.path.glob("layer-*/dim-*")]
    for folder, records in parts:
        if not any((folder / record).exists() for record in records) and list_folder(folder):
            yield f"{folder} holds files without their record, {records[0]}."


def _measured(index: IndexFolder) -> Iterator[str]:
    """Yield what a bridge is worth."""
    if Maps(index).exist and (bridge := Maps(index).record.bridge):
        yield bridge_told(bridge)


def _check_maps(maps: Maps) -> None:
    record = maps.record
    checkpoint.check_exits(maps.folder, record.fingerprint, *(name for name, _ in record.files))


def _check_int8(index: IndexFolder) -> None:
    from m2dr.model.graphs import INT8, int8_digest  # loads torch

    runtimes = [store.manifest.runtime for store in index.stores()]
    if other := {name for name in runtimes if name.startswith(INT8)} - {
        f"{INT8}{int8_digest(index.int8)}"
    }:
        raise UserError(f"{index.int8} does not hold the graph of {min(other)}.")


def _verdict(
    folder: Path, request: VerifyRequest, shared: list[str], corpus_of: Callable[[str], _Corpus]
) -> Verdict:
    problems = shared + [
        problem for built in built_indexes(folder) for problem in index_problems(built.folder)
    ]
    try:
        store = open_store(folder)
    except UserError as error:
        return Verdict(folder, (str(error), *problems), 0)
    with progress(f"Verifying {folder}", store.documents, "documents") as advance:
        problems = [*store.problems(advance), *problems]
    if problems or not request.sample:
        return Verdict(folder, tuple(problems), 0)
    return _texts_verdict(store, request, corpus_of)


def _texts_verdict(
    store: Store, request: VerifyRequest, corpus_of: Callable[[str], _Corpus]
) -> Verdict:
    """Compare all texts, and encode some again."""
    folder, manifest = store.folder, store.manifest
    name = request.corpus or manifest.label.source or manifest.corpus
    try:
        name, _ = as_indexed(name, IndexFolder.holding(folder).asked)
        dataset, corpus = corpus_of(name)
    except UserError as error:
        if Path(named(name)[1]).exists():
            return Verdict(folder, (str(error),), 0)
        return Verdict(folder, (), 0, (f"No text was compared: {error}",))
    if dataset.name != manifest.corpus or len(corpus.docids) != store.documents:
        present = f"{counted(len(corpus.docids), 'documents', ',')} of {dataset.name}"
        reason = f"it holds {store.documents:,} of {manifest.corpus}, and there are {present}."
        return Verdict(folder, (), 0, (f"No text was compared: {reason}",))
    if changed := [*_text_problems(store, corpus)]:
        return Verdict(folder, tuple(changed), 0)
    try:
        model = _model(store, request)
    except UserError as error:
        return Verdict(folder, (), 0, (f"Nothing was encoded again: {error}",))
    count = min(request.sample, store.documents)
    rows = sorted(set(np.linspace(0, store.documents - 1, count).round().astype(int).tolist()))
    documents = {row: dataset.document_at(row) for row in rows}
    try:
        return Verdict(folder, tuple(_compare(store, model, documents, request)), len(documents))
    except UserError as error:
        return Verdict(folder, (str(error),), 0)


def _model(store: Store, request: VerifyRequest) -> Model:
    """Return the model of a store.

    Raises:
        UserError: it is not found, or is another.
    """
    manifest = store.manifest
    index = IndexFolder.holding(store.folder)
    model = open_model(request.model or index.model_of(manifest.label))
    if model.card.fingerprint != manifest.label.fingerprint:
        raise UserError(f"{model} is not the model that encoded {store.folder}, or was changed.")
    _ = model.folder  # which vectors that somebody else made do not have
    return model.with_lengths_of(manifest.label)


def _text_problems(store: Store, corpus: CorpusRows) -> Iterator[str]:
    """Yield a sentence if a store was made from different documents, of the same number."""
    manifest, different = store.manifest, []
    if store.docids.data != corpus.docids.data:
        different = [row for row, docid in enumerate(corpus.docids) if store.docids[row] != docid]
    elif manifest.knows_texts:
        different = np.flatnonzero(store.digests() != corpus.digests).tolist()
    if different:
        docid = corpus.docids[different[0]]
        yield f"Row {different[0]} of {store.folder} differs from document {docid!r} as it is now."
    elif not corpus.digest.is_of(manifest):
        yield f"The fields of the documents of {store.folder} have changed."


def _compare(
    store: Store, model: Model, documents: dict[int, Document], request: VerifyRequest
) -> Iterator[str]:
    """Yield a sentence per document whose vector differs now."""
    rows = list(documents)
    encoder = checkpoint.load(model, store.layer, request.device, request.dtype)
    texts = [document.content for document in documents.values()]
    fresh = encoder.vectors(texts, "document", [store.layer])[0]
    a = fresh[:, : store.width].astype(np.float64)
    b = np.asarray(store.rows(rows), np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines = (a * b).sum(axis=1) / np.where(norms > 0, norms, 1)
    cosines[(norms == 0) & np.isclose(a, b).all(axis=1)] = 1  # two zero vectors are alike
    for document, cosine in zip(documents.values(), cosines, strict=True):
        if cosine < LEAST_STORED_COSINE:
            yield (
                f"The vector of document {document.id!r} in {store.folder} has cosine "
                f"{cosine:.3f} to its encoding now; --overwrite encodes all again."
            )
