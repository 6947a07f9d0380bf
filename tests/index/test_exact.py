import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.index import exact
from m2dr.index.exact import ExactIndex, grid_top_k, prefix_runs

Floats = NDArray[np.float32]


@pytest.fixture(scope="module", params=["compiled", "torch"], autouse=True)
def _selection(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "COMPILED_SCORES", 0 if request.param == "compiled" else math.inf)
        yield


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 128 documents, and few queries in a chunk."""
    monkeypatch.setattr(exact, "TILE_ROWS", {"cpu": range(128, 128)})
    monkeypatch.setattr(exact, "CHUNK", {"cpu": 3})


def naive(queries: Floats, vectors: Floats, dim: int, similarity: str) -> NDArray[np.float64]:
    """Scores [Q, N] in float64; a vector of length zero scores 0."""
    left, right = (array[:, :dim].astype(np.float64) for array in (queries, vectors))
    products = left @ right.T
    if similarity == "dot":
        return products
    lengths = np.outer(np.linalg.norm(left, axis=1), np.linalg.norm(right, axis=1))
    return np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)


@settings(max_examples=50, deadline=None)
@given(
    documents=st.integers(1, 300),
    k=st.integers(1, 320),
    dims=st.sets(st.integers(1, 24), min_size=1),
    similarity=st.sampled_from(["dot", "cosine"]),
    dtype=st.sampled_from([np.float16, np.float32]),
    seed=st.integers(0, 999),
)
def test_scores_are_those_of_numpy_in_float64(documents, k, dims, similarity, dtype, seed) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(documents, 24)).astype(dtype)
    queries = rng.normal(size=(4, 24)).astype(np.float32)

    hits = grid_top_k([queries], vectors, dims, k, similarity)[0]

    assert list(hits) == [(dim, "f32") for dim in sorted(dims)]
    for (dim, _), (scores, rows) in hits.items():
        expected = naive(queries, vectors, dim, similarity)
        top = -np.sort(-expected, axis=1)[:, :k]
        np.testing.assert_allclose(scores, top, rtol=1e-5, atol=1e-5)
        own = np.take_along_axis(expected, rows, axis=1)
        np.testing.assert_allclose(own, scores, rtol=1e-5, atol=1e-5)
        assert all(len(set(row)) == min(k, documents) for row in rows.tolist())


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("k", [1, 60, 700])
def test_tiles_and_passes_do_not_matter(k: int) -> None:
    rng = np.random.default_rng(k)
    # Whole numbers: their products are exact, and many documents share a score.
    vectors = rng.integers(-9, 10, size=(5_000, 6)).astype(np.float32)
    queries = rng.integers(-9, 10, size=(10, 6)).astype(np.float32)

    hits = grid_top_k([queries], vectors, [2, 6], k, "dot")[0]

    for (dim, _), (scores, rows) in hits.items():
        expected = naive(queries, vectors, dim, "dot")
        best = np.argsort(-expected, axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(rows, best)
        np.testing.assert_array_equal(scores, np.take_along_axis(expected, best, axis=1))


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("count", [2, 50])
def test_copies_of_a_document_tie(similarity: str, count: int) -> None:
    rng = np.random.default_rng(count)
    originals = rng.normal(size=(7, 48)).astype(np.float32)
    vectors = originals[rng.integers(0, 7, size=5003)]
    queries = rng.normal(size=(count, 48)).astype(np.float32)

    hits = grid_top_k([queries], vectors, [16, 48], 5003, similarity)[0]

    for scores, _ in hits.values():
        assert all(len(set(row)) == 7 for row in scores.tolist())


@settings(max_examples=40, deadline=None)
@given(
    documents=st.integers(1, 400),
    distinct=st.integers(1, 4),
    k=st.integers(1, 420),
    similarity=st.sampled_from(["dot", "cosine"]),
    ascending=st.booleans(),
    seed=st.integers(0, 999),
)
def test_higher_places_come_first(documents, distinct, k, similarity, ascending, seed) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(-distinct, distinct + 1, size=documents)  # zero vectors among them
    lengths = np.sort(lengths) if ascending else lengths
    places = rng.permutation(documents)
    queries = np.array([[1.0], [-2.0], [0.0], [-0.0]], np.float32)

    vectors = lengths[:, None].astype(np.float32)
    [hits] = grid_top_k([queries], vectors, [1], k, similarity, places=places)
    [(scores, rows)] = hits.values()

    for number, query in enumerate(queries[:, 0]):
        unscaled = np.sign(lengths) * np.sign(query) if similarity == "cosine" else lengths * query
        best = sorted(range(documents), key=lambda row: (unscaled[row], places[row]), reverse=True)
        assert rows[number].tolist() == best[:k]
        assert scores[number].tolist() == [unscaled[row] for row in best[:k]]
        assert not np.signbit(scores[number][scores[number] == 0]).any()


def test_a_score_that_is_no_number_is_refused() -> None:
    vectors = np.array([[np.inf, 1], [1, 1]], np.float32)

    with pytest.raises(UserError, match="A score is not a number"):
        grid_top_k([np.array([[0.0, 1.0]])], vectors, [2], 1, "dot")


@pytest.mark.parametrize("size", [1e-20, 1e-30, 1e15])
def test_lengths_of_tiny_and_huge_vectors(size: float) -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    queries = vectors[:5] + 1
    expected = naive(queries, vectors, 8, "cosine")

    [hits] = grid_top_k([queries], vectors * np.float32(size), [8], 50, "cosine")
    [(scores, rows)] = hits.values()

    own = np.take_along_axis(expected, rows, axis=1)
    np.testing.assert_allclose(scores, own, rtol=1e-5, atol=2e-6)


def test_reduced_precision_elsewhere_does_not_reach_scores() -> None:
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    vectors, seen = np.ones((2, 2), np.float32), []
    before = [backend.fp32_precision for backend in backends]

    def look(documents: Floats) -> Floats:
        seen.extend(backend.fp32_precision for backend in backends)
        return documents

    try:
        for backend in backends:
            backend.fp32_precision = "tf32"
        grid_top_k([vectors], vectors, (), 1, "cosine", codes={(2, "own"): look})
        after = [backend.fp32_precision for backend in backends]
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision

    assert (seen, after) == (["ieee", "ieee"], ["tf32", "tf32"])


@pytest.mark.parametrize("kept", [0, 2**20])
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("dtype", ["f16", "int8"])
@pytest.mark.parametrize("few", [0, 64, None])  # None: torch is not installed
def test_an_index_ranks_as_the_scan_of_all_dims(
    tmp_path, build, monkeypatch, kept: int, similarity: str, dtype: str, few: int | None
) -> None:
    monkeypatch.setattr(exact, "CACHED_BYTES", kept)
    if few is None:
        monkeypatch.setattr(exact, "_has_torch", lambda: False)
        monkeypatch.setattr(ExactIndex, "_inverse", property(lambda _: pytest.fail("by torch")))
    else:
        monkeypatch.setattr(exact, "FEW_QUERIES", few)
    rng = np.random.default_rng(4)
    vectors = np.repeat(rng.integers(-4, 5, size=(60, 16)), 3, axis=0).astype(np.float32)
    vectors[7] = 0
    names = [f"d{row}" for row in rng.permutation(len(vectors))]
    store = build(tmp_path, vectors, names, similarity=similarity, dtype=dtype, shard_rows=70)
    queries = rng.integers(-4, 5, size=(5, 16)).astype(np.float32)
    queries[2, :3] = 0  # finds nothing
    ids, drop = [f"q{number}" for number in range(5)], {"q1": names[0]}
    index, some = ExactIndex(store, 3), np.flatnonzero(rng.integers(0, 2, len(vectors)))

    for k in (1, 20, 500):
        run = index.ranked(ids, queries, k, drop)
        runs = prefix_runs(ids, queries, store, store.docids, [3], k, similarity, drop=drop)
        for name, ranking in run.rankings.items():
            np.testing.assert_allclose(ranking.scores, runs[3].rankings[name].scores, atol=1e-4)
            assert bool(ranking.docids) == (name != "q2")
            assert similarity == "cosine" or dtype == "int8" or ranking == runs[3].rankings[name]
    scores, rows = ExactIndex(store, 3, rows=some).search(queries, 1000)
    assert {*rows[0].tolist()} == {*some.tolist()}
    expected = naive(queries, store.rows(range(store.documents)), 3, similarity)
    own = np.take_along_axis(expected, rows, axis=1)
    np.testing.assert_allclose(scores, own, rtol=1e-5, atol=1e-4)
