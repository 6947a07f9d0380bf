"""The rotation of an embedding, against numpy's eigenvectors and scipy's minimum of the loss."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from m2dr.core.records import Rotation, Similarity
from m2dr.maps import exits as linear_fit
from m2dr.maps.exits import fit_rotation

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

KINDS: tuple[Rotation, ...] = ("none", "pca", "learned")
SIMILARITIES: tuple[Similarity, ...] = ("cosine", "dot")
both = pytest.mark.parametrize("similarity", SIMILARITIES)
DIMS = (2, 4, 8, 12)


def topics(count: int, seed: int, width: int = 24) -> Floats:
    """Vectors [count, width] of a few topics out of 30 each, which are the same for every seed."""
    directions = np.random.default_rng(0).normal(size=(30, width))
    draw = np.random.default_rng(seed)
    mixtures = draw.dirichlet(np.full(30, 0.05), count)
    found: Floats = mixtures @ directions + draw.normal(0, 0.1, (count, width))
    return found.astype(np.float32)


def scores(vectors: Doubles, dim: int, similarity: Similarity) -> Doubles:
    cut = vectors[:, :dim]
    if similarity == "cosine":
        cut = cut / np.linalg.norm(cut, axis=1, keepdims=True)
    found: Doubles = cut @ cut.T
    return found


def loss(
    vectors: Floats, turn: Doubles | Floats, dims: Sequence[int], similarity: Similarity
) -> float:
    """The mean KL of rankings by prefixes, each at its best temperature."""
    rotated = vectors.astype(np.float64) @ turn.T.astype(np.float64)
    itself = np.diag(np.full(len(rotated), np.inf))
    full = scores(rotated, rotated.shape[1], similarity)
    others = full[~np.eye(len(full), dtype=bool)].reshape(len(full), -1)
    wanted = log_softmax(full * 2 / others.std(axis=1, ddof=1).mean() - itself, axis=1)
    shares = np.exp(wanted)
    wanted[itself > 0] = 0.0

    def divergence(sharpness: float, prefix: Doubles) -> float:
        found = log_softmax(np.exp(sharpness) * prefix - itself, axis=1)
        found[itself > 0] = 0.0
        return float((shares * (wanted - found)).sum() / len(full))

    return float(
        np.mean(
            [
                minimize_scalar(
                    divergence, args=(scores(rotated, dim, similarity),), bounds=(-9, 9)
                ).fun
                for dim in dims
            ]
        )
    )


def projector(turn: Floats, dim: int) -> Doubles:
    rows = turn[:dim].astype(np.float64)
    found: Doubles = rows.T @ rows
    return found


def brief(patch: pytest.MonkeyPatch) -> None:
    """Let a learned rotation take few steps, where its quality does not matter."""
    patch.setattr(linear_fit, "STEPS", 6)
    patch.setattr(linear_fit, "ROUND", 3)


@pytest.fixture(autouse=True)
def small_batches() -> Iterator[None]:
    """Batches for far fewer texts than in use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear_fit, "BATCH", 128)
        patch.setattr(linear_fit, "HELD_OUT", 128)
        yield


@st.composite
def any_vectors(draw: st.DrawFn) -> Floats:
    """Few or many vectors of few or some dims: any rank, constant dims, zeros, any scale."""
    count, width = draw(st.integers(0, 60)), draw(st.sampled_from([1, 2, 3, 7, 16]))
    rank = draw(st.integers(0, width))
    normal = np.random.default_rng(draw(st.integers(0, 2**32))).normal
    vectors = normal(size=(count, rank)) @ normal(size=(rank, width))
    vectors += draw(st.sampled_from([0.0, 1.0, 100.0])) * normal(size=width)
    vectors[:, draw(st.integers(0, width - 1))] = draw(st.sampled_from([0.0, 5.0]))
    vectors[: draw(st.integers(0, 3))] = 0.0
    vectors[: draw(st.integers(0, 60))] *= draw(st.sampled_from([1.0, 1e-12, 1e12]))
    return (vectors * draw(st.sampled_from([1.0, 1e-18, 1e18]))).astype(np.float32)


@settings(max_examples=150)
@given(any_vectors(), st.sampled_from(KINDS), st.sampled_from(SIMILARITIES), st.data())
def test_every_rotation_is_orthogonal_and_keeps_the_scores_of_whole_vectors(
    vectors: Floats, kind: Rotation, similarity: Similarity, data: st.DataObject
) -> None:
    width = vectors.shape[1]
    dims = data.draw(st.lists(st.integers(1, 2 * width), max_size=4))
    with pytest.MonkeyPatch.context() as patch:
        brief(patch)
        turn = fit_rotation(vectors, kind, similarity, dims)
    assert turn.dtype == np.float32
    assert turn.shape == (width, width)
    wide = turn.astype(np.float64)
    assert np.abs(wide @ wide.T - np.eye(width)).max() < 1e-6
    before = vectors.astype(np.float64)
    lengths = np.linalg.norm(before, axis=1)
    largest = lengths[:, None] * lengths + 1e-300  # of a score, so that cosines are checked
    after = before @ wide.T
    assert np.abs((after @ after.T - before @ before.T) / largest).max(initial=0) < 1e-5


@both
@pytest.mark.parametrize("count", [500, 9], ids=["many", "fewer vectors than dims"])
def test_pca_has_the_eigenvectors_of_the_centred_covariance(
    count: int, similarity: Similarity
) -> None:
    vectors = topics(count, seed=1)
    turn = fit_rotation(vectors, "pca", similarity, DIMS)
    wide = vectors.astype(np.float64)
    if similarity == "cosine":
        wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    _, weakest_first = np.linalg.eigh(np.cov(wide.T))
    for dim in range(1, min(count, 25)):
        axes = weakest_first[:, ::-1][:, :dim]
        assert np.allclose(projector(turn, dim), axes @ axes.T, atol=1e-5)


@both
def test_a_learned_rotation_ranks_unseen_texts_better_than_pca(similarity: Similarity) -> None:
    vectors, unseen = topics(1000, seed=1), topics(200, seed=2)
    found = {kind: fit_rotation(vectors, kind, similarity, DIMS) for kind in KINDS}
    losses = {kind: loss(unseen, turn, DIMS, similarity) for kind, turn in found.items()}
    assert losses["learned"] < 0.95 * losses["pca"]
    assert losses["pca"] < losses["none"]
