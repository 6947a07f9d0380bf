"""Losses of sentence pairs, compared with loops in float64 and with sentence-transformers."""

from collections.abc import Callable

import pytest
import torch
from formulas import of_dependencies, of_embeddings, of_strongest
from hypothesis import given, settings
from hypothesis import strategies as st
from referee import CLOSE, same_gradients
from torch import Tensor
from torch.nn.functional import cosine_similarity

from m2dr.core.records import Similarity
from m2dr.core.variants import Compression
from m2dr.training.losses import (
    angle_similarities,
    compressed,
    compressed_all,
    compressed_randomised,
    contrastive_apart,
    cosent,
    in_batch,
)
from m2dr.training.scores import prefix_scores

TAU = 0.05


def draw(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def agree(ours: Tensor, theirs: Tensor, *leaves: Tensor) -> None:
    """Values and gradients, to 1e-8."""
    torch.testing.assert_close(ours, theirs, **CLOSE)
    same_gradients(ours.sum(), theirs.sum(), list(leaves))


def test_own_negatives_have_a_softmax_of_their_own_without_those_that_are_excluded() -> None:
    queries, scores, excluded = 3, draw(2, 3, 9), torch.zeros(3, 9, dtype=torch.bool)
    excluded[0, 1] = excluded[1, 6] = excluded[2, 0] = True  # 6: of the second query's own two
    own = ([0, 3, 4], [1, 5], [2, 7, 8])
    positives = ([0, 2], [0, 1, 2], [1, 2])
    expected = [
        sum(
            rows[b, columns].div(TAU).exp().sum().log() - rows[b, b] / TAU
            for b in range(queries)
            for columns in (positives[b], own[b])
        )
        / queries
        for rows in scores
    ]

    agree(contrastive_apart(scores, excluded, TAU), torch.stack(expected), scores)


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
    return cosent(angle_similarities(first, second), labels, TAU)


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


# Scores of prefixes


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
    """And its gradient is that of the naive product, in float64."""
    layers, queries, documents, width = shape
    dims = sorted(data.draw(st.sets(st.integers(1, width), min_size=1)))
    for dtype, close in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        q = vectors(seed, layers, queries, width, dtype=dtype)
        d = vectors(seed + 1, layers, documents, width, dtype=dtype)

        scores = prefix_scores(q, d, dims, similarity)

        expected = torch.stack([naive(q, d, dim, similarity) for dim in dims], dim=1)
        torch.testing.assert_close(scores, expected, atol=close, rtol=close)
    weights = vectors(seed + 2, *scores.shape, dtype=torch.float64)
    same_gradients((scores * weights).sum(), (expected * weights).sum(), [q, d])


def test_a_zero_prefix_scores_zero_under_cosine() -> None:
    q = torch.tensor([[[0.0, 1.0]]], requires_grad=True)
    d = torch.tensor([[[1.0, 1.0]]])

    scores = prefix_scores(q, d, [1, 2], "cosine")
    scores.sum().backward()

    assert scores[0, 0, 0, 0] == 0
    assert torch.isfinite(q.grad).all()


# Compressed targets: naive decompositions in float64


def of_each_text(x: Tensor, k: int) -> Tensor:
    """ESE, eq. 3 to 5, as written: of one text at a time."""
    return torch.cat([of_dependencies(text[None], k) for text in x])


WAYS: dict[Compression, object] = {
    "dependencies": of_dependencies,
    "text-dependencies": of_each_text,
    "embeddings": of_embeddings,
    "max-k": of_strongest,
}
HOW = pytest.mark.parametrize("how", WAYS)


def drawn(rows: int, width: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator, dtype=torch.float64)


@HOW
@pytest.mark.parametrize("rows", [3, 12, 40], ids=["fewer texts than dims", "some", "many"])
def test_a_target_is_what_its_decomposition_says(how: Compression, rows: int) -> None:
    x = drawn(rows, 12)

    found = compressed(x, 8, how)

    torch.testing.assert_close(found, WAYS[how](x, 8), atol=1e-8, rtol=1e-8)


@HOW
def test_the_same_texts_have_the_same_target_whatever_was_drawn_before(how: Compression) -> None:
    """The public code's decomposition is randomised: another target at each call."""
    x = drawn(5, 32).float()
    torch.manual_seed(1)
    first = compressed(x, 8, how)
    torch.manual_seed(2)
    before = torch.get_rng_state()

    second = compressed(x, 8, how)

    torch.testing.assert_close(second, first, atol=0, rtol=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_lottery_depends_on_its_seed_alone_and_disturbs_no_other_draw() -> None:
    """Processes whose dropout has drawn different numbers have the same target."""
    x = drawn(16, 16)
    torch.manual_seed(1)
    first, after = compressed_randomised(x, 8, 5), torch.rand(3)
    torch.manual_seed(1)
    expected = torch.rand(3)

    torch.testing.assert_close(compressed_randomised(x, 8, 5), first, atol=0, rtol=0)
    assert torch.equal(after, expected)


@HOW
def test_several_batches_at_once_have_the_targets_of_each(how: Compression) -> None:
    batches = [drawn(5, 16, seed) for seed in range(5)]

    found = compressed_all(batches, 4, how)

    for batch, target in zip(batches, found, strict=True):
        torch.testing.assert_close(target, compressed(batch, 4, how), atol=1e-12, rtol=1e-10)
    assert compressed_all([], 4, how) == []


@HOW
def test_a_gpu_decomposes_otherwise_and_finds_the_same(
    how: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By eigenvectors and all batches at once; here as a processor computes it."""
    batches = [drawn(rows, 48, rows) for rows in (3, 20, 60)]
    single = [batch.float() for batch in batches]
    expected, by_svd = (compressed_all(some, 8, how) for some in (batches, single))
    monkeypatch.setattr("m2dr.training.losses._on_gpu", lambda _: True)
    monkeypatch.setattr(torch.linalg, "svd", lambda *_, **__: pytest.fail("slow on a gpu"))

    found, rounded = (compressed_all(some, 8, how) for some in (batches, single))

    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)
    for ours, theirs, exact in zip(rounded, by_svd, expected, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - exact).norm() <= 2 * (theirs - exact).norm() + 1e-5 * exact.norm()
