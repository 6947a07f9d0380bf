"""`m2dr evaluate`: measure every cut of a model on a corpus in one pass over its documents."""

import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from m2dr.core.errors import UserError, nearest
from m2dr.core.files import lock_folder, short_name, write_record
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
from m2dr.evaluate.comparison import Comparison
from m2dr.evaluate.costs import Costs
from m2dr.evaluate.figures import quality_over_dims
from m2dr.evaluate.grid import (
    PROVENANCE,
    Grid,
    Provenance,
    as_json,
    average,
    package_versions,
    text_cross,
    text_tables,
    write_cross,
    write_grid,
)
from m2dr.evaluate.measures import BEIR13, OTHER_NAMES, default_measures, default_split
from m2dr.index.exit_files import fitting_exits
from m2dr.index.manifest import STORE, StoreManifest, store_folder
from m2dr.model.checkpoint import read_card
from m2dr.model.devices import choose_device
from m2dr.tasks.compare import compare_folders, plain
from m2dr.tasks.costs import measure_costs
from m2dr.tasks.encode_texts import open_corpus
from m2dr.tasks.encoder import cuts_of, names_of, newest_model, through_exits
from m2dr.tasks.fit_index import fit_index
from m2dr.tasks.index import encode_corpus
from m2dr.tasks.rank import (
    INDEX_EXITS,
    GridEvaluation,
    GridRanker,
    Pairing,
    RankingTask,
    pairing_of,
    pairings,
)

SUITES = {"beir13": BEIR13}


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

    def __str__(self) -> str:
        """Return a table per measure, and the failed checks; of crossed layers a table per dim."""
        parts, first = [], self.grids[0]
        if self.default_of:
            parts.append(f"Default measures of {self.default_of}: {', '.join(first.measures)}")
        if self.crosses:  # files hold the other measures
            parts += [
                text_cross(model, cross, dim, first.measures[0])
                for model, cross in self.crosses.items()
                for dim in first.dims
            ]
        else:
            parts.append(text_tables(self.grids))
        checks: dict[str, list[str]] = {}
        for grid in self.grids:
            for check in grid.checks:
                checks.setdefault(check, []).append(grid.model)
        lines = (f"Check ({', '.join(models)}): {check}" for check, models in checks.items())
        return "\n\n".join(filter(None, [*parts, "\n".join(lines)]))

    def folders(self) -> Iterator[tuple[str, Path]]:
        """Yield the model and the folder of each grid."""
        for model, grid in zip(self.models, self.grids, strict=True):
            yield model, self.folder / grid.model


