"""Pairs that are alike or not: how well a threshold on likeness tells which."""

# Shapes in this file:
#   N distinct sentences, P pairs, H width, T distinct values of a likeness.

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from m2dr.evaluate.sentences import Floats, Rows, prefix_products, require_finite

Classes = NDArray[np.bool_]

LIKENESSES = ("cosine", "dot")
QUALITIES = ("AP", "Accuracy", "F1")
MEASURES = tuple(f"{likeness}-{quality}" for likeness in LIKENESSES for quality in QUALITIES)


def separations(
    vectors: NDArray[np.float32], first: Rows, second: Rows, alike: Classes, dims: Sequence[int]
) -> dict[int, dict[str, float]]:
    """How well each prefix's cosines and dot products part the alike pairs from the others.

    Args:
        vectors: [N, H] of one layer, not normalised.
        first: [P] rows of `vectors`.
        second: [P] rows of `vectors`.
        alike: [P], of which one is true and one false at least.
        dims: prefix lengths, increasing, none above H.

    Returns:
        dim -> name of MEASURES -> value from 0 to 1.

    Raises:
        UserError: a vector holds what is not a number.
    """
    require_finite(vectors)
    dots, cosines = prefix_products(vectors, first, second, dims)
    found: dict[int, dict[str, float]] = {dim: {} for dim in dims}
    for likeness, rows in zip(LIKENESSES, (cosines, dots), strict=True):
        for dim, row in zip(dims, rows, strict=True):
            qualities = separation(row, alike)
            found[dim] |= {f"{likeness}-{name}": value for name, value in qualities.items()}
    return found


def separation(likeness: Floats, alike: Classes) -> dict[str, float]:
    """What the best threshold on a likeness reaches, and the average precision over all of them.

    A threshold lies between two distinct values, below all or above all: it cannot part a tie. As
    sentence-transformers' BinaryClassificationEvaluator has it, accuracy and F1 each take the
    threshold that is best for them on these very pairs.

    Args:
        likeness: [P], higher for pairs that should be alike.
        alike: [P], of which one is true and one false at least.

    Returns:
        name of QUALITIES -> value from 0 to 1.

    >>> scores = separation(np.array([0.9, 0.8, 0.7, 0.1]), np.array([True, False, True, False]))
    >>> {name: round(value, 3) for name, value in scores.items()}
    {'AP': 0.833, 'Accuracy': 0.75, 'F1': 0.8}
    """
    order = np.argsort(-likeness, kind="stable")
    ends = np.flatnonzero(np.diff(likeness[order], append=-np.inf))  # [T]: where no tie is parted
    hits = alike[order].cumsum()[ends]  # [T] alike pairs at or above each value
    taken = ends + 1  # [T] pairs at or above it
    total = int(alike.sum())
    precision, recall = hits / taken, hits / total
    right = hits + (len(alike) - total) - (taken - hits)  # alike above, unlike below
    none_taken = len(alike) - total
    return {
        # As scikit-learn sums it: precision weighted by the gain in recall, without interpolation.
        "AP": float((precision * np.diff(recall, prepend=0.0)).sum()),
        "Accuracy": float(max(none_taken, right.max()) / len(alike)),
        "F1": float((2 * hits / (taken + total)).max()),
    }
