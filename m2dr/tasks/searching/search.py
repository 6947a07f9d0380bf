"""`m2dr search`, `bm25` and `fuse`: from a request to an open index, and to ranked documents.

A query text passes `Searcher`: the tokenizer and the cut encoder of `tasks.encoder`, then
`Searchable.ranked` of FAISS, the exact engine, a funnel or Milvus.
"""

import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from m2dr.core import requests
from m2dr.core.errors import UserError, counted, nearest
from m2dr.core.files import list_folder, refuse_same_file, sha256_of
from m2dr.core.progress import printable, progress, say
from m2dr.core.records import Cut, Document, ModelCard, Query, Ranking, Run
from m2dr.core.settings import request_of
from m2dr.data.dataset import Dataset
from m2dr.data.memory import Columns, Passages, changed
from m2dr.data.qrels import read_topics
from m2dr.evaluation.runs import interpolated, read_run, reciprocal_ranks, write_run
from m2dr.index.bm25 import Bm25, Hybrid
from m2dr.index.engines import ENGINES
from m2dr.index.exact import ExactIndex
from m2dr.index.exit_files import fitting_exits, no_exits
from m2dr.index.faiss import on_gpu, open_index
from m2dr.index.filters import FIELDS, Filter, Value, field_types, typed
from m2dr.index.funnel import Funnel, FunnelIndex
from m2dr.index.manifest import (
    DIGITS,
    MANIFEST,
    PARTIAL,
    STORE,
    IndexManifest,
    StoreManifest,
    built_indexes,
    index_folder,
    layer_folders,
    model_of,
    only_home,
    store_folder,
    store_folders_of,
)
from m2dr.index.milvus import in_milvus, open_collection
from m2dr.index.searchable import Mixed, Ranker, Searchable
from m2dr.index.store import open_store
from m2dr.index.vectors import prefixes
from m2dr.model.checkpoint import read_card
from m2dr.model.words import WordTable
from m2dr.tasks.corpus import check_documents, model_for, open_bm25, open_corpus, write_documents
from m2dr.tasks.encoder import (
    Encoder,
    Item,
    QueryEncoder,
    as_documents,
    device_name,
    document_layer,
    dtype_name,
    label_of,
    layers_by_index,
)
from m2dr.tasks.indexing.importing import query_vectors, rotation_of

EXACT = "exact"  # the engine that needs no index and scans the store
DEPTH = 10  # documents of an answer where no number is asked for
_FILTERS = 8  # whose documents are kept open


# From a request to an open index


