"""How alike the tokens of a text lie to each other in each prefix and in the full width."""

# Shapes in this room:
#   b texts, H width, T tokens, K tokens chosen of each text, n prefix lengths, d one of them.

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.linalg import vector_norm
from torch.nn.functional import pad

_NOISE = 8  # roundings of a mean and a difference, in units of the last place


def prefix_alignment(states: Tensor, chosen: Tensor, counts: Tensor, dims: Sequence[int]) -> Tensor:
    """Linear CKA of each prefix with the full width, on tokens of its own (MIPIC, eq. 7 to 11).

    ‖hᵀH‖² / (‖hᵀh‖ ‖HᵀH‖) in Frobenius norms, with h the chosen tokens cut to a prefix, H the same
    uncut, and the mean over the chosen tokens taken from each coordinate. H is the teacher: the
    gradient goes to h alone. It is known in closed form, so that nothing is kept for it but the
    chosen tokens and one matrix per prefix.

    One token, or tokens that are all the same, have no relations: nothing is to be preserved, and
    the CKA is 1. Where the prefix alone sees no difference it is 0. Neither has a gradient.

    Args:
        states: [b, T, H] in float32 or better.
        chosen: [b, K] distinct tokens of each text, the most important first.
        counts: [b, n] how many of them each prefix is compared on, at least 1, never decreasing.
        dims: the n prefix lengths, increasing, below H.

    Returns:
        [b, n] from 0 to 1.
    """
    alike: Tensor = _PrefixAlignment.apply(states, chosen, counts, tuple(dims))  # type: ignore[no-untyped-call]  # torch does not annotate it
    return alike


