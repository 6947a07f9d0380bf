import numpy as np
import pytest
from numpy.typing import NDArray

from m2dr.index.codes import CODES, bytes_of, learn_code
from m2dr.index.faiss import build_index, open_index
from m2dr.index.store import Store
from m2dr.index.vectors import prefixes

Floats = NDArray[np.float32]


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("dim", [5, 8, 16])
@pytest.mark.parametrize("name", CODES)
def test_decoded_vectors_score_as_the_engine_does(
    tmp_path, build, vectors: Floats, name: str, dim: int, similarity
) -> None:
    store: Store = build(tmp_path, vectors, similarity=similarity)
    documents = store.rows(range(store.documents))
    queries = np.random.default_rng(7).normal(size=(4, 16)).astype(np.float32)

    decoded = learn_code(name, dim, similarity, documents)
    index = open_index(build_index(store, dim, CODES[name]))
    if not index.exact:
        index = index.with_search_params({"rescore": 0})
    scores, rows = index.search(queries, 30)
    expected = prefixes(queries, dim, similarity) @ decoded(documents).T
    # Tables of products of few bits hold bytes.
    rounding = 0.02 * np.abs(scores).max() if name in "421" else 1e-5
    np.testing.assert_allclose(
        scores, np.take_along_axis(expected, rows, 1), rtol=1e-5, atol=rounding
    )


@pytest.mark.parametrize("name", CODES)
def test_each_document_adds_as_many_bytes_as_said(
    tmp_path, build, vectors: Floats, name: str
) -> None:
    few, many = (
        open_index(
            build_index(
                build(tmp_path / f"{times}", np.tile(vectors[:32], (times, 1))), 16, CODES[name]
            )
        )
        for times in (1, 3)
    )

    assert many.manifest.bytes - few.manifest.bytes == 64 * bytes_of(name, 16)