@dataclass(frozen=True)
class ResolvedIndex:
    """A search request with its model, its corpus and the folder of their stores."""

    request: requests.SearchRequest
    model: str
    corpus: str  # as stores name it
    home: Path  # holds a store per layer
    folder: Path | None = None  # of an index that the request names by its folder

    @cached_property
    def card(self) -> ModelCard:
        """The model card."""
        card = read_card(self.model)
        if stores := store_folders_of(self.home):  # texts are as long as the index says
            label = StoreManifest.read(stores[-1]).label
            card = card.with_lengths_of(label) if label.fingerprint == card.fingerprint else card
        query = self.request.query_length or card.query_length
        return read_card(self.model, query, self.request.document_length or card.document_length)

    @cached_property
    def dataset(self) -> Dataset:
        """The dataset with the texts of the documents.

        Raises:
            UserError: there is none of that name, or it holds other documents than the stores.
        """
        dataset = open_corpus(self.request.corpus)
        if stores := store_folders_of(self.home):
            check_documents(dataset, StoreManifest.read(stores[-1]), self.home)
        return dataset

    @property
    def query_layer(self) -> int:
        """Number of layers that queries run through; given vectors ran through all."""
        if self.request.query_layer is not None:
            return self.request.query_layer
        request = self.request
        given = request.query_vectors or request.query_model
        return self.card.layers if given else self.card.query_layer

    @property
    def query_model(self) -> str:
        """The model of the queries where it is another than that of the documents."""
        return self.request.query_model if self.query_layer == self.card.layers else ""

    @property
    def document_layer(self) -> int:
        """Layer of the documents that such queries search."""
        if self.request.document_layer is not None:
            return self.request.document_layer
        return self.card.layers if self.exits else document_layer(self.card, self.query_layer)

    @cached_property
    def exits(self) -> Path | None:
        """Folder of the exits that were fitted on the documents, if queries pass through them.

        Raises:
            UserError: they were asked for, and there are none.
        """
        asked, last = self.request.exits, self.card.layers
        needed = asked == "index" or bool(self.query_model)
        if not self.query_model and self.query_layer not in layers_by_index(self.card, asked):
            return None
        if self.request.document_layer not in (None, last):
            if needed:
                raise UserError(f"Exits of an index need one on disk of layer {last}.")
            return None
        found = fitting_exits(self.home / f"layer-{last:02d}")
        if found is None and needed:
            raise no_exits(self.home)
        return found

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers whose documents are encoded, increasing."""
        return tuple(int(folder.name[6:]) for folder in store_folders_of(self.home))


def resolve_index(request: requests.SearchRequest) -> ResolvedIndex:
    """Find the model and the stores of a request, without loading weights.

    Raises:
        UserError: there is no such model, corpus or folder.
    """
    if request.index and not in_milvus(request.index):
        resolved = _resolve_folder(request, Path(request.index))
    else:
        model = request.model or model_for(request.corpus, request.root)
        card = read_card(model)
        for layer in (request.query_layer, request.document_layer):  # before a corpus is opened
            card.check(Cut(layer or card.layers, request.dim or 1))
        corpus = open_corpus(request.corpus).name
        home = store_folder(request.root, corpus, card.fingerprint, 1).parent
        resolved = ResolvedIndex(request, model, corpus, home)
        _ = resolved.dataset  # whose documents must be those of the stores
    check_cut(resolved)
    return resolved


def check_cut(resolved: ResolvedIndex) -> None:
    """Check that the model has the layers and the dim of a request.

    Raises:
        UserError: it does not.
    """
    request, card = resolved.request, resolved.card
    if request.query_vectors and resolved.query_layer != card.layers:
        raise UserError(f"--query-vectors stand for layer {card.layers}; leave --query-layer out.")
    own = request.exits == "model" or request.document_layer not in (None, card.layers)
    if request.query_layer == 0 < card.lowest_layer and not own and not resolved.exits:
        raise UserError(f"{resolved.home} has no exits for layer 0; m2dr index fit makes some.")
    for layer in (request.query_layer, request.document_layer):
        if not (layer == 0 and resolved.exits):
            cut = Cut(card.layers if layer is None else layer, request.dim or 1)
            card.check(cut)


def _resolve_folder(request: requests.SearchRequest, folder: Path) -> ResolvedIndex:
    """Resolve a request that names the folder of an index or of a store, or one above them."""
    manifest: IndexManifest | StoreManifest
    named = folder if (folder / MANIFEST).exists() else None
    if named:
        manifest, home = IndexManifest.read(folder), folder.parent.parent
        if request.funnel:
            raise UserError(f"--funnel reads a store, and --index {folder} is an index of one dim.")
        dim, engine = request.dim or manifest.dim, request.engine or manifest.engine
        request = replace(request, dim=dim, engine=engine)
    else:
        home = only_home(folder)
        is_store = (folder / STORE).exists()
        manifest = StoreManifest.read(folder if is_store else store_folders_of(home)[-1])
    label = manifest.label
    model = request.model or model_of(home, label)
    if named or is_store:
        layer = manifest.layer if request.document_layer is None else request.document_layer
        given = request.query_vectors or request.query_model
        most = layer if given else min(layer, read_card(model).query_layer)
        query_layer = most if request.query_layer is None else request.query_layer
        request = replace(request, document_layer=layer, query_layer=query_layer)
    if not request.model:
        say(f"Model: {label.model}, which encoded the documents of {folder}.")
    if request.corpus == requests.PYDOCS:
        request = replace(request, corpus=label.source or manifest.corpus)
    return ResolvedIndex(request, model, manifest.corpus, home, named)


def open_documents(resolved: ResolvedIndex) -> Searchable:
    """Open the documents of a request by its engine, funnel or Milvus server.

    Raises:
        UserError: they are not encoded or not indexed, or settings do not go together.
    """
    return _open(resolved).with_search_params(dict(resolved.request.search_params))


def _open(resolved: ResolvedIndex) -> Searchable:
    request, layer = resolved.request, resolved.document_layer
    if in_milvus(request.index):
        fingerprint, beside = resolved.card.fingerprint, resolved.home / f"layer-{layer:02d}"
        return open_collection(
            request.index, resolved.corpus, fingerprint, layer, request.dim, beside
        )
    store = store_of(resolved)
    if request.funnel:
        funnel = Funnel.parse(request.funnel)
        if request.engine or request.dim not in (None, funnel.dim):
            raise UserError("--funnel was given, and --engine or another --dim too; give one.")
        return FunnelIndex(open_store(store), funnel, device=_device(resolved))
    if request.engine == EXACT:
        dim = request.dim or resolved.card.width
        return ExactIndex(open_store(store), dim, _device(resolved))
    index = open_index(_find_index(resolved, store), search_params=dict(request.search_params))
    device = _device(resolved)
    if device == "cpu":
        return index
    moved, reason = on_gpu(index, int(device.partition(":")[2] or 0))
    say(reason)
    if moved is None and index.exact and not request.search_params and (store / STORE).exists():
        say(f"The vectors are scanned on {device}.")
        return ExactIndex(open_store(store), index.dim, device)
    return moved or index


def _device(resolved: ResolvedIndex) -> str:
    """Return the torch device that documents are searched on."""
    # At layer 0 torch is not loaded to look for a gpu, unless one was named.
    if resolved.query_layer == 0 and resolved.request.device in ("auto", "cpu"):
        return "cpu"
    from m2dr.model.devices import choose_device

    return str(choose_device(resolved.request.device))


def store_of(resolved: ResolvedIndex) -> Path:
    """Return the store of the document layer, or the deepest one if no layer was named."""
    request, named = resolved.request, resolved.folder
    if named is not None and request.document_layer == IndexManifest.read(named).layer:
        return named.parent  # an index may be copied without its store
    layers, layer = resolved.layers, resolved.document_layer
    folder = resolved.home / f"layer-{layer:02d}"
    if layer not in layers and (folder / PARTIAL).exists():
        open_store(folder)  # raises, with how far it is and how to go on
    if not layers or (request.document_layer is not None and layer not in layers):
        there = ", ".join(map(str, layers)) or "none"
        raise UserError(f"{resolved.home} has no index at layer {layer}; layers: {there}.")
    return folder if layer in layers else resolved.home / f"layer-{max(layers):02d}"


def _find_index(resolved: ResolvedIndex, store: Path) -> Path:
    """Return the folder of the requested index, or of the best one."""
    if resolved.folder is not None:
        made = IndexManifest.read(resolved.folder)
        asked = (resolved.request.document_layer, resolved.request.dim, resolved.request.engine)
        if asked == (made.layer, made.dim, made.engine):
            return resolved.folder  # wherever it was copied to
    request, built = resolved.request, built_indexes(store)
    fitting = [
        index
        for index in built
        if request.engine in ("", index.engine) and request.dim in (None, index.dim)
    ]
    if fitting:
        # Flat indexes first, and of those the longest dim.
        return max(fitting, key=lambda index: (index.engine == "flat", index.dim)).folder
    names = sorted({EXACT, *ENGINES, *(index.engine for index in built)})
    if request.engine and request.engine not in names:
        raise UserError(f"There is no engine {request.engine!r}. {nearest(request.engine, names)}")
    there = ", ".join(f"{index.dim} ({index.engine})" for index in built) or "none"
    wanted = index_folder(store, request.dim or resolved.card.width, request.engine or "flat")
    raise UserError(f"{wanted} holds no finished index; dims: {there}. --engine exact needs none.")


# From queries to ranked documents


@dataclass(frozen=True)
class Hit:
    """A document of an answer."""

    rank: int
    score: float
    docid: str
    _searcher: "Searcher" = field(repr=False, compare=False)
    vector_score: float | None = None  # of a hybrid; None beyond the 1,000 best by vectors
    bm25_score: float | None = None  # of a hybrid

    @property
    def text(self) -> str:
        """Title and text of the document, read from the corpus on demand.

        Raises:
            UserError: the corpus is not on this machine, or has changed.
        """
        return self._document.content

    @property
    def fields(self) -> dict[str, Value]:
        """The document's own fields by name, read from the corpus on demand.

        Numbers and truths are such where all documents of the index have them; else they are texts.

        Raises:
            UserError: the corpus is not on this machine, or has changed.
        """
        return typed(self._document.fields, self._searcher.kinds)

    @cached_property
    def _document(self) -> Document:
        return self._searcher.resolved.dataset.document(self.docid)


@dataclass(frozen=True)
class Answer:
    """The documents of one query, and the milliseconds that each step took.

    Of queries that were searched together, each took its share.
    """

    hits: tuple[Hit, ...]
    tokenise_ms: float
    encode_ms: float
    search_ms: float


class Searcher:
    """A cut query encoder and an open index; thread-safe.

    Attributes:
        resolved: the request with its model and stores.
        documents: the open index.
        cut: of the queries.
        warnings: what makes rankings worse than the model allows.
        describe: what is searched, in words.
    """

    def __init__(
        self,
        request: requests.SearchRequest,
        resolved: ResolvedIndex | None = None,
        encoder_of: Callable[[ResolvedIndex], QueryEncoder] | None = None,
    ) -> None:
        """Open the index and encoder that the request names.

        Args:
            request: what is searched, and how.
            resolved: the request, where it is resolved already.
            encoder_of: gives an encoder that is kept elsewhere, instead of loading one.

        Raises:
            UserError: no such model or index, or the two do not fit; before any weight is loaded.
        """
        self.resolved = resolved = resolved or resolve_index(request)
        self.documents = open_documents(resolved)
        self.cut = Cut(resolved.query_layer, self.documents.dim)
        self.documents.accept(label_of(resolved.card, resolved.model), self.cut)
        self._encoder_of = encoder_of or QueryEncoders().of
        self.blend = lru_cache(_FILTERS, typed=True)(self._blend)  # as True is not 1.0
        self._searched = lru_cache(_FILTERS)(self._where)
        self.where()
        self.warnings = [] if resolved.exits else self.documents.warnings(self.cut)
        given = request.query_vectors
        if given:
            self._given = query_vectors(given, resolved.card, resolved.home)
        self._encoder = None if given else self._encoder_of(resolved)
        self.describe = (
            f"{counted(self.documents.documents, 'documents')} of {self.documents.corpus} "
            f"(layer {self.documents.layer}), {'given ' * bool(given)}queries at {self.cut} of "
            f"{resolved.query_model or resolved.model}"
            f"{' by exits of the index' if resolved.exits else ''}"
            f"{''.join(f', {note}' for note in self.blend().notes)}"
        )

    def _blend(
        self, hybrid: bool | float | None = None, query_mix: bool | float | None = None
    ) -> requests.Blend:
        """Return the weights of a search; no words are mixed into queries that read some already.

        Args:
            hybrid: weight of BM25; that of the request when None, the usual one when True.
            query_mix: weight of words in the queries, likewise.

        Raises:
            UserError: a weight is not from 0 to 1.
        """
        resolved, given = self.resolved, {"hybrid": hybrid, "query_mix": query_mix}
        asked = {name: weight for name, weight in given.items() if weight is not None}
        blend: requests.Blend = request_of(requests.Blend, resolved.request.weights | asked)
        mixes = resolved.card.takes_words(self.cut.layer, self.documents.layer)
        return blend if mixes and not resolved.exits else replace(blend, query_mix=0.0)

    @cached_property
    def _words(self) -> WordTable:
        """Layer 0 by the exits of the index, wherever its vectors lie."""
        request = replace(
            self.resolved.request, query_layer=0, document_layer=None, exits="index", index=""
        )
        words = self._encoder_of(replace(self.resolved, request=request)).words
        assert words is not None, "layer 0 is words"
        return words

    def where(
        self,
        filter: str = "",
        hybrid: bool | float | None = None,  # as the options are called
        query_mix: bool | float | None = None,
    ) -> Ranker:
        """Return the open index, in which only documents that fit a filter are found.

        Those that were asked for last stay open.

        Args:
            filter: such as `year >= 2020 and lang = en`; that of the request when empty.
            hybrid: as `blend` takes it.
            query_mix: as `blend` takes it.

        Raises:
            UserError: it is not written as a filter is, names a field that the documents do not
                have, or compares one with a value of another kind; or fields are not known; or
                a hybrid has no BM25 of the same documents; or the index has no words to mix.
        """
        wanted = filter or self.resolved.request.filter
        return self._searched(wanted, self.blend(hybrid, query_mix))

    def _where(self, text: str, blend: requests.Blend) -> Ranker:
        if blend.query_mix:
            mixed = partial(self._words.mixed, weight=blend.query_mix)
            return Mixed(self._searched(text, replace(blend, query_mix=0.0)), mixed)
        wanted = Filter.parse(text) if text else None
        documents = self.documents.where(wanted) if wanted else self.documents
        if not blend.hybrid:
            return documents
        store = open_store(store_of(self.resolved))
        if documents.manifest.docids != store.manifest.docids:
            raise UserError(f"BM25 is of the documents of {store.folder}; the index has others.")
        bm25 = open_bm25(store, lambda: self.resolved.dataset)
        unfit = None
        if wanted:
            unfit = ~np.isin(np.arange(store.documents), store.matching(wanted))
        return Hybrid(documents, bm25, blend.hybrid, unfit)

    def search(self, text: str, k: int | None = None) -> Answer:
        """Return the best `k` documents of one query."""
        return self.answers([text], k)[0]

    def answers(
        self,
        texts: Sequence[str],
        k: int | None = None,
        filter: str = "",  # as the option is called
        hybrid: bool | float | None = None,
        query_mix: bool | float | None = None,
    ) -> list[Answer]:
        """Return the best `k` documents of each query, in the order of the queries.

        Args:
            texts: queries.
            k: documents per query; None: 10, or all where there are fewer.
            filter: as `where` takes it. Fewer documents than `k` may fit it.
            hybrid: as `blend` takes it.
            query_mix: as `blend` takes it.

        Raises:
            UserError: a query is empty, k is below 1, or `where` refuses the filter.
        """
        if not texts:
            return []
        names = [str(number) for number in range(len(texts))]
        run, spans = self._walk(names, texts, k, self.where(filter, hybrid, query_mix), own=False)
        times = [1000 * span / len(texts) for span in spans]
        answers = []
        for ranking in map(run.rankings.__getitem__, names):
            parts = ranking.parts or [(None, None)] * len(ranking.docids)
            ranked = zip(ranking.scores, ranking.docids, parts, strict=True)
            hits = (
                Hit(n, score, docid, self, *own) for n, (score, docid, own) in enumerate(ranked, 1)
            )
            answers.append(Answer(tuple(hits), *times))
        return answers

    def run(self, queries: Sequence[Query], k: int) -> Run:
        """Rank for many queries at once."""
        texts = [query.text for query in queries]
        own = self.resolved.dataset.drops_own_document
        names = [query.id for query in queries]
        return self._walk(names, texts, k, self.where(), own, names)[0]

    def vectors(self, texts: Sequence[str], ids: Sequence[str] = ()) -> NDArray[np.float32]:
        """Return the vectors of queries, [Q, width], not normalised; given ones by id or order."""
        if self._encoder is not None:
            return self._encoder.embed(self._encoder.tokenize(texts), texts)
        given = self._given if ids else replace(self._given, ids=None)
        return given.finite(given.of(ids or texts, "queries"))

    def _walk(
        self,
        names: Sequence[str],
        texts: Sequence[str],
        k: int | None,
        documents: Ranker,
        own: bool,
        ids: Sequence[str] = (),
    ) -> tuple[Run, tuple[float, float, float]]:
        """Return the run of queries, and the seconds of tokenising, encoding and searching.

        Args:
            names: of the queries.
            texts: of the queries.
            k: how many documents for each; None: DEPTH of them, or fewer.
            documents: that are searched.
            own: whether the document of a query's own name is left out.
            ids: by which vectors of the queries are looked up, where some were given.
        """
        if not all(text.strip() for text in texts):
            raise UserError("A query is empty; give it a word to search for.")
        start = tokenised = time.perf_counter()
        if self._encoder is None:
            vectors = self.vectors(texts, ids)
        else:
            rows = self._encoder.tokenize(texts)
            tokenised = time.perf_counter()
            vectors = self._encoder.embed(rows, texts)
        encoded = time.perf_counter()
        drop = {name: name for name in names} if own else None
        run = documents.ranked(names, vectors, DEPTH if k is None else k, drop, texts)
        found = time.perf_counter()
        return run, (tokenised - start, encoded - tokenised, found - encoded)

    @cached_property
    def kinds(self) -> Mapping[str, Any]:
        """Types of the documents' fields; none where they are not known."""
        try:
            return field_types(store_of(self.resolved) / FIELDS)
        except UserError:
            return {}


