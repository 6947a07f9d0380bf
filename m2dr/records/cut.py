"""How much of an encoder is used."""

from dataclasses import dataclass

from m2dr.errors import UserError


@dataclass(frozen=True, order=True)
class Cut:
    """The first `layer` transformer blocks and the first `dim` coordinates.

    `layer` counts blocks: 12 is all of BERT-base, and no layer is called 0. The two numbers mean
    the same in `--query-layer`, in a manifest and in a file name.

    >>> str(Cut(layer=4, dim=128))
    'L4D128'
    """

    layer: int
    dim: int

    def __post_init__(self) -> None:
        if min(self.layer, self.dim) < 1:
            raise UserError(f"A cut keeps at least one layer and one dimension, not {self}.")

    def __str__(self) -> str:
        return f"L{self.layer}D{self.dim}"
