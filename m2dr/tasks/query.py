"""How queries become vectors, and which documents they meet: decided here, once.

`plan_query` makes a `QueryPlan` of a model card, the stores of the documents and what was asked.
`open_queries` opens the encoder of a plan. A new source is its option in
`core.requests.QueryOptions`, and here its rule in `plan_query` and what `open_queries` opens.

Shapes: N texts, V width of the model that runs, W width of the vectors that are searched.
"""

import hashlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from m2dr.core.arrays import Float32
from m2dr.core.errors import UserError, missing
from m2dr.core.files import cache_folder
from m2dr.core.progress import progress
from m2dr.core.records import Cut, ModelCard, Side
from m2dr.core.requests import QueryOptions, of_queries
from m2dr.data.vectors import Vectors
from m2dr.index.folder import IndexFolder
from m2dr.maps.files import Maps
from m2dr.model.checkpoint import Model, check_exits, load, open_model
from m2dr.model.embed import TextEncoder
from m2dr.model.hub import EXITS, WORDS
from m2dr.model.tokenizer import SAMPLE_QUERY, tokenize
from m2dr.model.words import Parts, WordTable, scaled, with_rest
from m2dr.tasks.models import names_of

if TYPE_CHECKING:
    from m2dr.evaluation.costs import Shape
    from m2dr.model.encoder import DualEncoder as TorchEncoder
    from m2dr.model.graphs import GraphRuntime

Source = Literal["model", "words", "bridge", "given"]
DOCUMENTS = ("trained", "same", "last")  # or the number of a layer

_WARM_UPS = 3  # the first runs of torch allocate memory and choose kernels


