"""`m2dr train`: a backbone, a corpus and a recipe become a model whose cuts retrieve."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from pathlib import Path

from m2dr.errors import Interrupted, UserError
from m2dr.model import checkpoint
from m2dr.model.devices import choose_training_device, set_dropout, trains_in_bf16
from m2dr.model.places import CHECKPOINTS
from m2dr.records.card import ModelCard
from m2dr.records.texts import Group
from m2dr.settings import TrainSettings
from m2dr.text.collection import Dataset
from m2dr.text.groups import Groups
from m2dr.train.trainer import Batch, Examples, Plan, Trainer, last_whole_checkpoint
from m2dr.verbs.batches import make_batch
from m2dr.verbs.corpora import open_corpus
from m2dr.verbs.dev import DevSet
from m2dr.verbs.progress import Advance, is_first, progress, say
from m2dr.verbs.recipe import recipe_of
from m2dr.verbs.workplace import LOGS, clear, enough_space, open_workplace


@dataclass(frozen=True)
class TrainReport:
    """What a training did."""

    folder: Path
    card: ModelCard
    steps: int
    first_loss: float  # nats per query, summed over terms; the mean of the first log
    last_loss: float
    quality: float | None  # of the kept checkpoint on the dev split: mean nDCG@10 over its cuts
    seconds: float


def train(
    settings: TrainSettings, folder: Path, resume: bool = False, overwrite: bool = False
) -> TrainReport:
    """Train as `settings` say, and write the model folder.

    Raises:
        UserError: anything a person can fix, before the first step where it can be known.
        Interrupted: Ctrl-C; what was trained until the last checkpoint is in the folder.
    """
    begun = time.monotonic()
    recipe, device = recipe_of(settings), choose_training_device(settings.device)
    dataset = open_corpus(settings.corpus)
    groups = _groups(dataset, settings)
    dev = _dev(dataset, settings)
    encoder, tokenizer = checkpoint.load(settings.backbone, recipe.card.layers, device)
    encoder.card = recipe.card
    set_dropout(encoder, settings.dropout)
    if is_first():
        if not resume:
            enough_space(folder, sum(p.numel() for p in encoder.parameters()))
        open_workplace(folder, settings, resume, overwrite)

    bf16 = trains_in_bf16(settings.dtype, device)
    plan = _plan(settings, len(groups), folder, bf16, device.type == "cpu", dev is not None)
    kind = f"{device.type} in {'bf16' if bf16 else 'fp32'}"
    say(f"Training {recipe.variant.name} on {dataset.name}: {plan.steps} steps on {kind}")
    say(f"  {len(groups)} queries, {plan.batch_queries} per step, into {folder}")

    def example(epoch: int, place: int) -> Group:
        groups.set_epoch(epoch)
        return groups[place]

    def batch(chosen: Sequence[Group]) -> Batch:
        return make_batch(recipe.card, tokenizer, chosen, groups.known_positives)

    examples = Examples(len(groups), example, plan.examples * _processes(), settings.seed)
    quality = (lambda: dev.quality(encoder, tokenizer)) if dev else None
    with progress("Training", plan.steps, "steps") as advance:
        trainer = Trainer(
            encoder, recipe.objective, plan, examples, batch, quality, _watch(advance)
        )
        _run(trainer, folder, resume, advance)
    card = recipe.card
    trainer.accelerator.wait_for_everyone()
    if is_first():
        card = checkpoint.save(encoder.eval(), tokenizer, card, folder)
        clear(folder)
    trainer.accelerator.wait_for_everyone()
    return _report(trainer, folder, card, plan.steps, time.monotonic() - begun)


def _groups(dataset: Dataset, settings: TrainSettings) -> Groups:
    source = settings.negative_source
    if source == "auto":
        source = "given" if dataset.negatives(settings.split) else "random"
    return Groups(dataset, settings.split, settings.negatives, source, settings.seed)


def _dev(dataset: Dataset, settings: TrainSettings) -> DevSet | None:
    if settings.evaluate_steps == 0:
        return None
    if settings.dev not in dataset.splits or settings.dev == settings.split:
        say(f"{dataset.name} has no split {settings.dev!r}: the last checkpoint is kept.")
        return None
    return DevSet.of(dataset, settings)


def _plan(
    settings: TrainSettings, groups: int, folder: Path, bf16: bool, cpu: bool, evaluate: bool
) -> Plan:
    per_step = settings.batch_queries * settings.accumulate * _processes()
    steps = ceil(settings.epochs * groups / per_step) if settings.epochs else settings.steps
    return Plan(
        folder=folder / CHECKPOINTS,
        logs=folder / LOGS,
        steps=steps,
        batch_queries=settings.batch_queries,
        accumulate=settings.accumulate,
        learning_rate=settings.learning_rate,
        schedule=settings.schedule,
        warmup=settings.warmup,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        seed=settings.seed,
        bf16=bf16,
        cpu=cpu,
        log_steps=settings.log_steps,
        save_steps=settings.save_steps,
        evaluate_steps=min(settings.evaluate_steps, steps) if evaluate else 0,
    )


def _run(trainer: Trainer, folder: Path, resume: bool, advance: Advance) -> None:
    """Train to the end, from the last whole checkpoint when one is to be resumed."""
    found = last_whole_checkpoint(folder / CHECKPOINTS) if resume else None
    if resume:
        step = int(found.name.split("-")[1]) if found else 0
        advance(step)
        say(f"Resuming after step {step}")
    try:
        trainer.train(resume_from_checkpoint=str(found) if found else None)
    except KeyboardInterrupt:
        raise Interrupted(
            f"Training stopped at step {trainer.state.global_step} of {trainer.state.max_steps}; "
            f"go on with: m2dr train --resume --out {folder}"
        ) from None


def _watch(advance: Advance) -> Callable[[int, Mapping[str, float]], None]:
    """Advance the bar, and stop a training whose loss is no number."""

    def on_step(step: int, logs: Mapping[str, float]) -> None:
        advance(1)
        if not isfinite(logs.get("loss", 0.0)):
            raise UserError(
                f"The loss is not a number by step {step}; lower learning_rate, or raise "
                "temperature, and begin again with --overwrite."
            )

    return on_step


def _report(
    trainer: Trainer, folder: Path, card: ModelCard, steps: int, seconds: float
) -> TrainReport:
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    quality = trainer.state.best_metric
    return TrainReport(folder, card, steps, losses[0], losses[-1], quality, seconds)


def _processes() -> int:
    """How many processes torchrun or accelerate started; each takes batches of its own."""
    return int(os.environ.get("WORLD_SIZE", "1"))
