"""The exit of layer 0 of an index, whose tokenizer knows the words of the corpus."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from m2dr.data.tokens import Ragged, batched
from m2dr.model.encoder import Encoder
from m2dr.model.token_features import TokenFeatures, WordFeatures, with_words
from m2dr.model.tokenizer import ModelTokenizer
from m2dr.model.whole_words import WholeWords
from m2dr.pipelines.encode import embed_tokens
from m2dr.pipelines.fit_texts import as_sample, count_tokens, token_parts
from m2dr.progress import progress
from m2dr.settings.trainings import FitSettings
from m2dr.train.linear_fit import RIDGES_OF_SIGNS, FittedHead, Moments, Sample, fit_head

# Shapes in this file:
#   S shallow layers, N texts, P dims of a pooled state, W dims of the embedding.

_AT_ONCE = 1024  # texts whose products are summed at a time


def word_features(
    encoder: Encoder, tokenizer: ModelTokenizer, tokens: TokenFeatures, rows: Ragged
) -> tuple[WordFeatures, Ragged] | None:
    """Return the features of texts in which the words of all of them stand beside their pieces.

    Args:
        encoder: with all layers; it embeds each word alone.
        tokenizer: of the same model.
        tokens: features of its tokens.
        rows: token ids of N texts.

    Returns:
        The features, and the texts as rows of ids with words; None where the tokenizer splits no
        word twice, or is of a kind to which none can be added.
    """
    found = WholeWords.of(tokenizer, _texts(rows), len(encoder.words))
    if found is None:
        return None
    words, pieces = found
    first = len(encoder.words)

    def beside(row: list[int]) -> list[int]:
        return [n for word in row for n in (word, *(pieces[word - first] if word >= first else ()))]

    some = batched(_texts(rows), _AT_ONCE)
    parts = [Ragged.of([beside(row) for row in words.rows(texts)]) for texts in some]
    longer = Ragged(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.lengths for part in parts]),
    )
    counts = count_tokens(longer, first + words.count)
    with progress("Reading words", len(pieces), "words") as advance:
        around, layers = tokenizer.enclosed(pieces), (encoder.layers,)
        alone = embed_tokens(encoder, around, tokenizer.pad_id, layers, advance)[0]
    identity = tokens.identity
    features = with_words(tokens, encoder.words, words, pieces, alone, counts, identity)
    return features, longer


def _texts(rows: Ragged) -> Iterator[list[int]]:
    """Yield rows as lists, which take ten times the memory of an array."""
    end = 0
    for length in rows.lengths.tolist():
        start, end = end, end + length
        yield rows.tokens[start:end].tolist()


def fit_table(
    encoder: Encoder,
    features: WordFeatures,
    rows: Ragged,
    states: NDArray[np.float32],
    held: NDArray[np.bool_],
    pad_id: int,
) -> FittedHead:
    """Fit the exit of layer 0 on texts.

    Args:
        encoder: of the states.
        features: of the tokens and words.
        rows: ids of N texts, as `word_features` gives them.
        states: [N, S P + W], as `Encoder.states` gives them.
        held: [N] bool, the texts that λ is chosen by.
        pad_id: fills up short rows.

    Raises:
        ValueError: an embedding is not finite, or no λ has a solution.
    """

    def sample(chosen: NDArray[np.int64]) -> Sample:
        tokens = token_parts(encoder, features, rows.some(chosen), pad_id)
        found = as_sample(states[chosen], tokens, encoder)
        return replace(found, states=found.states[:0])  # layer 0 reads none

    moments, kept = Moments(0), np.flatnonzero(~held)
    with progress("Fitting layer 0", len(kept), "texts") as advance:
        for chosen in np.array_split(kept, -(-len(kept) // _AT_ONCE)):
            moments.add(sample(chosen))
            advance(len(chosen))
    judges = sample(np.flatnonzero(held))
    return fit_head(moments, judges, 0, FitSettings.inputs, RIDGES_OF_SIGNS)
