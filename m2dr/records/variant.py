"""Training recipes as rows: each field is one choice, and any combination of choices trains."""

from dataclasses import dataclass
from typing import Literal

DocumentLayer = Literal["same", "last"]
Prefixes = Literal["none", "one", "many"]
Alignment = Literal["none", "pca", "score"]
Weights = Literal["log", "uniform"]


@dataclass(frozen=True)
class Variant:
    """What a training step asks of the shallow layers and of the short prefixes.

    The whole encoder at full width is trained by every variant but `separate`. Formulas:
    docs/recipes.md.
    """

    name: str
    summary: str
    shallow: bool = False  # train the layers below the last one
    prefixes: Prefixes = "none"  # none, one short prefix, or all of them
    full_dim: bool = False  # train shallow layers at full width too
    documents: DocumentLayer = "same"  # which layer encodes documents for a shallow query
    align: Alignment = "none"  # what a short prefix imitates
    weights: Weights = "log"  # of layer l below L: 1 / (1 + ln l), or 1
    alone: bool = False  # cut the backbone first and train that one cut, nothing else


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("plain", "The whole encoder at full width only."),
        Variant("separate", "One cut alone: the bar for the others.", prefixes="one", alone=True),
        Variant("mrl", "The last layer at every prefix.", prefixes="many"),
        Variant(
            "2dmse",
            "Every layer at one prefix, aligned with its compressed full width.",
            shallow=True,
            prefixes="one",
            align="pca",
        ),
        Variant(
            "full-dim",
            "2dmse, and shallow layers at full width.",
            shallow=True,
            prefixes="one",
            full_dim=True,
            align="pca",
        ),
        Variant(
            "dims",
            "2dmse at every prefix.",
            shallow=True,
            prefixes="many",
            align="pca",
        ),
        Variant(
            "score",
            "2dmse, but prefixes imitate the scores of their layer's full width.",
            shallow=True,
            prefixes="one",
            align="score",
        ),
        Variant(
            "fixed-doc",
            "2dmse with shallow queries against documents of the last layer.",
            shallow=True,
            prefixes="one",
            documents="last",
            align="pca",
        ),
    )
}
