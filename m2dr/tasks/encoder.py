"""The encoder of people and commands: any texts at one cut, or at several layers in one pass."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from m2dr.core.arguments import path_or_name, whole_number
from m2dr.core.errors import UserError, command
from m2dr.core.progress import say
from m2dr.core.records import Cut, ModelCard, Side
from m2dr.core.requests import MODELS
from m2dr.data.pydocs import cache_folder
from m2dr.data.tokens import buckets, pad
from m2dr.index.manifest import Label
from m2dr.index.vectors import prefixes
from m2dr.model.folder import check_exits, read_card, read_card_file
from m2dr.model.hub import CARD, EXITS, pinned
from m2dr.model.static import open_static
from m2dr.model.tokenizer import SAMPLE, BaseTokenizer, tokenize
from m2dr.tasks.encode_texts import embed_tokens, tokens_per_batch

Function = TypeVar("Function", bound=Callable[..., Any])


class OfBackbone(Protocol):
    """Settings that name a backbone."""

    @property
    def backbone(self) -> str:
        """Folder or id."""
        ...

    @property
    def revision(self) -> str:
        """Branch, tag or commit of an id; empty for its main branch."""
        ...


def at_revision(function: Function) -> Function:
    """Return a function in which the backbone of its settings is one commit of the hub."""

    @wraps(function)
    def run(settings: OfBackbone, *rest: Any, **named: Any) -> Any:  # the function's
        with pinned(settings.backbone, settings.revision):
            return function(settings, *rest, **named)

    return cast(Function, run)


def newest_model(folder: Path = MODELS) -> str:
    """Return the model that was trained last, for commands that name none, and say which it is.

    Exported cuts and pre-trained backbones are passed over.

    Raises:
        UserError: there is no trained model, or the newest m2dr.json is damaged.
    """
    cards = [(path.stat().st_mtime_ns, path) for path in folder.glob(f"*/{CARD}")]
    passed: list[str] = []
    for _, path in sorted(cards, reverse=True):
        model = str(path.parent)
        if read_card_file(path).is_trained:
            newer = f" (exported or pre-trained, so not used: {_few(passed)})" if passed else ""
            say(f"Model: {model}, the newest in {folder}/{newer}; --model names another.")
            return model
        passed.append(model)
    raise UserError(
        f"No --model was given and there is no trained one in {folder}/"
        f"{f', only what was exported or pre-trained ({_few(passed)})' if passed else ''}. "
        f"Name one, such as minilm, or fit one without labels: {command('fit', backbone='minilm')}"
    )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def label_of(card: ModelCard, model: str, source: str = "") -> Label:
    """Return the label that an index keeps of the vectors of a model.

    Args:
        card: model card.
        model: folder or id, as given to m2dr.
        source: corpus, as given to m2dr.
    """
    return Label(
        fingerprint=card.fingerprint,
        similarity=card.similarity,
        pooling=card.pooling,
        query_prefix=card.query_prefix,
        document_prefix=card.document_prefix,
        query_length=card.query_length,
        document_length=card.document_length,
        document_layer=card.documents,
        cuts=tuple((cut.layer, cut.dim) for cut in card.cuts),
        model=model,
        source=source,
    )


def default_dims(width: int) -> tuple[int, ...]:
    """Return the powers of two from 8 to below the full width, and the full width.

    >>> default_dims(384)
    (8, 16, 32, 64, 128, 256, 384)
    """
    powers = [2**n for n in range(3, width.bit_length()) if 2**n < width]
    return (*powers, width)


def document_layer(card: ModelCard, query_layer: int) -> int:
    """Return the layer of the documents that queries of a layer were trained to search."""
    return card.layers if card.documents == "last" else query_layer


def document_layers(card: ModelCard) -> tuple[int, ...]:
    """Return the layers whose documents trained cuts search."""
    return (card.layers,) if card.documents == "last" else card.layers_trained or (card.layers,)


def cuts_of(
    card: ModelCard, layers: Sequence[int], dims: Sequence[int], model: str
) -> tuple[Cut, ...]:
    """Return the cuts of every layer and every dim, increasing.

    Args:
        card: model card.
        layers: by default all, with layer 0 of a fitted model.
        dims: by default the powers of two from 8, and the full width.
        model: folder or id, for the command in a refusal.

    Raises:
        UserError: the model has no such layer or dim.
    """
    layers = layers or range(card.lowest_layer, card.layers + 1)
    dims = dims or default_dims(card.width)
    found = {card.check(Cut(layer, dim), model) for layer in layers for dim in dims}
    return tuple(sorted(found))


def fitted_cuts(card: ModelCard) -> tuple[Cut, ...]:
    """Return the cuts that a fit makes retrieve: every layer from 0 at the default dims."""
    dims = default_dims(card.width)
    return tuple(Cut(layer, dim) for layer in range(card.layers + 1) for dim in dims)


def through_exits(card: ModelCard) -> ModelCard:
    """Return the card of a model whose queries pass the exits of an index."""
    return replace(card, exit_head="fitted", documents="last", cuts=fitted_cuts(card))


def find_cut(card: ModelCard, layer: int | None, dim: int | None, model: str) -> Cut:
    """Return the cut of a layer and a dim; None stands for all layers or dims.

    Args:
        card: model card.
        layer: from 0.
        dim: from 1.
        model: folder or id, for the command in a refusal.

    Raises:
        UserError: the model has no such cut.
    """
    full = card.full
    layer = None if layer is None else whole_number("layer", layer, 0)
    dim = None if dim is None else whole_number("dim", dim, 1)
    cut = Cut(full.layer if layer is None else layer, full.dim if dim is None else dim)
    return card.check(cut, model)


def names_of(models: Sequence[str]) -> list[str]:
    """Return names of models for tables: the folder's, with more of its path where names repeat."""
    places = [Path(model).resolve() if Path(model).is_dir() else Path(model) for model in models]
    for parts in range(1, 9):
        names = ["-".join(part for part in place.parts[-parts:] if part != "/") for place in places]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"The models {', '.join(models)} repeat; name each once.")


