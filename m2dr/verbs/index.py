"""`m2dr index corpus`: documents are encoded once, at every wanted layer, and cut into indexes."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from m2dr.errors import Interrupted
from m2dr.index.engines import build_index
from m2dr.index.layout import index_folder, store_folder
from m2dr.index.manifest import StorePlan
from m2dr.index.store import Store, open_store
from m2dr.index.writer import StoreWriter
from m2dr.model import checkpoint
from m2dr.model.checkpoint import Tokenizer
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.model.encoder import Encoder
from m2dr.records.card import ModelCard
from m2dr.records.cut import Cut
from m2dr.records.texts import Document
from m2dr.text.collection import Dataset
from m2dr.text.tokens import windows
from m2dr.verbs.corpora import open_corpus
from m2dr.verbs.encoding import embed_texts
from m2dr.verbs.models import label_of, newest_model
from m2dr.verbs.progress import Advance, progress, say

INDEXES = Path("indexes")
SHARD_ROWS = 4096  # documents that an interruption can cost


@dataclass(frozen=True)
class IndexRequest:
    """What `m2dr index corpus` was asked."""

    corpus: str = "pydocs"
    model: str = ""  # empty: the newest trained one
    dims: tuple[int, ...] = ()  # empty: the full width
    layers: tuple[int, ...] = ()  # empty: every layer whose documents the model was trained to give
    engine: str = "flat"
    root: Path = INDEXES
    device: str = "auto"
    dtype: str = "auto"
    overwrite: bool = False
    shard_rows: int = SHARD_ROWS
    store: Literal["f16", "f32"] = "f16"  # how vectors are kept


@dataclass(frozen=True)
class IndexReport:
    """What was built."""

    folders: tuple[Path, ...]  # one per layer and dim
    documents: int
    bytes: int  # of the vectors and indexes together
    seconds: float


def index_corpus(request: IndexRequest) -> IndexReport:
    """Encode what is not yet encoded, build what is not yet built."""
    begun = time.monotonic()
    model = request.model or newest_model()
    card = checkpoint.read_card(model)
    layers = request.layers or document_layers(card)
    dims = request.dims or (card.width,)
    for layer, dim in [(layer, dim) for layer in layers for dim in dims]:
        card.check(Cut(layer, dim))
    stores = encode_corpus(request, model, card, layers)
    jobs = [(store, dim) for store in stores for dim in sorted(set(dims))]
    with progress("Indexing", len(jobs), "indexes") as advance:
        for store, dim in jobs:
            build_index(store, dim, request.engine)
            advance(1)
    folders = tuple(index_folder(store.folder, dim) for store, dim in jobs)
    held = {path for store in stores for path in store.folder.glob("vectors-*")}
    held |= {path for folder in folders for path in folder.iterdir()}
    size = sum(path.stat().st_size for path in held)
    return IndexReport(folders, stores[0].documents, size, time.monotonic() - begun)


def document_layers(card: ModelCard) -> tuple[int, ...]:
    """The layers whose documents some trained cut searches."""
    return (card.layers,) if card.documents == "last" else card.layers_trained or (card.layers,)


def encode_corpus(
    request: IndexRequest, model: str, card: ModelCard, layers: Sequence[int]
) -> list[Store]:
    """A finished store per layer, from one pass over the documents that are missing.

    Raises:
        Interrupted: Ctrl-C; the shards written so far are kept.
    """
    dataset = open_corpus(request.corpus)
    label = label_of(card, model)
    writers = []
    for layer in sorted(set(layers)):
        folder = store_folder(request.root, dataset.name, card.fingerprint, layer)
        plan = StorePlan(dataset.name, layer, card.width, label, request.store, request.shard_rows)
        writers.append(StoreWriter(folder, plan, overwrite=request.overwrite))
    missing = [writer for writer in writers if not writer.finished]
    _refuse_changed(dataset, [writer for writer in writers if writer.finished])
    if missing:
        _encode(request, model, dataset, missing)
    return [open_store(writer.folder) for writer in writers]


def _refuse_changed(dataset: Dataset, writers: Sequence[StoreWriter]) -> None:
    """Refuse finished stores whose corpus reads otherwise now."""
    for rows in {writer.plan.shard_rows for writer in writers}:
        alike = [writer for writer in writers if writer.plan.shard_rows == rows]
        number = -1
        for number, shard in enumerate(windows(dataset.documents(), rows)):
            docids, digest = _digest(shard)
            for writer in alike:
                writer.check(number, docids, digest)
        for writer in alike:
            if writer.written != number + 1:
                writer.check(number + 1, [], "")


def _encode(
    request: IndexRequest, model: str, dataset: Dataset, writers: Sequence[StoreWriter]
) -> None:
    layers = [writer.plan.layer for writer in writers]
    device = choose_device(request.device)
    dtype = choose_dtype(request.dtype, device)
    encoder, tokenizer = checkpoint.load(model, max(layers), device, dtype)
    names = ", ".join(map(str, layers))
    say(f"Encoding {dataset.name} at layers {names} with {model} on {device.type}, {dtype}")
    docids: list[str] = []
    try:
        with progress("Encoding", dataset.document_count, "documents") as advance:
            for number, shard in enumerate(windows(dataset.documents(), request.shard_rows)):
                _shard(encoder, tokenizer, number, shard, writers, advance)
                docids += [document.id for document in shard]
    except KeyboardInterrupt:
        done = min(writer.written for writer in writers) * request.shard_rows
        raise Interrupted(
            f"Encoding stopped after {done} of {dataset.document_count} documents; "
            "the same command goes on from there."
        ) from None
    for writer in writers:
        writer.finish(docids)


def _digest(documents: Sequence[Document]) -> tuple[list[str], str]:
    """The docids of a shard, and the sha256 of what the encoder reads of it."""
    texts = "\0".join(document.content for document in documents)
    return [document.id for document in documents], hashlib.sha256(texts.encode()).hexdigest()


def _shard(
    encoder: Encoder,
    tokenizer: Tokenizer,
    number: int,
    documents: Sequence[Document],
    writers: Sequence[StoreWriter],
    advance: Advance,
) -> None:
    """Encode one shard for the writers that lack it, and check it for the others."""
    docids, digest = _digest(documents)
    lacking = [writer for writer in writers if writer.written <= number]
    for writer in writers:
        if writer not in lacking:
            writer.check(number, docids, digest)
    if not lacking:
        advance(len(documents))
        return
    layers = [writer.plan.layer for writer in lacking]
    texts = [document.content for document in documents]
    vectors = embed_texts(encoder, tokenizer, texts, "document", layers, advance)
    for writer, layer_vectors in zip(lacking, vectors, strict=True):
        writer.write(number, docids, layer_vectors, digest)
