"""What every training has: its length, its optimiser, its machine."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from m2dr.errors import UserError
from m2dr.records.cut import Cut


@dataclass(frozen=True)
class RunSettings:
    """How long and how fast a model is trained, on what, and what is kept meanwhile."""

    steps: int = 60  # optimiser steps; a first look, minutes on two cores
    epochs: float = 0.0  # passes over what is read; above 0 it takes the place of steps
    accumulate: int = 1  # batches per step; each has only its own in-batch negatives
    learning_rate: float = 1e-4
    head_learning_rate: float = 1e-3  # of what begins untrained: heads, projectors, learned weights
    schedule: Literal["linear", "cosine"] = "linear"
    warmup: float = 0.1  # share of the steps
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    dropout: float | None = None  # None: the backbone's own
    seed: int = 13
    device: str = "auto"
    dtype: Literal["auto", "fp32", "bf16"] = "auto"  # bf16: autocast, weights stay fp32
    log_steps: int = 10
    save_steps: int = 25


POSITIVE = ("accumulate", "learning_rate", "head_learning_rate", "log_steps", "save_steps")
NOT_NEGATIVE = ("epochs", "seed", "weight_decay", "max_grad_norm")


def wrong_run(
    settings: RunSettings,
    positive: Iterable[str] = (),
    not_negative: Iterable[str] = (),
    shares: Iterable[str] = (),
) -> list[str]:
    """What is wrong with a run although every value alone is of the right kind.

    Args:
        settings: of the run.
        positive: more fields that must be above 0.
        not_negative: more that cannot be below 0; None is fine.
        shares: more that are at least 0 and below 1; None is fine.
    """

    def value(name: str) -> float:
        found = getattr(settings, name)
        return 0.0 if found is None else float(found)

    found = [f"{name} must be above 0" for name in (*POSITIVE, *positive) if value(name) <= 0]
    found += [f"{n} cannot be below 0" for n in (*NOT_NEGATIVE, *not_negative) if value(n) < 0]
    for name in ("dropout", *shares):
        if not 0 <= value(name) < 1:
            found.append(f"{name} is a share, from 0 to below 1")
    if not 0 <= settings.warmup <= 1:
        found.append("warmup is a share of the steps, from 0 to 1")
    if settings.steps <= 0 and settings.epochs <= 0:
        found.append("steps or epochs must be above 0")
    if settings.epochs > 0 and settings.steps != RunSettings.steps:
        found.append(
            f"steps = {settings.steps} changes nothing while epochs = {settings.epochs:g}; leave "
            "one of them out"
        )
    if settings.seed >= 2**32:
        found.append("seed must be below 4294967296")
    return found


def unreadable_cuts(words: Sequence[str]) -> list[str]:
    """What is wrong with a list of cuts such as L2D32."""
    try:
        cuts = [Cut.parse(word) for word in words]
    except UserError as error:
        return [f"checkpoints: {str(error).rstrip('.')}"]
    if any(cut.layer < 1 for cut in cuts):
        return ["checkpoints count layers from 1"]
    grows = all(a.layer < b.layer and a.dim <= b.dim for a, b in pairwise(cuts))
    return [] if grows else ["checkpoints go from small to whole, layer by layer"]
