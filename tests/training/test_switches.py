"""Every choice of a row, and combinations of rows, compute their formulas."""

import pytest
from choices import CASES
from formulas import DIMS, STAIRS
from recipes import (
    compress,
    express,
    plain,
    starbuck,
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


@SIMILARITIES
def test_a_step_may_draw_one_stair(similarity: str) -> None:
    paper = batch(similarity)
    objective = objective_of("starbucks", paper, {"draw": "step"})

    for asked, stair in zip(objective.choices, STAIRS, strict=True):
        agree(objective, asked, paper, plain(paper) + starbuck(paper, stair))
