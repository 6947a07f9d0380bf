"""Fitted exits in closed form: ridge regressions from second moments, one per layer."""

# Shapes in this file:
#   S shallow layers, N texts, P dims of a pooled state, F features of the tokens, W dims of the
#   embedding.

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from m2dr.records.fit import TOKENS, FitInputs, inputs_of

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

RIDGES = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # tried for each layer; relative to the diagonal
RIDGES_OF_SIGNS = (1e-2, 3e-2)  # the same where random signs make the inputs many
USUAL_RIDGE = 1e-2  # where no text is held out to choose by


@dataclass(frozen=True)
class Sample:
    """Inputs and targets of some texts.

    Attributes:
        states: [S, N, P] float32, pooled, of layers 1 to S.
        tokens: [N, F] float32.
        targets: [N, W] float32, the embeddings that exits should give.
    """

    states: Floats
    tokens: Floats
    targets: Floats

    def __len__(self) -> int:
        return len(self.targets)

    def __add__(self, other: "Sample") -> "Sample":
        """Return the texts of both."""
        return Sample(
            np.concatenate([self.states, other.states], axis=1),
            np.concatenate([self.tokens, other.tokens]),
            np.concatenate([self.targets, other.targets]),
        )

    def read(self, parts: Sequence[int]) -> Floats:
        """Return what an exit reads of these texts, [N, inputs]; `inputs_of` names its parts."""
        found = [self.tokens if part == TOKENS else self.states[part - 1] for part in parts]
        return np.concatenate(found, axis=1)


class Moments:
    """Second moments of the inputs of all exits, and with their targets, summed in float64.

    Memory does not depend on how many texts are added. The moments of the tokens' features are
    shared by all layers.

    Args:
        layers: shallow layers, S.
        wide: whether an exit reads the states of all layers up to its own.
    """

    def __init__(self, layers: int, wide: bool = False) -> None:
        self.layers = layers
        self.wide = wide
        self.count = 0
        self._sums: dict[str, Doubles] = {}

    def add(self, sample: Sample) -> None:
        """Add the products of some texts.

        Raises:
            ValueError: a value is not finite.
        """
        parts = {n: states.astype(np.float64) for n, states in enumerate(sample.states, start=1)}
        ones = np.ones((len(sample), 1))
        parts[TOKENS] = np.concatenate([sample.tokens.astype(np.float64), ones], axis=1)
        targets = sample.targets.astype(np.float64)
        for layer, part in parts.items():
            if not np.isfinite(part).all():
                raise ValueError(f"a state of layer {layer} is not finite")
        if not np.isfinite(targets).all():
            raise ValueError("an embedding is not finite")
        for one, other in self._pairs():
            self._sum(f"{one}x{other}", _product(parts[one], parts[other]))
        for number, part in parts.items():
            self._sum(f"{number}xtargets", _product(part, targets))
            if number != TOKENS:
                self._sum(f"{number}lengths", np.linalg.norm(part, axis=1).sum())
        self.count += len(sample)

    def merge(self, other: "Moments") -> None:
        """Add what another process has summed."""
        for name, found in other._sums.items():
            self._sum(name, found)
        self.count += other.count

    def arrays(self) -> dict[str, Doubles]:
        """Return all sums by name, for a file."""
        return {**self._sums, "count": np.array(float(self.count))}

    @classmethod
    def of(cls, arrays: Mapping[str, Doubles], layers: int, wide: bool = False) -> "Moments":
        """Return moments with the sums of a file."""
        found = cls(layers, wide)
        found._sums = {name: sum_ for name, sum_ in arrays.items() if name != "count"}
        found.count = int(arrays["count"])
        return found

    def _sum(self, name: str, found: Doubles) -> None:
        self._sums[name] = self._sums[name] + found if name in self._sums else np.array(found)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """The parts whose products are needed, each pair once."""
        for layer in range(1, self.layers + 1):
            yield from (
                (lower, layer) for lower in range(1, layer + 1) if self.wide or lower == layer
            )
            yield layer, TOKENS
        yield TOKENS, TOKENS

    def product(self, one: int, other: int) -> Doubles:
        """Return the sum of products of two parts of the inputs, [one, other]."""
        name = f"{one}x{other}"
        return self._sums[name] if name in self._sums else self._sums[f"{other}x{one}"].T

    def scale(self, part: int) -> float:
        """Return 1 / mean length of the states of a layer; 1 for the features of the tokens."""
        if part == TOKENS:
            return 1.0
        mean = float(self._sums[f"{part}lengths"]) / max(self.count, 1)
        return 1 / mean if mean > 0 else 1.0

    def targets(self, part: int) -> Doubles:
        """Return the sum of products of a part of the inputs with the targets, [part, W]."""
        return self._sums[f"{part}xtargets"]


