"""Measure what each cut of a model costs on this machine: latency, encoding speed, bytes, work.

Shapes: Q queries.
"""

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from m2dr.core.arrays import Float64
from m2dr.core.errors import UserError, counted
from m2dr.core.progress import progress, say
from m2dr.core.records import Cut, ModelCard
from m2dr.core.requests import QUERY_MIX, EvaluateRequest, IndexRequest, of_queries
from m2dr.evaluation import costs
from m2dr.index.bm25 import BM25, Hybrid
from m2dr.index.codes import AGAIN, CODES
from m2dr.index.exit_files import fitting_exits, no_exits
from m2dr.index.faiss import FaissIndex, build_index, open_index
from m2dr.index.manifest import store_folder
from m2dr.index.searchable import Ranker
from m2dr.index.store import Store
from m2dr.model import checkpoint
from m2dr.model.backbones import backbone_of, relative_rows
from m2dr.model.checkpoint import read_card
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.model.encoder import Encoder, exit_work, parameters_of, share_weights, table_work
from m2dr.model.tokenizer import tokenize
from m2dr.model.words import WordTable
from m2dr.tasks.corpus import open_bm25, open_corpus
from m2dr.tasks.embed import embed_texts, embed_tokens
from m2dr.tasks.evaluating.rank import pairing
from m2dr.tasks.indexing.index import encode_corpus
from m2dr.tasks.models import cuts_of, layers_by_index, names_of, through_exits
from m2dr.tasks.query import QueryEncoder

T = TypeVar("T")

FOUND = 10  # documents that a timed search returns
WARM_UP = 3  # queries that do not count


@dataclass(frozen=True)
class Encoders:
    """A cut encoder for each of some layers; of vectors without a model, words alone.

    With a bridge, queries at the documents' last layer are those of another model.
    """

    by_layer: Mapping[int, Encoder]
    tokenizer: Any  # a ModelTokenizer; None without a model
    words: WordTable | None = None  # layer 0
    mixed: Sequence[int] = ()  # layers whose queries words are added to
    bridge: QueryEncoder | None = None
    bridged: int | None = None  # the layer whose queries pass the bridge

    @property
    def deepest(self) -> Encoder:
        """The encoder with the most layers."""
        return self.by_layer[max(self.by_layer)]

    def lengths(self, texts: Sequence[str], layer: int | None = None) -> list[int]:
        """Return the tokens of queries at a layer, or their known words where there is no model."""
        if self.bridge is not None and layer == self.bridged:
            return [len(row) for row in self.bridge.tokenize(texts)]
        if not self.by_layer and self.words is not None:
            return [len({*self.words.tokenize(text)}) for text in texts]
        return [len(row) for row in tokenize(self.deepest.card, self.tokenizer, texts, "query")]

    def multiply_adds(self, layer: int, texts: Sequence[str]) -> float:
        """Return the multiply-adds that encode a query at a layer: their mean over texts."""
        tokens = self.lengths(texts, layer)
        if self.bridge is not None and layer == self.bridged:
            return float(np.mean([work_over_bridge(self.bridge, length) for length in tokens]))
        shape = self.shape(layer)
        return float(np.mean([shape.encode(layer, length) for length in tokens]))

    def shape(self, layer: int) -> costs.Shape:
        """Return the sizes from which the multiply-adds of a layer are computed."""
        if not self.by_layer and self.words is not None:
            width = self.words.width
            return costs.Shape(width, 0, 0, 0, gated=False, tables={0: width})
        shape = shape_of(self.by_layer[layer])
        tables = dict.fromkeys(self.mixed, shape.width)
        return replace(shape, tables={**shape.tables, **tables})

    def parameters(self, layer: int) -> int:
        """Return the number of parameters in memory to encode queries at a layer."""
        if self.bridge is not None and layer == self.bridged:
            model, words, matrix = _over_bridge(self.bridge)
            beside = int(words.table.size + words.weights.size)
            return parameters_of(model, self.bridge.layer) + matrix + beside
        own = int(self.words.table.size + self.words.weights.size) if self.words else 0
        if layer == 0 and own:
            return own
        return parameters_of(self.by_layer[layer], layer) + own * (layer in self.mixed)


