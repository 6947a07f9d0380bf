"""Similarities of sentence pairs to nats: what a pair's label asks of its two embeddings."""

# Shapes in this room:
#   … any leading cuts, B pairs, N second sentences, D coordinates.

import torch
from torch import Tensor
from torch.nn.functional import pad

from m2dr.train.losses import surprises
from m2dr.train.scores import TINY


def cosent(similarities: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """What it costs that less alike pairs are scored above more alike ones (CoSENT, Su 2022).

    log(1 + Σ exp((s_j - s_i) / τ)) over all pairs of pairs with label_i > label_j. Only the order
    of the labels counts, and of the similarities only their differences. With the pairs sorted by
    label, the sum over the higher labels is a running one: the [B, B] differences never exist.

    Args:
        similarities: [..., B].
        labels: [B], higher for pairs that are more alike.
        temperature: divides the similarities; in their unit.

    Returns:
        [...] nats in float32 or better; 0 when all labels are equal, log(1 + ordered pairs) when
        all similarities are.
    """
    similarities = similarities if similarities.dtype == torch.float64 else similarities.float()
    labels, order = labels.sort()
    logits = similarities[..., order] / temperature
    from_here_on = (-logits.flip(-1)).logcumsumexp(dim=-1).flip(-1)  # log Σ exp(-s_i / τ)
    first_higher = torch.searchsorted(labels, labels, right=True)  # B where none is: exp(-inf)
    higher = pad(from_here_on, (0, 1), value=-torch.inf)[..., first_higher]
    return pad(logits + higher, (0, 1)).logsumexp(dim=-1)  # the 0 is log 1


def angle_similarities(first: Tensor, second: Tensor) -> Tensor:
    """How near the quotient of two complex vectors is to one (AnglE, arXiv:2309.12871).

    The first half of the coordinates are real parts, the second half imaginary ones. With
    x = a + bi and y = c + di, the public code sums real and imaginary parts of x ȳ / (|x| |y|) over
    the coordinates and takes the absolute value. All of it is one product, with y turned by an
    eighth and stretched by √2: |a·(c - d) + b·(c + d)| / (|x| |y|).

    Args:
        first: [..., B, D], not normalised.
        second: the same shape; exchanging the two changes the number.

    Returns:
        [..., B], from 0 to √2; 1 for equal vectors. 0 is a corner: its gradient is taken as zero,
        so a zero vector, which has no angle, learns nothing.

    Raises:
        ValueError: D is odd.
    """
    if first.shape[-1] % 2:
        raise ValueError(f"complex numbers need an even number of coordinates, not {first.shape}")
    real, imaginary = second.chunk(2, dim=-1)
    turned = torch.cat([real - imaginary, real + imaginary], dim=-1)
    return ((first * turned).sum(dim=-1) * _inverse_norms(first) * _inverse_norms(second)).abs()


def angle(first: Tensor, second: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """CoSENT over the complex similarities, which stay steep where a cosine is flat.

    Args:
        first: [..., B, D], not normalised; D is even.
        second: the same shape.
        labels: [B], higher for pairs that are more alike.
        temperature: divides the similarities.

    Returns:
        [...] nats.
    """
    return cosent(angle_similarities(first, second), labels, temperature)


def in_batch(scores: Tensor, excluded: Tensor, positive: Tensor, temperature: float) -> Tensor:
    """Surprise at each positive pair's second sentence among all second sentences of the batch.

    Args:
        scores: [..., B, N]; the second sentence of pair b is column b.
        excluded: [B, N], True where a sentence must not count as a negative.
        positive: [B], True where the two sentences of the pair are alike. Second sentences of the
            other pairs are negatives all the same.
        temperature: divides the scores; in their unit.

    Returns:
        [...] nats per positive pair; 0 when there is none.
    """
    asked = surprises(scores, excluded, temperature).where(positive, 0)
    return asked.sum(dim=-1) / positive.sum().clamp(min=1)


def _inverse_norms(vectors: Tensor) -> Tensor:
    """1 / length: [..., B, D] to [..., B]."""
    return vectors.square().sum(dim=-1).clamp(min=TINY).rsqrt()
