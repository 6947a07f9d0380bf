"""`m2dr evaluate`: measure every cut of a model on a corpus in one pass over its documents."""

import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from m2dr.core.errors import UserError, command, nearest
from m2dr.core.files import lock_folder, short_name
from m2dr.core.progress import say
from m2dr.core.records import ModelCard
from m2dr.core.requests import (
    CompareRequest,
    CostsRequest,
    EvaluateRequest,
    FitIndexRequest,
    IndexRequest,
)
from m2dr.data import beir
from m2dr.evaluate.comparison import Comparison, comparison_record
from m2dr.evaluate.costs import Costs, costs_record
from m2dr.evaluate.figures import quality_over_dims
from m2dr.evaluate.grid import (
    Grid,
    Provenance,
    average,
    grid_record,
    package_versions,
    text_comparison,
    text_cross,
    text_table,
    write_cross,
    write_csv,
    write_grid,
    write_provenance,
)
from m2dr.evaluate.measures import BEIR13, OTHER_NAMES, default_measures, default_split
from m2dr.index.exit_files import fitting_exits
from m2dr.index.layout import STORE, store_folder
from m2dr.index.manifest import StoreManifest
from m2dr.model.devices import choose_device
from m2dr.model.folder import read_card
from m2dr.tasks.compare import compare_folders
from m2dr.tasks.costs import measure_costs
from m2dr.tasks.encode_texts import open_corpus
from m2dr.tasks.encoder import cuts_of, names_of, newest_model, through_exits
from m2dr.tasks.index import encode_corpus, fit_index
from m2dr.tasks.ranking import (
    INDEX_EXITS,
    GridEvaluation,
    GridRanker,
    Pairing,
    RankingTask,
    pairing_of,
    pairings,
)

SUITES = {"beir13": BEIR13}


def corpora_of(suite: str) -> tuple[str, ...]:
    """Return the folders of a suite's corpora that are present, in the order of the suite.

    The names of absent ones are shown. Folders have the names that BEIR publishes, and lie in
    `$M2DR_DATA/beir`, `data`, `datasets` or the `beir` in either.

    Raises:
        UserError: the suite is unknown, or none of its corpora is present.
    """
    if suite not in SUITES:
        raise UserError(f"There is no suite {suite!r}. {nearest(suite, SUITES)}")
    found = {name: _folder(name) for name in SUITES[suite]}
    absent = [name for name, folder in found.items() if folder is None]
    present = tuple(str(folder) for folder in found.values() if folder is not None)
    if not present:
        looked = ", ".join(map(str, _places()))
        raise UserError(
            f"None of the {len(found)} corpora of {suite} was found in {looked}. Put their folders "
            f"(corpus.jsonl, queries.jsonl, qrels/) into one of these, or set M2DR_DATA to the "
            f"folder that holds beir/."
        )
    if absent:
        say(f"{len(present)} of {len(found)} corpora of {suite} are here; absent: {_list(absent)}")
    return present


def collections_of(corpus: str) -> tuple[str, tuple[str, ...]]:
    """Return the name of a mean over the collections that a name stands for, and these.

    CQADupStack is twelve collections, and its measures are the plain means over them, as BEIR
    reports them. Absent ones are shown, and the mean is named after how many there are.
    Any other name stands for itself, and has no mean.
    """
    parts = beir.parts_of(corpus)
    if not parts:
        return "", (corpus,)
    present = tuple(str(folder) for folder in parts.values() if folder is not None)
    name = next(folder for folder in parts.values() if folder is not None).resolve().parent.name
    absent = [part for part, folder in parts.items() if folder is None]
    if absent:
        say(f"{len(present)} of {len(parts)} parts of {name} are here; absent: {_list(absent)}")
        name = f"{name}-{len(present)}-of-{len(parts)}"
    return name, present


def _places() -> tuple[Path, ...]:
    given = beir.data_folders()
    return tuple(dict.fromkeys([*given, *(place / "beir" for place in given)]))


def _folder(name: str) -> Path | None:
    candidates = (place / one for place in _places() for one in (name, *OTHER_NAMES.get(name, ())))
    # The folder itself: a bare name would also find one of the working folder.
    return next((path for path in candidates if path.is_dir() and beir.recognises(str(path))), None)


def _list(names: list[str]) -> str:
    return ", ".join(names)