@dataclass(frozen=True)
class QueryPlan:
    """How queries of one layer become vectors, and which documents they meet.

    Attributes:
        model: of the documents.
        layer: of the queries; the last one where they are given or pass a bridge.
        document_layer: of the documents that they search.
        source: what makes the vectors: the layers of the model, words alone (layer 0), another
            model over a bridge, or whoever gave them.
        index: of the documents; None where there are none.
        maps: of the index, where queries pass these or their bridge in place of the exits of the
            model.
        options: what was asked.
    """

    model: Model
    layer: int
    document_layer: int
    source: Source
    index: IndexFolder | None = None
    maps: Maps | None = None
    options: QueryOptions = QueryOptions()

    @property
    def card(self) -> ModelCard:
        """The card of the model of the documents."""
        return self.model.card

    @property
    def lacks(self) -> str:
        """Return why this plan cannot run (torch missing), or ""."""
        if self.source in ("words", "given") or find_spec("torch"):
            return ""
        other = self.source == "bridge"
        what = self.options.query_model if other else f"Layer {self.layer} of {self.model}"
        return f"{what} needs torch, and layer 0 does not: {missing('torch')}"

    def check_packages(self) -> None:
        """Raise a UserError with what `lacks` tells, if anything."""
        if self.lacks:
            raise UserError(self.lacks)

    @property
    def is_as_trained(self) -> bool:
        """Whether queries meet the documents that they were trained or fitted to search."""
        return self.document_layer == document_layer(self.card, self.layer, self.maps)

    @property
    def origin(self) -> str:
        """Where the vectors come from; empty if the documents' model makes them.

        It is part of the names and notes of results.
        """
        if self.source == "bridge":
            return f"of {names_of([self.options.query_model])[0]}"
        return "given" if self.source == "given" else ""

    @property
    def key(self) -> "QueryPlan":
        """Cache key: the plan without weights and documents' layer."""
        weights: dict[str, Any] = dict.fromkeys(self.options.weights, 0.0)
        options = QueryOptions(**self.options.query_options | weights)
        return replace(self, document_layer=0, options=options)

    @property
    def mixes(self) -> bool:
        """Whether `query_mix` applies.

        It does to documents of the last layer, to which the words of an index are fitted, and to
        queries whose exit has no word term.
        """
        card = self.card
        reads_words = self.layer < card.layers and card.exit_head == "fitted"
        return self.document_layer == card.layers and not (self.maps or reads_words)

    @property
    def mix(self) -> float:
        """The weight of `query_mix` where it applies, otherwise 0."""
        return self.options.query_mix * self.mixes

    @cached_property
    def words(self) -> WordTable:
        """Layer 0 by the exits of the index.

        Raises:
            UserError: it has none, or they are damaged.
        """
        assert self.index is not None, "words are mixed in where there are documents"
        maps = self.maps or Maps(self.index)
        if not (self.maps or maps.are_fitted):
            raise maps.missing
        return _checked_words(maps, self.card.fingerprint)

    def mixed(self, vectors: Float32, texts: Sequence[str], weight: float) -> Float32:
        """Return the vectors of texts [N, W] plus `weight` times those of their words."""
        return self.words.mixed(vectors, texts, weight) if weight else vectors

    @property
    def has_old_exit(self) -> bool:
        """Whether queries pass an exit of the index that is older than its documents."""
        passed = self.maps and 0 < self.layer < self.card.layers
        return bool(passed and self.maps and self.maps.is_old(self.layer))

    def warnings(self, dim: int, documents: Callable[[Cut], list[str]] | None = None) -> list[str]:
        """Return warnings: cuts that were not trained, or words older than the documents.

        Args:
            dim: of the queries.
            documents: the warnings of opened documents for the cut of a query; by default those of
                the model for documents of the plan's layer and the same dim.
        """
        if self.maps:
            told = list[str]()
            fits = "fitted before its documents changed; m2dr index fit"
            if self.maps.is_old():
                told = [f"The words of {self.index} were {fits} fits them again."]
            if self.has_old_exit:
                told.append(f"The exits of {self.index} were {fits} --overwrite fits them again.")
            return told
        cut, searched = Cut(self.layer, dim), Cut(self.document_layer, dim)
        return documents(cut) if documents else self.model.label().warnings(cut, searched)

    def describe(self, dim: int) -> str:
        """Describe the queries."""
        origin = self.origin or f"of {self.model}"
        exits = " by exits of the index" * bool(self.maps)
        return f"queries at {Cut(self.layer, dim)} {origin}{exits}"

    def facts(self, vectors: Callable[[], Float32]) -> dict[str, object]:
        """Return what vectors of queries depend on besides the model and the layer.

        Args:
            vectors: returns them, [N, W]; called only where the model does not make them.
        """
        mix = self.options.query_mix
        facts: dict[str, object] = {}
        if self.index and (self.maps or mix):
            maps = self.maps or Maps(self.index)
            facts["exits"] = maps.digest if self.maps or maps.are_fitted else ""
        if mix:
            facts["query_mix"] = mix
        if self.origin:
            facts["queries"] = hashlib.sha256(vectors().tobytes()).hexdigest()
        return facts


# Decide


def document_layer(card: ModelCard, layer: int, maps: Maps | None = None) -> int:
    """Return the layer of the documents that queries of a layer were trained or fitted to search.

    Args:
        card: of the model.
        layer: of the queries.
        maps: of an index, if they pass these.
    """
    return card.layers if maps or card.documents == "last" else layer


def plan_of_model(model: Model, layer: int) -> QueryPlan:
    """Return the plan of queries of a model alone, by its own exits and without documents."""
    source: Source = "model" if layer else "words"
    return QueryPlan(model, layer, document_layer(model.card, layer), source)


