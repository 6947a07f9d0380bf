"""How long a query takes at every cut, and how fast documents are encoded, on this machine."""

# Shapes in this file:
#   L layers, K dims, Q queries, R rounds, H width.

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from m2dr.index.engines import Index
from m2dr.index.ranked import search_ranked
from m2dr.model import checkpoint
from m2dr.model.checkpoint import Tokenizer
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.model.encoder import Encoder
from m2dr.model.static import StaticEncoder, open_static
from m2dr.records.cut import Cut
from m2dr.verbs.encoding import embed_texts, embed_tokens, tokenize
from m2dr.verbs.progress import progress

Floats = NDArray[np.float64]

FOUND = 10  # documents that a timed search returns
WARM_UP = 3  # queries that do not count


@dataclass(frozen=True)
class Encoders:
    """A cut encoder per layer, each with its own blocks alone."""

    by_layer: Mapping[int, Encoder]
    tokenizer: Tokenizer
    static: StaticEncoder | None = None  # what queries of layer 0 run through, as in a search

    @property
    def deepest(self) -> Encoder:
        """The one with the most blocks."""
        return self.by_layer[max(self.by_layer)]

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each query, special ones included."""
        return [len(row) for row in tokenize(self.deepest.card, self.tokenizer, texts, "query")]


def open_encoders(model: str, layers: Iterable[int], device: str, dtype: str) -> Encoders:
    """Load a cut encoder for each of `layers`; they share the weights of the deepest in memory."""
    place = choose_device(device)
    kind = choose_dtype(dtype, place)
    deepest_first = sorted(set(layers), reverse=True)
    deepest, tokenizer = checkpoint.load(model, deepest_first[0], place, kind)
    weights = _held(deepest)
    encoders = {deepest_first[0]: deepest}
    for layer in deepest_first[1:]:
        encoders[layer] = checkpoint.load(model, layer, place, kind)[0]
        for name, tensor in _held(encoders[layer]).items():
            tensor.data = weights[name].data
    return Encoders(encoders, tokenizer, open_static(model) if 0 in encoders else None)


def _held(encoder: Encoder) -> dict[str, Any]:
    """Return parameters and buffers by name: the tables of fitted exits are among the latter."""
    return {**dict(encoder.named_parameters()), **dict(encoder.named_buffers())}


def query_times(
    encoders: Encoders,
    layers: Iterable[int],
    indexes: Mapping[int, Index],
    texts: Sequence[str],
    rounds: int,
) -> dict[Cut, Floats]:
    """Milliseconds of each query at each cut, [Q]: tokenise, encode, search, one query at a time.

    Encoding at a layer and searching at a dim are timed apart and added up query by query. They
    come in shuffled order: a noisy moment of the machine favours no cut, and each step finds the
    processor's caches as cold as in service. Of the rounds of one query the median counts.

    Args:
        encoders: which hold each of `layers`.
        layers: of the queries.
        indexes: by dim.
        texts: Q queries, at least one.
        rounds: how often each is timed.
    """
    vectors = embed_texts(encoders.deepest, encoders.tokenizer, texts, "query", [max(layers)])[0]

    def encode(layer: int, query: int) -> None:
        if layer == 0 and encoders.static is not None:
            encoders.static.embed([texts[query]])
            return
        encoder = encoders.by_layer[layer]
        rows = tokenize(encoder.card, encoders.tokenizer, [texts[query]], "query")
        embed_tokens(encoder, rows, encoders.tokenizer.pad_id, [layer])

    def search(dim: int, query: int) -> None:
        search_ranked(indexes[dim], ["query"], vectors[query : query + 1], FOUND)

    known_layers, dims = sorted(set(layers)), sorted(indexes)
    steps = [*((encode, layer) for layer in known_layers), *((search, dim) for dim in dims)]
    times = _interleaved(steps, len(texts), rounds)
    encoding = dict(zip(known_layers, times[: len(known_layers)], strict=True))
    searching = dict(zip(dims, times[len(known_layers) :], strict=True))
    return {Cut(n, dim): encoding[n] + searching[dim] for n in known_layers for dim in dims}


def document_speeds(
    encoders: Encoders, layers: Iterable[int], documents: Sequence[str], rounds: int
) -> dict[int, float]:
    """Documents per second that each of `layers` encodes, all of them together in batches.

    Layers come in shuffled order, and of the rounds of a layer the median counts.
    """
    known = sorted(set(layers))
    times = np.empty((rounds, len(known)))
    generator = np.random.default_rng(13)

    def encode(layer: int, texts: Sequence[str]) -> None:
        encoder = encoders.by_layer[layer]
        embed_texts(encoder, encoders.tokenizer, texts, "document", [layer])

    for layer in known:
        encode(layer, documents[:WARM_UP])
    with progress("Timing", rounds * len(known) * len(documents), "documents") as advance:
        for taken in times:
            for place in generator.permutation(len(known)):
                taken[place] = _seconds(encode, known[place], documents)
                advance(len(documents))
    rates = len(documents) / np.median(times, axis=0)
    return dict(zip(known, map(float, rates), strict=True))


def _interleaved(
    steps: Sequence[tuple[Callable[[int, int], None], int]], queries: int, rounds: int
) -> Floats:
    """Median milliseconds of each step for each query, [steps, Q]."""
    for step, of in steps:
        for query in range(min(WARM_UP, queries)):
            step(of, query)
    generator = np.random.default_rng(13)
    times = np.empty((rounds, len(steps), queries))
    with progress("Timing", rounds * queries, "queries") as advance:
        for taken in times:
            for query in generator.permutation(queries):
                for place in generator.permutation(len(steps)):
                    step, of = steps[place]
                    taken[place, query] = 1000 * _seconds(step, of, int(query))
                advance(1)
    typical: Floats = np.median(times, axis=0)
    return typical


def _seconds(step: Callable[..., None], *arguments: Any) -> float:  # noqa: ANN401 - passed on
    begun = time.perf_counter()
    step(*arguments)
    return time.perf_counter() - begun
