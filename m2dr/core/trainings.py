"""Settings of `m2dr train`, `m2dr pretrain` and `m2dr fit`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

from m2dr.core.errors import UserError, nearest
from m2dr.core.option import option
from m2dr.core.reading import Verbatim, read_settings
from m2dr.core.records import Attention, Cut, FitInputs, Pooling, Rotation, Similarity
from m2dr.core.variants import (
    CHOICES,
    FAITHFUL,
    VARIANTS,
    Candidates,
    Distill,
    DocumentLayer,
    Loss,
    Variant,
)

Class = TypeVar("Class")
LARGEST_SEED = 2**32 - 1
LARGEST_IDENTITY = 8192  # the moments of a fit are this many numbers squared, of 8 bytes each
RIDGE_RANGE = (
    1e-10,
    1e10,
)  # float64 does not tell a smaller ridge from 0, nor a larger one from no fit

REPORTERS = ("tensorboard", "wandb", "mlflow", "trackio")
RUN_POSITIVE = ("accumulate", "learning_rate", "head_learning_rate", "log_steps", "save_steps")
RUN_NOT_NEGATIVE = ("epochs", "seed", "weight_decay", "max_grad_norm")
TRAIN_POSITIVE = (
    "batch_queries",
    "temperature",
    "align_temperature",
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
TRAIN_NOT_NEGATIVE = (
    "negatives",
    "evaluate_steps",
    "gradient_cache",
    "lora_rank",
    "share",
    "align_weight",
    "contrastive_weight",
)


def _overruling(
    row: type, names: Sequence[str], after: str
) -> Callable[[type[Class]], type[Class]]:
    """Return a decorator that gives settings the fields of a row, so that they are written once.

    Each field keeps its type and description. Its default is None, which leaves it to the row.

    Args:
        row: the dataclass that declares them.
        names: of its fields.
        after: the setting behind which they stand, in files too.
    """
    hints = get_type_hints(row)
    own = {one.name: one for one in fields(row)}

    def add(settings: type[Class]) -> type[Class]:
        known = list(settings.__annotations__.items())
        place = [name for name, _ in known].index(after) + 1
        added = [(name, hints[name] | None) for name in names]
        settings.__annotations__ = dict([*known[:place], *added, *known[place:]])
        for name in names:
            setattr(settings, name, field(default=None, metadata=own[name].metadata))
        return settings

    return add


@dataclass(frozen=True)
class RunSettings:
    """How long and how fast a model is trained, and what is kept meanwhile."""

    steps: int = option(60, "Optimiser steps; the default is a first look.", least=1)
    epochs: float = option(0.0, "Passes over the training data; above 0 in place of steps.")
    accumulate: int = option(1, "Batches per step; a batch has in-batch negatives of its own.")
    learning_rate: float = option(1e-4, "Peak learning rate.")
    head_learning_rate: float = option(
        1e-3, "Peak learning rate of what begins untrained: exit heads, projectors, weights."
    )
    schedule: Literal["linear", "cosine"] = option("linear", "Decay of the learning rate.")
    warmup: float = option(0.1, "Share of the steps in which the learning rate rises.")
    weight_decay: float = option(0.01, "Weight decay of AdamW; norms and biases have none.")
    max_grad_norm: float = option(1.0, "Norm to which gradients are clipped.")
    dropout: float | None = option(None, "Dropout of the encoder; the backbone's own by default.")
    seed: int = option(13, "Same seed, same model.")
    device: str = option("auto", "auto, cpu, cuda or cuda:N.")
    dtype: Literal["auto", "fp32", "bf16"] = option(
        "auto", "Number format of the layers; with bf16, by autocast, weights stay fp32."
    )
    log_steps: int = option(10, "Steps between two logs of the loss.")
    save_steps: int = option(25, "Steps between two checkpoints.")
    report_to: str = option(
        "tensorboard",
        f"Where losses and dev measures are logged: {', '.join(REPORTERS)}, several joined by "
        "commas, or none.",
    )

    @property
    def reporters(self) -> tuple[str, ...]:
        """The libraries of `report_to`."""
        names = dict.fromkeys(name.strip() for name in self.report_to.split(","))
        return tuple(name for name in names if name != "none")


@dataclass(frozen=True)
@_overruling(Variant, CHOICES, after="revision")
class TrainSettings(RunSettings):
    """One training: the fields below, those of `Variant`, and those of `RunSettings`.

    A field of `Variant` that is None follows the variant's row. Other fields that are None follow
    the backbone or the corpus. Every number that changes a result is a setting.
    """

    variant: str = option("full-dim", f"The recipe: {', '.join(VARIANTS)}.")
    corpus: str = option("pydocs", "What to train on; as for `m2dr index corpus`.")
    split: str = option("train", "Split to train on.")
    dev: str = option("dev", "Split that picks the best checkpoint, where the corpus has it.")
    backbone: str = option("minilm", "Hugging Face id or folder; minilm is built in.")
    revision: str = option("", "Branch, tag or commit of an id; its main branch by default.")
    # Here stand the fields of Variant, m2dr/core/variants.py.
    refit: bool | None = option(
        None, "Fit exits for every layer after the last step; by default of variant plain alone."
    )
    layers: tuple[int, ...] = option(
        (),
        "Shallow layers to train; all by default. Of variant separate, layers to cut to.",
        "--layers",
        "--layer",
    )
    dims: tuple[int, ...] = option(
        (), "Prefixes to train; those of the variant by default.", "--dims", "--dim", least=1
    )
    checkpoints: tuple[str, ...] = option(
        (), "Cuts of a staircase or of MIPIC's chain, such as L2D32; spread evenly by default."
    )
    loss: Loss | None = option(
        None, "Base loss; contrastive for documents, angle for scored pairs, simcse for sentences."
    )
    loss_weights: tuple[float, ...] = option(
        (1.0, 1.0, 1.0), "Weights of the parts of loss angle: by cosine, in the batch, by angle."
    )
    candidates: Candidates | None = option(
        None,
        "Candidates of the in-batch part of loss angle: the second sentences, or all texts of the "
        "batch; second by default, all with faithful.",
    )
    relations_temperature: float = option(
        1.0,
        "Temperature of MIPIC's token relations, which are products over the root of the width.",
    )
    chain_temperature: float = option(0.05, "Temperature of MIPIC's chain, which compares cosines.")
    faithful: bool = option(False, "Take the recipe as its public code computes it.")

    distill: Distill = option("none", "Loss on a teacher's scores, at every cut that retrieves.")
    teacher_scores: str = option("", "File of the teacher's scores; the corpus by default.")
    distill_weight: float = option(1.0, "Weight of the loss on the teacher's scores.")
    contrastive_weight: float = option(1.0, "Weight of the base loss beside it; may be 0.")
    distill_temperature: float = option(1.0, "Divides the teacher's scores.")

    attention: Attention | None = option(None, "Attention of a decoder; causal by default.")
    pooling: Pooling | None = option(None, "Pooling; the backbone's by default.")
    similarity: Similarity | None = option(None, "Similarity; the backbone's by default.")
    temperature: float | None = option(
        None, "Divides the scores; 1 for dot and 0.05 for cosine by default."
    )
    query_prefix: Verbatim | None = option(None, "Prompt of a query; the backbone's by default.")
    document_prefix: Verbatim | None = option(
        None, "Prompt of a document; the backbone's by default."
    )
    query_length: int = option(64, "Tokens of a query, special ones included.")
    document_length: int = option(128, "Tokens of a document, special ones included.")

    batch_queries: int = option(
        32, "Queries per step and process.", "--batch-size", old=("--batch-queries",), least=1
    )
    negatives: int = option(0, "Negatives per query, beside the other documents of the batch.")
    negative_source: Literal["auto", "given", "random"] = option(
        "auto", "Negatives of the corpus, or random documents; auto: those of the corpus if any."
    )
    gradient_cache: int = option(
        0, "Tokens in memory at a time, so that a large batch fits; 0: the whole batch."
    )
    gradient_checkpointing: bool = option(
        False, "Compute activations inside layers twice instead of keeping them."
    )
    lora_rank: int = option(0, "Rank of LoRA matrices, merged at the end; 0: train all weights.")
    lora_alpha: int = option(32, "Scale of LoRA.")
    lora_dropout: float = option(0.1, "Dropout of LoRA.")
    evaluate_steps: int = option(30, "Steps between two evaluations on dev; 0: never.")
    dev_queries: int = option(100, "Queries of dev, at most.")
    dev_documents: int = option(500, "Documents of dev, at most; relevant ones come first.")

    @property
    def refits(self) -> bool:
        """Whether exits are fitted after the last step."""
        return self.variant == "plain" if self.refit is None else self.refit

    @property
    def row(self) -> Variant:
        """The variant's row; that of its public code where `faithful`."""
        published = FAITHFUL.get(self.variant, {}) if self.faithful else {}
        return replace(VARIANTS[self.variant], **published)

    @property
    def overrides(self) -> dict[str, Any]:
        """The fields of `Variant` that are given."""
        chosen = {name: getattr(self, name) for name in CHOICES}
        return {name: value for name, value in chosen.items() if value is not None}

    def recipe(self) -> Variant:
        """Return the row with the fields that these settings overrule."""
        return replace(self.row, **self.overrides)


