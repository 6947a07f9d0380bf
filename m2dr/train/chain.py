"""Pooled states of several layers to nats: each checkpoint foretells the next, larger one (MIPIC).

Huy et al., MIPIC, section 3.3 and appendix A.5. Its other half, within a layer, is in tokenwise.py.
"""

# Shapes in this room:
#   N texts, H width.

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from m2dr.records.cut import Cut
from m2dr.train.losses import contrastive

SHORTEST = 16  # the dims are this and its doubles below the width, and the width (MIPIC, 4)
SEED = 13  # of the projectors, which begin the same whatever else was drawn

# (layers, width) to the layers of MIPIC, A.5. Its TinyBERT-6L is what the even spread gives.
PUBLISHED = {
    (12, 768): (2, 4, 6, 8, 9, 10, 12),
    (24, 1024): (1, 4, 7, 11, 15, 19, 24),
    (28, 1024): (2, 6, 12, 16, 20, 24, 28),
}


def checkpoints_of(layers: int, width: int) -> tuple[Cut, ...]:
    """A chain for an encoder: deeper and longer step by step, the last one the whole of it.

    As published where the paper knows the encoder. Else its dims, spread evenly over the layers;
    where they outnumber the layers those in the middle are left out, as the paper does at six.

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
    """The same layers, all at the width of the last one: what table 4 compares the chain with."""
    return tuple(Cut(cut.layer, checkpoints[-1].dim) for cut in checkpoints)


class Chain(nn.Module):
    """PIC: from a checkpoint's vector the next one's is to be told among all texts of the batch.

    Both ends of a link get gradient, as eq. 16 has it: the shallow, short one is drawn to what
    comes after it, and that to what can be foretold. Projectors are used in training alone.
    """

    def __init__(self, checkpoints: Sequence[Cut], temperature: float) -> None:
        """Make the projectors, always the same, without a draw from torch's global generator.

        Args:
            checkpoints: deeper and deeper, and never shorter than the one before.
            temperature: divides the cosines.

        Raises:
            ValueError: the checkpoints are not in that order.
        """
        super().__init__()
        self.checkpoints, self.temperature = tuple(checkpoints), temperature
        if any(a.layer >= b.layer or a.dim > b.dim for a, b in pairwise(self.checkpoints)):
            raise ValueError(f"each checkpoint must lie deeper, none be shorter: {checkpoints}")
        generator = torch.Generator().manual_seed(SEED)
        self.projectors = nn.ModuleList(
            _projector(a.dim, b.dim, generator) for a, b in pairwise(self.checkpoints)
        )

    def forward(self, vectors: Mapping[int, Tensor], excluded: Tensor | None = None) -> Tensor:
        """The links' losses, one added to another (eq. 17).

        Args:
            vectors: by layer, for each layer of the checkpoints, the pooled states [N, H] of the
                same texts in the same order.
            excluded: [N, N], True where another text of the batch says the same and must not count
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
                cosines = normalize(projector(here), dim=-1) @ normalize(there, dim=-1).mT
                total = total + contrastive(cosines, excluded, self.temperature)
        return total


def _projector(here: int, there: int, generator: torch.Generator) -> nn.Sequential:
    """Two linear maps with a bend between them: [N, here] to [N, there]."""
    maps = [nn.Linear(here, dim, device="meta").to_empty(device="cpu") for dim in (here, there)]
    for linear in maps:  # from meta: nn.Linear would have drawn from the global generator
        bound = here**-0.5  # as nn.Linear draws them
        nn.init.uniform_(linear.weight, -bound, bound, generator=generator)
        nn.init.uniform_(linear.bias, -bound, bound, generator=generator)
    return nn.Sequential(maps[0], nn.GELU(), maps[1])
