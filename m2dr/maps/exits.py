"""What `m2dr fit` computes: exit heads by ridge regression, and a rotation of the embedding.

Shapes: N texts, P dims of a pooled state, V of a vector of words, W of the embedding, K prefixes
that the rotation is learned for, D dims of the longest of them, B texts of a step, of which the
first Q rank all others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from m2dr.core.arrays import Array, Bools, Float32, Float64, Int64
from m2dr.core.records import Rotation, Similarity
from m2dr.training.scores import prefix_scores

# Of the exit heads.
RIDGES = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # tried for each layer; relative to the diagonal
DEFAULT_RIDGE = 1e-2  # where no text is held out to choose by
SUMMED_TEXTS = 1024  # texts whose products are summed at a time

# Of the rotation.
STEPS = 200
BATCH = 512  # texts of a step
RATE = 3e-3  # of Adam at the first step, in radians per pair of dims; it falls to 0
DECAY = (0.9, 0.99)  # of Adam's moments
LONGEST_STEP = 1.0  # Frobenius norm of a step; one step of Newton and Schulz corrects no longer one
ROUND = 25  # steps between two evaluations on the held-out texts
HELD_OUT = 512  # texts to evaluate on, at most; not above BATCH
ONE_OF = 8  # of so many texts one is held out at most
LEAST_HELD_OUT = 3  # held-out texts: with fewer there is no ranking to compare
SHARPNESS = 2.0  # of the rankings by full vectors: 1 / τ is this over the spread of their scores
LEAST_SPREAD = 1e-6  # least spread of scores that is more than rounding
_NEWTON = 8  # steps to the best temperature
_ITSELF = -1e4  # stands for the score of a text with itself: no share of any softmax
_LEAST = 1e-12  # is added to divisors


@dataclass(frozen=True)
class FittedHead:
    """One fitted exit: state · weight + words · beside + bias.

    Attributes:
        weight: [P, W] float32, for unscaled states.
        beside: [V, W], for the vectors of words.
        bias: [W].
        ridge: λ, relative to the mean of the diagonal.
        cosine: of its embeddings with the targets, the mean over the held-out texts; None without
            any.
    """

    weight: Float32
    beside: Float32
    bias: Float32
    ridge: float
    cosine: float | None


def fit_head(states: Float32, words: Float32, targets: Float32, held_out: Bools) -> FittedHead:
    """Fit the exit of a layer: W = argmin Σ ‖[h / n ; z ; 1] W − t‖² + λ ‖W‖².

    n is the mean length of the states, and λ is relative to the mean of the diagonal. Of several λ,
    the one with the best cosine on the held-out texts is taken.

    Args:
        states: h [N, P], pooled; of no dims where only words are to be fitted.
        words: z [N, V], vectors of the words of the same texts, of length 1; of no dims without.
        targets: t [N, W].
        held_out: [N], which texts λ is chosen by; without any it is DEFAULT_RIDGE.

    Raises:
        ValueError: a value is not finite, or no λ has a solution in float64.
    """
    if not (np.isfinite(states).all() and np.isfinite(targets).all()):
        raise ValueError("a state or an embedding is not finite")
    scale = 1 / max(float(np.linalg.norm(states, axis=1).mean()), 1e-12) if states.size else 1.0

    def inputs(chosen: Int64) -> Float64:
        ones = np.ones((len(chosen), 1))
        return np.concatenate(
            [states[chosen] * scale, words[chosen], ones], axis=1, dtype=np.float64
        )

    width = states.shape[1] + words.shape[1] + 1
    gram, products = np.zeros((width, width)), np.zeros((width, targets.shape[1]))
    for chosen in np.array_split(np.flatnonzero(~held_out), -(-len(states) // SUMMED_TEXTS)):
        read = inputs(chosen)
        gram += _product(read, read)
        products += _product(read, targets[chosen].astype(np.float64))
    judges = np.flatnonzero(held_out)
    read, wanted = inputs(judges), targets[judges]
    tried: list[tuple[float, float, Float64]] = []
    for ridge in RIDGES if judges.size else (DEFAULT_RIDGE,):
        try:
            solved = _solve(gram, products, ridge)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # not among its exports
            continue
        tried.append((_mean_cosine(_product(read.T, solved), wanted), ridge, solved))
    if not tried:
        raise ValueError("a regression has no solution")
    cosine, ridge, solved = max(tried, key=lambda row: row[0])
    weight, beside, bias = np.split(solved.astype(np.float32), [states.shape[1], width - 1])
    return FittedHead(
        weight * np.float32(scale), beside, bias[0], ridge, cosine if judges.size else None
    )


def _mean_cosine(vectors: Float64, targets: Float32) -> float:
    products = np.einsum("nw,nw->n", vectors, targets, dtype=np.float64)
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(targets, axis=1)
    return float((products / np.maximum(lengths, 1e-12)).sum() / max(len(products), 1))


def _solve(gram: Float64, products: Float64, ridge: float) -> Float64:
    """Return (G + λ mean(diag G) I)⁻¹ products."""
    damped = gram + ridge * gram.diagonal().mean() * np.eye(len(gram))
    factor = torch.linalg.cholesky(torch.from_numpy(damped))
    solved: Float64 = torch.cholesky_solve(torch.from_numpy(products), factor).numpy()
    return solved


def _product(one: Array, other: Array) -> Array:
    """Return oneᵀ · other, by torch.

    The threads of numpy's OpenBLAS wait actively, a hundred times slower on cores in use.
    """
    found: Array = (torch.from_numpy(one).T @ torch.from_numpy(other)).numpy()
    return found


def fit_rotation(
    vectors: Float32,
    kind: Rotation,
    similarity: Similarity,
    dims: Sequence[int],
    seed: int = 0,
    advance: Callable[[int], None] = lambda _: None,
) -> Float32:
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
    if not ranking.dims or count < LEAST_HELD_OUT or not ranking.set_temperature(texts[:BATCH]):
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
        self._full = SHARPNESS / max(spread, LEAST_SPREAD)
        self._sharpness = points.new_full((len(self.dims), 1, 1), self._full)
        return spread > LEAST_SPREAD

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