def record_of(searcher: Searcher, text: str, answer: Answer) -> dict[str, object]:
    """Return an answer by the names of its fields; a text that is not at hand is None."""
    rows: list[dict[str, object]] = []
    for hit in answer.hits:
        content, fields = None, {}
        with suppress(UserError):
            content, fields = hit.text, hit.fields
        place: dict[str, object] = {"rank": hit.rank, "score": float(hit.score), "docid": hit.docid}
        if hit.bm25_score is not None:
            place |= {"vector_score": hit.vector_score, "bm25_score": hit.bm25_score}
        rows.append(place | {"text": content, "fields": fields})
    times = {name: getattr(answer, name) for name in ("tokenise_ms", "encode_ms", "search_ms")}
    cut = {"query_layer": searcher.cut.layer, "document_layer": searcher.documents.layer}
    return {"query": text, **cut, "dim": searcher.cut.dim, "hits": rows, **times}


# Lexical runs, and several runs in one


@dataclass(frozen=True)
class Bm25Report:
    """The run that was written."""

    run_file: Path
    documents: int
    queries: int
    seconds: float


def bm25(request: requests.Bm25Request) -> Bm25Report:
    """Rank the documents by BM25 for all queries, and write the TREC run.

    Raises:
        UserError: corpus or queries cannot be read or are the file of the run, or there is no
            such language.
    """
    begun = time.monotonic()
    if bool(request.split) == (request.topics is not None):
        raise UserError("Queries come from --topics or from a --split of the corpus; give one.")
    read = {"--topics": request.topics, "--corpus": request.corpus}
    refuse_same_file("--run", request.run_file, read)
    dataset = open_corpus(request.corpus)
    queries = read_topics(request.topics) if request.topics else dataset.queries(request.split)
    with progress("Reading words", dataset.document_count, "documents") as advance:
        index = Bm25.of(dataset.documents(), advance, request.language)
    rankings: dict[str, Ranking] = {}
    with progress("Searching", len(queries), "queries") as advance:
        for query in queries:
            own = dataset.own_document(query.id)
            rankings[query.id] = index.rank(index.scores(query.text), request.top_k, own)
            advance(1)
    write_run(Run(rankings), request.run_file, tag="bm25")
    spent = time.monotonic() - begun
    return Bm25Report(request.run_file, len(index.docids), len(queries), spent)


