"""Properties of every objective, whatever its terms; the formulas are in test_recipes.py."""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from formulas import DIM, DIMS, SHALLOW, TAU, L
from referee import WHOLE, batch, encoded_batch, objective_of
from torch import Tensor

from m2dr.core.errors import UserError
from m2dr.core.variants import VARIANTS, Variant
from m2dr.training.objective import Objective, Setting
from m2dr.training.terms import StepTerms, possible_steps

CHI_SQUARED = 26.1  # of nine equally likely outcomes, once in a thousand by chance alone
V1 = possible_steps(VARIANTS["2dmse-v1"], SHALLOW, DIMS, WHOLE)


def drawing(seed: int) -> Objective:
    return Objective(V1, WHOLE, Setting("dot", TAU, seed=seed))


def test_what_a_step_draws_depends_on_the_seed_and_the_step_alone() -> None:
    forwards = [drawing(13).at(step) for step in range(50)]
    resumed = drawing(13)
    for library in (random, np.random, torch):  # which a resumed run has in any state
        (library.manual_seed if library is torch else library.seed)(1)

    backwards = [resumed.at(step) for step in reversed(range(50))]

    assert backwards[::-1] == forwards
    assert [drawing(14).at(step) for step in range(50)] != forwards


def test_every_layer_and_prefix_comes_up_as_often_as_any_other() -> None:
    steps, objective = 6000, drawing(13)

    counts = Counter((a.layers[0], a.dims[0]) for a in map(objective.at, range(steps)))

    assert counts.keys() == {(layer, k) for layer in SHALLOW for k in DIMS}
    fair = steps / len(counts)
    spread = sum((count - fair) ** 2 / fair for count in counts.values())
    assert spread < CHI_SQUARED


def aligned(variant: Variant) -> StepTerms:
    """One shallow cut's alignment and nothing else."""
    (step,) = possible_steps(variant, [2], [DIM], WHOLE)
    kept = [t for t in step.terms if t.kind != "retrieve" and t.cut.layer == 2]
    return StepTerms(tuple(kept), step.documents_from_last, (2, L))


def gradients_of(variant: Variant) -> tuple[Tensor, Tensor]:
    """Of the alignment of layer 2 at one prefix, to queries and documents [L, n, H]."""
    paper, asked = batch(), aligned(variant)
    setting = Setting("dot", TAU, variant=variant)
    loss, _ = Objective([asked], WHOLE, setting)(asked, encoded_batch(asked, paper))
    return torch.autograd.grad(loss, (paper.q, paper.d), materialize_grads=True)


TEACHERS = {
    f"{align}, {teacher}, {compress}, {'with' if add_mse else 'no'} add_mse": replace(
        VARIANTS["2dmse"], align=align, teacher=teacher, compress=compress, add_mse=add_mse
    )
    for align, teacher, compress, add_mse in [
        ("pca", "width", "dependencies", True),
        ("pca", "width", "embeddings", True),
        ("pca", "width", "max-k", False),
        ("embedding", "depth", "dependencies", True),
        ("embedding", "depth", "dependencies", False),
        ("score", "width", "dependencies", True),
        ("score", "depth", "dependencies", True),
        ("score", "whole", "dependencies", True),
        ("score", "whole", "dependencies", False),
    ]
}


@pytest.mark.parametrize("variant", TEACHERS.values(), ids=list(TEACHERS))
def test_who_is_imitated_learns_nothing_from_it(variant: Variant) -> None:
    for gradient in gradients_of(variant):
        assert (gradient[1, :, :DIM] != 0).all()  # layer 2 is the student
        assert (gradient[1, :, DIM:] == 0).all()
        assert (gradient[[0, 2, 3]] == 0).all()


def test_documents_of_shallow_layers_get_no_gradient_when_documents_are_fixed() -> None:
    for name in ("fixed-doc", "mipic"):
        paper = batch()
        paper.documents = "last"
        objective = objective_of(name, paper, {"documents": "last"})
        asked = objective.at(0)

        loss, _ = objective(asked, encoded_batch(asked, paper))
        loss.backward()

        assert paper.d.grad[:-1].abs().sum() == 0
        assert paper.d.grad[-1].abs().sum() > 0


def test_learned_weights_of_layers_that_are_not_asked_stay_as_they_are() -> None:
    """Each would otherwise fall without end, and the loss with it."""
    paper = batch()
    objective = objective_of("2dmse-v1", paper, {"weights": "dynamic"})

    for asked in objective.choices:
        loss, _ = objective(asked, encoded_batch(asked, paper))
        (gradient,) = torch.autograd.grad(loss, objective.log_variances)
        assert [layer for layer in SHALLOW if gradient[layer - 1] != 0] == [asked.layers[0]]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_names_the_part_that_is_none(value: float) -> None:
    paper = batch()
    objective = objective_of("full-dim", paper)
    asked = objective.at(0)
    sides = encoded_batch(asked, paper)
    broken = sides.queries.detach().clone()
    broken[1] = value

    with pytest.raises(UserError, match="not a number in its part layer-02/contrastive"):
        objective(asked, replace(sides, queries=broken))
