"""What a fit of exits was asked, and what m2dr.json keeps of it."""

from dataclasses import dataclass
from typing import Literal

Rotation = Literal["pca", "learned", "none"]
FitInputs = Literal["tokens+layer", "layer", "all-layers"]
TOKENS = 0  # among the inputs of an exit: the features of the text's tokens


def inputs_of(layer: int, inputs: FitInputs) -> tuple[int, ...]:
    """Return what the exit of a layer reads: numbers of layers, and TOKENS last.

    >>> inputs_of(2, "tokens+layer"), inputs_of(2, "all-layers"), inputs_of(0, "layer")
    ((2, 0), (1, 2, 0), (0,))
    """
    if layer == 0:
        return (TOKENS,)
    if inputs == "all-layers":
        return (*range(1, layer + 1), TOKENS)
    return (layer, TOKENS) if inputs == "tokens+layer" else (layer,)


@dataclass(frozen=True)
class FitRecord:
    """What exits were fitted on, and how well they give the embedding of the full model."""

    corpora: tuple[str, ...]
    texts: int
    snippets: int  # parts of them that were read besides, as queries
    rotation: Rotation
    inputs: FitInputs
    identity: int  # random features per token
    ridges: tuple[float, ...]  # λ of layers 0 to L - 1
    cosines: tuple[
        float | None, ...
    ]  # of the same layers, on held-out texts; None: there were none
