import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from m2dr.index.exact import ExactIndex
from m2dr.index.faiss import build_index, open_faiss
from m2dr.index.funnel import Funnel, FunnelIndex, Stage

Floats = NDArray[np.float32]


def scores_of(queries: Floats, vectors: Floats, dim: int, similarity: str) -> NDArray[np.float32]:
    left, right = (array[:, :dim].astype(np.float64) for array in (queries, vectors))
    products = left @ right.T
    if similarity == "cosine":
        lengths = np.outer(np.linalg.norm(left, axis=1), np.linalg.norm(right, axis=1))
        products = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return products.astype(np.float32) + np.float32(0)


def naive(queries, vectors, docids, funnel: Funnel, k: int, similarity: str) -> list[list[str]]:
    """One query after the other, one stage after the other."""
    found = []
    for number, query in enumerate(queries):
        left = list(range(len(vectors))) if query.any() else []  # zeros find nothing
        for dim, keep in [*((s.dim, s.keep) for s in funnel.stages), (funnel.dim, k)]:
            scores = scores_of(queries, vectors, dim, similarity)[number]
            left = sorted(left, key=lambda row: (scores[row], docids[row]), reverse=True)[:keep]
        found.append([docids[row] for row in left])
    return found


@settings(max_examples=30, deadline=None)
@given(
    documents=st.integers(1, 60),
    counts=st.lists(st.integers(1, 70), min_size=1, max_size=3),
    k=st.integers(1, 70),
    seed=st.integers(0, 999),
)
@example(documents=9, counts=[1], k=1, seed=10)  # the last query is zeros
def test_a_funnel_finds_what_stage_after_stage_leaves(
    tmp_path_factory, build, documents, counts, k, seed
) -> None:
    rng = np.random.default_rng(seed)
    counts = sorted(counts, reverse=True)
    stages = tuple(Stage(2 * number + 2, count) for number, count in enumerate(counts))
    funnel, k = Funnel(stages, 8), min(k, counts[-1])
    # Small whole numbers: products are exact, and many documents tie.
    vectors = rng.integers(-1, 2, size=(documents, 8)).astype(np.float32)
    queries = rng.integers(-1, 2, size=(3, 8)).astype(np.float32)
    docids = [f"d{row}" for row in rng.permutation(documents)]
    store = build(tmp_path_factory.mktemp("s"), vectors, docids, similarity="dot")

    run = FunnelIndex(store, funnel).ranked(["a", "b", "c"], queries, k)

    found = [list(ranking.docids) for ranking in run.rankings.values()]
    assert found == naive(queries, vectors, docids, funnel, k, "dot")


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("word", ["4:35,16", "2:99,8:35,16"])
def test_a_funnel_that_keeps_all_is_a_full_scan(
    tmp_path, build, vectors: Floats, similarity: str, word: str
) -> None:
    store = build(tmp_path, vectors, similarity=similarity)
    queries = np.random.default_rng(3).normal(size=(6, 16)).astype(np.float32)
    funnel = FunnelIndex(store, Funnel.parse(word))

    scores, rows = funnel.search(queries, 35)
    exact_scores, exact_rows = ExactIndex(store, 16).search(queries, 35)

    np.testing.assert_array_equal(rows, exact_rows)
    np.testing.assert_allclose(scores, exact_scores, atol=3e-6)


def test_another_index_may_make_the_first_shortlist(store) -> None:
    queries = np.random.default_rng(6).normal(size=(5, 16)).astype(np.float32)
    funnel = Funnel.parse("8:12,16")

    faiss = FunnelIndex(store, funnel, open_faiss(build_index(store, 8))).search(queries, 4)
    scan = FunnelIndex(store, funnel).search(queries, 4)

    np.testing.assert_array_equal(faiss[1], scan[1])
    np.testing.assert_array_equal(faiss[0], scan[0])


class _Missing:
    """An index that finds one document and fills up with none."""

    documents = 35

    def search(self, queries: Floats, k: int) -> tuple[Floats, NDArray[np.int64]]:
        rows = np.full((len(queries), k), -1, np.int64)
        rows[:, 0] = 3
        return np.zeros(rows.shape, np.float32), rows


@pytest.mark.filterwarnings("ignore:.*found fewer than")
def test_what_the_first_index_did_not_find_is_never_a_document(store) -> None:
    funnel = FunnelIndex(store, Funnel.parse("4:9,8:7,16"), _Missing())

    run = funnel.ranked(["q"], np.ones((1, 16), np.float32), 5)

    assert run.rankings["q"].docids == ("d3",)
