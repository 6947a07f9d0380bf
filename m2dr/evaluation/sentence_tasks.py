"""Measures of sentence tasks: correlations, pair classification and classification of texts."""

# Shapes in this file:
#   N distinct texts, P pairs, H width, K prefix lengths, T distinct similarities, M test texts,
#   D dims of a cut.

import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import fsum

import numpy as np

from m2dr.core.arrays import Bools, Float32, Float64, Int64, Intp
from m2dr.core.errors import UserError
from m2dr.core.records import SentencePair

CLASS_MEASURES = ("Accuracy", "F1")  # F1 is the macro one: the plain mean over the classes


def distinct_sentences(pairs: Sequence[SentencePair]) -> tuple[list[str], Intp, Intp]:
    """Return each sentence once, in the order of first use.

    Returns:
        The N sentences, and the rows of the first and of the second sentences, both [P].
    """
    rows: dict[str, int] = {}
    for pair in pairs:
        rows.setdefault(pair.first, len(rows))
        rows.setdefault(pair.second, len(rows))
    first = np.array([rows[pair.first] for pair in pairs], dtype=np.intp)
    second = np.array([rows[pair.second] for pair in pairs], dtype=np.intp)
    return list(rows), first, second


def gold_scores(pairs: Sequence[SentencePair], name: str) -> Float64:
    """Return the human scores of pairs, [P].

    Args:
        pairs: P pairs.
        name: of the pairs, in the message.

    Raises:
        UserError: there are fewer than two pairs, or all have one score.
    """
    gold = np.array([pair.score for pair in pairs], dtype=np.float64)
    if len(gold) < 2 or _is_constant(gold):
        raise UserError(f"A correlation needs different scores; {name} has {gold[:3].tolist()}.")
    return gold


def prefix_products(
    vectors: Float32, first: Intp, second: Intp, dims: Sequence[int]
) -> tuple[Float64, Float64]:
    """Return the dot product and the cosine of each pair at each prefix length.

    Dot products and squared norms are running sums over the dims between two prefix lengths, so
    that all prefixes take one pass. A prefix is cut first and normalised after.

    Args:
        vectors: [N, H], not normalised.
        first: [P] rows of `vectors`.
        second: [P] rows of `vectors`.
        dims: the K prefix lengths, increasing, none above H.

    Returns:
        Dot products and cosines, both [K, P]; a cosine is 0 where a prefix has no length.
    """
    dots, lefts, rights = (np.zeros((len(dims), len(first))) for _ in range(3))
    for i, (start, stop) in enumerate(pairwise([0, *dims])):
        left = vectors[first, start:stop].astype(np.float64)
        right = vectors[second, start:stop].astype(np.float64)
        dots[i] = (left * right).sum(axis=1)
        lefts[i] = (left * left).sum(axis=1)
        rights[i] = (right * right).sum(axis=1)
    # One root of the product, not a product of two roots, makes the cosine of a sentence and itself
    # exactly 1, so that all such pairs are tied.
    norms = np.sqrt(lefts.cumsum(axis=0) * rights.cumsum(axis=0))
    cosines: Float64 = np.zeros_like(norms)
    dots = dots.cumsum(axis=0)
    np.divide(dots, norms, out=cosines, where=norms > 0)
    return dots, cosines


def require_finite(vectors: Float32) -> None:
    """Raise UserError where vectors [N, H] hold values that are not finite numbers.

    Ranks, thresholds and fits would give a result in spite of them.
    """
    odd = int((~np.isfinite(vectors).all(axis=1)).sum())
    if odd:
        raise UserError(f"{odd} of {len(vectors)} vectors hold values that are not numbers.")


def pearson(x: Float64, y: Float64) -> float:
    """Return Pearson's correlation of `x` and `y`, both [P]; 0 where one of them is constant."""
    if _is_constant(x) or _is_constant(y):
        return 0.0
    x, y = _centred(x), _centred(y)
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def spearman(x: Float64, y: Float64) -> float:
    """Return Spearman's correlation: Pearson's of the ranks of `x` and `y`, both [P]."""
    from scipy.stats import rankdata

    return pearson(rankdata(x), rankdata(y))


CORRELATIONS: dict[str, Callable[[Float64, Float64], float]] = {
    "Spearman": spearman,
    "Pearson": pearson,
}


def correlations(
    vectors: Float32, first: Intp, second: Intp, gold: Float64, dims: Sequence[int]
) -> dict[int, dict[str, float]]:
    """Return the correlations of each prefix's cosines with the scores of people.

    Args:
        vectors: [N, H] of one layer, not normalised.
        first: [P] rows of `vectors`.
        second: [P] rows of `vectors`.
        gold: [P], higher is more similar.
        dims: prefix lengths, increasing, none above H.

    Returns:
        dim -> name of CORRELATIONS -> value from -1 to 1; 0 where all cosines are equal.

    Raises:
        UserError: a vector holds a value that is not a number.
    """
    require_finite(vectors)
    _, cosines = prefix_products(vectors, first, second, dims)
    return {
        dim: {name: correlation(row, gold) for name, correlation in CORRELATIONS.items()}
        for dim, row in zip(dims, cosines, strict=True)
    }


def _is_constant(values: Float64) -> bool:
    return bool(values.min() == values.max())


