"""`m2dr train`: a backbone, a corpus and a recipe become a model whose cuts retrieve."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from m2dr.errors import Interrupted, UserError, counted
from m2dr.model import checkpoint
from m2dr.model.checkpoint import Tokenizer
from m2dr.model.devices import choose_training_device, drops_out, set_dropout
from m2dr.model.encoder import Encoder
from m2dr.model.lora import add_lora, merge_lora
from m2dr.model.places import CHECKPOINTS, resume_command
from m2dr.records.card import ModelCard
from m2dr.settings import TrainSettings
from m2dr.train.checkpoints import last_whole_checkpoint, step_of
from m2dr.train.learner import Learner
from m2dr.train.plan import Examples, Plan
from m2dr.train.trainer import Trainer
from m2dr.verbs.progress import Advance, is_first, processes_asked, progress, say
from m2dr.verbs.training.material import Material, open_material, refuse_few
from m2dr.verbs.training.plans import plan_of
from m2dr.verbs.training.recipe import Recipe, recipe_of
from m2dr.verbs.training.refit import fit_before, refit, refit_table, with_fitted_cuts
from m2dr.verbs.workplace import clear, enough_space, held, open_workplace


@dataclass(frozen=True)
class TrainReport:
    """What a training did."""

    folder: Path
    card: ModelCard
    steps: int
    first_loss: float  # nats per query, summed over terms; the mean of the first log
    last_loss: float
    quality: float | None  # of the kept checkpoint on the dev split: the mean over its cuts
    measure: str  # what that is a mean of
    seconds: float


@dataclass(frozen=True)
class Setup:
    """Everything a training needs before its first step."""

    settings: TrainSettings
    material: Material
    recipe: Recipe
    encoder: Encoder
    tokenizer: Tokenizer
    learner: Learner
    plan: Plan
    examples: Examples[Any]

    def batch(self, chosen: Any) -> dict[str, object]:  # noqa: ANN401  # groups or pairs
        """The learner's arguments for some examples."""
        return self.material.batch(self.recipe.card, self.tokenizer, chosen).tensors()


def train(
    settings: TrainSettings, folder: Path, resume: bool = False, overwrite: bool = False
) -> TrainReport:
    """Train as `settings` say, and write the model folder.

    Raises:
        UserError: anything a person can fix, before the first step where it can be known.
        Interrupted: Ctrl-C; what was trained until the last checkpoint is in the folder.
    """
    begun = time.monotonic()
    setup = prepare(settings, folder)
    with held(folder):
        if is_first():
            if not resume:
                enough_space(folder, sum(p.numel() for p in setup.learner.parameters()))
            open_workplace(folder, settings, resume, overwrite)
        trainer, card = _train(setup, folder, resume)
    return _report(trainer, folder, card, setup.material, time.monotonic() - begun)


def _train(setup: Setup, folder: Path, resume: bool) -> tuple[Trainer, ModelCard]:
    """Train, and write the model; the first rank holds the folder."""
    settings, encoder, plan = setup.settings, setup.encoder, setup.plan
    material = setup.material
    kind = f"{encoder.device.type} in {'bf16' if plan.bf16 else 'fp32'}"
    say(
        f"Training {setup.recipe.variant.name} on {material.name}: {counted(plan.steps, 'steps')} "
        f"on {kind}"
    )
    say(f"  {counted(material.count, material.unit)}, {plan.batch_queries} per step, into {folder}")

    measure = material.quality
    quality = (lambda: measure(encoder, setup.tokenizer)) if measure else None
    losses: dict[int, float] = {}  # by its step, the last one that was logged
    with progress("Training", plan.steps, "steps", partial(loss_told, losses)) as advance:
        watch = watched(advance, losses)
        trainer = Trainer(setup.learner, plan, setup.examples, setup.batch, quality, watch)
        run(trainer, folder, resume, advance, "train")
    card = setup.recipe.card
    trainer.accelerator.wait_for_everyone()
    if is_first():
        if settings.lora_rank:
            merge_lora(encoder)
        encoder.eval()
        if settings.refits:
            card = refit(encoder, setup.tokenizer, card, settings)
        elif encoder.fitted is not None:
            frozen = setup.recipe.variant.freeze
            card = with_fitted_cuts(card, frozen)
            if not frozen:
                refit_table(encoder, setup.tokenizer, settings)
        card = checkpoint.save(encoder, setup.tokenizer, card, folder)
        clear(folder)
    trainer.accelerator.wait_for_everyone()
    return trainer, card


