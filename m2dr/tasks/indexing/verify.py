"""`m2dr index verify`: check the files of stores and indexes, and encode a sample again."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from m2dr.core.errors import UserError
from m2dr.core.progress import progress
from m2dr.core.records import Document
from m2dr.core.requests import VerifyRequest
from m2dr.index.faiss import index_problems
from m2dr.index.manifest import built_indexes, model_of, store_folders
from m2dr.index.store import Store, open_store, text_digests
from m2dr.model import checkpoint
from m2dr.model.checkpoint import read_card
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.model.hub import find_folder
from m2dr.tasks.corpus import open_corpus
from m2dr.tasks.embed import embed_texts

LEAST_COSINE = 0.99  # bf16 against fp32 gives .9999, int8 against fp32 .998 with wide outliers


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


def verify(request: VerifyRequest) -> tuple[Verdict, ...]:
    """Compare checksums of shards, docids and indexes, and encode a sample again.

    Raises:
        UserError: there is no store to look at.
    """
    folders = []
    for folder in request.folders or (request.root,):
        if not (found := store_folders(folder)):
            raise UserError(f"{folder} holds no store.")
        folders += found
    return tuple(_verdict(folder, request) for folder in dict.fromkeys(folders))


def _verdict(folder: Path, request: VerifyRequest) -> Verdict:
    problems = [
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
    try:
        model, documents = _sample(store, request)
    except UserError as error:
        return Verdict(folder, (), 0, (f"Nothing was encoded again: {error}",))
    try:
        return Verdict(folder, tuple(_compare(store, model, documents, request)), len(documents))
    except UserError as error:
        return Verdict(folder, (str(error),), 0)


def _sample(store: Store, request: VerifyRequest) -> tuple[str, dict[int, Document]]:
    """Return the model of a store, and docids and texts of some documents by row.

    Raises:
        UserError: the model or the corpus is not found, or is another.
    """
    manifest = store.manifest
    model = request.model or model_of(store.folder.parent, manifest.label)
    if read_card(model).fingerprint != manifest.label.fingerprint:
        raise UserError(f"{model} is not the model that encoded {store.folder}, or was changed.")
    find_folder(model)
    dataset = open_corpus(request.corpus or manifest.corpus)
    if dataset.name != manifest.corpus:
        raise UserError(f"{store.folder} holds {manifest.corpus}, not {dataset.name}.")
    if dataset.document_count != store.documents:
        given = dataset.document_count
        raise UserError(f"{store.folder} has {store.documents} documents, and the corpus {given}.")
    count = min(request.sample, store.documents)
    rows = sorted(set(np.linspace(0, store.documents - 1, count).round().astype(int).tolist()))
    return model, {row: dataset.document_at(row) for row in rows}


def _compare(
    store: Store, model: str, documents: dict[int, Document], request: VerifyRequest
) -> Iterator[str]:
    """Yield a sentence per document whose id, text or vector differs now."""
    digests, rows = store.digests(), list(documents)
    device = choose_device(request.device)
    encoder, tokenizer = checkpoint.load(
        model, store.layer, device, choose_dtype(request.dtype, device)
    )
    encoder.card = encoder.card.with_lengths_of(store.manifest.label)
    texts = [document.content for document in documents.values()]
    fresh = embed_texts(encoder, tokenizer, texts, "document", [store.layer])[0]
    a = fresh[:, : store.width].astype(np.float64)
    b = np.asarray(store.rows(rows), np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines = (a * b).sum(axis=1) / np.where(norms > 0, norms, 1)
    cosines[(norms == 0) & np.isclose(a, b).all(axis=1)] = 1  # two zero vectors are alike
    known = store.manifest.knows_texts
    for (row, document), cosine in zip(documents.items(), cosines, strict=True):
        same = not known or text_digests([document.content]) == digests[row : row + 1].tobytes()
        if store.docids[row] != document.id or not same:
            yield f"Row {row} of {store.folder} is not document {document.id!r} as it is now."
        elif cosine < LEAST_COSINE:
            yield (
                f"The vector of document {document.id!r} in {store.folder} has cosine "
                f"{cosine:.3f} to what the model says now; --overwrite encodes all anew."
            )
