"""The rows of experiments.json: models, how they are measured, and what was published of them.

A model is a training; a claim says that one cell is above another, as a paper prints both.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from m2dr.core.errors import UserError
from m2dr.core.records import Cut

BERT, MINILM = (12, 768), (6, 384)  # layers and width: of the papers, and at small scale
SHALLOW, WHOLE, BELOW = "shallow", "whole", "below"  # cells beside cuts; see `Cell`
FOLDER = Path(__file__).parent
Kind = Literal["retrieval", "sts", "classification", "pairs"]


@dataclass(frozen=True)
class Model:
    """One training: a file of configs/ and what it changes in it."""

    name: str  # its folder; scripts that share an --out share it
    config: str  # stem of a file of configs/
    changes: tuple[str, ...] = ()  # as `--set` takes them
    small: tuple[str, ...] = ()  # more of them, at small scale
    cut: str = ""  # of a separate model: the one that it is trained for, as published
    small_cut: str = ""  # the same at small scale, where `scaled` says another
    prefixes: bool = False  # of a separate model: measured at every prefix of its layer
    raw: bool = False  # the backbone of the file as it comes, not trained
    # Of such a folder that names no pooling, similarity or lengths: what the paper's code takes.
    opens: Mapping[str, Any] = field(default_factory=dict)
    paper_only: bool = False  # not tried at small scale
    published: str = ""  # what the published set of an evaluation calls it


@dataclass(frozen=True)
class Cell:
    """A cut of a model and what was published of it.

    Beside cuts there are `whole`; `shallow`, the mean over the measured layers below the last at
    full width, which the tables of ESE call ≺ Avg.; and `below`, the mean over these layers at
    every dim from 8 to the full width.
    """

    model: str
    cut: str
    value: float | None = None  # in the unit of the evaluation; None: said in words, not numbers
    small_cut: str = ""  # at small scale, where `scaled` says another

    def at(self, small: bool) -> str:
        """The cut to look at."""
        return (self.small_cut or scaled(self.cut)) if small else self.cut

    def __str__(self) -> str:
        return f"{self.model} {self.cut}"


@dataclass(frozen=True)
class Claim:
    """What was published: the first cell is above the second."""

    says: str
    above: Cell
    below: Cell
    source: str
    on: str = ""  # one of what the evaluation is measured on; empty: the mean over all of it
    measure: str = ""  # empty: that of the evaluation
    paper_only: bool = False  # at small scale its cells would not be of one kind


@dataclass(frozen=True)
class Evaluation:
    """What all models of an experiment are measured on."""

    name: str
    measure: str
    unit: float = 1.0  # what the tables of the paper multiply a share by
    kind: Kind = "retrieval"
    tasks: tuple[str, ...] = ()  # below DATA, or below the folder of DATA that holds such tasks
    small: tuple[str, ...] = ()  # the same at small scale; of retrieval names of samples
    split: str = "test"
    even: bool = False  # every second layer, as the retrieval paper; else the last twelve
    last: bool = False  # the last layer alone
    published: str = ""  # the set of published numbers that holds whole grids of it

    @property
    def searches(self) -> bool:
        """Whether it is retrieval; else a task of sentences."""
        return self.kind == "retrieval"


@dataclass(frozen=True)
class Table:
    """A table or figure as it is printed.

    Each block, row and column is a label and some fields of its cells: `model` (one name, or
    several joined by |, of which the first that is a model counts), `on`, `cut` (L{layer}D{dim} by
    default), `small`, the cut at small scale where `scaled` says another, and `tested`. `model` and
    `cut` may name other fields in braces.
    """

    title: str
    columns: "Axis"
    rows: "Axis"
    blocks: "Axis"
    marks: Mapping[str, str]  # by mark: the model that a marked cell is significantly above


Axis = tuple[tuple[str, dict[str, Any]], ...]


@dataclass(frozen=True)
class Experiment:
    """Published tables or figures of one kind."""

    name: str
    title: str
    evaluation: Evaluation
    models: tuple[Model, ...]
    claims: tuple[Claim, ...]
    tables: tuple[Table, ...] = ()
    paper_only: bool = False  # not tried at small scale


def scaled(word: str) -> str:
    """The cut of MiniLM that stands for one of BERT base: half the layers, a trained dim as it is.

    The papers train the prefix 128, which fits both; 512 is the dim between it and the full width.

    >>> scaled("L10D512"), scaled("L12D768"), scaled("L2D128"), scaled("shallow")
    ('L5D256', 'L6D384', 'L1D128', 'shallow')
    """
    if word in (SHALLOW, WHOLE, BELOW):
        return word
    cut = Cut.parse(word)
    dims = {384: 192, 512: 256, 768: 384}
    return str(Cut((cut.layer + 1) // 2, dims.get(cut.dim, cut.dim)))


def chosen(experiment: Experiment, only: tuple[str, ...], small: bool) -> tuple[Model, ...]:
    """The models to train.

    Raises:
        UserError: one that was asked for is not of this experiment, or not of this scale.
    """
    if small and experiment.paper_only:
        raise UserError(f"{experiment.name} has no small scale; leave --small out.")
    models = [model for model in experiment.models if not (small and model.paper_only)]
    names = [model.name for model in models]
    strange = [name for name in only if name not in names]
    if strange:
        raise UserError(
            f"--only asks for {', '.join(strange)}, and {experiment.name} has "
            f"{', '.join(names)}{' at small scale' if small else ''}; name some of these."
        )
    return tuple(model for model in models if not only or model.name in only)


def checkable(
    experiment: Experiment, models: tuple[Model, ...], small: bool = False
) -> tuple[Claim, ...]:
    """The claims of this scale of which all models are there."""
    names = {model.name for model in models}
    return tuple(
        claim
        for claim in experiment.claims
        if {claim.above.model, claim.below.model} <= names and not (small and claim.paper_only)
    )


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(each) if isinstance(each, list) else each for name, each in row.items()}


def _axis(told: Any) -> Axis:
    """An axis as experiments.json has it: the values of one field, or labels and their fields."""
    if isinstance(told, str):
        told = _ROWS["axes"][told]
    if isinstance(told, dict):
        ((field, values),) = told.items()
        pairs = [each if isinstance(each, list) else [str(each), each] for each in values]
        return tuple((label, {field: value}) for label, value in pairs)
    return tuple((label, fields) for label, fields in told)


def _table(row: Mapping[str, Any]) -> Table:
    columns, rows, blocks = (
        _axis(row.get(name, [["", {}]])) for name in ("columns", "rows", "blocks")
    )
    return Table(row["title"], columns, rows, blocks, row.get("marks", {}))


_ROWS = json.loads((FOLDER / "experiments.json").read_text(encoding="utf-8"))
MODELS = {name: Model(name, **_plain(row)) for name, row in _ROWS["models"].items()}
EXPERIMENTS = {
    name: Experiment(
        name,
        row["title"],
        Evaluation(**_plain(row["evaluation"])),
        tuple(MODELS[model] for model in row["models"]),
        tuple(
            Claim(says, Cell(*above), Cell(*below), source, **(more[0] if more else {}))
            for says, above, below, source, *more in row["claims"]
        ),
        tuple(map(_table, row.get("tables", ()))),
        row.get("paper_only", False),
    )
    for name, row in _ROWS["experiments"].items()
}


@cache
def grids(name: str, on: str = "") -> Mapping[str, Mapping[str, float | None]]:
    """Recipe -> cut -> value of one published set; empty where there is no such set.

    Args:
        name: of the set.
        on: one of what it was measured on; empty: the mean over all of it.
    """
    known = json.loads((FOLDER / "published.json").read_text(encoding="utf-8"))["sets"].get(name)
    columns = known.get("columns", [""]) if known else []
    if on not in columns:
        return {}
    place = 2 + columns.index(on)
    return {
        recipe: {str(Cut(*cell[:2])): cell[place] for cell in cells}
        for recipe, cells in known["models"].items()
    }
