"""The orthogonal rotation of an embedding that makes its prefixes as good as they can be."""

# Shapes in this file:
#   N vectors, W dims of the embedding, K prefixes that are learned for, D dims of the longest of
#   them, B texts, of which the first Q rank all others.

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from m2dr.records.card import Similarity
from m2dr.records.fit import Rotation
from m2dr.train.scores import prefix_scores

STEPS = 200
BATCH = 512  # texts of a step
RATE = 3e-3  # of Adam at the first step, in radians per pair of dims; it falls to 0
DECAY = (0.9, 0.99)  # of Adam's moments
LONGEST_STEP = 1.0  # Frobenius norm of a step; longer ones could not be made orthogonal cheaply
ROUND = 25  # steps from one look at the held-out texts to the next
HELD_OUT = 512  # texts to judge by, at most; not above BATCH
ONE_OF = 8  # of so many texts one is held out at most
FEWEST = 3  # held-out texts: with fewer there is no ranking to compare
SHARPNESS = 2.0  # of the rankings by whole vectors: 1 / τ is this over the spread of their scores
ALIKE = 1e-6  # least spread of scores that is more than rounding
_NEWTON = 8  # steps to the best temperature
_ITSELF = -1e4  # stands for the score of a text with itself: no share of any softmax
_LEAST = 1e-12  # is added to divisors


def fit_rotation(
    vectors: NDArray[np.float32],
    kind: Rotation,
    similarity: Similarity,
    dims: Sequence[int],
    seed: int = 0,
    advance: Callable[[int], None] = lambda _: None,
) -> NDArray[np.float32]:
    """Find an orthogonal R such that the first dims of R e say as much of e as they can.

    pca: the eigenvectors of the centred covariance of the vectors, strongest first, in float64; of
    vectors of length 1 where cosine compares them. The largest entry of each is positive.

    learned: from there on R is turned until texts are ranked by prefixes as they are by whole
    vectors: it minimises the mean, over the dims up to half the width, of
    KL(softmax S(whole) / τ ‖ softmax S(prefix) / τ_k), where S are the scores of a text with
    others. τ is half the standard deviation of a text's scores (.04 to .06 for cosines of the
    built-in backbone), so that their scale does not matter; τ_k is the best one for its prefix, as
    no ranking depends on it. Some texts are held out, and R is the best of all rounds on them,
    the first of which is PCA. Where the loss has no preference, between two of these dims and
    behind the last of them, the dims are principal axes again.

    docs/decisions/0012-the-rotation.md says what else was tried, and what each is worth.

    Args:
        vectors: [N, W] embeddings e, not normalised; any N.
        kind: none is the identity.
        similarity: by which vectors are compared.
        dims: prefix lengths that will be asked for.
        seed: of the texts that are held out, and of those of each step.
        advance: is told how many steps of a learned rotation are done, STEPS in all.

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
    # Gradients, in float32, whatever the caller is in the middle of.
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        points = _scaled(torch.from_numpy(vectors.astype(np.float64)), similarity)
        rotation = _principal_axes(points)
        if kind == "learned":
            ends = sorted({dim for dim in dims if 0 < dim <= width // 2})
            rotation = _learned(points, rotation, _Aim(ends, similarity), seed, advance)
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
    points: Tensor, start: Tensor, aim: "_Aim", seed: int, advance: Callable[[int], None]
) -> Tensor:
    """Return the rotation [W, W] with the least loss on held-out points, of those on the way."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(points), generator=generator)
    count = min(HELD_OUT, len(points) // ONE_OF)
    held_out, texts = points[order].float().tensor_split([count])
    if not aim.dims or count < FEWEST or not aim.take(texts[:BATCH]):
        advance(STEPS)
        return start
    descent = _Descent(start.float(), aim.dims)
    ranked = torch.cat([held_out, texts[: BATCH - count]])
    best, least = descent.rotation, aim.settle(ranked, count, descent.rotation)
    for step in range(1, STEPS + 1):
        chosen = texts[torch.randperm(len(texts), generator=generator)[:BATCH]]
        descent.step(aim.pull(chosen, descent.rotation), RATE * (1 - (step - 1) / STEPS))
        if step % ROUND == 0:
            loss = aim.settle(ranked, count, descent.rotation)
            if loss < least:
                best, least = descent.rotation, loss
        advance(1)
    return _in_order(points, _orthogonal(best.double()), aim.dims)


class _Aim:
    """Rank texts by prefixes as whole vectors do: the loss, its temperatures and its gradient.

    Args:
        dims: of the prefixes, increasing.
        similarity: by which vectors are compared.
    """

    def __init__(self, dims: Sequence[int], similarity: Similarity) -> None:
        self.dims = dims
        self._similarity = similarity
        self._whole = 1.0  # 1 / τ
        self._sharpness = torch.empty(0)  # [K, 1, 1], 1 / τ_k

    def take(self, points: Tensor) -> bool:
        """Take the temperature of whole vectors from points [B, W]; tell whether any differ."""
        scores = points @ points.mT
        others = ~torch.eye(len(points), dtype=torch.bool)
        spread = float(scores[others].view(len(points), -1).std(dim=1).mean())
        self._whole = SHARPNESS / max(spread, ALIKE)
        self._sharpness = points.new_full((len(self.dims), 1, 1), self._whole)
        return spread > ALIKE

    def settle(self, points: Tensor, count: int, rotation: Tensor) -> float:
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

    def pull(self, points: Tensor, rotation: Tensor) -> Tensor:
        """Return the gradient of the loss by how each pair of dims turns, [D, W].

        Entry (i, j) is the derivative for adding a little of dim j of the rotated points to dim i.
        """
        turned = points @ rotation.mT
        prefix = turned[:, : self.dims[-1]].clone().requires_grad_()
        count = len(points)
        loss = self._loss(self._target(points, count), self._scores(prefix, count))
        (gradient,) = torch.autograd.grad(loss, prefix)
        return gradient.mT @ turned

    def _target(self, points: Tensor, count: int) -> Tensor:
        """Return how whole vectors rank the others: [B, W] to [Q, B], whose rows sum to 1."""
        scores = points[:count] @ points.mT * self._whole
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
    """Adam among orthogonal matrices.

    Its moments are those of the angles by which pairs of dims turn, in the frame of the rotation
    as it is; a pair of which no prefix has just one dim is left alone.

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

    def step(self, pull: Tensor, rate: float) -> None:
        """Turn against a gradient [D, W]; `rotation` is another matrix then."""
        gradient = torch.nn.functional.pad(pull, (0, 0, 0, len(self.rotation) - len(pull)))
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


def _orthogonal(matrix: Tensor) -> Tensor:
    """Return the nearest orthogonal matrix, [W, W]."""
    left, _, right = torch.linalg.svd(matrix)
    nearest: Tensor = left @ right
    return nearest


def _in_order(points: Tensor, rotation: Tensor, dims: Sequence[int]) -> Tensor:
    """Turn each block of dims that the loss takes together to its principal axes, [W, W]."""
    blocks = rotation.tensor_split(list(dims))
    return _signed(torch.cat([_principal_axes(points @ block.mT) @ block for block in blocks]))
