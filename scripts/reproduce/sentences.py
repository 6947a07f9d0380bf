"""Tasks of sentences as m2dr measures them, with the cosine of every pair kept beside."""

# Shapes in this file:
#   L layers, K dims, P pairs.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from claims import Kind
from training import Scale

from m2dr.core.requests import ClassificationRequest, TaskRequest
from m2dr.data.sentences import ScoredPairs, open_binary_pairs, open_scored_pairs, split_file
from m2dr.evaluation.grid import Grid
from m2dr.evaluation.sentence_tasks import correlations, gold_scores, prefix_products, separations
from m2dr.tasks.evaluating.sentence_tasks import (
    SentenceTask,
    evaluate_classification,
    measure_tasks,
    task_of_pairs,
)


@dataclass(frozen=True)
class Asked:
    """One model on one task."""

    model: str
    kind: Kind
    task: str  # its path; several files joined by commas
    layers: tuple[int, ...]
    dims: tuple[int, ...]


def turned(grid: Grid) -> dict[str, dict[str, float]]:
    """Measure -> cut -> value."""
    return {name: {str(cut): grid.cells[cut][name] for cut in grid.cuts} for name in grid.measures}


def measure(asked: Asked, scale: Scale, detail: Path) -> tuple[Grid, str]:
    """Measure one task; the cosines of pairs go to `detail`.

    Returns:
        The grid, and where the cosines lie; of classification the number of tested texts.
    """
    if asked.kind == "classification":
        return _classes(asked, scale)
    cosines: list[np.ndarray[Any, Any]] = []
    task, gold = (_likeness if asked.kind == "sts" else _classes_of_pairs)(asked, cosines)
    out = scale.out / "results"
    measures = ("Spearman",) if asked.kind == "sts" else ("cosine-Accuracy",)
    cuts = (asked.layers, asked.dims)
    request = TaskRequest((asked.task,), (asked.model,), *cuts, measures, out, device=scale.device)
    grid = measure_tasks(request, lambda _: task).tasks[0][0]
    detail.parent.mkdir(parents=True, exist_ok=True)
    aside = detail.with_name(f"partial-{detail.name}")
    np.savez(
        aside, gold=gold, cosines=np.stack(cosines), layers=grid.layers, dims=grid.dims
    )  # [P], [L, K, P]
    aside.replace(detail)
    return grid, str(detail)


def _likeness(asked: Asked, cosines: list[np.ndarray[Any, Any]]) -> tuple[SentenceTask, Any]:
    judged = open_scored_pairs(asked.task)
    gold = gold_scores(judged.pairs, asked.task)
    return _kept(judged, gold, correlations, cosines), gold


def _classes_of_pairs(
    asked: Asked, cosines: list[np.ndarray[Any, Any]]
) -> tuple[SentenceTask, Any]:
    path = Path(asked.task)
    judged = open_binary_pairs(str(split_file(path, "test") if path.is_dir() else path))
    alike = np.array([pair.score == 1 for pair in judged.pairs])
    return _kept(judged, alike, separations, cosines), alike


def _kept(
    judged: ScoredPairs,
    gold: Any,
    values: Callable[..., Mapping[int, Mapping[str, float]]],
    cosines: list[np.ndarray[Any, Any]],
) -> SentenceTask:
    """The task, whose cosines [K, P] are kept layer by layer as it is measured."""

    def of_layer(
        vectors: Any,
        first: Any,
        second: Any,
        gold: Any,
        dims: Sequence[int],
    ) -> Mapping[int, Mapping[str, float]]:
        cosines.append(prefix_products(vectors, first, second, dims)[1].astype(np.float32))
        return values(vectors, first, second, gold, dims)

    return task_of_pairs(judged, gold, of_layer)


def _classes(asked: Asked, scale: Scale) -> tuple[Grid, str]:
    """Classify prefixes as they are, as SentEval does, whose protocol MIPIC names.

    One fit on all texts of the training split at the scale of the paper; else a few of each class.
    """
    request = ClassificationRequest(
        (asked.task,),
        (asked.model,),
        asked.layers,
        asked.dims,
        out=scale.out / "results",
        device=scale.device,
        protocol="mteb" if scale.small else "full",
        experiments=3,
        raw=True,
    )
    grid = evaluate_classification(request).tasks[0][0]
    return grid, str(grid.queries)
