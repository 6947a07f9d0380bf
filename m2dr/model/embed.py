"""Texts become vectors, in batches of similar length.

Shapes: L layers, N texts, H width of the model.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from m2dr.core.arrays import Float32
from m2dr.core.records import Side
from m2dr.model.tokenizer import tokenize
from m2dr.model.tokens import Ragged, buckets

if TYPE_CHECKING:
    from m2dr.model.graphs import BatchEncoder
    from m2dr.model.tokenizer import ModelTokenizer

# On a CPU any budget from 512 to 16,384 gives the same rate, and a small one takes less memory.
TOKENS_PER_BATCH = 2048
TOKENS_PER_BATCH_CUDA = 65536
AT_ONCE = 4096  # texts that are tokenised at a time, and sorted by length into batches


def tokens_per_batch(device: str) -> int:
    """Return how many tokens, padding included, a batch has at most on a type of device."""
    return TOKENS_PER_BATCH_CUDA if device == "cuda" else TOKENS_PER_BATCH


def embed_tokens(
    encoder: "BatchEncoder",
    rows: Sequence[Sequence[int]] | Ragged,
    pad_id: int,
    layers: Sequence[int],
    advance: Callable[[int], None] = lambda _: None,
    budget: int | None = None,
    texts: Sequence[str] | None = None,
) -> NDArray[np.float32]:
    """Return the vectors of token rows, [L, N, H], in the order of the rows.

    A batch holds rows of similar length. The longest come first: where memory does not suffice,
    the first batch fails.

    Args:
        encoder: of the layers.
        rows: token ids of N texts.
        pad_id: fills up short rows.
        layers: L of them.
        advance: receives the number of rows of each batch.
        budget: tokens of a batch, padding included; by default as many as suit the device.
        texts: the same N, whose words belong to the vectors of fitted exits.
    """
    rows = rows if isinstance(rows, Ragged) else Ragged.of(rows)
    budget = budget or tokens_per_batch(encoder.device.type)
    vectors = np.empty((len(layers), len(rows), encoder.card.width), dtype=np.float32)
    batches = buckets(rows.lengths, budget, longest_first=True)
    padded = (rows.pad(chosen, pad_id) for chosen in batches)
    for chosen, embedded in zip(batches, encoder.embed_many(padded, layers), strict=True):
        vectors[:, chosen] = embedded
        advance(len(chosen))
    _add_words(encoder, vectors, layers, texts)
    return vectors


def _add_words(
    encoder: "BatchEncoder", vectors: Float32, layers: Sequence[int], texts: Sequence[str] | None
) -> None:
    words = encoder.fitted.words if encoder.fitted is not None else None
    if words is not None and not set(words.layers).isdisjoint(layers):
        assert texts is not None, "words belong to the vectors of these layers"
        words.add(vectors, layers, texts)


def embed_tokens_and_states(
    encoder: "BatchEncoder",
    rows: Ragged,
    pad_id: int,
    layers: Sequence[int],
    chosen: NDArray[np.int64],
    advance: Callable[[int], None] = lambda _: None,
    texts: Sequence[str] | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Embed token rows, and keep the states of some of them for a fit of exits, in one pass.

    Args:
        encoder: with all layers.
        rows: of N texts.
        pad_id: fills up short rows.
        layers: L of them, the last one included.
        chosen: numbers of n rows, increasing.
        advance: receives the number of rows of each batch.
        texts: as for `embed_tokens`.

    Returns:
        [L, N, H], and [n, (layers - 1) P + H] as `Encoder.states` gives it for the last layer.
    """
    budget = tokens_per_batch(encoder.device.type)
    width, states = encoder.card.width, (encoder.layers - 1) * encoder.pooled_width
    vectors = np.empty((len(layers), len(rows), width), dtype=np.float32)
    chosen_states = np.empty((len(chosen), states + width), dtype=np.float32)
    batches = buckets(rows.lengths, budget, longest_first=True)
    padded = (rows.pad(batch, pad_id) for batch in batches)
    for batch, batch_states in zip(batches, encoder.states_many(padded, layers), strict=True):
        by_layer = batch_states[:, states:].reshape(len(batch), len(layers), width)
        vectors[:, batch] = by_layer.swapaxes(0, 1)
        is_chosen = np.isin(batch, chosen)
        targets = np.searchsorted(chosen, batch[is_chosen])
        chosen_states[targets, :states] = batch_states[is_chosen, :states]
        chosen_states[targets, states:] = by_layer[is_chosen, layers.index(encoder.layers)]
        advance(len(batch))
    _add_words(encoder, vectors, layers, texts)
    return vectors, chosen_states


def embed_texts(
    encoder: "BatchEncoder",
    tokenizer: "ModelTokenizer",
    texts: Sequence[str],
    side: Side,
    layers: Sequence[int],
    advance: Callable[[int], None] = lambda _: None,
) -> NDArray[np.float32]:
    """Return the vectors of texts, [L, N, H], in the order of the texts, not normalised."""
    rows = tokenize(encoder.card, tokenizer, texts, side)
    return embed_tokens(encoder, rows, tokenizer.pad_id, layers, advance, texts=texts)
