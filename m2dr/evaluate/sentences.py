"""Pairs of sentences: how far the order by cosine agrees with the order by people."""

# Shapes in this file:
#   N distinct sentences, P pairs, H width, K prefix lengths.

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError, counted
from m2dr.records.texts import Pair

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]


def distinct(pairs: Sequence[Pair]) -> tuple[list[str], Rows, Rows]:
    """Each sentence once, in the order of their first use.

    Returns:
        The N sentences, and the row of the first and of the second sentence of each pair, both [P].
    """
    rows: dict[str, int] = {}
    for pair in pairs:
        rows.setdefault(pair.first, len(rows))
        rows.setdefault(pair.second, len(rows))
    first = np.array([rows[pair.first] for pair in pairs], dtype=np.intp)
    second = np.array([rows[pair.second] for pair in pairs], dtype=np.intp)
    return list(rows), first, second


def gold_scores(pairs: Sequence[Pair], name: str) -> Floats:
    """What people said of each pair, [P]; refused where it orders nothing.

    Args:
        pairs: P pairs.
        name: what the refusal calls them.

    Raises:
        UserError: there are fewer than two pairs, or all have one score.
    """
    gold = np.array([pair.score for pair in pairs], dtype=np.float64)
    if len(gold) < 2:
        raise UserError(
            f"{name} holds {counted(len(gold), 'pairs')}; a correlation needs two or more."
        )
    if _is_constant(gold):
        raise UserError(
            f"All {counted(len(gold), 'pairs')} of {name} have the score {gold[0]:g}, so there is "
            "no order to agree with; give a file with different scores."
        )
    return gold


def prefix_products(
    vectors: NDArray[np.float32], first: Rows, second: Rows, dims: Sequence[int]
) -> tuple[Floats, Floats]:
    """Dot product and cosine of both sentences of each pair at each prefix length.

    A longer prefix only adds coordinates, so dot products and squared norms are running sums of
    blocks: every prefix is cut first and normalised after, and all cost one pass.

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
    # One root of the product, not a product of two roots: a sentence and itself then have a cosine
    # of exactly 1, and all such pairs are the tie that they should be.
    norms = np.sqrt(lefts.cumsum(axis=0) * rights.cumsum(axis=0))
    cosines: Floats = np.zeros_like(norms)
    dots = dots.cumsum(axis=0)
    np.divide(dots, norms, out=cosines, where=norms > 0)
    return dots, cosines


def prefix_cosines(
    vectors: NDArray[np.float32], first: Rows, second: Rows, dims: Sequence[int]
) -> Floats:
    """The cosines [K, P] alone, of what `prefix_products` takes."""
    return prefix_products(vectors, first, second, dims)[1]


def require_finite(vectors: NDArray[np.float32]) -> None:
    """Refuse vectors [N, H] of which a value is not a number.

    Ranks, thresholds and fits would hide it: in an order it has a place like any other.

    Raises:
        UserError: with how many there are.
    """
    odd = int((~np.isfinite(vectors).all(axis=1)).sum())
    if odd:
        raise UserError(
            f"The vectors of {odd} of {len(vectors)} sentences hold values that are not numbers; "
            f"measure again with --dtype fp32, and if that does not help, train the model again."
        )


def ranks(values: Floats) -> Floats:
    """Rank of each value from 1, lowest first; equal values share the mean of their ranks.

    >>> ranks(np.array([0.5, 0.1, 0.5])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    shared: Floats = (count.cumsum() - (count - 1) / 2)[place]
    return shared


def pearson(x: Floats, y: Floats) -> float:
    """Covariance over the product of the deviations; 0 where `x` or `y`, both [P], is constant."""
    if _is_constant(x) or _is_constant(y):
        return 0.0
    x, y = _centred(x), _centred(y)
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def spearman(x: Floats, y: Floats) -> float:
    """Pearson's correlation of the ranks of `x` and `y`, both [P]."""
    return pearson(ranks(x), ranks(y))


CORRELATIONS: dict[str, Callable[[Floats, Floats], float]] = {
    "Spearman": spearman,
    "Pearson": pearson,
}


def correlations(
    vectors: NDArray[np.float32], first: Rows, second: Rows, gold: Floats, dims: Sequence[int]
) -> dict[int, dict[str, float]]:
    """How far each prefix's cosines agree with people, over all pairs together.

    Args:
        vectors: [N, H] of one layer, not normalised.
        first: [P] rows of `vectors`.
        second: [P] rows of `vectors`.
        gold: [P], higher is more alike.
        dims: prefix lengths, increasing, none above H.

    Returns:
        dim -> name of CORRELATIONS -> value from -1 to 1; 0 for a prefix to which all pairs are
        equally alike.

    Raises:
        UserError: a vector holds what is not a number.
    """
    require_finite(vectors)
    cosines = prefix_cosines(vectors, first, second, dims)
    return {
        dim: {name: correlation(row, gold) for name, correlation in CORRELATIONS.items()}
        for dim, row in zip(dims, cosines, strict=True)
    }


def _is_constant(values: Floats) -> bool:
    return bool(values.min() == values.max())


def _centred(values: Floats) -> Floats:
    """Less the mean and scaled to at most 1, so that no square of a tiny number vanishes."""
    centred = values - values.mean()
    scaled: Floats = centred / np.abs(centred).max()
    return scaled