@dataclass(frozen=True)
class PretrainSettings(RunSettings):
    """One pre-training. Every number that changes a result is a setting."""

    corpus: str = option(
        "pydocs", "Documents to read: as for `m2dr train`, or a .txt file of one text per line."
    )
    backbone: str = option("minilm", "Hugging Face id or folder; minilm is built in.")
    revision: str = option("", "Branch, tag or commit of an id; its main branch by default.")
    checkpoints: tuple[str, ...] = option(
        (), "Cuts to train below the full model, such as L2D32; spread evenly by default."
    )
    encoder_mask: float = option(0.2, "Share of the tokens that are masked for the encoder.")
    decoder_mask: float = option(
        0.4, "Share of the tokens that are masked for the decoder, which sees the embedding too."
    )
    length: int = option(128, "Tokens of a text, special ones included.")
    batch_texts: int = option(
        32, "Texts per step and process.", "--batch-size", old=("--batch-texts",), least=1
    )


@dataclass(frozen=True)
class FitSettings:
    """One fit of exits. Every number that changes a result is a setting."""

    backbone: str = option("minilm", "Hugging Face id or folder, of a trained model too.")
    corpus: str = option(
        "pydocs", "What to read, as for `m2dr train`; .txt files too, and several joined by commas."
    )
    texts: int = option(0, "Texts to read; 0: until more texts make the exits no better.")
    length: int = option(64, "Tokens of a text that are read, at most.")
    rotation: Rotation = option("learned", "Rotation of the embedding, for its prefixes.")
    inputs: FitInputs = option("tokens+layer", "What an exit reads.")
    documents: DocumentLayer = option("last", "Layer of the documents for a shallow query.")
    identity: int = option(0, "Random signs per token, which tell tokens apart.")
    ridge: float = option(
        0.0, "Ridge, relative to the mean of the diagonal; 0: chosen on held-out texts."
    )
    seed: int = option(13, "Same seed, same model.")
    device: str = option("auto", "auto, cpu, cuda or cuda:N.")
    dtype: Literal["auto", "fp32", "bf16"] = option("auto", "Number format of the layers.")
    revision: str = option("", "Branch, tag or commit of an id; its main branch by default.")