def prepare(settings: TrainSettings, folder: Path) -> Setup:
    """Load, check and join what a training needs; nothing is written."""
    device = choose_training_device(settings.device)
    material = open_material(settings)
    recipe = recipe_of(settings, material.kind)
    refuse_few(settings, material)  # after what no other corpus would mend
    _warn_of_margins(recipe, material)
    encoder, tokenizer = checkpoint.load(settings.backbone, recipe.card.layers, device)
    encoder.card = recipe.card
    if recipe.card.exit_head != "fitted":
        encoder.fitted = None  # those of a fitted backbone: its layers will move
    elif encoder.fitted is None:
        fit_before(encoder, tokenizer, settings)
    if recipe.card.exit_head == "linear":
        encoder.add_exit_heads([layer for layer in recipe.layers if layer < recipe.whole.layer])
    frozen = recipe.variant.freeze
    set_dropout(encoder, 0.0 if frozen else settings.dropout)
    if recipe.setting.loss == "simcse" and not drops_out(encoder):
        raise UserError(
            "loss = simcse tells two views of a sentence apart by dropout alone, and there is none;"
            " set dropout=0.1."
        )
    if settings.lora_rank:
        rank, alpha, dropout = settings.lora_rank, settings.lora_alpha, settings.lora_dropout
        add_lora(encoder, rank, alpha, dropout, settings.seed)
    if frozen:
        train_exits_alone(encoder)
    if settings.gradient_checkpointing:
        encoder.checkpoint_blocks(on=True)
    learner = Learner(encoder, recipe.objective(), cached=settings.gradient_cache > 0)
    learner.to(device)
    evaluate = settings.evaluate_steps if material.quality else 0
    used = _all_used(recipe, encoder)
    plan = plan_of(
        settings, settings.batch_queries, material.count, encoder, folder, evaluate, used
    )
    total = plan.examples * processes_asked()
    examples: Examples[Any] = Examples(material.count, material.example, total, settings.seed)
    return Setup(settings, material, recipe, encoder, tokenizer, learner, plan, examples)


def train_exits_alone(encoder: Encoder) -> None:
    """Let a training change the exits of an encoder, and nothing else of it."""
    encoder.requires_grad_(False)
    encoder.exit_heads.requires_grad_()
    if encoder.fitted is not None:
        encoder.fitted.requires_grad_()


def _warn_of_margins(recipe: Recipe, material: Material) -> None:
    """Say so where no model can have the margins of the teacher: cosines differ by 2 at most."""
    setting = recipe.setting
    reached = 2 / setting.temperature
    if setting.distill == "margin-mse" and setting.similarity == "cosine":
        widest = material.widest / setting.distill_temperature
        if widest > reached:
            say(
                f"Warning: margins of the teacher go up to {widest:g}, and those of cosines divided"
                f" by temperature = {setting.temperature:g} to {reached:g}. Raise "
                "distill_temperature, lower temperature, or set similarity=dot."
            )


def _all_used(recipe: Recipe, encoder: Encoder) -> bool:
    """Whether every step trains every parameter: all blocks, and the exit heads of each."""
    heads = {int(layer) for layer in encoder.exit_heads}
    if encoder.fitted is not None:
        heads |= {layer for layer in encoder.fitted.layers if layer}
    return all(
        asked.layers[-1] == encoder.blocks and heads <= set(asked.layers)
        for asked in recipe.choices
    )


def run(trainer: Trainer, folder: Path, resume: bool, advance: Advance, verb: str) -> None:
    """Train to the end, from the last whole checkpoint when one is to be resumed."""
    processes = processes_asked()
    found = last_whole_checkpoint(folder / CHECKPOINTS, processes) if resume else None
    if resume:
        step = step_of(found) if found else 0
        advance(step)
        say(f"Resuming after step {step}")
    go_on = f"go on with: {resume_command(verb, folder, processes)}"
    try:
        with _asked_to_stop():
            trainer.train(resume_from_checkpoint=str(found) if found else None)
            trainer.assemble()
    except KeyboardInterrupt:
        raise Interrupted(
            f"Training stopped at step {trainer.state.global_step} of {trainer.state.max_steps}; "
            f"{go_on}"
        ) from None
    except RuntimeError as error:
        if processes == 1 or not _of_another_process(error):
            raise
        raise Interrupted(
            f"Another process of this training was lost at step {trainer.state.global_step}; "
            f"{go_on}"
        ) from error


@contextmanager
def _asked_to_stop() -> Iterator[None]:
    """Within it, SIGTERM is Ctrl-C.

    A batch system sends it before it kills, and torchrun to those who are left of the lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is told of signals
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except BaseException:
        # The SIGTERM of torchrun may come while this process says what to do next.
        before = signal.SIG_IGN if processes_asked() > 1 else before
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _of_another_process(error: RuntimeError) -> bool:
    """Whether gloo or NCCL says that who should have answered did not."""
    said = str(error).lower()
    words = ("connection closed by peer", "connection reset by peer", "gloo", "nccl", "timed out")
    return any(word in said for word in words)


def watched(
    advance: Advance, losses: dict[int, float]
) -> Callable[[int, Mapping[str, float]], None]:
    """What a trainer calls after each step: it advances, and keeps the last loss with its step."""

    def on_step(_: int, logged: Mapping[str, float]) -> None:
        if "loss" in logged:
            losses.clear()
            losses[int(logged["step"])] = logged["loss"]
        advance(1)

    return on_step


def loss_told(losses: Mapping[int, float]) -> str:
    """The last loss and its step, as a progress line shows them."""
    return next((f"loss {loss:.3f} at step {step}" for step, loss in losses.items()), "")


def _report(
    trainer: Trainer, folder: Path, card: ModelCard, material: Material, seconds: float
) -> TrainReport:
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    quality, steps = trainer.state.best_metric, trainer.state.max_steps
    measure = "nDCG@10" if material.kind == "documents" else "Spearman"
    return TrainReport(folder, card, steps, losses[0], losses[-1], quality, measure, seconds)