def measure_costs(
    request: EvaluateRequest, out: Path, queries: int = 50, documents: int = 64, rounds: int = 3
) -> costs.Costs:
    """Measure every cut, and write `costs.json` into `out`.

    A latency is that of one query alone: tokenise, encode by the layers of the cut, search a
    flat index of its dim; its percentiles are over queries.

    Args:
        request: of one model and one corpus.
        out: a folder of results.
        queries: to time, evenly spread over the split.
        documents: to time encoding, evenly spread over the corpus.
        rounds: of each measurement; the median counts.

    Raises:
        UserError: the model has no such cut, the corpus or split is not there, or holds no query.
    """
    (model,), (corpus,) = request.models, request.corpora
    card = read_card(model, request.query_length, request.document_length)
    dataset = open_corpus(corpus)
    folder = store_folder(request.root, dataset.name, card.fingerprint, card.layers)
    exits, by_index, own = None, layers_by_index(card, request.exits), fitting_exits(folder)
    if by_index and request.documents in ("trained", "last"):
        exits = own
    if exits is None:
        if request.exits == "index":
            raise no_exits(folder.parent)
        by_index = ()
    cuts = cuts_of(through_exits(card, by_index), request.layers, request.dims)
    if request.query_model:
        cuts = tuple(sorted({*cuts, *cuts_of(card, (card.layers,), request.dims)}))
    layers = sorted({cut.layer for cut in cuts})
    texts = _spread([query.text for query in dataset.queries(request.split)], queries)
    if not texts:
        raise UserError(f"{corpus} has no query in {request.split} to time.")
    sources = pairing(card, layers, request.documents, by_index).layers
    encoders = open_encoders(
        model,
        {layer: exits if layer in by_index else None for layer in {*sources, *sources.values()}},
        request.device,
        of_queries(request.dtype),
    )
    if request.query_mix:
        if own is None:
            raise no_exits(folder.parent)
        chosen = [n for n in layers if n not in by_index and card.takes_words(n, sources[n])]
        encoders = replace(encoders, words=encoders.words or WordTable.open(own), mixed=chosen)
    for encoder in encoders.by_layer.values():
        encoder.card = encoder.card.with_lengths_of(card)
    encoders = _with_bridge(encoders, request, card, own)
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    machine = f"{platform.processor() or platform.machine()}, {counted(cores, 'cores')}"
    if encoders.by_layer:
        dtype = str(next(encoders.deepest.parameters()).dtype).removeprefix("torch.")
        machine += f", encoder on {encoders.deepest.device.type} in {dtype}"
    say(f"Timing {counted(len(cuts), 'cuts')} of {model} on {machine}")
    # Of which layer the documents are changes no time, so those of one are searched. Indexes are
    # built in a temporary folder: only those that somebody asked for stay with the vectors.
    shared = ("root", "device", "dtype", "query_length", "document_length")
    index = IndexRequest(corpus, model, **{name: getattr(request, name) for name in shared})
    store = encode_corpus(index, model, card, [sources[max(layers)]])[0]
    with tempfile.TemporaryDirectory(prefix="m2dr-costs-") as scratch:
        indexes = {
            (dim, code): _opened(store, dim, code, Path(scratch))
            for dim in sorted({cut.dim for cut in cuts})
            for code in request.codes
        }
    searched: Mapping[tuple[int, str], Ranker] = indexes
    bm25_bytes = 0
    if request.hybrid:
        bm25 = open_bm25(store, lambda: dataset)
        bm25_bytes = (store.folder.parent / BM25).stat().st_size // store.documents
        searched = {key: Hybrid(each, bm25, request.hybrid) for key, each in indexes.items()}
    notes = list(request.notes)
    if request.query_model:
        notes.append(f"queries of layer {card.layers} by {names_of([request.query_model])[0]}")
    machine = "; ".join([machine, *notes])
    times = query_times(encoders, layers, searched, texts, rounds)
    rows = _spread(range(dataset.document_count), documents)
    contents = [dataset.document_at(row).content for row in rows]
    speeds = document_speeds(encoders, sources.values(), contents, rounds)
    lengths = encoders.lengths(texts)
    work = {layer: round(encoders.multiply_adds(layer, texts)) for layer in layers}
    cells = {}
    for cut in times:
        p50, p95 = np.percentile(times[cut], [50, 95])
        cells[cut] = costs.Cost(
            latency_p50_ms=float(p50),
            latency_p95_ms=float(p95),
            documents_per_second=speeds[sources[cut.layer]],
            bytes_per_document=indexes[cut.dim, cut.code].faiss.sa_code_size() + bm25_bytes,
            multiply_adds=work[cut.layer] + costs.search_multiply_adds(store.documents, cut.dim),
            parameters=encoders.parameters(cut.layer),
        )
    measured = costs.Costs(
        model=model,
        fingerprint=card.fingerprint,
        corpus=corpus,
        whole=card.full,
        documents_from=("last" if by_index else card.documents)
        if request.documents == "trained"
        else request.documents,
        documents=store.documents,
        queries=len(lengths),
        query_tokens=float(np.mean(lengths)),
        kept=", ".join(request.codes),
        machine=machine,
        cells=cells,
    )
    costs.write_costs(measured, out)
    return measured


