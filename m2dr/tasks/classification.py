"""`m2dr evaluate classification`: how well a linear classifier reads every cut's vectors."""

# Shapes in this file:
#   N distinct texts, H width.

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError, counted
from m2dr.core.progress import progress
from m2dr.core.records import Cut
from m2dr.core.requests import ClassificationRequest
from m2dr.data.classification import SUFFIXES, LabelledText, LabelledTexts, open_labelled_texts
from m2dr.evaluate.sentence_tasks import (
    ClassifierScores,
    Ints,
    Regression,
    learn,
    require_finite,
    require_scikit_learn,
    sample_per_label,
)
from m2dr.index.vectors import prefixes
from m2dr.tasks.sentence_tasks import (
    Encoded,
    Measured,
    SentenceTask,
    TaskReport,
    find_task,
    measure_tasks,
)

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
