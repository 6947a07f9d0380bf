"""Every choice of a row, and combinations of rows, compute their formulas."""

import pytest
import torch
from choices import CASES
from formulas import DIMS, SHALLOW, STAIRS, H, L
from recipes import (
    compress,
    ese,
    express,
    first_two_dmse,
    full_dim,
    plain,
    scores_to_width,
    starbuck,
    two_dmse,
)
from referee import agree, batch, objective_of

SIMILARITIES = pytest.mark.parametrize("similarity", ["dot", "cosine"])


@SIMILARITIES
@pytest.mark.parametrize("case", CASES)
def test_a_choice_changes_the_formula_as_it_says(case: str, similarity: str) -> None:
    name, changes, formula = CASES[case]
    last = "last" if name == "fixed-doc" else "same"
    paper = batch(similarity, documents=str(changes.get("documents", last)))
    objective = objective_of(name, paper, changes)

    agree(objective, objective.at(0), paper, formula(paper))


OF_SENTENCES = {
    "learned": "angle",
    "score and ese": "angle",
    "embeddings": "cosent",
    "fixed-doc and embeddings": "mnr",
    "fixed-doc and both": "angle",
    "the mean of both sides' alignment": "simcse",
    "mipic and dims": "simcse",
}


@pytest.mark.parametrize("case", OF_SENTENCES)
def test_and_so_it_does_for_sentence_pairs(case: str) -> None:
    name, changes, formula = CASES[case]
    documents = "last" if name == "fixed-doc" else "same"
    paper = batch("cosine", OF_SENTENCES[case], documents)
    objective = objective_of(name, paper, changes)

    agree(objective, objective.at(0), paper, formula(paper))


@SIMILARITIES
@pytest.mark.parametrize("loss", ["contrastive", "angle"])
@pytest.mark.parametrize("how", ["dependencies", "embeddings", "max-k"])
def test_ese_compresses_what_it_is_told_to(how: str, loss: str, similarity: str) -> None:
    paper = batch(similarity, loss)
    paper.compress = how
    objective = objective_of("ese", paper, {"compress": how, "prefixes": "many"})

    expected = express(paper, DIMS) + compress(paper, DIMS)

    agree(objective, objective.at(0), paper, expected)


def test_ese_without_compression_is_learn_to_express_alone() -> None:
    paper = batch("cosine", "angle")
    objective = objective_of("ese", paper, {"compress": "none"})

    agree(objective, objective.at(0), paper, express(paper))


@SIMILARITIES
def test_a_faithful_score_is_divided_by_queries_and_documents(similarity: str) -> None:
    paper = batch(similarity)
    objective = objective_of("score", paper, faithful=True)

    aligned = scores_to_width(paper) / paper.excluded.numel()

    agree(objective, objective.at(0), paper, paper.ce(L, H) + express(paper) + aligned)


@SIMILARITIES
def test_a_step_may_draw_one_stair(similarity: str) -> None:
    paper = batch(similarity)
    objective = objective_of("starbucks", paper, {"draw": "step"})

    for asked, stair in zip(objective.choices, STAIRS, strict=True):
        agree(objective, asked, paper, plain(paper) + starbuck(paper, stair))


def test_a_step_may_draw_one_prefix_of_the_last_layer() -> None:
    paper = batch()
    objective = objective_of("mrl", paper, {"draw": "step"})

    for asked, k in zip(objective.choices, DIMS, strict=True):
        agree(objective, asked, paper, paper.ce(L, H) + paper.ce(L, k))


def test_a_draw_without_prefixes_is_of_the_layer_alone() -> None:
    paper = batch(documents="last")
    changes = {"prefixes": "none", "align": "none", "whole": False, "documents": "last"}
    objective = objective_of("2dmse-v1", paper, changes)

    for asked, layer in zip(objective.choices, SHALLOW, strict=True):
        agree(objective, asked, paper, paper.ce(layer, H))


def test_a_draw_may_average() -> None:
    paper = batch()
    objective = objective_of("2dmse-v1", paper, {"average": True})

    for asked, (layer, k) in zip(
        objective.choices, ((n, k) for n in SHALLOW for k in DIMS), strict=True
    ):
        whole = paper.ce(L, H)
        expected = whole + (first_two_dmse(paper, layer, k) - whole) / 3
        agree(objective, asked, paper, expected)


@pytest.mark.parametrize("name", ["mnr", "simcse", "contrastive"])
def test_sentences_that_are_not_alike_ask_nothing(name: str) -> None:
    """Whatever the ranking loss is called: a low score never pulls two sentences together."""
    paper = batch("cosine", "mnr")
    paper.loss = name
    objective = objective_of("full-dim", paper)

    agree(objective, objective.at(0), paper, full_dim(paper))


@SIMILARITIES
def test_ese_is_the_base_of_2dmse(similarity: str) -> None:
    """Wang et al. 2024, eq. 12: what their base adds to eq. 11 is the full model's own loss."""
    paper = batch(similarity)
    objective = objective_of("ese", paper, {"whole": True})

    torch.testing.assert_close(two_dmse(paper), ese(paper) + plain(paper))
    agree(objective, objective.at(0), paper, two_dmse(paper))
