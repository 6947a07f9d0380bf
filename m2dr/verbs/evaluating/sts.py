"""`m2dr evaluate sts`: how well every cut of a model tells which sentences are alike."""

from dataclasses import dataclass

from m2dr.evaluate.sentences import correlations, gold_scores
from m2dr.text.judged import open_judged
from m2dr.verbs.evaluating.tasks import (
    Task,
    TaskReport,
    TaskRequest,
    find_files,
    measure_tasks,
    task_of_pairs,
)

WHAT = "a file of scored sentence pairs"


@dataclass(frozen=True)
class StsRequest(TaskRequest):
    """What `m2dr evaluate sts` was asked; a task may be several files joined by commas."""

    measures: tuple[str, ...] = ("Spearman",)
    split: str = ""  # of files that hold several


def evaluate_sts(request: StsRequest) -> TaskReport:
    """Measure every asked cut of every asked model on every task; write tables and figures.

    Likeness is the cosine, whatever the model searches with, and a correlation is over all pairs
    of a task together, also of one made of several files. The two sentences of a pair play the
    same part, so both are encoded as documents are: with the model's document prefix and length.

    Raises:
        UserError: a task is unknown or has no scores, or an encoder lacks a cut; before any weight
            is loaded.
    """
    return measure_tasks(
        request,
        lambda: [_open(name, request.split) for name in request.tasks],
        request.measures,
    )


def _open(names: str, split: str) -> Task:
    paths = find_files(names, "sts", WHAT)
    judged = open_judged(paths, split)
    return task_of_pairs(judged, gold_scores(judged.pairs, paths), correlations)
