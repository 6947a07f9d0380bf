"""`m2dr search`: a query, cut to a layer and a dim, finds its documents in an index."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from m2dr.errors import UserError
from m2dr.evaluate.runfiles import write_run
from m2dr.index.engines import Index, open_index
from m2dr.index.inventory import built_dims, stored_layers
from m2dr.index.layout import index_folder, store_folder
from m2dr.index.ranked import search_ranked
from m2dr.model import checkpoint
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.records.card import ModelCard
from m2dr.records.cut import Cut
from m2dr.records.run import Run
from m2dr.records.texts import Query
from m2dr.text.topics import read_topics
from m2dr.verbs.corpora import open_corpus
from m2dr.verbs.encoding import embed_tokens, tokenize
from m2dr.verbs.index import INDEXES
from m2dr.verbs.models import document_layer, label_of, newest_model


@dataclass(frozen=True)
class SearchRequest:
    """What `m2dr search` was asked, but for the queries."""

    corpus: str = "pydocs"
    model: str = ""  # empty: the newest trained one
    query_layer: int = 0  # 0: all of the encoder
    layer: int = 0  # of the documents; 0: the one that the model was trained to be searched by
    dim: int = 0  # 0: the longest that is built
    root: Path = INDEXES
    device: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True)
class Hit:
    """One line of an answer."""

    rank: int
    score: float
    docid: str
    snippet: str


@dataclass(frozen=True)
class Answer:
    """The documents of one query, and the milliseconds that each step took."""

    hits: tuple[Hit, ...]
    tokenise_ms: float
    encode_ms: float
    search_ms: float


class Searcher:
    """A cut query encoder and an index, kept open between queries."""

    def __init__(self, request: SearchRequest) -> None:
        """Open what the request names.

        Raises:
            UserError: no such model or index, or the two do not fit; before any weight is loaded.
        """
        model = request.model or newest_model()
        card = checkpoint.read_card(model)
        layer = request.query_layer or card.layers
        card.check(Cut(layer, request.dim or 1))
        self._dataset = open_corpus(request.corpus)
        self._index = _open(request, self._dataset.name, model, card, layer)
        self.cut = Cut(layer, self._index.manifest.dim)
        self._index.manifest.accept(label_of(card, model), self.cut)
        self.warnings = self._index.manifest.warnings(self.cut)
        device = choose_device(request.device)
        dtype = choose_dtype(request.dtype, device)
        self._encoder, self._tokenizer = checkpoint.load(model, layer, device, dtype)
        self.describe = (
            f"{self._index.manifest.documents} documents of {self._dataset.name} "
            f"(layer {self._index.manifest.layer}), queries at {self.cut} of {model}"
        )

    def warm_up(self) -> None:
        """Run one query, so that the first that counts does not pay for loading libraries."""
        self.search("warm up", k=1)

    def search(self, text: str, k: int) -> Answer:
        """The best `k` documents of one query."""
        start = time.perf_counter()
        rows = tokenize(self._encoder.card, self._tokenizer, [text], "query")
        tokenised = time.perf_counter()
        vectors = embed_tokens(self._encoder, rows, self._tokenizer.pad_id, [self.cut.layer])[0]
        encoded = time.perf_counter()
        ranking = search_ranked(self._index, ["query"], vectors, k).rankings["query"]
        found = time.perf_counter()
        hits = tuple(
            Hit(rank, score, docid, self._dataset.document(docid).content)
            for rank, (docid, score) in enumerate(
                zip(ranking.docids, ranking.scores, strict=True), start=1
            )
        )
        spans = ((start, tokenised), (tokenised, encoded), (encoded, found))
        return Answer(hits, *(1000 * (stop - begin) for begin, stop in spans))

    def run(self, queries: Sequence[Query], k: int) -> Run:
        """Rank for many queries at once."""
        texts = [query.text for query in queries]
        rows = tokenize(self._encoder.card, self._tokenizer, texts, "query")
        vectors = embed_tokens(self._encoder, rows, self._tokenizer.pad_id, [self.cut.layer])[0]
        ids = [query.id for query in queries]
        drop = {name: name for name in ids} if self._dataset.drops_own_document else None
        return search_ranked(self._index, ids, vectors, k, drop)


def _open(
    request: SearchRequest, corpus: str, model: str, card: ModelCard, query_layer: int
) -> Index:
    """The index that queries of a layer should search, or the nearest there is."""
    layers = stored_layers(request.root, corpus, card.fingerprint)
    if not layers:
        raise UserError(
            f"There is no index of {corpus} by model {card.fingerprint[:12]} in {request.root}/. "
            f"Build one with: m2dr index corpus --dim 128 --corpus {request.corpus} --model {model}"
        )
    layer = request.layer or document_layer(card, query_layer)
    if not request.layer and layer not in layers:
        layer = max(layers)
    store = store_folder(request.root, corpus, card.fingerprint, layer)
    dims = built_dims(store)
    return open_index(index_folder(store, request.dim or max(dims, default=card.width)))


def search_topics(searcher: Searcher, topics: Path, run_file: Path, k: int) -> Run:
    """Rank for the queries of a file, and write the TREC run."""
    run = searcher.run(read_topics(topics), k)
    write_run(run, run_file)
    return run