def plan_query(
    options: QueryOptions,
    model: Model,
    index: IndexFolder,
    layer: int | None = None,
    documents: int | None = None,
    will_be_fitted: bool = False,
) -> QueryPlan:
    """Decide how queries become vectors, and which documents they meet.

    Args:
        options: what was asked.
        model: of the documents.
        index: of the documents.
        layer: that queries run through; by default all that there are.
        documents: layer of the documents; by default the one that such queries were trained, or
            fitted, to search.
        will_be_fitted: whether exits will be fitted on the documents before a query is encoded.

    Raises:
        UserError: the model has no such layer, or the index lacks the exits that were asked for.
    """
    card, last = model.card, model.card.layers
    if options.query_vectors and layer not in (None, last):
        raise UserError(f"--query-vectors stand for layer {last}; leave --query-layer out.")
    if layer is None:
        layer = last if options.query_vectors or options.query_model else card.query_layer
    is_over_bridge = bool(options.query_model) and layer == last
    # By default layers below the last pass the exits of the index where they were not trained, if
    # the card does not say otherwise: a fit is no training, and layer 0 is always fitted.
    wanted = options.exits or (card.exits if layer else "")
    trained = card.layers_trained if card.fit is None and not options.exits else ()
    below = wanted != "model" and layer < last and (layer == 0 or layer not in trained)
    there, maps = Maps(index), None
    if is_over_bridge or below:
        if documents in (None, last):
            will_be_there = will_be_fitted and not is_over_bridge
            maps = there if will_be_there or there.are_fitted else None
        elif is_over_bridge or options.exits == "index":
            raise UserError(f"--exits index needs an index on disk of layer {last}.")
        if maps is None and (is_over_bridge or options.exits == "index"):
            raise there.missing
        if maps is None and layer == 0 < card.lowest_layer and documents in (None, last):
            raise UserError(f"{index} has no exits for layer 0; m2dr index fit makes some.")
    if not (layer == 0 and maps):
        card.check(Cut(layer, 1))
    if documents is not None:
        card.check(Cut(documents, 1))
    source: Source = "model" if layer else "words"
    if is_over_bridge or options.query_vectors:
        source = "given" if options.query_vectors else "bridge"
    searched = document_layer(card, layer, maps) if documents is None else documents
    plan = QueryPlan(model, layer, searched, source, index, maps, options)
    if plan.mix and not will_be_fitted and not there.are_fitted:
        raise there.missing
    return plan


def plan_layers(
    options: QueryOptions,
    model: Model,
    index: IndexFolder,
    layers: Sequence[int] = (),
    documents: str = "trained",
    will_be_fitted: bool = False,
) -> dict[int, QueryPlan]:
    """Decide for several layers, as `plan_query` does for one; increasing.

    Args:
        options: what was asked.
        model: of the documents.
        index: of the documents.
        layers: of the queries; by default all that can be searched. Queries that are given or pass
            a bridge are those of the last layer beside these.
        documents: trained, same, last or the number of a layer.
        will_be_fitted: whether exits will be fitted on the documents before a query is encoded.

    Raises:
        UserError: as `plan_query` does, or `documents` names no layer.
    """
    card = model.card
    if documents not in DOCUMENTS and not (documents.isascii() and documents.isdecimal()):
        choices = f"{', '.join(DOCUMENTS)}, or {card.lowest_layer} to {card.layers}"
        raise UserError(f"--documents {documents} names no layer of documents: {choices}.")

    def plan(layer: int) -> QueryPlan:
        vectors = options.query_vectors if layer == card.layers else None
        named = {"trained": None, "same": layer, "last": card.layers}
        searched = named[documents] if documents in named else int(documents)
        own_options = replace(options, query_vectors=vectors)
        return plan_query(own_options, model, index, layer, searched, will_be_fitted)

    last = (card.layers,) if options.query_vectors or options.query_model else ()
    if not layers:
        meets_last = documents in ("trained", "last", str(card.layers))
        may_pass_exits = (options.exits or card.exits) != "model" and meets_last
        exits = will_be_fitted or Maps(index).are_fitted
        words_alone = not (card.query_layer or last)
        has_words = card.lowest_layer == 0 or (may_pass_exits and exits) or words_alone
        layers = range(0 if has_words else 1, card.query_layer + 1)
    return {layer: plan(layer) for layer in sorted({*layers, *last})}


