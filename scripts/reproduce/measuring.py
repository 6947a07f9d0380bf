"""A trained model becomes the cells of its grid; what is measured is not measured again."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import small
from claims import SHALLOW, WHOLE, Evaluation, Model
from training import Scale, cut_of, write

from m2dr.errors import UserError
from m2dr.evaluate.grid import Grid
from m2dr.evaluate.scores import read_scores
from m2dr.model import checkpoint
from m2dr.records.cut import Cut
from m2dr.verbs.evaluating.evaluate import EvaluateRequest, evaluate
from m2dr.verbs.evaluating.sts import StsRequest, evaluate_sts
from m2dr.verbs.evaluating.suites import SUITES

LAYERS = 12  # the last ones, of which ESE reports means


@dataclass(frozen=True)
class Measured:
    """What the cuts of a model are worth."""

    cells: Mapping[str, float]  # cut, `shallow` or `whole` to the mean over what it is measured on
    on: tuple[str, ...]  # what it is measured on
    folders: tuple[str, ...]  # of retrieval: where every query's scores lie
    seconds: float
    now: bool  # whether it was measured now


def measured(model: Model, path: str, evaluation: Evaluation, scale: Scale) -> Measured:
    """Measure every cut of a model.

    Raises:
        UserError: what it is measured on is not there.
    """
    note = scale.out / "measured" / evaluation.name / f"{model.name}.json"
    card = checkpoint.read_card(path)
    places = _places(evaluation, scale)
    if note.exists():
        known = json.loads(note.read_text(encoding="utf-8"))
        if known["fingerprint"] == card.fingerprint and known["on"] == places:
            return Measured(
                known["cells"], tuple(places), tuple(known["folders"]), known["seconds"], False
            )
    layers, dims = _layers(model, evaluation, card.layers, scale), _dims(model, scale)
    start = time.monotonic()
    if evaluation.searches:
        grids, folders = _search(path, evaluation, places, layers, dims, scale)
    else:
        grids, folders = _compare(path, places, layers, dims, scale), []
    cells = _cells(grids, evaluation.measure)
    seconds = time.monotonic() - start
    found: dict[str, Any] = {"fingerprint": card.fingerprint, "on": places, "cells": cells}
    write(note, {**found, "folders": folders, "seconds": seconds})
    return Measured(cells, tuple(places), tuple(folders), seconds, True)


def _places(evaluation: Evaluation, scale: Scale) -> list[str]:
    """Collections or files to measure on."""
    if scale.small:
        make = small.collection if evaluation.searches else small.sts_task
        return [make(name, scale.data, scale.samples) for name in evaluation.small]
    if evaluation.suite:
        names = SUITES[evaluation.suite]
        paths = [scale.data / "beir" / name for name in names]
        found = [str(path) for path in paths if path.exists()]
        return found or _absent(f"one of {', '.join(names)}", scale.data / "beir")
    if evaluation.corpus:
        path = scale.data / evaluation.corpus
        return [str(path)] if path.exists() else _absent(evaluation.corpus, scale.data)
    paths = [scale.data / "sts" / f"{task}.tsv" for task in evaluation.tasks]
    missing = [path.name for path in paths if not path.exists()]
    return _absent(", ".join(missing), scale.data / "sts") if missing else list(map(str, paths))


def _absent(what: str, folder: Path) -> list[str]:
    raise UserError(
        f"This is measured on {what}, not found in {folder}; put it there, name another folder "
        "with --data, or try the small scale with --small."
    )


def _layers(model: Model, evaluation: Evaluation, blocks: int, scale: Scale) -> tuple[int, ...]:
    if model.cut:
        return (Cut.parse(cut_of(model, scale.small)).layer,)
    if scale.small:
        return tuple(range(1, blocks + 1))
    if evaluation.even:
        return tuple(range(2, blocks + 1, 2))
    return tuple(range(max(blocks - LAYERS, 0) + 1, blocks + 1))


def _dims(model: Model, scale: Scale) -> tuple[int, ...]:
    """That of a separate model; else all that are usual, told as none."""
    return (Cut.parse(cut_of(model, scale.small)).dim,) if model.cut else ()


def _search(
    path: str,
    evaluation: Evaluation,
    places: Sequence[str],
    layers: tuple[int, ...],
    dims: tuple[int, ...],
    scale: Scale,
) -> tuple[list[Grid], list[str]]:
    split = "test" if scale.small else evaluation.split
    report = evaluate(
        EvaluateRequest(
            corpora=tuple(places),
            models=(path,),
            split=split,
            layers=layers,
            dims=dims,
            measures=(evaluation.measure,),
            runs="none",
            root=scale.out / "indexes",
            out=scale.out / "results",
            device=scale.device,
        )
    )
    grids = [place.grids[0] for place in report.places]
    return grids, [str(place.folder / place.grids[0].model) for place in report.places]


def _compare(
    path: str,
    places: Sequence[str],
    layers: tuple[int, ...],
    dims: tuple[int, ...],
    scale: Scale,
) -> list[Grid]:
    request = StsRequest(
        tuple(places), (path,), layers, dims, out=scale.out / "results", device=scale.device
    )
    report = evaluate_sts(request)
    return [grids[0] for grids in report.tasks[: len(places)]]  # their mean is the last


def _cells(grids: Sequence[Grid], measure: str) -> dict[str, float]:
    """Means over the grids, and over the shallow layers."""
    first = grids[0]
    means = {cut: fmean(grid.cells[cut][measure] for grid in grids) for cut in first.cuts}
    cells = {str(cut): mean for cut, mean in means.items()}
    layers, width = first.layers, max(first.dims)
    cells[WHOLE] = means[Cut(layers[-1], width)]
    if len(layers) > 1:
        cells[SHALLOW] = fmean(means[Cut(layer, width)] for layer in layers[:-1])
    return cells


def error_of_difference(
    above: Measured, cut: str, below: Measured, other: str, measure: str
) -> float | None:
    """Standard error of the difference of two cells over the queries, paired; None of sentences."""
    if not above.folders or not below.folders:
        return None
    squares = []
    for one, two in zip(above.folders, below.folders, strict=True):
        first = read_scores(Path(one))[measure].at(Cut.parse(cut))
        second = read_scores(Path(two))[measure].at(Cut.parse(other))
        apart = first - second
        if len(apart) > 1:
            squares.append(float(np.var(apart, ddof=1)) / len(apart))
    return math.sqrt(sum(squares)) / max(len(squares), 1)
