"""The stages of a funnel, as a word on the command line names them."""

import re
from dataclasses import dataclass
from itertools import pairwise

from m2dr.errors import UserError

_EXAMPLE = "a funnel is written like 32:1000,128:100,384"


@dataclass(frozen=True)
class Stage:
    """Compare by the first `dim` coordinates, and let the best `keep` documents stay."""

    dim: int
    keep: int


@dataclass(frozen=True)
class Funnel:
    """Stages from a short prefix to a long one, and the dim that ranks what is left.

    >>> print(Funnel.parse("32:1000,128:100,384"))
    32:1000,128:100,384
    """

    stages: tuple[Stage, ...]
    dim: int

    def __post_init__(self) -> None:
        if not self.stages:
            raise UserError(f"One stage narrows nothing; {_EXAMPLE}.")
        if any(stage.keep < 1 for stage in self.stages) or self.dims[0] < 1:
            raise UserError(f"The funnel {self} has a dim or a count below 1; {_EXAMPLE}.")
        for short, long in pairwise(self.dims):
            if long <= short:
                raise UserError(
                    f"Dims must grow in a funnel, and in {self} {long} follows {short}."
                )
        for before, after in pairwise(stage.keep for stage in self.stages):
            if after > before:
                raise UserError(
                    f"Counts cannot grow in a funnel, and in {self} {after} documents are to stay "
                    f"of {before}."
                )

    def __str__(self) -> str:
        return ",".join([*(f"{stage.dim}:{stage.keep}" for stage in self.stages), str(self.dim)])

    @property
    def dims(self) -> tuple[int, ...]:
        """Of every stage, the last one too; growing."""
        return (*(stage.dim for stage in self.stages), self.dim)

    @classmethod
    def parse(cls, word: str) -> "Funnel":
        """The funnel that a word such as 32:1000,128:100,384 names: dim:documents that stay.

        Raises:
            UserError: it names none.
        """
        *narrowing, last = word.replace(" ", "").split(",")
        if not re.fullmatch(r"\d+", last):
            raise UserError(
                f"The funnel {word!r} ends in {last!r}, not in a dim without a count; {_EXAMPLE}."
            )
        found = [re.fullmatch(r"(\d+):(\d+)", part) for part in narrowing]
        for part, match in zip(narrowing, found, strict=True):
            if not match:
                raise UserError(
                    f"The stage {part!r} of the funnel {word!r} is not a dim and a count; "
                    f"{_EXAMPLE}."
                )
        stages = tuple(Stage(int(match[1]), int(match[2])) for match in found if match)
        return cls(stages, int(last))

    def check(self, width: int, k: int = 1) -> None:
        """Raise UserError unless vectors of `width` have its dims and `k` documents are left."""
        if self.dim > width:
            raise UserError(
                f"The funnel {self} ends at dim {self.dim}, and the vectors have {width}. Choose "
                f"dims up to {width}."
            )
        if k > self.stages[-1].keep:
            raise UserError(
                f"{k} documents per query were asked for, and the funnel {self} leaves "
                f"{self.stages[-1].keep}. Let more stay, or ask for fewer."
            )