@dataclass(frozen=True)
class _Asked:
    """One corpus to measure on."""

    corpus: str  # as it was named
    task: RankingTask
    default_of: str  # the data that the measures are the default of; empty when asked for


@dataclass(frozen=True)
class CorpusResult:
    """The grids of one corpus, and where they were written."""

    corpus: str  # as it was named
    split: str
    models: tuple[str, ...]  # of each grid, as it was named
    grids: tuple[Grid, ...]  # of each model one; with crossed layers one per layer of documents
    crosses: Mapping[str, Mapping[int, Grid]]  # model -> layer of documents -> grid; if crossed
    default_of: str  # the data that the measures are the default of; empty when asked for
    folder: Path
    figures: tuple[Path, ...]


@dataclass(frozen=True)
class EvaluateReport:
    """The grids of all corpora, and where they were written."""

    places: tuple[CorpusResult, ...]  # one for each corpus
    means: tuple[Grid, ...]  # over several corpora, of each model
    out: Path
    seconds: float

    @property
    def grids(self) -> tuple[Grid, ...]:
        """Grids of the first corpus."""
        return self.places[0].grids

    @property
    def folder(self) -> Path:
        """Folder of the tables and runs."""
        return self.places[0].folder if len(self.places) == 1 else self.out

    @property
    def figures(self) -> tuple[Path, ...]:
        """Figures of all corpora."""
        return tuple(chain.from_iterable(place.figures for place in self.places))


