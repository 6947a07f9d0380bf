"""Fitted exits in closed form, against numpy's own least squares."""

# Shapes in this file: S shallow layers, N texts, P dims of a state, F features, W dims.

import numpy as np
import pytest
from numpy.typing import NDArray

from m2dr.core.records import FitInputs, inputs_of
from m2dr.train.linear_fit import DEFAULT_RIDGE, Moments, Sample, fit_head

S, P, F, W = 3, 6, 5, 4
INPUTS: tuple[FitInputs, ...] = ("tokens+layer", "layer", "all-layers")


def sample(count: int, seed: int = 0, scale: float = 1.0) -> Sample:
    draw = np.random.default_rng(seed)
    states = draw.normal(1, 1, (S, count, P)) * scale
    tokens = draw.normal(size=(count, F))
    targets = states[-1] @ draw.normal(size=(P, W)) + draw.normal(size=(count, W))
    return Sample(*(array.astype(np.float32) for array in (states, tokens, targets)))


def moments_of(texts: Sample, wide: bool = True) -> Moments:
    found = Moments(S, wide)
    found.add(texts)
    return found


def referee(texts: Sample, layer: int, inputs: FitInputs, ridge: float) -> NDArray[np.float64]:
    """The minimiser by an augmented system and numpy's lstsq, for scaled inputs; then unscaled."""
    parts = inputs_of(layer, inputs)
    scales, columns = [], []
    for part in parts:
        block = (texts.states[part - 1] if part else texts.tokens).astype(np.float64)
        scale = 1 / np.linalg.norm(block, axis=1).mean() if part else 1.0
        columns.append(block * scale)
        scales += [scale] * block.shape[1]
    x = np.concatenate([*columns, np.ones((len(texts), 1))], axis=1)
    penalty = ridge * np.mean(np.sum(x**2, axis=0))
    rows = np.concatenate([x, np.sqrt(penalty) * np.eye(x.shape[1])])
    wanted = np.concatenate([texts.targets.astype(np.float64), np.zeros((x.shape[1], W))])
    found: NDArray[np.float64] = np.linalg.lstsq(rows, wanted, rcond=None)[0]
    return found * np.array([*scales, 1.0])[:, None]


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("layer", range(S + 1))
@pytest.mark.parametrize("ridge", [1e-4, 1e-2, 1.0])
def test_a_head_is_the_least_squares_of_numpy(layer: int, inputs: FitInputs, ridge: float) -> None:
    texts = sample(40, scale=7.0)
    head = fit_head(moments_of(texts), sample(0), layer, inputs, (ridge,))
    wanted = referee(texts, layer, inputs, ridge)
    assert np.allclose(head.weight, wanted[:-1], atol=1e-5)
    assert np.allclose(head.bias, wanted[-1], atol=1e-5)


def test_the_ridge_is_the_one_that_is_best_on_texts_held_out() -> None:
    texts, held_out = sample(12, 1), sample(200, 2)
    chosen = fit_head(moments_of(texts), held_out, 2, "all-layers")
    tried = [
        fit_head(moments_of(texts), held_out, 2, "all-layers", (ridge,))
        for ridge in (1e-4, 1e-3, 1e-2, 1e-1)
    ]
    assert chosen.cosine is not None
    assert chosen.cosine >= max(head.cosine or -1 for head in tried) - 1e-12
    assert fit_head(moments_of(texts), sample(0), 2, "layer").ridge == DEFAULT_RIDGE
