"""Words towards vectors in closed form: the query encoder that runs no layer.

Shapes: N texts, F words, W dims of a vector.
"""

from array import array
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse

from m2dr.core.analyzer import Analyzer, language_of
from m2dr.core.arrays import Float32, Floats

POWER = 1.5  # of the weight log(1 + N / df) of a word
RIDGE = 0.5  # λ
STEPS = 12  # of conjugate gradients; more change no ranking
MOST_WORDS = 250_000  # the most frequent ones
PER_TOKEN = 1.5  # words that are read of a text for each token that its vector is of
_BLOCK = 64  # columns that are solved together: their rows stay in the processor's cache
_LOOKED_AT = 500  # texts whose language is looked at


class FittedWords(NamedTuple):
    """What a WordTable is made of; the names are its own."""

    rows: dict[str, int]
    weights: Float32
    table: Float32
    language: str
    limit: int


def fit_words(
    texts: Iterable[str],
    vectors: Floats,
    tokens: int,
    language: str = "",
    advance: Callable[[int], None] = lambda _: None,
) -> FittedWords:
    """Fit a vector for each word such that the words of a text give its vector.

    W = argmin ‖A W − (V − μ)‖² + λ ‖W‖², with a row of A for each text: √(number of the word in it)
    · log(1 + N / df)^1.5, scaled to length 1; μ the mean of the vectors, which no query gets back:
    it would reward documents that are close to everything. By conjugate gradients, in memory of
    the words in all texts and F · W numbers. Choices: docs/decisions/0023-words-in-closed-form.md.

    Args:
        texts: N of them.
        vectors: [N, W], finite.
        tokens: that a vector is of at most; PER_TOKEN words for each are read of a text.
        language: of the stemmer, or "none"; by default that of the texts.
        advance: told how many more texts were read.

    Raises:
        ValueError: a vector is not finite, or there are not as many as texts.
    """
    stream = iter(texts)
    first = list(islice(stream, _LOOKED_AT))
    analyzer, limit = Analyzer(language or language_of(first)), round(PER_TOKEN * tokens)
    vocabulary: dict[str, int] = {}
    rows, ends = array("q"), array("q", [0])
    for text in chain(first, stream):
        words = analyzer(text)[:limit]
        rows.extend(vocabulary.setdefault(word, len(vocabulary)) for word in words)
        ends.append(len(rows))
        advance(1)
    if len(ends) != len(vectors) + 1:
        raise ValueError(f"there are {len(ends) - 1:,} texts and {len(vectors):,} vectors")
    counts = sparse.csr_matrix(
        (np.ones(len(rows), np.float32), np.frombuffer(rows, np.int64), np.array(ends)),
        (len(vectors), len(vocabulary)),
    )
    counts.sum_duplicates()
    documents = counts.getnnz(axis=0)
    kept = np.sort(np.argsort(-documents, kind="stable")[:MOST_WORDS])
    names = list(vocabulary)
    names, documents = [names[row] for row in kept.tolist()], documents[kept]
    weights = (np.log1p(len(vectors) / np.maximum(documents, 1)) ** POWER).astype(np.float32)
    shares = counts[:, kept].sqrt() @ sparse.diags_array(weights)
    lengths = np.sqrt(shares.power(2).sum(axis=1)).reshape(-1, 1)
    shares = sparse.csr_matrix(shares.multiply(1 / np.maximum(lengths, 1e-12)), dtype=np.float32)
    table = solve(shares, vectors, RIDGE)
    numbers = {name: row for row, name in enumerate(names)}
    return FittedWords(numbers, weights, table, analyzer.language, limit)


def solve(
    shares: sparse.csr_matrix,
    vectors: Floats,
    ridge: float,
    steps: int = STEPS,
) -> Float32:
    """Return W [F, W] = argmin ‖A W − (V − μ)‖² + λ ‖W‖², by conjugate gradients.

    Args:
        shares: A [N, F].
        vectors: V [N, W].
        ridge: λ.
        steps: of the descent.

    Raises:
        ValueError: a vector is not finite.
    """
    turned = shares.T.tocsr()
    table = np.empty((shares.shape[1], vectors.shape[1]), np.float32)

    def descend(start: int) -> None:
        block = np.array(vectors[:, start : start + _BLOCK], np.float32)
        if not np.isfinite(block).all():
            raise ValueError("a vector is not finite")
        if len(block) > 1:  # a single text would be its own mean
            block -= block.mean(axis=0, dtype=np.float64).astype(np.float32)
        rest = turned @ block
        block_table, way = np.zeros_like(rest), rest.copy()
        squares = np.einsum("fw,fw->w", rest, rest)
        for _ in range(steps):
            slope = turned @ (shares @ way) + np.float32(ridge) * way
            rate = squares / np.maximum(np.einsum("fw,fw->w", way, slope), 1e-30)
            block_table += rate * way
            rest -= rate * slope
            before, squares = squares, np.einsum("fw,fw->w", rest, rest)
            way = rest + squares / np.maximum(before, 1e-30) * way
        table[:, start : start + _BLOCK] = block_table

    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        list(threads.map(descend, range(0, vectors.shape[1], _BLOCK)))
    return table
