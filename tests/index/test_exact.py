import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from m2dr.index.exact.scan import Found
from m2dr.index.exact.topk import TieOrder, TopK
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.index.exact import ExactIndex, prefix_runs, prefix_top_k, tiles
from m2dr.index.exact import scan as scanning
from m2dr.index.store import Store

Floats = NDArray[np.float32]
Results = dict[int, Found]


def top_k(
    queries,
    vectors: Floats,
    rows: int,
    dims,
    k,
    similarity,
    device="cpu",
    places=None,
    progress=None,
) -> Results:
    """Search vectors of which `rows`, rounded up to whole runs, are read at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "BLOCK_ROWS", tiles.rounded_up(rows))
        return prefix_top_k(queries, vectors, dims, k, similarity, device, places, progress)


@pytest.fixture(scope="module", params=["compiled", "torch", "in runs"], autouse=True)
def _kind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Select the best by compiled code or by torch; multiply tile by tile or in runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanning, "COMPILED_SCORES", 0 if request.param == "compiled" else math.inf)
        patch.setattr(scanning, "FEW", math.inf if request.param == "in runs" else 0)
        yield


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """How many of them torch has."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


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

    found = top_k(queries, vectors, rows, dims, k, similarity)

    assert list(found) == sorted(dims)
    for dim, (scores, best) in found.items():
        expected = naive(queries, vectors, dim, similarity)
        top = -np.sort(-expected, axis=1)[:, :k]
        np.testing.assert_allclose(scores, top, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(
            np.take_along_axis(expected, best, axis=1), scores, rtol=1e-5, atol=1e-5
        )
        assert all(len(set(row)) == min(k, documents) for row in best.tolist())


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("chunk", [1, 3, 10])
@pytest.mark.parametrize(("tile", "scores"), [(128, 1), (256, 1), (128, 10 * 128 * 3)])
def test_how_queries_and_documents_are_divided_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, chunk: int, tile: int, scores: int
) -> None:
    rng = np.random.default_rng(3)
    vectors = rng.integers(-3, 4, size=(500, 8)).astype(np.float32)
    queries = rng.integers(-3, 4, size=(10, 8)).astype(np.float32)
    whole = top_k(queries, vectors, 64, [4, 8], 9, "dot")
    monkeypatch.setattr(tiles, "PROCESSOR", tiles.TileSizes(chunk, scores, range(tile, tile)))

    divided = top_k(queries, vectors, 150, [4, 8], 9, "dot")

    for dim, found in whole.items():
        np.testing.assert_array_equal(divided[dim][0], found[0])
        np.testing.assert_array_equal(divided[dim][1], found[1])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_every_chunk_of_queries_is_compared_with_the_same_documents(
    monkeypatch: pytest.MonkeyPatch, similarity: str
) -> None:
    rng = np.random.default_rng(8)
    vectors = rng.normal(size=(500, 40)).astype(np.float32)
    queries = rng.normal(size=(10, 40)).astype(np.float32)
    monkeypatch.setattr(tiles, "PROCESSOR", tiles.TileSizes(3, 1, range(128, 128)))

    found = top_k(queries, vectors, 300, [5, 20, 24, 40], 7, similarity)

    for dim, (scores, rows) in found.items():
        expected = naive(queries, vectors, dim, similarity)
        np.testing.assert_array_equal(rows, np.argsort(-expected, axis=1)[:, :7])
        np.testing.assert_allclose(scores, -np.sort(-expected, axis=1)[:, :7], rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("queries", [1, 5, 70])
@pytest.mark.parametrize("k", [1, 60, 255, 256, 700])
def test_however_many_documents_are_wanted_they_are_the_best_of_all(
    monkeypatch: pytest.MonkeyPatch, k: int, queries: int
) -> None:
    rng = np.random.default_rng(k)
    # Whole numbers: their products are exact, and many documents share a score.
    vectors = rng.integers(-9, 10, size=(12_345, 6)).astype(np.float32)
    asked = rng.integers(-9, 10, size=(queries, 6)).astype(np.float32)
    monkeypatch.setattr(tiles, "PROCESSOR", tiles.TileSizes(32, 5 * 384, range(128, 384)))

    found = top_k(asked, vectors, 5000, [2, 6], k, "dot")

    for dim, (scores, rows) in found.items():
        expected = naive(asked, vectors, dim, "dot")
        best = np.argsort(-expected, axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(rows, best)
        np.testing.assert_array_equal(scores, np.take_along_axis(expected, best, axis=1))


def test_scores_that_wait_to_be_sorted_are_bounded() -> None:
    count, k, rows = 3, 5, 4096
    best = TopK(k, torch.ones(1, count), TieOrder())

    for start in range(0, 20 * rows, rows):  # each score is above all before it
        best.add(0, torch.arange(start, start + rows).float().expand(count, -1), None, start)
        assert sum(keys.numel() for keys in best._waiting[0]) < k * count

    assert best.found(0)[1].tolist() == [list(range(20 * rows - 1, 20 * rows - 1 - k, -1))] * count


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("count", [1, 2, 3, 50, 1030])
@pytest.mark.parametrize(("dtype", "width"), [(np.float16, 48), (np.float32, 45)])
def test_copies_of_a_document_tie_wherever_they_lie(
    similarity: str, count: int, dtype: type, width: int
) -> None:
    rng = np.random.default_rng(count)
    originals = rng.normal(size=(7, width)).astype(dtype)
    documents = 1300 if count > 1000 else 5003
    vectors = originals[rng.integers(0, 7, size=documents)]
    queries = rng.normal(size=(count, width)).astype(np.float32)

    found = top_k(queries, vectors, 4096, [13, 20, width], documents, similarity)

    for scores, _ in found.values():
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
def test_of_many_equal_scores_the_higher_places_come_first(
    documents, distinct, k, similarity, ascending, seed
) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(-distinct, distinct + 1, size=documents)  # zero vectors among them
    lengths = np.sort(lengths) if ascending else lengths
    vectors = lengths[:, None].astype(np.float32)
    places = rng.permutation(documents)
    queries = np.array([[1.0], [-2.0], [0.0], [-0.0]], np.float32)

    scores, rows = top_k(queries, vectors, 100, [1], k, similarity, places=places)[1]

    for number, query in enumerate(queries[:, 0]):
        unscaled = np.sign(lengths) * np.sign(query) if similarity == "cosine" else lengths * query
        best = sorted(range(documents), key=lambda row: (unscaled[row], places[row]), reverse=True)
        assert rows[number].tolist() == best[:k]
        assert scores[number].tolist() == [unscaled[row] for row in best[:k]]
        assert not np.signbit(scores[number][scores[number] == 0]).any()


def test_documents_that_get_better_and_better_are_all_considered() -> None:
    vectors = np.arange(20_000, dtype=np.float32)[:, None]

    found = top_k(np.array([[1.0], [-1.0]]), vectors, 4096, [1], 300, "dot")[1][1]

    assert found.tolist() == [list(range(19_999, 19_699, -1)), list(range(300))]


def test_a_score_that_is_no_number_is_refused_not_ranked() -> None:
    vectors = np.array([[np.inf, 1], [1, 1]], np.float32)

    with pytest.raises(UserError, match="A score is not a number"):
        top_k(np.array([[0.0, 1.0]]), vectors, 2, [2], 1, "dot")


def test_endless_scores_tie() -> None:
    vectors = np.array([[1e30], [1], [1e30]], np.float32)

    scores, rows = top_k(np.full((1, 1), 1e30), vectors, 2, [1], 2, "dot")[1]

    assert (scores.tolist(), rows.tolist()) == ([[np.inf, np.inf]], [[0, 2]])


@pytest.mark.parametrize("size", [1e-20, 1e-30, 1e15])
def test_the_length_of_tiny_and_huge_vectors_is_kept(size: float) -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    queries = vectors[:5] + 1
    expected = naive(queries, vectors, 8, "cosine")

    scores, rows = prefix_top_k(queries, vectors * np.float32(size), [8], 50, "cosine")[8]

    np.testing.assert_allclose(
        scores, np.take_along_axis(expected, rows, axis=1), rtol=1e-5, atol=2e-6
    )


@pytest.mark.parametrize("empty", ["query", "document"])
@pytest.mark.parametrize("prefix", [2, 40])
def test_a_vector_of_length_zero_scores_zero_under_cosine(empty: str, prefix: int) -> None:
    queries, vectors = np.ones((1, 2 * prefix), np.float32), -np.ones((3, 2 * prefix), np.float32)
    (queries if empty == "query" else vectors)[:, :prefix] = 0

    found = top_k(queries, vectors, 2, [prefix, 2 * prefix], 3, "cosine")

    assert found[prefix][0].tolist() == [[0, 0, 0]]
    np.testing.assert_allclose(found[2 * prefix][0], -np.sqrt(0.5), rtol=1e-6)


def test_of_equal_scores_the_lower_row_comes_first_unless_places_say_otherwise() -> None:
    vectors = np.array([[0.0], [1.0], [-0.0], [0.0], [1.0]], np.float32)
    queries = np.array([[1.0], [-1.0]], np.float32)
    places = np.array([0, 2, 4, 1, 3])

    _, rows = top_k(queries, vectors, 2, [1], 4, "dot")[1]
    _, placed = top_k(queries, vectors, 2, [1], 4, "dot", places=places)[1]

    assert rows.tolist() == [[1, 4, 0, 2], [0, 2, 3, 1]]
    assert placed.tolist() == [[4, 1, 2, 3], [2, 3, 0, 4]]


@pytest.mark.parametrize(("dtype", "together"), [("int8", 1024), ("f16", tiles.BLOCK_ROWS)])
def test_of_a_store_no_more_is_widened_at_once_than_a_tile(
    tmp_path, build, monkeypatch: pytest.MonkeyPatch, dtype: str, together: int
) -> None:
    vectors = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32)
    store = build(tmp_path, vectors, dtype=dtype)
    asked: set[int] = set()
    blocks = Store.blocks
    monkeypatch.setattr(
        Store, "blocks", lambda own, rows=0, **kw: (asked.add(rows), blocks(own, rows, **kw))[1]
    )
    monkeypatch.setattr(tiles, "KEPT_BYTES", 0)
    monkeypatch.setattr(tiles, "PROCESSOR", replace(tiles.PROCESSOR, rows=range(1024, 1024)))

    prefix_top_k(vectors[:3], store, [8, 16], 5, "dot")
    ExactIndex(store, 16).search(vectors[:3], 5)

    assert max(asked) == together


def test_queries_may_be_a_tensor() -> None:
    vectors = np.eye(3, dtype=np.float32)

    scores, rows = top_k(torch.eye(3), vectors, 3, [3], 1, "cosine")[3]

    assert (scores.tolist(), rows.tolist()) == ([[1], [1], [1]], [[0], [1], [2]])


def test_a_scan_tells_how_many_documents_it_has_read() -> None:
    told: list[int] = []

    top_k(np.ones((1, 2)), np.ones((300, 2)), 128, [2], 1, "dot", progress=told.append)

    assert told == [128, 128, 44]


def test_reduced_precision_allowed_elsewhere_does_not_reach_the_scores() -> None:
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    vectors, seen = np.ones((2, 2), np.float32), []

    def look(_: int) -> None:
        seen.extend(backend.fp32_precision for backend in backends)

    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "tf32"
        top_k(vectors, vectors, 2, [2], 1, "cosine", progress=look)
        after = [backend.fp32_precision for backend in backends]
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision

    assert (seen, after) == (["ieee", "ieee"], ["tf32", "tf32"])


def test_a_score_too_small_for_a_float_ties_with_zero_whatever_its_sign() -> None:
    vectors = np.array([[1e-39], [0.0]], np.float32)

    scores, rows = top_k(-np.ones((1, 1)), vectors, 2, [1], 2, "cosine")[1]

    assert (scores.tolist(), rows.tolist()) == ([[0, 0]], [[0, 1]])


@pytest.mark.parametrize(
    ("dims", "k", "value", "reason"),
    [
        ([], 1, 0.0, "Name at least one"),
        ([0, 2], 1, 0.0, r"Dims \[0, 2\] were asked for"),
        ([9], 1, 0.0, "Query vectors of shape .* and 9 dims"),
        ([4], 1, 0.0, "the documents' vectors have 3 dims"),
        ([2], 0, 0.0, "0 documents per query"),
        ([2], 1, np.inf, "query 0 is not finite"),
    ],
)
def test_what_cannot_be_searched_is_refused(dims, k: int, value: float, reason: str) -> None:
    queries = np.full((1, 4), value, np.float32)

    with pytest.raises(UserError, match=reason):
        top_k(queries, np.ones((2, 3)), 2, dims, k, "dot")


def test_no_documents_and_no_queries_find_nothing() -> None:
    queries = np.ones((2, 3), np.float32)

    nothing = prefix_top_k(queries, queries[:0], [3], 5, "dot")[3]
    nobody = top_k(queries[:0], queries, 2, [3], 5, "dot")[3]

    assert nothing[0].shape == nothing[1].shape == (2, 0)
    assert nobody[0].shape == nobody[1].shape == (0, 2)


@pytest.fixture(params=[0, 2**20], ids=["from files", "kept in memory"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(tiles, "KEPT_BYTES", request.param)
    return request.param


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("dim", [3, 16])
def test_a_store_searched_as_it_lies_ranks_as_the_scan_of_all_dims(
    tmp_path, build, similarity: str, dtype: str, dim: int
) -> None:
    rng = np.random.default_rng(dim)
    vectors = np.repeat(rng.normal(size=(60, 16)), 3, axis=0).astype(np.float32)
    vectors[7] = 0
    names = [f"d{row}" for row in rng.permutation(len(vectors))]
    store = build(tmp_path, vectors, names, similarity=similarity, dtype=dtype, shard_rows=70)
    queries = rng.normal(size=(5, 16)).astype(np.float32)
    ids, drop = [f"q{number}" for number in range(5)], {"q1": names[0]}
    index = ExactIndex(store, dim)

    for k in (1, 20, 500):
        run = index.ranked(ids, queries, k, drop)
        runs = prefix_runs(ids, queries, store, store.docids, [dim], k, similarity, drop=drop)
        assert run == runs[dim]
        scores, rows = index.search(queries, k)
        expected = naive(queries, store.rows(range(store.documents)), dim, similarity)
        np.testing.assert_allclose(
            scores, np.take_along_axis(expected, rows, axis=1), rtol=1e-5, atol=1e-5
        )


@pytest.mark.usefixtures("kept")
def test_a_single_query_finds_what_a_batch_finds(store) -> None:
    queries = np.random.default_rng(1).normal(size=(9, 16)).astype(np.float32)
    index = ExactIndex(store, 12)

    scores, rows = index.search(queries, 7)

    for number in range(9):
        alone = index.search(queries[number : number + 1], 7)
        np.testing.assert_allclose(alone[0][0], scores[number], atol=2e-6)
        np.testing.assert_array_equal(alone[1][0], rows[number])


def test_a_store_opened_for_search_says_what_it_is(store) -> None:
    index = ExactIndex(store, 8)

    assert (index.corpus, index.documents, index.layer, index.dim) == ("tiny", 35, 6, 8)
    index.accept(store.manifest.label, Cut(6, 8))
    assert index.warnings(Cut(6, 8)) == []
    assert "L6D9 was not trained" in ExactIndex(store, 9).warnings(Cut(6, 9))[0]


def test_a_store_refuses_what_it_cannot_compare(store) -> None:
    index, label = ExactIndex(store, 8), store.manifest.label

    with pytest.raises(UserError, match="Dim 17 was asked for, and .* holds vectors of 16"):
        ExactIndex(store, 17)
    with pytest.raises(UserError, match="Queries of dimension 16 .* opened at dimension 8"):
        index.accept(label, Cut(6, 16))
    with pytest.raises(UserError, match="were encoded by model"):
        index.accept(replace(label, fingerprint="f" * 64), Cut(6, 8))
    with pytest.raises(UserError, match="0 documents per query"):
        index.ranked(["q"], np.ones((1, 16), np.float32), 0)
    with pytest.raises(UserError, match="Query vectors of shape .* and 8 dims"):
        index.search(np.ones((1, 4), np.float32), 1)
