"""`m2dr evaluate sts` and `pairs`, and what all sentence tasks share: texts encoded once."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError, counted, nearest
from m2dr.core.files import lock_folder, short_name
from m2dr.core.progress import progress
from m2dr.core.records import Cut, ModelCard
from m2dr.core.requests import ClassificationRequest, PairsRequest, StsRequest, TaskRequest
from m2dr.data import huggingface
from m2dr.data.classification import (
    SUFFIXES,
    LabelledText,
    LabelledTexts,
    open_labelled_texts,
    split_file,
)
from m2dr.data.sentence_pairs import ScoredPairs, open_binary_pairs, open_scored_pairs, paths_of
from m2dr.evaluate.figures import quality_over_dims
from m2dr.evaluate.grid import (
    Grid,
    average,
    grid_record,
    text_comparison,
    text_table,
    write_csv,
    write_grid,
)
from m2dr.evaluate.sentence_tasks import (
    ClassifierScores,
    Ints,
    Regression,
    Rows,
    correlations,
    distinct,
    gold_scores,
    learn,
    require_finite,
    require_scikit_learn,
    sample_per_label,
    separations,
)
from m2dr.index.vectors import prefixes
from m2dr.model import checkpoint
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.model.folder import read_card
from m2dr.tasks.encode_texts import embed_texts
from m2dr.tasks.encoder import cuts_of, names_of, newest_model

# Shapes in this file:
#   L layers, N distinct texts, H width.


# The vectors [N, H] of a layer and the dims, to the measures of each dim.
PerDim = Callable[[NDArray[np.float32], Sequence[int]], Mapping[int, Mapping[str, float]]]
# The same with both rows [P] of each pair, and what people said of it, [P].
Gold = TypeVar("Gold", NDArray[np.float64], NDArray[np.bool_])
OfPairs = Callable[
    [NDArray[np.float32], Rows, Rows, Gold, Sequence[int]], Mapping[int, Mapping[str, float]]
]

PAIRS_KIND = "pair-classification"
PAIRS_WHAT = (
    "a file of sentence pairs labelled 1, alike, or 0, or a folder of such a file per split"
)
STS_WHAT = "a file of scored sentence pairs"


@dataclass(frozen=True)
class Encoded:
    """The texts of a task as one model sees them, at several layers."""

    card: ModelCard
    layers: Sequence[int]  # L of them, increasing
    dims: Sequence[int]  # asked for at each layer, increasing
    vectors: NDArray[np.float32]  # [L, N, H], not normalised


@dataclass(frozen=True)
class Measured:
    """Measures of every cut on one task."""

    cells: Mapping[Cut, Mapping[str, float]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SentenceTask:
    """The texts of a task, and the function that measures their vectors."""

    name: str
    split: str  # empty where the files do not name one
    texts: Sequence[str]  # N, each once
    size: int  # what the measures are over, counted in `unit`
    unit: str
    measure: Callable[[Encoded], Measured]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskReport:
    """The grids of all tasks, and where they were written."""

    tasks: tuple[tuple[Grid, ...], ...]  # of each task a grid per model; of several the mean last
    figures: tuple[Path, ...]
    seconds: float


def measure_tasks(
    request: TaskRequest, open_tasks: Callable[[], Sequence[SentenceTask]], measures: Sequence[str]
) -> TaskReport:
    """Measure every asked cut of every asked model on every task; write tables and figures.

    Args:
        request: what was asked.
        open_tasks: reads them, and refuses what cannot be measured, before any weight is loaded.
        measures: what is drawn.

    Raises:
        UserError: as `open_tasks`; two tasks would write to one folder; an encoder lacks a cut.
    """
    begun = time.monotonic()
    tasks = open_tasks()
    _require_distinct(tasks, request.tasks)
    models = request.models or (newest_model(),)
    names = names_of(models)
    cuts = [cuts_of(read_card(model), request.layers, request.dims, model) for model in models]
    by_model = [
        list(_grids(request, tasks, model, name, wanted))
        for model, name, wanted in zip(models, names, cuts, strict=True)
    ]
    by_task = tuple(zip(*by_model, strict=True))
    figures = tuple(path for grids in by_task for path in _figures(request.out, grids, measures))
    return TaskReport(by_task, figures, time.monotonic() - begun)


def tables(report: TaskReport, measures: Sequence[str]) -> str:
    """Return a table per task and measure; several models stand under each other at each layer."""
    return "\n\n".join(
        text_table(grids[0], measure) if len(grids) == 1 else text_comparison(grids, measure)
        for grids in report.tasks
        for measure in measures
    )


def record_of(report: TaskReport) -> dict[str, object]:
    """Return the grids with the names that their files have."""
    grids = [grid_record(grid) for grids in report.tasks for grid in grids]
    return {"grids": grids, "figures": report.figures, "seconds": report.seconds}


def layer_by_layer(encoded: Encoded, measure: PerDim) -> Measured:
    """Measure a task layer by layer, all dims of a layer together."""
    return Measured(
        {
            Cut(layer, dim): values
            for layer, vectors in zip(encoded.layers, encoded.vectors, strict=True)
            for dim, values in measure(vectors, encoded.dims).items()
        }
    )


def task_of_pairs(judged: ScoredPairs, gold: Gold, values: OfPairs[Gold]) -> SentenceTask:
    """Return a task of pairs of texts, each text encoded once.

    Args:
        judged: P pairs.
        gold: [P], what people said of each.
        values: measures them.
    """
    texts, first, second = distinct(judged.pairs)

    def measure(
        vectors: NDArray[np.float32], dims: Sequence[int]
    ) -> Mapping[int, Mapping[str, float]]:
        return values(vectors, first, second, gold, dims)

    return SentenceTask(
        judged.name,
        judged.split,
        texts,
        len(judged.pairs),
        "pairs",
        lambda encoded: layer_by_layer(encoded, measure),
        skipped_note(judged.skipped),
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
    if huggingface.recognises(name):
        return Path(name)
    folders = [place / kind for place in _places()]
    named = (folder / f"{name}{suffix}" for folder in folders for suffix in ("", *suffixes))
    for path in (Path(name), *named):
        if name.strip() and path.exists():
            return path
    beside = Path(name).parent
    known = {path.name.removesuffix(path.suffix) for folder in folders for path in folder.glob("*")}
    known |= {str(beside / path.name) for path in beside.glob("*") if path.is_file()}
    hint = nearest(name, sorted(known))
    raise UserError(
        f"There is no task {name!r}. {f'{hint} ' if hint.startswith('Did') else ''}A task is "
        f"{what}, or the name of NAME{suffixes[0]} in {', '.join(map(str, folders))}; "
        f"$M2DR_DATA names another folder that holds {kind}/."
    )


def find_files(names: str, kind: str, what: str) -> str:
    """Return the same for several names joined by commas, joined by commas.

    Raises:
        UserError: one of them is not there.
    """
    parts = [str(path) for path in paths_of(names)] or [names]
    return ",".join(str(find_task(part, kind, what)) for part in parts)


def skipped_note(skipped: int) -> tuple[str, ...]:
    """Return a note on pairs without an agreed label."""
    return (f"left out: {counted(skipped, 'pairs')} without a label",) if skipped else ()


def _places() -> tuple[Path, ...]:
    given = os.environ.get("M2DR_DATA")
    return (*((Path(given),) if given else ()), Path("data"), Path("datasets"))


def _require_distinct(tasks: Sequence[SentenceTask], names: Sequence[str]) -> None:
    """Raise UserError if two tasks have one name, and so one folder."""
    given: dict[str, str] = {}
    for task, name in zip(tasks, names, strict=True):
        if task.name in given:
            raise UserError(
                f"The tasks {given[task.name]} and {name} are both called {task.name}, and their "
                f"results would lie in one folder; give each once, or rename a file."
            )
        given[task.name] = name


def _grids(
    request: TaskRequest, tasks: Sequence[SentenceTask], model: str, name: str, cuts: Sequence[Cut]
) -> Iterator[Grid]:
    """Yield the grids of a model on each task and their mean; each is written at once."""
    with ExitStack() as held:
        for task in tasks:
            folder = request.out / short_name(task.name) / task.split / name
            held.enter_context(lock_folder(folder))
        yield from _held_grids(request, tasks, model, name, cuts)


def _held_grids(
    request: TaskRequest, tasks: Sequence[SentenceTask], model: str, name: str, cuts: Sequence[Cut]
) -> Iterator[Grid]:
    """Yield these grids while their folders are locked."""
    device = choose_device(request.device)
    encoder, tokenizer = checkpoint.load(
        model, max(cuts).layer, device, choose_dtype(request.dtype, device)
    )
    layers, dims = sorted({cut.layer for cut in cuts}), sorted({cut.dim for cut in cuts})
    grids = []
    for task in tasks:
        with progress(f"Encoding {task.name}", len(task.texts), "sentences") as advance:
            vectors = embed_texts(encoder, tokenizer, task.texts, "document", layers, advance)
        found = task.measure(Encoded(encoder.card, layers, dims, vectors))
        notes = (*_notes(encoder.card, cuts), *task.notes, *found.notes)
        grids.append(
            Grid(name, task.name, task.split, task.size, found.cells, notes, unit=task.unit)
        )
        yield _written(grids[-1], request.out)
    if len(grids) > 1:
        yield _written(average(grids), request.out)


def _written(grid: Grid, out: Path) -> Grid:
    folder = _folder(grid, out) / grid.model
    write_grid(grid, folder / "grid.json")
    write_csv([grid], folder / "grid.csv")
    return grid


def _folder(grid: Grid, out: Path) -> Path:
    return out / short_name(grid.corpus) / grid.split


def _notes(card: ModelCard, cuts: Sequence[Cut]) -> tuple[str, ...]:
    """Return a note on cuts that were not trained."""
    trained = [str(cut) for cut in cuts if cut in card.cuts]
    untrained = [str(cut) for cut in cuts if cut not in card.cuts]
    found = []
    if untrained and not trained:
        found.append("none of these cuts was trained: expect worse than the model can do")
    elif len(trained) < len(untrained):
        found.append(f"only these cuts were trained: {', '.join(trained)}")
    elif untrained:
        found.append(f"not trained: {', '.join(untrained)}")
    if card.documents == "last" and min(cuts).layer < card.layers:
        found.append(
            f"all texts come from the layer of the cut, though documents were trained at layer "
            f"{card.layers} alone"
        )
    return tuple(found)


def _figures(out: Path, grids: Sequence[Grid], measures: Sequence[str]) -> Iterator[Path]:
    """Draw a figure per measure of all models on one task."""
    models = "-".join(grid.model for grid in grids)
    for measure in measures:
        path = _folder(grids[0], out) / f"{short_name(f'{models}_{measure}')}.png"
        quality_over_dims(grids, measure, path)
        yield path


def evaluate_sts(request: StsRequest) -> TaskReport:
    """Measure every asked cut of every asked model on every task; write tables and figures.

    Similarity is the cosine, whatever the model searches with, and a correlation is over all pairs
    of a task together, also of one made of several files. The two sentences of a pair play the
    same part, so both are encoded as documents are: with the model's document prefix and length.

    Raises:
        UserError: a task is unknown or has no scores, or an encoder lacks a cut; before any weight
            is loaded.
    """
    return measure_tasks(
        request,
        lambda: [_open_sts(name, request.split) for name in request.tasks],
        request.measures,
    )


def _open_sts(names: str, split: str) -> SentenceTask:
    paths = find_files(names, "sts", STS_WHAT)
    judged = open_scored_pairs(paths, split)
    return task_of_pairs(judged, gold_scores(judged.pairs, paths), correlations)


def evaluate_pairs(request: PairsRequest) -> TaskReport:
    """Measure every asked cut of every asked model on every task; write tables and figures.

    Accuracy and F1 are those of the threshold that is best on the measured pairs, for the cosine
    and for the dot product of the cut vectors. Both texts of a pair are encoded as documents are.

    Raises:
        UserError: a task is unknown or is not of two classes, or an encoder lacks a cut; before any
            weight is loaded.
    """
    return measure_tasks(
        request,
        lambda: [_open_pairs(name, request.split) for name in request.tasks],
        request.measures,
    )


def _open_pairs(names: str, split: str) -> SentenceTask:
    found = find_task(names, PAIRS_KIND, PAIRS_WHAT) if "," not in names else None
    if found and found.is_dir():
        judged = open_binary_pairs(str(split_file(found, split or "test")))
    else:
        judged = open_binary_pairs(find_files(names, PAIRS_KIND, PAIRS_WHAT), split)
    alike: NDArray[np.bool_] = np.array([pair.score == 1 for pair in judged.pairs])
    return task_of_pairs(judged, alike, separations)


# Shapes in this file:
#   N distinct texts, H width.


KIND = "classification"
WHAT = "a folder of train.csv and test.csv, a file of labelled texts with a column of splits"


@dataclass(frozen=True)
class _Rows:
    """The distinct texts of a task, and the rows of each experiment among them."""

    train: Ints
    train_labels: Ints
    draws: Sequence[Ints]  # places in `train`, for each experiment
    test: Ints
    test_labels: Ints


def evaluate_classification(request: ClassificationRequest) -> TaskReport:
    """Measure every asked cut of every asked model on every task; write tables and figures.

    A logistic regression is fitted on frozen vectors: cut, and then of length one where the model
    compares by cosine, as its folder gives them in sentence-transformers. Texts are encoded as
    documents are, once, at all layers, and only those that an experiment uses.

    Raises:
        UserError: scikit-learn is absent, a task is unknown or malformed, or an encoder lacks a
            cut; before any weight is loaded.
    """
    if min(request.samples, request.experiments, request.iterations) < 1:
        raise UserError("Samples, experiments and iterations count from 1; give at least one each.")
    require_scikit_learn()
    return measure_tasks(
        request, lambda: [_open(request, name) for name in request.tasks], request.measures
    )


def _open(request: ClassificationRequest, name: str) -> SentenceTask:
    labelled = open_labelled_texts(find_task(name, KIND, WHAT, SUFFIXES), request.split)
    draws = _draws(request, labelled.train)
    texts, rows = _rows(labelled, draws)
    how = Regression(request.iterations, request.seed)
    return SentenceTask(
        labelled.name,
        labelled.split,
        texts,
        len(labelled.test),
        "texts",
        lambda encoded: _measured(labelled.name, encoded, rows, how),
        _protocol_notes(request, labelled),
    )


def _draws(request: ClassificationRequest, train: Sequence[LabelledText]) -> list[Ints]:
    if request.protocol == "full":
        return [np.arange(len(train))]
    labels = [row.label for row in train]
    return sample_per_label(labels, request.samples, request.experiments, request.seed)


def _rows(labelled: LabelledTexts, draws: Sequence[Ints]) -> tuple[list[str], _Rows]:
    """Return the distinct texts of all experiments, and the place of each row among them."""
    used = np.unique(np.concatenate(draws))
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
    among = [np.searchsorted(used, draw) for draw in draws]
    return list(places), _Rows(train_rows, train_labels, among, test_rows, test_labels)


def _measured(name: str, encoded: Encoded, rows: _Rows, how: Regression) -> Measured:
    found: dict[Cut, ClassifierScores] = {}
    fits = len(encoded.layers) * len(encoded.dims) * len(rows.draws)
    with progress(f"Fitting {name}", fits, "classifiers") as advance:
        for layer, vectors in zip(encoded.layers, encoded.vectors, strict=True):
            require_finite(vectors)
            for dim in encoded.dims:
                cut = prefixes(vectors, dim, encoded.card.similarity)
                found[Cut(layer, dim)] = _learnt(cut, rows, how)
                advance(len(rows.draws))
    cells = {cut: learnt.measures for cut, learnt in found.items()}
    return Measured(cells, _fit_notes(found, len(rows.draws), how))


def _learnt(vectors: NDArray[np.float32], rows: _Rows, how: Regression) -> ClassifierScores:
    """Fit and test classifiers on the vectors [N, dim] of one cut."""
    return learn(
        vectors[rows.train],
        rows.train_labels,
        rows.draws,
        vectors[rows.test],
        rows.test_labels,
        how,
    )


def _fit_notes(
    found: Mapping[Cut, ClassifierScores], experiments: int, how: Regression
) -> tuple[str, ...]:
    """Return a note on fits that did not converge."""
    stopped = {cut: learnt.stopped for cut, learnt in found.items() if learnt.stopped}
    if not stopped:
        return ()
    where = ", ".join(f"{cut} {count}" for cut, count in sorted(stopped.items()))
    return (
        f"{sum(stopped.values())} of {len(found) * experiments} fits had not converged after "
        f"{counted(how.iterations, 'iterations')}: {where} of {experiments}",
    )


def _protocol_notes(request: ClassificationRequest, labelled: LabelledTexts) -> tuple[str, ...]:
    counts = Counter(row.label for row in labelled.train)
    if request.protocol == "full":
        return (f"one fit on all {counted(len(labelled.train), 'texts')} of the split train",)
    note = (
        f"the mean over {counted(request.experiments, 'experiments')} with "
        f"{counted(request.samples, 'texts')} per label "
        f"(MTEB's protocol, seed {request.seed})"
    )
    fewer = sum(count < request.samples for count in counts.values())
    return (note, f"fewer texts than that: {counted(fewer, 'labels')}") if fewer else (note,)
