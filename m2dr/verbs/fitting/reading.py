"""Texts to what a fit sums: token rows, features of the tokens, pooled states, embeddings."""

# Shapes in this file:
#   S shallow layers, N texts, V ids of the vocabulary, P dims of a pooled state, W dims of the
#   embedding.

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from m2dr.model.checkpoint import Tokenizer
from m2dr.model.encoder import Encoder
from m2dr.model.fitted import TokenFeatures, token_features
from m2dr.records.card import ModelCard
from m2dr.records.texts import Side
from m2dr.text.ragged import Ragged
from m2dr.text.tokens import buckets
from m2dr.train.fit import Sample
from m2dr.verbs.encoding import (
    embed_tokens,
    embed_tokens_and_states,
    tokenize,
    tokens_per_batch,
)
from m2dr.verbs.fitting.texts import snippets

SNIPPETS = 2  # of each long text


def rows_of(
    card: ModelCard, tokenizer: Tokenizer, texts: Sequence[tuple[Side, str]], length: int
) -> list[list[int]]:
    """Return the token ids of texts, each with the prefix and length of its side.

    Args:
        card: of the model.
        tokenizer: of the same model.
        texts: with the sides that they are encoded as.
        length: tokens of a text, at most. The exits of a fit that reads 64 find what those do of
            one that reads all, in a third of the time.
    """
    card = replace(
        card,
        query_length=min(card.query_length, length),
        document_length=min(card.document_length, length),
    )
    rows: list[list[int]] = [[] for _ in texts]
    sides: tuple[Side, ...] = ("query", "document")
    for side in sides:
        places = [place for place, (found, _) in enumerate(texts) if found == side]
        found = tokenize(card, tokenizer, [texts[place][1] for place in places], side)
        for place, row in zip(places, found, strict=True):
            rows[place] = row
    return rows


def count_tokens(rows: Ragged, ids: int) -> NDArray[np.int64]:
    """Return how often each id stands in some rows, [V]."""
    return np.bincount(rows.tokens, minlength=ids)


def read_features(
    encoder: Encoder,
    tokenizer: Tokenizer,
    counts: NDArray[np.int64],
    identity: int,
    advance: Callable[[int], None] = lambda _: None,
) -> TokenFeatures:
    """Return the features of tokens; the full model embeds each token of the vocabulary alone.

    Args:
        encoder: with all layers.
        tokenizer: of the same model.
        counts: [V], how often each id stands in the texts of the fit.
        identity: random signs per token.
        advance: is told how many tokens have been embedded.
    """
    ids = tokenizer.ordinary_ids()
    rows = tokenizer.alone(ids)
    layer = encoder.blocks
    found = embed_tokens(encoder, rows, tokenizer.pad_id, (layer,), advance)[0]
    single = np.zeros((len(counts), found.shape[1]), np.float32)
    single[ids] = found
    special = sorted({*range(len(counts))} - {*ids})
    return token_features(encoder.words, single, counts, special, identity)


def read_texts(
    encoder: Encoder,
    tokenizer: Tokenizer,
    features: TokenFeatures,
    texts: Sequence[tuple[Side, str]],
    length: int,
    draw: np.random.Generator,
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[Sample, NDArray[np.int64]]:
    """Run texts, and snippets of the long ones, through all layers.

    Args:
        encoder: with all layers.
        tokenizer: of the same model.
        features: of its tokens.
        texts: with the sides that they are encoded as.
        length: tokens of a text, at most.
        draw: of the snippets.
        advance: is told how many texts have been run.

    Returns:
        The texts and then the snippets; and the place of the text that each snippet is of.
    """
    found = read_sample(
        encoder,
        features,
        Ragged.of(rows_of(encoder.card, tokenizer, texts, length)),
        tokenizer.pad_id,
        advance,
    )
    parts, of = snippets([text for _, text in texts], SNIPPETS, draw)
    if parts:
        asked: list[tuple[Side, str]] = [("query", part) for part in parts]
        rows = Ragged.of(rows_of(encoder.card, tokenizer, asked, length))
        found += read_sample(encoder, features, rows, tokenizer.pad_id)
    return found, of


def read_sample(
    encoder: Encoder,
    features: TokenFeatures,
    rows: Ragged,
    pad_id: int,
    advance: Callable[[int], None] = lambda _: None,
) -> Sample:
    """Run texts through all layers.

    Args:
        encoder: with all layers.
        features: of its tokens.
        rows: token ids of N texts.
        pad_id: fills up short rows.
        advance: is told how many texts have been run.
    """
    everything = np.arange(len(rows))
    layers = (encoder.blocks,)
    _, states = embed_tokens_and_states(encoder, rows, pad_id, layers, everything, advance)
    return as_sample(states, token_parts(encoder, features, rows, pad_id), encoder)


def token_parts(
    encoder: Encoder, features: TokenFeatures, rows: Ragged, pad_id: int
) -> NDArray[np.float32]:
    """Return the features of the tokens of texts, [N, F]."""
    batches = buckets(rows.lengths, tokens_per_batch(encoder.device.type), longest_first=True)
    padded = (rows.pad(chosen, pad_id) for chosen in batches)
    found = np.empty((len(rows), features.width(encoder.words)), np.float32)
    for chosen, tokens in zip(batches, encoder.features_many(features, padded), strict=True):
        found[chosen] = tokens
    return found


def as_sample(states: NDArray[np.float32], tokens: NDArray[np.float32], encoder: Encoder) -> Sample:
    """Return a sample of states as `Encoder.states` gives them, [N, S P + W].

    Targets are the embeddings, divided by their length where they are compared by cosine.
    """
    width = encoder.card.width
    targets = states[:, -width:]
    if encoder.card.similarity == "cosine":
        lengths = np.linalg.norm(targets, axis=1, keepdims=True)
        targets = targets / np.maximum(lengths, np.float32(1e-12))
    shallow = states[:, :-width].reshape(len(states), encoder.blocks - 1, encoder.pooled_width)
    return Sample(np.ascontiguousarray(shallow.swapaxes(0, 1)), tokens, targets)
