"""The settings of `m2dr train`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from m2dr.errors import nearest
from m2dr.records.card import Attention, Pooling, Similarity
from m2dr.records.variant import (
    CHOICES,
    VARIANTS,
    Alignment,
    Compression,
    Distill,
    DocumentLayer,
    ExitHead,
    Loss,
    Prefixes,
    Teacher,
    Variant,
    Weights,
)
from m2dr.settings.reading import Verbatim, read_settings
from m2dr.settings.run import RunSettings, unreadable_cuts, wrong_run


@dataclass(frozen=True)
class TrainSettings(RunSettings):
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
    freeze: bool | None = None
    refit: bool | None = None  # exits for every layer, after the last step; None: if plain
    layers: tuple[int, ...] = ()  # shallow layers to train; empty: all. Of `separate`: the ones
    dims: tuple[int, ...] = ()  # prefixes to train; empty: the variant's own
    checkpoints: tuple[str, ...] = ()  # cuts of a staircase or a chain, as L2D32; empty: usual ones
    loss: Loss | None = None  # None: contrastive for documents, angle for scored sentences
    loss_weights: tuple[float, ...] = (1.0, 1.0, 1.0)  # of angle: by cosine, in the batch, by angle
    relations_temperature: float = 1.0  # of MIPIC's token relations, which are products over √H
    chain_temperature: float = 0.05  # of MIPIC's chain, which compares cosines
    faithful: bool = False  # as the paper's public code computes it, where that differs

    # The scores of a teacher, learned at every cut that retrieves.
    distill: Distill = "none"
    teacher_scores: str = ""  # a file of them; empty: they stand in the corpus beside the texts
    distill_weight: float = 1.0  # beside contrastive_weight
    contrastive_weight: float = 1.0  # of the base loss beside it; 0: the teacher's scores alone
    distill_temperature: float = 1.0  # divides the teacher's scores, as temperature the model's

    # What a text becomes.
    attention: Attention | None = None  # of a decoder; None: causal, as it was made
    pooling: Pooling | None = None
    similarity: Similarity | None = None
    temperature: float | None = None  # divides scores; None: 1 for dot, .05 for cosine
    query_prefix: Verbatim | None = None
    document_prefix: Verbatim | None = None
    query_length: int = 64  # tokens, special ones included
    document_length: int = 128  # the same

    # Beside what every run has.
    batch_queries: int = 32  # per step and process
    negatives: int = 0  # per query, beside the other documents of the batch
    negative_source: Literal["auto", "given", "random"] = "auto"  # auto: given where there are any
    gradient_cache: int = 0  # tokens held at once, so that a large batch fits; 0: all of them
    gradient_checkpointing: bool = False  # keep no activations inside blocks; a second pass each
    lora_rank: int = 0  # above 0: train small matrices beside the blocks' own, merged at the end
    lora_alpha: int = 32
    lora_dropout: float = 0.1
    evaluate_steps: int = 30  # 0: never
    dev_queries: int = 100  # at most
    dev_documents: int = 500  # at most, those that answer the dev queries first

    @property
    def refits(self) -> bool:
        """Whether exits are fitted after the last step."""
        return self.variant == "plain" if self.refit is None else self.refit

    def recipe(self) -> Variant:
        """The variant's row with the fields that these settings overrule."""
        chosen = {name: getattr(self, name) for name in CHOICES}
        given = {name: value for name, value in chosen.items() if value is not None}
        return replace(VARIANTS[self.variant], **given)


POSITIVE = (
    "batch_queries",
    "relations_temperature",
    "chain_temperature",
    "distill_weight",
    "distill_temperature",
    "lora_alpha",
    "query_length",
    "document_length",
    "dev_queries",
    "dev_documents",
)
NOT_NEGATIVE = (
    "negatives",
    "evaluate_steps",
    "gradient_cache",
    "lora_rank",
    "share",
    "align_weight",
    "contrastive_weight",
)


def read_train_settings(
    path: Path | None, words: Sequence[str] = (), options: Mapping[str, Any] | None = None
) -> TrainSettings:
    """Settings of a training; arguments and errors as `read_settings`."""
    return read_settings(TrainSettings, contradictions, path, words, options)


def contradictions(settings: TrainSettings) -> list[str]:
    """What is wrong although every value alone is of the right kind."""
    found = wrong_run(settings, POSITIVE, NOT_NEGATIVE, shares=("lora_dropout",))
    if settings.variant not in VARIANTS:
        found.append(
            f"unknown variant {settings.variant!r} ({nearest(settings.variant, VARIANTS)})"
        )
    if min((*settings.layers, *settings.dims, 1)) < 1:
        found.append("layers and dims that a training asks for count from 1")
    if settings.temperature is not None and settings.temperature <= 0:
        found.append("temperature must be above 0")
    if settings.alpha is not None and not 0 <= settings.alpha <= 1:
        found.append("alpha is a share, from 0 to 1")
    if len(settings.loss_weights) != 3 or min(settings.loss_weights) < 0:
        found.append("loss_weights are three numbers from 0: by cosine, in the batch, by angle")
    return found + _distilling(settings) + _idle(settings) + unreadable_cuts(settings.checkpoints)


def _distilling(settings: TrainSettings) -> list[str]:
    """What does not go together with the scores of a teacher."""
    if settings.distill == "none":
        name = settings.teacher_scores
        idle = f"teacher_scores = {name} changes nothing while distill = none; leave it out"
        return [f"{idle}, or set distill=margin-mse or kl"] if name else []
    found = []
    if settings.negatives == 0:
        found.append(
            f"distill = {settings.distill} compares a query's documents, and negatives = 0 leaves "
            "one; set negatives=1 or more"
        )
    if settings.negative_source == "random":
        found.append(
            f"distill = {settings.distill} needs scores of the negatives, and those of "
            "negative_source = random have none; leave it out"
        )
    return found


def _idle(settings: TrainSettings) -> list[str]:
    """Settings that were given and change nothing beside the others, whatever is trained."""
    switches = {
        "lora_rank": (settings.lora_rank == 0, ("lora_alpha", "lora_dropout")),
        "negatives": (settings.negatives == 0, ("negative_source",)),
        "evaluate_steps": (settings.evaluate_steps == 0, ("dev", "dev_queries", "dev_documents")),
    }
    return [
        f"{name} = {getattr(settings, name)} changes nothing while {switch} = 0; leave it out"
        for switch, (off, names) in switches.items()
        for name in names
        if off and getattr(settings, name) != getattr(TrainSettings, name)
    ]