def results_suffix(plans: Mapping[int, QueryPlan], documents: str) -> str:
    """Return the suffix of the name of results: whose queries, and which documents they meet.

    Weights of BM25 and words have suffixes of their own, in `EvaluateRequest.named`.

    Args:
        plans: by layer.
        documents: as `plan_layers` takes it.
    """
    name = ""
    for plan in plans.values():
        origin = plan.origin
        if origin and plan.card.query_layer:  # else no model has results of that layer
            name += f".queries-{origin.replace(' ', '-')}"
    if not all(plan.is_as_trained for plan in plans.values()):
        layers = {plan.document_layer for plan in plans.values()}
        name += ".documents-" + ("same" if documents == "same" else f"{max(layers):02d}")
    return name


def apart_of(plans: Mapping[int, QueryPlan]) -> tuple[int, ...]:
    """Return layer 0 where it alone passes what was fitted to the documents; () elsewhere."""
    last = max(plan.card.layers for plan in plans.values())
    by_index = [layer for layer, plan in plans.items() if plan.maps and layer < last]
    return (0,) if by_index == [0] else ()


def system_of(plans: Mapping[int, QueryPlan]) -> str:
    """Return whose exits queries below the last layer pass, and which documents all search."""
    card, apart = next(iter(plans.values())).card, apart_of(plans)
    layers = sorted({plan.document_layer for n, plan in plans.items() if n not in apart})
    documents = f"documents of layer {layers[0]}" if len(layers) == 1 else "documents of each layer"
    below_last = any(plan.maps and 0 < layer < card.layers for layer, plan in plans.items())
    exits = "exits of the index" if below_last else "own exits"
    bridge = ", bridge of the index" * any(plan.source == "bridge" for plan in plans.values())
    parts = [f"{exits}{bridge}, {documents}"] * bool(layers)
    parts += [f"layer 0: words of the index, documents of layer {card.layers}"] * bool(apart)
    return "; ".join(parts)


def notes_of(plans: Mapping[int, QueryPlan]) -> Iterator[str]:
    """Yield a sentence for each way in which a grid departs from the model as it was trained."""
    model = next(iter(plans.values())).model
    card = model.card
    lengths = card.query_length, card.document_length
    sides = zip(("queries", "documents"), lengths, model.own_lengths or lengths, strict=True)
    for side, length, own in sides:
        if length != own:
            yield f"{side} are cut at {length} tokens; the model's default is {own}"
    sources = sorted({plan.document_layer for plan in plans.values()})
    if len(sources) == 1 < len(plans):
        yield f"documents are encoded by layer {sources[0]} whatever the query's layer"
    fresh = [plan for plan in plans.values() if plan.maps and not plan.has_old_exit]
    if fresh:
        yield f"queries of {_layers(fresh)} pass exits that were fitted on these documents"
    if old := [plan for plan in plans.values() if plan.has_old_exit]:
        yield f"the exits of {_layers(old)} were fitted before some of the documents changed"
    for plan in plans.values():
        if origin := plan.origin:
            yield f"queries of layer {plan.layer} are {origin}"
    if not all(plan.is_as_trained for plan in plans.values() if not plan.maps):
        yield (
            "the model was trained with documents of "
            f"{'the last layer' if card.documents == 'last' else 'the same layer as the query'}"
        )


def _layers(plans: Sequence[QueryPlan]) -> str:
    return f"layer{'s' if len(plans) > 1 else ''} {', '.join(str(plan.layer) for plan in plans)}"


# Encode


