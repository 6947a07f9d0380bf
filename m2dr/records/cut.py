"""Cuts: how many layers and dims of an encoder are used."""

import re
from dataclasses import dataclass

from m2dr.errors import UserError


@dataclass(frozen=True, order=True)
class Cut:
    """The first `layer` transformer layers and the first `dim` dims of the embedding.

    `layer` counts transformer layers: 12 is all of BERT-base. Layer 0 runs none of them; it is the
    static token table of a fitted model. The two numbers mean the same in every option, manifest
    and file name.

    >>> str(Cut(layer=4, dim=128)), str(Cut(layer=0, dim=64))
    ('L4D128', 'L0D64')
    """

    layer: int
    dim: int

    def __post_init__(self) -> None:
        if self.layer < 0 or self.dim < 1:
            raise UserError(f"A cut has a layer from 0 and a dim from 1, not {self}.")

    def __str__(self) -> str:
        return f"L{self.layer}D{self.dim}"

    @classmethod
    def parse(cls, word: str) -> "Cut":
        """Return the cut that a word such as L4D128 names.

        >>> Cut.parse("L4D128"), Cut.parse("L0D64")
        (Cut(layer=4, dim=128), Cut(layer=0, dim=64))
        """
        found = re.fullmatch(r"L(\d+)D(\d+)", word)
        if not found:
            raise UserError(f"{word!r} is no cut; layer 4 and dim 128 are written L4D128.")
        return cls(int(found[1]), int(found[2]))
