"""Measure what each cut of a model costs on this machine: latency, encoding speed, bytes, work.

Shapes: Q queries.
"""

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from m2dr.core.arrays import Float32, Float64
from m2dr.core.errors import UserError, counted
from m2dr.core.progress import progress, say
from m2dr.core.records import Cut, default_dims
from m2dr.core.requests import EvaluateRequest, of_queries
from m2dr.evaluation import costs
from m2dr.index.codes import AGAIN, CODES
from m2dr.index.faiss import FaissIndex, build_index, open_index
from m2dr.index.ranker import Ranker
from m2dr.index.store import Store
from m2dr.model.encoder import Encoder
from m2dr.tasks.corpus import open_bm25, open_corpus
from m2dr.tasks.evaluating.plans import encode_documents, grid_plans
from m2dr.tasks.query import QueryEncoder, QueryEncoders, QueryPlan, plan_of_model

Item = TypeVar("Item")

TOP_K = 10  # documents that a timed search returns
WARM_UP = 3  # queries that do not count


@dataclass(frozen=True)
class Queries:
    """The encoders of queries of a grid, by layer."""

    by_layer: Mapping[int, QueryEncoder]

    def encode(self, layer: int, text: str) -> Float32:
        """Return the vector of a query [1, W]."""
        encoder = self.by_layer[layer]
        plan, texts = encoder.plan, [text]
        return plan.mixed(encoder.encode(texts), texts, plan.mix)

    def multiply_adds(self, layer: int, texts: Sequence[str]) -> int:
        """Return the multiply-adds that encode a query at a layer: their mean over texts."""
        encoder = self.by_layer[layer]
        mixed = encoder.plan.words.width if encoder.plan.mix else 0
        work = [encoder.multiply_adds(n) + n * mixed for n in encoder.lengths(texts)]
        return round(float(np.mean(work)))

    def parameters(self, layer: int) -> int:
        """Return the number of parameters in memory to encode queries at a layer."""
        encoder = self.by_layer[layer]
        words = encoder.plan.words if encoder.plan.mix else None
        mixed = int(words.table.size + words.weights.size) if words else 0
        return encoder.parameters + mixed


