"""What `m2dr fit` computes: exit heads by ridge regression, and a rotation of the embedding.

Shapes: S shallow layers, N texts, P dims of a pooled state, F features of the tokens, W dims of the
embedding, K prefixes that the rotation is learned for, D dims of the longest of them, B texts of a
step, of which the first Q rank all others.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from m2dr.core.records import TOKENS, FitInputs, Rotation, Similarity, inputs_of
from m2dr.train.scores import prefix_scores

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

# Of the exit heads.
RIDGES = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # tried for each layer; relative to the diagonal
RIDGES_OF_SIGNS = (1e-2, 3e-2)  # the same where random signs widen the inputs
DEFAULT_RIDGE = 1e-2  # where no text is held out to choose by

# Of the rotation.
STEPS = 200
BATCH = 512  # texts of a step
RATE = 3e-3  # of Adam at the first step, in radians per pair of dims; it falls to 0
DECAY = (0.9, 0.99)  # of Adam's moments
LONGEST_STEP = 1.0  # Frobenius norm of a step; one step of Newton and Schulz corrects no longer one
ROUND = 25  # steps between two evaluations on the held-out texts
HELD_OUT = 512  # texts to evaluate on, at most; not above BATCH
ONE_OF = 8  # of so many texts one is held out at most
FEWEST = 3  # held-out texts: with fewer there is no ranking to compare
SHARPNESS = 2.0  # of the rankings by full vectors: 1 / τ is this over the spread of their scores
ALIKE = 1e-6  # least spread of scores that is more than rounding
_NEWTON = 8  # steps to the best temperature
_ITSELF = -1e4  # stands for the score of a text with itself: no share of any softmax
_LEAST = 1e-12  # is added to divisors


@dataclass(frozen=True)
class Sample:
    """Inputs and targets of some texts.

    Attributes:
        states: [S, N, P] float32, pooled, of layers 1 to S.
        tokens: [N, F] float32, features of the tokens.
        targets: [N, W] float32, embeddings of the full model.
    """

    states: Floats
    tokens: Floats
    targets: Floats

    def __len__(self) -> int:
        return len(self.targets)

    def __add__(self, other: "Sample") -> "Sample":
        """Join the texts of both."""
        return Sample(
            np.concatenate([self.states, other.states], axis=1),
            np.concatenate([self.tokens, other.tokens]),
            np.concatenate([self.targets, other.targets]),
        )

    def read(self, parts: Sequence[int]) -> Floats:
        """Return the inputs of an exit, [N, inputs]; `inputs_of` names their parts."""
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

    def merge(self, other: "Moments", weight: float = 1.0) -> None:
        """Add the sums of other texts, each of which counts `weight`."""
        for name, found in other._sums.items():
            self._sum(name, weight * found)
        self.count += other.count

    def of_tokens(self) -> "Moments":
        """Return what an exit needs that reads the features of the tokens alone."""
        found = Moments(0)
        names = (f"{TOKENS}x{TOKENS}", f"{TOKENS}xtargets")
        found._sums = {name: self._sums[name] for name in names}
        found.count = self.count
        return found

    def _sum(self, name: str, found: Doubles) -> None:
        self._sums[name] = self._sums[name] + found if name in self._sums else np.array(found)

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """Yield the parts whose products are needed, each pair once."""
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
class FittedHead:
    """One fitted exit: input · weight + bias.

    Attributes:
        weight: [inputs, W] float32, for unscaled states.
        bias: [W].
        ridge: λ, relative to the mean of the diagonal.
        cosine: of its embeddings with the targets, the mean over the held-out texts; None without
            any.
    """

    weight: Floats
    bias: Floats
    ridge: float
    cosine: float | None

    def __call__(self, inputs: Floats) -> Floats:
        """Map [N, inputs] to [N, W]."""
        return _product(inputs.T, self.weight) + self.bias

    def rotated(self, rotation: Floats) -> "FittedHead":
        """Return the head of R e where this one is the head of e."""
        weight, bias = (_product(part.T, rotation.T) for part in (self.weight, self.bias[None]))
        return replace(self, weight=weight, bias=bias[0])


def fit_head(
    moments: Moments,
    held_out: Sample | None,
    layer: int,
    inputs: FitInputs,
    ridges: Sequence[float] = RIDGES,
) -> FittedHead:
    """Fit the exit of a layer: W = argmin Σ ‖[x ; 1] W − t‖² + λ ‖W‖².

    States are scaled to a mean length of 1 for the regression, and λ is relative to the mean of
    the diagonal. Of several λ, the one with the best cosine on the held-out texts is taken.

    Args:
        moments: of the texts of the fit.
        held_out: other texts, if any.
        layer: 0 to S.
        inputs: what the exit reads, as for `inputs_of`.
        ridges: values of λ to try; without held-out texts DEFAULT_RIDGE, where it is among them.

    Raises:
        ValueError: none of them has a solution in float64.
    """
    parts = inputs_of(layer, inputs)
    gram, products, scales = _system(moments, parts)
    tried: list[FittedHead] = []
    if not held_out and DEFAULT_RIDGE in ridges:
        ridges = (DEFAULT_RIDGE,)
    for candidate in ridges:
        try:
            solved = _solve(gram, products, candidate) * scales[:, None]
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # not among its exports
            continue
        weight, bias = solved[:-1].astype(np.float32), solved[-1].astype(np.float32)
        head = FittedHead(weight, bias, candidate, None)
        cosine = _mean_cosine(head(held_out.read(parts)), held_out.targets) if held_out else None
        tried.append(replace(head, cosine=cosine))
    if not tried:
        told = ", ".join(f"{ridge:g}" for ridge in ridges)
        raise ValueError(f"the regression of layer {layer} has no solution with ridge = {told}")
    return max(tried, key=lambda head: head.cosine or -1.0)


def _mean_cosine(found: Floats, targets: Floats) -> float:
    products = np.einsum("nw,nw->n", found, targets, dtype=np.float64)
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(targets, axis=1)
    return float((products / np.maximum(lengths, 1e-12)).mean())


def _system(moments: Moments, parts: Sequence[int]) -> tuple[Doubles, Doubles, Doubles]:
    """Return the normal equations of scaled inputs, to which a 1 is appended, and the scales."""
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
    """Return oneᵀ · other, by torch.

    The threads of numpy's OpenBLAS wait actively, a hundred times slower on cores in use.
    """
    found: NDArray[Any] = (torch.from_numpy(one).T @ torch.from_numpy(other)).numpy()
    return found


def fit_rotation(
    vectors: NDArray[np.float32],
    kind: Rotation,
    similarity: Similarity,
    dims: Sequence[int],
    seed: int = 0,
    advance: Callable[[int], None] = lambda _: None,
) -> NDArray[np.float32]:
    """Return an orthogonal R such that prefixes of R e keep as much of e as they can.

    pca: the eigenvectors of the centred covariance of the vectors, strongest first, in float64; of
    vectors of length 1 where cosine compares them. The largest entry of each is positive.

    learned: starting from pca, R is rotated so that prefixes rank texts as full vectors do: it
    minimises the mean, over the dims up to half the width, of
    KL(softmax S(full) / τ ‖ softmax S(prefix) / τ_k), where S are the scores of a text with
    others. τ is half the standard deviation of a text's scores (.04 to .06 for cosines of the
    built-in backbone), so that their scale does not matter; τ_k is the best one for its prefix, as
    no ranking depends on it. Some texts are held out, and R is the best of all rounds on them,
    the first of which is PCA. Between two of these dims and behind the last of them, where the
    loss is constant, the dims are principal axes.

    docs/decisions/0012-the-rotation.md compares this with other methods.

    Args:
        vectors: [N, W] embeddings e, not normalised; any N.
        kind: none is the identity.
        similarity: of vectors.
        dims: prefix lengths that will be used.
        seed: of the texts that are held out, and of those of each step.
        advance: called with the number of steps that are done, STEPS in all.

    Returns:
        R [W, W]; vectors @ R.T are the rotated ones, and have the same scores at full width.

    Raises:
        ValueError: a value is not finite.
    """
    width = vectors.shape[1]
    if not np.isfinite(vectors).all():
        raise ValueError("an embedding is not finite")
    if kind == "none" or not len(vectors):
        return np.eye(width, dtype=np.float32)
    # Gradients, in float32, also under the caller's autocast or inference mode.
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        points = _scaled(torch.from_numpy(vectors.astype(np.float64)), similarity)
        rotation = _principal_axes(points)
        if kind == "learned":
            ends = sorted({dim for dim in dims if 0 < dim <= width // 2})
            rotation = _learned(points, rotation, _RankingLoss(ends, similarity), seed, advance)
        return rotation.float().numpy()


def _scaled(vectors: Tensor, similarity: Similarity) -> Tensor:
    """Return vectors of length 1 for cosine, of mean square 1 for dot; zeros stay zeros."""
    tiny = torch.finfo(vectors.dtype).tiny
    vectors = vectors / vectors.abs().amax().clamp(min=tiny)
    squares = vectors.square().sum(dim=1, keepdim=True)
    squares = squares if similarity == "cosine" else squares.mean()
    return vectors / squares.sqrt().clamp(min=tiny)


def _principal_axes(points: Tensor) -> Tensor:
    """Return the eigenvectors of the centred covariance, strongest first: [N, W] to rows [W, W]."""
    centred = points - points.mean(dim=0)
    return _signed(torch.linalg.eigh(centred.mT @ centred).eigenvectors.mT.flip(0))


def _signed(axes: Tensor) -> Tensor:
    """Make the largest entry of each row positive."""
    largest = axes.abs().argmax(dim=1, keepdim=True)
    return axes * axes.gather(1, largest).sign()


def _learned(
    points: Tensor,
    start: Tensor,
    ranking: "_RankingLoss",
    seed: int,
    advance: Callable[[int], None],
) -> Tensor:
    """Return the rotation [W, W] with the least loss on held-out points, of all rounds."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(points), generator=generator)
    count = min(HELD_OUT, len(points) // ONE_OF)
    held_out, texts = points[order].float().tensor_split([count])
    if not ranking.dims or count < FEWEST or not ranking.set_temperature(texts[:BATCH]):
        advance(STEPS)
        return start
    descent = _Descent(start.float(), ranking.dims)
    ranked = torch.cat([held_out, texts[: BATCH - count]])
    best, least = descent.rotation, ranking.fit_temperatures(ranked, count, descent.rotation)
    for step in range(1, STEPS + 1):
        chosen = texts[torch.randperm(len(texts), generator=generator)[:BATCH]]
        descent.step(ranking.gradient(chosen, descent.rotation), RATE * (1 - (step - 1) / STEPS))
        if step % ROUND == 0:
            loss = ranking.fit_temperatures(ranked, count, descent.rotation)
            if loss < least:
                best, least = descent.rotation, loss
        advance(1)
    left, _, right = torch.linalg.svd(best.double())  # the nearest orthogonal matrix
    return _in_order(points, left @ right, ranking.dims)


class _RankingLoss:
    """How prefixes rank texts, compared with full vectors: loss, temperatures and gradient.

    Args:
        dims: of the prefixes, increasing.
        similarity: of vectors.
    """

    def __init__(self, dims: Sequence[int], similarity: Similarity) -> None:
        self.dims = dims
        self._similarity = similarity
        self._full = 1.0  # 1 / τ
        self._sharpness = torch.empty(0)  # [K, 1, 1], 1 / τ_k

    def set_temperature(self, points: Tensor) -> bool:
        """Set the temperature of full vectors from points [B, W]; return whether any differ."""
        scores = points @ points.mT
        others = ~torch.eye(len(points), dtype=torch.bool)
        spread = float(scores[others].view(len(points), -1).std(dim=1).mean())
        self._full = SHARPNESS / max(spread, ALIKE)
        self._sharpness = points.new_full((len(self.dims), 1, 1), self._full)
        return spread > ALIKE

    def fit_temperatures(self, points: Tensor, count: int, rotation: Tensor) -> float:
        """Find the best τ_k for a rotation, and return its loss on these points [B, W].

        The first `count` of them rank all others. The loss is convex in each 1 / τ_k, and Newton's
        steps, none of which more than doubles or halves it, find its minimum.
        """
        target, scores = self._target(points, count), self._scores(points @ rotation.mT, count)
        wanted = (target * scores).sum(dim=(1, 2), keepdim=True)
        for _ in range(_NEWTON):
            shares = (scores * self._sharpness).softmax(dim=-1)
            means = (shares * scores).sum(dim=-1, keepdim=True)
            slope = wanted - means.sum(dim=1, keepdim=True)
            squares = (shares * (scores - means).square()).sum(dim=(1, 2), keepdim=True)
            changed = self._sharpness + slope / (squares + _LEAST)
            self._sharpness = changed.clamp(self._sharpness / 2, self._sharpness * 2)
        return float(self._loss(target, scores))

    def gradient(self, points: Tensor, rotation: Tensor) -> Tensor:
        """Return the gradient of the loss by the angle of each pair of dims, [D, W].

        Entry (i, j) is the derivative for adding a little of dim j of the rotated points to dim i.
        """
        turned = points @ rotation.mT
        prefix = turned[:, : self.dims[-1]].clone().requires_grad_()
        count = len(points)
        loss = self._loss(self._target(points, count), self._scores(prefix, count))
        (gradient,) = torch.autograd.grad(loss, prefix)
        return gradient.mT @ turned

    def _target(self, points: Tensor, count: int) -> Tensor:
        """Return how full vectors rank the others: [B, W] to [Q, B], whose rows sum to 1."""
        scores = points[:count] @ points.mT * self._full
        return scores.fill_diagonal_(_ITSELF).softmax(dim=1)

    def _scores(self, turned: Tensor, count: int) -> Tensor:
        """Return the scores with others by each prefix: [B, D], or wider, to [K, Q, B]."""
        scores = prefix_scores(turned[None, :count], turned[None], self.dims, self._similarity)[0]
        itself = torch.eye(count, len(turned), dtype=torch.bool)
        return scores.masked_fill(itself, _ITSELF)

    def _loss(self, target: Tensor, scores: Tensor) -> Tensor:
        """Return the mean cross entropy of rankings [K, Q, B]; the KL but for a constant."""
        shares = (scores * self._sharpness).log_softmax(dim=-1)
        return -(target * shares).sum() / (len(scores) * len(target))


class _Descent:
    """Adam on orthogonal matrices.

    Its moments are those of the angles of pairs of dims, in the frame of the current rotation; a
    pair is left out if no prefix ends between its dims.

    Args:
        rotation: [W, W] to start from.
        dims: of the prefixes, increasing.
    """

    def __init__(self, rotation: Tensor, dims: Sequence[int]) -> None:
        self.rotation = rotation
        block = torch.bucketize(torch.arange(len(rotation)), torch.tensor(dims), right=True)
        self._parted = block[:, None] != block
        self._mean, self._square = torch.zeros_like(rotation), torch.zeros_like(rotation)
        self._steps = 0

    def step(self, slope: Tensor, rate: float) -> None:
        """Replace `rotation` by the next one, given a gradient [D, W]."""
        gradient = torch.nn.functional.pad(slope, (0, 0, 0, len(self.rotation) - len(slope)))
        gradient = (gradient - gradient.mT) * self._parted
        self._steps += 1
        first, second = DECAY
        self._mean.lerp_(gradient, 1 - first)
        self._square.lerp_(gradient.square(), 1 - second)
        mean = self._mean / (1 - first**self._steps)
        square = self._square / (1 - second**self._steps)
        angles = mean / (square.sqrt() + _LEAST)
        length = float(angles.norm()) * rate
        turned = self.rotation - rate / max(1.0, length / LONGEST_STEP) * angles @ self.rotation
        # (I + A) R made orthogonal again, by one step of Newton and Schulz.
        self.rotation = torch.addmm(turned, turned @ turned.mT, turned, beta=1.5, alpha=-0.5)


def _in_order(points: Tensor, rotation: Tensor, dims: Sequence[int]) -> Tensor:
    """Rotate each block of dims between two prefixes to its principal axes, [W, W]."""
    blocks = rotation.tensor_split(list(dims))
    return _signed(torch.cat([_principal_axes(points @ block.mT) @ block for block in blocks]))
