"""What an engine sees of a vector: its prefix, and for cosine that prefix at length one."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError, command
from m2dr.records.card import Similarity

Floats = NDArray[np.floating[Any]]


def prefixes(vectors: Floats, dim: int, similarity: Similarity) -> NDArray[np.float32]:
    """Cut, and only then normalise.

    Args:
        vectors: [n, D] with D at least `dim`, not normalised.
        dim: coordinates to keep.
        similarity: cosine asks for vectors of length one; one of length zero stays as it is.

    Returns:
        [n, dim] float32, contiguous, a copy.

    Raises:
        UserError: a coordinate that is kept is not finite.

    >>> prefixes(np.array([[0.0, 4.0, 100.0]]), 2, "cosine").tolist()
    [[0.0, 1.0]]
    """
    kept = np.array(vectors[:, :dim], np.float32, order="C")
    if similarity != "cosine":
        _require_finite(kept)
        return kept
    # Summed in float64, where the square of a tiny coordinate is not yet zero.
    norms = np.linalg.norm(kept.astype(np.float64), axis=1, keepdims=True)
    _require_finite(norms)
    np.divide(kept, norms, out=kept, where=norms > 0, casting="same_kind")
    return kept


def _require_finite(values: Floats) -> None:
    if not np.isfinite(values).all():
        raise UserError(
            "A vector is not finite, so a file of vectors is damaged; see which one with: "
            f"{command('index', 'verify')}, and --indexes where they lie elsewhere"
        )


def check_queries(queries: Floats, dim: int) -> None:
    """Refuse query vectors that have no prefix of `dim`, or of which a value is not finite.

    Raises:
        UserError: the vectors are not [Q, at least dim] finite numbers.
    """
    if queries.ndim != 2 or queries.shape[1] < dim:
        raise UserError(
            f"Query vectors of shape {list(queries.shape)} were given, and {dim} coordinates each "
            f"are needed. Encode the queries with at least that dimension."
        )
    bad = np.flatnonzero(~np.isfinite(queries).all(axis=1))
    if bad.size:
        raise UserError(
            f"The vector of query {int(bad[0])} is not finite. Look at the model's weights and "
            f"dtype."
        )


def check_depth(k: int) -> None:
    """Raise UserError unless at least one document is asked for."""
    if k < 1:
        raise UserError(f"{k} documents per query were asked for. Ask for at least one.")