@dataclass(frozen=True, eq=False)
class QueryEncoder:
    """Encodes the queries of a plan; thread-safe.

    Attributes:
        plan: of the queries.
        opened: the layers that run, of the model or of that of a bridge; None where none runs.
        table: the words of layer 0, or those of a bridge and its map.
        given: vectors of queries that somebody else made.
    """

    plan: QueryPlan
    opened: "TextEncoder[TorchEncoder | GraphRuntime] | None" = None
    table: WordTable | None = None
    given: Vectors | None = None
    # A tokenizer keeps its last length inside: two threads would mix them up.
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def card(self) -> ModelCard:
        """The card of the model that runs."""
        return self.opened.card if self.opened else self.plan.card

    @property
    def layer(self) -> int:
        """Layers of that model that run."""
        return self.card.query_layer if self.plan.source == "bridge" else self.plan.layer

    def tokenize(
        self, texts: Sequence[str], side: Side = "query", card: ModelCard | None = None
    ) -> list[list[int]]:
        """Return the tokens of texts, cut at the model's length; at layer 0 rows of known words.

        Args:
            texts: queries or documents.
            side: which of the two they are.
            card: with other prompts and lengths than those of the model.
        """
        if not self.opened:
            return [self.table.tokenize(text) if self.table else [] for text in texts]
        with self._lock:
            return tokenize(card or self.card, self.opened.tokenizer, texts, side)

    def embed(
        self, rows: Sequence[Sequence[int]], texts: Sequence[str], ids: Sequence[str] = ()
    ) -> Float32:
        """Return the vectors of texts and their token rows, [N, W], in order, not normalised.

        Args:
            rows: as `tokenize` gives them.
            texts: N of them.
            ids: of the queries, by which given vectors are found; in order without them.
        """
        if self.given:
            vectors = self.given if ids else replace(self.given, ids=None)
            return vectors.finite(vectors.of(ids or texts, "queries"))
        if not self.opened:
            assert self.table, "words make the vectors where no layer does"
            return self.table.embed_tokens(rows)
        made = self.opened.of_tokens(rows, [self.layer], texts, longest_first=False)[0]
        return self.table.bridged(made, texts) if self.table else made

    def encode(self, texts: Sequence[str], ids: Sequence[str] = ()) -> Float32:
        """Return the vectors of texts, [N, W], in order, not normalised."""
        return self.embed(self.tokenize(texts), texts, ids)

    def cut(self, rows: Sequence[Sequence[int]], texts: Sequence[str]) -> str:
        """Return a sentence on queries whose ends are not read; empty where all are.

        Args:
            rows: as `tokenize` gives them.
            texts: N of them.
        """
        if self.opened:
            limit, unit = self.card.query_length, "tokens"
            full = [text for row, text in zip(rows, texts, strict=True) if len(row) >= limit]
            card = replace(self.card, query_length=limit + 1)
            cut = sum(len(row) > limit for row in self.tokenize(full, card=card)) if full else 0
        elif self.table:
            limit, unit, split = self.table.limit, "words", self.table.analyzer
            cut = sum(len(text) > limit and len(split(text)) > limit for text in texts)
        else:  # given vectors
            return ""
        return f"Queries of more than {limit} {unit} were cut: {cut} of {len(texts)}." * bool(cut)

    def parts(self, text: str, vector: Float32) -> Parts:
        """Return what adds up to the vector [W] of a query: its words, and what is no sum of these.

        Args:
            text: of the query.
            vector: as `encode` gave it.
        """
        if self.table and not self.opened:
            return self.table.parts(text)
        if self.table:
            return with_rest(scaled(self.table.of_documents.parts(text), 1.0), vector)
        words = self.opened.runtime.words if self.opened else None
        is_read = words is not None and self.layer in words.beside
        return with_rest(words.parts(text, self.layer) if words and is_read else {}, vector)

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each query that count: at layer 0 each word once."""
        return [len(row if self.opened else {*row}) for row in self.tokenize(texts)]

    def multiply_adds(self, tokens: int, layer: int | None = None) -> int:
        """Return the multiply-adds of a query of `tokens`, at the plan's layer or a lower one.

        Given vectors cost none, and a graph does not tell its sizes. Over a bridge all layers run.
        """
        work = self._bridge_size + (tokens * self.table.width if self.table else 0)
        if self._layers:
            depth = layer if layer is not None and self.plan.source == "model" else self.layer
            work += shape_of(self._layers).encode(depth, tokens)
        return work

    @property
    def parameters(self) -> int:
        """Numbers in memory to encode queries."""
        words = int(self.table.table.size + self.table.weights.size) if self.table else 0
        if not self._layers:
            return words
        from m2dr.model.encoder import parameters_of

        return parameters_of(self._layers, self.layer) + self._bridge_size + words

    def share_weights(self, other: "QueryEncoder") -> None:
        """Share equal tensors with another encoder of the model."""
        if self._layers and other._layers:
            from m2dr.model.encoder import share_weights

            share_weights(self._layers, other._layers)

    def warm_up(self) -> None:
        """Run a few queries, so that libraries are loaded before the first one that counts."""
        for _ in range(0 if self.given else _WARM_UPS):
            self.encode([SAMPLE_QUERY])

    @property
    def _layers(self) -> "TorchEncoder | None":
        """The layers in torch; None where none runs, or a graph, which does not tell its sizes."""
        if not self.opened:
            return None
        from m2dr.model.encoder import DualEncoder as TorchEncoder

        runtime = self.opened.runtime
        return runtime if isinstance(runtime, TorchEncoder) else None

    @property
    def _bridge_size(self) -> int:
        matrix = self.table.bridge if self.table and self.opened else None
        return 0 if matrix is None else int(matrix.size)


def open_queries(
    plan: QueryPlan, runtime: str = "torch", device: str = "auto", dtype: str = "auto"
) -> QueryEncoder:
    """Load the encoder of the queries of a plan, and no more layers than it runs.

    Args:
        plan: of the queries.
        runtime: torch, onnx or openvino; of no effect at layer 0.
        device: as `choose_device` takes it.
        dtype: as `choose_dtype` takes it; int8 is of documents alone.

    Raises:
        UserError: a file of the model or of its exits is missing or damaged, the index has no
            bridge from the model of the queries, or torch is missing.
    """
    plan.check_packages()
    how = runtime, device, of_queries(dtype)
    if plan.source == "model":
        return QueryEncoder(plan, _layers_of(plan, *how))
    if plan.source == "words":
        return QueryEncoder(plan, table=_words_of(plan))
    if plan.source == "given":
        from m2dr.tasks.vectors import query_vectors

        path, index = plan.options.query_vectors, plan.index
        assert path is not None, "vectors are given"
        assert index is not None, "the documents of an index are searched"
        given = query_vectors(path, plan.card, index)
        return QueryEncoder(plan, given=given)
    assert plan.maps is not None, "a bridge lies in the exits of an index"
    model = open_model(plan.options.query_model)
    bridge = _checked_words(plan.maps, plan.card.fingerprint)
    if bridge.query_model != model.card.digest():
        raise UserError(
            f"The index was not fitted for queries of {model}; m2dr index fit --query-model "
            "does so."
        )
    whole = plan_of_model(model, model.card.query_layer)
    return QueryEncoder(plan, _layers_of(whole, *how), bridge)


def _layers_of(
    plan: QueryPlan, runtime: str, device: str, dtype: str
) -> "TextEncoder[TorchEncoder | GraphRuntime]":
    """Load the first layers of a model, by its own exits or those of the index."""
    exits = plan.maps.folder if plan.maps else None
    if runtime == "torch":
        return load(plan.model, plan.layer, device, dtype, exits)
    from m2dr.model.graphs import open_graph

    # A graph is opened without a look at exits, and has no words.
    if exits is not None:
        check_exits(exits, plan.card.fingerprint, EXITS)
    words = _words_of(plan) if exits or plan.card.exit_head == "fitted" else None
    where = device, dtype, cache_folder()
    return open_graph(runtime, plan.model, plan.layer, *where, exits, words)


class QueryEncoders:
    """Encoders of queries, each loaded when it is first needed; thread-safe.

    An encoder cut to a layer holds the tensors of the others of its model in place of its own
    copies, so that all layers together take the memory of the deepest one and of the exits.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[object, ...], tuple[str, QueryEncoder]] = {}
        self._lock = threading.Lock()

    def of(self, plan: QueryPlan, runtime: str, device: str, dtype: str) -> QueryEncoder:
        """Return the encoder of a plan, as `open_queries` opens it.

        Raises:
            UserError: as `open_queries` does.
        """
        runtime = runtime if plan.source != "words" else "torch"
        key = (plan.key, runtime, device, dtype)
        digest = plan.maps.digest if plan.maps else ""  # other after a new fit
        with self._lock:
            opened_digest, encoder = self._open.get(key, ("", None))
            if encoder is None or opened_digest != digest:
                encoder = open_queries(plan, runtime, device, dtype)
                fingerprint = encoder.card.fingerprint
                opened = [other for _, other in self._open.values()]
                same_model = [other for other in opened if other.card.fingerprint == fingerprint]
                for other in sorted(same_model, key=lambda other: -other.plan.layer):
                    encoder.share_weights(other)
                encoder.warm_up()
                self._open[key] = digest, encoder
            return encoder