def _with_bridge(
    encoders: Encoders, request: EvaluateRequest, card: ModelCard, exits: Path | None
) -> Encoders:
    """Let queries of the last layer be those of another model, where one was asked for."""
    if not request.query_model:
        return encoders
    if exits is None:
        raise UserError("--query-model was given, and the index has no bridge; index fit makes it.")
    bridge = QueryEncoder.over_bridge(
        request.query_model, card, exits, request.device, request.dtype
    )
    return replace(encoders, bridge=bridge, bridged=card.layers)


def _opened(store: Store, dim: int, code: str, folder: Path) -> FaissIndex:
    """Build the engine of a code in a folder, and open it; with "+" it scores again."""
    engine = CODES[code.removesuffix(AGAIN)]
    rescore = {} if engine == "flat" else {"rescore": 10 * code.endswith(AGAIN)}
    return open_index(build_index(store, dim, engine, folder=folder), store, rescore)


def work_over_bridge(encoder: QueryEncoder, tokens: int) -> int:
    """Return the multiply-adds of a query of so many tokens that passes a bridge.

    They are those of its model, of the bridge's matrix, and of a row of the table per word.
    """
    model, words, matrix = _over_bridge(encoder)
    return shape_of(model).encode(encoder.layer, tokens) + matrix + tokens * words.width


def _over_bridge(encoder: QueryEncoder) -> tuple[Encoder, WordTable, int]:
    """Return the model of the queries, the words beside it, and the numbers of the bridge."""
    words = encoder.bridge
    assert words is not None, "a bridge was opened"
    assert words.bridge is not None, "the index was fitted for this model"
    assert encoder.opened is not None, "a bridge is of a model with layers"
    return cast(Encoder, encoder.opened.runtime), words, int(words.bridge.size)


def shape_of(encoder: Encoder) -> costs.Shape:
    """Return the sizes from which the multiply-adds of an encoder are computed."""
    config = encoder.transformer.config
    row = backbone_of(config)
    heads = int(config.num_attention_heads)
    size = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    return costs.Shape(
        width=int(config.hidden_size),
        inner=int(getattr(config, row.inner_key)),
        query_width=heads * size,
        key_width=int(getattr(config, "num_key_value_heads", None) or heads) * size,
        gated=row.is_gated(config),
        relative=relative_rows(config),
        exits=exit_work(encoder),
        tables=table_work(encoder),
    )


def open_encoders(
    model: str, exits: Mapping[int, Path | None], device: str, dtype: str
) -> Encoders:
    """Load a cut encoder for each of some layers; all share the weights of the deepest one.

    Args:
        model: folder or id.
        exits: of each layer, the folder of the exits of an index, or None for the model's own.
        device: as `choose_device` takes it.
        dtype: as `choose_dtype` takes it.
    """
    if not read_card(model).query_layer:
        return Encoders({}, None, WordTable.open(exits[0] or Path(model)))
    torch_device = choose_device(device)
    torch_dtype = choose_dtype(dtype, torch_device)
    encoders: dict[int, Encoder] = {}
    for layer in sorted(exits, reverse=True):
        loaded, tokenizer = checkpoint.load(model, layer, torch_device, torch_dtype, exits[layer])
        for deeper in encoders.values():
            share_weights(loaded, deeper)
        encoders[layer] = loaded
    fitted = encoders[0].fitted if 0 in encoders else None
    return Encoders(encoders, tokenizer, fitted.words if fitted is not None else None)


