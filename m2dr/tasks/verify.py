"""`m2dr index verify`: check the files of stores and indexes, and encode a sample again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError, command, counted
from m2dr.core.progress import progress, say
from m2dr.core.requests import INDEXES, VerifyRequest
from m2dr.data.dataset import Dataset
from m2dr.index.layout import STORE, built_indexes, store_remedy
from m2dr.index.listing import store_folders
from m2dr.index.problems import index_problems
from m2dr.index.store import Store, open_store
from m2dr.model import checkpoint
from m2dr.model.checkpoint import read_card
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.tasks.encode_texts import embed_texts, open_corpus

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
    places = request.folders or (request.root,)
    for place in places:
        if not store_folders(place):
            raise UserError(f"{place} holds no store. {_no_store(request)}")
    folders = list(dict.fromkeys(folder for place in places for folder in store_folders(place)))
    return tuple(_verdict(folder, request) for folder in folders)


def _no_store(request: VerifyRequest) -> str:
    if request.folders:
        return "Name the folder of a layer, or one above it."
    root = None if request.root == INDEXES else request.root
    made = command("index", "corpus", corpus=request.corpus, model=request.model, indexes=root)
    return f"Make one with: {made}"


def _verdict(folder: Path, request: VerifyRequest) -> Verdict:
    problems = [
        problem for built in built_indexes(folder) for problem in index_problems(built.folder)
    ]
    try:
        store = open_store(folder)
    except UserError as error:
        return Verdict(folder, (str(error), *problems), 0)
    what = f"Verifying {folder}"
    with progress(what, store.manifest.documents, "documents") as advance:
        problems = [*store.problems(advance), *problems]
    if problems or not request.sample:
        return Verdict(folder, tuple(problems), 0)
    try:
        dataset, model = _source(store, request)
    except UserError as error:
        return Verdict(folder, (), 0, (f"Nothing was encoded again: {error}",))
    rows = _spread(store.documents, request.sample)
    try:
        found = _compare(store, dataset, model, rows, request)
    except UserError as error:
        return Verdict(folder, (str(error),), 0)
    return Verdict(folder, tuple(found), len(rows))


def _source(store: Store, request: VerifyRequest) -> tuple[Dataset, str]:
    """Return the corpus and the model that a store was made from.

    Raises:
        UserError: one of them is not found, or is another.
    """
    manifest = store.manifest
    model = request.model or manifest.label.model
    if not request.model:
        say(f"Model: {model}, which encoded {store.folder}; --model names another.")
    fingerprint = read_card(model).fingerprint
    if fingerprint != manifest.label.fingerprint:
        raise UserError(
            f"{model} is not the model that encoded {store.folder}, or its weights, tokenizer or "
            "config.json were changed since; give --model, or encode the documents again."
        )
    dataset = open_corpus(request.corpus or manifest.corpus)
    if dataset.name != manifest.corpus:
        raise UserError(f"{store.folder} holds {manifest.corpus}, not {dataset.name}.")
    return dataset, model


def _spread(documents: int, sample: int) -> list[int]:
    """Return rows evenly spread from the first to the last."""
    return sorted(set(np.linspace(0, documents - 1, min(sample, documents)).round().astype(int)))


def _compare(
    store: Store, dataset: Dataset, model: str, rows: Sequence[int], request: VerifyRequest
) -> Iterator[str]:
    """Return a sentence per document whose text or vector differs now."""
    again = f"Encode it again {store_remedy(store.folder, overwrite=True)}"
    if dataset.document_count != store.documents:
        yield (
            f"{store.folder / STORE} has {counted(store.documents, 'documents')} and the corpus "
            f"{dataset.document_count}. {again}"
        )
        return
    documents = [dataset.document_at(int(row)) for row in rows]
    device = choose_device(request.device)
    dtype = choose_dtype(request.dtype, device)
    encoder, tokenizer = checkpoint.load(model, store.layer, device, dtype)
    texts = [document.content for document in documents]
    fresh = embed_texts(encoder, tokenizer, texts, "document", [store.layer])[0]
    cosines = _cosines(fresh, np.asarray(store.rows(rows), np.float32))
    for row, document, cosine in zip(rows, documents, cosines, strict=True):
        if store.docids[int(row)] != document.id:
            yield f"Row {row} of {store.folder} is not document {document.id!r} any more. {again}"
        elif cosine < LEAST_COSINE:
            yield (
                f"The vector of document {document.id!r} in {store.folder} has cosine "
                f"{cosine:.3f} to what the model says now. {again}"
            )


def _cosines(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return cosines [n] of two arrays [n, width]; two zero vectors are alike."""
    a, b = left.astype(np.float64), right.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines: NDArray[np.float64] = (a * b).sum(axis=1) / np.where(norms > 0, norms, 1)
    cosines[(norms == 0) & np.isclose(a, b).all(axis=1)] = 1
    return cosines
