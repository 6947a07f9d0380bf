from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from m2dr.errors import UserError
from m2dr.index import exact
from m2dr.index.exact import prefix_top_k

Floats = NDArray[np.float32]


def blocks(vectors: Floats, rows: int) -> Iterator[tuple[int, Floats]]:
    for start in range(0, len(vectors), rows):
        yield start, vectors[start : start + rows]


def naive(queries: Floats, vectors: Floats, dim: int, similarity: str) -> NDArray[np.float64]:
    """Scores [Q, N] in float64; a vector of length zero scores 0."""
    left, right = (array[:, :dim].astype(np.float64) for array in (queries, vectors))
    products = left @ right.T
    if similarity == "dot":
        return products
    lengths = np.outer(np.linalg.norm(left, axis=1), np.linalg.norm(right, axis=1))
    return np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)


@settings(max_examples=60, deadline=None)
@given(
    documents=st.integers(1, 300),
    rows=st.integers(1, 300),
    k=st.integers(1, 320),
    dims=st.sets(st.integers(1, 24), min_size=1),
    similarity=st.sampled_from(["dot", "cosine"]),
    dtype=st.sampled_from([np.float16, np.float32]),
    seed=st.integers(0, 999),
)
def test_each_prefix_scores_as_numpy_does_in_float64(
    documents, rows, k, dims, similarity, dtype, seed
) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(documents, 24)).astype(dtype)
    queries = rng.normal(size=(4, 24)).astype(np.float32)

    found = prefix_top_k(queries, blocks(vectors, rows), dims, k, similarity)

    assert list(found) == sorted(dims)
    for dim, (scores, best) in found.items():
        expected = naive(queries, vectors, dim, similarity)
        top = -np.sort(-expected, axis=1)[:, :k]
        np.testing.assert_allclose(scores, top, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(
            np.take_along_axis(expected, best, axis=1), scores, rtol=1e-5, atol=1e-5
        )
        assert all(len(set(row)) == min(k, documents) for row in best.tolist())


@pytest.mark.parametrize("budget", [1, 4 * 64 * 3, 2**20])
def test_how_queries_are_divided_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    rng = np.random.default_rng(3)
    vectors = rng.integers(-3, 4, size=(200, 8)).astype(np.float32)
    queries = rng.integers(-3, 4, size=(10, 8)).astype(np.float32)
    whole = prefix_top_k(queries, blocks(vectors, 64), [4, 8], 9, "dot")
    monkeypatch.setattr(exact, "SCORES_BYTES", budget)

    divided = prefix_top_k(queries, blocks(vectors, 64), [4, 8], 9, "dot")

    for dim, (scores, rows) in whole.items():
        np.testing.assert_array_equal(divided[dim][0], scores)
        np.testing.assert_array_equal(divided[dim][1], rows)


@pytest.mark.parametrize("empty", ["query", "document"])
def test_a_vector_of_length_zero_scores_zero_under_cosine(empty: str) -> None:
    queries, vectors = np.ones((1, 4), np.float32), -np.ones((3, 4), np.float32)
    (queries if empty == "query" else vectors)[:, :2] = 0

    found = prefix_top_k(queries, blocks(vectors, 2), [2, 4], 3, "cosine")

    assert found[2][0].tolist() == [[0, 0, 0]]
    assert (found[4][0] < -0.7).all()


def test_of_equal_scores_the_lower_row_comes_first_unless_places_say_otherwise() -> None:
    vectors = np.array([[0.0], [1.0], [-0.0], [0.0], [1.0]], np.float32)
    queries = np.array([[1.0], [-1.0]], np.float32)
    places = np.array([0, 2, 4, 1, 3])

    _, rows = prefix_top_k(queries, blocks(vectors, 2), [1], 4, "dot")[1]
    _, placed = prefix_top_k(queries, blocks(vectors, 2), [1], 4, "dot", places=places)[1]

    assert rows.tolist() == [[1, 4, 0, 2], [0, 2, 3, 1]]
    assert placed.tolist() == [[4, 1, 2, 3], [2, 3, 0, 4]]


def test_queries_may_be_a_tensor() -> None:
    vectors = np.eye(3, dtype=np.float32)

    scores, rows = prefix_top_k(torch.eye(3), blocks(vectors, 3), [3], 1, "cosine")[3]

    assert (scores.tolist(), rows.tolist()) == ([[1], [1], [1]], [[0], [1], [2]])


def test_a_scan_tells_how_many_documents_it_has_read() -> None:
    told: list[int] = []

    prefix_top_k(np.ones((1, 2)), blocks(np.ones((5, 2)), 2), [2], 1, "dot", progress=told.append)

    assert told == [2, 2, 1]


def test_reduced_precision_allowed_elsewhere_does_not_reach_the_scores() -> None:
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    vectors, seen = np.ones((2, 2), np.float32), []

    def look(_: int) -> None:
        seen.extend(backend.fp32_precision for backend in backends)

    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "tf32"
        prefix_top_k(vectors, blocks(vectors, 2), [2], 1, "cosine", progress=look)
        after = [backend.fp32_precision for backend in backends]
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision

    assert (seen, after) == (["ieee", "ieee"], ["tf32", "tf32"])


def test_a_score_too_small_for_a_float_ties_with_zero_whatever_its_sign() -> None:
    vectors = np.array([[1e-39], [0.0]], np.float32)

    scores, rows = prefix_top_k(-np.ones((1, 1)), blocks(vectors, 2), [1], 2, "cosine")[1]

    assert (scores.tolist(), rows.tolist()) == ([[0, 0]], [[0, 1]])


@pytest.mark.parametrize(
    ("dims", "k", "value", "reason"),
    [
        ([], 1, 0.0, "Name at least one"),
        ([0, 2], 1, 0.0, r"Dims \[0, 2\] were asked for"),
        ([9], 1, 0.0, "Query vectors of shape .* and 9 coordinates"),
        ([4], 1, 0.0, "the documents' vectors have 3 coordinates"),
        ([2], 0, 0.0, "0 documents per query"),
        ([2], 1, np.inf, "query 0 is not finite"),
    ],
)
def test_what_cannot_be_searched_is_refused(dims, k: int, value: float, reason: str) -> None:
    queries = np.full((1, 4), value, np.float32)

    with pytest.raises(UserError, match=reason):
        prefix_top_k(queries, blocks(np.ones((2, 3)), 2), dims, k, "dot")


def test_no_documents_and_no_queries_find_nothing() -> None:
    queries = np.ones((2, 3), np.float32)

    nothing = prefix_top_k(queries, [], [3], 5, "dot")[3]
    nobody = prefix_top_k(queries[:0], blocks(queries, 2), [3], 5, "dot")[3]

    assert nothing[0].shape == nothing[1].shape == (2, 0)
    assert nobody[0].shape == nobody[1].shape == (0, 0)


@pytest.mark.gpu
def test_a_card_finds_what_the_processor_finds() -> None:
    rng = np.random.default_rng(3)
    vectors = rng.integers(-3, 4, size=(1000, 32)).astype(np.float16)
    queries = rng.integers(-3, 4, size=(50, 32)).astype(np.float32)

    host, card = (
        prefix_top_k(queries, blocks(vectors, 300), [8, 32], 20, "dot", device)
        for device in ("cpu", "cuda")
    )

    for dim, (scores, rows) in host.items():
        np.testing.assert_array_equal(card[dim][0], scores)
        np.testing.assert_array_equal(card[dim][1], rows)