class _PrefixAlignment(torch.autograd.Function):
    """Relations of tokens [K, K] or of coordinates [H, H]: the same number from the smaller."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # torch hangs what it likes on it
        states: Tensor,
        chosen: Tensor,
        counts: Tensor,
        dims: tuple[int, ...],
    ) -> Tensor:
        firsts = torch.arange(len(states), device=states.device) * states.shape[1]
        rows = (chosen + firsts[:, None]).flatten()
        tokens = states.flatten(0, 1).index_select(0, rows).view(*chosen.shape, -1)
        within = torch.arange(chosen.shape[1], device=states.device) < counts[..., None]
        within = within.to(states.dtype)  # [b, n, K], 1 for the tokens of a prefix
        ctx.dims, ctx.shape = dims, states.shape
        ctx.by_tokens = chosen.shape[1] <= states.shape[2]
        compare = _by_tokens if ctx.by_tokens else _by_coordinates
        alike, slopes = compare(tokens, within, dims, _moved_to_their_mean(tokens, within[:, -1:]))
        ctx.save_for_backward(rows, tokens, within, *slopes)
        return alike

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401  # as above
        rows, tokens, within, *slopes = ctx.saved_tensors
        back = _back_by_tokens if ctx.by_tokens else _back_by_coordinates
        with torch.autocast(tokens.device.type, enabled=False):
            gradient = back(weights, tokens, within, slopes, ctx.dims)  # [b, K, longest d]
        states = tokens.new_zeros(ctx.shape)
        states.flatten(0, 1)[:, : ctx.dims[-1]].index_copy_(0, rows, gradient.flatten(0, 1))
        return states, None, None, None


def _moved_to_their_mean(tokens: Tensor, within: Tensor) -> Tensor:
    """Move `tokens` [b, K, H] in place; return the norm [b, 1, 1] below which relations are noise.

    CKA does not see a common shift. A product of large means does, in its last digits.
    """
    means = within @ tokens / within.sum(dim=-1, keepdim=True)  # [b, 1, H]
    lengths = vector_norm(tokens, dim=-1) * within[:, 0]  # [b, K]
    tokens -= means
    least: Tensor = (_NOISE * torch.finfo(tokens.dtype).eps * vector_norm(lengths, dim=-1)) ** 2
    return least[:, None, None]


def _inverse_norms(relations: Tensor, least: Tensor) -> Tensor:
    """1 / Frobenius norm of [..., r, c], as [..., 1, 1]; 0 where there are no relations."""
    norms: Tensor = vector_norm(relations, dim=(-2, -1), keepdim=True)
    return norms.reciprocal().where(norms > least, 0)


def _by_tokens(
    tokens: Tensor, within: Tensor, dims: Sequence[int], least: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """CKA [b, n] from products of tokens, and its slope in each product: [b, n, K, K].

    The products of a longer prefix are those of a shorter one and some more, up to the teacher's.
    """
    spans = pairwise([0, *dims, tokens.shape[-1]])
    blocks = [tokens[..., a:b] @ tokens[..., a:b].mT for a, b in spans]
    products = torch.stack(blocks, dim=1).cumsum(dim=1)  # [b, n + 1, K, K]
    student, teacher = _centred(products[:, :-1], within), _centred(products[:, -1:], within)
    scale, teacher_scale = (_inverse_norms(side, least[:, None]) for side in (student, teacher))
    student, teacher = student.mul_(scale), teacher.mul_(teacher_scale)
    alike = (student * teacher).sum(dim=(-2, -1), keepdim=True)
    slopes = (teacher - alike * student).mul_(scale)
    return (alike + (teacher_scale == 0))[..., 0, 0], [slopes]


def _centred(products: Tensor, within: Tensor) -> Tensor:
    """Products of the tokens that count, about their mean; 0 for the others: [b, n, K, K]."""
    count = within.sum(dim=-1)[..., None, None]
    means = within[..., None, :] @ products / count  # [b, n, 1, K]
    overall = (means * within[..., None, :]).sum(dim=-1, keepdim=True) / count
    about = products - means - (means - overall).mT
    return about.mul_(within[..., None, :]).mul_(within[..., None])


def _back_by_tokens(
    weights: Tensor, tokens: Tensor, within: Tensor, slopes: Sequence[Tensor], dims: Sequence[int]
) -> Tensor:
    """A block of coordinates is in the products of every prefix that reaches it."""
    del within  # the slopes are 0 where it is
    weighted = slopes[0] * (2 * weights[..., None, None])  # twice: a token is on both sides
    gradient = tokens.new_empty(*tokens.shape[:2], dims[-1])
    total = torch.zeros_like(weighted[:, 0])
    for i, (a, b) in reversed(list(enumerate(pairwise([0, *dims])))):
        total += weighted[:, i]
        gradient[..., a:b] = total @ tokens[..., a:b]
    return gradient


def _by_coordinates(
    tokens: Tensor, within: Tensor, dims: Sequence[int], least: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """CKA [b, n] from covariances, and for each prefix the matrix [b, H, d] of its gradient."""
    found, slopes = [], []
    for dim, counted in zip(dims, within.unbind(1), strict=True):
        centred = _centred_tokens(tokens, counted)
        teacher = centred.mT @ centred  # [b, H, H], and within it
        cross = teacher[:, :dim]
        student = cross[..., :dim]
        scale, teacher_scale = _inverse_norms(student, least), _inverse_norms(teacher, least)
        squares = cross.square().sum(dim=(-2, -1), keepdim=True)
        alike = squares * scale * teacher_scale
        own = pad(student, (0, teacher.shape[-1] - dim))
        slopes.append((2 * scale * (cross * teacher_scale - alike * scale * own)).mT)
        found.append((alike + (teacher_scale == 0))[..., 0, 0])
    return torch.stack(found, dim=1), slopes


def _centred_tokens(tokens: Tensor, counted: Tensor) -> Tensor:
    """The tokens that count, about their mean; 0 for the others: [b, K, H]."""
    means = counted[:, None] @ tokens / counted.sum(dim=-1)[:, None, None]
    return (tokens - means) * counted[..., None]


def _back_by_coordinates(
    weights: Tensor, tokens: Tensor, within: Tensor, slopes: Sequence[Tensor], dims: Sequence[int]
) -> Tensor:
    """Each prefix by itself: its tokens are centred by a mean of its own."""
    gradient = tokens.new_zeros(*tokens.shape[:2], dims[-1])
    for i, slope in enumerate(slopes):
        centred = _centred_tokens(tokens, within[:, i]) * weights[:, i, None, None]
        gradient[..., : dims[i]] += centred @ slope
    return gradient
