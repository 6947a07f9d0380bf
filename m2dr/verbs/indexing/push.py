"""`m2dr index push`: indexes on disk to a Milvus cluster."""

import time
from dataclasses import dataclass
from pathlib import Path

from m2dr.errors import Interrupted, UserError
from m2dr.index.inventory import built_dims, stored_layers
from m2dr.index.layout import DIGITS, store_folder
from m2dr.index.milvus import Server
from m2dr.index.pushed import collection_name, kind_of
from m2dr.index.pushing import Sent, push
from m2dr.index.store import Store, open_store
from m2dr.model import checkpoint
from m2dr.records.card import ModelCard
from m2dr.records.cut import Cut
from m2dr.verbs.corpora import open_corpus
from m2dr.verbs.indexing.request import INDEXES, IndexRequest, index_command
from m2dr.verbs.models import newest_model
from m2dr.verbs.progress import progress, say


@dataclass(frozen=True)
class PushRequest:
    """What `m2dr index push` was asked."""

    uri: str
    token: str = ""
    corpus: str = "pydocs"
    model: str = ""  # empty: the newest trained one
    layers: tuple[int, ...] = ()  # empty: every layer that is stored
    dims: tuple[int, ...] = ()  # empty: every dim that is built, or the full width
    engine: str = "flat"
    root: Path = INDEXES
    overwrite: bool = False


@dataclass(frozen=True)
class PushReport:
    """What lies in Milvus now."""

    collections: tuple[Sent, ...]
    seconds: float


def push_indexes(request: PushRequest) -> PushReport:
    """Write what is not yet there, a collection per layer and dim.

    Raises:
        UserError: there is no store, the server does not answer, or it holds something else.
        Interrupted: Ctrl-C; what was written is kept.
    """
    begun = time.monotonic()
    kind_of(request.engine)
    stores = _stores(request)
    jobs = [(store, dim) for store in stores for dim in _dims(request, store)]
    for store, dim in jobs:
        if not 1 <= dim <= store.width:
            raise UserError(
                f"Dim {dim} was asked for; the vectors of {store.folder} have {store.width}."
            )
    server = Server(request.uri, request.token, create=True)
    try:
        sent = tuple(_push(request, store, dim, server) for store, dim in jobs)
    finally:
        server.close()
    return PushReport(sent, time.monotonic() - begun)


def _push(request: PushRequest, store: Store, dim: int, server: Server) -> Sent:
    manifest = store.manifest
    cut = Cut(store.layer, dim)
    name = collection_name(manifest.corpus, manifest.label.fingerprint, cut)
    say(f"Pushing {cut} of {manifest.corpus} to {name} of {server.where}")
    try:
        with progress("Pushing", store.documents, "documents") as advance:
            return push(
                store, dim, server, request.engine, overwrite=request.overwrite, progress=advance
            )
    except KeyboardInterrupt:
        raise Interrupted(
            f"Pushing {cut} stopped; the same command without --overwrite goes on from there."
        ) from None


def _stores(request: PushRequest) -> list[Store]:
    """The finished stores that the request names."""
    model = request.model or newest_model()
    card = checkpoint.read_card(model)
    corpus = _corpus(request, card)
    layers = request.layers or stored_layers(request.root, corpus, card.fingerprint)
    if not layers:
        asked = IndexRequest(request.corpus, model, dims=request.dims, root=request.root)
        raise UserError(
            f"There is no store of {corpus} by model {card.fingerprint[:DIGITS]} in "
            f"{request.root}/. Make one with: {index_command(asked)}"
        )
    return [
        open_store(store_folder(request.root, corpus, card.fingerprint, layer)) for layer in layers
    ]


def _corpus(request: PushRequest, card: ModelCard) -> str:
    """The name that stores of this corpus lie under; its documents need not be at hand."""
    name = request.corpus
    try:
        known = bool(stored_layers(request.root, name, card.fingerprint))
    except UserError:  # a path, which cannot name a folder of indexes
        known = False
    return name if known else open_corpus(name).name


def _dims(request: PushRequest, store: Store) -> tuple[int, ...]:
    return request.dims or built_dims(store.folder) or (store.width,)
