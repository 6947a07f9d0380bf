"""Words towards vectors in closed form: the query encoder that runs no layer.

Shapes: N texts, F words, W dims of a vector.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse

from m2dr.core.analyzer import Analyzer, language_of
from m2dr.core.arrays import Float32, Floats
from m2dr.model.words import WordTable

POWER = 1.5  # of the weight log(1 + N / df) of a word
RIDGE = 0.5  # λ
CG_STEPS = 12  # of conjugate gradients; more change no ranking
STEPS_BESIDE = 20  # with short texts, whose weights differ
MOST_WORDS = 250_000  # the most frequent ones
MOST_WEIGHT = 3.0  # of a short text beside a document of weight 1
AS_MANY = 50  # short texts whose mean is halfway between their own and that of the documents
PER_TOKEN = 1.5  # words that are read of a text for each token that its vector is of
_BLOCK = 64  # columns that are solved together: their rows stay in the processor's cache
_LOOKED_AT = 500  # texts whose language is looked at


class ShortTexts(NamedTuple):
    """Texts as short as queries, with the vectors of the full model.

    Attributes:
        texts: n of them.
        vectors: [n, W], encoded as queries.
        weight: of all together, where the documents together have 1; one of them has at most
            MOST_WEIGHT times that of a document.
    """

    texts: Sequence[str]
    vectors: Floats
    weight: float

    def roots(self, documents: int) -> Float32:
        """Return the root of the weight of each, [n]."""
        each = min(self.weight * documents / max(len(self.texts), 1), MOST_WEIGHT)
        return np.full(len(self.texts), each**0.5, np.float32)

    def centred(self, centre: Float32) -> Floats:
        """Return the vectors moved such that their mean is that of the documents.

        Else the words of short texts learn how these differ from documents on the whole, and rank
        documents by that. The mean of few is none.
        """
        moved: Floats = self.vectors - (self.vectors - centre).sum(axis=0) / (
            len(self.texts) + AS_MANY
        )
        return moved


class WordRows(NamedTuple):
    """What texts say in words.

    Attributes:
        rows: row of each word.
        weights: [F] of the words.
        shares: A [N, F].
        language: of the stems.
        limit: words of a text that are read.
    """

    rows: dict[str, int]
    weights: Float32
    shares: sparse.csr_matrix
    language: str
    limit: int

    def shares_of(self, texts: Iterable[str]) -> sparse.csr_matrix:
        """Return the rows of other texts, [n, F]; what they say in other words is left out."""
        analyzer = Analyzer(self.language)
        words = (analyzer(text)[: self.limit] for text in texts)
        known = ([self.rows[word] for word in some if word in self.rows] for some in words)
        return _shares(_counts(known, len(self.rows)), self.weights)

    def fit(self, vectors: Floats, beside: Sequence[ShortTexts] = ()) -> WordTable:
        """Fit a vector for each word such that the words of a text give its vector.

        W = argmin ‖A W − (V − μ)‖² + Σ w ‖S W − (E − μ')‖² + λ ‖W‖², with a row of A for each text:
        √(number of the word in it) · log(1 + N / df)^1.5, scaled to length 1; S, E and μ' the same
        of short texts of weight w; μ the mean of V, which no query gets back: it would reward
        documents that are close to everything. By conjugate gradients, in memory of the words in
        all texts and F · W numbers. Choices: docs/decisions/0023-words-in-closed-form.md.

        Args:
            vectors: V [N, W], finite.
            beside: short texts; with them `alone` is the table of documents alone.

        Raises:
            ValueError: a vector is not finite.
        """
        centre = None
        if len(vectors) > 1:  # a single text would be its own mean
            with np.errstate(invalid="ignore"):  # what is not finite is refused below
                centre = vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
        alone = solve(self.shares, vectors, RIDGE, centre=centre)
        table, short = alone, [each for each in beside if len(each.texts) and each.weight]
        if short:
            roots = [np.full(len(vectors), 1, np.float32)]
            roots += [each.roots(len(vectors)) for each in short]
            shares = sparse.vstack([self.shares, *(self.shares_of(s.texts) for s in short)])
            zero = np.zeros(vectors.shape[1], np.float32)
            middle = zero if centre is None else centre
            every = np.concatenate([vectors, *(each.centred(middle) for each in short)])
            table = solve(shares.tocsr(), every, RIDGE, np.concatenate(roots), centre, STEPS_BESIDE)
        given = self.rows, self.weights, table, self.language, self.limit
        return WordTable(*given, alone if short else None)


def read_words(
    texts: Iterable[str],
    count: int,
    tokens: int,
    language: str = "",
    advance: Callable[[int], None] = lambda _: None,
) -> WordRows:
    """Read the words of texts.

    Args:
        texts: as many as `count`.
        count: of the vectors that they are of.
        tokens: that a vector is of at most; PER_TOKEN words for each are read of a text.
        language: of the stemmer, or "none"; by default that of the texts.
        advance: told how many more texts were read.

    Raises:
        ValueError: there are not as many.
    """
    stream = iter(texts)
    first = list(islice(stream, _LOOKED_AT))
    analyzer, limit = Analyzer(language or language_of(first)), round(PER_TOKEN * tokens)
    vocabulary: dict[str, int] = {}

    def numbers() -> Iterator[list[int]]:
        for text in chain(first, stream):
            words = analyzer(text)[:limit]
            yield [vocabulary.setdefault(word, len(vocabulary)) for word in words]
            advance(1)

    counts = _counts(numbers())
    if counts.shape[0] != count:
        raise ValueError(f"there are {counts.shape[0]:,} texts and {count:,} vectors")
    documents = counts.getnnz(axis=0)
    kept = np.sort(np.argsort(-documents, kind="stable")[:MOST_WORDS])
    names = list(vocabulary)
    names, documents = [names[row] for row in kept.tolist()], documents[kept]
    weights = (np.log1p(count / np.maximum(documents, 1)) ** POWER).astype(np.float32)
    rows = {name: row for row, name in enumerate(names)}
    return WordRows(rows, weights, _shares(counts[:, kept], weights), analyzer.language, limit)


def _counts(texts: Iterable[Sequence[int]], words: int | None = None) -> sparse.csr_matrix:
    """Return how often each word is in each text, [N, F], from the numbers of their words."""
    rows, ends = array("q"), array("q", [0])
    for numbers in texts:
        rows.extend(numbers)
        ends.append(len(rows))
    width = max(rows, default=-1) + 1 if words is None else words
    counts = sparse.csr_matrix(
        (np.ones(len(rows), np.float32), np.frombuffer(rows, np.int64), np.array(ends)),
        (len(ends) - 1, width),
    )
    counts.sum_duplicates()
    return counts


def _shares(counts: sparse.csr_matrix, weights: Float32) -> sparse.csr_matrix:
    """Return rows of length 1, [N, F]."""
    shares = counts.sqrt() @ sparse.diags_array(weights)
    lengths = np.sqrt(shares.power(2).sum(axis=1)).reshape(-1, 1)
    return sparse.csr_matrix(shares.multiply(1 / np.maximum(lengths, 1e-12)), dtype=np.float32)


def solve(
    shares: sparse.csr_matrix,
    vectors: Floats,
    ridge: float,
    roots: Float32 | None = None,
    centre: Float32 | None = None,
    steps: int = CG_STEPS,
) -> Float32:
    """Return W [F, W] = argmin ‖√w (A W − (V − μ))‖² + λ ‖W‖², by conjugate gradients.

    Args:
        shares: A [N, F].
        vectors: V [N, W].
        ridge: λ.
        roots: √w [N]; 1 by default.
        centre: μ [W]; 0 by default.
        steps: of the descent.

    Raises:
        ValueError: a vector is not finite.
    """
    if roots is not None:
        shares = sparse.csr_matrix(sparse.diags_array(roots) @ shares, dtype=np.float32)
    turned = shares.T.tocsr()
    table = np.empty((shares.shape[1], vectors.shape[1]), np.float32)

    def descend(start: int) -> None:
        block = np.array(vectors[:, start : start + _BLOCK], np.float32)
        if not np.isfinite(block).all():
            raise ValueError("a vector is not finite")
        if centre is not None:
            block -= centre[start : start + _BLOCK]
        if roots is not None:
            block *= roots[:, None]
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