@dataclass(frozen=True)
class Head:
    """One fitted exit: input · weight + bias.

    Attributes:
        weight: [inputs, W] float32, for states as they are.
        bias: [W].
        ridge: λ, relative to the mean of the diagonal.
        cosine: of what it gives with its target, the mean over the texts that were held out; None
            where there are none.
    """

    weight: Floats
    bias: Floats
    ridge: float
    cosine: float | None

    def __call__(self, inputs: Floats) -> Floats:
        """Map [N, inputs] to [N, W]."""
        return _product(inputs.T, self.weight) + self.bias

    def rotated(self, rotation: Floats) -> "Head":
        """Return the head that gives R e where this one gives e; ridge and cosine are the same."""
        weight, bias = (_product(part.T, rotation.T) for part in (self.weight, self.bias[None]))
        return replace(self, weight=weight, bias=bias[0])


def fit_head(
    moments: Moments,
    held_out: Sample,
    layer: int,
    inputs: FitInputs,
    ridges: Sequence[float] = RIDGES,
) -> Head:
    """Fit the exit of a layer: W = argmin Σ ‖[x ; 1] W − t‖² + λ ‖W‖².

    States are scaled to a mean length of 1 for the regression, and λ is relative to the mean of
    the diagonal; of several λ the one is taken that gives the best cosine on the held-out texts.

    Args:
        moments: of the texts of the fit.
        held_out: texts that are not among them; may be empty.
        layer: 0 to S.
        inputs: what the exit reads, as `inputs_of` has it.
        ridges: values of λ to try; without held-out texts the usual one of them is taken.
    """
    parts = inputs_of(layer, inputs)
    gram, products, scales = _system(moments, parts)
    read = held_out.read(parts)
    tried: list[Head] = []
    if not len(held_out) and USUAL_RIDGE in ridges:
        ridges = (USUAL_RIDGE,)
    for candidate in ridges:
        solved = _solve(gram, products, candidate) * scales[:, None]
        weight, bias = solved[:-1].astype(np.float32), solved[-1].astype(np.float32)
        head = Head(weight, bias, candidate, None)
        cosine = _mean_cosine(head(read), held_out.targets) if len(held_out) else None
        tried.append(replace(head, cosine=cosine))
    return max(tried, key=lambda head: head.cosine or -1.0)


def _mean_cosine(found: Floats, targets: Floats) -> float:
    products = np.einsum("nw,nw->n", found, targets, dtype=np.float64)
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(targets, axis=1)
    return float((products / np.maximum(lengths, 1e-12)).mean())


def _system(moments: Moments, parts: Sequence[int]) -> tuple[Doubles, Doubles, Doubles]:
    """Return the normal equations of scaled inputs with a one behind them, and the scales."""
    blocks = [*parts] if TOKENS in parts else [*parts, TOKENS]
    rows = {part: slice(None) if part in parts else slice(-1, None) for part in blocks}
    products = np.concatenate([moments.targets(part)[rows[part]] for part in blocks])
    scales = np.concatenate(
        [np.full(len(moments.targets(part)[rows[part]]), moments.scale(part)) for part in blocks]
    )
    gram = np.block(
        [
            [moments.product(one, other)[rows[one]][:, rows[other]] for other in blocks]
            for one in blocks
        ]
    )
    return gram * scales[:, None] * scales, products * scales[:, None], scales


def _solve(gram: Doubles, products: Doubles, ridge: float) -> Doubles:
    """Return (G + λ mean(diag G) I)⁻¹ products."""
    damped = gram + ridge * gram.diagonal().mean() * np.eye(len(gram))
    factor = torch.linalg.cholesky(torch.from_numpy(damped))
    solved: Doubles = torch.cholesky_solve(torch.from_numpy(products), factor).numpy()
    return solved


def _product(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Return oneᵀ · other by torch: the threads of numpy's OpenBLAS wait actively.

    On cores that others use too, that makes it a hundred times slower.
    """
    found: NDArray[Any] = (torch.from_numpy(one).T @ torch.from_numpy(other)).numpy()
    return found
