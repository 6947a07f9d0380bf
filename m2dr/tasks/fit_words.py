"""What layer 0 of an index reads of texts, with whole words of the corpus."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from m2dr.core.progress import progress
from m2dr.data.tokens import Ragged, batched
from m2dr.model.encoder import Encoder
from m2dr.model.token_features import TokenFeatures, WordFeatures, with_words
from m2dr.model.tokenizer import ModelTokenizer
from m2dr.model.whole_words import WholeWords
from m2dr.tasks.encode_texts import embed_tokens
from m2dr.tasks.fit_texts import count_tokens

_AT_ONCE = 1024  # texts whose rows are lists at a time


def word_features(
    encoder: Encoder, tokenizer: ModelTokenizer, tokens: TokenFeatures, rows: Ragged
) -> tuple[WordFeatures, Ragged, Callable[[Ragged], Ragged]] | None:
    """Return the features of texts in which the words of all of them stand beside their pieces.

    Args:
        encoder: with all layers; it embeds each word alone.
        tokenizer: of the same model.
        tokens: features of its tokens.
        rows: token ids of N texts.

    Returns:
        The features, the texts as rows of ids with words, and a function that gives such rows of
        other texts; None where the tokenizer splits no word twice, or is of a kind to which none
        can be added.
    """
    found = WholeWords.of(tokenizer, _texts(rows), len(encoder.words))
    if found is None:
        return None
    words, pieces = found
    with_its_words = partial(rows_with_words, words, pieces, len(encoder.words))
    longer = with_its_words(rows)
    counts = count_tokens(longer, len(encoder.words) + words.count)
    with progress("Reading words", len(pieces), "words") as advance:
        around, layers = tokenizer.enclosed(pieces), (encoder.layers,)
        alone = embed_tokens(encoder, around, tokenizer.pad_id, layers, advance)[0]
    identity = tokens.identity
    features = with_words(tokens, encoder.words, words, pieces, alone, counts, identity)
    return features, longer, with_its_words


def rows_with_words(
    words: WholeWords, pieces: Sequence[Sequence[int]], first: int, rows: Ragged
) -> Ragged:
    """Return texts as rows in which each word stands before its pieces.

    Args:
        words: the tokenizer with words.
        pieces: ids of the tokens of each word.
        first: the id of the first word.
        rows: token ids of the texts without words.
    """

    def beside(row: list[int]) -> list[int]:
        return [n for word in row for n in (word, *(pieces[word - first] if word >= first else ()))]

    some = batched(_texts(rows), _AT_ONCE)
    parts = [Ragged.of([beside(row) for row in words.rows(texts)]) for texts in some]
    return Ragged(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.lengths for part in parts]),
    )


def _texts(rows: Ragged) -> Iterator[list[int]]:
    """Yield rows as lists, which take ten times the memory of an array."""
    end = 0
    for length in rows.lengths.tolist():
        start, end = end, end + length
        yield rows.tokens[start:end].tolist()