@dataclass(frozen=True)
class EvaluateReport:
    """The grids of all corpora, and where they were written; `str` is their tables."""

    places: tuple[CorpusResult, ...]  # one for each corpus
    means: tuple[Grid, ...]  # over several corpora, of each model
    out: Path
    seconds: float

    def __str__(self) -> str:
        means = (text_tables(tuple(grids)) for _, grids in groupby(self.means, lambda g: g.corpus))
        return "\n\n".join([*map(str, self.places), *means])

    def record(
        self, comparisons: Iterable[Comparison] = (), costs: Iterable[Costs] = ()
    ) -> dict[str, Any]:
        """Return the grids, comparisons and costs with the names that their files have."""
        return {
            "grids": [as_json(grid) for place in self.places for grid in place.grids],
            "means": [as_json(grid) for grid in self.means],
            "comparisons": [one.record() for one in comparisons],
            "costs": [as_json(one) for one in costs],
            "folder": self.folder,
            "figures": self.figures,
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

    @property
    def figures(self) -> tuple[Path, ...]:
        """Figures of all corpora."""
        return tuple(chain.from_iterable(place.figures for place in self.places))


@dataclass(frozen=True)
class _Corpus:
    """One corpus to measure on."""

    name: str  # as it was named
    task: RankingTask
    default_of: str
    folder: Path  # of the results


def evaluate(request: EvaluateRequest) -> EvaluateReport:
    """Measure every asked cut of every asked model on every corpus; write tables, runs, figures.

    What was measured before, of the same model, documents, queries and judgements, is not
    measured again.

    Raises:
        UserError: a corpus, split, model, measure or cut is not there, or two corpora share a
            folder; before any weight is loaded, as far as it can be known.
    """
    begun = time.monotonic()
    names = (*request.corpora, *(corpora_of(request.suite) if request.suite else ()))
    if not names:
        raise UserError(
            f"No corpus was asked for; give --corpus, or --suite {' or '.join(SUITES)}."
        )
    request = replace(request, models=request.models or (newest_model(),))
    sets = [collections_of(name) for name in names]
    corpora = [[_opened(request, part) for part in parts] for _, parts in sets]
    folders: dict[Path, str] = {}
    for corpus in chain.from_iterable(corpora):
        if corpus.folder in folders:
            raise UserError(
                f"The results of {folders[corpus.folder]} and {corpus.name} would both lie in "
                f"{corpus.folder}; give each once, or measure one with another --out."
            )
        folders[corpus.folder] = corpus.name
    places = [tuple(_place(request, corpus) for corpus in parts) for parts in corpora]
    every = tuple(chain.from_iterable(places))
    means = tuple(_means(request, [name for name, _ in sets], places)) if len(every) > 1 else ()
    return EvaluateReport(every, means, request.out, time.monotonic() - begun)


def corpora_of(suite: str) -> tuple[str, ...]:
    """Return the folders of a suite's corpora that are present, in the order of the suite.

    The names of absent ones are shown. Folders have the names that BEIR publishes, and lie in
    `$M2DR_DATA/beir`, `data`, `datasets` or the `beir` in either.

    Raises:
        UserError: the suite is unknown, or none of its corpora is present.
    """
    if suite not in SUITES:
        raise UserError(f"There is no suite {suite!r}. {nearest(suite, SUITES)}")
    given = beir.data_folders()
    places = tuple(dict.fromkeys([*given, *(place / "beir" for place in given)]))
    folders: dict[str, Path | None] = {}
    for name in SUITES[suite]:
        paths = (place / one for place in places for one in (name, *OTHER_NAMES.get(name, ())))
        # The folder itself: a bare name would also find one of the working folder.
        here = (path for path in paths if path.is_dir() and beir.recognises(str(path)))
        folders[name] = next(here, None)
    present = _present(suite, "corpora", folders)
    if not present:
        looked = ", ".join(map(str, places))
        raise UserError(f"None of the {len(folders)} corpora of {suite} was found in {looked}.")
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
    """Return the folders that are there, and show the names of those that are not."""
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
    grids: list[Grid] = []
    models: list[str] = []
    crosses: dict[str, dict[int, Grid]] = {}
    for model, name in zip(request.models, names_of(request.models), strict=True):
        own = list(_grids(request, corpus, model, name))
        grids += own
        models += [model] * len(own)
        if request.documents == "cross":
            crosses[name] = dict(zip(own[0].layers, own, strict=True))
            for dim in own[0].dims:
                path = corpus.folder / f"{name}.cross" / f"dim-{dim}.csv"
                write_cross(crosses[name], dim, path)
    figures = []
    drawn = "-".join(grid.model for grid in grids)
    for measure in grids[0].measures if not crosses else ():
        figures.append(corpus.folder / f"{short_name(f'{drawn}_{plain(measure)}')}.png")
        quality_over_dims(grids, measure, figures[-1])
    return CorpusResult(
        corpus.name,
        corpus.task.split,
        tuple(models),
        tuple(grids),
        crosses,
        corpus.default_of,
        corpus.folder,
        tuple(figures),
    )


def _grids(request: EvaluateRequest, corpus: _Corpus, model: str, name: str) -> Iterator[Grid]:
    """Yield the grids of a model on a corpus, one per pairing of layers, each written at once."""
    card = read_card(model)
    if request.exits == "index":
        if request.documents not in ("trained", "last"):
            raise UserError(
                f"--documents {request.documents} was asked for, and the exits of an index search "
                "the documents of its last layer alone."
            )
        card, name = through_exits(card), f"{name}{INDEX_EXITS}"
    cuts = cuts_of(card, request.layers, request.dims)
    layers = sorted({cut.layer for cut in cuts})
    dims = tuple(sorted({cut.dim for cut in cuts}))
    pairs = pairings(card, layers, request.documents)
    folders = [corpus.folder / f"{name}{pairing.suffix}" for pairing in pairs]
    with ExitStack() as locks:
        for folder in folders:
            locks.enter_context(lock_folder(folder))
        ranker = _ranker(request, corpus, model, card, dims, pairs)
        digests = {layer: store.manifest.digest for layer, store in ranker.stores.items()}
        for layer in range(1, card.layers + 1):  # other stores, whose scores may be kept
            store = store_folder(
                request.root, corpus.task.dataset.name, read_card(model).fingerprint, layer
            )
            if layer not in digests and (store / STORE).exists():
                with suppress(UserError):  # a damaged one that nobody asked for
                    digests[layer] = StoreManifest.read(store).digest
        measuring = GridEvaluation(ranker, request.runs, request.overwrite, digests)
        for pairing, folder in zip(pairs, folders, strict=True):
            yield measuring.grid(f"{name}{pairing.suffix}", pairing, folder)


def _ranker(
    request: EvaluateRequest,
    corpus: _Corpus,
    model: str,
    card: ModelCard,
    dims: tuple[int, ...],
    pairs: Sequence[Pairing],
) -> GridRanker:
    """Return a ranker over documents of every layer that a pairing needs; encode what is missing.

    The judgements are read first: a split that cannot be measured costs no encoding.
    """
    corpus.task.require()
    sources = sorted({layer for pairing in pairs for layer in pairing.layers.values()})
    where: dict[str, Any] = {"root": request.root, "device": request.device, "dtype": request.dtype}
    by_index = request.exits == "index"
    index = IndexRequest(corpus.name, model, exits=by_index, runtime=request.runtime, **where)
    encoded = encode_corpus(index, model, read_card(model), sources)
    stores = dict(zip(sources, encoded, strict=True))
    exits = None
    if by_index:
        exits = fitting_exits(stores[card.layers].folder)
        exits = exits or fit_index(FitIndexRequest(corpus.name, model, **where))[0]
    device = str(choose_device(request.device))
    return GridRanker(corpus.task, model, card, stores, dims, device, request.dtype, exits)


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


def keep_record(report: EvaluateReport) -> None:
    """Write the provenance of each grid with it: the command line, if this process is m2dr's."""
    is_ours = Path(sys.argv[0]).name in ("m2dr", "__main__.py")
    words = shlex.join(["m2dr", *sys.argv[1:]]) if is_ours else ""
    for place in report.places:
        for model, folder in place.folders():
            fingerprint, versions = read_card(model).fingerprint, package_versions()
            made = Provenance(words, model, place.corpus, place.split, fingerprint, versions)
            write_record(folder / PROVENANCE, made)


def measure_all_costs(request: EvaluateRequest, report: EvaluateReport) -> Iterator[Costs]:
    """Measure and yield the costs of each model's cuts; write costs.json with each grid."""
    for place in report.places:
        for model, folder in place.folders():
            costs = CostsRequest(
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
            yield measure_costs(costs, folder)


def compared(
    request: EvaluateRequest, report: EvaluateReport, against: tuple[str, ...]
) -> Iterator[Comparison]:
    """Yield each model's comparison with each baseline; write JSON and CSV with each grid."""
    for place in report.places:
        for _, folder in place.folders():
            others = tuple(one for one in against if Path(one).resolve() != folder.resolve())
            if others:  # a model is no baseline of its own
                comparing = CompareRequest(folder=folder, against=others, measures=request.measures)
                yield from compare_folders(comparing).comparisons
