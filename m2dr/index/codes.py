"""Codes: what few bits leave of a vector, for evaluations that read a store and build no index."""

from collections.abc import Callable

from m2dr.core.arrays import Float32, Floats
from m2dr.core.records import Similarity
from m2dr.index.engines import ENGINES, empty_index, train_index
from m2dr.index.vectors import prefixes

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


def learn_code(
    name: str, dim: int, similarity: Similarity, rows: Floats
) -> Callable[[Floats], Float32]:
    """Learn a code from documents; return a function from vectors to their decoded codes.

    Args:
        name: in CODES.
        dim: of the prefix.
        similarity: of the store.
        rows: [n, at least dim], documents to learn from.

    Returns:
        A function of vectors [n, at least dim], which it cuts, and normalises where the similarity
        is cosine, to [n, dim]. Their products with prepared queries are the scores of the engine
        before rescoring, which those of few bits round to about 1 %.

    Raises:
        UserError: FAISS cannot make it at that dim.
    """
    factory = ENGINES[CODES[name]](len(rows), dim).factory
    index = empty_index(factory, dim)
    train_index(index, prefixes(rows, dim, similarity), factory)

    def decoded(vectors: Floats) -> Float32:
        rounded: Float32 = index.sa_decode(index.sa_encode(prefixes(vectors, dim, similarity)))
        return rounded

    return decoded