def query_times(
    encoders: Encoders,
    layers: Iterable[int],
    indexes: Mapping[tuple[int, str], Ranker],
    texts: Sequence[str],
    rounds: int,
) -> dict[Cut, Float64]:
    """Return the milliseconds of each query at each cut, [Q]: tokenise, encode and search.

    Queries run one at a time. Encoding at a layer and searching at a dim are timed separately and
    added per query, in shuffled order: a noisy moment of the machine favours no cut, and caches of
    the processor are as cold as in service. The median of the rounds of a query counts.

    Args:
        encoders: of `layers`.
        layers: of the queries.
        indexes: by dim and code.
        texts: Q queries, at least one.
        rounds: how often each query is timed.
    """
    if encoders.words is not None:
        vectors = encoders.words.embed(texts)
    else:
        deepest, tokenizer = encoders.deepest, encoders.tokenizer
        vectors = embed_texts(deepest, tokenizer, texts, "query", [max(layers)])[0]

    def encode(layer: int, query: int) -> None:
        if encoders.bridge is not None and layer == encoders.bridged:
            asked = [texts[query]]
            encoders.bridge.embed(encoders.bridge.tokenize(asked), asked)
            return
        if layer == 0 and encoders.words is not None:
            encoders.words.embed([texts[query]])
            return
        encoder = encoders.by_layer[layer]
        rows = tokenize(encoder.card, encoders.tokenizer, [texts[query]], "query")
        own = [texts[query]]
        (vectors,) = embed_tokens(encoder, rows, encoders.tokenizer.pad_id, [layer], texts=own)
        if encoders.words is not None and layer in encoders.mixed:
            encoders.words.mixed(vectors, own, QUERY_MIX)

    def search(key: tuple[int, str], query: int) -> None:
        indexes[key].ranked(["query"], vectors[query : query + 1], FOUND, texts=[texts[query]])

    known_layers, keys = sorted(set(layers)), sorted(indexes)
    steps: list[tuple[Callable[[Any, int], None], Any]] = [
        *((encode, layer) for layer in known_layers),
        *((search, key) for key in keys),
    ]
    times = _interleaved(steps, len(texts), rounds)
    encoding = dict(zip(known_layers, times[: len(known_layers)], strict=True))
    searching = dict(zip(keys, times[len(known_layers) :], strict=True))
    return {Cut(n, *key): encoding[n] + searching[key] for n in known_layers for key in keys}


def document_speeds(
    encoders: Encoders, layers: Iterable[int], documents: Sequence[str], rounds: int
) -> dict[int, float]:
    """Return the documents per second that each of `layers` encodes, in batches.

    Layers come in shuffled order, and the median of the rounds of a layer counts.
    """
    known = sorted(set(layers))
    if not encoders.by_layer:
        return dict.fromkeys(known, 0.0)
    times = np.empty((rounds, len(known)))
    generator = np.random.default_rng(13)

    def encode(layer: int, texts: Sequence[str]) -> None:
        encoder = encoders.by_layer[layer]
        embed_texts(encoder, encoders.tokenizer, texts, "document", [layer])

    for layer in known:
        encode(layer, documents[:WARM_UP])
    with progress("Timing", rounds * len(known) * len(documents), "documents") as advance:
        for taken in times:
            for position in generator.permutation(len(known)):
                taken[position] = _seconds(encode, known[position], documents)
                advance(len(documents))
    rates = len(documents) / np.median(times, axis=0)
    return dict(zip(known, map(float, rates), strict=True))


def _spread(items: Sequence[T], count: int) -> list[T]:
    """Return at most `count` items, evenly spread from the first to the last."""
    kept = min(count, len(items))
    return [items[place * (len(items) - 1) // max(kept - 1, 1)] for place in range(kept)]


def _interleaved(
    steps: Sequence[tuple[Callable[[Any, int], None], Any]], queries: int, rounds: int
) -> Float64:
    """Return the median milliseconds of each step for each query, [steps, Q]."""
    for step, of in steps:
        for query in range(min(WARM_UP, queries)):
            step(of, query)
    generator = np.random.default_rng(13)
    times = np.empty((rounds, len(steps), queries))
    with progress("Timing", rounds * queries, "queries") as advance:
        for taken in times:
            for query in generator.permutation(queries):
                for position in generator.permutation(len(steps)):
                    step, of = steps[position]
                    taken[position, query] = 1000 * _seconds(step, of, int(query))
                advance(1)
    typical: Float64 = np.median(times, axis=0)
    return typical


def _seconds(step: Callable[..., None], *arguments: Any) -> float:
    begun = time.perf_counter()
    step(*arguments)
    return time.perf_counter() - begun
