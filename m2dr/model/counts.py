"""What the exits of an encoder multiply, and how many numbers it holds: costs by arithmetic."""

from collections.abc import Iterable

from torch import Tensor, nn

from m2dr.model.encoder import Encoder
from m2dr.records.fit import TOKENS, inputs_of


def parameters_of(encoder: Encoder, layer: int) -> int:
    """Return how many numbers are in memory to encode texts at a layer.

    Args:
        encoder: one that holds no more layers than that.
        layer: 0 counts the table and the weights of its tokens, which are all that it reads.
    """
    fitted = encoder.fitted
    if fitted is None:
        return _numbers(encoder.parameters())
    weights = fitted.tokens.weights
    if layer == 0:
        return _numbers((fitted.table, weights))
    return _numbers((*encoder.parameters(), fitted.tokens.single, weights))


def exit_work(encoder: Encoder) -> dict[int, int]:
    """Return the multiply-adds that map a pooled state to its embedding, by layer from 1.

    An exit head and the modules behind it; a fitted exit has no modules behind it.
    """
    fitted, behind = encoder.fitted, _products(encoder.behind)
    found = {}
    for layer in range(1, encoder.blocks + 1):
        name = str(layer)
        if fitted is not None and layer in fitted.layers:
            found[layer] = _products(fitted.heads[name])
        else:
            head = encoder.exit_heads[name] if name in encoder.exit_heads else nn.Identity()
            found[layer] = _products(head) + behind
    return found


def table_work(encoder: Encoder) -> dict[int, int]:
    """Return the multiply-adds per token of the tables that fitted exits read, by layer.

    Layer 0 adds up a row per token; the layers that read tokens, the features of each.
    """
    fitted = encoder.fitted
    if fitted is None:
        return {}
    tokens = fitted.tokens
    features = encoder.words.shape[1] + tokens.single.shape[1] + tokens.identity
    reading = [layer for layer in fitted.layers[1:] if TOKENS in inputs_of(layer, fitted.inputs)]
    return {0: fitted.table.shape[1], **dict.fromkeys(reading, features)}


def _products(module: nn.Module) -> int:
    """Return the multiply-adds of one vector through the matrices of a module."""
    return _numbers(weights for weights in module.parameters() if weights.dim() == 2)


def _numbers(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)
