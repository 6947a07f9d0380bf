"""What leaves the encoder at a layer: token states, normed, pooled, and through an exit head."""

# Shapes in this room:
#   L layers, B texts, T tokens, H width.

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial

import torch
from torch import Tensor, nn

from m2dr.records.card import modes_of

Exit = Callable[[int, Tensor], None]

_exit: ContextVar[Exit | None] = ContextVar("exit", default=None)


def pool(states: Tensor, mask: Tensor | None, pooling: str, norm: nn.Module) -> Tensor:
    """One vector per text from the states of its tokens, in float32 under autocast too.

    A norm works on each token alone, so for a single token it is applied after choosing it.

    Args:
        states: [B, T, H] after a block.
        mask: [B, T], 1 for a token and 0 for padding, which stands at the end; None for none.
        pooling: of a ModelCard; `modes_of` names its parts.
        norm: the backbone's final norm, or the identity.

    Returns:
        [B, H], or [B, n H] for a pooling of n parts.
    """
    modes = modes_of(pooling)
    if len(modes) > 1:
        once = norm(states)
        return torch.cat([pool(once, mask, mode, nn.Identity()) for mode in modes], dim=-1)
    if pooling in ("max", "mean_sqrt_len_tokens", "weightedmean"):
        return _of_all(norm(states).float(), mask, pooling)
    if pooling == "mean":
        normed: Tensor = norm(states).float()
        if mask is None:
            return normed.mean(dim=1)
        shares = mask / mask.sum(dim=1, keepdim=True).clamp(min=1)
        with float32_on(states.device):
            return torch.einsum("bt,bth->bh", shares.float(), normed)
    pooled: Tensor = norm(_chosen(states, mask, pooling))
    return pooled.float()


def _of_all(states: Tensor, mask: Tensor | None, pooling: str) -> Tensor:
    """Return the maximum or a weighted sum of the states, [B, T, H] to [B, H], in float32.

    Products and sums are taken one by one: autocast would do a matrix product in bf16.
    """
    real = states.new_ones(states.shape[:2]) if mask is None else mask.to(states.dtype)
    if pooling == "max":
        return states.masked_fill(real[..., None] == 0, -torch.inf).amax(dim=1)
    if pooling == "weightedmean":
        real = real * torch.arange(1, states.shape[1] + 1, device=states.device)
    total = real.sum(dim=1, keepdim=True).clamp(min=1)
    divisor = total if pooling == "weightedmean" else total.sqrt()
    return (states * real[..., None]).sum(dim=1) / divisor


def _chosen(states: Tensor, mask: Tensor | None, pooling: str) -> Tensor:
    """The state of one token per text, [B, H]."""
    if pooling == "cls":
        return states[:, 0]
    if mask is None:
        return states[:, -1]
    last = (mask.sum(dim=1) - 1).clamp(min=0)
    # By shape, not len(): that would fix the number of texts in a graph that is exported.
    return states[torch.arange(states.shape[0], device=states.device), last]


def identity_head(width: int, device: torch.device) -> nn.Linear:
    """One linear map of a shallow layer's vectors, H to H, that changes nothing before training.

    It frees the states of a layer from having to be the embedding too: they feed the blocks behind.
    """
    head = nn.Linear(width, width, bias=False, device=device, dtype=torch.float32)
    nn.init.eye_(head.weight)
    return head


def through(head: nn.Module, pooled: Tensor) -> Tensor:
    """`pooled` [B, H] mapped by an exit head, in float32 whatever the blocks multiply in."""
    with float32_on(pooled.device):
        mapped: Tensor = head(pooled)
    return mapped


def float32_on(device: torch.device) -> AbstractContextManager[None]:
    """Switch autocast off, where it is on: a graph that is exported has no use for the switch."""
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def watch(blocks: nn.ModuleList) -> None:
    """Let every block hand its output to whoever listens, so that no [B, T, H] need be kept."""
    for number, block in enumerate(blocks, start=1):
        block.register_forward_hook(partial(_report, number))


@contextmanager
def listening(take: Exit) -> Iterator[None]:
    """Within it, `take(layer, states)` is called after each block, in this thread alone."""
    token = _exit.set(take)
    try:
        yield
    finally:
        _exit.reset(token)


def _report(layer: int, _: nn.Module, __: object, output: Tensor | tuple[Tensor, ...]) -> None:
    take = _exit.get()
    if take is not None:  # None when gradient checkpointing runs the block once more
        take(layer, output if isinstance(output, Tensor) else output[0])
