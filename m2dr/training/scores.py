"""Embeddings to scores: every prefix length in one pass.

Shapes: L layers, B queries, N documents, H width, K prefix lengths.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from m2dr.core.records import Similarity

TINY = 1e-24  # least squared norm that a prefix is divided by, as in torch; zero vectors score 0


def prefix_scores(
    queries: Tensor, documents: Tensor, dims: Sequence[int], similarity: Similarity
) -> Tensor:
    """Return the score of every query with every document, at each prefix length.

    A longer prefix only adds dims, so its dot product is a running sum over blocks of dims, and so
    are the squared norms that make it a cosine: all widths cost one full product. The largest
    tensor is [L, K, B, N]; [L, B, N, H] never exists.

    Args:
        queries: [L, B, H], not normalised.
        documents: [L, N, H], or [1, N, H] when one layer encodes all documents.
        dims: the K prefix lengths, increasing, none above H.
        similarity: dot, or cosine: each prefix is normalised after it is cut.

    Returns:
        [L, K, B, N], before any temperature.
    """
    dots: Tensor = _PrefixDots.apply(queries, documents, tuple(dims))  # type: ignore[no-untyped-call]  # torch does not annotate it
    if similarity == "dot":
        return dots
    query_norms = _inverse_norms(queries, dims)[..., :, None]  # [L, K, B, 1]
    document_norms = _inverse_norms(documents, dims)[..., None, :]  # [L, K, 1, N]
    return dots * query_norms * document_norms


def own_scores(scores: Tensor, negatives: int) -> Tensor:
    """Return the scores of each query with the documents of its own group.

    Args:
        scores: [..., B, N]: the B positives, then `negatives` documents of the first query, those
            of the second and so on.
        negatives: of each group.

    Returns:
        [..., B, 1 + negatives], the positive first.
    """
    rows = torch.arange(scores.shape[-2], device=scores.device)[:, None]
    others = torch.arange(negatives, device=scores.device)
    columns = torch.cat([rows, len(rows) + negatives * rows + others], dim=1)
    return scores[..., rows, columns]


class _PrefixDots(torch.autograd.Function):
    """The running sum of dot products, and its gradient without a tensor of full width per block.

    Dim h is in every longer prefix, so its gradient comes from the sum of the scores' gradients
    over those prefixes: a running sum from the longest to the shortest.
    """

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, documents: Tensor, dims: tuple[int, ...]
    ) -> Tensor:  # torch's own context
        ctx.save_for_backward(queries, documents)
        ctx.spans = list(pairwise([0, *dims]))
        layers, (count, others) = len(queries), (queries.shape[1], documents.shape[1])
        dots = queries.new_zeros(layers, len(dims), count, others)
        right = documents.expand(layers, -1, -1)
        for place, (start, stop) in enumerate(ctx.spans):
            so_far = dots[:, max(place - 1, 0)]
            left = queries[..., start:stop]
            torch.baddbmm(so_far, left, right[..., start:stop].mT, out=dots[:, place])
        return dots

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # the same
        queries, documents = ctx.saved_tensors
        for_queries, for_documents = torch.zeros_like(queries), torch.zeros_like(documents)
        reaching = torch.zeros_like(gradient[:, 0])  # [L, B, N]
        for place, (start, stop) in reversed(list(enumerate(ctx.spans))):
            reaching += gradient[:, place]
            for_queries[..., start:stop] = reaching @ documents[..., start:stop]
            pulled = reaching.mT @ queries[..., start:stop]
            for_documents[..., start:stop] = (
                pulled if len(documents) == len(queries) else pulled.sum(dim=0, keepdim=True)
            )
        return for_queries, for_documents, None


def _inverse_norms(vectors: Tensor, dims: Sequence[int]) -> Tensor:
    """Return 1 / length of each prefix: [L, N, H] to [L, K, N]."""
    sizes = [stop - start for start, stop in pairwise([0, *dims])]
    rest = vectors.shape[-1] - dims[-1]
    blocks = torch.split(vectors, [*sizes, rest], dim=-1)[: len(dims)]
    squares = [block.square().sum(dim=-1) for block in blocks]
    # Added one by one: on a gpu torch's cumsum is not deterministic.
    return torch.stack(list(accumulate(squares)), dim=-2).clamp(min=TINY).rsqrt()