def read_train_settings(
    path: Path | None, words: Sequence[str] = (), options: Mapping[str, Any] | None = None
) -> TrainSettings:
    """Read the settings of a training; arguments and errors as `read_settings`."""
    return read_settings(TrainSettings, _train_problems, path, words, options)


def read_pretrain_settings(
    path: Path | None, words: Sequence[str] = (), options: Mapping[str, Any] | None = None
) -> PretrainSettings:
    """Read the settings of a pre-training; arguments and errors as `read_settings`."""
    return read_settings(PretrainSettings, _pretrain_problems, path, words, options)


def read_fit_settings(
    path: Path | None, words: Sequence[str] = (), options: Mapping[str, Any] | None = None
) -> FitSettings:
    """Read the settings of a fit; arguments and errors as `read_settings`."""
    return read_settings(FitSettings, _fit_problems, path, words, options)


def _train_problems(settings: TrainSettings) -> list[str]:
    """Say what is wrong although every value alone is of the right type."""
    found = _run_problems(settings, TRAIN_POSITIVE, TRAIN_NOT_NEGATIVE, shares=("lora_dropout",))
    if settings.variant not in VARIANTS:
        found.append(
            f"unknown variant {settings.variant!r} ({nearest(settings.variant, VARIANTS)})"
        )
    if min((*settings.layers, 0)) < 0 or min((*settings.dims, 1)) < 1:
        found.append("layers that a training asks for count from 0, the embeddings; dims from 1")
    if not 0 <= settings.overrides.get("alpha", 0) <= 1:
        found.append("alpha is a share, from 0 to 1")
    if len(settings.loss_weights) != 3 or min(settings.loss_weights) < 0:
        found.append("loss_weights are three numbers from 0: by cosine, in the batch, by angle")
    return [
        *found,
        *_distillation_problems(settings),
        *_idle(settings),
        *_checkpoint_problems(settings.checkpoints),
    ]


