"""How much of an encoder is used."""

import re
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

    @classmethod
    def parse(cls, word: str) -> "Cut":
        """The cut that a word such as L4D128 names.

        >>> Cut.parse("L4D128")
        Cut(layer=4, dim=128)
        """
        found = re.fullmatch(r"L(\d+)D(\d+)", word)
        if not found:
            raise UserError(f"{word!r} names no cut; layer 4 and dim 128 are written L4D128.")
        return cls(int(found[1]), int(found[2]))
