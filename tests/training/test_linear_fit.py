"""Fitted exits in closed form, against numpy's own least squares."""

# Shapes in this file: N texts, P dims of a state, V of a vector of words, W of the embedding.

import numpy as np
import pytest
from numpy.typing import NDArray

from m2dr.training.linear_fit import DEFAULT_RIDGE, RIDGES, FittedHead, fit_head

P, V, W = 6, 5, 4
Floats = NDArray[np.float32]
NONE = np.zeros(40, bool)


def inputs(count: int = 40, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """States, words and targets of texts."""
    draw = np.random.default_rng(seed)
    states, words = draw.normal(1, 1, (count, P)) * 7, draw.normal(size=(count, V))
    mapping = np.random.default_rng(99).normal(size=(P, W))
    targets = states @ mapping + draw.normal(size=(count, W)) * 9
    return tuple(each.astype(np.float32) for each in (states, words, targets))


def referee(
    states: Floats, words: Floats, targets: Floats, ridge: float, scale: float
) -> NDArray[np.float64]:
    """The minimiser [P + V + 1, W] by an augmented system and numpy's lstsq, for unscaled inputs."""
    x = np.concatenate([states * scale, words, np.ones((len(words), 1))], axis=1, dtype=np.float64)
    penalty = ridge * np.mean(np.sum(x**2, axis=0))
    rows = np.concatenate([x, np.sqrt(penalty) * np.eye(x.shape[1])])
    wanted = np.concatenate([targets, np.zeros((x.shape[1], W))])
    found: NDArray[np.float64] = np.linalg.lstsq(rows, wanted, rcond=None)[0]
    found[: states.shape[1]] *= scale
    return found


def stacked(head: FittedHead) -> Floats:
    return np.concatenate([head.weight, head.beside, head.bias[None]])


@pytest.mark.parametrize(("dims", "more"), [(P, V), (P, 0), (0, V)])
def test_a_head_is_the_least_squares_of_numpy(dims: int, more: int) -> None:
    states, words, targets = inputs()
    states, words = states[:, :dims], words[:, :more]

    head = fit_head(states, words, targets, NONE)

    assert (head.ridge, head.cosine) == (DEFAULT_RIDGE, None)
    assert (head.weight.shape, head.beside.shape) == ((dims, W), (more, W))
    scale = 1 / np.linalg.norm(states, axis=1).mean() if dims else 1
    wanted = referee(states, words, targets, DEFAULT_RIDGE, scale)
    np.testing.assert_allclose(stacked(head), wanted, atol=1e-4)


def test_the_ridge_is_the_one_that_is_best_on_texts_held_out() -> None:
    states, words, targets = inputs()
    held_out, scale = np.arange(40) >= 12, 1 / np.linalg.norm(states, axis=1).mean()
    read = np.concatenate([states, words, np.ones((40, 1))], axis=1)[held_out]

    def cosine(ridge: float) -> float:
        vectors = read @ referee(states[:12], words[:12], targets[:12], ridge, scale)
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(targets[held_out], axis=1)
        return float(((vectors * targets[held_out]).sum(1) / lengths).mean())

    head = fit_head(states, words, targets, held_out)

    assert head.ridge == max(RIDGES, key=cosine)
    assert head.cosine == pytest.approx(cosine(head.ridge), abs=1e-6)


def test_values_that_are_not_finite_are_refused() -> None:
    states, words, targets = inputs()
    for broken in (states, targets):
        value, broken[3, 2] = broken[3, 2], np.nan
        with pytest.raises(ValueError, match="is not finite"):
            fit_head(states, words, targets, NONE)
        broken[3, 2] = value