if TYPE_CHECKING:
    from m2dr.model.runtimes import OpenedRuntime

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Tell = Callable[[str], None]

_WARM_UPS = 3  # the first runs of torch allocate memory and choose kernels


class RowEncoder(Protocol):
    """Encodes token ids at one layer; a StaticEncoder is one, of layer 0."""

    @property
    def card(self) -> ModelCard:
        """The model card."""
        ...

    @property
    def tokenizer(self) -> BaseTokenizer:
        """The tokenizer that the ids come from."""
        ...

    def embed_ids(self, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Return the vectors of token rows, [N, H], in their order, not normalised."""
        ...


@dataclass(frozen=True)
class LayerEncoder:
    """The first layers of an encoder, in a runtime."""

    layer: int
    opened: "OpenedRuntime"

    @property
    def card(self) -> ModelCard:
        """The model card."""
        return self.opened.runtime.card

    @property
    def tokenizer(self) -> BaseTokenizer:
        """The tokenizer that the ids come from."""
        return self.opened.tokenizer

    def embed_ids(self, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Return the vectors of token rows, [N, H], in their order, not normalised."""
        runtime, layers = self.opened.runtime, [self.layer]
        if len(rows) == 1:  # sorting and padding a single query costs as much as half a layer
            ids = np.array(rows, np.int64)
            alone: NDArray[np.float32] = runtime.embed(ids, np.ones_like(ids), layers)[0]
            return alone
        vectors = np.empty((len(rows), runtime.card.width), np.float32)
        budget = tokens_per_batch(runtime.device.type)
        for chosen in buckets([len(row) for row in rows], budget):
            ids, mask = pad([rows[number] for number in chosen], self.opened.tokenizer.pad_id)
            vectors[chosen] = runtime.embed(ids, mask, layers)[0]
        return vectors


@dataclass(frozen=True)
class QueryEncoder:
    """Encodes queries; thread-safe."""

    encoder: RowEncoder
    lock: threading.Lock = field(default_factory=threading.Lock)

    def tokenize(self, texts: Sequence[str], tell: Tell) -> list[list[int]]:
        """Return the token ids of each query, cut at the model's length, which `tell` is told.

        Raises:
            UserError: a text is empty.
        """
        for number, text in enumerate(texts, start=1):
            if not text.strip():
                which = f"Query {number} of {len(texts)}" if len(texts) > 1 else "The query"
                raise UserError(f"{which} is empty; give it a word to search for.")
        card, tokenizer = self.encoder.card, self.encoder.tokenizer
        with self.lock:  # a tokenizer keeps its last length inside: two threads would mix them up
            # One token more than fits distinguishes a text that is cut from one that just fits.
            rows = tokenize(card, tokenizer, texts, "query", spare=1)
            long = [number for number, row in enumerate(rows) if len(row) > card.query_length]
            cut = tokenize(card, tokenizer, [texts[number] for number in long], "query")
        for number, row in zip(long, cut, strict=True):
            rows[number] = row
        if long:
            verb = "is" if len(long) == 1 else "are"
            of = f"{len(long)} of {len(texts)} queries {verb}" if len(texts) > 1 else "The query is"
            tell(f"{of} longer than {card.query_length} tokens; what follows these is not read.")
        return rows

    def embed(self, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Return the vectors of token rows, [N, H], in their order, not normalised."""
        return self.encoder.embed_ids(rows)

    def warm_up(self) -> None:
        """Run a few queries, so that libraries are loaded before the first one that counts."""
        for _ in range(_WARM_UPS):
            self.embed(self.tokenize([SAMPLE], lambda _: None))


def open_query_encoder(
    model: str,
    layer: int,
    runtime: str,
    device: str,
    dtype: str,
    tell: Tell,
    exits: Path | None = None,
) -> QueryEncoder:
    """Load the layers that queries run through, and no others; layer 0 needs no torch.

    Args:
        model: folder or id.
        layer: of the queries.
        runtime: torch, onnx, openvino or auto.
        device: as `choose_device` takes it.
        dtype: as `choose_dtype` takes it.
        tell: receives the note of a runtime that was chosen.
        exits: folder of the exits of an index, used in place of those of the model.

    Raises:
        UserError: as `open_static` and `open_runtime` do, or a runtime was asked for at layer 0.
    """
    if layer == 0:
        if runtime not in ("torch", "auto"):
            raise UserError(
                f"--runtime {runtime} was asked for, and layer 0 is a table that needs none. Leave "
                "it out."
            )
        return QueryEncoder(open_static(model, exits))
    from m2dr.model.runtimes import open_runtime

    if (
        exits is not None and runtime != "torch"
    ):  # an exported graph is opened without a look at them
        check_exits(exits, read_card(model).fingerprint, EXITS)
    opened = open_runtime(runtime, model, layer, device, dtype, cache_folder(), exits)
    if opened.note:
        tell(opened.note)
    return QueryEncoder(LayerEncoder(layer, opened))


class LruCache(Generic[Key, Value]):
    """The values of the keys that were used last, each made once; thread-safe."""

    def __init__(self, make: Callable[[Key], Value], most: int) -> None:
        self._make, self._most = make, most
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value:
        """Return the value of a key, making it if needed, and drop those used least recently."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = self._make(key)
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return self._kept[key]


if TYPE_CHECKING:
    from m2dr.model.document_encoder import BatchEncoder

AT_ONCE = 4096  # texts that are tokenised at a time, and sorted by length into batches
_OPEN = 3  # encoders of different layers that are kept
Vectors = NDArray[np.float32]


class CutEncoder:
    """Encodes queries, documents and other texts at one cut; thread-safe.

    Vectors are cut and, where the model compares by cosine, then scaled to length one, as
    sentence-transformers gives them: dot products rank alike. They are those of `m2dr index` and
    `m2dr search`.
    """

    def __init__(
        self,
        model: str,
        layer: int | None = None,
        dim: int | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        runtime: str = "torch",
    ) -> None:
        """Load the layers that queries of the cut need; those of documents when they are needed.

        Args:
            model: folder or id.
            layer: layers that queries run through, from 0; all of them when None. Documents run
                through those that the model trained such queries to search.
            dim: dims to keep; all when None.
            device: auto, cpu, cuda or cuda:N.
            dtype: auto, fp32 or bf16.
            runtime: torch, onnx, openvino or auto; layer 0 needs none of them.

        Raises:
            UserError: no such model, or it has no such cut.
        """
        self.model = path_or_name("model", model)
        self.card = read_card(self.model)
        self.name = names_of([self.model])[0]
        self.cut = find_cut(self.card, layer, dim, self.model)
        self.device, self.dtype, self.runtime = device, dtype, runtime
        self._tokenizing = threading.Lock()  # a tokenizer keeps its last length inside
        self._encoders = LruCache(self._open, _OPEN)
        self._graphs = LruCache(self._open_graph, 1)
        self._encoders.get(self.cut.layer)

    @property
    def document_layer(self) -> int:
        """Layer of the documents that queries of the cut were trained to search."""
        return document_layer(self.card, self.cut.layer)

    @property
    def parameters(self) -> int:
        """Number of weights that encode queries and documents of the cut."""
        from m2dr.model.checkpoint import load
        from m2dr.model.encoder import parameters_of

        deepest = max(self.cut.layer, self.document_layer)
        return parameters_of(load(self.model, deepest)[0], deepest)

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of queries, [N, D]."""
        return self._at(texts, "query", self.cut.layer)

    def documents(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of documents that such queries search, [N, D]."""
        return self._at(texts, "document", self.document_layer)

    def texts(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of texts to compare with each other, as documents, [N, D]."""
        return self._at(texts, "document", self.cut.layer)

    def _at(self, texts: Sequence[str], side: Side, layer: int) -> Vectors:
        found: Vectors = self.vectors(texts, side, [layer])[0]
        return found

    def vectors(
        self,
        texts: Sequence[str],
        side: Side,
        layers: Sequence[int],
        budget: int | None = None,
        advance: Callable[[int], None] = lambda _: None,
        dim: int | None = None,
    ) -> Vectors:
        """Return the vectors of texts at some layers, [L, N, D]; arguments as for `stream`."""
        found = np.empty((len(layers), len(texts), dim or self.cut.dim), np.float32)
        parts = (texts[start : start + AT_ONCE] for start in range(0, len(texts), AT_ONCE))
        end = 0
        for part in self.stream(parts, side, layers, budget, advance, dim):
            start, end = end, end + part.shape[1]
            found[:, start:end] = part
        return found

    def stream(
        self,
        parts: Iterable[Sequence[str]],
        side: Side,
        layers: Sequence[int],
        budget: int | None = None,
        advance: Callable[[int], None] = lambda _: None,
        dim: int | None = None,
    ) -> Iterator[Vectors]:
        """Yield the vectors of each part of the texts, [L, n, D], while the next is tokenised.

        Args:
            parts: of n texts each, in the order of the texts.
            side: whether they are queries or documents.
            layers: L layers; all of them come from one pass, but queries in a runtime other than
                torch, and any text in onnx, take one each.
            budget: tokens of a batch, padding included; by default as many as suit the device.
            advance: receives the number of texts of each batch.
            dim: dims to keep; those of the cut by default.

        Raises:
            UserError: the model has no such layer or dim.
        """
        dim = dim or self.cut.dim
        for layer in layers:
            self.card.check(Cut(layer, dim), self.model)
        if budget is not None and budget < 1:
            raise UserError(f"{budget} tokens per batch were asked for. Ask for at least one.")
        deepest = self._encoders.get(max(layers))

        def tokens(part: Sequence[str]) -> list[list[int]]:
            with self._tokenizing:
                return tokenize(self.card, deepest.tokenizer, part, side)

        for rows in _ahead(tokens, parts):
            vectors = self._embed(deepest, rows, side, layers, budget, advance)
            cut = [prefixes(one, dim, self.card.similarity) for one in vectors]
            yield np.stack(cut)

    def _embed(
        self,
        deepest: RowEncoder,
        rows: list[list[int]],
        side: Side,
        layers: Sequence[int],
        budget: int | None,
        advance: Callable[[int], None],
    ) -> Vectors:
        """Return the vectors of token rows at some layers, [L, n, H], not normalised."""
        alone = len(rows) == 1 and len(layers) == 1  # one query has no batches to be sorted into
        if isinstance(deepest, LayerEncoder) and deepest.opened.name == "torch" and not alone:
            from m2dr.model.encoder import Encoder

            encoder, pad_id = deepest.opened.runtime, deepest.opened.tokenizer.pad_id
            assert isinstance(encoder, Encoder)  # what runtime torch opens
            return embed_tokens(encoder, rows, pad_id, layers, advance, budget)
        if self._in_graphs(deepest, side) and not alone:
            graph, pad_id = self._graphs.get(max(layers))
            return embed_tokens(graph, rows, pad_id, layers, advance, budget)
        found = np.stack([self._encoders.get(layer).embed_ids(rows) for layer in layers])
        advance(len(rows))
        return found

    @staticmethod
    def _in_graphs(deepest: RowEncoder, side: Side) -> bool:
        """Whether documents run several batches at a time, as `m2dr index` runs them."""
        opened = isinstance(deepest, LayerEncoder) and deepest.opened.name == "openvino"
        return side == "document" and opened

    def _open_graph(self, layer: int) -> "tuple[BatchEncoder, int]":
        from m2dr.model.document_encoder import OPENVINO, DocumentSource

        source = DocumentSource(self.model, layer, self.device, self.dtype, cache_folder())
        encoder, tokenizer = source.open(OPENVINO)
        return encoder, tokenizer.pad_id

    def _open(self, layer: int) -> RowEncoder:
        runtime = "torch" if layer == 0 else self.runtime
        return open_query_encoder(self.model, layer, runtime, self.device, self.dtype, say).encoder


def _ahead(
    tokens: Callable[[Sequence[str]], list[list[int]]], parts: Iterable[Sequence[str]]
) -> Iterator[list[list[int]]]:
    """Yield the token rows of each part; another thread tokenises the next meanwhile."""
    source = iter(parts)
    part = next(source, None)
    if part is None:
        return
    rows, part = tokens(part), next(source, None)
    if part is None:  # a single query is not worth a thread
        yield rows
        return
    with ThreadPoolExecutor(1, "tokenise") as pool:
        while part is not None:
            coming = pool.submit(tokens, part)
            yield rows
            rows, part = coming.result(), next(source, None)
    yield rows
