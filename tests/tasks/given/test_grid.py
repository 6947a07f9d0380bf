"""Grids and costs of vectors without a model, and of given vectors of queries."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import run
from given import WIDTH, Given, write_answers
from world import make_corpus

from m2dr.core.records import Cut
from m2dr.core.requests import EvaluateRequest
from m2dr.data.loaders import open_dataset
from m2dr.evaluation.grid import read_grid
from m2dr.tasks.evaluating.evaluate import evaluate


def test_a_grid_has_words_and_given_queries(world: Given) -> None:
    world.load(name="mine")
    request = EvaluateRequest(
        (world.corpus,), dims=(8, WIDTH), measures=("RR@10",), root=world.root,
        query_vectors=world.answers,
    )  # fmt: skip

    (grid,) = evaluate(request).grids

    assert (grid.model, set(grid.cells)) == (
        "mine",
        {Cut(layer, dim) for layer in (0, 1) for dim in (8, WIDTH)},
    )
    assert (grid.apart, "layer 0: words of the index" in grid.system) == ((0,), True)
    ranked = world.searcher(query_vectors=world.answers).run(world.queries, 10).rankings
    ranks = [ranked[query.id].docids for query in world.queries]
    own = [query.id.replace("q", "d") for query in world.queries]
    rr = [1 / (r.index(d) + 1) if d in r else 0 for r, d in zip(ranks, own, strict=True)]
    assert grid.cells[Cut(1, WIDTH)]["RR@10"] == pytest.approx(np.mean(rr))
    write_answers(world.answers, world.queries, -world.given)
    (turned,) = evaluate(request).grids  # what was measured before had other queries
    assert turned.cells[Cut(1, WIDTH)] != grid.cells[Cut(1, WIDTH)]
    assert turned.cells[Cut(0, WIDTH)] == grid.cells[Cut(0, WIDTH)]
    (words,) = evaluate(replace(request, query_vectors=None)).grids
    assert {cut.layer for cut in words.cells} == {0}
    assert read_grid(Path("results/corpus/test/mine")).model == "mine"


def test_costs_and_a_pick_need_no_model(world: Given) -> None:
    world.load(name="mine")
    request = EvaluateRequest(
        (world.corpus,), dims=(8, WIDTH), measures=("RR@10",), root=world.root, costs=True,
        query_vectors=world.answers,
    )  # fmt: skip

    (costs,) = evaluate(request).costs

    assert costs.cuts == (Cut(0, 8), Cut(0, WIDTH))
    assert costs.cells[Cut(0, 8)].multiply_adds > 40 * 8
    told = run("pick", "results/corpus/test/mine", "--multiply-adds", "1M")
    assert told.exit_code == 0, told.output
    assert told.stdout.startswith("L0D")


def test_results_by_given_vectors_of_queries_have_a_name_of_their_own(
    tiny_backbone: Path, here: Path
) -> None:
    corpus = make_corpus(here / "c")
    queries = open_dataset(str(corpus)).queries("test")
    np.savez("q.npz", ids=[q.id for q in queries], vectors=np.eye(len(queries), 32))
    asked = EvaluateRequest((str(corpus),), (str(tiny_backbone),), layers=(4,), dims=(32,))

    own = evaluate(asked)
    given = evaluate(replace(asked, query_vectors=Path("q.npz")))

    assert own.folder == given.folder
    assert [grid.model for grid in own.grids + given.grids] == [
        "tiny-bert",
        "tiny-bert.queries-given",
    ]
    assert "queries of layer 4 are given" in given.grids[0].notes
