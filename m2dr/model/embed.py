"""Texts become vectors, in batches of similar length.

Shapes: L layers, N texts, P dims of a pooled state, W width of the model.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar, cast

import numpy as np

from m2dr.core.arrays import Float32, Int64
from m2dr.core.progress import Advance
from m2dr.core.records import ModelCard, Side
from m2dr.model.tokenizer import tokenize
from m2dr.model.tokens import Ragged, buckets

if TYPE_CHECKING:
    from m2dr.model.encoder import IdsAndMask
    from m2dr.model.graphs import BatchEncoder, GraphRuntime
    from m2dr.model.tokenizer import ModelTokenizer

# On a CPU any budget from 512 to 16,384 gives the same rate, and a small one takes less memory.
TOKENS_PER_BATCH = 2048
TOKENS_PER_BATCH_CUDA = 65536
AT_ONCE = 4096  # texts that are tokenised at a time, and sorted by length into batches

Runtime = TypeVar("Runtime", bound="BatchEncoder | GraphRuntime", covariant=True)


def tokens_per_batch(device: str) -> int:
    """Return how many tokens, padding included, a batch has at most on a type of device."""
    return TOKENS_PER_BATCH_CUDA if device == "cuda" else TOKENS_PER_BATCH


class TextEncoder(NamedTuple, Generic[Runtime]):
    """The layers of a model in a runtime, and the tokenizer that texts pass before them.

    Attributes:
        runtime: gives the vectors of batches of tokens: an encoder in torch, or a graph.
        tokenizer: of the model.
    """

    runtime: Runtime
    tokenizer: "ModelTokenizer"

    @property
    def card(self) -> ModelCard:
        """The card of the model, with the prompts and lengths of texts."""
        return self.runtime.card

    def tokens(self, texts: Sequence[str], side: Side) -> Ragged:
        """Return the token ids of texts behind the prompt of their side."""
        return Ragged.of(tokenize(self.card, self.tokenizer, texts, side))

    def vectors(
        self,
        texts: Sequence[str],
        side: Side,
        layers: Sequence[int],
        advance: Advance = lambda _: None,
    ) -> Float32:
        """Return the vectors of texts, [L, N, W], in the order of the texts, not normalised."""
        return self.of_tokens(self.tokens(texts, side), layers, texts, advance)

    def of_tokens(
        self,
        rows: Sequence[Sequence[int]] | Ragged,
        layers: Sequence[int],
        texts: Sequence[str] = (),
        advance: Advance = lambda _: None,
        budget: int | None = None,
        longest_first: bool = True,
    ) -> Float32:
        """Return the vectors of token rows, [L, N, W], in the order of the rows.

        A batch holds rows of similar length.

        Args:
            rows: token ids of N texts.
            layers: L of them.
            texts: the same N, whose words belong to the vectors of fitted exits.
            advance: receives the number of rows of each batch.
            budget: tokens of a batch, padding included; by default as many as suit the device.
            longest_first: whether the first batch is the one that fails where memory is short.
        """
        vectors = np.empty((len(layers), len(rows), self.card.width), np.float32)
        chosen, padded = self._batches(rows, budget, longest_first)
        for places, embedded in zip(chosen, self.runtime.embed_many(padded, layers), strict=True):
            vectors[:, places] = embedded
            advance(len(places))
        self._add_words(vectors, layers, texts)
        return vectors

    def with_states(
        self,
        rows: Ragged,
        layers: Sequence[int],
        chosen: Int64,
        texts: Sequence[str] = (),
        advance: Advance = lambda _: None,
    ) -> tuple[Float32, Float32]:
        """Embed token rows, and keep the states of some of them for a fit of exits, in one pass.

        Args:
            rows: of N texts.
            layers: L of them, the last one that is loaded included; that one by default.
            chosen: numbers of n rows, increasing.
            texts: as for `of_tokens`.
            advance: likewise.

        Returns:
            [L, N, W], and [n, (layers - 1) P + W] as `Encoder.states` gives it for the last layer.
        """
        runtime, width = cast("BatchEncoder", self.runtime), self.card.width
        layers = layers or (runtime.layers,)
        states = (runtime.layers - 1) * runtime.pooled_width
        vectors = np.empty((len(layers), len(rows), width), np.float32)
        chosen_states = np.empty((len(chosen), states + width), np.float32)
        batches, padded = self._batches(rows)
        for batch, batch_states in zip(batches, runtime.states_many(padded, layers), strict=True):
            by_layer = batch_states[:, states:].reshape(len(batch), len(layers), width)
            vectors[:, batch] = by_layer.swapaxes(0, 1)
            is_chosen = np.isin(batch, chosen)
            targets = np.searchsorted(chosen, batch[is_chosen])
            chosen_states[targets, :states] = batch_states[is_chosen, :states]
            chosen_states[targets, states:] = by_layer[is_chosen, layers.index(runtime.layers)]
            advance(len(batch))
        self._add_words(vectors, layers, texts)
        return vectors, chosen_states

    def states(
        self, texts: Sequence[str], side: Side, advance: Advance = lambda _: None
    ) -> Float32:
        """Return the states of texts, [N, (layers - 1) P + W], as `with_states` does."""
        rows = self.tokens(texts, side)
        return self.with_states(rows, (), np.arange(len(rows)), advance=advance)[1]

    def _batches(
        self,
        rows: Sequence[Sequence[int]] | Ragged,
        budget: int | None = None,
        longest_first: bool = True,
    ) -> "tuple[list[Int64], Iterator[IdsAndMask]]":
        """Return the row numbers of batches, and these padded."""
        if not isinstance(rows, Ragged):
            if len(rows) == 1 and rows[0]:  # to sort and pad it costs as much as half a layer
                ids = np.array(rows, np.int64)
                return [np.zeros(1, np.int64)], iter([(ids, np.ones_like(ids))])
            rows = Ragged.of(rows)
        ragged, budget = rows, budget or tokens_per_batch(self.runtime.device.type)
        chosen = buckets(ragged.lengths, budget, longest_first)
        return chosen, (ragged.pad(each, self.tokenizer.pad_id) for each in chosen)

    def _add_words(self, vectors: Float32, layers: Sequence[int], texts: Sequence[str]) -> None:
        words = self.runtime.words
        if words is not None and not set(words.layers).isdisjoint(layers):
            assert len(texts) == vectors.shape[1], "words belong to the vectors of these layers"
            words.add(vectors, layers, texts)
