from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from m2dr.core.records import Ranking, Run
from m2dr.index.exact import prefix_runs
from m2dr.index.faiss import FaissIndex, build_index, open_faiss
from m2dr.index.store import Store

Floats = NDArray[np.float32]
Searcher = Callable[..., Run]

few = st.integers(-2, 2)  # so that scores are exact in float32, and many are equal


@st.composite
def corpora(draw: st.DrawFn) -> tuple[Floats, list[str], Floats]:
    """Documents with many copies of each other, their ids in any order, and queries."""
    originals = draw(st.lists(st.tuples(few, few, few, few), min_size=1, max_size=4))
    copies = draw(st.lists(st.sampled_from(originals), min_size=1, max_size=70))
    docids = draw(st.permutations([f"d{row}" for row in range(len(copies))]))
    queries = draw(st.lists(st.tuples(few, few, few, few), min_size=1, max_size=3))
    return np.array(copies, np.float32), docids, np.array(queries, np.float32)


def by_faiss(
    store: Store, queries: Floats, dim: int, k: int, drop: dict[str, str] | None = None
) -> Run:
    index = open_faiss(build_index(store, dim))
    return index.ranked(names(queries), queries, k, drop)


def by_scan(
    store: Store, queries: Floats, dim: int, k: int, drop: dict[str, str] | None = None
) -> Run:
    similarity = store.manifest.label.similarity
    runs = prefix_runs(
        names(queries), queries, store, store.docids, [1, dim], k, similarity, drop=drop
    )
    return runs[dim]


SEARCHERS = {"faiss": by_faiss, "scan": by_scan}


@pytest.fixture(params=SEARCHERS.values(), ids=list(SEARCHERS), scope="session")
def searcher(request: pytest.FixtureRequest) -> Searcher:
    return request.param


def names(queries: Floats) -> list[str]:
    return [f"q{number}" for number in range(len(queries))]


def naive(store: Store, queries: Floats, dim: int, k: int, drop: dict[str, str]) -> Run:
    """Rank by every score there is, in float64."""
    documents = store.rows(range(store.documents))[:, :dim].astype(np.float64)
    scores = queries[:, :dim].astype(np.float64) @ documents.T
    docids = list(store.docids)
    return Run(
        {
            name: Ranking.of(docids, row, k, drop.get(name, ""))
            for name, row in zip(names(queries), scores, strict=True)
        }
    )


@settings(max_examples=40, deadline=None)
@given(corpus=corpora(), dim=st.integers(1, 4), k=st.integers(1, 80), seed=st.integers(0, 99))
def test_a_run_is_that_of_a_full_scan_however_many_documents_tie(
    tmp_path_factory, build, searcher: Searcher, corpus, dim: int, k: int, seed: int
) -> None:
    vectors, docids, queries = corpus
    store = build(
        tmp_path_factory.mktemp("store"), vectors, docids, similarity="dot", shard_rows=30
    )
    drop = {"q0": docids[seed % len(docids)]} if seed % 2 else {}

    run = searcher(store, queries, dim, k, drop)

    expected = naive(store, queries, dim, k, drop).rankings
    for name, query in zip(names(queries), queries, strict=True):
        if not any(query[:dim]):  # it finds nothing
            expected = {**expected, name: Ranking((), ())}
    assert run == Run(expected)
    assert list(run.rankings) == names(queries)


def test_copies_rank_by_docid_in_a_batch_of_queries(tmp_path: Path, build) -> None:
    rng = np.random.default_rng(5)
    originals = rng.normal(size=(40, 48)).astype(np.float32)
    docids = [f"d{row:04}" for row in rng.permutation(40 * 23)]
    store = build(tmp_path, np.tile(originals, (23, 1)), docids, shard_rows=999)
    queries = rng.normal(size=(60, 48)).astype(np.float32)

    run = open_faiss(build_index(store, 48)).ranked(names(queries), queries, 100)

    copy = {docid: row % 40 for row, docid in enumerate(docids)}
    for ranking in run.rankings.values():
        best = list(dict.fromkeys(copy[docid] for docid in ranking.docids))
        order = sorted(docids, key=lambda docid: docid, reverse=True)
        expected = [docid for row in best for docid in order if copy[docid] == row]
        assert list(ranking.docids) == expected[:100]


class _Missing:
    """An engine that finds two documents for the first query and one for the second."""

    def search(self, queries: Floats, k: int) -> tuple[Floats, NDArray[np.int64]]:
        scores = np.full((len(queries), k), np.finfo(np.float32).min, np.float32)
        rows = np.full((len(queries), k), -1, np.int64)
        scores[:, :2], rows[:, :2] = [0.5, 0.25], [3, 7]
        scores[1:, 1], rows[1:, 1] = np.finfo(np.float32).min, -1
        return scores, rows


def test_what_an_engine_did_not_find_is_never_a_document(store: Store) -> None:
    opened = open_faiss(build_index(store, 16))
    index = FaissIndex(replace(opened.manifest, engine="ivf"), opened.docids, _Missing())

    with pytest.warns(UserWarning, match="2 queries found fewer than 3 documents"):
        run = index.ranked(["a", "b"], np.ones((2, 16), np.float32), k=3)

    assert [ranking.docids for ranking in run.rankings.values()] == [("d3", "d7"), ("d3",)]
