"""Token states of a layer to nats: a prefix keeps the relations that the full width sees (MIPIC).

Huy et al., MIPIC, section 3.2 and appendix A.5. The other half, from layer to layer, is chain.py.
"""

# Shapes in this room:
#   b texts, T tokens, H width, n prefix lengths, K tokens kept for the longest of them,
#   S the sum of all prefix lengths.

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from m2dr.train.cka import prefix_alignment

Anchor = Literal["cls", "mean", "last"]  # poolings that leave a text among its tokens
FEWEST = 8  # tokens kept of a text that has them, however short the prefix (MIPIC, A.5)
FIRST, LAST = Fraction("0.2"), Fraction("0.7")  # shares of the shortest and the longest prefix


def shares_of(count: int) -> tuple[float, ...]:
    """The share of a text's tokens that each of `count` prefixes is aligned on, shortest first.

    In even steps; at six prefixes they are those of MIPIC, A.5.

    >>> shares_of(6)
    (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    """
    step = (LAST - FIRST) / max(count - 1, 1)
    return tuple(float(FIRST + i * step) for i in range(count))


class TokenRelations(nn.Module):
    """SIA: each prefix of a layer's token states learns what their full width tells of a text.

    Two things, for each prefix: how the tokens share out the attention of the text's own vector,
    and how the tokens that get most of it lie to each other. The full width is the teacher and
    detached, and so is the text's vector, "a fixed semantic reference": the prefix alone gets
    gradient. The up-projections are used in training alone. They begin as [I, 0], where a prefix
    says what its own coordinates say, and serve all layers, as the paper writes them.
    """

    def __init__(
        self,
        layers: Sequence[int],
        dims: Sequence[int],
        width: int,
        temperature: float,
        shares: Sequence[float],
        anchor: Anchor = "cls",
    ) -> None:
        """Make the up-projections.

        Args:
            layers: the layers whose states may be asked about.
            dims: the n prefix lengths, increasing, all below H.
            width: H.
            temperature: divides token importances, which are products over √H.
            shares: of a text's tokens, those that each prefix is aligned on; never decreasing.
            anchor: which vector stands for the text: the model's own pooling.

        Raises:
            ValueError: dims or shares are not as said.
        """
        super().__init__()
        if list(dims) != sorted(set(dims)) or not 0 < min(dims) <= max(dims) < width:
            raise ValueError(f"dims must increase and lie below {width}: {dims}")
        if len(shares) != len(dims) or list(shares) != sorted(shares):
            raise ValueError(f"one share per dim, never decreasing: {shares} for {dims}")
        self.layers, self.dims, self.width = tuple(layers), tuple(dims), width
        self.temperature, self.shares, self.anchor = temperature, tuple(shares), anchor
        # All P_i [d_i, H] one below the other: [S, H].
        self.projections = nn.Parameter(torch.cat([torch.eye(dim, width) for dim in dims]))

    def forward(self, layer: int, states: Tensor, mask: Tensor) -> Tensor:
        """The loss of each text, to be summed over the parts of a batch and over layers.

        Args:
            layer: which layer the states come from.
            states: [b, T, H], as an embedding would be made of them: after the final norm.
            mask: [b, T], 1 for a token and 0 for padding, which stands at the end.

        Returns:
            [b] in float32 or better: Σ over prefixes of KL(a_i ‖ a_H) in nats and of 1 - CKA.

        Raises:
            ValueError: the layer is none of `layers`.
        """
        if layer not in self.layers:
            raise ValueError(f"layer {layer} is not among {self.layers}")
        with torch.autocast(states.device.type, enabled=False):
            states = states if states.dtype == torch.float64 else states.float()
            real = mask.bool()
            attention = self._attention(states, real)
            divergence = _divergences(attention[:, :-1], attention[:, -1:], real)
            chosen, counts = self._most_attended(attention[:, -1], real)
            alike = prefix_alignment(states, chosen, counts, self.dims)
            return (divergence + 1 - alike).sum(dim=-1)

    def _attention(self, states: Tensor, real: Tensor) -> Tensor:
        """Log shares of the text's attention, eq. 4 and 5: [b, n + 1, T], the teacher's last.

        h_CLS · (P_iᵀ h[:d_i]) is (P_i h_CLS) · h[:d_i], so that no token is ever projected up. The
        short vectors, padded with zeros, and h_CLS itself ask all tokens at once, in one product.
        """
        anchor = _anchors(states.detach(), real, self.anchor)  # [b, H]
        short = torch.split(anchor @ self.projections.to(states.dtype).mT, list(self.dims), dim=-1)
        asking = [pad(vector, (0, self.width - vector.shape[-1])) for vector in short]
        scores = torch.stack([*asking, anchor], dim=1) @ states.mT  # [b, n + 1, T]
        scores = torch.cat([scores[:, :-1], scores[:, -1:].detach()], dim=1)
        logits = scores / (self.width**0.5 * self.temperature)
        return torch.log_softmax(logits.masked_fill(~real[:, None], -torch.inf), dim=-1)

    def _most_attended(self, teacher: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Each text's tokens from most to least attended [b, K], and how many count [b, n].

        The first ones serve all prefixes: a longer prefix adds tokens to those of a shorter one.
        """
        tokens = real.sum(dim=-1, keepdim=True)  # [b, 1]
        shares = torch.tensor(self.shares, dtype=torch.float64, device=real.device)
        asked = (tokens * shares - 1e-9).ceil().clamp(min=FEWEST)  # 29 / 70 of 70 are 29
        counts = asked.to(tokens.dtype).minimum(tokens)
        most = max(FEWEST, ceil(real.shape[1] * self.shares[-1]))
        return teacher.argsort(dim=-1, descending=True, stable=True)[:, :most], counts


def _anchors(states: Tensor, real: Tensor, anchor: Anchor) -> Tensor:
    """The vector that stands for each text: [b, T, H] to [b, H]."""
    if anchor == "cls":
        return states[:, 0]
    tokens = real.sum(dim=-1)
    if anchor == "mean":
        return (real.to(states.dtype)[:, None] @ states)[:, 0] / tokens[:, None]
    return states[torch.arange(len(states), device=states.device), tokens - 1]


def _divergences(students: Tensor, teacher: Tensor, real: Tensor) -> Tensor:
    """KL(student ‖ teacher), eq. 6, of log shares [b, n, T] and [b, 1, T]: [b, n] in nats."""
    gap = (students - teacher).masked_fill(~real[:, None], 0)  # there -inf less -inf
    return (students.exp() * gap).sum(dim=-1)
