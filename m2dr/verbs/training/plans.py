"""Settings of a run to the plan of a training."""

from math import ceil
from pathlib import Path

from m2dr.model.devices import trains_in_bf16
from m2dr.model.encoder import Encoder
from m2dr.model.places import CHECKPOINTS
from m2dr.settings.run import RunSettings
from m2dr.train.plan import Plan
from m2dr.verbs.progress import processes_asked
from m2dr.verbs.workplace import LOGS


def plan_of(
    settings: RunSettings,
    batch: int,
    count: int,
    encoder: Encoder,
    folder: Path,
    evaluate_steps: int = 0,
    all_used: bool = True,
) -> Plan:
    """How a training runs.

    Args:
        settings: of the run.
        batch: examples per step and process.
        count: examples there are.
        encoder: what is trained; its device counts.
        folder: of the model.
        evaluate_steps: between two evaluations; 0: never.
        all_used: every step trains every parameter.
    """
    per_step = batch * settings.accumulate * processes_asked()
    steps = ceil(settings.epochs * count / per_step) if settings.epochs else settings.steps
    return Plan(
        folder=folder / CHECKPOINTS,
        logs=folder / LOGS,
        steps=steps,
        batch_queries=batch,
        accumulate=settings.accumulate,
        learning_rate=settings.learning_rate,
        head_learning_rate=settings.head_learning_rate,
        schedule=settings.schedule,
        warmup=settings.warmup,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        seed=settings.seed,
        bf16=trains_in_bf16(settings.dtype, encoder.device),
        cpu=encoder.device.type == "cpu",
        log_steps=settings.log_steps,
        save_steps=settings.save_steps,
        evaluate_steps=min(evaluate_steps, steps),
        all_used=all_used,
    )
