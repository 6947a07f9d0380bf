"""`m2dr search`: from a request to an open index, and to ranked documents.

A query text passes `Searcher`: the encoder of its plan (`tasks.query`), then
`Searchable.ranked` of FAISS, the exact engine, a funnel or Milvus.
"""

import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from m2dr.core.arrays import Float32
from m2dr.core.errors import UserError, counted, nearest, require, sentence_of
from m2dr.core.progress import say
from m2dr.core.records import Cut, Document, ModelCard, Query, Ranking, Run, Value
from m2dr.core.requests import PYDOCS, Ask, Blend, SearchRequest
from m2dr.data.dataset import Dataset
from m2dr.index.bm25 import Bm25
from m2dr.index.engines import ENGINES
from m2dr.index.exact import ExactIndex
from m2dr.index.faiss import on_gpu, open_faiss
from m2dr.index.filters import Filter
from m2dr.index.folder import IndexFolder
from m2dr.index.funnel import Funnel, FunnelIndex
from m2dr.index.manifest import (
    MANIFEST,
    STORE,
    IndexManifest,
    StoreManifest,
    built_indexes,
    index_folder,
)
from m2dr.index.milvus import in_milvus, open_collection
from m2dr.index.ranker import Ranker
from m2dr.index.searchable import Searchable
from m2dr.index.store import Store, open_store
from m2dr.index.vectors import prefixes
from m2dr.model.checkpoint import Model, open_model
from m2dr.model.words import scaled
from m2dr.tasks.corpus import (
    WRITTEN,
    absolute,
    as_indexed,
    check_documents,
    model_for,
    name_of_corpus,
    open_bm25,
    open_corpus,
    options_of,
)
from m2dr.tasks.models import with_lengths_of_index, words_of_index
from m2dr.tasks.query import QueryEncoder, QueryEncoders, QueryPlan, plan_layers, plan_query

if TYPE_CHECKING:
    import pandas

EXACT = "exact"  # the engine that needs no index and scans the store
DEFAULT_K = 10  # documents of an answer where no number is asked for
_FILTERS = 8  # whose documents are kept open
# Shares of a score that are of no word, beside REST: of a hybrid, that its vectors' scores begin
# above 0; and of an engine with codes of few bits, what its score differs by from the vectors'.
SCALE, ROUNDING = "(scale of the vectors)", "(rounding of the index)"
_ROUNDED = 3e-6  # of a score, which float32 scores of the same vectors differ by


@dataclass(frozen=True)
class ResolvedIndex:
    """A search request with its model, its corpus and their index."""

    request: SearchRequest
    model: Model  # with the lengths of texts that the request or the index names
    corpus: str  # as stores name it
    index: IndexFolder
    folder: Path | None = None  # of an index that the request names by its folder

    @cached_property
    def state(self) -> list[tuple[int, ...]]:
        """The stamps of stores, indexes and exits when the request was resolved."""
        return self.index.state

    @property
    def card(self) -> ModelCard:
        """The model card."""
        return self.model.card

    @cached_property
    def dataset(self) -> Dataset:
        """The dataset with the texts of the documents.

        Raises:
            UserError: there is none of that name, or it holds other documents than the stores.
        """
        dataset = open_corpus(as_indexed(self.request.corpus, self.index.asked)[0])
        if self.index.layers:
            check_documents(dataset, self.index)
        return dataset

    @cached_property
    def plan(self) -> QueryPlan:
        """How queries become vectors, and the layer of the documents that they search.

        Raises:
            UserError: the model has no such layer, or the index lacks exits that were asked for.
        """
        request = self.request
        layers = request.layer, request.document_layer
        return plan_query(request, self.model, self.index, *layers)

    def encoder(self, encoders: QueryEncoders) -> QueryEncoder:
        """Return the encoder of the queries; `encoders` keep it open."""
        request = self.request
        return encoders.of(self.plan, request.runtime, request.device, request.dtype)

    def plans(self) -> dict[int, QueryPlan]:
        """Return the plans of every layer whose queries can search the documents."""
        fixed = self.request.document_layer
        documents = "trained" if fixed is None else str(fixed)
        return plan_layers(self.request, self.model, self.index, (), documents)


