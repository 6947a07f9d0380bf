"""A trained model becomes the cells of its grid; what is measured is not measured again."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import sentences
import small
from claims import BELOW, SHALLOW, WHOLE, Evaluation, Kind, Model
from training import TITLED, Scale, cut_of, has_titles, write

from m2dr.core.errors import UserError
from m2dr.core.records import Cut, ModelCard, default_dims
from m2dr.core.requests import EvaluateRequest
from m2dr.model.checkpoint import read_card
from m2dr.tasks.evaluating.evaluate import evaluate

LAYERS = 12  # the last ones, of which ESE reports means
Values = Mapping[str, Mapping[str, float]]  # measure -> cut -> value
FOLDERS: Mapping[Kind, tuple[str, str]] = {  # below DATA, and what belongs there
    "retrieval": ("", "folders in the layout of BEIR, or the official files of MS MARCO"),
    "sts": ("sts", "tables of score, sentence1, sentence2"),
    "classification": ("classification", "folders of train.csv and test.csv, of text and label"),
    "pairs": ("pair-classification", "tables or folders of sentence1, sentence2, label"),
}


@dataclass(frozen=True)
class Place:
    """One collection or task on this machine."""

    name: str
    path: str


@dataclass(frozen=True)
class Found:
    """The places that are here, and what is said of those that are not."""

    places: tuple[Place, ...]
    missing: str = ""  # empty: nothing


@dataclass(frozen=True)
class Measured:
    """What the cuts of a model are worth."""

    values: Mapping[str, Values]  # by name of the place
    details: Mapping[str, str]  # by place, where the scores of every query or pair lie
    kind: Kind
    seconds: float
    now: bool  # whether some of it was measured now

    def on(self, name: str = "") -> tuple[str, ...]:
        """The places that a claim is about: one, or all."""
        return (name,) if name else tuple(self.values)

    def holds(self, word: str, measure: str, name: str = "") -> bool:
        """Whether a cell was measured."""
        cells = [self.values.get(place, {}).get(measure, {}) for place in self.on(name)]
        wanted = [{*meant(word, {measure: some})} if some else set() for some in cells]
        return all(cuts and cuts <= some.keys() for cuts, some in zip(wanted, cells, strict=True))

    def value(self, word: str, measure: str, name: str = "") -> float:
        """A cell: the mean over the places, and over the cuts that the word stands for."""
        return fmean(
            fmean(self.values[place][measure][cut] for cut in meant(word, self.values[place]))
            for place in self.on(name)
        )


def meant(word: str, values: Values) -> list[str]:
    """The measured cuts that the word of a cell stands for.

    >>> values = {"RR@10": dict.fromkeys(("L1D8", "L1D12", "L1D16", "L2D8", "L2D12", "L2D16"), 0)}
    >>> meant("whole", values), meant("shallow", values), meant("below", values)
    (['L2D16'], ['L1D16'], ['L1D8', 'L1D16'])
    """
    cuts = [Cut.parse(cut) for cut in next(iter(values.values()))]
    last, width = max(cut.layer for cut in cuts), max(cut.dim for cut in cuts)
    dims = {WHOLE: (width,), SHALLOW: (width,), BELOW: default_dims(width)}
    if word not in dims:
        return [word]
    layers = {last} if word == WHOLE else {cut.layer for cut in cuts} - {last}
    return [str(cut) for cut in cuts if cut.layer in layers and cut.dim in dims[word]]


def places(evaluation: Evaluation, scale: Scale) -> Found:
    """What is here of all that an evaluation is measured on.

    Raises:
        UserError: nothing of it is.
    """
    folder, layout = FOLDERS[evaluation.kind]
    make = small.MAKERS[evaluation.kind]
    found, missing = [], []
    for task in evaluation.small if scale.small else evaluation.tasks:
        path: Path | str = small.path_of(scale.data / folder, task, evaluation.kind)
        if task == "msmarco" and has_titles(scale.data):
            path = scale.data / TITLED
        try:
            path = make(task, scale.data, scale.samples) if scale.small else path
        except small.MissingError as error:
            missing += error.names
            continue
        if scale.small or all(Path(part).exists() for part in str(path).split(",")):
            found.append(Place(Path(task).name, str(path)))
        else:
            missing.append(str(path))
    told = (
        f"Not measured for want of {', '.join(missing)}: put it there ({layout}), or name another "
        "folder with --data, and run again; what is measured stays."
    )
    if not found:
        raise UserError(told)
    return Found(tuple(found), told if missing else "")


def measured(
    model: Model, path: str, evaluation: Evaluation, scale: Scale, found: Sequence[Place]
) -> Measured:
    """Measure every cut of a model on each place where it is not measured yet."""
    card = read_card(path)
    cuts = _layers(model, evaluation, card, scale), _dims(model, evaluation, card, scale)
    folder = scale.out / "measured" / _name(evaluation, scale) / model.name
    values: dict[str, Values] = {}
    details: dict[str, str] = {}
    seconds, now = 0.0, False
    for place in found:
        note = folder / f"{place.name}.json"
        key = {"fingerprint": card.fingerprint, "on": place.path, "cuts": list(map(list, cuts))}
        known = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
        if any(known.get(word) != value for word, value in key.items()):
            start = time.monotonic()
            one, detail = MEASURES[evaluation.kind](path, evaluation, place, cuts, scale, note)
            known = {**key, "values": one, "detail": detail, "seconds": time.monotonic() - start}
            write(note, known)
            now = True
        values[place.name], details[place.name] = known["values"], known["detail"]
        seconds += known["seconds"]
    return Measured(values, details, evaluation.kind, seconds, now)


def _name(evaluation: Evaluation, scale: Scale) -> str:
    """The folder of what is measured alike, whatever the experiment."""
    layers = "-last" if evaluation.last else "-even" if evaluation.even and not scale.small else ""
    return evaluation.kind + layers


def _layers(model: Model, evaluation: Evaluation, card: ModelCard, scale: Scale) -> tuple[int, ...]:
    last = card.layers
    if evaluation.last:
        return (last,)
    if model.cut:
        return (Cut.parse(cut_of(model, scale.small)).layer,)
    if evaluation.even and not scale.small:
        return tuple(range(2, last + 1, 2))
    return tuple(range(max(last - LAYERS, 0) + 1, last + 1))


def _dims(model: Model, evaluation: Evaluation, card: ModelCard, scale: Scale) -> tuple[int, ...]:
    """That of a separate model; else all usual ones, and of sentences half of the width too."""
    if model.cut and not model.prefixes:
        return (Cut.parse(cut_of(model, scale.small)).dim,)
    half = () if evaluation.searches else (card.width // 2,)
    return tuple(sorted({*default_dims(card.width), *half}))


def _search(
    path: str,
    evaluation: Evaluation,
    place: Place,
    cuts: tuple[tuple[int, ...], tuple[int, ...]],
    scale: Scale,
    note: Path,  # noqa: ARG001 - of sentences alone
) -> tuple[Values, str]:
    layers, dims = cuts
    report = evaluate(
        EvaluateRequest(
            corpora=(place.path,),
            models=(path,),
            split="test" if scale.small else evaluation.split,
            layers=layers,
            dims=dims,
            measures=(evaluation.measure,),
            exits="model",
            runs="none",
            root=scale.out / "indexes",
            out=scale.out / "results",
            device=scale.device,
        )
    )
    grid = report.places[0].grids[0]
    return sentences.turned(grid), str(report.places[0].folder / grid.model)


def _sentences(
    path: str,
    evaluation: Evaluation,
    place: Place,
    cuts: tuple[tuple[int, ...], tuple[int, ...]],
    scale: Scale,
    note: Path,
) -> tuple[Values, str]:
    grid, detail = sentences.measure(
        sentences.Asked(path, evaluation.kind, place.path, *cuts), scale, note.with_suffix(".npz")
    )
    return sentences.turned(grid), detail


MEASURES: Mapping[Kind, Callable[..., tuple[Any, str]]] = {
    "retrieval": _search,
    "sts": _sentences,
    "classification": _sentences,
    "pairs": _sentences,
}
