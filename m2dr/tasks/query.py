"""Encoders of queries at one layer: of a model, of exits of an index, of words or over a bridge.

Shapes: N texts, W width of the vectors that are searched.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from m2dr.core.arrays import Float32
from m2dr.core.errors import UserError
from m2dr.core.files import cache_folder
from m2dr.core.records import ModelCard, Side
from m2dr.core.requests import of_queries
from m2dr.data.tokens import buckets, pad
from m2dr.index.exit_files import encoding_of
from m2dr.model.checkpoint import check_exits, read_card
from m2dr.model.hub import EXITS, WORDS, find_folder
from m2dr.model.tokenizer import SAMPLE, tokenize
from m2dr.model.words import WordTable
from m2dr.tasks.embed import tokens_per_batch
from m2dr.tasks.models import label_of

if TYPE_CHECKING:
    from m2dr.model.graphs import OpenedRuntime

_WARM_UPS = 3  # the first runs of torch allocate memory and choose kernels


class QueryEncoder:
    """Encodes queries at one layer of a model, of an index too; thread-safe.

    Attributes:
        card: of the model.
        tokenizer: that the ids come from.
        opened: the first layers of the model in a runtime; None at layer 0.
        lock: a tokenizer keeps its last length inside: two threads would mix them up.
    """

    def __init__(
        self,
        model: str,
        layer: int,
        runtime: str = "torch",
        device: str = "auto",
        dtype: str = "auto",
        exits: Path | None = None,
        documents: str = "",
    ) -> None:
        """Load the layers that queries run through, and no others; layer 0 needs no torch.

        Args:
            model: folder or id.
            layer: of the queries.
            runtime: torch, onnx or openvino.
            device: as `choose_device` takes it.
            dtype: as `choose_dtype` takes it.
            exits: folder of the exits of an index, used in place of those of the model.
            documents: fingerprint of their model, where `exits` lead to its vectors from those of
                this one, its words beside them.

        Raises:
            UserError: as `WordTable.open` and `open_runtime` do, or a runtime was named at layer 0,
                or `exits` lead nowhere from this model.
        """
        self.layer, self.lock = layer, threading.Lock()
        self.opened: OpenedRuntime | None = None
        self.words: WordTable | None = None
        self.card = read_card(model)
        self.bridge: WordTable | None = None
        if documents and exits is not None:
            check_exits(exits, documents, WORDS)
            self.bridge, exits = WordTable.open(exits), None
            if self.bridge.query_model != encoding_of(label_of(self.card, "")):
                raise UserError(
                    f"The index was not fitted for queries of {model}; m2dr index fit "
                    "--query-model does so."
                )
        if layer == 0:
            if runtime != "torch":
                raise UserError(f"--runtime {runtime} was asked for, and layer 0 is words alone.")
            self.words = _open_words(model, self.card, exits)
            return
        from m2dr.model.graphs import open_runtime

        if runtime != "torch":  # a graph is opened without a look at exits, and has no words
            if exits is not None:
                check_exits(exits, self.card.fingerprint, EXITS)
            if exits is not None or self.card.exit_head == "fitted":
                self.words = _open_words(model, self.card, exits)
        self.opened = open_runtime(runtime, model, layer, device, dtype, cache_folder(), exits)
        self.card = self.opened.runtime.card
        fitted = getattr(self.opened.runtime, "fitted", None)
        self.words = fitted.words if fitted is not None else self.words

    @classmethod
    def over_bridge(
        cls, model: str, documents: ModelCard, exits: Path, device: str, dtype: str
    ) -> "QueryEncoder":
        """Load a whole model whose queries search vectors of another.

        Args:
            model: folder or id of the queries' model.
            documents: card of the documents' model.
            exits: folder of the exits of their index, which hold the bridge.
            device: as `choose_device` takes it.
            dtype: as `choose_dtype` takes it; int8 is of documents alone.

        Raises:
            UserError: the index was not fitted for queries of this model.
        """
        layer = read_card(model).query_layer
        return cls(model, layer, "torch", device, of_queries(dtype), exits, documents.fingerprint)

    def tokenize(self, texts: Sequence[str], side: Side = "query") -> list[list[int]]:
        """Return the token ids of queries or documents, cut at the model's length.

        At layer 0 they are the rows of their words.
        """
        if self.opened is None:
            assert self.words is not None
            return [self.words.tokenize(text) for text in texts]
        with self.lock:
            return tokenize(self.card, self.opened.tokenizer, texts, side)

    def embed(self, rows: Sequence[Sequence[int]], texts: Sequence[str]) -> Float32:
        """Return the vectors of texts and their token rows, [N, W], in order, not normalised."""
        if self.opened is None:
            assert self.words is not None
            return self.words.embed_tokens(rows)
        vectors = np.zeros((len(texts), self.card.width), np.float32)
        self._run(rows, vectors)
        if self.words is not None:
            self.words.add(vectors[None], [self.layer], texts)
        return vectors if self.bridge is None else self.bridge.bridged(vectors, texts)

    def _run(self, rows: Sequence[Sequence[int]], vectors: Float32) -> None:
        assert self.opened is not None
        runtime, layers = self.opened.runtime, [self.layer]
        # Sorting and padding a single query costs as much as half a layer.
        if len(rows) == 1 and rows[0]:
            ids = np.array(rows, np.int64)
            vectors[:] = runtime.embed(ids, np.ones_like(ids), layers)[0]
            return
        for chosen in buckets([len(row) for row in rows], tokens_per_batch(runtime.device.type)):
            ids, mask = pad([rows[number] for number in chosen], self.opened.tokenizer.pad_id)
            vectors[chosen] = runtime.embed(ids, mask, layers)[0]

    def share_weights(self, other: "QueryEncoder") -> None:
        """Hold the tensors of another encoder of the model in place of equal ones."""
        from m2dr.model.encoder import Encoder as TorchEncoder
        from m2dr.model.encoder import share_weights

        mine, theirs = (one.opened and one.opened.runtime for one in (self, other))
        if isinstance(mine, TorchEncoder) and isinstance(theirs, TorchEncoder):
            share_weights(mine, theirs)

    def warm_up(self) -> None:
        """Run a few queries, so that libraries are loaded before the first one that counts."""
        for _ in range(_WARM_UPS):
            self.embed(self.tokenize([SAMPLE]), [SAMPLE])


def _open_words(model: str, card: ModelCard, exits: Path | None) -> WordTable:
    """Open layer 0 of a model, or of the exits of an index, which must be their record's."""
    if exits is not None:
        check_exits(exits, card.fingerprint, WORDS)
    return WordTable.open(exits or find_folder(model))