def resolve_index(request: SearchRequest) -> ResolvedIndex:
    """Find the model and the stores of a request, without loading weights.

    Raises:
        UserError: there is no such model, corpus or folder.
    """
    if request.index and not in_milvus(request.index):
        resolved = _resolve_folder(request, Path(request.index))
    else:
        corpus = name_of_corpus(request.corpus)
        name = request.model or model_for(corpus, request.root)
        model = _open_model(name, request, lambda: IndexFolder.found(request.root / corpus))
        card = model.card
        for layer in (request.layer, request.document_layer):
            card.check(Cut(layer or card.layers, request.dim or 1))
        index = IndexFolder.of(request.root, corpus, card.fingerprint)
        lengths = request.query_length, request.document_length
        model = with_lengths_of_index(model, index, *lengths)
        resolved = ResolvedIndex(request, model, corpus, index)
        _ = resolved.dataset  # whose documents must be those of the stores
    _ = resolved.state  # before anything of it is opened
    check_cut(resolved)
    return resolved


def check_cut(resolved: ResolvedIndex) -> None:
    """Check that the model has the layers and the dim of a request, and that they can run here.

    Raises:
        UserError: it does not, or torch is missing.
    """
    resolved.plan.check_packages()
    resolved.card.check(Cut(resolved.card.layers, resolved.request.dim or 1))


def _resolve_folder(request: SearchRequest, folder: Path) -> ResolvedIndex:
    """Resolve a request that names the folder of an index or of a store, or one above them."""
    manifest: IndexManifest | StoreManifest
    named = folder if (folder / MANIFEST).exists() else None
    if named:
        manifest, index = IndexManifest.read(folder), IndexFolder(folder.parent.parent)
        if request.funnel:
            raise UserError(f"--funnel reads a store, and --index {folder} is an index of one dim.")
        dim, engine = request.dim or manifest.dim, request.engine or manifest.engine
        request = replace(request, dim=dim, engine=engine)
    else:
        index = IndexFolder.at(folder)
        is_store = (folder / STORE).exists()
        manifest = StoreManifest.read(folder) if is_store else index.record()
    label = manifest.label
    model = _open_model(request.model or index.model_of(label), request, lambda: [index])
    if named or is_store:
        layer = manifest.layer if request.document_layer is None else request.document_layer
        runs_model = not (request.query_vectors or request.query_model)
        default = min(layer, model.card.query_layer) if runs_model else layer
        query_layer = default if request.layer is None else request.layer
        request = replace(request, document_layer=layer, layer=query_layer)
    if not request.model:
        say(f"Model: {label.model}, which encoded the documents of {folder}.")
    if request.corpus == PYDOCS:
        beside = index.path.parent  # documents that m2dr wrote, wherever index and they lie now
        is_written = (beside / WRITTEN).exists() and beside.name == manifest.corpus
        source = absolute(str(beside)) if is_written else label.source or manifest.corpus
        request = replace(request, corpus=source)
    model = with_lengths_of_index(model, index, request.query_length, request.document_length)
    return ResolvedIndex(request, model, manifest.corpus, index, named)


def _open_model(
    name: str, request: SearchRequest, indexes: Callable[[], Sequence[IndexFolder]]
) -> Model:
    """Open a model; where it is not there, layer 0 is the words of the newest index it made.

    Args:
        name: of the model.
        request: that names the layer.
        indexes: returns those of the documents, which may be of several models.

    Raises:
        UserError: it is not there, and another layer was asked for or the index has no words.
    """
    try:
        return open_model(name)
    except (UserError, ModuleNotFoundError) as error:
        newest = sorted(indexes(), key=lambda index: index.written_at)[::-1]
        stands = [each for each in map(words_of_index, newest) if each and each.name == name]
        if not stands:
            raise
        model = stands[0]
        told = (
            f"{sentence_of(error).rstrip('.')}; {model.found.path} answers at layer 0 without it."
        )
        if request.layer != 0:
            raise UserError(told) from error
        say(told)
        return model


def open_documents(resolved: ResolvedIndex) -> Searchable:
    """Open the documents of a request by its engine, funnel or Milvus server.

    Raises:
        UserError: they are not encoded or not indexed, or settings do not go together.
    """
    return _open(resolved).with_search_params(dict(resolved.request.search_params))


