"""What the tests of `m2dr serve` serve."""

from dataclasses import dataclass
from pathlib import Path

CPU = ("--device", "cpu", "--dtype", "fp32")


@dataclass(frozen=True)
class World:
    """A corpus, a model, and where its index is."""

    corpus: Path
    model: Path
    root: Path
    home: Path
