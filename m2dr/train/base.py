"""The base loss of every recipe, at all cuts at once: retrieval, or how alike two sentences are."""

# Shapes in this room:
#   L layers, B queries, N documents, H width, K prefix lengths.

from collections.abc import Sequence

import torch
from torch import Tensor

from m2dr.records.variant import Loss
from m2dr.train.losses import contrastive
from m2dr.train.pairlosses import angle, cosent, in_batch

Weights = tuple[float, float, float]  # of AnglE's parts: cosine, in-batch, angle
ALIKE = 0.8  # from which label on a pair of sentences counts as a positive of the batch


def base_losses(
    loss: Loss,
    weights: Weights,
    scores: Tensor,
    vectors: tuple[Tensor, Tensor, Sequence[int]],
    excluded: Tensor,
    labels: Tensor | None,
    temperature: float,
) -> Tensor:
    """The base loss at each layer and prefix.

    contrastive, mnr and simcse: cross entropy of the positive among all documents, asked of the
    pairs that are alike (multiple negatives ranking; two dropout views of one sentence).
    cosent: pairs in the order of their labels, by similarity. angle: cosent, mnr and the angle
    between the two sentences as complex vectors, weighted.

    Args:
        loss: which.
        weights: of the parts of angle.
        scores: [L, K, B, N] of `prefix_scores`; a positive stands at column b of row b.
        vectors: queries [L, B, H], documents [L or 1, N, H] and the K prefix lengths.
        excluded: [B, N], True where a document must not count as a negative.
        labels: [B] how alike each pair is, from 0 to 1; None where every pair is a positive.
        temperature: divides scores.

    Returns:
        [L, K] nats.
    """
    if labels is None:
        return contrastive(scores, excluded, temperature)
    alike = labels >= ALIKE
    if loss in ("contrastive", "mnr", "simcse"):
        return in_batch(scores, excluded, alike, temperature)
    paired = scores.diagonal(dim1=-2, dim2=-1)  # [L, K, B]
    ordered = cosent(paired, labels, temperature)
    if loss == "cosent":
        return ordered
    first, second, dims = vectors
    second = second[:, : first.shape[1]].expand_as(first)
    angles = [angle(first[..., :k], second[..., :k], labels, temperature) for k in dims]
    by_cosine, by_batch, by_angle = weights
    total = by_cosine * ordered + by_angle * torch.stack(angles, dim=-1)
    if by_batch:
        total = total + by_batch * in_batch(scores, excluded, alike, temperature)
    return total
