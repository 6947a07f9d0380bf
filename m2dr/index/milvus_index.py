"""Search vectors in Milvus, as an index on disk is searched, and push a store's vectors there.

One collection holds one prefix, and not the full width for all of them: cosine normalises what is
left after cutting, which no search over longer vectors can do, and a search then multiplies the
prefix alone.
"""

# Shapes in this file:
#   Q queries, n documents of a batch.

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, repeat

import numpy as np

from m2dr.core.errors import UserError, counted
from m2dr.core.records import Cut
from m2dr.index.filters import Filter, Value
from m2dr.index.layout import DIGITS
from m2dr.index.milvus import (
    DEEPEST,
    PUSH,
    CollectionManifest,
    Hit,
    Server,
    collection_name,
    cut_of,
    milvus_engine,
)
from m2dr.index.milvus_filter import entity, expression, pushed_fields
from m2dr.index.searchable import Hits, Scores, Searchable, search_deeper
from m2dr.index.store import Store
from m2dr.index.vectors import Floats, prefixes

BATCH_BYTES = 8 * 2**20  # of vectors; a server takes messages of 64 MB
BATCH_ROWS = 4096
_ANSWERS = 200_000  # documents in one answer for a batch of queries
_READ = 1024  # vectors that are read at once, to score them again
_UNFINISHED = -1  # documents of a collection that follows a change of its store
_ROUNDING = 2e-6  # share of the largest score by which a server may round a product


