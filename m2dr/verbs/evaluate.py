"""`m2dr evaluate`: every cut of a model on a corpus, from one pass over its documents."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from m2dr.evaluate.figures import quality_over_dims
from m2dr.evaluate.grid import Grid
from m2dr.evaluate.measures import DEFAULT, Evaluator
from m2dr.evaluate.report import text_comparison, text_table, write_csv, write_json
from m2dr.evaluate.runfiles import write_run
from m2dr.index.exact import prefix_runs
from m2dr.index.store import Store
from m2dr.model import checkpoint
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.records.card import ModelCard
from m2dr.records.cut import Cut
from m2dr.records.run import Run
from m2dr.text.collection import Dataset
from m2dr.verbs.corpora import open_corpus
from m2dr.verbs.encoding import embed_texts
from m2dr.verbs.index import INDEXES, IndexRequest, encode_corpus
from m2dr.verbs.models import cuts_of, document_layer, names_of, newest_model, usual_dims
from m2dr.verbs.progress import progress

RESULTS = Path("results")
DEEPEST = 1000  # documents of a ranking where no measure says how deep it looks

Runs = Literal["whole", "all", "none"]


@dataclass(frozen=True)
class EvaluateRequest:
    """What `m2dr evaluate` was asked."""

    corpus: str
    models: tuple[str, ...] = ()  # empty: the newest trained one
    split: str = "test"
    layers: tuple[int, ...] = ()  # empty: all
    dims: tuple[int, ...] = ()  # empty: powers of two from 8, and the full width
    measures: tuple[str, ...] = DEFAULT
    runs: Runs = "whole"  # which cuts' runs are written
    root: Path = INDEXES
    out: Path = RESULTS
    device: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True)
class EvaluateReport:
    """What was found, and where it lies."""

    grids: tuple[Grid, ...]
    folder: Path
    figures: tuple[Path, ...]
    seconds: float


def evaluate(request: EvaluateRequest) -> EvaluateReport:
    """Measure every asked cut of every asked model; write tables, runs and figures."""
    begun = time.monotonic()
    dataset = open_corpus(request.corpus)
    models = request.models or (newest_model(),)
    names = names_of(models)
    judgements = dataset.judgements(request.split)
    evaluator = Evaluator(judgements, request.measures)
    folder = request.out / dataset.name / request.split
    grids = []
    for model, name in zip(models, names, strict=True):
        grid = _grid(request, dataset, evaluator, model, name, folder / name)
        write_json(grid, folder / name / "grid.json")
        write_csv([grid], folder / name / "grid.csv")
        grids.append(grid)
    figures = []
    for measure in grids[0].measures:
        figures.append(folder / f"{'-'.join(names)}_{_plain(measure)}.png")
        quality_over_dims(grids, measure, figures[-1])
    return EvaluateReport(tuple(grids), folder, tuple(figures), time.monotonic() - begun)


def _grid(
    request: EvaluateRequest,
    dataset: Dataset,
    evaluator: Evaluator,
    model: str,
    name: str,
    folder: Path,
) -> Grid:
    card = checkpoint.read_card(model)
    layers = tuple(sorted(set(request.layers))) or tuple(range(1, card.layers + 1))
    cuts = cuts_of(card, layers, request.dims or usual_dims(card.width))
    sources = sorted({document_layer(card, layer) for layer in layers})
    index = IndexRequest(
        request.corpus, model, root=request.root, device=request.device, dtype=request.dtype
    )
    stores = dict(zip(sources, encode_corpus(index, model, card, sources), strict=True))
    cells = {}
    kept = _kept(request.runs, cuts)
    for cut, run in _runs(request, dataset, model, card, cuts, stores, evaluator.depth or DEEPEST):
        cells[cut] = evaluator.scores(run).mean
        if cut in kept:
            folder.mkdir(parents=True, exist_ok=True)
            write_run(run, folder / "runs" / f"{cut}.trec", tag=_tag(name))
    return Grid(
        name, dataset.name, request.split, evaluator.queries, cells, _notes(dataset, card, cuts)
    )


def _runs(
    request: EvaluateRequest,
    dataset: Dataset,
    model: str,
    card: ModelCard,
    cuts: Sequence[Cut],
    stores: Mapping[int, Store],
    depth: int,
) -> Iterator[tuple[Cut, Run]]:
    """Rankings of every cut, layer by layer: all dims of one from a single pass over its store."""
    device = choose_device(request.device)
    layers = sorted({cut.layer for cut in cuts})
    encoder, tokenizer = checkpoint.load(
        model, max(layers), device, choose_dtype(request.dtype, device)
    )
    queries = dataset.queries(request.split)
    ids, texts = [query.id for query in queries], [query.text for query in queries]
    with progress("Encoding", len(texts), "queries") as advance:
        vectors = embed_texts(encoder, tokenizer, texts, "query", layers, advance)
    drop = {name: name for name in ids} if dataset.drops_own_document else None
    with progress("Ranking", len(cuts), "cuts") as advance:
        for layer, layer_vectors in zip(layers, vectors, strict=True):
            store = stores[document_layer(card, layer)]
            found = prefix_runs(
                ids,
                layer_vectors,
                store.blocks(),
                store.docids,
                [cut.dim for cut in cuts if cut.layer == layer],
                k=depth,
                similarity=card.similarity,
                device=str(device),
                drop=drop,
            )
            for dim in list(found):
                yield Cut(layer, dim), found.pop(dim)
                advance(1)


def tables(grids: Sequence[Grid]) -> str:
    """Each measure as a table; several models stand under each other at each layer."""
    measures = grids[0].measures
    if len(grids) == 1:
        return "\n\n".join(text_table(grids[0], measure) for measure in measures)
    return "\n\n".join(text_comparison(grids, measure) for measure in measures)


def _kept(runs: Runs, cuts: Sequence[Cut]) -> set[Cut]:
    return {"all": set(cuts), "whole": {max(cuts)}, "none": set()}[runs]


def _notes(dataset: Dataset, card: ModelCard, cuts: Sequence[Cut]) -> tuple[str, ...]:
    found = []
    if dataset.drops_own_document:
        found.append("the query's own document is dropped from its ranking")
    if card.documents == "last" and min(cuts).layer < card.layers:
        found.append(f"documents are encoded by layer {card.layers} whatever the query's layer")
    return tuple(found)


def _plain(measure: str) -> str:
    """A measure as a file name."""
    return "".join(char if char.isalnum() or char in "@.-" else "-" for char in measure)


def _tag(name: str) -> str:
    return "".join(char if char.isalnum() or char in "-_." else "-" for char in name)
