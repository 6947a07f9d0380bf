"""Training recipes as rows: each field is one choice, and any combination of choices trains."""

from dataclasses import dataclass, fields
from typing import Literal

DocumentLayer = Literal["same", "last"]
Prefixes = Literal["none", "one", "many"]
Alignment = Literal["none", "pca", "embedding", "score"]
Teacher = Literal["width", "depth", "whole"]
Compression = Literal["dependencies", "embeddings", "max-k", "none"]
Weights = Literal["log", "uniform", "linear", "dynamic"]
ExitHead = Literal["none", "linear", "fitted"]
Loss = Literal["contrastive", "mnr", "simcse", "cosent", "angle"]
Distill = Literal["none", "margin-mse", "kl"]


@dataclass(frozen=True)
class Variant:
    """What a training step asks of the shallow layers and of the short prefixes.

    Formulas: docs/recipes.md.
    """

    name: str
    summary: str

    # Which cuts are asked to retrieve.
    whole: bool = True  # the last layer at full width
    shallow: bool = False  # the layers below the last one
    prefixes: Prefixes = "none"  # none, one short prefix, or all of them
    full_dim: bool = False  # shallow layers at full width too
    staircase: bool = False  # instead: one dim per layer, growing together
    sampled: bool = False  # each step draws one shallow layer and one prefix
    alone: bool = False  # cut the backbone first and train that one cut, nothing else
    documents: DocumentLayer = "same"  # which layer encodes documents for a shallow query

    # What a cut imitates beside.
    align: Alignment = "none"
    teacher: Teacher = "width"  # of scores: its layer's full width, the last layer, or the whole
    squares: bool = True  # squared error beside the divergence
    compress: Compression = "dependencies"  # how `pca` finds what a prefix should look like

    # What counts how much.
    weights: Weights = "log"  # of layer l below L: 1 / (1 + ln l), 1, falling evenly, or learned
    average: bool = False  # the mean over the cuts below the whole, not their sum
    share: float = 1.0  # of retrieving at the cuts below the whole
    align_weight: float = 1.0  # of all alignment
    alpha: float = 1.0  # of retrieving at all; 1 - alpha is that of sia and pic

    # MIPIC's token relations and chain of checkpoints.
    sia: bool = False
    pic: bool = False
    full_checkpoints: bool = False  # the chain at full width throughout

    # What maps a shallow state to its embedding: nothing, a trained linear map, or a fitted one.
    exit_head: ExitHead = "none"
    freeze: bool = False  # the encoder stays as it is, and its exit heads alone are trained


CHOICES = tuple(f.name for f in fields(Variant) if f.name not in ("name", "summary", "alone"))

VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("plain", "The whole encoder at full width only."),
        Variant("separate", "One cut alone: the bar for the others.", prefixes="one", alone=True),
        Variant("mrl", "The last layer at every prefix.", prefixes="many"),
        Variant(
            "2dmse-v1",
            "Each step one shallow layer and one prefix, taught by the last layer.",
            shallow=True,
            prefixes="many",
            full_dim=True,
            sampled=True,
            align="embedding",
            teacher="depth",
            squares=False,
            weights="uniform",
        ),
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
        Variant(
            "starbucks",
            "A few cuts from small to whole, each taught by the scores of the whole.",
            shallow=True,
            staircase=True,
            align="score",
            teacher="whole",
            squares=False,
            weights="uniform",
        ),
        Variant(
            "ese",
            "Every layer at one prefix, aligned with its compressed full width; no term for the "
            "whole.",
            whole=False,
            shallow=True,
            prefixes="one",
            align="pca",
        ),
        Variant(
            "mipic",
            "mrl, with token relations kept in prefixes and a chain of growing checkpoints.",
            prefixes="many",
            alpha=0.4,
            sia=True,
            pic=True,
        ),
        Variant(
            "elastic",
            "Every layer at every prefix, taught by the scores of the whole, through exit heads.",
            shallow=True,
            prefixes="many",
            full_dim=True,
            align="score",
            teacher="whole",
            squares=False,
            weights="uniform",
            average=True,
            share=0.3,
            align_weight=0.3,
            exit_head="linear",
        ),
        Variant(
            "exits",
            "The encoder stays as it is; its fitted exits alone are trained, taught by its scores.",
            whole=False,
            shallow=True,
            prefixes="many",
            full_dim=True,
            documents="last",
            align="score",
            teacher="whole",
            squares=False,
            weights="uniform",
            average=True,
            exit_head="fitted",
            freeze=True,
        ),
    )
}
