"""`m2dr evaluate sts`, `pairs` and `classification`: texts are encoded once, at all layers.

Shapes: L layers, N distinct texts, H width, P pairs.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from m2dr.core.arrays import Intp
from m2dr.core.errors import UserError, counted, nearest, require
from m2dr.core.files import lock_folder, short_name
from m2dr.core.progress import progress
from m2dr.core.records import Cut, ModelCard
from m2dr.core.report import Report, timed
from m2dr.core.requests import ClassificationRequest, PairsRequest, StsRequest, TaskRequest
from m2dr.data import sentences
from m2dr.data.tables import is_hub
from m2dr.evaluation.figures import draw_quality_over_dims, save_figure
from m2dr.evaluation.grid import Grid, as_json, average, text_tables, write_grid
from m2dr.evaluation.sentence_tasks import (
    correlations,
    distinct_sentences,
    gold_scores,
    learn,
    require_finite,
    sample_per_label,
    separations,
)
from m2dr.index.vectors import prefixes
from m2dr.model import checkpoint
from m2dr.model.checkpoint import Model, open_model
from m2dr.tasks.models import cuts_of, names_of, newest_model

# The vectors [N, H] of a layer, both rows [P] of each pair, what people said of it [P], and the
# dims, to the measures of each dim.
Gold = TypeVar("Gold", NDArray[np.float64], NDArray[np.bool_])
OfPairs = Callable[
    [NDArray[np.float32], Intp, Intp, Gold, Sequence[int]], Mapping[int, Mapping[str, float]]
]


@dataclass(frozen=True)
class Encoded:
    """The texts of a task as one model sees them, at several layers."""

    card: ModelCard
    layers: Sequence[int]  # L of them, increasing
    dims: Sequence[int]  # asked for at each layer, increasing
    vectors: NDArray[np.float32]  # [L, N, H], not normalised


@dataclass(frozen=True)
class SentenceTask:
    """The texts of a task, and the function that measures their vectors."""

    name: str
    split: str  # empty where the files do not name one
    texts: Sequence[str]  # N, each once
    size: int  # what the measures are over, counted in `unit`
    unit: str
    measure: Callable[[Encoded], tuple[Mapping[Cut, Mapping[str, float]], tuple[str, ...]]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskReport(Report):
    """The grids of all tasks, and where they were written."""

    tasks: tuple[tuple[Grid, ...], ...]  # of each task a grid per model; of several the mean last
    measures: tuple[str, ...]  # those that are shown
    folder: Path

    def __str__(self) -> str:
        tables = "\n\n".join(text_tables(grids, self.measures) for grids in self.tasks)
        end = f"{self.seconds:,.0f} s; tables and runs in {self.folder}"
        return "\n".join([tables, end, *map(str, self.files)])

    def record(self) -> dict[str, Any]:
        """Return the grids with the names that their files have."""
        grids = [as_json(grid) for grids in self.tasks for grid in grids]
        report = {"figures": self.files, "seconds": self.seconds, "folder": self.folder}
        return {"grids": grids, **report}


def evaluate_sts(request: StsRequest) -> TaskReport:
    """Measure every asked cut of every asked model on every task; write tables and figures.

    Similarity is the cosine, whatever the model searches with, and a correlation is over all pairs
    of a task together, also of one made of several files. The two sentences of a pair play the
    same part, so both are encoded as documents are: with the model's document prefix and length.

    Raises:
        UserError: a task is unknown or has no scores, or an encoder lacks a cut; before any weight
            is loaded.
    """

    def opened(names: str) -> SentenceTask:
        paths = _find_files(names, "sts", "a file of scored sentence pairs")
        judged = sentences.open_scored_pairs(paths, request.split)
        return task_of_pairs(judged, gold_scores(judged.pairs, paths), correlations)

    return measure_tasks(request, opened)


def evaluate_pairs(request: PairsRequest) -> TaskReport:
    """Measure every asked cut of every asked model on every task; write tables and figures.

    Accuracy and F1 are those of the threshold that is best on the measured pairs, for the cosine
    and for the dot product of the cut vectors. Both texts of a pair are encoded as documents are.

    Raises:
        UserError: a task is unknown or is not of two classes, or an encoder lacks a cut; before any
            weight is loaded.
    """
    kind = "pair-classification"
    what = "a file of sentence pairs labelled 1, alike, or 0, or a folder of such a file per split"

    def opened(names: str) -> SentenceTask:
        path = find_task(names, kind, what) if "," not in names else None
        if path and path.is_dir():
            judged = sentences.open_binary_pairs(
                str(sentences.split_file(path, request.split or "test"))
            )
        else:
            judged = sentences.open_binary_pairs(_find_files(names, kind, what), request.split)
        alike: NDArray[np.bool_] = np.array([pair.score == 1 for pair in judged.pairs])
        return task_of_pairs(judged, alike, separations)

    return measure_tasks(request, opened)


def evaluate_classification(request: ClassificationRequest) -> TaskReport:
    """Measure every asked cut of every asked model on every task; write tables and figures.

    A logistic regression is fitted on frozen vectors: cut, and then of length one where the model
    compares by cosine, as its folder gives them in sentence-transformers, unless `raw`. Texts are
    encoded as documents are, once, at all layers, and only those that an experiment uses.

    Raises:
        UserError: scikit-learn is absent, a task is unknown or malformed, or an encoder lacks a
            cut; before any weight is loaded.
    """
    require("sklearn")
    what = "a folder of train.csv and test.csv, a file of labelled texts with a column of splits"

    def opened(name: str) -> SentenceTask:
        path = find_task(name, "classification", what, sentences.SUFFIXES)
        return _classification(request, sentences.open_labelled_texts(path, request.split))

    return measure_tasks(request, opened)


@timed
def measure_tasks(request: TaskRequest, opened: Callable[[str], SentenceTask]) -> TaskReport:
    """Measure every asked cut of every asked model on every task; write tables and figures.

    Args:
        request: what was asked.
        opened: reads a task, and refuses what cannot be measured, before any weight is loaded.

    Raises:
        UserError: as `opened`; two tasks would write to one folder; an encoder lacks a cut.
    """
    tasks = [opened(name) for name in request.tasks]
    for name, count in Counter(task.name for task in tasks).items():
        if count > 1:
            raise UserError(f"Two tasks are called {name}; give each once, or rename a file.")
    names = request.models or (newest_model(),)
    models = [open_model(name) for name in names]
    cuts = [cuts_of(model.card, request.layers, request.dims) for model in models]
    by_model = [
        list(_grids(request, tasks, model, name, wanted))
        for model, name, wanted in zip(models, names_of(names), cuts, strict=True)
    ]
    by_task = tuple(zip(*by_model, strict=True))
    figures = []
    for grids in by_task:
        drawn = "-".join(grid.model for grid in grids)
        for measure in request.measures:
            file = f"{short_name(f'{drawn}_{measure}')}.png"
            figures.append(_folder(request.out, grids[0].corpus, grids[0].split) / file)
            save_figure(draw_quality_over_dims(grids, measure), figures[-1])
    return TaskReport(by_task, request.measures, request.out, files=tuple(figures))


def _grids(
    request: TaskRequest,
    tasks: Sequence[SentenceTask],
    model: Model,
    name: str,
    cuts: Sequence[Cut],
) -> Iterator[Grid]:
    """Yield the grids of a model on each task and their mean; each is written at once."""
    layers, dims = sorted({cut.layer for cut in cuts}), sorted({cut.dim for cut in cuts})
    grids = []
    with ExitStack() as locks:
        for task in tasks:
            locks.enter_context(lock_folder(_folder(request.out, task.name, task.split) / name))
        deepest = max(cuts).layer
        encoder = checkpoint.load(model, deepest, request.device, request.dtype)
        for task in tasks:
            with progress(f"Encoding {task.name}", len(task.texts), "sentences") as advance:
                vectors = encoder.vectors(task.texts, "document", layers, advance)
            cells, notes = task.measure(Encoded(encoder.card, layers, dims, vectors))
            place = (name, task.name, task.split, task.size)
            grids.append(Grid(*place, cells, (*task.notes, *notes), unit=task.unit))
            write_grid(grids[-1], _folder(request.out, task.name, task.split) / name)
            yield grids[-1]
        if len(grids) > 1:
            mean = average(grids)
            write_grid(mean, _folder(request.out, mean.corpus, mean.split) / name)
            yield mean


def _folder(out: Path, task: str, split: str) -> Path:
    return out / short_name(task) / split


def task_of_pairs(judged: sentences.ScoredPairs, gold: Gold, values: OfPairs[Gold]) -> SentenceTask:
    """Return a task of pairs of texts, each text encoded once.

    Args:
        judged: P pairs.
        gold: [P], human scores.
        values: measures them.
    """
    texts, first, second = distinct_sentences(judged.pairs)

    def measure(encoded: Encoded) -> tuple[dict[Cut, Mapping[str, float]], tuple[str, ...]]:
        cells: dict[Cut, Mapping[str, float]] = {}
        for layer, vectors in zip(encoded.layers, encoded.vectors, strict=True):
            by_dim = values(vectors, first, second, gold, encoded.dims)
            cells |= {Cut(layer, dim): measures for dim, measures in by_dim.items()}
        return cells, ()

    count = len(judged.pairs)
    return SentenceTask(judged.name, judged.split, texts, count, "pairs", measure)


def _classification(
    request: ClassificationRequest, labelled: sentences.LabelledTexts
) -> SentenceTask:
    """Return a task of classifiers, of the texts that some experiment uses."""
    labels = [row.label for row in labelled.train]
    if request.protocol == "full":
        draws = [np.arange(len(labels))]
        notes = [f"one fit on all {counted(len(labels), 'texts')} of the split train"]
    else:
        draws = sample_per_label(labels, request.samples, request.experiments, request.seed)
        notes = [
            f"the mean over {counted(request.experiments, 'experiments')} with "
            f"{counted(request.samples, 'texts')} per label (MTEB's protocol, seed {request.seed})"
        ]
    notes += ["prefixes as they are, not of length one"] * request.raw
    used = np.unique(np.concatenate(draws))
    draws = [np.searchsorted(used, draw) for draw in draws]
    train = [labelled.train[row] for row in used]
    numbers = {label: i for i, label in enumerate(sorted({row.label for row in train}))}
    places: dict[str, int] = {}
    for row in (*train, *labelled.test):
        places.setdefault(row.text, len(places))
    (train_rows, train_labels), (test_rows, test_labels) = (
        (
            np.array([places[row.text] for row in rows], dtype=np.int64),
            np.array([numbers[row.label] for row in rows], dtype=np.int64),
        )
        for rows in (train, labelled.test)
    )

    def measure(encoded: Encoded) -> tuple[dict[Cut, Mapping[str, float]], tuple[str, ...]]:
        cells: dict[Cut, Mapping[str, float]] = {}
        unfinished: dict[Cut, int] = {}
        similarity = "dot" if request.raw else encoded.card.similarity
        fits = len(encoded.layers) * len(encoded.dims) * len(draws)
        with progress(f"Fitting {labelled.name}", fits, "classifiers") as advance:
            for layer, vectors in zip(encoded.layers, encoded.vectors, strict=True):
                require_finite(vectors)
                for dim in encoded.dims:
                    x = prefixes(vectors, dim, similarity)
                    cut = Cut(layer, dim)
                    cells[cut], unfinished[cut] = learn(
                        x[train_rows], train_labels, draws, x[test_rows], test_labels,
                        request.iterations, request.seed,
                    )  # fmt: skip
                    advance(len(draws))
        if not any(unfinished.values()):
            return cells, ()
        cuts = ", ".join(str(cut) for cut, count in unfinished.items() if count)
        limit = f"did not converge in {counted(request.iterations, 'iterations')}"
        told = f"{sum(unfinished.values())} of {counted(fits, 'fits')} of {labelled.name} {limit}"
        return cells, (f"{told}, at {cuts}; --iterations raises the limit",)

    return SentenceTask(
        labelled.name,
        labelled.split,
        list(places),
        len(labelled.test),
        "texts",
        measure,
        tuple(notes),
    )


def find_task(name: str, kind: str, what: str, suffixes: Sequence[str] = (".tsv",)) -> Path:
    """Return the file or folder that a task's name means: a path, or a name below $M2DR_DATA.

    Args:
        name: as it was given.
        kind: the folder of such tasks where data lies.
        what: how the refusal calls a task, such as "a file of scored sentence pairs".
        suffixes: of files that may be named without.

    Raises:
        UserError: there is none; with the nearest name that there is.
    """
    if is_hub(name):
        return Path(name)
    given = os.environ.get("M2DR_DATA")
    places: tuple[Path, ...] = (*((Path(given),) if given else ()), Path("data"), Path("datasets"))
    folders = [place / kind for place in places]
    named = (folder / f"{name}{suffix}" for folder in folders for suffix in ("", *suffixes))
    for path in (Path(name), *named):
        if name.strip() and path.exists():
            return path
    known = {path.name.removesuffix(path.suffix) for folder in folders for path in folder.glob("*")}
    raise UserError(f"There is no task {name!r}: {what}. {nearest(name, sorted(known))}")


def _find_files(names: str, kind: str, what: str) -> str:
    """Return the same for several names joined by commas, joined by commas."""
    parts = [str(path) for path in sentences.paths_of(names)] or [names]
    return ",".join(str(find_task(part, kind, what)) for part in parts)
