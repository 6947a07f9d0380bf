"""Batches of several processes become one batch, with gradients."""

# Shapes in this room:
#   L layers, B queries and N documents of one process, W processes, H width.

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Thing = TypeVar("Thing")


def processes() -> int:
    """W: how many train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def everyones(thing: Thing) -> list[Thing]:
    """What each process has, by rank; small things only."""
    if processes() == 1:
        return [thing]
    things: list[Any] = [None] * processes()
    dist.all_gather_object(things, thing)
    return things


def gathered(vectors: Tensor) -> Tensor:
    """[L, n, H] of each process to [L, W · n, H], by rank; every process has the same n.

    The gradient of the own part comes back times W. Each process computes the whole batch's loss
    and lets only its own vectors pass gradient, so the gradients of W processes sum up to that of
    the batch; averaging over processes, as DistributedDataParallel does, would divide it by W.
    """
    if processes() == 1:
        return vectors
    everyone: Tensor = _Gathered.apply(vectors)  # type: ignore[no-untyped-call]  # torch does not annotate it
    return everyone


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:  # noqa: ANN401  # torch's own context
        parts = [torch.empty_like(vectors) for _ in range(processes())]
        dist.all_gather(parts, vectors.contiguous())
        ctx.count = vectors.shape[1]
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ANN401  # torch's own context
        start = dist.get_rank() * ctx.count
        return gradient[:, start : start + ctx.count] * processes()
