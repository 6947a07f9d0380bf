"""Every row of VARIANTS computes its paper's formula, written out naively."""

from collections.abc import Callable

import pytest
from choices import CASES
from formulas import DIMS, SHALLOW, STAIRS, H, L, Paper
from recipes import (
    ROWS,
    compress,
    express,
    first_two_dmse,
    four,
    plain,
    starbuck,
)
from referee import agree, batch, objective_of
from torch import Tensor

from m2dr.core.variants import VARIANTS

SIMILARITIES = pytest.mark.parametrize("similarity", ["dot", "cosine"])
Draw = Callable[[Paper, int, int], Tensor]


def test_every_row_has_a_formula() -> None:
    of_public_code = {"2dmse-st", "starbucks-sts", "ml-embed"}  # test_as_published.py
    assert ROWS.keys() | {"2dmse-v1"} | of_public_code == VARIANTS.keys()


@SIMILARITIES
@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_its_papers_formula(name: str, similarity: str) -> None:
    paper = batch(similarity, documents=VARIANTS[name].documents)
    objective = objective_of(name, paper)

    agree(objective, objective.at(0), paper, ROWS[name](paper))


SIDES = ["mrl", "full-dim", "score", "fixed-doc", "starbucks", "ese", "mipic", "elastic"]


@pytest.mark.parametrize("similarity", ["cosine"])
@pytest.mark.parametrize("loss", ["mnr", "simcse", "cosent", "angle"])
@pytest.mark.parametrize("name", SIDES)
def test_a_row_is_its_formula_with_any_loss_of_sentence_pairs(
    name: str, loss: str, similarity: str
) -> None:
    paper = batch(similarity, loss, VARIANTS[name].documents)
    objective = objective_of(name, paper)

    agree(objective, objective.at(0), paper, ROWS[name](paper))


def by_scores(p: Paper, layer: int, k: int) -> Tensor:
    wide = p.score_align((layer, H), (L, H), add_mse=False)
    return four(p, layer, k) + wide + p.score_align((layer, k), (L, k), add_mse=False)


def learned(p: Paper, layer: int, k: int) -> Tensor:
    """The learned weight is that of the drawn layer."""
    last = p.ce(L, H) + p.ce(L, k)
    log_variance = p.log_variances[layer - 1]
    return last + (-log_variance).exp() * (first_two_dmse(p, layer, k) - last) + log_variance


DRAWS: dict[str, tuple[dict[str, object], Draw]] = {
    "as published": ({}, first_two_dmse),
    "no alignment": ({"align": "none"}, four),
    "no last layer": (
        {"whole": False},
        lambda p, layer, k: first_two_dmse(p, layer, k) - p.ce(L, H),
    ),
    "lambda": (
        {"align_weight": 0.5},
        lambda p, layer, k: (first_two_dmse(p, layer, k) + four(p, layer, k)) / 2,
    ),
    "by scores": ({"align": "score"}, by_scores),
    "fixed documents": ({"documents": "last"}, first_two_dmse),
    "learned weights": ({"weights": "dynamic"}, learned),
}


@SIMILARITIES
@pytest.mark.parametrize("case", DRAWS)
def test_each_draw_of_the_first_2dmse_is_its_papers_formula(case: str, similarity: str) -> None:
    changes, formula = DRAWS[case]
    paper = batch(similarity, documents=str(changes.get("documents", "same")))
    objective = objective_of("2dmse-v1", paper, changes)
    drawn = [(layer, k) for layer in SHALLOW for k in DIMS]

    for asked, (layer, k) in zip(objective.choices, drawn, strict=True):
        agree(objective, asked, paper, formula(paper, layer, k))


# Choices


@SIMILARITIES
@pytest.mark.parametrize("case", CASES)
def test_a_choice_changes_the_formula_as_it_says(case: str, similarity: str) -> None:
    name, changes, formula = CASES[case]
    last = "last" if name == "fixed-doc" else "same"
    paper = batch(similarity, documents=str(changes.get("documents", last)))
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
