"""`m2dr train`: train a backbone on a corpus by a recipe."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any

from m2dr.core.errors import Interrupted, UserError, counted
from m2dr.core.files import read_training_log
from m2dr.core.progress import is_main_process, process_count, progress, say
from m2dr.core.records import Cut, FitRecord, ModelCard, Rotation
from m2dr.core.report import Report, timed
from m2dr.core.settings import PretrainSettings, TrainSettings
from m2dr.evaluation.grid import Grid, text_tables
from m2dr.maps.fit import drop_exits, fit_maps
from m2dr.model import checkpoint
from m2dr.model.checkpoint import Model, open_model
from m2dr.model.devices import choose_training_device, drops_out, set_dropout, trains_in_bf16
from m2dr.model.embed import TextEncoder
from m2dr.model.encoder import DualEncoder
from m2dr.model.hub import CARD, CHECKPOINTS, RECORD
from m2dr.model.lora import add_lora, merge_lora
from m2dr.tasks.encoder import Encoder as Embedder
from m2dr.tasks.models import fitted_cuts
from m2dr.tasks.training import run_folder
from m2dr.tasks.training.fit import fit_texts
from m2dr.tasks.training.recipe import Recipe, explain, no_effect, recipe_of
from m2dr.tasks.training.training_data import (
    Quality,
    TrainingData,
    kind_of,
    open_training_data,
    pass_tokens,
)
from m2dr.training.module import TrainingModule
from m2dr.training.objective import ScoreLoss, loss_name, refuse_other_loss
from m2dr.training.trainer import (
    Callbacks,
    Examples,
    Plan,
    Trainer,
    last_complete_checkpoint,
    lines_of,
    stalled_at,
    step_of,
    stops_early,
)

FIT_TEXTS = 4096  # documents and training queries that a fit inside a training reads, at most
FEW_DEV = 50  # queries of dev below which a warning says that they are few
WORST = 5  # cuts below the untrained start that a warning names


def plan_of(
    settings: TrainSettings | PretrainSettings,
    count: int,
    example: Callable[[int, int], Any],
    encoder: DualEncoder,
    folder: Path,
    **more: Any,
) -> tuple[Plan, Examples[Any]]:
    """Return the plan of a training, and the examples that it reads.

    Args:
        settings: of the run.
        count: examples there are.
        example: returns that of an epoch at a place.
        encoder: what is trained; its device counts.
        folder: of the model.
        more: fields of the plan.
    """
    per_step = settings.batch_size * settings.accumulate * process_count()
    steps = ceil(settings.epochs * count / per_step) if settings.epochs else settings.steps
    plan = Plan(
        settings,
        folder / CHECKPOINTS,
        folder / run_folder.LOGS,
        steps,
        settings.batch_size,
        bf16=trains_in_bf16(settings.dtype, encoder.device),
        cpu=encoder.device.type == "cpu",
        **more,
    )
    return plan, Examples(count, example, steps * per_step, settings.seed)


@dataclass(frozen=True, repr=False)
class TrainReport(Report):
    """The result of a training, or of a pre-training, which has no quality."""

    folder: Path
    card: ModelCard
    steps: int
    first_loss: float  # nats per query or masked token; the mean of the first log
    last_loss: float
    quality: float | None  # of the kept checkpoint on the dev split: the mean over its cuts
    start: float | None  # that of the untrained start
    best_step: int  # whose weights were kept: the last one where there is no dev split
    measure: str  # what quality is a mean of
    device: str
    dtype: str
    then: str = ""  # what to do with the model

    @property
    def history(self) -> list[dict[str, Any]]:
        """The lines of log.jsonl in the folder, which docs/formats.md describes."""
        return read_training_log(self.folder)

    @cached_property
    def model(self) -> Embedder:
        """The trained encoder, all layers and dims, on the device of the training."""
        return Embedder(self.folder, device=self.device, dtype=self.dtype)

    def __str__(self) -> str:
        dev = ""
        if self.quality is not None:
            dev = f", {self.measure} {self.start:.4f} -> {self.quality:.4f} on dev"
            dev += f" at step {self.best_step}"
        return (
            f"{counted(self.steps, 'steps')} in {self.seconds:,.0f} s, loss "
            f"{self.first_loss:.3f} -> {self.last_loss:.3f}{dev}: {self.folder}{self.then}"
        )

    __repr__ = __str__


@dataclass(frozen=True)
class Prepared:
    """What a training or pre-training needs before its first step."""

    loaded: TextEncoder[DualEncoder]
    module: Any  # returns the loss of a batch
    plan: Plan
    examples: Examples[Any]
    batch: Callable[[Any], dict[str, object]]  # the module's arguments for some examples
    digests: Mapping[str, str]  # as `run_folder.begin` compares them

    @property
    def encoder(self) -> DualEncoder:
        """What is trained."""
        return self.loaded.runtime

    @property
    def beside(self) -> dict[str, str]:
        """What is recorded beside the settings, as `run_folder.begin` takes it."""
        return {**self.digests, "dtype": "bf16" if self.plan.bf16 else "fp32"}


@dataclass(frozen=True)
class Setup(Prepared):
    """What a training needs before its first step."""

    data: TrainingData
    recipe: Recipe


@timed
def train(
    settings: TrainSettings,
    folder: Path,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Callbacks = (),
    loss: ScoreLoss | None = None,
    backbone: Model | None = None,
) -> TrainReport:
    """Train as `settings` say, and write the model folder.

    Args:
        settings: of the training.
        folder: of the model.
        resume: whether to go on with a training that was interrupted.
        overwrite: whether to begin again in a folder that is in use.
        callbacks: of transformers' Trainer.
        loss: base loss, in place of that of the settings.
        backbone: that of the settings, where it is opened already.

    Raises:
        UserError: anything a person can fix, before the first step where it can be known.
        Interrupted: Ctrl-C; what was trained until the last checkpoint is in the folder.
    """
    setup = prepare(settings, folder, loss, backbone)
    encoder, plan, data = setup.encoder, setup.plan, setup.data
    if (stops_early(callbacks) or plan.early_stopping) and not plan.evaluate_steps:
        why = f"{data.name} has none" if settings.evaluate_steps else "evaluate_steps is 0"
        raise UserError(f"Early stopping needs a score on dev; {why} (dev = {settings.dev!r}).")
    if loss:
        refuse_other_loss(loss)
    beside = setup.beside | ({run_folder.LOSS: loss_name(loss)} if loss else {})
    with run_folder.open_training(folder, settings, resume, overwrite, beside):
        kind = f"{encoder.device.type} in {'bf16' if plan.bf16 else 'fp32'}"
        steps = counted(plan.steps, "steps")
        say(f"Training {setup.recipe.variant.name} on {data.name}: {steps} on {kind}")
        say(f"  {counted(data.count, data.unit)}, {plan.batch} per step, into {folder}")
        say(f"  Negatives: {data.negatives}")
        if idle := no_effect(settings, setup.recipe):
            say(f"  {idle}")
        if data.quality and data.quality.count < FEW_DEV:
            count = counted(data.quality.count, data.quality.unit)
            say(f"Warning: only {count} of dev pick the checkpoint; below {FEW_DEV} it is chance.")

        def save(kept: str) -> ModelCard:
            if settings.lora_rank:
                merge_lora(encoder)
            card = replace(_with_exits(setup, settings), kept=kept)
            return checkpoint.save(*setup.loaded, card, folder)

        return run(setup, data.quality, save, folder, resume, "Training", callbacks)


def run(
    setup: Prepared,
    quality: Quality | None,
    save: Callable[[str], ModelCard],
    folder: Path,
    resume: bool,
    what: str,
    callbacks: Callbacks = (),
) -> TrainReport:
    """Train to the end, from the last complete checkpoint if resumed, and save the model.

    Args:
        setup: of the training.
        quality: on dev, which is shown at each evaluation.
        save: writes the model, whose card is to say which weights were kept.
        folder: of the model.
        resume: whether to go on.
        what: is done, for the progress.
        callbacks: of transformers' Trainer.

    Raises:
        Interrupted: Ctrl-C, or another process was lost.
    """
    plan = setup.plan
    measure = plan.measure
    last: dict[str, float] = {}  # logged
    dev: dict[Cut, float] = {}  # the last measures
    say(f"  Log: {plan.log}")
    if "tensorboard" in plan.settings.reporters:
        say(f"  TensorBoard: tensorboard --logdir {plan.logs}")

    def on_step(_: int, logged: Mapping[str, float]) -> None:
        last.update(logged)
        advance(1)

    def detail() -> str:
        parts = [f"loss {last['loss']:.3f} at step {last['step']}"] if "loss" in last else []
        if dev:
            ends = ", ".join(f"{cut} {dev[cut]:.4f}" for cut in sorted({min(dev), max(dev)}))
            parts.append(f"{measure} {fmean(dev.values()):.4f} on dev ({ends})")
        return ", ".join(parts)

    def measured(quality: Quality) -> dict[str, float]:
        dev.update(quality.of(setup.loaded))
        title = f"Step {trainer.state.global_step}, mean {fmean(dev.values()):.4f}"
        cells = {cut: {measure: value} for cut, value in dev.items()}
        grid = Grid(title, "dev", "", quality.count, cells, unit=quality.unit)
        say(text_tables([grid], [measure]))
        return {str(cut): value for cut, value in dev.items()}

    with progress(what, plan.steps, "steps", detail) as advance:
        scored = partial(measured, quality) if quality else None
        trainer = Trainer(
            setup.module, plan, setup.examples, setup.batch, scored, on_step, callbacks
        )
        where = folder / CHECKPOINTS, process_count()
        found = last_complete_checkpoint(*where) if resume else None
        if resume:
            step = step_of(found) if found else 0
            advance(step)
            say(f"Resuming after step {step}")
        try:
            with run_folder.stops_on_sigterm(trainer.stop):
                trainer.train(resume_from_checkpoint=str(found) if found else None)
                if trainer.is_stopped and trainer.state.global_step < plan.steps:
                    raise KeyboardInterrupt
                trainer.assemble()
        except KeyboardInterrupt:
            step, written = trainer.state.global_step, last_complete_checkpoint(*where)
            after = f"--resume goes on after step {step_of(written) if written else 0}"
            raise Interrupted(f"Training stopped at step {step}; {after}.") from None
        except RuntimeError as error:
            words = ("closed by peer", "reset by peer", "gloo", "nccl", "timed out")
            if process_count() == 1 or not any(word in str(error).lower() for word in words):
                raise
            step = trainer.state.global_step
            raise Interrupted(f"A process was lost at step {step}; --resume goes on.") from error
    return _finish(setup, trainer, quality, save, folder)


def _finish(
    setup: Prepared,
    trainer: Trainer,
    quality: Quality | None,
    save: Callable[[str], ModelCard],
    folder: Path,
) -> TrainReport:
    """Save the model of a training that is at its end, and say how it went; as `run`."""
    plan, measure = setup.plan, setup.plan.measure
    trainer.accelerator.wait_for_everyone()
    lines = lines_of(trainer.state.log_history, measure)
    losses = [line["loss"] for line in lines if "loss" in line]
    # Fewer than planned where it stopped early, of which a resumed training tries one more.
    steps = stalled_at(lines, plan.early_stopping) or trainer.state.global_step
    best_step = int(trainer.state.best_global_step or steps)
    scores = {line["step"]: line for line in lines if "dev" in line}
    best, start = (scores[step]["mean"] if scores else None for step in (best_step, 0))
    kept = f"step {best_step} of {steps}"
    if quality and scores:
        kept += f": {measure} {best:.4f} on dev, {start:.4f} before the first step; mean of "
        cuts = counted(len(scores[best_step]["dev"]), "cuts")
        kept += f"{cuts}, {counted(quality.count, quality.unit)}"
    for line in _remarks(lines, steps, best_step, plan, measure):
        say(line)
    card = setup.encoder.card
    if is_main_process():
        card = save(kept)
        run_folder.clear(folder)
    trainer.accelerator.wait_for_everyone()
    own = (measure, plan.settings.device, plan.settings.dtype)
    return TrainReport(
        folder, card, steps, losses[0], losses[-1], best, start, best_step, *own, files=(folder,)
    )


def _remarks(
    lines: Sequence[Mapping[str, Any]], steps: int, best_step: int, plan: Plan, measure: str
) -> Iterator[str]:
    """Say why a training stopped early, and what of its log should be looked at."""
    patience = plan.early_stopping
    by_step = {line["step"]: line for line in lines if "dev" in line}
    if steps < plan.steps:
        why = "a callback asked for it"
        if stalled_at(lines, patience) == steps:
            since = f"{measure} {by_step[best_step]['mean']:.4f} on dev of step {best_step}"
            why = f"{counted(patience, 'evaluations')} were not better than {since}"
        kept = f"; the weights of step {best_step} are kept" if by_step else ""
        yield f"Stopped early, after step {steps} of {plan.steps}: {why}{kept}."
    losses = [line["loss"] for line in lines if "loss" in line]
    if losses and max(losses) < 1e-6:
        yield "Warning: the loss was 0 throughout, so nothing was learned."
    quarter = max(len(losses) // 4, 2)  # one log alone is of few batches
    if len(losses) >= 2 * quarter and (first := fmean(losses[:quarter])) < (
        last := fmean(losses[-quarter:])
    ):
        yield (
            f"Warning: the loss rose: its mean over the first {quarter} of {len(losses)} logs is "
            f"{first:.4f}, and over the last {quarter} {last:.4f}."
        )
    if 0 not in by_step:
        return
    start, end = by_step[0]["dev"], by_step[best_step]["dev"]
    lost = {cut: start[cut] - value for cut, value in end.items() if value < start[cut]}
    if worse := sorted(lost, key=lambda cut: -lost[cut]):
        some = ", ".join(f"{cut} {start[cut]:.4f} -> {end[cut]:.4f}" for cut in worse[:WORST])
        yield (
            f"Warning: {len(worse)} of {counted(len(end), 'cuts')} ended below the untrained start "
            f"on dev, {measure}: {some}{', …' * (len(worse) > WORST)}."
        )


def prepare(
    settings: TrainSettings,
    folder: Path,
    loss: ScoreLoss | None = None,
    backbone: Model | None = None,
) -> Setup:
    """Load and check all that a training needs; nothing is written."""
    backbone = backbone or run_folder.open_backbone(settings, folder)
    device = choose_training_device(settings.device)
    data = open_training_data(settings)
    recipe = recipe_of(settings, data.kind, backbone)
    card = replace(recipe.card, negatives=data.negatives)
    recipe = replace(recipe, card=card, setting=replace(recipe.setting, custom=loss))
    if settings.batch_size > data.count:
        given = counted(data.count, data.unit)
        raise UserError(f"batch_size = {settings.batch_size} was asked for, of {given}.")
    loaded = checkpoint.load(backbone, recipe.card.layers, device)
    encoder = loaded.runtime
    encoder.card = recipe.card
    if recipe.card.exit_head != "fitted":
        encoder.fitted = None  # of a fitted backbone: its layers will change
    elif encoder.fitted is None:
        say("Fitting exits before the first step")
        texts = fit_texts(settings.corpus, FIT_TEXTS, settings.seed, settings.split)
        fit_maps(loaded, texts, settings.seed, "learned", with_words=False)
    if recipe.card.exit_head == "linear":
        encoder.add_exit_heads([layer for layer in recipe.layers if layer < recipe.full.layer])
    frozen = recipe.variant.freeze
    set_dropout(encoder, 0.0 if frozen else settings.dropout)
    if recipe.setting.loss == "simcse" and not drops_out(encoder):
        raise UserError("loss = simcse needs dropout, and there is none; set dropout=0.1.")
    if rank := settings.lora_rank:
        add_lora(encoder, rank, settings.lora_alpha, settings.lora_dropout, settings.seed)
    if frozen:
        encoder.requires_grad_(False)
        encoder.exit_heads.requires_grad_()
        if encoder.fitted is not None:
            encoder.fitted.requires_grad_()
    if settings.gradient_checkpointing:
        encoder.checkpoint_layers(on=True)
    module = TrainingModule(encoder, recipe.objective(), cached=settings.gradient_cache > 0)
    module.to(device)
    plan, examples = plan_of(
        settings, data.count, data.example, encoder, folder,
        evaluate_steps=settings.evaluate_steps if data.quality else 0,
        all_used=_all_used(recipe, encoder),
        early_stopping=settings.early_stopping,
        measure=data.quality.measure if data.quality else "",
    )  # fmt: skip
    tokens = pass_tokens(encoder)

    def batch(chosen: Any) -> dict[str, object]:  # groups or pairs
        return data.batch(card, loaded.tokenizer, chosen, pass_tokens=tokens).tensors()

    digests = {"data_digest": data.digest, "backbone_digest": backbone.card.fingerprint}
    return Setup(loaded, module, plan, examples, batch, digests, data, recipe)


def _with_exits(setup: Setup, settings: TrainSettings) -> ModelCard:
    """Fit the exits that training does not reach, and return the card of the model with them."""
    encoder = setup.encoder.eval()
    card, frozen = setup.recipe.card, setup.recipe.variant.freeze

    def fit(rotation: Rotation) -> FitRecord:
        texts = fit_texts(settings.corpus, FIT_TEXTS, settings.seed, settings.split)
        return fit_maps(setup.loaded, texts, settings.seed, rotation)

    if settings.refits:
        # Documents are those of the last layer from now on.
        say("Fitting exits of the layers below the last; the full model stays as trained")
        drop_exits(encoder)
        return replace(card, cuts=fitted_cuts(card), documents="last", fit=fit("learned"))
    if encoder.fitted is None:
        return card
    fit("none")  # words beside the exits that were trained
    more = {cut for cut in fitted_cuts(card) if frozen or cut.layer == 0}
    return replace(card, cuts=tuple(sorted({*card.cuts, *more})))


def _all_used(recipe: Recipe, encoder: DualEncoder) -> bool:
    """Return whether every step trains every parameter: all layers and their exit heads."""
    heads = {int(layer) for layer in encoder.exit_heads}
    if encoder.fitted is not None:
        heads |= {layer for layer in encoder.fitted.layers if layer}
    return all(
        step.layers[-1] == encoder.layers and heads <= set(step.layers) for step in recipe.choices
    )


@dataclass(frozen=True)
class SeparateReport(Report):
    """The result of a training of several models."""

    trained: tuple[TrainReport, ...]  # now; those that were there already are not among them
    cuts: tuple[Cut, ...]
    folder: Path

    def __str__(self) -> str:
        return (
            f"{counted(len(self.cuts), 'models')}, {len(self.trained)} of them trained now in "
            f"{self.seconds:,.0f} s: {self.folder}"
        )


def explain_all(settings: TrainSettings) -> Report:
    """Return the terms of a training; of several models, those of the largest."""
    cuts = separate_cuts(settings)
    one = of_cut(settings, cuts[-1]) if cuts else settings
    text = explain(one, kind_of(one))
    if cuts:
        count = counted(len(cuts), "models")
        text += f"\n{count}, one for each cut; this is the largest, {cuts[-1]}."
    return Report(text=text)


def separate_cuts(settings: TrainSettings) -> tuple[Cut, ...]:
    """Return the cuts of a training of several models, from small to large; () for one model."""
    several = len(set(settings.layers)) > 1 or len(set(settings.dims)) > 1
    if not (several and settings.recipe().single_cut):
        return ()
    backbone = open_model(settings.backbone, revision=settings.revision).card
    layers, dims = settings.layers or (backbone.layers,), settings.dims or (backbone.width,)
    return tuple(sorted({backbone.check(Cut(layer, dim)) for layer in layers for dim in dims}))


def of_cut(settings: TrainSettings, cut: Cut) -> TrainSettings:
    """Return the settings of the model that is trained for one cut."""
    return replace(settings, layers=(cut.layer,), dims=(cut.dim,))


@timed
def train_separately(
    settings: TrainSettings, folder: Path, resume: bool = False, overwrite: bool = False
) -> SeparateReport:
    """Train one model per cut, each in its folder: `folder`/L2D32 and so on.

    Resuming passes over the cuts that are finished, and goes on inside the one that is not.

    Raises:
        UserError: anything a person can fix; all cuts are checked before the first is trained.
        Interrupted: Ctrl-C; finished models and the last checkpoint are in the folder.
    """
    trained = []
    backbone = run_folder.open_backbone(settings, folder)
    cuts, kind = separate_cuts(settings), kind_of(settings)
    if process_count() > 1:
        raise UserError(f"{len(cuts)} models are trained one by one; several processes train one.")
    for cut in cuts:
        recipe_of(of_cut(settings, cut), kind, backbone)
    with run_folder.held(folder):
        run_folder.begin(folder, settings, resume, overwrite, several=True)
        for place, cut in enumerate(cuts, start=1):
            own = folder / str(cut)
            resumes = (own / RECORD).exists()
            if (own / CARD).exists() and not resumes:
                say(f"{cut}: trained already ({place} of {len(cuts)})")
                continue
            say(f"{cut}: {place} of {len(cuts)}")
            trained.append(train(of_cut(settings, cut), own, resumes, backbone=backbone))
        run_folder.clear(folder)
    return SeparateReport(tuple(trained), cuts, folder, files=(folder,))