def _open(resolved: ResolvedIndex) -> Searchable:
    request, layer = resolved.request, resolved.plan.document_layer
    if in_milvus(request.index):
        fingerprint, store = resolved.card.fingerprint, resolved.index.layer(layer)
        return open_collection(
            request.index, resolved.corpus, fingerprint, layer, request.dim, store
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
    index = open_faiss(_find_index(resolved, store), search_params=dict(request.search_params))
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
    if resolved.plan.layer == 0 and resolved.request.device in ("auto", "cpu"):
        return "cpu"
    from m2dr.model.devices import choose_device

    return str(choose_device(resolved.request.device))


def store_of(resolved: ResolvedIndex) -> Path:
    """Return the store of the document layer, or the deepest one if no layer was named."""
    request, named = resolved.request, resolved.folder
    if named is not None and request.document_layer == IndexManifest.read(named).layer:
        return named.parent  # an index may be copied without its store
    index, layer = resolved.index, resolved.plan.document_layer
    layers = index.layers
    if layer not in layers and index.plan(layer):
        index.store(layer)  # raises, with how far it is and how to go on
    if not layers or (request.document_layer is not None and layer not in layers):
        if not layers:
            model = resolved.model.name
            raise UserError(
                f"{resolved.corpus} has no index by {model}; m2dr index corpus makes it."
            )
        there = ", ".join(map(str, layers))
        raise UserError(f"{index} has no index at layer {layer}; layers: {there}.")
    return index.layer(layer if layer in layers else max(layers))


def _find_index(resolved: ResolvedIndex, store: Path) -> Path:
    """Return the folder of the requested index, or of the best one."""
    if resolved.folder is not None:
        manifest = IndexManifest.read(resolved.folder)
        wanted = (resolved.request.document_layer, resolved.request.dim, resolved.request.engine)
        if wanted == (manifest.layer, manifest.dim, manifest.engine):
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
    folder = index_folder(store, request.dim or resolved.card.width, request.engine or "flat")
    index, dim = resolved.index, request.dim or resolved.card.width
    of = options_of(request.corpus, resolved.model.name, index.root(resolved.corpus))
    raise UserError(
        f"{folder} holds no finished index; dims: {there}. --engine exact needs none; m2dr index "
        f"corpus {of} --layer {resolved.plan.document_layer} --dim {dim} --engine "
        f"{request.engine or 'flat'} builds one."
    )


@dataclass(frozen=True)
class Hit:
    """A document of an answer."""

    rank: int
    score: float
    docid: str
    _searcher: "Searcher" = field(repr=False, compare=False)
    vector_score: float | None = None  # of a hybrid; None beyond the 1,000 best by vectors
    bm25_score: float | None = None  # of a hybrid
    _shares: Callable[[], list[dict[str, float]]] = field(default=list, repr=False, compare=False)

    def explain(self) -> dict[str, float]:
        """Return the share of each word of the query in the score, the largest first.

        The shares add up to the score. Words are as the query has them. What is no sum over words
        has a share of its own, in parentheses: all of it, where a model reads the whole query.

        Raises:
            UserError: the store of the vectors is not beside the index.
        """
        return self._shares()[self.rank - 1]

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

        Each is of the type that the file has: number, truth or text, as cells of CSV all are.

        Raises:
            UserError: the corpus is not on this machine, or has changed.
        """
        return dict(self._document.fields)

    @cached_property
    def _document(self) -> Document:
        return self._searcher.resolved.dataset.document(self.docid)


@dataclass(frozen=True, repr=False)
class Answer(Sequence[Hit]):
    """The documents of one query, best first, and the milliseconds that each step took.

    Of queries that were searched together, each took its share.
    """

    hits: tuple[Hit, ...]
    tokenise_ms: float
    encode_ms: float
    search_ms: float

    def __len__(self) -> int:
        return len(self.hits)

    def __getitem__(self, index: Any) -> Any:  # a hit, or a tuple of them
        return self.hits[index]

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a row per hit: rank, docid, score, and both scores of a hybrid."""
        require("pandas")
        import pandas

        names = ["rank", "docid", "score"]
        names += ["vector_score", "bm25_score"] * any(h.bm25_score is not None for h in self.hits)
        rows = [[getattr(hit, name) for name in names] for hit in self.hits]
        return pandas.DataFrame(rows, columns=names)

    def __repr__(self) -> str:
        rows = (f"{hit.rank:>3}  {hit.score:>8.4f}  {hit.docid}" for hit in self.hits)
        return "\n".join([f"Answer of {counted(len(self), 'hits')}", *rows])


def open_searcher(request: SearchRequest, encoders: QueryEncoders | None = None) -> "Searcher":
    """Open the index and the encoder that a request names.

    Raises:
        UserError: no such model or index, or the two do not fit; before any weight is loaded.
    """
    return Searcher(resolve_index(request), encoders)


class Searcher:
    """A cut query encoder and an open index; thread-safe.

    Attributes:
        resolved: the request with its model and stores.
        documents: the open index.
        plan: of the queries.
        encoder: of the queries.
        ask: of a search that says nothing else.
        cut: of the queries.
        warnings: what makes rankings worse than the model allows.
        describe: what is searched, in words.
    """

    def __init__(self, resolved: ResolvedIndex, encoders: QueryEncoders | None = None) -> None:
        """Open an index and the encoder of its queries.

        Args:
            resolved: the index.
            encoders: that other searchers use too.

        Raises:
            UserError: no such index, or the two do not fit; before any weight is loaded.
        """
        self.resolved, self.documents = resolved, open_documents(resolved)
        self.plan = resolved.plan
        self.ask: Ask = resolved.request
        self.cut = Cut(self.plan.layer, self.documents.dim)
        self.documents.accept(resolved.model.label(), self.cut)
        self._ranker = lru_cache(_FILTERS)(self._where)
        self._filtered = lru_cache(_FILTERS)(lambda t: self.documents.where(Filter.parse(t)))
        self.where(self.ask)
        self.warnings = self.plan.warnings(self.cut.dim, self.documents.warnings)
        self.encoder = resolved.encoder(encoders or QueryEncoders())
        self.describe = (
            f"{counted(self.documents.documents, 'documents')} of {self.documents.corpus} "
            f"(layer {self.documents.layer}), {self.plan.describe(self.cut.dim)}"
            f"{''.join(f', {note}' for note in self.blend(self.ask).notes)}"
        )

    def blend(self, ask: Ask) -> Blend:
        """Return the weights of a search; layers whose exit uses words get no others."""
        return Blend(hybrid=ask.hybrid, query_mix=ask.query_mix * self.plan.mixes)

    def where(self, ask: Ask) -> Ranker:
        """Return the open index with the filter, the weights and the minimum score of a search.

        Those that were asked for last stay open.

        Raises:
            UserError: the filter is not written as one is, names a field that the documents do not
                have, or compares one with a value of another kind; or fields are not known; or
                a hybrid has no BM25 of the same documents; or the index has no words to mix.
        """
        return self._ranker(ask.filter, self.blend(ask), ask.min_score)

    def _where(self, text: str, blend: Blend, min_score: float | None) -> Ranker:
        mix = blend.query_mix
        mixed = partial(self.plan.words.mixed, weight=mix) if mix else None
        documents = self._filtered(text) if text else self.documents
        bm25, unfit = self._bm25 if blend.hybrid else None, None
        if bm25 and text:
            fitting = self._store.matching(Filter.parse(text))
            unfit = ~np.isin(np.arange(self._store.documents), fitting)
        least = -inf if min_score is None else min_score
        return Ranker(documents, mixed, bm25, blend.hybrid, unfit, least)

    @cached_property
    def _bm25(self) -> Bm25:
        return open_bm25(self.resolved.index, self._store, lambda: self.resolved.dataset)

    @cached_property
    def _store(self) -> Store:
        store = open_store(store_of(self.resolved))
        if self.documents.manifest.docids != store.manifest.docids:
            raise UserError(f"The index has other documents than {store.folder}.")
        return store

    def explain(
        self, text: str, vector: Float32, ranking: Ranking, ask: Ask
    ) -> list[dict[str, float]]:
        """Return the shares of the words of a query in the score of each document, as `Hit` does.

        Args:
            text: of the query.
            vector: of the query [W], before words are mixed in.
            ranking: of the query.
            ask: that it was ranked by.

        Raises:
            UserError: the store of the vectors is not beside the index.
        """
        blend, store, similarity = self.blend(ask), self._store, self.resolved.card.similarity
        parts = self.encoder.parts(text, vector)
        if blend.query_mix:
            words = scaled(self.plan.words.of_documents.parts(text), blend.query_mix)
            parts = scaled(parts, 1.0)
            parts |= {name: part + parts.get(name, 0) for name, part in words.items()}
        rows_of = store.docids.find(ranking.docids)
        rows = np.array([rows_of[docid] for docid in ranking.docids], np.int64)
        documents = prefixes(store.rows(rows), self.cut.dim, similarity).astype(np.float64)
        query = np.reshape([*parts.values()], (len(parts), vector.size))[:, : self.cut.dim]
        query = query.astype(np.float64)
        if similarity == "cosine":  # its prefix has length one, and so the sum of the parts
            query /= max(float(np.linalg.norm(query.sum(axis=0))), 1e-30)
        by_words = query @ documents.T  # [parts, hits]
        factor, bm25_factor, offset = ranking.scale
        bm25 = self._bm25.parts(text, rows) if blend.hybrid else {}
        explained = []
        for n, score in enumerate(ranking.scores):
            shares = defaultdict[str, float](float)
            if not ranking.parts or ranking.parts[n][0] is not None:
                shares |= zip(parts, (factor * by_words[:, n]).tolist(), strict=True)
                shares[SCALE] = offset
            for name, scores in bm25.items():
                shares[name] += bm25_factor * float(scores[n])
            off = score - sum(shares.values())
            if abs(off) > _ROUNDED * max(1, abs(score)):
                shares[ROUNDING] = off
            ordered = sorted(shares.items(), key=lambda item: (item[0][0] == "(", -item[1]))
            explained.append({name: share for name, share in ordered if share or name[0] != "("})
        return explained

    def search(self, text: str, k: int | None = None) -> Answer:
        """Return the best `k` documents of one query."""
        return self.answers([text], k)[0]

    def answers(
        self,
        texts: Sequence[str],
        k: int | None = None,
        ask: Ask | None = None,
    ) -> list[Answer]:
        """Return the best `k` documents of each query, in the order of the queries.

        Args:
            texts: queries.
            k: documents per query, where these are not those of `ask`; 10 by default, or all
                where there are fewer.
            ask: what is asked; that of the searcher when None. Fewer than `k` may fit a filter.

        Raises:
            UserError: a query is empty, k is below 1, or `where` refuses the filter.
        """
        if not texts:
            return []
        ask = ask or self.ask
        k = ask.k if k is None else k
        run, vectors, spans = self._timed_run(texts, k, self.where(ask))
        times = [1000 * span / len(texts) for span in spans]
        answers = []
        for text, vector, ranking in zip(texts, vectors, run.rankings.values(), strict=True):
            shares = cache(partial(self.explain, text, vector, ranking, ask))
            if ask.explain:
                shares()
            parts = ranking.parts or [(None, None)] * len(ranking.docids)
            ranked = zip(ranking.scores, ranking.docids, parts, strict=True)
            hits = (
                Hit(n, score, docid, self, *both, shares)
                for n, (score, docid, both) in enumerate(ranked, 1)
            )
            answers.append(Answer(tuple(hits), *times))
        return answers

    def run(self, queries: Sequence[Query], k: int) -> Run:
        """Rank for many queries at once."""
        texts = [query.text for query in queries]
        ids = [query.id for query in queries]
        drops_own = self.resolved.dataset.drops_own_document
        drop = {name: name for name in ids} if drops_own else None
        return self._timed_run(texts, k, self.where(self.ask), ids, drop)[0]

    def vectors(self, texts: Sequence[str]) -> Float32:
        """Return the vectors of queries, [Q, width], not normalised; given ones in order."""
        return self.encoder.encode(texts)

    def _timed_run(
        self,
        texts: Sequence[str],
        k: int | None,
        documents: Ranker,
        ids: Sequence[str] = (),
        drop: Mapping[str, str] | None = None,
    ) -> tuple[Run, Float32, tuple[float, float, float]]:
        """Return the run of queries, their vectors [Q, W], and the seconds of each step.

        The steps are tokenising, encoding and searching.

        Args:
            texts: of the queries.
            k: how many documents for each; None: DEFAULT_K of them, or fewer.
            documents: that are searched.
            ids: of the queries, by which given vectors are found; in order without them.
            drop: per id, a docid to leave out.
        """
        if not all(text.strip() for text in texts):
            raise UserError("A query is empty; give it a word to search for.")
        start = time.perf_counter()
        rows = self.encoder.tokenize(texts)
        tokenised = time.perf_counter()
        vectors = self.encoder.embed(rows, texts, ids)
        encoded = time.perf_counter()
        if cut := self.encoder.cut(rows, texts):
            warnings.warn(cut, UserWarning, stacklevel=4)
        names = ids or [str(number) for number in range(len(texts))]
        run = documents.ranked(names, vectors, DEFAULT_K if k is None else k, drop, texts)
        ranked = time.perf_counter()
        return run, vectors, (tokenised - start, encoded - tokenised, ranked - encoded)
