"""Codes: what few bits leave of a vector, for evaluations that read a store and build no index."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from m2dr.core.records import Similarity
from m2dr.index.faiss import ENGINES, empty_index, train_index
from m2dr.index.vectors import Floats, prefixes

AGAIN = "+"  # the end of a code whose best documents are scored again by the stored vectors

# Name of a code, as evaluations take it, and the engine whose codes it has.
CODES = {
    "f32": "flat",
    "f16": "flat-f16",
    "int8": "int8",
    "4": "bits4",
    "2": "bits2",
    "1": "bits1",
}


@dataclass(frozen=True)
class Code:
    """A trained code of prefixes."""

    dim: int
    similarity: Similarity
    index: Any  # a faiss.Index without documents

    def decoded(self, vectors: Floats) -> NDArray[np.float32]:
        """Return the vectors that a scan of this code's engine compares queries with.

        Args:
            vectors: [n, at least dim]; cut, and normalised where the similarity is cosine.

        Returns:
            [n, dim]; their products with prepared queries are the engine's scores before rescoring,
            which those of few bits round to about 1 %.
        """
        decoded: NDArray[np.float32] = self.index.sa_decode(
            self.index.sa_encode(prefixes(vectors, self.dim, self.similarity))
        )
        return decoded


def bytes_of(name: str, dim: int) -> int:
    """Return the bytes of a document in a code of CODES, factors and all; "+" adds none."""
    engine = ENGINES[CODES[name.removesuffix(AGAIN)]]
    size: int = empty_index(engine, engine.recipe(0, dim), dim).sa_code_size()
    return size


def code(name: str, dim: int, similarity: Similarity, rows: Floats) -> Code:
    """Learn a code.

    Args:
        name: in CODES.
        dim: of the prefix.
        similarity: of the store.
        rows: [n, at least dim], documents to learn from.

    Raises:
        UserError: FAISS cannot make it at that dim.
    """
    engine = ENGINES[CODES[name]]
    recipe = engine.recipe(len(rows), dim)
    index = empty_index(engine, recipe, dim)
    train_index(index, prefixes(rows, dim, similarity), recipe)
    return Code(dim, similarity, index)
