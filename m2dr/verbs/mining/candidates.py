"""Who finds candidates for negatives: BM25, or a model with its own index."""

from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from m2dr.errors import UserError
from m2dr.index.bm25 import Bm25
from m2dr.index.engines import Index, open_index
from m2dr.index.inventory import built_dims
from m2dr.index.layout import STORE, index_folder, store_folder
from m2dr.index.manifest import StoreManifest
from m2dr.index.ranked import search_ranked
from m2dr.index.remedies import store_remedy
from m2dr.index.store import open_store
from m2dr.index.vectors import prefixes
from m2dr.model import checkpoint
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.records.card import ModelCard
from m2dr.records.cut import Cut
from m2dr.records.run import Ranking
from m2dr.records.texts import Query
from m2dr.text.collection import Dataset
from m2dr.verbs.encoding import embed_texts
from m2dr.verbs.indexing.request import IndexRequest, index_command
from m2dr.verbs.models import document_layer, label_of, newest_model
from m2dr.verbs.progress import progress, say
from m2dr.verbs.searching.search import SearchRequest

Answers = Mapping[str, frozenset[str]]  # query id → docids known to answer it, one at least


class Found(NamedTuple):
    """The ranking of a query, and what the same scorer gives to the best of its known answers."""

    ranking: Ranking
    answer: float


class Ranker(Protocol):
    """Who finds the candidates."""

    def rank(self, queries: Sequence[Query]) -> Iterator[Found]:
        """Candidates of each query, in the order of the queries."""


class WithBm25:
    """Candidates by BM25, which needs nothing that was built."""

    def __init__(self, dataset: Dataset, known: Answers, depth: int) -> None:
        self._depth, self._known = depth, known
        with progress("Reading", dataset.document_count, "documents") as advance:
            self._bm25 = Bm25(dataset.documents(), advance)
        self._rows = _rows(self._bm25.docids, known, "by the same command")

    def rank(self, queries: Sequence[Query]) -> Iterator[Found]:
        """Score all documents, one query at a time."""
        for query in queries:
            scores = self._bm25.scores(query.text)
            rows = [self._rows[docid] for docid in self._known[query.id]]
            yield Found(self._bm25.rank(scores, self._depth), float(scores[rows].max()))


class WithModel:
    """Candidates by a model's own index."""

    def __init__(
        self, dataset: Dataset, known: Answers, depth: int, request: SearchRequest
    ) -> None:
        model = request.model or newest_model()
        card = checkpoint.read_card(model)
        self._layer = card.layers if request.query_layer is None else request.query_layer
        card.check(Cut(self._layer, request.dim or 1), model)
        self._index, store = _open_index(request, dataset.name, model, card, self._layer)
        cut = Cut(self._layer, self._index.manifest.dim)
        self._index.manifest.accept(label_of(card, model), cut)
        self._store = open_store(store)
        self._depth, self._known = depth, known
        self._rows = _rows(self._store.docids, known, store_remedy(store, overwrite=True))
        device = choose_device(request.device)
        dtype = choose_dtype(request.dtype, device)
        self._encoder, self._tokenizer = checkpoint.load(model, self._layer, device, dtype)
        say(f"Mining {dataset.name} with queries at {cut} of {model} on {device.type}, {dtype}")
        for warning in self._index.manifest.warnings(cut):
            say(f"Warning: {warning}")

    def rank(self, queries: Sequence[Query]) -> Iterator[Found]:
        """Encode and search all queries at once."""
        ids, texts = [query.id for query in queries], [query.text for query in queries]
        vectors = embed_texts(self._encoder, self._tokenizer, texts, "query", [self._layer])[0]
        run = search_ranked(self._index, ids, vectors, self._depth)
        for name, vector in zip(ids, self._index.prepare(vectors), strict=True):
            rows = [self._rows[docid] for docid in sorted(self._known[name])]
            # From the store, whatever the engine keeps of a vector; summed in float64 and rounded
            # as the ranking's scores are, so that the two compare.
            manifest = self._index.manifest
            answers = prefixes(self._store.rows(rows), manifest.dim, manifest.similarity)
            scores = answers.astype(np.float64) @ vector.astype(np.float64)
            yield Found(run.rankings[name], float(np.float32(scores.max())))


def _open_index(
    request: SearchRequest, corpus: str, model: str, card: ModelCard, layer: int
) -> tuple[Index, Path]:
    """The index that queries of a layer were trained to search, and the folder of its store."""
    layer = document_layer(card, layer)
    store = store_folder(request.root, corpus, card.fingerprint, layer)
    built = built_dims(store)
    dim = request.dim or max(built, default=card.width)
    if dim not in built:
        there = f" Built are dims {', '.join(map(str, built))}." if built else ""
        asked = IndexRequest(
            request.corpus,
            model,
            dims=(dim,),
            layers=(layer,),
            root=request.root,
            device=request.device,
            dtype=request.dtype,
            store=StoreManifest.read(store).dtype if (store / STORE).exists() else "f16",
        )
        raise UserError(
            f"There is no index of {corpus} by {model} at layer {layer} and dim {dim} in "
            f"{request.root}/.{there} Build it with: {index_command(asked)}"
        )
    return open_index(index_folder(store, dim)), store


def _rows(docids: Sequence[str], known: Answers, remedy: str) -> dict[str, int]:
    """Where the known answers stand among the documents that were ranked."""
    wanted: Set[str] = frozenset().union(*known.values())
    rows = {docid: row for row, docid in enumerate(docids) if docid in wanted}
    if len(rows) < len(wanted):
        raise UserError(
            f"Document {min(wanted - rows.keys())!r} answers a query, and the index does not hold "
            f"it: the corpus has changed. Encode it again {remedy}"
        )
    return rows
