"""Vectors: prefixes, checks of queries, and the formats in which a store keeps them on disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from m2dr.core.arrays import Array, Bools, Float32, Floats
from m2dr.core.errors import UserError
from m2dr.core.records import Similarity

_STEPS = 127  # of int8 on either side of zero; -128 is left out, so that negating loses nothing


def prefixes(vectors: Floats, dim: int, similarity: Similarity) -> Float32:
    """Cut vectors, and only then normalise them.

    Args:
        vectors: [n, D] with D at least `dim`, not normalised.
        dim: dims to keep.
        similarity: cosine asks for vectors of length one; one of length zero stays as it is.

    Returns:
        [n, dim] float32, contiguous, a copy.

    Raises:
        UserError: a value that is kept is not finite.

    >>> prefixes(np.array([[0.0, 4.0, 100.0]]), 2, "cosine").tolist()
    [[0.0, 1.0]]
    """
    cut = np.array(vectors[:, :dim], np.float32, order="C")
    if similarity != "cosine":
        _require_finite(cut)
        return cut
    # Summed in float64, where the square of a tiny value is not yet zero.
    norms = np.linalg.norm(cut.astype(np.float64), axis=1, keepdims=True)
    _require_finite(norms)
    np.divide(cut, norms, out=cut, where=norms > 0, casting="same_kind")
    return cut


def _require_finite(values: Floats) -> None:
    if not np.isfinite(values).all():
        raise UserError("A vector is not finite; m2dr index verify names the damaged file.")


def check_queries(queries: Floats, dim: int) -> None:
    """Raise UserError unless query vectors are finite numbers of shape [Q, at least dim]."""
    if queries.ndim != 2 or queries.shape[1] < dim:
        raise UserError(f"Queries have the shape {list(queries.shape)}; {dim} dims are needed.")
    bad = np.flatnonzero(~np.isfinite(queries).all(axis=1))
    if bad.size:
        raise UserError(f"The vector of query {int(bad[0])} is not finite.")


def answerable(queries: Floats, dim: int) -> Bools:
    """Return which queries can rank documents, [Q]: those whose vector is not all zeros.

    At layer 0 a text without a known word has a vector of zeros.
    """
    nonzero: Bools = np.asarray(queries[:, :dim].any(axis=1))
    return nonzero


def check_depth(k: int) -> None:
    """Raise UserError unless at least one document is asked for."""
    if k < 1:
        raise UserError(f"{k} documents per query were asked for. Ask for at least one.")


@dataclass(frozen=True)
class VectorFormat:
    """A format of vectors on disk. A new one is a row of FORMATS; the tests run over all rows.

    Where rows are scaled, a shard holds the scales of its rows first, [n] float32, and then the
    values, [n, width]: their products are the vectors. A scale per row does not depend on the
    rest of the corpus, so that a shard is the same bytes whichever process writes it.
    """

    name: str  # in store.json, and the end of a shard's file name
    dtype: np.dtype[Any]  # of a value; little-endian on every machine
    scaled: bool = False  # a float32 per row goes before the values

    def bytes_of(self, rows: int, width: int) -> int:
        """Return the size of a shard in bytes."""
        return rows * (width * self.dtype.itemsize + (4 if self.scaled else 0))

    def pack(self, vectors: Floats) -> list[Array]:
        """Return vectors [n, width] as the parts of a shard; f16 makes too large values infinite.

        The values are a part [n, width], the scales one in front of them, [n, 1].
        """
        if not self.scaled:
            with np.errstate(over="ignore"):
                return [np.ascontiguousarray(vectors, self.dtype)]
        vectors = np.ascontiguousarray(vectors, np.float32)
        scales = (
            np.abs(vectors).max(axis=1, keepdims=True, initial=0) / np.float32(_STEPS)
        ).astype("<f4")
        steps = np.where(scales > 0, scales, np.float32(1))
        return [scales, np.rint(vectors / steps).astype(self.dtype)]

    def parts(self, path: Path, rows: int, width: int) -> list[Array]:
        """Return read-only views of the parts of a shard, as `pack` gave them."""
        values = np.memmap(
            path, self.dtype, mode="r", offset=4 * rows * self.scaled, shape=(rows, width)
        )
        if not self.scaled:
            return [values]
        return [np.memmap(path, "<f4", mode="r", shape=(rows, 1)), values]

    def vectors(self, parts: Sequence[Array]) -> Floats:
        """Return the vectors of parts: of f16 and f32 the part itself, of int8 new float32."""
        if not self.scaled:
            return parts[0]
        scales, steps = parts
        return np.asarray(steps * scales, np.float32)

    @property
    def read_as(self) -> np.dtype[np.floating[Any]]:
        """Dtype of the vectors that a reader gives."""
        return np.dtype(np.float32) if self.scaled else self.dtype


FORMATS = {
    row.name: row
    for row in (
        VectorFormat("f16", np.dtype("<f2")),
        VectorFormat("f32", np.dtype("<f4")),
        VectorFormat("int8", np.dtype("i1"), scaled=True),
    )
}