@dataclass(frozen=True)
class FuseReport:
    """The run that was written."""

    out: Path
    queries: int
    documents: int  # over all queries


def fuse(request: requests.FuseRequest) -> FuseReport:
    """Fuse the runs, and write the result when all of them are read.

    Raises:
        UserError: a run file cannot be read or is the one to write, or a setting would change
            nothing.
    """
    for path in request.runs:
        refuse_same_file("--out", request.out, {"RUNS": path})
    given = [read_run(path) for path in request.runs]
    if request.method == "rrf":
        fused = reciprocal_ranks(given, request.weights, request.top_k, request.rrf_k)
    else:
        fused = interpolated(given, request.weights, request.top_k, request.scale)
    write_run(fused, request.out, tag=f"m2dr-{request.method}")
    documents = sum(len(ranking.docids) for ranking in fused.rankings.values())
    return FuseReport(request.out, len(fused), documents)


if TYPE_CHECKING:  # it loads torch, and a search at layer 0 does without
    from m2dr.tasks.indexing.index import ChangeReport

CORPUS = "corpus.jsonl"  # as in a folder of BEIR, which every command opens
_CUTS = 32  # searchers that are kept open


class Index:
    """The documents of a corpus, encoded by a model, at every layer and dim; thread-safe.

    index = m2dr.Index.build(model, [{"id": "d1", "text": "A text."}], dims=[128])
    index.search("a query", k=10).hits
    """

    def __init__(
        self, request: requests.SearchRequest, encoders: "QueryEncoders | None" = None
    ) -> None:
        """Open the index of a request, and load its encoder; `open` has arguments for people.

        Args:
            request: of the cut that a search has by default.
            encoders: that other indexes use too.

        Raises:
            UserError: no such model, corpus or index, or they do not fit.
        """
        self.resolved = resolve_index(request)
        self.encoders = encoders or QueryEncoders()
        self._searchers = lru_cache(_CUTS)(self._open)
        self.searcher()

    @classmethod
    def open(
        cls,
        name: str | PathLike[str] = requests.PYDOCS,
        *,
        layer: int | None = None,
        search_params: Mapping[str, int] | None = None,
        device: object = "auto",
        dtype: object = "auto",
        root: str | PathLike[str] = requests.INDEXES,
        **options: Any,
    ) -> "Index":
        """Open documents that were encoded before.

        Args:
            name: a corpus, the folder of an index or a store, or one above, or milvus:URI.
            layer: layers that queries run through, unless a search says otherwise; all by default.
                Layer 0 is words alone.
            search_params: of the engine, such as {"nprobe": 32}.
            device: auto, cpu, cuda or cuda:N.
            dtype: auto, fp32 or bf16.
            root: folder of the indexes.
            options: other fields of `SearchRequest`: model, corpus, dim, document_layer, engine,
                funnel, runtime, exits, filter, hybrid and query_mix, as `m2dr search` takes them.

        Raises:
            UserError: no such model, corpus or index, or they do not fit.
        """
        named = fspath(name)
        where = {"index" if _is_index(named) else "corpus": named}
        own = {
            "query_layer": layer,
            "search_params": tuple((search_params or {}).items()),
            "device": device_name(device),
            "dtype": dtype_name(dtype),
            "root": root,
        }
        return cls(request_of(requests.SearchRequest, where | own | options))

    @classmethod
    def build(
        cls,
        model: Encoder | str | PathLike[str],
        documents: Any,  # what `m2dr.data.tables.rows_of` takes, or a name
        *,
        name: str = "",
        folder: str | PathLike[str] = requests.INDEXES,
        overwrite: bool = False,
        columns: Columns | None = None,
        passages: Passages | None = None,
        **options: Any,
    ) -> "Index":
        """Encode documents and build their indexes, as `m2dr index corpus` does; open them.

        What was encoded and built before is used again; an interrupted build goes on.

        Args:
            model: an encoder, whose layer and dim are those of a search that names none; or the
                folder or id of a model.
            documents: strings, dicts with a text and perhaps a title, an id and other fields, by
                which a search may filter, a dict of id to text, a frame, a data set; they are kept
                in FOLDER/NAME/corpus.jsonl. Or the name of a corpus, as `m2dr index` takes it.
            name: of the documents, for later: `m2dr search --corpus FOLDER/NAME`. By default those
                in memory are named by their content, and a corpus by its own name.
            folder: of the indexes.
            overwrite: whether to encode again; other documents of that name are replaced then, with
                all indexes of them.
            columns: names of columns that are not m2dr's, such as {"text": "Body"}.
            passages: words of the passages that long documents are divided into, and how many of
                them each shares with the one before, such as (200, 50); whole by default.
            options: other fields of `IndexRequest`: dims, which are that of the encoder by default,
                layers, engines, store, exits and others.

        Raises:
            UserError: a document has no text, two have one id, there are other documents of that
                name, or the model has no such layer or dim.
        """
        encoder = model if isinstance(model, Encoder) else None
        root = Path(folder)
        if Path(name).name != name or name == "..":
            raise UserError(f"name = {name!r} is not that of a folder.")
        shared: dict[str, Any] = {"root": root}
        if encoder:
            shared |= {name: value for name, value in encoder.options.items() if name != "runtime"}
            options.setdefault("dims", (encoder.dim,))
        from m2dr.tasks.indexing.index import check_index_request, index_corpus

        documents = changed(documents, columns, passages)
        named = encoder.name if encoder else fspath(model)  # type: ignore[arg-type]  # a name
        asked = request_of(
            requests.IndexRequest, {"model": named, "overwrite": overwrite} | shared | options
        )
        if isinstance(documents, str | PathLike):
            corpus = f"{name}={fspath(documents)}" if name else fspath(documents)
        else:
            check_index_request(asked)  # before the index that is there is replaced
            corpus = str(_keep(documents, root, name, overwrite))
        index_corpus(replace(asked, corpus=corpus))
        if encoder:
            shared |= {
                "query_layer": encoder.layer,
                "dim": encoder.dim if encoder.dim in asked.dims else None,
                "runtime": encoder.options["runtime"] if encoder.layer else "torch",
            }
        return cls(requests.SearchRequest(corpus, named, **shared))

    @classmethod
    def load(cls, folder: str | PathLike[str], **options: Any) -> "Index":
        """Open what `save` wrote; `options` as `open` takes them, the model by default its own.

        Raises:
            UserError: the folder holds no index or several, or its model is not there.
        """
        home = only_home(Path(folder))
        name = home.parent.relative_to(folder)
        model = model_of(home, StoreManifest.read(store_folders_of(home)[-1]).label)
        return cls.open(f"{name}={home.parent}", **{"root": folder, "model": model} | options)

    def save(self, folder: str | PathLike[str]) -> Path:
        """Copy vectors, indexes and texts to a folder for `load`, and return it.

        It may be moved to another machine, where `load` is given the model.

        Raises:
            UserError: the folder is not empty, or the documents lie in Milvus.
        """
        target, home = Path(folder), self.resolved.home
        if list_folder(target):
            raise UserError(f"{target} is not empty.")
        if not home.is_dir():
            raise UserError(f"{self!r} has no vectors in {home.parent} to save.")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as aside:
            corpus = Path(aside, "saved", self.resolved.corpus)
            shutil.copytree(home, corpus / home.name)
            write_documents(self.resolved.dataset.documents(), corpus / CORPUS)
            Path(aside, "saved").replace(target)
        return target

    def __len__(self) -> int:
        """Return the number of documents."""
        return self.searcher().documents.documents

    def get(self, docid: str) -> dict[str, Value]:
        """Return a document as `add` takes it: id, title, text and its own fields.

        Raises:
            UserError: there is none of that id, or the corpus is not on this machine.
        """
        document = self.resolved.dataset.document(docid)
        fields = typed(document.fields, self.searcher().kinds)
        return {"id": docid, "title": document.title, "text": document.text} | fields

    def __repr__(self) -> str:
        return f"Index({self.resolved.corpus!r}, model={self.resolved.model!r})"

    def search(
        self,
        texts: str | Sequence[str],
        *,
        layer: int | None = None,
        dim: int | None = None,
        document_layer: int | None = None,
        k: int | None = None,
        filter: str = "",
        hybrid: bool | float | None = None,
        query_mix: bool | float | None = None,
    ) -> Any:  # an Answer, or a list of them
        """Return the best `k` documents of each query.

        A Python warning, given once, names what makes rankings worse than the model allows.

        Args:
            texts: queries, or one query.
            layer: layers that the queries run through; 0 is words alone.
            dim: dims of the embedding that are compared.
            document_layer: of the documents; by default the one that queries of `layer` were
                trained to search.
            k: documents per query; 10 by default, or all where there are fewer.
            filter: which documents may be found, by their own fields, as `m2dr search --filter`
                takes it: "year >= 2020 and lang in (en, de)". Fewer than `k` may fit.
            hybrid: whether to rank by BM25 too, or its weight; as the index was opened by default.
            query_mix: whether to add the words of queries to their vectors, or by which weight,
                likewise; at layers that read no words.

        Returns:
            A list with the `Answer` of each query, or a single one for a single string: `hits`,
            each with rank, score, docid, text and fields, of a hybrid also vector_score and
            bm25_score, and the milliseconds of each step.

        Raises:
            UserError: a query is empty, a number is invalid, the filter does not fit the fields of
                the documents, or the cut has no documents.
        """
        queries = [texts] if isinstance(texts, str) else list(texts)
        if isinstance(texts, Mapping) or not all(isinstance(query, str) for query in queries):
            raise UserError("Give a query, or a list of queries, which are strings.")
        searcher = self.searcher(layer, dim, document_layer)
        depth = None if k is None else int(k)
        answers: list[Answer] = searcher.answers(queries, depth, filter, hybrid, query_mix)
        return answers[0] if isinstance(texts, str) else answers

    def embed_query(self, text: str, layer: int | None = None) -> list[float]:
        """Return the vector of a query at all dims, as vector stores of other libraries take it.

        It is compared with the vectors of the documents as they were given or encoded, so that any
        store of these answers by it.

        Args:
            text: the query.
            layer: layers that it runs through; 0 is words alone, and where nobody has the model.

        Raises:
            UserError: as `searcher` does.
        """
        searcher = self.searcher(layer)
        card, home = searcher.resolved.card, searcher.resolved.home
        vectors, rotation = searcher.vectors([text]), rotation_of(home, card.width)
        vectors = vectors if rotation is None else vectors @ rotation
        numbers: list[float] = prefixes(vectors, card.width, card.similarity)[0].tolist()
        return numbers

    def searcher(
        self,
        layer: int | None = None,
        dim: int | None = None,
        document_layer: int | None = None,
        engine: str = "",
    ) -> Searcher:
        """Return the searcher of a cut, which stays open; None is that of `open`.

        Raises:
            UserError: there are no such documents, or queries of this model cannot search them.
        """
        request = self.resolved.request
        # A document layer named at opening holds; without one documents follow the query.
        return self._searchers(
            request.query_layer if layer is None else layer,
            request.dim if dim is None else dim,
            request.document_layer if document_layer is None else document_layer,
            engine or request.engine,
        )

    def add(
        self, documents: Any, *, replace: bool = False, columns: Columns | None = None
    ) -> "ChangeReport":
        """Add documents to the corpus of `Index.build`, and to every layer and dim of its index.

        Args:
            documents: as `build` takes them, each with an id.
            replace: whether documents of the same ids are replaced.
            columns: as `build` takes them.

        Raises:
            UserError: an id is there already, a document has no id or no text, or the index was
                opened by its folder; nothing has changed then.
        """
        from m2dr.tasks.indexing.index import sync

        more = as_documents(changed(documents, columns), numbered=False)
        report = sync(self._collection(), more, replace_same=replace)
        self._reopen()
        return report

    def delete(self, docids: str | Sequence[str]) -> "ChangeReport":
        """Delete documents from the corpus of `Index.build`, and from its index.

        Raises:
            UserError: an id is not there, or all documents would be gone; nothing has changed then.
        """
        from m2dr.tasks.indexing.index import sync

        gone = [docids] if isinstance(docids, str) else list(docids)
        report = sync(self._collection(), delete=gone)
        self._reopen()
        return report

    def _collection(self) -> requests.IndexRequest:
        """Return the request of what is changed."""
        request = self.resolved.request
        if request.index:
            raise UserError(f"{request.index} was opened by its folder; open it by its corpus.")
        return requests.IndexRequest(
            request.corpus, self.resolved.model, root=request.root, device=request.device,
            dtype=request.dtype,
        )  # fmt: skip

    def _reopen(self) -> None:
        """Open what was changed at the next search."""
        self.resolved = resolve_index(self.resolved.request)
        self._searchers = lru_cache(_CUTS)(self._open)

    def _open(
        self, layer: int | None, dim: int | None, document_layer: int | None, engine: str
    ) -> Searcher:
        request = replace(
            self.resolved.request, query_layer=layer, dim=dim, document_layer=document_layer,
            engine=engine,
        )  # fmt: skip
        resolved = replace(self.resolved, request=request)
        check_cut(resolved)
        searcher = Searcher(request, resolved, self.encoders.of)
        for sentence in searcher.warnings:
            warnings.warn(printable(sentence), UserWarning, stacklevel=4)
        return searcher


