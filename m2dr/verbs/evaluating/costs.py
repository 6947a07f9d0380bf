"""What every cut of a model costs on this machine: query latency, encoding speed, bytes, work."""

import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from m2dr.errors import UserError, counted
from m2dr.evaluate.costs import (
    Cost,
    Costs,
    Shape,
    bytes_per_document,
    search_multiply_adds,
    write_costs,
)
from m2dr.index.engines import build_index, open_index
from m2dr.model import checkpoint
from m2dr.model.backbones import backbone_of
from m2dr.model.counts import exit_work, parameters_of, table_work
from m2dr.model.encoder import Encoder
from m2dr.records.card import ModelCard
from m2dr.records.cut import Cut
from m2dr.text.collection import Dataset
from m2dr.verbs.corpora import open_corpus
from m2dr.verbs.evaluating.timing import (
    Encoders,
    Floats,
    document_speeds,
    open_encoders,
    query_times,
)
from m2dr.verbs.indexing.index import encode_corpus
from m2dr.verbs.indexing.request import INDEXES, IndexRequest
from m2dr.verbs.models import cuts_of, document_layer
from m2dr.verbs.progress import say

T = TypeVar("T")


@dataclass(frozen=True)
class CostsRequest:
    """Whose costs are measured, and how thoroughly."""

    model: str
    corpus: str  # its documents are searched
    split: str = "test"  # its queries are timed
    layers: tuple[int, ...] = ()  # empty: all
    dims: tuple[int, ...] = ()  # empty: powers of two from 8, and the full width
    queries: int = 50  # evenly spread over the split
    documents: int = 64  # encoded to time encoding, evenly spread over the corpus
    rounds: int = 3  # of each measurement; the median counts
    root: Path = INDEXES
    device: str = "auto"
    dtype: str = "auto"


def measure_costs(request: CostsRequest, out: Path | None = None) -> Costs:
    """Measure every cut, and write `costs.json` into `out`.

    A latency is that of one query alone: tokenise, encode by the blocks of its layer, search a
    flat index of its dim; its percentiles are over queries. See `m2dr.verbs.evaluating.timing`.

    Args:
        request: see there.
        out: a folder of results; nothing is written when None.

    Raises:
        UserError: the model has no such cut, the corpus or split is not there, or holds no query.
    """
    card = checkpoint.read_card(request.model)
    cuts = cuts_of(card, request.layers, request.dims, request.model)
    layers = sorted({cut.layer for cut in cuts})
    dataset = open_corpus(request.corpus)
    texts = _queries(request, dataset)
    sources = {layer: document_layer(card, layer) for layer in layers}
    encoders = open_encoders(
        request.model, {*sources, *sources.values()}, request.device, request.dtype
    )
    say(f"Timing {counted(len(cuts), 'cuts')} of {request.model} on {_machine(encoders.deepest)}")
    times, documents = _query_times(request, encoders, cuts, texts, sources[max(layers)])
    speeds = document_speeds(
        encoders, sources.values(), _documents(request, dataset), request.rounds
    )
    lengths = encoders.lengths(texts)
    cells = {
        cut: _cell(encoders, cut, times[cut], speeds[sources[cut.layer]], documents, lengths)
        for cut in cuts
    }
    costs = _costs(request, card, encoders, documents, lengths, cells)
    if out is not None:
        write_costs(costs, out)
    return costs


def shape_of(encoder: Encoder) -> Shape:
    """What the multiply-adds of an encoder follow from, by its configuration."""
    config = encoder.transformer.config
    heads = int(config.num_attention_heads)
    size = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    inner = getattr(config, "intermediate_size", None) or config.hidden_dim  # DistilBERT's word
    return Shape(
        width=int(config.hidden_size),
        inner=int(inner),
        query_width=heads * size,
        key_width=int(getattr(config, "num_key_value_heads", None) or heads) * size,
        gated=backbone_of(config).gated,
        exits=exit_work(encoder),
        tables=table_work(encoder),
    )


def _query_times(
    request: CostsRequest,
    encoders: Encoders,
    cuts: Sequence[Cut],
    texts: Sequence[str],
    source: int,
) -> tuple[Mapping[Cut, Floats], int]:
    """Milliseconds of each query at each cut, and how many documents each searches.

    Of which layer the documents are changes no time, so those of one are searched. Indexes are
    built aside and thrown away: only those that somebody asked for stay beside the vectors.
    """
    index = IndexRequest(
        request.corpus,
        request.model,
        root=request.root,
        device=request.device,
        dtype=request.dtype,
    )
    store = encode_corpus(index, request.model, checkpoint.read_card(request.model), [source])[0]
    with tempfile.TemporaryDirectory(prefix="m2dr-costs-") as scratch:
        indexes = {
            dim: open_index(build_index(store, dim, "flat", folder=Path(scratch)))
            for dim in sorted({cut.dim for cut in cuts})
        }
    layers = sorted({cut.layer for cut in cuts})
    return query_times(encoders, layers, indexes, texts, request.rounds), store.documents


def _costs(
    request: CostsRequest,
    card: ModelCard,
    encoders: Encoders,
    documents: int,
    lengths: Sequence[int],
    cells: Mapping[Cut, Cost],
) -> Costs:
    """The cells, with whatever they depend on."""
    return Costs(
        model=request.model,
        fingerprint=card.fingerprint,
        corpus=request.corpus,
        whole=card.whole,
        documents_from=card.documents,
        documents=documents,
        queries=len(lengths),
        query_tokens=float(np.mean(lengths)),
        kept="f32",  # what the flat index keeps
        machine=_machine(encoders.deepest),
        cells=cells,
    )


def _cell(
    encoders: Encoders,
    cut: Cut,
    times: Floats,
    speed: float,
    documents: int,
    lengths: Sequence[int],
) -> Cost:
    p50, p95 = np.percentile(times, [50, 95])
    shape = shape_of(encoders.deepest)
    encoding = float(np.mean([shape.encode(cut.layer, length) for length in lengths]))
    return Cost(
        latency_p50_ms=float(p50),
        latency_p95_ms=float(p95),
        documents_per_second=speed,
        bytes_per_document=bytes_per_document(cut.dim),
        multiply_adds=round(encoding) + search_multiply_adds(documents, cut.dim),
        parameters=parameters_of(encoders.by_layer[cut.layer], cut.layer),
    )


def _queries(request: CostsRequest, dataset: Dataset) -> list[str]:
    texts = _spread([query.text for query in dataset.queries(request.split)], request.queries)
    if not texts:
        raise UserError(f"{request.corpus} has no query in {request.split} to time.")
    return texts


def _documents(request: CostsRequest, dataset: Dataset) -> list[str]:
    rows = _spread(range(dataset.document_count), request.documents)
    return [dataset.document_at(row).content for row in rows]


def _machine(encoder: Encoder) -> str:
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    dtype = str(next(encoder.parameters()).dtype).removeprefix("torch.")
    processor = platform.processor() or platform.machine()
    return f"{processor}, {counted(cores, 'cores')}, encoder on {encoder.device.type} in {dtype}"


def _spread(items: Sequence[T], count: int) -> list[T]:
    """At most `count` of them, evenly spread from the first to the last."""
    kept = min(count, len(items))
    return [items[place * (len(items) - 1) // max(kept - 1, 1)] for place in range(kept)]
