"""`m2dr train --dry-run` and `--explain`: forecast a training; show the terms of its loss."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from m2dr.core.errors import counted
from m2dr.core.progress import process_count, progress
from m2dr.core.trainings import TrainSettings
from m2dr.core.variants import CHOICES, VARIANTS
from m2dr.tasks.encoder import at_revision
from m2dr.tasks.recipe import Recipe
from m2dr.tasks.run_folder import BYTES_PER_PARAMETER
from m2dr.tasks.train import prepare
from m2dr.train.module import TrainingModule
from m2dr.train.smae import MaskedAutoencoder
from m2dr.train.terms import Term
from m2dr.train.trainer import DRY_RUN_STEPS, DryRun, Example, Examples, Plan, run_first_steps


@dataclass(frozen=True)
class Forecast:
    """Time, memory and disk that a training would take."""

    steps: int
    examples: int  # of one step, over all processes
    unit: str
    device: str
    trial: DryRun


@at_revision
def dry_run(settings: TrainSettings) -> Forecast:
    """Load everything, run a few real steps, and forecast the rest; nothing is written.

    Raises:
        UserError: what the training itself would raise before or in its first steps.
    """
    setup = prepare(settings, Path())
    unit = setup.material.unit
    return forecast(setup.module, setup.plan, setup.examples, setup.batch, unit)


def forecast(
    module: TrainingModule | MaskedAutoencoder,
    plan: Plan,
    examples: Examples[Example],
    batch: Callable[[Sequence[Example]], Mapping[str, Any]],
    unit: str,
) -> Forecast:
    """Run the first steps of a training, and tell what they took."""
    with progress("Trying", min(DRY_RUN_STEPS, plan.steps), "steps") as advance:
        trial = run_first_steps(module, plan, examples, batch, advance)
    return Forecast(
        steps=plan.steps,
        examples=plan.batch_queries * plan.accumulate * process_count(),
        unit=unit,
        device=f"{'cpu' if plan.cpu else 'cuda'} in {'bf16' if plan.bf16 else 'fp32'}",
        trial=trial,
    )


def describe(forecast: Forecast) -> str:
    """Return the forecast as lines of text."""
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
    """Return a duration in words.

    >>> _duration(59), _duration(600), _duration(9000)
    ('59 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def explain(recipe: Recipe) -> str:
    """Return the table of terms and weights of one batch, and what else is trained."""
    counts: Counter[Term] = Counter()
    for step in recipe.choices:
        counts.update(step.terms)
    draws = len(recipe.choices)
    rows = [("cut", "asked", "weight", "imitates", "batches")]
    for term, count in sorted(counts.items(), key=lambda item: -item[1] if draws > 1 else 0):
        own = {"retrieve": recipe.setting.loss, "distill": recipe.setting.distill}
        kind = own.get(term.kind, term.kind)
        teacher = str(term.teacher) if term.teacher else _target(recipe, term)
        share = "" if draws == 1 else "all" if count == draws else f"1 in {draws / count:g}"
        rows.append((str(term.cut), kind, f"{term.weight:.4f}", teacher, share))
    used = [place for place, cells in enumerate(zip(*rows[1:], strict=True)) if any(cells)]
    table = [[row[place] for place in used] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in table]
    tail = counted(len(counts), "terms")
    tail += f", {draws} draws of a batch" if draws > 1 else ""
    return "\n".join([*_head(recipe), *(line.rstrip() for line in lines), *_beside(recipe), tail])


def _head(recipe: Recipe) -> list[str]:
    source = "the last layer" if recipe.variant.documents == "last" else "the query's layer"
    row = VARIANTS[recipe.variant.name]
    changed = [
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name in CHOICES
        if (value := getattr(recipe.variant, name)) != getattr(row, name)
    ]
    return [
        f"{recipe.variant.name}: {recipe.variant.summary}",
        *([f"Changed: {' '.join(changed)}"] if changed else []),
        f"Full model {recipe.full}, documents from {source}, "
        f"similarity {recipe.card.similarity}, temperature {recipe.card.temperature:g}.",
    ]


def _target(recipe: Recipe, term: Term) -> str:
    if term.kind == "distill":
        return "teacher's scores"
    if not term.kind.startswith("align"):
        return ""
    names = {
        "dependencies": "PCA of dependencies",
        "randomised": "PCA of dependencies, randomised",
        "embeddings": "PCA",
        "max-k": "max-k",
    }
    return names.get(recipe.variant.compress, "")


def _beside(recipe: Recipe) -> list[str]:
    """Return the terms without a cut of their own, and what is trained but not kept."""
    variant, rest = recipe.variant, 1 - recipe.variant.alpha
    layers = ", ".join(str(cut.layer) for cut in recipe.path)
    found = []
    if variant.sia:
        dims = ", ".join(map(str, recipe.related))
        found.append(f"token relations of layers {layers} at dims {dims}, weight {rest:.4f}")
    if variant.pic:
        path = " -> ".join(map(str, recipe.path))
        found.append(f"chain {path}, weight {rest:.4f}")
    if variant.weights == "dynamic":
        found.append("weights of the shallow layers are learned")
    if 0 in recipe.layers and recipe.card.pooling == "cls":
        found.append(
            "layer 0 of the first token is the same for all texts: nothing is learned from it"
        )
    if variant.freeze:
        found.append("the encoder is frozen")
    if recipe.card.exit_head == "linear":
        below = [str(layer) for layer in recipe.layers if layer < recipe.full.layer]
        found.append(f"exit heads at layers {', '.join(below)}")
    return found
