"""Searches of vectors without a model: by words, and by vectors of queries."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import run
from given import WIDTH, Given
from http_serving import CPU, Server

import m2dr
from m2dr.core.errors import UserError


def test_words_search_vectors_without_a_model(world: Given) -> None:
    home = world.load(dims=(8, WIDTH))
    query, first = world.queries[0], world.queries[0].id.replace("q", "d")

    for where in (("--corpus", world.corpus), ("--index", home)):
        told = run("search", query.text, *where, "--indexes", world.root, "-k", "40")
        assert f"queries at L0D{WIDTH} of" in told.stderr, told.output
    ranks = world.searcher().run(world.queries, 10).rankings
    best = [query.id.replace("q", "d") in ranks[query.id].docids for query in world.queries]
    assert sum(best) >= len(best) - 1
    for dim in (1, 8, 13, WIDTH):
        hits = world.searcher(dim=dim, engine="exact").search(query.text, 40).hits
        assert len(hits) == 40
    assert first in {hit.docid for hit in world.searcher(dim=8).search(query.text).hits}


@pytest.mark.parametrize("rotate", ["yes", "no"])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_given_queries_have_the_scores_of_their_vectors(
    world: Given, rotate: str, similarity: str
) -> None:
    world.load(rotate=rotate, similarity=similarity)
    queries, documents = world.given.astype(float), world.documents.astype(float)
    if similarity == "cosine":
        queries, documents = (
            each / np.linalg.norm(each, axis=1, keepdims=True) for each in (queries, documents)
        )
    scores = queries @ documents.T
    rounding = 1e-5 * np.abs(scores).max()  # of float32: it grows with the scores

    run_by_id = world.searcher(query_vectors=world.answers).run(world.queries, 3)

    for query, expected in zip(world.queries, scores, strict=True):
        ranking = run_by_id.rankings[query.id]
        assert ranking.scores == pytest.approx(np.sort(expected)[::-1][:3], abs=rounding)
        assert ranking.docids[0] == f"d{expected.argmax()}"
    np.save("one.npy", world.given[2:3])
    in_order = world.searcher(query_vectors=Path("one.npy")).search("any text", 1)
    assert in_order.hits[0].docid == f"d{scores[2].argmax()}"


def test_query_vectors_that_do_not_fit_are_refused(world: Given) -> None:
    world.load()
    searcher = world.searcher(query_vectors=world.answers)
    np.save("narrow.npy", world.given[:, :8])

    with pytest.raises(UserError, match="has 8 vectors for 1 query"):
        searcher.search("text")
    with pytest.raises(UserError, match="vectors of 8 dims, and documents have 24"):
        world.searcher(query_vectors=Path("narrow.npy"))
    with pytest.raises(UserError, match="stand for layer 1; leave"):
        world.searcher(query_vectors=world.answers, layer=0)


def test_a_saved_index_searches_elsewhere(world: Given) -> None:
    home = world.load()
    index = m2dr.Index.open(world.corpus, root=world.root)
    expected = [hit.score for hit in index.search("read the file").hits]
    index.save("saved")
    shutil.rmtree(home)

    found = m2dr.Index.load("saved").search("read the file").hits

    assert [hit.score for hit in found] == expected


@pytest.mark.parametrize("rotate", ["yes", "no"])
def test_another_store_of_the_vectors_answers_by_embed_query(world: Given, rotate: str) -> None:
    world.load(rotate=rotate, dims=(8,))
    index = m2dr.Index.open(world.corpus, root=world.root, dim=8)

    vector = index.embed_query("read the file")

    unit = world.documents / np.linalg.norm(world.documents, axis=1, keepdims=True)
    scores = unit @ np.array(vector, np.float32)
    hits = index.searcher(dim=WIDTH, engine="exact").search("read the file", 40).hits
    assert [hit.score for hit in hits] == pytest.approx(np.sort(scores)[::-1].tolist(), abs=1e-4)
    assert hits[0].docid == f"d{scores.argmax()}"


def test_a_server_answers_by_words(world: Given, tmp_path: Path) -> None:
    home = world.load(name="mine")

    with Server("--index", home, *CPU, cwd=tmp_path) as server:
        answer = server.post("/search", {"query": "read the file", "k": 3, "dim": 8})
        embedded = server.post("/v1/embeddings", {"input": "read", "model": "mine"})
        above = server.post("/search", {"query": "read", "layer": 1})
        models = server.get("/models").json["indexes"]

    assert (answer.status, len(answer.json["results"][0]["hits"])) == (200, 3)
    assert (models[0]["model"], models[0]["layers"]) == ("mine", [0])
    assert (above.status, embedded.status) == (422, 422)
    assert embedded.message == "No model embeds documents of corpus."
