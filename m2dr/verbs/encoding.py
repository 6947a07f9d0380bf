"""Texts to vectors at several layers: the walk that training, indexing and searching share."""

# Shapes in this room:
#   L layers, N texts, H width.

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from m2dr.model.checkpoint import Tokenizer
from m2dr.model.encoder import Encoder
from m2dr.records.card import ModelCard
from m2dr.text.tokens import buckets, pad

TOKENS_PER_BATCH = 2048  # on a CPU, activations that fit its cache are worth more than big batches
TOKENS_PER_BATCH_CUDA = 65536

Side = Literal["query", "document"]


def tokenize(
    card: ModelCard, tokenizer: Tokenizer, texts: Sequence[str], side: Side
) -> list[list[int]]:
    """Token ids of texts, with the prefix and the length that the model was trained with."""
    if side == "query":
        return tokenizer([card.query_prefix + text for text in texts], card.query_length)
    return tokenizer([card.document_prefix + text for text in texts], card.document_length)


def embed_tokens(
    encoder: Encoder,
    rows: Sequence[Sequence[int]],
    pad_id: int,
    layers: Sequence[int],
    advance: Callable[[int], None] = lambda _: None,
) -> NDArray[np.float32]:
    """[L, N, H] of token rows, in their order; batches are made of rows of like length."""
    budget = TOKENS_PER_BATCH_CUDA if encoder.device.type == "cuda" else TOKENS_PER_BATCH
    vectors = np.empty((len(layers), len(rows), encoder.card.width), dtype=np.float32)
    for chosen in buckets([len(row) for row in rows], budget):
        ids, mask = pad([rows[i] for i in chosen], pad_id)
        vectors[:, chosen] = encoder.embed(ids, mask, layers)
        advance(len(chosen))
    return vectors


def embed_texts(
    encoder: Encoder,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    side: Side,
    layers: Sequence[int],
    advance: Callable[[int], None] = lambda _: None,
) -> NDArray[np.float32]:
    """[L, N, H] of texts, in their order, not normalised."""
    rows = tokenize(encoder.card, tokenizer, texts, side)
    return embed_tokens(encoder, rows, tokenizer.pad_id, layers, advance)
