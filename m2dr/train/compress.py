"""The compressed targets of ESE: what a prefix is told to look like."""

# Shapes in this room:
#   B vectors of a batch, H width, D coordinates kept.

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@torch.no_grad()
def compressed(vectors: Tensor, dim: int) -> Tensor:
    """Target of the longest prefix; the target of a shorter one is a prefix of it.

    With A = softmax(XᵀX / √H) = U Σ Vᵀ the target is X · U[:, :D] Σ[:D, :D] (ESE, eq. 3 to 5).
    The decomposition is exact, in float32 or better, and each component's largest entry is made
    positive: a randomised, sign-free one gives the same batch another target at each call.

    Args:
        vectors: [B, H], not normalised.
        dim: the longest prefix that is to be aligned, D.

    Returns:
        [B, D], without gradient.
    """
    x = vectors.detach()
    x = x if x.dtype == torch.float64 else x.float()
    relations = torch.softmax(x.mT @ x / x.shape[1] ** 0.5, dim=-1)  # [H, H]
    with _one_thread(x.device):
        components, strengths, _ = torch.linalg.svd(relations)
    components, strengths = components[:, :dim], strengths[:dim]
    largest = components.abs().argmax(dim=0, keepdim=True)
    signs = components.gather(0, largest).sign()  # [1, D]
    target: Tensor = x @ (components * signs * strengths)
    return target


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """A decomposition of a few hundred columns is quicker on one CPU thread than on two."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
