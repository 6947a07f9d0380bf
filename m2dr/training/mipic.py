"""MIPIC: token relations that prefixes keep (SIA), and a chain of growing checkpoints (PIC).

Shapes: b or N texts, H width, T tokens, K tokens chosen of each text, n prefix lengths, d one of
them, S the sum of all prefix lengths.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from math import ceil
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.linalg import vector_norm
from torch.nn.functional import normalize, pad

from m2dr.core.records import Cut
from m2dr.training.losses import contrastive

Anchor = Literal["cls", "mean", "last"]  # poolings whose vector is compared with token states

SHORTEST = 16  # the dims are this and its doubles below the width, and the width (MIPIC, 4)
PROJECTOR_SEED = 13  # of the projectors, so that they start the same whatever else was drawn
# (layers, width) to the layers of MIPIC, A.5. Its TinyBERT-6L is what the even spread gives.
PUBLISHED = {
    (12, 768): (2, 4, 6, 8, 9, 10, 12),
    (24, 1024): (1, 4, 7, 11, 15, 19, 24),
    (28, 1024): (2, 6, 12, 16, 20, 24, 28),
}
MOST_TOKENS = 64  # of public code, at full width
LEAST_TOKENS = 8  # tokens kept of a text that has them, however short the prefix (MIPIC, A.5)
SHORT, LONG = Fraction("0.2"), Fraction("0.7")  # shares of the shortest and the longest prefix
_NOISE = 8  # rounding errors of a mean and a difference, in units of the last place


def checkpoints_of(layers: int, width: int) -> tuple[Cut, ...]:
    """Return a chain of checkpoints, each deeper and longer; the last one is the full model.

    As published for the shapes of the paper. Otherwise its dims, spread evenly over the layers; if
    there are fewer layers than dims, dims in the middle are left out, as in the paper.

    >>> [str(cut) for cut in checkpoints_of(6, 384)]
    ['L1D16', 'L2D32', 'L3D64', 'L4D128', 'L5D256', 'L6D384']
    >>> [str(cut) for cut in checkpoints_of(3, 384)]
    ['L1D16', 'L2D32', 'L3D384']
    """
    dims = [SHORTEST << i for i in range(width.bit_length()) if SHORTEST << i < width] + [width]
    if len(dims) > layers:
        last = max(1, layers // 2)
        dims = dims[: layers - last] + dims[-last:]
    even = [-(-layers * i // len(dims)) for i in range(1, len(dims) + 1)]  # rounded up
    depths = PUBLISHED.get((layers, width), even)
    return tuple(Cut(layer, dim) for layer, dim in zip(depths, dims, strict=True))


def full_width(checkpoints: Sequence[Cut]) -> tuple[Cut, ...]:
    """Return the same layers, all at the width of the last one (MIPIC, table 4)."""
    return tuple(Cut(cut.layer, checkpoints[-1].dim) for cut in checkpoints)


class Chain(nn.Module):
    """PIC: the vector of a checkpoint predicts that of the next one among all texts of the batch.

    Both checkpoints of a link get gradient (eq. 16), of public code the first alone. Projectors are
    used in training alone.
    """

    def __init__(self, checkpoints: Sequence[Cut], temperature: float, code: bool = False) -> None:
        """Create the projectors, always the same; torch's global generator is left as it was.

        Args:
            checkpoints: deeper and deeper, and never shorter than the one before.
            temperature: divides the cosines.
            code: the chain of public notebooks: ReLU, the target detached, the mean over links.
        """
        super().__init__()
        self.checkpoints, self.temperature = tuple(checkpoints), temperature
        self.code = code
        generator = torch.Generator().manual_seed(PROJECTOR_SEED)
        self.projectors = nn.ModuleList(
            _projector(a.dim, b.dim, generator, code) for a, b in pairwise(self.checkpoints)
        )

    def forward(self, vectors: Mapping[int, Tensor], excluded: Tensor | None = None) -> Tensor:
        """Return the sum of the losses of all links (eq. 17); of public code their mean.

        Args:
            vectors: by layer, for each layer of the checkpoints, the pooled states [N, H] of the
                same texts in the same order.
            excluded: [N, N], True where another text of the batch is the same and must not count
                as a negative; none when None.

        Returns:
            [] nats per text in float32 or better.
        """
        ends = [vectors[cut.layer][:, : cut.dim] for cut in self.checkpoints]
        texts = len(ends[0])
        if excluded is None:
            excluded = torch.zeros(texts, texts, dtype=torch.bool, device=ends[0].device)
        total = ends[0].new_zeros(())
        with torch.autocast(ends[0].device.type, enabled=False):
            ends = [end if end.dtype == torch.float64 else end.float() for end in ends]
            for projector, (here, there) in zip(self.projectors, pairwise(ends), strict=True):
                there = there.detach() if self.code else there
                cosines = normalize(projector(here), dim=-1) @ normalize(there, dim=-1).mT
                total = total + contrastive(cosines, excluded, self.temperature)
        return total / len(self.projectors) if self.code else total


def _projector(here: int, there: int, generator: torch.Generator, code: bool) -> nn.Sequential:
    """Return two linear maps with a GELU, or a ReLU, between them: [N, here] to [N, there]."""
    middle = max(here, there) // 2 if code else here
    sizes = pairwise((here, middle, there))
    maps = [nn.Linear(*size, device="meta").to_empty(device="cpu") for size in sizes]
    for linear in maps:  # created on meta, where nn.Linear draws nothing
        bound = linear.in_features**-0.5  # as nn.Linear draws them
        nn.init.uniform_(linear.weight, -bound, bound, generator=generator)
        nn.init.uniform_(linear.bias, -bound, bound, generator=generator)
    return nn.Sequential(maps[0], nn.ReLU() if code else nn.GELU(), maps[1])


def shares_of(count: int) -> tuple[float, ...]:
    """Return the share of a text's tokens that each prefix is aligned on, shortest prefix first.

    In even steps; for six prefixes they are those of MIPIC, A.5.

    >>> shares_of(6)
    (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    """
    step = (LONG - SHORT) / max(count - 1, 1)
    return tuple(float(SHORT + i * step) for i in range(count))


class TokenRelations(nn.Module):
    """SIA: each prefix of a layer's token states imitates the relations of their full width.

    For each prefix these are the attention of the text's vector over the tokens, and the CKA of the
    tokens with most attention. The full width is the teacher and detached, and so is the text's
    vector, "a fixed semantic reference": the prefix alone gets gradient. The up-projections are
    used in training alone. They start as [I, 0], and all layers share them, as in the paper.
    """

    def __init__(
        self,
        layers: Sequence[int],
        dims: Sequence[int],
        width: int,
        temperature: float,
        shares: Sequence[float],
        anchor: Anchor = "cls",
        itself: bool = True,
        code: bool = False,
    ) -> None:
        """Create the up-projections.

        Args:
            layers: the layers whose states are compared.
            dims: the n prefix lengths, increasing, all below H.
            width: H.
            temperature: divides token importances, which are products over √H.
            shares: of a text's tokens that each prefix is aligned on; never decreasing.
            anchor: the model's pooling, which gives the vector of a text.
            itself: whether a pooled token is among the tokens that it attends to; a text of one
                token attends to it anyway.
            code: as in public notebooks: CKA alone, the full width trained too, on max(8, 64 d / H)
                tokens, and the mean over layers and prefixes.
        """
        super().__init__()
        self.layers, self.dims, self.width = tuple(layers), tuple(dims), width
        self.itself = itself or anchor == "mean"
        self.temperature, self.shares, self.anchor = temperature, tuple(shares), anchor
        self.code = code
        # All P_i [d_i, H], stacked: [S, H].
        start = torch.cat([torch.eye(dim, width) for dim in dims])
        self.projections = None if code else nn.Parameter(start)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return the loss of each text, to be summed over layers and averaged over texts.

        Args:
            states: [b, T, H], as they are pooled: after the final norm.
            mask: [b, T], 1 for a token and 0 for padding, which stands at the end.

        Returns:
            [b] in float32 or better: Σ over prefixes of KL(a_i ‖ a_H) in nats and of 1 - CKA.
        """
        with torch.autocast(states.device.type, enabled=False):
            states = states if states.dtype == torch.float64 else states.float()
            real = mask.bool()
            anchor = _anchors(states.detach(), real, self.anchor)  # [b, H]
            if not self.itself:
                own = torch.zeros_like(real)
                own.scatter_(1, _places(real, self.anchor)[:, None], value=True)
                real = torch.where((real & ~own).any(dim=-1, keepdim=True), real & ~own, real)
            attention = self._attention(states, real, anchor)
            chosen, counts = self._most_attended(attention[:, -1], real)
            alike = prefix_alignment(states, chosen, counts, self.dims, both=self.code)
            if self.code:
                return (1 - alike).mean(dim=-1) / len(self.layers)
            divergence = _divergences(attention[:, :-1], attention[:, -1:], real)
            return (divergence + 1 - alike).sum(dim=-1)

    def _attention(self, states: Tensor, real: Tensor, anchor: Tensor) -> Tensor:
        """Return the log attention of each text, eq. 4 and 5: [b, n + 1, T], the teacher's last.

        h_CLS · (P_iᵀ h[:d_i]) is (P_i h_CLS) · h[:d_i], so that no token is projected up. The short
        vectors, padded with zeros, and h_CLS itself are multiplied by all tokens in one product.
        """
        short: tuple[Tensor, ...] = ()
        if self.projections is not None:
            mapped = anchor @ self.projections.to(states.dtype).mT
            short = torch.split(mapped, list(self.dims), dim=-1)
        queries = [pad(vector, (0, self.width - vector.shape[-1])) for vector in short]
        scores = torch.stack([*queries, anchor], dim=1) @ states.mT  # [b, n + 1, T]
        scores = torch.cat([scores[:, :-1], scores[:, -1:].detach()], dim=1)
        logits = scores / (self.width**0.5 * self.temperature)
        return torch.log_softmax(logits.masked_fill(~real[:, None], -torch.inf), dim=-1)

    def _most_attended(self, teacher: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Return each text's tokens from most to least attended [b, K], and how many count [b, n].

        A longer prefix adds tokens to those of a shorter one.
        """
        tokens = real.sum(dim=-1, keepdim=True)  # [b, 1]
        shares = torch.tensor(self.shares, dtype=torch.float64, device=real.device)
        wanted = (tokens * shares - 1e-9).ceil().clamp(min=LEAST_TOKENS)  # 29 / 70 of 70 are 29
        most = max(LEAST_TOKENS, ceil(real.shape[1] * self.shares[-1]))
        if self.code:
            fixed = [max(LEAST_TOKENS, MOST_TOKENS * dim // self.width) for dim in self.dims]
            wanted, most = torch.tensor(fixed, device=real.device), fixed[-1]
        counts = wanted.to(tokens.dtype).minimum(tokens)
        return teacher.argsort(dim=-1, descending=True, stable=True)[:, :most], counts


def _anchors(states: Tensor, real: Tensor, anchor: Anchor) -> Tensor:
    """Return the vector of each text: [b, T, H] to [b, H]."""
    if anchor == "mean":
        return (real.to(states.dtype)[:, None] @ states)[:, 0] / real.sum(dim=-1)[:, None]
    return states[torch.arange(len(states), device=states.device), _places(real, anchor)]


def _places(real: Tensor, anchor: Anchor) -> Tensor:
    """Return where the pooled token of each text stands: [b]."""
    tokens = real.sum(dim=-1)
    return torch.zeros_like(tokens) if anchor == "cls" else tokens - 1


def _divergences(students: Tensor, teacher: Tensor, real: Tensor) -> Tensor:
    """Return KL(student ‖ teacher), eq. 6, of log attentions [b, n, T] and [b, 1, T]: [b, n]."""
    gap = (students - teacher).masked_fill(~real[:, None], 0)  # -inf less -inf at padding
    return (students.exp() * gap).sum(dim=-1)


def prefix_alignment(
    states: Tensor, chosen: Tensor, counts: Tensor, dims: Sequence[int], both: bool = False
) -> Tensor:
    """Return the linear CKA of each prefix with the full width (MIPIC, eq. 7 to 11).

    ‖hᵀH‖² / (‖hᵀh‖ ‖HᵀH‖) in Frobenius norms, with h the chosen tokens cut to a prefix, H the same
    at full width, and the mean over the chosen tokens subtracted from each dim. H is the teacher:
    the gradient goes to h alone. It is computed in closed form, which keeps nothing but the chosen
    tokens and one matrix per prefix.

    One token, or tokens that are all equal, have no relations: the CKA is 1. Where the tokens
    differ at full width and not in the prefix it is 0. Neither has a gradient.

    Args:
        states: [b, T, H] in float32 or better.
        chosen: [b, K] distinct tokens of each text, the most important first.
        counts: [b, n] how many of them each prefix is compared on, at least 1, never decreasing.
        dims: the n prefix lengths, increasing, below H.
        both: the gradient goes to H too.

    Returns:
        [b, n] from 0 to 1.
    """
    alike: Tensor = _PrefixAlignment.apply(states, chosen, counts, tuple(dims), both)  # type: ignore[no-untyped-call]  # torch does not annotate it
    return alike


class _PrefixAlignment(torch.autograd.Function):
    """CKA from products of tokens [K, K]."""

    @staticmethod
    def forward(
        ctx: Any,  # torch's own context
        states: Tensor,
        chosen: Tensor,
        counts: Tensor,
        dims: tuple[int, ...],
        both: bool,
    ) -> Tensor:
        firsts = torch.arange(len(states), device=states.device) * states.shape[1]
        rows = (chosen + firsts[:, None]).flatten()
        tokens = states.flatten(0, 1).index_select(0, rows).view(*chosen.shape, -1)
        within = torch.arange(chosen.shape[1], device=states.device) < counts[..., None]
        within = within.to(states.dtype)  # [b, n, K], 1 for the tokens of a prefix
        ctx.dims, ctx.shape, ctx.both = dims, states.shape, both
        least = _moved_to_their_mean(tokens, within[:, -1:])
        alike, *slopes = _compared(tokens, within, dims, least, both)
        ctx.save_for_backward(rows, tokens, *slopes)
        return alike

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor, None, None, None, None]:  # as above
        rows, tokens, slopes, *teacher_slopes = ctx.saved_tensors
        dims = (*ctx.dims, tokens.shape[-1]) if ctx.both else ctx.dims
        gradient = tokens.new_empty(*tokens.shape[:2], dims[-1])  # [b, K, longest d]
        with torch.autocast(tokens.device.type, enabled=False):
            twice = 2 * weights[..., None, None]  # a token is on both sides
            weighted = slopes * twice
            if ctx.both:  # the full width is one more prefix
                of_teacher = (teacher_slopes[0] * twice).sum(dim=1, keepdim=True)
                weighted = torch.cat([weighted, of_teacher], dim=1)
            total = torch.zeros_like(weighted[:, 0])
            # A block of dims is in the products of every prefix that reaches it.
            for i, (a, b) in reversed(list(enumerate(pairwise([0, *dims])))):
                total += weighted[:, i]
                gradient[..., a:b] = total @ tokens[..., a:b]
        states = tokens.new_zeros(ctx.shape)
        states.flatten(0, 1)[:, : dims[-1]].index_copy_(0, rows, gradient.flatten(0, 1))
        return states, None, None, None, None


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
    """Return 1 / Frobenius norm of [..., r, c], as [..., 1, 1]; 0 where there are no relations."""
    norms: Tensor = vector_norm(relations, dim=(-2, -1), keepdim=True)
    return norms.reciprocal().where(norms > least, 0)


def _compared(
    tokens: Tensor, within: Tensor, dims: Sequence[int], least: Tensor, both: bool
) -> tuple[Tensor, ...]:
    """Return the CKA [b, n] from products of tokens, and its slope in each product: [b, n, K, K].

    With `both` the slopes in the products at full width follow: [b, n, K, K]. The products of a
    longer prefix are a running sum that starts with those of the shorter ones.
    """
    spans = pairwise([0, *dims, tokens.shape[-1]])
    blocks = [tokens[..., a:b] @ tokens[..., a:b].mT for a, b in spans]
    products = torch.stack(blocks, dim=1).cumsum(dim=1)  # [b, n + 1, K, K]
    student, teacher = _centred(products[:, :-1], within), _centred(products[:, -1:], within)
    scale, teacher_scale = (_inverse_norms(side, least[:, None]) for side in (student, teacher))
    student, teacher = student.mul_(scale), teacher.mul_(teacher_scale)
    alike = (student * teacher).sum(dim=(-2, -1), keepdim=True)
    slopes = [(teacher - alike * student).mul_(scale)]
    if both:
        slopes.append((student - alike * teacher).mul_(teacher_scale))
    return (alike + (teacher_scale == 0))[..., 0, 0], *slopes


def _centred(products: Tensor, within: Tensor) -> Tensor:
    """Return products of the tokens that count, about their mean; 0 for others: [b, n, K, K]."""
    count = within.sum(dim=-1)[..., None, None]
    means = within[..., None, :] @ products / count  # [b, n, 1, K]
    overall = (means * within[..., None, :]).sum(dim=-1, keepdim=True) / count
    about = products - means - (means - overall).mT
    return about.mul_(within[..., None, :]).mul_(within[..., None])
