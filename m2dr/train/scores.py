"""Embeddings to scores: every prefix length in one pass."""

# Shapes in this room:
#   L layers, B queries, N documents, H width, K prefix lengths.

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from m2dr.records.card import Similarity

TINY = 1e-12  # the least squared norm a prefix is divided by, so that a zero vector scores 0


def prefix_scores(
    queries: Tensor, documents: Tensor, dims: Sequence[int], similarity: Similarity
) -> Tensor:
    """Score of every query with every document, at each prefix length.

    A longer prefix only adds coordinates, so its dot product is a running sum of blocks, and so
    are the squared norms that make it a cosine: all widths cost one full product. The largest
    tensor made here is [L, K, B, N]; [L, B, N, H] never exists.

    Args:
        queries: [L, B, H], not normalised.
        documents: [L, N, H], or [1, N, H] when one layer encodes all documents.
        dims: the K prefix lengths, increasing, none above H.
        similarity: dot, or cosine: each prefix is normalised after it is cut.

    Returns:
        [L, K, B, N], before any temperature.
    """
    spans = list(pairwise([0, *dims]))
    blocks = [queries[..., a:b] @ documents[..., a:b].mT for a, b in spans]
    dots = torch.stack(blocks, dim=-3).cumsum(dim=-3)
    if similarity == "dot":
        return dots
    query_norms = _inverse_norms(queries, spans)[..., :, None]  # [L, K, B, 1]
    document_norms = _inverse_norms(documents, spans)[..., None, :]  # [L, K, 1, N]
    return dots * query_norms * document_norms


def _inverse_norms(vectors: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
    """1 / length of each prefix: [L, N, H] to [L, K, N]."""
    squares = [vectors[..., a:b].square().sum(dim=-1) for a, b in spans]
    return torch.stack(squares, dim=-2).cumsum(dim=-2).clamp(min=TINY).rsqrt()