def _centred(values: Float64) -> Float64:
    """Subtract the mean and scale to at most 1, so that squares do not underflow."""
    centred = values - values.mean()
    scaled: Float64 = centred / np.abs(centred).max()
    return scaled


def separations(
    vectors: Float32, first: Intp, second: Intp, positive: Bools, dims: Sequence[int]
) -> dict[int, dict[str, float]]:
    """Return how well each prefix's cosines and dot products separate positive pairs from others.

    Args:
        vectors: [N, H] of one layer, not normalised.
        first: [P] rows of `vectors`.
        second: [P] rows of `vectors`.
        positive: [P], with at least one true and one false.
        dims: prefix lengths, increasing, none above H.

    Returns:
        dim -> measure, such as cosine-AP -> value from 0 to 1.

    Raises:
        UserError: a vector holds a value that is not a number.
    """
    require_finite(vectors)
    dots, cosines = prefix_products(vectors, first, second, dims)
    found: dict[int, dict[str, float]] = {dim: {} for dim in dims}
    for similarity, rows in (("cosine", cosines), ("dot", dots)):
        for dim, row in zip(dims, rows, strict=True):
            qualities = separation(row, positive)
            found[dim] |= {f"{similarity}-{name}": value for name, value in qualities.items()}
    return found


def separation(similarity: Float64, positive: Bools) -> dict[str, float]:
    """Return average precision, and accuracy and F1 at their best thresholds.

    A threshold lies between two distinct values, below all or above all: it cannot separate a tie.
    As in sentence-transformers' BinaryClassificationEvaluator, accuracy and F1 each take the
    threshold that is best for them on these pairs.

    Args:
        similarity: [P], higher for positive pairs.
        positive: [P], with at least one true and one false.

    Returns:
        AP, Accuracy and F1, from 0 to 1.

    >>> scores = separation(np.array([0.9, 0.8, 0.7, 0.1]), np.array([True, False, True, False]))
    >>> {name: round(value, 3) for name, value in scores.items()}
    {'AP': 0.833, 'Accuracy': 0.75, 'F1': 0.8}
    """
    order = np.argsort(-similarity, kind="stable")
    ends = np.flatnonzero(np.diff(similarity[order], append=-np.inf))  # [T]: last pair of each tie
    hits = positive[order].cumsum()[ends]  # [T] positive pairs at or above each value
    taken = ends + 1  # [T] pairs at or above it
    total = int(positive.sum())
    negative = len(positive) - total
    precision, recall = hits / taken, hits / total
    right = hits + negative - (taken - hits)  # positive pairs above, negative ones below
    return {
        # As in scikit-learn: precision weighted by the gain in recall, without interpolation.
        "AP": float((precision * np.diff(recall, prepend=0.0)).sum()),
        "Accuracy": float(max(negative, right.max()) / len(positive)),
        "F1": float((2 * hits / (taken + total)).max()),
    }


def sample_per_label(
    labels: Sequence[str], samples: int, experiments: int, seed: int
) -> list[Int64]:
    """Draw the rows of a few texts per label for each experiment, as MTEB does.

    MTEB seeds its generator anew for each experiment, shuffles the rows as the experiment before
    left them, and takes the first ones of each label.

    Args:
        labels: [N].
        samples: number of rows of each label; all of a label that has fewer.
        experiments: number of draws.
        seed: of the generator.
    """
    rows = list(range(len(labels)))
    draws = []
    for _ in range(experiments):
        # numpy's legacy generator, whose sequence is part of MTEB's protocol.
        np.random.RandomState(seed).shuffle(rows)
        counts: dict[str, int] = {}
        draw = []
        for row in rows:
            if counts.setdefault(labels[row], 0) < samples:
                counts[labels[row]] += 1
                draw.append(row)
        draws.append(np.array(draw, dtype=np.int64))
    return draws


def learn(
    train: Float32,
    train_labels: Int64,
    draws: Iterable[Int64],
    test: Float32,
    test_labels: Int64,
    iterations: int = 100,
    seed: int = 42,
) -> tuple[dict[str, float], int]:
    """Fit a logistic regression per draw, as MTEB does, and test each on all test texts.

    By L-BFGS with an L2 penalty of C = 1.

    Args:
        train: [N, D].
        train_labels: [N].
        draws: rows of `train` to fit, for each experiment.
        test: [M, D].
        test_labels: [M].
        iterations: of a fit, at most.
        seed: of the fits.

    Returns:
        name of CLASS_MEASURES -> the mean over the experiments; and how many fits ended before
        they converged.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score, f1_score

    accuracies, f1s, unfinished = [], [], 0
    for draw in draws:
        classifier = LogisticRegression(max_iter=iterations, random_state=seed)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", ConvergenceWarning)  # nine lines each: counted
            classifier.fit(train[draw], train_labels[draw])
        others = [each for each in told if not issubclass(each.category, ConvergenceWarning)]
        unfinished += len(others) < len(told)
        for each in others:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        found = classifier.predict(test)
        accuracies.append(float(accuracy_score(test_labels, found)))
        f1s.append(float(f1_score(test_labels, found, average="macro")))
    means = (fsum(values) / len(values) for values in (accuracies, f1s))
    return dict(zip(CLASS_MEASURES, means, strict=True)), unfinished
