"""The settings of `m2dr train`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from m2dr.errors import UserError, nearest
from m2dr.records.card import Attention, Pooling, Similarity
from m2dr.records.cut import Cut
from m2dr.records.variant import (
    CHOICES,
    VARIANTS,
    Alignment,
    Compression,
    DocumentLayer,
    ExitHead,
    Loss,
    Prefixes,
    Teacher,
    Variant,
    Weights,
)
from m2dr.settings.reading import read_settings


@dataclass(frozen=True)
class TrainSettings:
    """One training run. Every number that changes a result is here, none in the code.

    A field that is None follows the variant (the recipe's choices) or the backbone (how its
    vectors are pooled and compared).
    """

    variant: str = "full-dim"
    corpus: str = "pydocs"  # a name that `m2dr index corpus --corpus` knows too
    split: str = "train"
    dev: str = "dev"  # split that picks the best checkpoint, where the corpus has it
    backbone: str = "minilm"  # Hugging Face id or folder; minilm is built in

    # The recipe: each overrules one field of the variant's row, as m2dr/records/variant.py has it.
    whole: bool | None = None
    shallow: bool | None = None
    prefixes: Prefixes | None = None
    full_dim: bool | None = None
    staircase: bool | None = None
    sampled: bool | None = None
    documents: DocumentLayer | None = None
    align: Alignment | None = None
    teacher: Teacher | None = None
    squares: bool | None = None
    compress: Compression | None = None
    weights: Weights | None = None
    average: bool | None = None
    share: float | None = None
    align_weight: float | None = None
    alpha: float | None = None
    sia: bool | None = None
    pic: bool | None = None
    full_checkpoints: bool | None = None
    exit_head: ExitHead | None = None
    layers: tuple[int, ...] = ()  # shallow layers to train; empty: all. Of `separate`: the ones
    dims: tuple[int, ...] = ()  # prefixes to train; empty: the variant's own
    checkpoints: tuple[str, ...] = ()  # cuts of a staircase or a chain, as L2D32; empty: usual ones
    loss: Loss | None = None  # None: contrastive for documents, angle for scored sentences
    loss_weights: tuple[float, ...] = (1.0, 1.0, 1.0)  # of angle: by cosine, in the batch, by angle
    relations_temperature: float = 1.0  # of MIPIC's token relations, which are products over √H
    chain_temperature: float = 0.05  # of MIPIC's chain, which compares cosines
    faithful: bool = False  # as the paper's public code computes it, where that differs

    # What a text becomes.
    attention: Attention | None = None  # of a decoder; None: causal, as it was made
    pooling: Pooling | None = None
    similarity: Similarity | None = None
    temperature: float | None = None  # divides scores; None: 1 for dot, .05 for cosine
    query_prefix: str | None = None
    document_prefix: str | None = None
    query_length: int = 64  # tokens, special ones included
    document_length: int = 128  # the same

    # The run.
    steps: int = 60  # optimiser steps; a first look, minutes on two cores
    epochs: float = 0.0  # passes over the queries; above 0 it overrules steps
    batch_queries: int = 32  # per step and process
    negatives: int = 0  # per query, beside the other documents of the batch
    negative_source: Literal["auto", "given", "random"] = "auto"  # auto: given where there are any
    accumulate: int = 1  # batches per step; each has only its own in-batch negatives
    gradient_cache: int = 0  # tokens held at once, so that a large batch fits; 0: all of them
    gradient_checkpointing: bool = False  # keep no activations inside blocks; a second pass each
    lora_rank: int = 0  # above 0: train small matrices beside the blocks' own, merged at the end
    lora_alpha: int = 32
    lora_dropout: float = 0.1
    learning_rate: float = 1e-4
    head_learning_rate: float = 1e-3  # of exit heads, projectors and learned weights
    schedule: Literal["linear", "cosine"] = "linear"
    warmup: float = 0.1  # share of the steps
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    dropout: float | None = None  # None: the backbone's own
    seed: int = 13
    device: str = "auto"
    dtype: Literal["auto", "fp32", "bf16"] = "auto"  # bf16: autocast, weights stay fp32

    # What is looked at and kept.
    log_steps: int = 10
    save_steps: int = 25
    evaluate_steps: int = 30  # 0: never
    dev_queries: int = 100  # at most
    dev_documents: int = 500  # at most, those that answer the dev queries first

    def recipe(self) -> Variant:
        """The variant's row with the fields that these settings overrule."""
        chosen = {name: getattr(self, name) for name in CHOICES}
        given = {name: value for name, value in chosen.items() if value is not None}
        return replace(VARIANTS[self.variant], **given)


POSITIVE = (
    "batch_queries",
    "accumulate",
    "learning_rate",
    "head_learning_rate",
    "relations_temperature",
    "chain_temperature",
    "lora_alpha",
    "query_length",
    "document_length",
    "log_steps",
    "save_steps",
    "dev_queries",
    "dev_documents",
)
NOT_NEGATIVE = (
    "epochs",
    "negatives",
    "evaluate_steps",
    "seed",
    "weight_decay",
    "max_grad_norm",
    "gradient_cache",
    "lora_rank",
    "share",
    "align_weight",
)


def read_train_settings(
    path: Path | None, words: Sequence[str] = (), options: Mapping[str, Any] | None = None
) -> TrainSettings:
    """Settings of a training; arguments and errors as `read_settings`."""
    return read_settings(TrainSettings, contradictions, path, words, options)


def contradictions(settings: TrainSettings) -> list[str]:
    """What is wrong although every value alone is of the right kind."""
    found = [f"{name} must be above 0" for name in POSITIVE if getattr(settings, name) <= 0]
    found += [f"{name} cannot be below 0" for name in NOT_NEGATIVE if _below_0(settings, name)]
    if settings.variant not in VARIANTS:
        found.append(
            f"unknown variant {settings.variant!r} ({nearest(settings.variant, VARIANTS)})"
        )
    if settings.steps <= 0 and settings.epochs <= 0:
        found.append("steps or epochs must be above 0")
    if min((*settings.layers, *settings.dims, 1)) < 1:
        found.append("layers and dims count from 1")
    if settings.temperature is not None and settings.temperature <= 0:
        found.append("temperature must be above 0")
    if settings.seed >= 2**32:
        found.append("seed must be below 4294967296")
    if len(settings.loss_weights) != 3 or min(settings.loss_weights) < 0:
        found.append("loss_weights are three numbers from 0: by cosine, in the batch, by angle")
    return found + _wrong_shares(settings) + unreadable_cuts(settings.checkpoints)


def _below_0(settings: TrainSettings, name: str) -> bool:
    value = getattr(settings, name)
    return value is not None and value < 0


def _wrong_shares(settings: TrainSettings) -> list[str]:
    found = []
    if not 0 <= settings.warmup <= 1:
        found.append("warmup is a share of the steps, from 0 to 1")
    for name in ("dropout", "lora_dropout"):
        if (value := getattr(settings, name)) is not None and not 0 <= value < 1:
            found.append(f"{name} is a share, from 0 to below 1")
    if settings.alpha is not None and not 0 <= settings.alpha <= 1:
        found.append("alpha is a share, from 0 to 1")
    return found


def unreadable_cuts(words: Sequence[str]) -> list[str]:
    """What is wrong with a list of cuts such as L2D32."""
    try:
        cuts = [Cut.parse(word) for word in words]
    except UserError as error:
        return [f"checkpoints: {str(error).rstrip('.')}"]
    grows = all(a.layer < b.layer and a.dim <= b.dim for a, b in pairwise(cuts))
    return [] if grows else ["checkpoints go from small to whole, layer by layer"]
