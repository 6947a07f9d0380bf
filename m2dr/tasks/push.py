"""`m2dr index push`: write stores to Milvus collections."""

import time
from dataclasses import dataclass

from m2dr.core.errors import Interrupted, UserError
from m2dr.core.progress import progress, say
from m2dr.core.records import Cut
from m2dr.core.requests import IndexRequest, PushRequest, index_command
from m2dr.index.layout import DIGITS, built_dims, store_folder, stored_layers
from m2dr.index.milvus import PushResult, Server, collection_name, milvus_engine, push
from m2dr.index.store import Store, open_store
from m2dr.model.checkpoint import read_card
from m2dr.tasks.changed_corpus import stored_corpus
from m2dr.tasks.encoder import newest_model


@dataclass(frozen=True)
class PushReport:
    """The collections that lie in Milvus now."""

    collections: tuple[PushResult, ...]
    seconds: float


def push_indexes(request: PushRequest) -> PushReport:
    """Write the missing rows, a collection per layer and dim.

    Raises:
        UserError: there is no store, the server does not answer, or it holds something else.
        Interrupted: Ctrl-C; what was written is kept.
    """
    begun = time.monotonic()
    milvus_engine(request.engine)
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


def _push(request: PushRequest, store: Store, dim: int, server: Server) -> PushResult:
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
    """Return the finished stores that the request names."""
    model = request.model or newest_model()
    card = read_card(model)
    corpus = stored_corpus(request.corpus, request.root, card.fingerprint)
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


def _dims(request: PushRequest, store: Store) -> tuple[int, ...]:
    return request.dims or built_dims(store.folder) or (store.width,)