class QueryEncoders:
    """Encoders of queries, each loaded when it is first needed; thread-safe.

    An encoder cut to a layer holds the tensors of the others of its model in place of its own
    copies, so that all layers together take the memory of the deepest one and of the exits.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[object, ...], QueryEncoder] = {}
        self._lock = threading.Lock()

    def of(self, resolved: ResolvedIndex) -> QueryEncoder:
        """Return the encoder of the queries of a request.

        Raises:
            UserError: as `QueryEncoder` does.
        """
        request, layer = resolved.request, resolved.query_layer
        runtime = request.runtime if layer else "torch"
        model, card, documents = resolved.model, resolved.card, ""
        if other := resolved.query_model:
            model, documents, card = other, card.fingerprint, read_card(other)
            layer = card.query_layer
        how = (
            model, layer, runtime, request.device, request.dtype, resolved.exits, documents
        )  # fmt: skip
        fingerprint = (card.fingerprint, card.query_length, card.document_length)
        with self._lock:
            if (encoder := self._open.get((fingerprint, *how))) is None:
                encoder = QueryEncoder(*how)
                encoder.card = encoder.card.with_lengths_of(card)
                same = [opened for (of, *_), opened in self._open.items() if of == fingerprint]
                for opened in sorted(same, key=lambda each: -each.layer):
                    encoder.share_weights(opened)
                encoder.warm_up()
                self._open[fingerprint, *how] = encoder
            return encoder


def _is_index(name: str) -> bool:
    """Whether a name is that of Milvus, or of the folder of an index, a store, or one above."""
    if in_milvus(name) or any(Path(name, file).exists() for file in (MANIFEST, STORE)):
        return True
    above = any(next(Path(name).glob(f"{up}layer-*/{STORE}"), None) for up in ("", "*/", "*/*/"))
    return above and not Path(name, CORPUS).exists()  # of Index.build: a corpus too


def _keep(items: Iterable[Item], root: Path, name: str, overwrite: bool) -> Path:
    """Write documents as corpus.jsonl of a folder of `root`, named by them by default; return it.

    Raises:
        UserError: two have one id, or it holds other documents and may not overwrite them.
    """
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=root) as aside:
        unfinished = Path(aside, CORPUS)
        write_documents(as_documents(items), unfinished)
        digest = sha256_of(unfinished)
        folder = root / (name or f"documents-{digest[:DIGITS]}")
        path = folder / CORPUS
        if path.exists() and sha256_of(path) != digest:
            if name and not overwrite:
                raise UserError(f"{folder} holds other documents; name it or overwrite=True.")
            for index in [each for each in list_folder(folder) if layer_folders(each)]:
                shutil.rmtree(index)
        folder.mkdir(exist_ok=True)
        unfinished.replace(path)
    return folder