def _pretrain_problems(settings: PretrainSettings) -> list[str]:
    """Say what is wrong although every value alone is of the right type."""
    found = _run_problems(settings, positive=("batch_texts",))
    for name in ("encoder_mask", "decoder_mask"):
        if not 0 < getattr(settings, name) < 1:
            found.append(f"{name} is a share, between 0 and 1")
    if settings.length < 8:
        found.append("length must be 8 or more")
    return found + _checkpoint_problems(settings.checkpoints)


def _fit_problems(settings: FitSettings) -> list[str]:
    """Say what is wrong although every value alone is of the right type."""
    numbers = ("texts", "identity", "ridge", "seed")
    found = [f"{name} cannot be below 0" for name in numbers if getattr(settings, name) < 0]
    if settings.length < 1:
        found.append("length is a number of tokens, from 1")
    if settings.identity > LARGEST_IDENTITY:
        found.append(f"identity is at most {LARGEST_IDENTITY}")
    if settings.ridge > 0 and not RIDGE_RANGE[0] <= settings.ridge <= RIDGE_RANGE[1]:
        found.append(f"ridge is 0, or from {RIDGE_RANGE[0]:g} to {RIDGE_RANGE[1]:g}")
    return found + _seed_problems(settings.seed)


def _run_problems(
    settings: RunSettings,
    positive: Iterable[str] = (),
    not_negative: Iterable[str] = (),
    shares: Iterable[str] = (),
) -> list[str]:
    """Say what is wrong with the numbers of a run; None is never wrong.

    Args:
        settings: of the run.
        positive: fields that must be above 0, beside those of every run.
        not_negative: fields that cannot be below 0, beside those of every run.
        shares: fields that are at least 0 and below 1, beside dropout.
    """

    def wrong(names: Iterable[str], fine: Callable[[float], bool]) -> Iterable[str]:
        values = {name: getattr(settings, name) for name in names}
        return (name for name, value in values.items() if value is not None and not fine(value))

    found = [f"{n} must be above 0" for n in wrong([*RUN_POSITIVE, *positive], lambda x: x > 0)]
    found += [
        f"{n} cannot be below 0"
        for n in wrong([*RUN_NOT_NEGATIVE, *not_negative], lambda x: x >= 0)
    ]
    found += [
        f"{n} is a share, from 0 to below 1"
        for n in wrong(["dropout", *shares], lambda x: 0 <= x < 1)
    ]
    for name in settings.reporters:
        if name not in REPORTERS:
            found.append(f"report_to has {name!r} ({nearest(name, [*REPORTERS, 'none'])})")
    if not 0 <= settings.warmup <= 1:
        found.append("warmup is a share of the steps, from 0 to 1")
    if settings.steps <= 0 and settings.epochs <= 0:
        found.append("steps or epochs must be above 0")
    if settings.epochs > 0 and settings.steps != RunSettings.steps:
        found.append(
            f"steps = {settings.steps} changes nothing while epochs = {settings.epochs:g}; leave "
            "one of them out"
        )
    return found + _seed_problems(settings.seed)


def _seed_problems(seed: int) -> list[str]:
    return [f"seed must be below {LARGEST_SEED + 1}"] if seed > LARGEST_SEED else []


def _checkpoint_problems(words: Sequence[str]) -> list[str]:
    """Say what is wrong with a list of cuts such as L2D32."""
    try:
        cuts = [Cut.parse(word) for word in words]
    except UserError as error:
        return [f"checkpoints: {str(error).rstrip('.')}"]
    if any(cut.layer < 1 for cut in cuts):
        return ["checkpoints count layers from 1"]
    grows = all(a.layer < b.layer and a.dim <= b.dim for a, b in pairwise(cuts))
    return [] if grows else ["checkpoints go from small to large, layer by layer"]


def _distillation_problems(settings: TrainSettings) -> list[str]:
    """Say which settings do not go together with a teacher's scores."""
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
    """Name the settings that were given and change nothing, whatever is trained."""
    switches = {
        "lora_rank": ("lora_alpha", "lora_dropout"),
        "negatives": ("negative_source",),
        "evaluate_steps": ("dev", "dev_queries", "dev_documents"),
    }
    return [
        f"{name} = {getattr(settings, name)} changes nothing while {switch} = 0; leave it out"
        for switch, names in switches.items()
        for name in names
        if getattr(settings, switch) == 0
        and getattr(settings, name) != getattr(TrainSettings, name)
    ]