def evaluate(request: EvaluateRequest) -> EvaluateReport:
    """Measure every asked cut of every asked model on every corpus; write tables, runs, figures.

    What was measured before, of the same model, documents, queries and judgements, is not
    measured again.

    Raises:
        UserError: a corpus, split, model, measure or cut is not there, or two corpora share a
            folder; before any weight is loaded, as far as it can be known.
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
    asked = [[_asked(request, part) for part in parts] for _, parts in sets]
    _require_distinct(request, chain.from_iterable(asked))
    places = [tuple(_place(request, one, models, names) for one in parts) for parts in asked]
    every = tuple(chain.from_iterable(places))
    means = tuple(_means(request, [name for name, _ in sets], places)) if len(every) > 1 else ()
    return EvaluateReport(every, means, request.out, time.monotonic() - begun)


def _asked(request: EvaluateRequest, corpus: str) -> _Asked:
    """Open a corpus; nothing but the names of its splits is needed yet."""
    dataset = open_corpus(corpus)
    split = dataset.canonical(request.split or default_split(dataset.name, dataset.splits))
    defaults = default_measures(f"{_spoken(corpus)} {dataset.name}", split)
    task = RankingTask(dataset, split, request.measures or defaults.measures)
    return _Asked(corpus, task, "" if request.measures else defaults.name)


def _require_distinct(request: EvaluateRequest, every: Iterable[_Asked]) -> None:
    """Raise UserError if two corpora have one name and split, and so one folder."""
    given: dict[Path, str] = {}
    for one in every:
        folder = _folder_of(request, one.task)
        if folder in given:
            models = request.models
            out = f"{request.out}-2"
            apart = command("evaluate", "retrieval", corpus=one.corpus, models=models, out=out)
            raise UserError(
                f"The corpora {given[folder]} and {one.corpus} were asked for, and the results of "
                f"both would lie in {folder}; give each once, or measure one apart with: {apart}"
            )
        given[folder] = one.corpus


def _folder_of(request: EvaluateRequest, task: RankingTask) -> Path:
    return request.out / task.dataset.name / task.split


def _place(
    request: EvaluateRequest, asked: _Asked, models: Sequence[str], names: Sequence[str]
) -> CorpusResult:
    corpus, task = asked.corpus, asked.task
    folder = _folder_of(request, task)
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
    drawn = "-".join(grid.model for grid in found)
    for measure in found[0].measures if not crosses else ():
        figures.append(folder / f"{short_name(f'{drawn}_{_plain(measure)}')}.png")
        quality_over_dims(found, measure, figures[-1])
    return CorpusResult(
        corpus,
        task.split,
        tuple(named),
        tuple(found),
        crosses,
        asked.default_of,
        folder,
        tuple(figures),
    )


def _grids(
    request: EvaluateRequest, corpus: str, task: RankingTask, model: str, name: str
) -> Iterator[Grid]:
    """Yield the grids of a model on a corpus, one per pairing of layers, each written at once."""
    card = read_card(model)
    if request.exits == "index":
        _refuse_documents(request.documents)
        card, name = through_exits(card), f"{name}{INDEX_EXITS}"
    cuts = cuts_of(card, request.layers, request.dims, model)
    layers = sorted({cut.layer for cut in cuts})
    dims = tuple(sorted({cut.dim for cut in cuts}))
    asked = pairings(card, layers, request.documents)
    folders = [_folder_of(request, task) / f"{name}{pairing.suffix}" for pairing in asked]
    with ExitStack() as held:
        for folder in folders:
            held.enter_context(lock_folder(folder))
        ranker = _ranker(request, corpus, task, model, card, dims, asked)
        digests = _other_stores(request, ranker)
        digests |= {layer: store.manifest.digest for layer, store in ranker.stores.items()}
        measuring = GridEvaluation(ranker, request.runs, request.overwrite, digests)
        for pairing, folder in zip(asked, folders, strict=True):
            yield measuring.grid(f"{name}{pairing.suffix}", pairing, folder)


def _other_stores(request: EvaluateRequest, ranker: GridRanker) -> dict[int, str]:
    """Return by layer the digests of the finished stores that the model has of a corpus."""
    card, name = read_card(ranker.model), ranker.task.dataset.name
    found = {}
    for layer in range(1, card.layers + 1):
        folder = store_folder(request.root, name, card.fingerprint, layer)
        if layer not in ranker.stores and (folder / STORE).exists():
            with suppress(UserError):  # a damaged one that nobody asked for
                found[layer] = StoreManifest.read(folder).digest
    return found


def _refuse_documents(documents: str) -> None:
    """Refuse documents that the exits of an index do not search."""
    if documents not in ("trained", "last"):
        raise UserError(
            f"--documents {documents} was asked for, and the exits of an index search the "
            "documents of its last layer alone. Leave it out."
        )


def _ranker(
    request: EvaluateRequest,
    corpus: str,
    task: RankingTask,
    model: str,
    card: ModelCard,
    dims: tuple[int, ...],
    asked: Sequence[Pairing],
) -> GridRanker:
    """Return a ranker over documents of every layer that a pairing needs; encode what is missing.

    The judgements are read first: a split that cannot be measured costs no encoding.
    """
    task.require()
    sources = sorted({layer for pairing in asked for layer in pairing.layers.values()})
    where: dict[str, Any] = {"root": request.root, "device": request.device, "dtype": request.dtype}
    by_index = request.exits == "index"
    index = IndexRequest(corpus, model, exits=by_index, runtime=request.runtime, **where)
    own = read_card(model)
    stores = dict(zip(sources, encode_corpus(index, model, own, sources), strict=True))
    exits = None
    if by_index:
        exits = fitting_exits(stores[card.layers].folder)
        exits = exits or fit_index(FitIndexRequest(corpus, model, **where))[0]
    device = str(choose_device(request.device))
    return GridRanker(task, model, card, stores, dims, device, request.dtype, exits)


def _means(
    request: EvaluateRequest, names: Sequence[str], places: Sequence[Sequence[CorpusResult]]
) -> Iterator[Grid]:
    """Yield the plain means of each model, of the measures that all corpora have.

    Those over the parts of a set come first, where the set has a name; then that over all sets.
    """
    every = [place.grids[0].measures for parts in places for place in parts]
    common = [name for name in every[0] if all(name in measures for measures in every)]
    if not common:
        say("These corpora share no default measure, so there is no mean; give --measure.")
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
    folder = request.out / short_name(mean.corpus.replace(" ", "-")) / mean.model
    write_grid(mean, folder / "grid.json")
    write_csv([mean], folder / "grid.csv")
    return mean


def _only(grid: Grid, measures: Sequence[str]) -> Grid:
    cells = {cut: {name: held[name] for name in measures} for cut, held in grid.cells.items()}
    return Grid(grid.model, grid.corpus, grid.split, grid.queries, cells, grid.notes, grid.unit)


def tables(grids: Sequence[Grid]) -> str:
    """Return a table per measure; several models stand under each other at each layer."""
    measures = grids[0].measures
    if len(grids) == 1:
        return "\n\n".join(text_table(grids[0], measure) for measure in measures)
    return "\n\n".join(text_comparison(grids, measure) for measure in measures)


def told(report: EvaluateReport) -> str:
    """Return the tables of all corpora, their means, and the failed checks."""
    parts = []
    for place in report.places:
        if place.default_of:
            names = ", ".join(place.grids[0].measures)
            parts.append(f"Default measures of {place.default_of}: {names}")
        parts.append(_crossed(place) if place.crosses else tables(place.grids))
        checks: dict[str, list[str]] = {}
        for grid in place.grids:
            for check in grid.checks:
                checks.setdefault(check, []).append(grid.model)
        said = (f"Check ({', '.join(models)}): {check}" for check, models in checks.items())
        parts.append("\n".join(said))
    of_corpora = groupby(report.means, key=lambda grid: grid.corpus)
    parts += [tables(tuple(grids)) for _, grids in of_corpora]
    return "\n\n".join(part for part in parts if part)


def _crossed(place: CorpusResult) -> str:
    """Return the table of the first measure at every dim; files hold the others."""
    measure = place.grids[0].measures[0]
    return "\n\n".join(
        text_cross(model, cross, dim, measure)
        for model, cross in place.crosses.items()
        for dim in next(iter(cross.values())).dims
    )


def _spoken(corpus: str) -> str:
    """Return the name of a corpus, or the last two parts of its folder."""
    path = Path(corpus)
    return "/".join(path.resolve().parts[-2:]) if path.exists() else corpus


def _plain(measure: str) -> str:
    """Return a measure as a file name."""
    return "".join(char if char.isalnum() or char in "@.-" else "-" for char in measure)


def keep_record(report: EvaluateReport) -> None:
    """Write the provenance of each grid beside it."""
    for place in report.places:
        for model, folder in _folders(place):
            card = read_card(model)
            write_provenance(
                Provenance(
                    command=_command(),
                    model=model,
                    corpus=place.corpus,
                    split=place.split,
                    fingerprint=card.fingerprint,
                    versions=package_versions(),
                ),
                folder,
            )


def measure_all_costs(request: EvaluateRequest, report: EvaluateReport) -> Iterator[Costs]:
    """Measure and yield the costs of each model's cuts; write costs.json beside each grid."""
    for place in report.places:
        for model, folder in _folders(place):
            asked = CostsRequest(
                model=model,
                corpus=place.corpus,
                split=place.split,
                layers=request.layers,
                dims=request.dims,
                pairing=pairing_of(folder.name)[1],
                exits=request.exits,
                root=request.root,
                device=request.device,
                dtype=request.dtype,
            )
            yield measure_costs(asked, folder)


