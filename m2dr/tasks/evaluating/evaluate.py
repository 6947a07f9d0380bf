"""`m2dr evaluate`: measure every cut of a model on a corpus in one pass over its documents."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from m2dr.core.errors import UserError, nearest
from m2dr.core.files import lock_folder, short_name, write_record
from m2dr.core.progress import say
from m2dr.core.records import Cut, default_dims
from m2dr.core.report import Report, timed
from m2dr.core.requests import EvaluateRequest, of_queries
from m2dr.data import beir
from m2dr.evaluation.costs import Costs
from m2dr.evaluation.figures import draw_quality_over_dims, save_figure
from m2dr.evaluation.grid import (
    PROVENANCE,
    Grid,
    Provenance,
    as_json,
    average,
    package_versions,
    read_provenance,
    text_tables,
    told_apart,
    write_grid,
)
from m2dr.evaluation.measures import BEIR13, OTHER_NAMES, default_measures, default_split
from m2dr.index.codes import AGAIN, CODES
from m2dr.model.devices import choose_device
from m2dr.tasks.corpus import model_for, open_bm25, open_corpus
from m2dr.tasks.evaluating.compare import plain
from m2dr.tasks.evaluating.costs import measure_costs, timed_plans
from m2dr.tasks.evaluating.plans import encode_documents, grid_plans
from m2dr.tasks.evaluating.rank import GridRanker, RankingTask, measure_grid
from m2dr.tasks.models import names_of
from m2dr.tasks.query import results_suffix

SUITES = {"beir13": BEIR13}


@dataclass(frozen=True)
class CorpusResult:
    """The grids of one corpus, and where they were written."""

    corpus: str  # as it was named
    split: str
    grids: tuple[Grid, ...]
    default_of: str  # the data that the measures are the default of; empty when asked for
    folder: Path
    figures: tuple[Path, ...]

    def __str__(self) -> str:
        """Return a table per measure, and the failed checks."""
        parts = [text_tables(self.grids)]
        if self.default_of:
            measures = ", ".join(self.grids[0].measures)
            parts.insert(0, f"Default measures of {self.default_of}: {measures}")
        checks: dict[str, list[str]] = {}
        for grid in self.grids:
            for check in grid.checks:
                checks.setdefault(check, []).append(grid.model)
        lines = (f"Check ({', '.join(models)}): {check}" for check, models in checks.items())
        return "\n\n".join(filter(None, [*parts, "\n".join(lines)]))


@dataclass(frozen=True)
class EvaluateReport(Report):
    """The grids of all corpora, and where they were written."""

    places: tuple[CorpusResult, ...]  # one for each corpus
    means: tuple[Grid, ...]  # over several corpora, of each model
    costs: tuple[Costs, ...]  # of each model on each corpus
    out: Path

    def __str__(self) -> str:
        means = (text_tables(tuple(grids)) for _, grids in groupby(self.means, lambda g: g.corpus))
        tables = "\n\n".join([*map(str, self.places), *means])
        end = f"{self.seconds:,.0f} s; tables and runs in {self.folder}"
        return "\n".join([tables, end, *map(str, self.files)])

    def record(self) -> dict[str, Any]:
        """Return the grids and costs with the names that their files have."""
        return {
            "grids": [as_json(grid) for place in self.places for grid in place.grids],
            "means": [as_json(grid) for grid in self.means],
            "costs": [as_json(costs) for costs in self.costs],
            "folder": self.folder,
            "figures": self.files,
            "seconds": self.seconds,
        }

    @property
    def grids(self) -> tuple[Grid, ...]:
        """Grids of the first corpus."""
        return self.places[0].grids

    @property
    def folder(self) -> Path:
        """Folder of the tables and runs."""
        return self.places[0].folder if len(self.places) == 1 else self.out


@dataclass(frozen=True)
class _Corpus:
    """One corpus to measure on."""

    name: str  # as it was named
    task: RankingTask
    default_of: str
    folder: Path  # of the results


@timed
def evaluate(request: EvaluateRequest) -> EvaluateReport:
    """Measure every asked cut of every asked model on every corpus; write tables, runs, figures.

    What was measured before, of the same model, documents, queries and judgements, is not
    measured again.

    Raises:
        UserError: a corpus, split, model, measure or cut is not there, or two corpora share a
            folder; before any weight is loaded, as far as it can be known.
    """
    names = (*request.corpora, *(corpora_of(request.suite) if request.suite else ()))
    if not names:
        raise UserError("No corpus was asked for; give --corpus or --suite.")
    request = replace(request, codes=tuple(dict.fromkeys(",".join(request.codes).split(","))))
    for name in request.codes:
        if name.removesuffix(AGAIN) not in CODES:
            raise UserError(f"There is no code {name!r}. {nearest(name, CODES)}")
    sets = [collections_of(name) for name in names]
    corpora = [[_opened(request, part) for part in parts] for _, parts in sets]
    if not request.models:
        first = corpora[0][0].task.dataset.name
        request = replace(request, models=(model_for(first, request.root),))
    folders: dict[Path, str] = {}
    for corpus in chain.from_iterable(corpora):
        if corpus.folder in folders:
            both = f"{folders[corpus.folder]} and {corpus.name}"
            raise UserError(f"The results of {both} would share the folder {corpus.folder}.")
        folders[corpus.folder] = corpus.name
    places = [tuple(_place(request, corpus) for corpus in parts) for parts in corpora]
    results = tuple(chain.from_iterable(places))
    means = tuple(_means(request, [name for name, _ in sets], places)) if len(results) > 1 else ()
    costs = []
    models = request.models * len(results)
    grids = [(place, grid) for place in results for grid in place.grids]
    for model, (place, grid) in zip(models, grids, strict=True) if request.costs else ():
        single = replace(request, models=(model,), corpora=(place.corpus,), split=place.split)
        costs.append(measure_costs(single, place.folder / grid.model))
    figures = tuple(chain.from_iterable(place.figures for place in results))
    return EvaluateReport(results, means, tuple(costs), request.out, files=figures)


def corpora_of(suite: str) -> tuple[str, ...]:
    """Return the folders of a suite's corpora that are present, in the order of the suite.

    The names of absent ones are shown. Folders have the names that BEIR publishes, and lie in
    `$M2DR_DATA/beir`, `data`, `datasets` or the `beir` in either.

    Raises:
        UserError: the suite is unknown, or none of its corpora is present.
    """
    if suite not in SUITES:
        raise UserError(f"There is no suite {suite!r}. {nearest(suite, SUITES)}")
    data = beir.data_folders()
    parents = tuple(dict.fromkeys([*data, *(folder / "beir" for folder in data)]))
    folders: dict[str, Path | None] = {}
    for name in SUITES[suite]:
        names = (name, *OTHER_NAMES.get(name, ()))
        paths = (parent / spelling for parent in parents for spelling in names)
        # The folder itself: a bare name would also find one of the working folder.
        present_paths = (path for path in paths if path.is_dir() and beir.recognises(str(path)))
        folders[name] = next(present_paths, None)
    present = _present(suite, "corpora", folders)
    if not present:
        searched = ", ".join(map(str, parents))
        raise UserError(f"None of the {len(folders)} corpora of {suite} was found in {searched}.")
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
    name = next(folder for folder in parts.values() if folder is not None).resolve().parent.name
    present = _present(name, "parts", parts)
    if len(present) < len(parts):
        name = f"{name}-{len(present)}-of-{len(parts)}"
    return name, present


def _present(name: str, what: str, folders: Mapping[str, Path | None]) -> tuple[str, ...]:
    """Return the folders that exist, and print the names of missing ones."""
    present = tuple(str(folder) for folder in folders.values() if folder is not None)
    absent = ", ".join(part for part, folder in folders.items() if folder is None)
    if present and absent:
        say(f"{len(present)} of {len(folders)} {what} of {name} are here; absent: {absent}")
    return present


def _opened(request: EvaluateRequest, name: str) -> _Corpus:
    """Open a corpus; nothing but the names of its splits is needed yet."""
    dataset = open_corpus(name)
    split = dataset.canonical(request.split or default_split(dataset.name, dataset.splits))
    path = Path(name)
    spoken = "/".join(path.resolve().parts[-2:]) if path.exists() else name
    defaults = default_measures(f"{spoken} {dataset.name}", split)
    task = RankingTask(dataset, split, request.measures or defaults.measures)
    folder = request.out / dataset.name / split
    return _Corpus(name, task, "" if request.measures else defaults.name, folder)


def _place(request: EvaluateRequest, corpus: _Corpus) -> CorpusResult:
    """Measure all models on a corpus; draw them in one figure per measure."""
    grids = tuple(
        _grid(request, corpus, model, name)
        for model, name in zip(request.models, names_of(request.models), strict=True)
    )
    figures = []
    drawn = "-".join(grid.model for grid in grids)
    for measure in grids[0].measures:
        figures.append(corpus.folder / f"{short_name(f'{drawn}_{plain(measure)}')}.png")
        save_figure(draw_quality_over_dims(told_apart(grids), measure), figures[-1])
    return CorpusResult(
        corpus.name,
        corpus.task.split,
        grids,
        corpus.default_of,
        corpus.folder,
        tuple(figures),
    )


def _grid(request: EvaluateRequest, corpus: _Corpus, model: str, name: str) -> Grid:
    """Measure a model on a corpus; write its grid and how it was made."""
    corpus.task.require()  # a split that cannot be measured costs no encoding
    grid_of = grid_plans(request, model, corpus.task.dataset)
    plans = grid_of.by_layer
    if request.costs:
        timed_plans(plans)  # before a query is encoded
    card = plans[max(plans)].card
    dims = tuple(sorted({card.check(Cut(card.layers, dim)).dim for dim in request.dims}))
    dims = dims or default_dims(card.width)
    suffix = results_suffix(plans, request.documents)
    by_exits = f".{request.exits}-exits" if request.exits else ""
    folder = corpus.folder / (name := request.named(name + suffix + by_exits))
    with lock_folder(folder):
        earlier = read_provenance(folder)
        if (
            earlier
            and not request.overwrite
            and earlier.fingerprint != card.fingerprint
            and Path(earlier.model).resolve() != Path(model).resolve()
        ):
            raise UserError(f"{folder} holds results of {earlier.model}; give another --out.")
        stores = encode_documents(request, corpus.name, grid_of)
        device = str(choose_device(request.device))
        bm25 = None
        if request.hybrid:
            bm25 = open_bm25(grid_of.index, stores[max(stores)], lambda: corpus.task.dataset)
        dtype = of_queries(request.dtype)
        ranker = GridRanker(corpus.task, plans, stores, dims, device, dtype, bm25, request.codes)
        grid = measure_grid(ranker, name, folder, request.runs, request.overwrite)
        exits = grid_of.maps.digest if grid_of.maps else ""
        how = (model, corpus.name, corpus.task.split, card.fingerprint, package_versions())
        provenance = Provenance(request.command, *how, exits, request.weights, suffix)
        write_record(folder / PROVENANCE, provenance)
        return grid


def _means(
    request: EvaluateRequest, names: Sequence[str], places: Sequence[Sequence[CorpusResult]]
) -> Iterator[Grid]:
    """Yield the plain means of each model, of the measures that all corpora have.

    Those over the parts of a set come first, where the set has a name; then that over all sets.
    """
    by_corpus = [place.grids[0].measures for parts in places for place in parts]
    common = [name for name in by_corpus[0] if all(name in names for names in by_corpus)]
    if not common:
        say("These corpora share no default measure, so there is no mean; give --measure.")
        return

    def only(grid: Grid) -> Grid:
        cells = {cut: {name: of[name] for name in common} for cut, of in grid.cells.items()}
        return replace(grid, cells=cells, checks=())

    def written(grids: Sequence[Grid], name: str) -> Grid:
        mean = average(grids, name)
        write_grid(mean, request.out / short_name(mean.corpus.replace(" ", "-")) / mean.model)
        return mean

    wholes = []
    for name, parts in zip(names, places, strict=True):
        by_model = [list(map(only, group)) for group in zip(*(p.grids for p in parts), strict=True)]
        means = [written(group, name) for group in by_model] if name else []
        yield from means
        wholes.append(means or [group[0] for group in by_model])
    if len(wholes) > 1:
        suite = request.suite and not request.corpora
        name = f"{request.suite}-{len(places)}-of-{len(SUITES[request.suite])}" if suite else ""
        for group in zip(*wholes, strict=True):
            yield written(group, name)
