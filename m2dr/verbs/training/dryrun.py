"""`m2dr train --dry-run`: what a training would take, from a few of its real steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from m2dr.errors import counted
from m2dr.settings import TrainSettings
from m2dr.train.learner import Learner
from m2dr.train.plan import Example, Examples, Plan
from m2dr.train.smae import MaskedAutoencoder
from m2dr.train.trial import TRIED, Trial, try_steps
from m2dr.verbs.progress import processes_asked, progress
from m2dr.verbs.training.train import prepare
from m2dr.verbs.workplace import BYTES_PER_PARAMETER


@dataclass(frozen=True)
class Forecast:
    """What a training would take."""

    steps: int
    examples: int  # of one step, over all processes
    unit: str
    device: str
    trial: Trial


def dry_run(settings: TrainSettings) -> Forecast:
    """Load everything, run a few real steps, and forecast the rest; nothing is written.

    Raises:
        UserError: what the training itself would raise before or in its first steps.
    """
    setup = prepare(settings, Path())
    unit = setup.material.unit
    return forecast(setup.learner, setup.plan, setup.examples, setup.batch, unit)


def forecast(
    learner: Learner | MaskedAutoencoder,
    plan: Plan,
    examples: Examples[Example],
    batch: Callable[[Sequence[Example]], Mapping[str, Any]],
    unit: str,
) -> Forecast:
    """Run the first steps of a training, and tell what they took."""
    with progress("Trying", min(TRIED, plan.steps), "steps") as advance:
        trial = try_steps(learner, plan, examples, batch, advance)
    return Forecast(
        steps=plan.steps,
        examples=plan.batch_queries * plan.accumulate * processes_asked(),
        unit=unit,
        device=f"{'cpu' if plan.cpu else 'cuda'} in {'bf16' if plan.bf16 else 'fp32'}",
        trial=trial,
    )


def describe(forecast: Forecast) -> str:
    """The forecast as lines."""
    f, t = forecast, forecast.trial
    frozen = "" if t.trained == t.parameters else f", {t.trained:,} of them trained"
    return "\n".join(
        [
            f"{counted(f.steps, 'steps', ',')} of {counted(f.examples, f.unit, ',')} on "
            f"{f.device}, {t.parameters:,} parameters{frozen}",
            f"one step: {t.seconds:.2f} s, {t.tokens:,.0f} tokens and "
            f"{t.padded / t.tokens - 1:.0%} padding beside them, "
            f"{t.tokens / t.seconds:,.0f} tokens per second, loss {t.loss:.3f}",
            f"in all: {_duration(t.seconds * f.steps)} of steps, {t.memory / 1e9:.1f} GB of "
            f"memory, {BYTES_PER_PARAMETER * t.parameters / 1e9:.1f} GB of disk while it runs",
            "Nothing was written.",
        ]
    )


def _duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> _duration(59), _duration(600), _duration(9000)
    ('59 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
