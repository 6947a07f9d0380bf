"""Texts to vectors at several layers: the walk that training, indexing and searching share."""

# Shapes in this room:
#   L layers, N texts, H width.

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from m2dr.records.card import ModelCard
from m2dr.records.texts import Side
from m2dr.text.ragged import Ragged
from m2dr.text.tokens import buckets

if TYPE_CHECKING:  # both load torch, which a search at layer 0 does without
    from m2dr.model.checkpoint import Tokenizer
    from m2dr.model.encoder import Encoder

# On a CPU any budget from 512 to 16,384 gives the same rate, and a small one takes less memory.
TOKENS_PER_BATCH = 2048
TOKENS_PER_BATCH_CUDA = 65536


def tokenize(
    card: ModelCard, tokenizer: "Tokenizer", texts: Sequence[str], side: Side
) -> list[list[int]]:
    """Token ids of texts, with the prefix and the length that the model was trained with."""
    if side == "query":
        return tokenizer([card.query_prefix + text for text in texts], card.query_length)
    return tokenizer([card.document_prefix + text for text in texts], card.document_length)


def tokens_per_batch(device: str) -> int:
    """Return how many tokens, padding included, a batch has at most on a type of device."""
    return TOKENS_PER_BATCH_CUDA if device == "cuda" else TOKENS_PER_BATCH


def embed_tokens(
    encoder: "Encoder",
    rows: Sequence[Sequence[int]] | Ragged,
    pad_id: int,
    layers: Sequence[int],
    advance: Callable[[int], None] = lambda _: None,
) -> NDArray[np.float32]:
    """[L, N, H] of token rows, in their order.

    Batches are made of rows of like length, longest first: where memory does not suffice, the
    first batch says so.
    """
    rows = rows if isinstance(rows, Ragged) else Ragged.of(rows)
    budget = tokens_per_batch(encoder.device.type)
    vectors = np.empty((len(layers), len(rows), encoder.card.width), dtype=np.float32)
    batches = buckets(rows.lengths, budget, longest_first=True)
    padded = (rows.pad(chosen, pad_id) for chosen in batches)
    for chosen, found in zip(batches, encoder.embed_many(padded, layers), strict=True):
        vectors[:, chosen] = found
        advance(len(chosen))
    return vectors


def embed_tokens_and_states(
    encoder: "Encoder",
    rows: Ragged,
    pad_id: int,
    layers: Sequence[int],
    chosen: NDArray[np.int64],
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Embed token rows, and keep of some of them what a fit of exits reads, in one pass.

    Args:
        encoder: with all layers.
        rows: of N texts.
        pad_id: fills up short rows.
        layers: L of them, the last one among them.
        chosen: numbers of n rows, increasing.
        advance: is told how many rows have been run.

    Returns:
        [L, N, H], and [n, (layers - 1) P + H] as `Encoder.states` gives it for the last layer.
    """
    budget = tokens_per_batch(encoder.device.type)
    width, states = encoder.card.width, (encoder.blocks - 1) * encoder.pooled_width
    vectors = np.empty((len(layers), len(rows), width), dtype=np.float32)
    kept = np.empty((len(chosen), states + width), dtype=np.float32)
    batches = buckets(rows.lengths, budget, longest_first=True)
    padded = (rows.pad(batch, pad_id) for batch in batches)
    for batch, found in zip(batches, encoder.states_many(padded, layers), strict=True):
        by_layer = found[:, states:].reshape(len(batch), len(layers), width)
        vectors[:, batch] = by_layer.swapaxes(0, 1)
        mine = np.isin(batch, chosen)
        places = np.searchsorted(chosen, batch[mine])
        kept[places, :states] = found[mine, :states]
        kept[places, states:] = by_layer[mine, layers.index(encoder.blocks)]
        advance(len(batch))
    return vectors, kept


def embed_texts(
    encoder: "Encoder",
    tokenizer: "Tokenizer",
    texts: Sequence[str],
    side: Side,
    layers: Sequence[int],
    advance: Callable[[int], None] = lambda _: None,
) -> NDArray[np.float32]:
    """[L, N, H] of texts, in their order, not normalised."""
    rows = tokenize(encoder.card, tokenizer, texts, side)
    return embed_tokens(encoder, rows, tokenizer.pad_id, layers, advance)
