"""Weights as int8: each group of a row's numbers has a scale, and products stay in float32.

Only weights are rounded. Rounding the states of the layers too, as dynamic quantisation does, takes
far more from the vectors; a graph of these modules holds a fourth of the bytes.
"""

# Shapes in this file:
#   N and M dims before and behind a map, V ids of the vocabulary, K dims of a row,
#   B texts, T tokens, G numbers that share a scale.

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from m2dr.model.encoder import Encoder
from m2dr.model.folded_exit import FoldedExit

_LARGEST = 127  # of int8
_FEWEST = 1024  # rows of a table that is worth rounding
_GROUP = 64  # G, where it divides a row; else all of the row


class Int8Linear(nn.Module):
    """A linear map, N to M, whose weights are int8 [M, N / G, G] with a scale per group."""

    weight: Tensor
    scale: Tensor

    def __init__(self, exact: nn.Linear) -> None:
        super().__init__()
        weight, scale = _rounded(exact.weight)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.bias = exact.bias

    def forward(self, states: Tensor) -> Tensor:
        """Map states [..., N] to [..., M]."""
        return linear(states, (self.weight.float() * self.scale).flatten(1), self.bias)


class Int8Rows(nn.Module):
    """A table [V, K] whose rows are int8 [K / G, G], with a scale per group."""

    weight: Tensor
    scale: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        weight, scale = _rounded(table)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of ids, [B, T] to [B, T, K]."""
        return (self.weight[ids].float() * self.scale[ids]).flatten(-2)


class Int8Exit(FoldedExit):
    """A folded exit whose table is int8."""

    def __init__(self, exact: FoldedExit) -> None:
        head = exact.heads[str(exact.layer)]
        assert isinstance(head, nn.Linear)
        nothing = exact.table[:, :0]
        super().__init__(exact.layer, exact.inputs, head, exact.tokens.weights, nothing)
        self.rows = Int8Rows(exact.table)

    def rows_of(self, input_ids: Tensor) -> Tensor:
        """Return what each token adds, [B, T] to [B, T, K]."""
        found: Tensor = self.rows(input_ids)
        return found


@torch.no_grad()
def round_weights(encoder: Encoder) -> None:
    """Replace the matrices of an encoder's layers, its embeddings and its table by int8 ones."""
    for parent in list(encoder.transformer.modules()):
        for name, module in _rounded_children(parent).items():
            setattr(parent, name, module)
    if isinstance(encoder.fitted, FoldedExit):
        encoder.fitted = Int8Exit(encoder.fitted)


def _rounded_children(parent: nn.Module) -> Mapping[str, nn.Module]:
    """Return the modules that take the place of some of a module's own."""
    found: dict[str, nn.Module] = {}
    for name, child in parent.named_children():
        if type(child) is nn.Linear:
            found[name] = Int8Linear(child)
        elif type(child) is nn.Embedding and child.num_embeddings >= _FEWEST:
            found[name] = Int8Rows(child.weight)
    return found


def _rounded(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return a matrix [M, N] as int8 [M, N / G, G], and its scales [M, N / G, 1]."""
    width = matrix.shape[1]
    group = _GROUP if width % _GROUP == 0 else width
    exact = matrix.detach().float().reshape(len(matrix), width // group, group)
    scale = exact.abs().amax(dim=2, keepdim=True).clamp(min=1e-12) / _LARGEST
    return (exact / scale).round().to(torch.int8), scale
