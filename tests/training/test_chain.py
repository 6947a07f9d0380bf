"""The chain, compared with MIPIC's equations 16 and 17 link by link and text by text."""

import pytest
import torch
from torch import Tensor

from m2dr.core.records import Cut
from m2dr.training.mipic import Chain, checkpoints_of, full_width

N, H, TAU = 5, 16, 0.05
CUTS = (Cut(1, 2), Cut(2, 8), Cut(4, 16))


def batch(seed: int = 3, dtype: torch.dtype = torch.float64) -> dict[int, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (N, H)
    return {
        layer: torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()
        for layer in (1, 2, 3, 4)
    }


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / (a.square().sum() * b.square().sum()).sqrt()


def naive(chain: Chain, vectors: dict[int, Tensor], excluded: Tensor | None = None) -> Tensor:
    loss = torch.zeros((), dtype=torch.float64)
    for link, projector in enumerate(chain.projectors):
        here, there = chain.checkpoints[link], chain.checkpoints[link + 1]
        for i in range(N):
            told = projector(vectors[here.layer][i, : here.dim])
            logits = torch.stack(
                [
                    cosine(told, vectors[there.layer][j, : there.dim]) / TAU
                    for j in range(N)
                    if excluded is None or not excluded[i, j]
                ]
            )
            own = cosine(told, vectors[there.layer][i, : there.dim]) / TAU
            loss = loss + (logits.exp().sum().log() - own) / N
    return loss


@pytest.mark.parametrize("checkpoints", [CUTS, full_width(CUTS)], ids=["growing", "full width"])
@pytest.mark.parametrize("some_excluded", [False, True])
def test_loss_and_gradients_are_those_of_the_papers_equations(
    checkpoints: tuple[Cut, ...], some_excluded: bool
) -> None:
    chain, vectors = Chain(checkpoints, TAU).double(), batch()
    excluded = torch.zeros(N, N, dtype=torch.bool)
    excluded[0, 3] = excluded[3, 0] = True
    asked = excluded if some_excluded else None

    loss = chain(vectors, asked)

    expected = naive(chain, vectors, asked)
    torch.testing.assert_close(loss, expected, atol=1e-8, rtol=1e-8)
    leaves = [vectors[1], vectors[2], vectors[4], *chain.parameters()]
    ours, theirs = torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, leaves)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize(
    ("layers", "width", "published"),
    [
        (6, 768, [(1, 16), (2, 32), (3, 64), (4, 256), (5, 512), (6, 768)]),
        (12, 768, [(2, 16), (4, 32), (6, 64), (8, 128), (9, 256), (10, 512), (12, 768)]),
        (24, 1024, [(1, 16), (4, 32), (7, 64), (11, 128), (15, 256), (19, 512), (24, 1024)]),
        (28, 1024, [(2, 16), (6, 32), (12, 64), (16, 128), (20, 256), (24, 512), (28, 1024)]),
    ],
)
def test_published_encoders_have_their_published_checkpoints(
    layers: int, width: int, published: list[tuple[int, int]]
) -> None:
    assert [(cut.layer, cut.dim) for cut in checkpoints_of(layers, width)] == published
