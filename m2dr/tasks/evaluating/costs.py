"""Measure what each cut of a model costs on this machine: latency, encoding speed, bytes, work.

Shapes: Q queries.
"""

import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
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
from m2dr.index.faiss import FaissIndex, build_index, open_faiss
from m2dr.index.ranker import Ranker
from m2dr.index.store import Store
from m2dr.model.encoder import DualEncoder
from m2dr.tasks.corpus import open_bm25, open_corpus
from m2dr.tasks.evaluating.plans import encode_documents, grid_plans
from m2dr.tasks.query import QueryEncoder, QueryEncoders, QueryPlan, plan_of_model

Item = TypeVar("Item")

TOP_K = 10  # documents that a timed search returns
WARM_UP = 3  # queries that do not count


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
    encoders = {n: opened.of(plans[n], *how) for n in reversed(layers)}
    sources = {plan.document_layer for plan in plans.values()} & {*range(1, card.query_layer + 1)}
    of_documents = {n: opened.of(plan_of_model(model, n), *how) for n in sources}
    machine = _machine(encoders)
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
    times = query_times(encoders, searched, texts, rounds)
    rows = _spread(range(dataset.document_count), documents)
    contents = [dataset.document_at(row).content for row in rows]
    speeds = document_speeds(of_documents, contents, rounds)
    lengths = encoders[max(layers)].lengths(texts)
    work, parameters = {}, {}
    for layer, encoder in encoders.items():
        words = encoder.plan.words if encoder.plan.mix else None
        mixed = words.width if words else 0
        each = [encoder.multiply_adds(n) + n * mixed for n in encoder.lengths(texts)]
        work[layer] = round(float(np.mean(each)))
        sizes = words.table.size + words.weights.size if words else 0
        parameters[layer] = encoder.parameters + int(sizes)
    cells = {}
    for cut in times:
        p50, p95 = np.percentile(times[cut], [50, 95])
        cells[cut] = costs.Cost(
            latency_p50_ms=float(p50),
            latency_p95_ms=float(p95),
            documents_per_second=speeds.get(plans[cut.layer].document_layer, 0.0),
            bytes_per_document=indexes[cut.dim, cut.code].faiss.sa_code_size() + bm25_bytes,
            multiply_adds=work[cut.layer] + costs.search_multiply_adds(store.documents, cut.dim),
            parameters=parameters[cut.layer],
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


def _machine(encoders: Mapping[int, QueryEncoder]) -> str:
    """Return the processor, its cores, and the device and dtype of the layers that run."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    machine = f"{platform.processor() or platform.machine()}, {counted(cores, 'cores')}"
    if runs := [each.opened.runtime for each in encoders.values() if each.opened]:
        runtime = cast(DualEncoder, runs[0])
        dtype = str(next(runtime.parameters()).dtype).removeprefix("torch.")
        machine += f", encoder on {runtime.device.type} in {dtype}"
    return machine


def _opened(store: Store, dim: int, code: str, folder: Path) -> FaissIndex:
    """Build the engine of a code in a folder, and open it; with "+" it scores again."""
    engine = CODES[code.removesuffix(AGAIN)]
    rescore = {} if engine == "flat" else {"rescore": 10 * code.endswith(AGAIN)}
    return open_faiss(build_index(store, dim, engine, folder=folder), store, rescore)


def query_times(
    encoders: Mapping[int, QueryEncoder],
    indexes: Mapping[tuple[int, str], Ranker],
    texts: Sequence[str],
    rounds: int,
) -> dict[Cut, Float64]:
    """Return the milliseconds of each query at each cut, [Q]: tokenise, encode and search.

    Queries run one at a time. Encoding at a layer and searching at a dim are timed separately and
    added per query, in shuffled order: a noisy moment of the machine favours no cut, and caches of
    the processor are as cold as in service. The median of the rounds of a query counts.

    Args:
        encoders: of queries, by layer.
        indexes: by dim and code.
        texts: Q queries, at least one.
        rounds: how often each query is timed.
    """

    def encode(layer: int, query: int) -> Float32:
        plan, text = encoders[layer].plan, texts[query : query + 1]
        return plan.mixed(encoders[layer].encode(text), text, plan.mix)

    def search(key: tuple[int, str], query: int) -> None:
        indexes[key].ranked(["query"], vectors[query : query + 1], TOP_K, texts=[texts[query]])

    ordered, keys = sorted(encoders), sorted(indexes)
    vectors = np.concatenate([encode(ordered[-1], query) for query in range(len(texts))])
    steps: list[tuple[Callable[[Any, int], object], Any]] = [
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

    def encode(layer: int, _: int, most: int | None = None) -> None:
        opened = encoders[layer].opened
        assert opened is not None, "documents are encoded by layers"
        opened.vectors(documents[:most], "document", [layer])

    for layer in encoders:
        encode(layer, 0, WARM_UP)
    times = _interleaved([(encode, layer) for layer in encoders], 1, rounds, 0, "passes")
    return {n: float(1000 * len(documents) / ms) for n, (ms,) in zip(encoders, times, strict=True)}


def _spread(items: Sequence[Item], count: int) -> list[Item]:
    """Return at most `count` items, evenly spread from the first to the last."""
    count = min(count, len(items))
    return [items[step * (len(items) - 1) // max(count - 1, 1)] for step in range(count)]


def _interleaved(
    steps: Sequence[tuple[Callable[[Any, int], object], Any]],
    queries: int,
    rounds: int,
    warm_up: int = WARM_UP,
    unit: str = "queries",
) -> Float64:
    """Return the median milliseconds of each step for each query, [steps, Q]."""
    for step, of in steps:
        for query in range(min(warm_up, queries)):
            step(of, query)
    generator = np.random.default_rng(13)
    times = np.empty((rounds, len(steps), queries))
    with progress("Timing", rounds * queries, unit) as advance:
        for taken in times:
            for query in generator.permutation(queries):
                for position in generator.permutation(len(steps)):
                    step, of = steps[position]
                    taken[position, query] = 1000 * _seconds(step, of, int(query))
                advance(1)
    typical: Float64 = np.median(times, axis=0)
    return typical


def _seconds(step: Callable[..., object], *arguments: Any) -> float:
    begun = time.perf_counter()
    step(*arguments)
    return time.perf_counter() - begun
