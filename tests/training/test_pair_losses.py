"""Losses of sentence pairs, compared with loops in float64 and with sentence-transformers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from m2dr.training.losses import angle_similarities, cosent, in_batch

TAU = 0.05


def draw(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def angle(first: Tensor, second: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """AnglE's own part, as the base loss puts it together."""
    return cosent(angle_similarities(first, second), labels, temperature)


def agree(ours: Tensor, theirs: Tensor, *leaves: Tensor) -> None:
    """Values and gradients, to 1e-8."""
    torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=1e-8)
    found = torch.autograd.grad(ours.sum(), leaves)
    expected = torch.autograd.grad(theirs.sum(), leaves)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-8)


def test_similarities_in_half_precision_far_apart_stay_finite() -> None:
    similarities = torch.tensor([-300.0, 300.0, 0.0], dtype=torch.bfloat16, requires_grad=True)

    found = cosent(similarities, torch.tensor([2.0, 1.0, 0.0]), TAU)
    found.backward()

    torch.testing.assert_close(found, torch.tensor(600 / TAU))
    torch.testing.assert_close(similarities.grad.float(), torch.tensor([-1, 1, 0]) / TAU)


def test_a_zero_vector_has_no_angle_and_learns_nothing() -> None:
    first, second = torch.zeros(1, 4, requires_grad=True), torch.ones(1, 4, requires_grad=True)

    found = angle_similarities(first, second)
    found.sum().backward()

    assert found.item() == 0
    assert (first.grad == 0).all()
    assert (second.grad == 0).all()


class Fixed(torch.nn.Module):
    """A model that returns its input."""

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": features["vectors"]}


Referee = Callable[[Tensor, Tensor, Tensor], Tensor]


def referee(name: str) -> Referee:
    """A loss of sentence-transformers as a function of embeddings and labels, at temperature TAU."""
    losses = pytest.importorskip(
        "sentence_transformers.sentence_transformer.losses",
        reason="the referee, sentence-transformers, is not installed (extra: compare)",
    )
    loss = getattr(losses, name)(Fixed(), scale=1 / TAU)
    return lambda first, second, labels: loss([{"vectors": first}, {"vectors": second}], labels)


def ours_cosent(first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
    return cosent(cosine_similarity(first, second), labels, TAU)


def ours_angle(first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
    return angle(first, second, labels, TAU)


def ours_ranking(first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
    cosines = cosine_similarity(first[:, None], second[None], dim=-1)
    nothing = torch.zeros(len(labels), len(labels), dtype=torch.bool)
    return in_batch(cosines, nothing, torch.ones_like(labels).bool(), TAU)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("CoSENTLoss", ours_cosent),
        ("AnglELoss", ours_angle),
        ("MultipleNegativesRankingLoss", ours_ranking),
    ],
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_sentence_transformers_says_the_same(name: str, ours: Referee, seed: int) -> None:
    first, second = draw(16, 12, seed=seed), draw(16, 12, seed=seed + 10)
    labels = (draw(16, seed=seed + 20) * 2).round().detach()

    found = ours(first, second, labels)

    agree(found, referee(name)(first, second, labels), first, second)