@dataclass(frozen=True)
class MilvusCollection(Searchable):
    """Documents at one layer and dim in Milvus, open for search.

    Attributes:
        manifest: what the collection holds.
        server: which has the collection.
    """

    manifest: CollectionManifest
    server: Server
    condition: str = ""  # that documents must fit, as Milvus reads it
    fitting: int = 0  # documents that fit it

    @property
    def documents(self) -> int:
        """Number of documents, of those that fit the condition."""
        return self.fitting if self.condition else self.manifest.documents

    def where(self, wanted: Filter) -> "MilvusCollection":
        """See Searchable; the fields are those that were pushed."""
        held = self.manifest
        if not held.fields:
            raise UserError(
                f"The collection {held.name} of {self.server.where} holds no fields of documents. "
                "Encode the corpus again, if documents have fields, and push the index again "
                f"{PUSH}."
            )
        bound = wanted.bound(dict(held.fields), held.corpus)
        condition = expression(bound, held.fields)
        fitting = self.server.count(held.name, condition=condition)
        return replace(self, condition=condition, fitting=fitting)

    @property
    def dim(self) -> int:
        """Dims of a query that are compared."""
        return self.manifest.dim

    def close(self) -> None:
        """Close the connection."""
        self.server.close()

    def _other_dim(self, dim: int) -> str:
        return (
            f"the collection {self.manifest.name} has dimension {self.dim}. Open the collection of "
            f"dimension {dim}."
        )

    def _best(self, queries: Floats, k: int) -> Iterable[Hits]:
        """Return the best `k` documents of each query, with all that share the last score.

        A server rounds one and the same vector differently at different rows. Documents whose
        scores are that close are therefore scored once more here, in float64, so that copies of
        a document rank by docid, as in an index on disk.

        Raises:
            UserError: k is more than Milvus gives, or the server does not answer.
        """
        if k > DEEPEST:
            raise UserError(
                f"{k:,} documents per query were asked for, and Milvus gives {DEEPEST:,} at most, "
                f"one to leave out included. Ask for fewer, or search an index on disk."
            )
        most = min(self.documents, DEEPEST)

        def look(prepared: Scores, fetch: int) -> Iterator[Hits | None]:
            for query, hits in zip(prepared, self._ask(prepared, fetch), strict=True):
                if self.condition and len(hits) < k and self.documents <= DEEPEST:
                    yield self._all_that_fit(query)
                    continue
                done = fetch >= most or _complete(hits, k, fetch)
                yield self._settled(query, hits) if done else None

        prepared = prefixes(queries, self.dim, self.manifest.label.similarity)
        return search_deeper(prepared, k, most, look)

    def _ask(self, prepared: Scores, fetch: int) -> Iterator[list[Hit]]:
        """Yield the hits of each query [dim], in batches that an answer can hold."""
        parameters = milvus_engine(self.manifest.engine).parameters(fetch)
        size = max(1, _ANSWERS // fetch)
        for start in range(0, len(prepared), size):
            batch = prepared[start : start + size]
            yield from self.server.search(
                self.manifest.name, batch, fetch, parameters, self.condition
            )

    def _all_that_fit(self, query: Scores) -> Hits:
        """Return every document that fits the condition, scored here for a query [dim].

        A graph or a few lists may miss documents that a filter lets through.
        """
        docids = self.server.fitting(self.manifest.name, self.condition)
        exact = self._exact(query, sorted(docids))
        return [docids[row] for row in exact], np.array(list(exact.values()), np.float32)

    def _settled(self, query: Scores, hits: list[Hit]) -> Hits:
        """Return the hits with scores that do not depend on rows, where rounding could swap two.

        Args:
            query: [dim], as the vectors of the collection are.
            hits: by score, descending.
        """
        scores = np.array([hit[0] for hit in hits])
        close = np.flatnonzero(scores[:-1] - scores[1:] <= _rounding(hits))
        rows = sorted({hits[place + step][1] for place in close.tolist() for step in (0, 1)})
        exact = self._exact(query, rows)
        settled = [exact.get(row, score) for score, row, _ in hits]
        return [docid for *_, docid in hits], np.array(settled, np.float32)

    def _exact(self, query: Scores, rows: Sequence[int]) -> dict[int, float]:
        """Return scores by row for a query [dim], summed in float64."""
        found: dict[int, float] = {}
        for first in range(0, len(rows), _READ):
            part = self.server.vectors(self.manifest.name, rows[first : first + _READ])
            for row, vector in part.items():
                found[row] = float(vector.astype(np.float64) @ query.astype(np.float64))
        return found


def open_collection(
    uri: str,
    corpus: str,
    fingerprint: str,
    layer: int,
    dim: int,
    token: str = "",
    remedy: str = PUSH,
) -> MilvusCollection:
    """Open a collection that `m2dr index push` wrote.

    Args:
        uri: a server or a local file, as `Server` takes it.
        corpus: whose documents.
        fingerprint: of the model that encoded them.
        layer: of the documents.
        dim: of the collection.
        token: as `Server` takes it.
        remedy: how to push what is missing, for messages.

    Raises:
        UserError: the server does not answer, or there is no such collection, or it is
            half-written or of another corpus or model.
    """
    server = Server(uri, token, remedy=remedy)
    try:
        manifest = _find(server, corpus, fingerprint, Cut(layer, dim), remedy)
        return MilvusCollection(manifest, server)
    except UserError:
        server.close()
        raise


def collection_cuts(
    uri: str, corpus: str, fingerprint: str, token: str = "", remedy: str = PUSH
) -> tuple[Cut, ...]:
    """Return the cuts of a corpus that have a collection, finished or not, increasing.

    Args:
        uri: as `open_collection` takes it; so are the others.
        corpus: whose documents.
        fingerprint: of the model that encoded them.
        token: as `Server` takes it.
        remedy: how to push what is missing, for messages.

    Raises:
        UserError: the server does not answer.
    """
    server = Server(uri, token, remedy=remedy)
    try:
        return _cuts(server.names(), corpus, fingerprint)
    finally:
        server.close()


def _find(
    server: Server, corpus: str, fingerprint: str, cut: Cut, remedy: str
) -> CollectionManifest:
    """Return the manifest of a collection, once it is known to hold all that is asked for."""
    name, names = collection_name(corpus, fingerprint, cut), server.names()
    if name not in names:
        cuts = _cuts(names, corpus, fingerprint)
        known = f"; there are {', '.join(map(str, cuts))}" if cuts else ""
        raise UserError(
            f"Milvus at {server.where} holds no {cut} of {corpus} by model "
            f"{fingerprint[:DIGITS]}{known}. Push it {remedy}"
        )
    manifest = server.manifest(name)
    if (manifest.corpus, manifest.label.fingerprint) != (corpus, fingerprint):
        raise UserError(
            f"The collection {name} of {server.where} holds {manifest.corpus} by model "
            f"{manifest.label.fingerprint}, not {corpus} by {fingerprint}. Use another database."
        )
    server.load(name)  # documents of a collection that is not loaded cannot be counted
    count = server.count(name)
    if count != manifest.documents:
        raise UserError(
            f"The collection {name} of {server.where} is half-written: {count:,} of "
            f"{counted(manifest.documents, 'documents', ',')}. Go on from there {remedy}"
        )
    return manifest


def _cuts(names: Sequence[str], corpus: str, fingerprint: str) -> tuple[Cut, ...]:
    found = (cut_of(name, corpus, fingerprint) for name in names)
    return tuple(sorted(cut for cut in found if cut is not None))


def _complete(hits: list[Hit], k: int, fetch: int) -> bool:
    """Whether no document that was not fetched may reach the score of rank `k`."""
    # An approximate index may find fewer than asked for; asking again finds no more.
    return len(hits) < fetch or hits[-1][0] + _rounding(hits) < hits[k - 1][0]


def _rounding(hits: list[Hit]) -> float:
    return _ROUNDING * max((abs(score) for score, _, _ in hits), default=0.0)


@dataclass(frozen=True)
class PushResult:
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
) -> PushResult:
    """Write the first `dim` dims of a store to a collection, or go on writing.

    Rows that are there are compared with the store's docids, and the first vector of each batch
    with the store's; they are not sent again. Sending a row twice replaces it. A collection of the
    store before it was changed follows the change: documents are added and deleted, and all are
    sent again where compacting gave them other rows.

    Args:
        store: whose vectors are cut, then normalised if the similarity is cosine.
        dim: dims to keep.
        server: connected.
        engine: a name in MILVUS_ENGINES.
        overwrite: drop a collection of that name first.
        progress: told how many documents are there, again and again.

    Raises:
        UserError: the collection holds something else, or the server does not answer.
    """
    if not 1 <= dim <= store.width:
        raise UserError(
            f"Dim {dim} was asked for; the vectors of {store.folder} have {store.width}."
        )
    held = store.manifest
    manifest = CollectionManifest(
        held.corpus, store.documents, store.layer, dim, milvus_engine(engine).name, held.label,
        held.digest, pushed_fields(store),
    )  # fmt: skip
    name = manifest.name
    if overwrite:
        server.drop(name)
    _made_ready(server, manifest)
    written = _send(store, manifest, server, progress)
    if written:
        server.flush(name)
    return PushResult(name, server.count(name), written, 4 * dim * written)


