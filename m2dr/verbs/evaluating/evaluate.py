"""`m2dr evaluate`: every cut of a model on a corpus, from one pass over its documents."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Literal

from m2dr.errors import UserError
from m2dr.evaluate.figures import quality_over_dims
from m2dr.evaluate.grid import Grid, average
from m2dr.evaluate.report import (
    text_comparison,
    text_cross,
    text_table,
    write_cross,
    write_csv,
    write_json,
)
from m2dr.evaluate.usual import usual, usual_split
from m2dr.index.exit_files import fitting_exits
from m2dr.io import locked
from m2dr.model import checkpoint
from m2dr.model.devices import choose_device
from m2dr.records.card import ModelCard
from m2dr.verbs.corpora import open_corpus
from m2dr.verbs.evaluating.measuring import Measuring, Runs
from m2dr.verbs.evaluating.pairing import Pairing, pairings
from m2dr.verbs.evaluating.ranking import Ranker, Task
from m2dr.verbs.evaluating.suites import SUITES, collections_of, corpora_of
from m2dr.verbs.fitting.solving import fitted_cuts
from m2dr.verbs.indexing.fit_index import FitIndexRequest, fit_index
from m2dr.verbs.indexing.index import encode_corpus
from m2dr.verbs.indexing.request import INDEXES, IndexRequest
from m2dr.verbs.models import cuts_of, names_of, newest_model
from m2dr.verbs.progress import say

RESULTS = Path("results")


@dataclass(frozen=True)
class EvaluateRequest:
    """What `m2dr evaluate` was asked."""

    corpora: tuple[str, ...] = ()  # names that `m2dr.text.datasets` knows
    models: tuple[str, ...] = ()  # empty: the newest trained one
    split: str = ""  # empty: test; dev of BEIR's msmarco
    suite: str = ""  # in place of, or beside, the corpora
    layers: tuple[int, ...] = ()  # empty: all
    dims: tuple[int, ...] = ()  # empty: powers of two from 8, and the full width
    documents: str = "trained"  # whose documents are searched: see m2dr.verbs.evaluating.pairing
    exits: Literal["model", "index"] = "model"  # of queries: those fitted on the documents, or not
    measures: tuple[str, ...] = ()  # empty: what is usual on the corpus and split
    runs: Runs = "whole"  # which cuts' runs are written
    again: bool = False  # measure again what was measured before
    root: Path = INDEXES
    out: Path = RESULTS
    device: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True)
class Place:
    """What was found on one corpus."""

    corpus: str  # as it was named
    split: str
    models: tuple[str, ...]  # of each grid, as it was named
    grids: tuple[Grid, ...]  # of each model one; with crossed layers one per layer of documents
    crosses: Mapping[str, Mapping[int, Grid]]  # model -> layer of documents -> grid; if crossed
    usual: str  # what the measures are usual on; empty when they were asked for
    folder: Path
    figures: tuple[Path, ...]


@dataclass(frozen=True)
class EvaluateReport:
    """What was found, and where it lies."""

    places: tuple[Place, ...]  # one for each corpus
    means: tuple[Grid, ...]  # over several corpora, of each model
    out: Path
    seconds: float

    @property
    def grids(self) -> tuple[Grid, ...]:
        """Those of the first corpus."""
        return self.places[0].grids

    @property
    def folder(self) -> Path:
        """Where tables and runs lie."""
        return self.places[0].folder if len(self.places) == 1 else self.out

    @property
    def figures(self) -> tuple[Path, ...]:
        """Those of all corpora."""
        return tuple(chain.from_iterable(place.figures for place in self.places))


def evaluate(request: EvaluateRequest) -> EvaluateReport:
    """Measure every asked cut of every asked model on every corpus; write tables, runs, figures.

    What was measured before, of the same model, documents, queries and judgements, is not
    measured again.

    Raises:
        UserError: a corpus, split, model, measure or cut is not there; before any weight is
            loaded, as far as it can be known.
    """
    begun = time.monotonic()
    corpora = (*request.corpora, *(corpora_of(request.suite) if request.suite else ()))
    if not corpora:
        raise UserError(
            f"No corpus was asked for; give --corpus, or --suite {' or '.join(SUITES)}."
        )
    models = request.models or (newest_model(),)
    names = names_of(models)
    sets = [collections_of(corpus) for corpus in corpora]
    places = [tuple(_place(request, part, models, names) for part in parts) for _, parts in sets]
    every = tuple(chain.from_iterable(places))
    means = tuple(_means(request, [name for name, _ in sets], places)) if len(every) > 1 else ()
    return EvaluateReport(every, means, request.out, time.monotonic() - begun)


def _place(
    request: EvaluateRequest, corpus: str, models: Sequence[str], names: Sequence[str]
) -> Place:
    dataset = open_corpus(corpus)
    split = request.split or usual_split(dataset.name, dataset.splits)
    custom = usual(f"{_spoken(corpus)} {dataset.name}", split)
    task = Task(dataset, split, request.measures or custom.measures)
    folder = request.out / dataset.name / split
    found: list[Grid] = []
    named: list[str] = []
    crosses: dict[str, dict[int, Grid]] = {}
    for model, name in zip(models, names, strict=True):
        grids = list(_grids(request, corpus, task, model, name))
        found += grids
        named += [model] * len(grids)
        if request.documents == "cross":
            crosses[name] = dict(zip(grids[0].layers, grids, strict=True))
            for dim in grids[0].dims:
                write_cross(crosses[name], dim, folder / f"{name}.cross" / f"dim-{dim}.csv")
    figures = []
    for measure in found[0].measures if not crosses else ():
        figures.append(folder / f"{'-'.join(grid.model for grid in found)}_{_plain(measure)}.png")
        quality_over_dims(found, measure, figures[-1])
    known = "" if request.measures else custom.name
    return Place(corpus, split, tuple(named), tuple(found), crosses, known, folder, tuple(figures))


def _grids(
    request: EvaluateRequest, corpus: str, task: Task, model: str, name: str
) -> Iterator[Grid]:
    """Of one model on one corpus, one for each way to pair layers; written as they come."""
    card = checkpoint.read_card(model)
    if request.exits == "index":
        card, name = _through_exits(card, request.documents), f"{name}.index-exits"
    cuts = cuts_of(card, request.layers, request.dims, model)
    layers = sorted({cut.layer for cut in cuts})
    dims = tuple(sorted({cut.dim for cut in cuts}))
    asked = pairings(card, layers, request.documents)
    home = request.out / task.dataset.name / task.split
    folders = [home / f"{name}{pairing.suffix}" for pairing in asked]
    with ExitStack() as held:
        for folder in folders:
            held.enter_context(locked(folder, "give another --out"))
        ranker = _ranker(request, corpus, task, model, card, dims, asked)
        measuring = Measuring(ranker, request.runs, request.again)
        for pairing, folder in zip(asked, folders, strict=True):
            grid = measuring.grid(f"{name}{pairing.suffix}", pairing, folder)
            write_json(grid, folder / "grid.json")
            write_csv([grid], folder / "grid.csv")
            yield grid


def _through_exits(card: ModelCard, documents: str) -> ModelCard:
    """Return the card of a model whose queries pass the exits of an index."""
    if documents not in ("trained", "last"):
        raise UserError(
            f"--documents {documents} was asked for, and the exits of an index search the "
            "documents of its last layer alone. Leave it out."
        )
    return replace(card, exit_head="fitted", documents="last", cuts=fitted_cuts(card))


def _ranker(
    request: EvaluateRequest,
    corpus: str,
    task: Task,
    model: str,
    card: ModelCard,
    dims: tuple[int, ...],
    asked: Sequence[Pairing],
) -> Ranker:
    """Encode what documents are not yet encoded, at every layer that a pairing wants.

    The judgements are read first: a split that cannot be measured costs no encoding.
    """
    task.require()
    sources = sorted({layer for pairing in asked for layer in pairing.layers.values()})
    where: dict[str, Any] = {"root": request.root, "device": request.device, "dtype": request.dtype}
    by_index = request.exits == "index"
    index = IndexRequest(corpus, model, exits=by_index, **where)
    own = checkpoint.read_card(model)
    stores = dict(zip(sources, encode_corpus(index, model, own, sources), strict=True))
    exits = None
    if by_index:
        exits = fitting_exits(stores[card.layers].folder)
        exits = exits or fit_index(FitIndexRequest(corpus, model, **where))[0]
    device = str(choose_device(request.device))
    return Ranker(task, model, card, stores, dims, device, request.dtype, exits)


def _means(
    request: EvaluateRequest, names: Sequence[str], places: Sequence[Sequence[Place]]
) -> Iterator[Grid]:
    """Yield the plain means of each model, of the measures that all corpora have.

    Those over the parts of a set come first, where the set has a name; then that over all sets.
    """
    every = [place.grids[0].measures for parts in places for place in parts]
    common = [name for name in every[0] if all(name in measures for measures in every)]
    if not common:
        say("No measure is usual on all of these corpora, so there is no mean; give --measure.")
        return
    wholes = []
    for name, parts in zip(names, places, strict=True):
        by_model = zip(*(place.grids for place in parts), strict=True)
        grids = [[_only(grid, common) for grid in group] for group in by_model]
        means = [average(group, name) for group in grids] if name else []
        yield from (_written(request, mean) for mean in means)
        wholes.append(means or [group[0] for group in grids])
    if len(wholes) > 1:
        suite = request.suite and not request.corpora
        name = f"{request.suite}-{len(places)}-of-{len(SUITES[request.suite])}" if suite else ""
        for group in zip(*wholes, strict=True):
            yield _written(request, average(group, name))


def _written(request: EvaluateRequest, mean: Grid) -> Grid:
    folder = request.out / mean.corpus.replace(" ", "-") / mean.model
    write_json(mean, folder / "grid.json")
    write_csv([mean], folder / "grid.csv")
    return mean


def _only(grid: Grid, measures: Sequence[str]) -> Grid:
    cells = {cut: {name: held[name] for name in measures} for cut, held in grid.cells.items()}
    return Grid(grid.model, grid.corpus, grid.split, grid.queries, cells, grid.notes, grid.unit)


def tables(grids: Sequence[Grid]) -> str:
    """Each measure as a table; several models stand under each other at each layer."""
    measures = grids[0].measures
    if len(grids) == 1:
        return "\n\n".join(text_table(grids[0], measure) for measure in measures)
    return "\n\n".join(text_comparison(grids, measure) for measure in measures)


def told(report: EvaluateReport) -> str:
    """The tables of all corpora, their means, and after the tables what looks wrong."""
    parts = []
    for place in report.places:
        if place.usual:
            names = ", ".join(place.grids[0].measures)
            parts.append(f"Measures as is usual on {place.usual}: {names}")
        parts.append(_crossed(place) if place.crosses else tables(place.grids))
        alarms: dict[str, list[str]] = {}
        for grid in place.grids:
            for alarm in grid.alarms:
                alarms.setdefault(alarm, []).append(grid.model)
        said = (f"Alarm ({', '.join(models)}): {alarm}" for alarm, models in alarms.items())
        parts.append("\n".join(said))
    of_corpora = groupby(report.means, key=lambda grid: grid.corpus)
    parts += [tables(tuple(grids)) for _, grids in of_corpora]
    return "\n\n".join(part for part in parts if part)


def _crossed(place: Place) -> str:
    """The first measure at every dim; files hold the others."""
    measure = place.grids[0].measures[0]
    return "\n\n".join(
        text_cross(model, cross, dim, measure)
        for model, cross in place.crosses.items()
        for dim in next(iter(cross.values())).dims
    )


def _spoken(corpus: str) -> str:
    """A corpus as its name or the last two parts of its folder call it."""
    path = Path(corpus)
    return "/".join(path.resolve().parts[-2:]) if path.exists() else corpus


def _plain(measure: str) -> str:
    """A measure as a file name."""
    return "".join(char if char.isalnum() or char in "@.-" else "-" for char in measure)