def compared(
    request: EvaluateRequest, report: EvaluateReport, against: tuple[str, ...]
) -> Iterator[Comparison]:
    """Yield each model's comparison with each baseline; write JSON and CSV beside each grid."""
    for place in report.places:
        for _, folder in _folders(place):
            others = tuple(one for one in against if Path(one).resolve() != folder.resolve())
            if others:  # a model is no baseline of its own
                asked = CompareRequest(folder=folder, against=others, measures=request.measures)
                yield from compare_folders(asked).comparisons


def record_of(
    report: EvaluateReport, comparisons: Iterable[Comparison] = (), costs: Iterable[Costs] = ()
) -> dict[str, Any]:
    """Return the grids, comparisons and costs with the names that their files have."""
    return {
        "grids": [grid_record(grid) for place in report.places for grid in place.grids],
        "means": [grid_record(grid) for grid in report.means],
        "comparisons": [comparison_record(one) for one in comparisons],
        "costs": [costs_record(one) for one in costs],
        "folder": report.folder,
        "figures": report.figures,
        "seconds": report.seconds,
    }


def _folders(place: CorpusResult) -> Iterator[tuple[str, Path]]:
    """Yield the model and the folder of each grid."""
    for model, grid in zip(place.models, place.grids, strict=True):
        yield model, place.folder / grid.model


def _command() -> str:
    """Return the command line of this process if it is m2dr's."""
    program = Path(sys.argv[0]).name
    is_ours = program in ("m2dr", "__main__.py")
    return shlex.join(["m2dr", *sys.argv[1:]]) if is_ours else ""
