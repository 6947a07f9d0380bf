import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from m2dr.core.records import Similarity
from m2dr.training.scores import prefix_scores

SHAPES = st.tuples(
    st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.integers(1, 16)
)  # L, B, N, H
SIMILARITIES = st.sampled_from(["dot", "cosine"])


def naive(queries: Tensor, documents: Tensor, dim: int, similarity: Similarity) -> Tensor:
    """Return [L, B, N] from the [L, B, N, H] product that prefix_scores avoids."""
    q, d = queries[..., :dim], documents[..., :dim]
    if similarity == "cosine":
        q = q / q.norm(dim=-1, keepdim=True)
        d = d / d.norm(dim=-1, keepdim=True)
    return (q[:, :, None, :] * d[:, None, :, :]).sum(dim=-1)


def vectors(seed: int, *shape: int, dtype: torch.dtype) -> Tensor:
    """Normal vectors, none so close to zero that a prefix of one dim has a norm of 0."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(*shape, generator=generator, dtype=dtype)
    return (drawn + 0.01 * drawn.sign()).requires_grad_()


@given(shape=SHAPES, seed=st.integers(0, 999), similarity=SIMILARITIES, data=st.data())
@settings(deadline=None)
def test_each_prefix_scores_as_if_the_other_dims_were_never_there(
    shape: tuple[int, int, int, int], seed: int, similarity: Similarity, data: st.DataObject
) -> None:
    layers, queries, documents, width = shape
    dims = sorted(data.draw(st.sets(st.integers(1, width), min_size=1)))
    for dtype, close in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        q = vectors(seed, layers, queries, width, dtype=dtype)
        d = vectors(seed + 1, layers, documents, width, dtype=dtype)

        scores = prefix_scores(q, d, dims, similarity)

        expected = torch.stack([naive(q, d, dim, similarity) for dim in dims], dim=1)
        torch.testing.assert_close(scores, expected, atol=close, rtol=close)


@given(shape=SHAPES, seed=st.integers(0, 999), similarity=SIMILARITIES, data=st.data())
@settings(deadline=None)
def test_its_gradient_is_that_of_the_naive_product(
    shape: tuple[int, int, int, int], seed: int, similarity: Similarity, data: st.DataObject
) -> None:
    layers, queries, documents, width = shape
    dims = sorted(data.draw(st.sets(st.integers(1, width), min_size=1)))
    q = vectors(seed, layers, queries, width, dtype=torch.float64)
    d = vectors(seed + 1, layers, documents, width, dtype=torch.float64)
    weights = vectors(seed + 2, layers, len(dims), queries, documents, dtype=torch.float64)

    found = torch.autograd.grad((prefix_scores(q, d, dims, similarity) * weights).sum(), (q, d))

    scores = torch.stack([naive(q, d, dim, similarity) for dim in dims], dim=1)
    expected = torch.autograd.grad((scores * weights).sum(), (q, d))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-8)


def test_a_zero_prefix_scores_zero_under_cosine() -> None:
    q = torch.tensor([[[0.0, 1.0]]], requires_grad=True)
    d = torch.tensor([[[1.0, 1.0]]])

    scores = prefix_scores(q, d, [1, 2], "cosine")
    scores.sum().backward()

    assert scores[0, 0, 0, 0] == 0
    assert torch.isfinite(q.grad).all()
