"""`m2dr index corpus`: documents are encoded once, at every wanted layer, and cut into indexes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from m2dr.index.engines import build_index, check_engine
from m2dr.index.exit_files import exits_folder
from m2dr.index.layout import store_folder
from m2dr.index.manifest import IndexManifest, StorePlan
from m2dr.index.store import Store
from m2dr.model import checkpoint
from m2dr.model.devices import own_device
from m2dr.records.card import ModelCard
from m2dr.records.cut import Cut
from m2dr.verbs.corpora import open_corpus
from m2dr.verbs.indexing.fit_index import fit_exits
from m2dr.verbs.indexing.pipeline import Job
from m2dr.verbs.indexing.request import IndexRequest
from m2dr.verbs.indexing.storing import Crew, make_stores
from m2dr.verbs.models import label_of, newest_model
from m2dr.verbs.progress import is_first, progress


@dataclass(frozen=True)
class IndexReport:
    """What was built."""

    folders: tuple[Path, ...]  # one per layer, dim and engine
    documents: int
    bytes: int  # of the vectors and indexes together
    seconds: float
    notes: tuple[str, ...] = ()  # where an index is not what its engine usually builds


def index_corpus(request: IndexRequest) -> IndexReport:
    """Encode what is not yet encoded, build what is not yet built."""
    begun = time.monotonic()
    model = request.model or newest_model()
    card = checkpoint.read_card(model)
    layers = request.layers or document_layers(card)
    dims = request.dims or (card.width,)
    ways = _ways(request)
    for layer, dim in [(layer, dim) for layer in layers for dim in dims]:
        card.check(Cut(layer, dim), model)
        for engine, factory in ways:
            check_engine(engine, factory, dim, card.similarity)
    stores = encode_corpus(request, model, card, layers)
    if not is_first():
        return IndexReport((), 0, 0, time.monotonic() - begun)
    jobs = [(store, dim, way) for store in stores for dim in sorted(set(dims)) for way in ways]
    with progress("Indexing", len(jobs) * stores[0].documents, "documents") as advance:
        folders = tuple(
            build_index(
                store,
                dim,
                way[0],
                progress=advance,
                factory=way[1],
                workers=request.graph_threads,
            )
            for store, dim, way in jobs
        )
    held = {path for store in stores for path in store.folder.glob("vectors-*")}
    held |= {path for folder in folders for path in folder.iterdir()}
    size = sum(path.stat().st_size for path in held)
    notes = (f"{folder}: {note}" for folder in folders for note in IndexManifest.read(folder).notes)
    seconds = time.monotonic() - begun
    return IndexReport(folders, stores[0].documents, size, seconds, tuple(notes))


def _ways(request: IndexRequest) -> list[tuple[str, str]]:
    """Engine and factory string of each index of a dim; of the two, one is empty."""
    engines = request.engines or (() if request.factory else ("flat",))
    ways = [(engine, "") for engine in dict.fromkeys(engines)]
    return [*ways, ("", request.factory)] if request.factory else ways


def document_layers(card: ModelCard) -> tuple[int, ...]:
    """The layers whose documents some trained cut searches."""
    return (card.layers,) if card.documents == "last" else card.layers_trained or (card.layers,)


def encode_corpus(
    request: IndexRequest, model: str, card: ModelCard, layers: Sequence[int]
) -> list[Store]:
    """A finished store per layer, from one pass over the documents that are missing.

    Of several processes that torchrun started, all but the first do their share and get no stores.

    Raises:
        Interrupted: Ctrl-C; the shards written so far are kept.
    """
    crew = Crew(request.workers, request.on)
    dataset = open_corpus(request.corpus)
    label = label_of(card, model, request.corpus)
    stores = tuple(
        (
            store_folder(request.root, dataset.name, card.fingerprint, layer),
            StorePlan(dataset.name, layer, card.width, label, request.store, request.shard_rows),
        )
        for layer in sorted(set(layers))
    )
    documents = dataset.document_count
    device = own_device(request.device)
    job = Job(request.corpus, documents, model, device, request.dtype, stores)
    last = next((folder for folder, plan in stores if plan.layer == card.layers), None)
    if request.exits and last and card.layers > 0:
        job = replace(job, exits=exits_folder(last))
    made = make_stores(job, dataset, crew, overwrite=request.overwrite)
    if made and job.exits:
        fit_exits(job, dataset, made[-1])
    return made
