"""`m2dr evaluate pairs`: how well a threshold tells pairs that are alike from the others."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from m2dr.evaluate.pairclasses import separations
from m2dr.text.judged import open_classes
from m2dr.text.labelled import split_file
from m2dr.verbs.evaluating.tasks import (
    Task,
    TaskReport,
    TaskRequest,
    find_files,
    find_task,
    measure_tasks,
    task_of_pairs,
)

KIND = "pair-classification"
WHAT = "a file of sentence pairs labelled 1, alike, or 0, or a folder of such a file per split"


@dataclass(frozen=True)
class PairsRequest(TaskRequest):
    """What `m2dr evaluate pairs` was asked; a task may be several files joined by commas."""

    measures: tuple[str, ...] = ("cosine-AP",)
    split: str = ""  # of files that hold several; of a folder the file, test where none is named


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
        lambda: [_open(name, request.split) for name in request.tasks],
        request.measures,
    )


def _open(names: str, split: str) -> Task:
    found = find_task(names, KIND, WHAT) if "," not in names else None
    if found and found.is_dir():
        judged = open_classes(str(split_file(found, split or "test")))
    else:
        judged = open_classes(find_files(names, KIND, WHAT), split)
    alike: NDArray[np.bool_] = np.array([pair.score == 1 for pair in judged.pairs])
    return task_of_pairs(judged, alike, separations)