def _made_ready(server: Server, manifest: CollectionManifest) -> None:
    """Make a collection, unless it is there.

    Raises:
        UserError: the collection holds something else.
    """
    name = manifest.name
    if name in server.names():
        found = server.manifest(name)
        manifest.refuse_other(found, server.where)
        if found.fields == manifest.fields:
            return
        server.drop(name)  # its fields have other types
    server.create(manifest)


def _send(
    store: Store, manifest: CollectionManifest, server: Server, progress: Callable[[int], None]
) -> int:
    """Write the batches that are not there in full; return how many documents they hold."""
    server.load(manifest.name)  # rows of a collection that is not loaded cannot be counted
    name = manifest.name
    begun = server.count(name) > 0
    size = max(1, min(BATCH_ROWS, BATCH_BYTES // (4 * manifest.dim)))
    written = 0
    # One by one: all fields of a large collection would not fit in memory.
    values: Iterator[Mapping[str, Value]]
    values = store.fields.values() if manifest.fields else repeat({})
    for start, block in store.blocks(size, compare=True):
        rows = range(start, start + len(block))
        fields = [entity(manifest.fields, one) for one in islice(values, len(block))]
        docids = store.docids.take(rows)
        vectors = prefixes(block, manifest.dim, manifest.label.similarity)
        if not (begun and _is_there(server, name, rows, docids, vectors)):
            server.upsert(name, rows, docids, vectors, fields)
            written += len(rows)
        progress(len(rows))
    return written


def _is_there(
    server: Server, name: str, rows: Sequence[int], docids: list[str], vectors: Scores
) -> bool:
    """Whether every row of a batch, vectors [n, dim], was written before.

    Raises:
        UserError: a row holds another document or vector than the store.
    """
    found = server.docids(name, range(rows[0], rows[-1] + 1))
    places = {row: place for place, row in enumerate(rows)}
    other = [
        row for row, docid in found.items() if row not in places or docid != docids[places[row]]
    ]
    for row, vector in server.vectors(name, sorted(found)[:1]).items():
        if not np.allclose(vector, vectors[places[row]], rtol=1e-5, atol=1e-6):
            other.append(row)
    if other:
        raise UserError(
            f"Row {min(other)} of the collection {name} of {server.where} is not what the "
            f"store holds: something else wrote to it. Replace it with --overwrite."
        )
    return len(found) == len(rows)