def encode_layers(
    plans: Iterable[QueryPlan], texts: Sequence[str], ids: Sequence[str], device: str, dtype: str
) -> Iterator[tuple[int, Float32]]:
    """Yield layers with the vectors of queries [N, W]; those of the same exits share a pass.

    Args:
        plans: of different layers of one model.
        texts: N queries.
        ids: of the queries, by which given vectors are found.
        device: as `choose_device` takes it.
        dtype: as `choose_dtype` takes it.

    Raises:
        UserError: as `open_queries` does.
    """
    passes: dict[Maps | None, list[QueryPlan]] = defaultdict(list)
    for plan in plans:
        if plan.source == "model":
            passes[plan.maps].append(plan)
        else:
            yield plan.layer, open_queries(plan, "torch", device, dtype).encode(texts, ids)
    for maps, shared in passes.items():
        layers, model = sorted(plan.layer for plan in shared), shared[0].model
        exits = maps.folder if maps else None
        encoder = load(model, layers[-1], device, of_queries(dtype), exits)
        with progress("Encoding", len(texts), "queries") as advance:
            vectors = encoder.vectors(texts, "query", layers, advance)
        yield from zip(layers, vectors, strict=True)


def shape_of(encoder: "TorchEncoder") -> "Shape":
    """Return the sizes from which the multiply-adds of an encoder are computed."""
    from m2dr.evaluation.costs import Shape
    from m2dr.model.backbones import backbone_of, relative_rows
    from m2dr.model.encoder import exit_work, table_work

    config = encoder.transformer.config
    row = backbone_of(config)
    heads = int(config.num_attention_heads)
    size = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    return Shape(
        width=int(config.hidden_size),
        inner=int(getattr(config, row.inner_key)),
        query_width=heads * size,
        key_width=int(getattr(config, "num_key_value_heads", None) or heads) * size,
        gated=bool(getattr(config, "is_gated_act", row.gated)),
        relative=relative_rows(config),
        exits=exit_work(encoder),
        tables=table_work(encoder),
    )


def _words_of(plan: QueryPlan) -> WordTable:
    """Open layer 0 of the exits of the index, or of the model."""
    if plan.maps is not None:
        return _checked_words(plan.maps, plan.card.fingerprint)
    return WordTable.open(plan.model.folder)


def _checked_words(maps: Maps, fingerprint: str) -> WordTable:
    check_exits(maps.folder, fingerprint, WORDS)
    return WordTable.open(maps.folder)
