"""Encode queries at one layer, for a search that keeps its encoder open.

Shapes: N texts, H width.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.core.records import ModelCard
from m2dr.data.pydocs import cache_folder
from m2dr.data.tokens import buckets, pad
from m2dr.model.folder import check_exits, read_card
from m2dr.model.hub import EXITS
from m2dr.model.static import open_static
from m2dr.model.tokenizer import SAMPLE, BaseTokenizer, tokenize
from m2dr.tasks.encode_texts import tokens_per_batch

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
