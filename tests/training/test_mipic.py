"""MIPIC's chain and token relations, compared with the equations of its paper text by text."""

import public_code as public
import pytest
import torch
from formulas import token_relations
from referee import CLOSE, same_gradients
from torch import Tensor

from m2dr.core.records import Cut, Pooling
from m2dr.training.mipic import (
    Chain,
    TokenRelations,
    checkpoints_of,
    full_width,
    prefix_alignment,
    shares_of,
)

N, WIDTH, COLD = 5, 16, 0.05
CUTS = (Cut(1, 2), Cut(2, 8), Cut(4, 16))


def batch(seed: int = 3, dtype: torch.dtype = torch.float64) -> dict[int, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (N, WIDTH)
    return {
        layer: torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()
        for layer in (1, 2, 3, 4)
    }


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
    found = checkpoints_of(layers, width)

    assert [(cut.layer, cut.dim) for cut in found] == published
    assert full_width(found) == tuple(Cut(layer, width) for layer, _ in published)


def test_the_chain_of_notebooks() -> None:
    chain, vectors = Chain(CUTS, 0.07, code=True).double(), batch()

    loss = chain(vectors)

    views = [vectors[cut.layer] for cut in CUTS]
    expected = public.mipic_chain(views, [cut.dim for cut in CUTS], list(chain.projectors), 0.07)
    torch.testing.assert_close(loss, expected, **CLOSE)
    same_gradients(loss, expected, [vectors[1], vectors[2], *chain.parameters()])
    hidden = [(each[0].out_features, type(each[1])) for each in chain.projectors]
    assert hidden == [(4, torch.nn.ReLU), (8, torch.nn.ReLU)]  # half of the wider end
    assert torch.autograd.grad(chain(vectors), vectors[4], allow_unused=True) == (None,)


# Token relations: equations 4 to 13


H, TAU = 24, 0.7
DIMS = (3, 8, 16)


def relations_of(
    anchor: Pooling = "cls", dims: tuple[int, ...] = DIMS, itself: bool = True
) -> TokenRelations:
    """Relations whose projections differ from their start."""
    module = TokenRelations([1, 2], dims, H, TAU, shares_of(len(dims)), anchor, itself).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        noise = torch.randn(module.projections.shape, generator=generator, dtype=torch.float64)
        module.projections += 0.3 * noise
    return module


def ragged(lengths: list[int], seed: int = 1, width: int = H) -> tuple[Tensor, Tensor]:
    """States [b, T, H], padding included, with a mean as large as their spread; and mask [b, T]."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths), width)
    mean = torch.randn(width, generator=generator, dtype=torch.float64)
    states = mean + torch.randn(shape, generator=generator, dtype=torch.float64)
    mask = (torch.arange(shape[1]) < torch.tensor(lengths)[:, None]).long()
    return states.requires_grad_(), mask


@pytest.mark.parametrize("itself", [True, False])
@pytest.mark.parametrize("anchor", ["cls", "mean", "last"])
@pytest.mark.parametrize(
    "lengths",
    [[5, 12, 1, 9], [40, 13, 3], [1], [60, 50]],
    ids=["fewer tokens than dims", "more tokens", "one token", "more chosen"],
)
def test_loss_and_gradients_are_those_of_the_papers_equations(
    lengths: list[int], anchor: Pooling, itself: bool
) -> None:
    module = relations_of(anchor, itself=itself)
    states, mask = ragged(lengths)
    weights = torch.linspace(0.5, 2.0, len(lengths), dtype=torch.float64)

    losses = module(states, mask)

    projections = list(module.projections.split(list(DIMS)))
    expected = torch.stack(
        [
            token_relations(text[:length], projections, anchor, TAU, itself)
            for text, length in zip(states, lengths, strict=True)
        ]
    )
    torch.testing.assert_close(losses, expected, **CLOSE)
    pair = (losses * weights).sum(), (expected * weights).sum()
    same_gradients(*pair, [states, module.projections])


def test_the_relations_of_notebooks_train_both_sides() -> None:
    layers, dims, lengths = (1, 2), (3, 8, 16), [70, 20, 9]
    module = TokenRelations(layers, dims, H, TAU, shares_of(3), "cls", code=True).double()
    states, mask = zip(*(ragged(lengths, seed) for seed in layers), strict=True)
    weights = torch.linspace(0.5, 2.0, len(lengths), dtype=torch.float64)

    losses = sum(module(each, mask[0]) for each in states)

    def expected_of(text: int) -> Tensor:
        tokens = [each[text, : lengths[text]] for each in states]
        orders = [(each @ each[0]).argsort(descending=True).tolist() for each in tokens]
        return public.mipic_relations(tokens, orders, dims)

    expected = torch.stack([expected_of(text) for text in range(len(lengths))])
    torch.testing.assert_close(losses, expected, atol=1e-8, rtol=1e-8)
    assert list(module.parameters()) == []
    ours = torch.autograd.grad((losses * weights).sum(), states)
    theirs = torch.autograd.grad((expected * weights).sum(), states)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-8)
        assert (a[..., 16:] != 0).any()  # dims of the full width alone


@pytest.mark.parametrize("width", [6, 24], ids=["fewer dims than tokens", "as many"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tokens_that_are_all_the_same_have_no_relations_to_keep(
    dtype: torch.dtype, width: int
) -> None:
    one = 3 * torch.randn(40, 1, width, generator=torch.Generator().manual_seed(3))
    states = one.to(dtype).expand(40, 23, width).clone().requires_grad_()
    chosen, counts = torch.arange(23).expand(40, 23), torch.tensor([[11, 23]]).expand(40, 2)

    alike = prefix_alignment(states, chosen, counts, (2, 4))
    alike.sum().backward()

    assert (alike == 1).all()  # not what rounding leaves of them
    assert (states.grad == 0).all()
