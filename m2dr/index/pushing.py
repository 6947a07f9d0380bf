"""A store's prefixes to Milvus: batch by batch, so that a push goes on where it stopped."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError
from m2dr.index.milvus import Server
from m2dr.index.pushed import Pushed, kind_of
from m2dr.index.store import Store
from m2dr.index.vectors import prefixes

BATCH_BYTES = 8 * 2**20  # of vectors; a server takes messages of 64 MB
BATCH_ROWS = 4096


@dataclass(frozen=True)
class Sent:
    """What a push did."""

    name: str  # of the collection
    documents: int  # that it holds now
    written: int  # of them, by this push; the others were there
    bytes: int  # of the vectors written


def push(
    store: Store,
    dim: int,
    server: Server,
    engine: str = "flat",
    *,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Sent:
    """Write the first `dim` coordinates of a store to a collection, or go on writing.

    Rows that are there are compared with the store's docids, and the first vector of each batch
    with the store's; they are not sent again. Sending a row twice replaces it.

    Args:
        store: whose vectors are cut, then normalised if the similarity is cosine.
        dim: coordinates to keep.
        server: connected.
        engine: a name in KINDS.
        overwrite: drop a collection of that name first.
        progress: told how many documents are there, again and again.

    Raises:
        UserError: the collection holds something else, or the server does not answer.
    """
    kind = kind_of(engine)
    if not 1 <= dim <= store.width:
        raise UserError(
            f"Dim {dim} was asked for; the vectors of {store.folder} have {store.width}."
        )
    label = store.manifest.label
    pushed = Pushed(
        store.manifest.corpus, store.documents, store.layer, dim, engine, label,
        store.manifest.digest,
    )  # fmt: skip
    if overwrite:
        server.drop(pushed.name)
    if pushed.name in server.names():
        pushed.refuse_other(server.label(pushed.name), server.where)
    else:
        server.create(pushed, kind)
    written = _send(store, pushed, server, progress)
    if written:
        server.settle(pushed.name)
    return Sent(pushed.name, server.count(pushed.name), written, 4 * dim * written)


def _send(store: Store, pushed: Pushed, server: Server, progress: Callable[[int], None]) -> int:
    """Write the batches that are not there whole; how many documents that were."""
    server.load(pushed.name)  # rows of a collection that is not loaded cannot be counted
    begun = server.count(pushed.name) > 0
    size = max(1, min(BATCH_ROWS, BATCH_BYTES // (4 * pushed.dim)))
    written = 0
    for start, block in store.blocks(size, compare=True):
        rows = range(start, start + len(block))
        docids = store.docids[rows.start : rows.stop]
        vectors = prefixes(block, pushed.dim, pushed.label.similarity)
        if not (begun and _is_there(server, pushed, rows, docids, vectors)):
            server.upsert(pushed.name, rows, docids, vectors)
            written += len(rows)
        progress(len(rows))
    return written


def _is_there(
    server: Server, pushed: Pushed, rows: range, docids: list[str], vectors: NDArray[np.float32]
) -> bool:
    """Whether every row of a batch was written before.

    Raises:
        UserError: a row holds another document or vector than the store.
    """
    found = server.docids(pushed.name, rows)
    other = [row for row, docid in found.items() if docid != docids[row - rows.start]]
    for row, vector in server.vectors(pushed.name, sorted(found)[:1]).items():
        if not np.allclose(vector, vectors[row - rows.start], rtol=1e-5, atol=1e-6):
            other.append(row)
    if other:
        raise UserError(
            f"Row {min(other)} of the collection {pushed.name} of {server.where} is not what the "
            f"store holds: something else wrote to it. Replace it with --overwrite."
        )
    return len(found) == len(rows)