def timed_plans(plans: Mapping[int, QueryPlan]) -> dict[int, QueryPlan]:
    """Return the plans whose encoder is known, and can be timed.

    Raises:
        UserError: there is none.
    """
    found = {layer: plan for layer, plan in plans.items() if plan.source != "given"}
    if not found:
        raise UserError("--costs times the query encoder, and --query-vectors leaves none to time.")
    return found


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
    (name,), (corpus,) = request.models, request.corpora
    dataset = open_corpus(corpus)
    grid_of = grid_plans(request, name, dataset)
    plans = timed_plans(grid_of.by_layer)
    model, layers = plans[max(plans)].model, list(plans)
    card = model.card
    dims = sorted({card.check(Cut(card.layers, dim)).dim for dim in request.dims})
    dims = dims or [*default_dims(card.width)]
    texts = _spread([query.text for query in dataset.queries(request.split)], queries)
    if not texts:
        raise UserError(f"{corpus} has no query in {request.split} to time.")
    stores = encode_documents(request, corpus, grid_of)
    opened, how = QueryEncoders(), ("torch", request.device, of_queries(request.dtype))
    encoders = Queries({n: opened.of(plans[n], *how) for n in reversed(layers)})
    sources = {plan.document_layer for plan in plans.values()} & {*range(1, card.query_layer + 1)}
    of_documents = {n: opened.of(plan_of_model(model, n), *how) for n in sources}
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    machine = f"{platform.processor() or platform.machine()}, {counted(cores, 'cores')}"
    if runs := [each.opened.runtime for each in encoders.by_layer.values() if each.opened]:
        runtime = cast(Encoder, runs[0])
        dtype = str(next(runtime.parameters()).dtype).removeprefix("torch.")
        machine += f", encoder on {runtime.device.type} in {dtype}"
    cuts = [Cut(layer, dim) for layer in layers for dim in dims]
    say(f"Timing {counted(len(cuts), 'cuts')} of {model} on {machine}")
    # Search time does not depend on the documents' layer, so one store is enough. Indexes are built
    # in a temporary folder: only those that somebody asked for stay with the vectors.
    store = stores[plans[max(layers)].document_layer]
    with tempfile.TemporaryDirectory(prefix="m2dr-costs-") as scratch:
        indexes = {
            (dim, code): _opened(store, dim, code, Path(scratch))
            for dim in dims
            for code in request.codes
        }
    bm25, bm25_bytes = None, 0
    if request.hybrid:
        bm25 = open_bm25(grid_of.index, store, lambda: dataset)
        bm25_bytes = grid_of.index.bm25.stat().st_size // store.documents
    notes = [f"queries of layer {n} are {plan.origin}" for n, plan in plans.items() if plan.origin]
    machine = "; ".join([machine, *request.notes, *notes])
    searched = {key: Ranker(each, None, bm25, request.hybrid) for key, each in indexes.items()}
    times = query_times(encoders, layers, searched, texts, rounds)
    rows = _spread(range(dataset.document_count), documents)
    contents = [dataset.document_at(row).content for row in rows]
    speeds = document_speeds(of_documents, contents, rounds)
    lengths = encoders.by_layer[max(layers)].lengths(texts)
    work = {layer: encoders.multiply_adds(layer, texts) for layer in layers}
    cells = {}
    for cut in times:
        p50, p95 = np.percentile(times[cut], [50, 95])
        cells[cut] = costs.Cost(
            latency_p50_ms=float(p50),
            latency_p95_ms=float(p95),
            documents_per_second=speeds.get(plans[cut.layer].document_layer, 0.0),
            bytes_per_document=indexes[cut.dim, cut.code].faiss.sa_code_size() + bm25_bytes,
            multiply_adds=work[cut.layer] + costs.search_multiply_adds(store.documents, cut.dim),
            parameters=encoders.parameters(cut.layer),
        )
    measured = costs.Costs(
        model=name,
        fingerprint=card.fingerprint,
        corpus=corpus,
        whole=card.full,
        documents_from=("last" if any(plan.maps for plan in plans.values()) else card.documents)
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


def _opened(store: Store, dim: int, code: str, folder: Path) -> FaissIndex:
    """Build the engine of a code in a folder, and open it; with "+" it scores again."""
    engine = CODES[code.removesuffix(AGAIN)]
    rescore = {} if engine == "flat" else {"rescore": 10 * code.endswith(AGAIN)}
    return open_index(build_index(store, dim, engine, folder=folder), store, rescore)


def query_times(
    encoders: Queries,
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
    deepest = max(layers)
    vectors = np.concatenate([encoders.encode(deepest, text) for text in texts])

    def encode(layer: int, query: int) -> None:
        encoders.encode(layer, texts[query])

    def search(key: tuple[int, str], query: int) -> None:
        indexes[key].ranked(["query"], vectors[query : query + 1], TOP_K, texts=[texts[query]])

    ordered, keys = sorted(set(layers)), sorted(indexes)
    steps: list[tuple[Callable[[Any, int], None], Any]] = [
        *((encode, layer) for layer in ordered),
        *((search, key) for key in keys),
    ]
    times = _interleaved(steps, len(texts), rounds)
    encoding = dict(zip(ordered, times[: len(ordered)], strict=True))
    searching = dict(zip(keys, times[len(ordered) :], strict=True))
    return {Cut(n, *key): encoding[n] + searching[key] for n in ordered for key in keys}


def document_speeds(
    encoders: Mapping[int, QueryEncoder], documents: Sequence[str], rounds: int
) -> dict[int, float]:
    """Return the documents per second that each of some layers encodes, in batches.

    Layers come in shuffled order, and the median of the rounds of a layer counts.
    """
    layers = sorted(encoders)
    times = np.empty((rounds, len(layers)))
    generator = np.random.default_rng(13)

    def encode(layer: int, texts: Sequence[str]) -> None:
        opened = encoders[layer].opened
        assert opened is not None, "documents are encoded by layers"
        opened.vectors(texts, "document", [layer])

    for layer in layers:
        encode(layer, documents[:WARM_UP])
    with progress("Timing", rounds * len(layers) * len(documents), "documents") as advance:
        for taken in times:
            for position in generator.permutation(len(layers)):
                taken[position] = _seconds(encode, layers[position], documents)
                advance(len(documents))
    rates = len(documents) / np.median(times, axis=0)
    return dict(zip(layers, map(float, rates), strict=True))


def _spread(items: Sequence[Item], count: int) -> list[Item]:
    """Return at most `count` items, evenly spread from the first to the last."""
    count = min(count, len(items))
    return [items[step * (len(items) - 1) // max(count - 1, 1)] for step in range(count)]


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
