"""`m2dr index corpus` and `fit`: encode documents, build indexes, fit the exits of an index."""

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError, command, counted
from m2dr.core.files import (
    TEMPORARY_SUFFIX,
    atomic_path,
    lock_folder,
    remove_files,
    remove_stale_lock,
    sha256_of,
)
from m2dr.core.option import command_of
from m2dr.core.progress import progress, say
from m2dr.core.records import EXITS_FILE, Cut, Document, FitRecord, IndexExits, ModelCard
from m2dr.core.requests import FitIndexRequest, IndexRequest, index_command
from m2dr.data.dataset import Dataset
from m2dr.data.tokens import Ragged
from m2dr.index.exit_files import (
    StateFile,
    encoding_of,
    exits_folder,
    fit_command_anywhere,
    fitting_exits,
    forget_states,
    sampled_rows,
    write_exits_record,
)
from m2dr.index.faiss_build import build_index, check_engine
from m2dr.index.layout import (
    PARTIAL,
    STORE,
    built_indexes,
    store_folder,
    store_folders_of,
    store_remedy,
)
from m2dr.index.manifest import IndexManifest, StorePlan
from m2dr.index.store import Store, open_store
from m2dr.model import checkpoint
from m2dr.model.checkpoint import read_card
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.model.encoder import Encoder
from m2dr.model.exits import write_exits
from m2dr.model.graphs import BatchEncoder, require_runtime
from m2dr.model.hub import EXITS, STATIC, TOKENIZER
from m2dr.model.tokenizer import ModelTokenizer, tokenize
from m2dr.tasks.changed_corpus import document_line, fields_of_rows, keep_fields_of
from m2dr.tasks.encode_store import EncodingJob, ShardReader, digest_of
from m2dr.tasks.encode_texts import embed_tokens_and_states, open_corpus
from m2dr.tasks.encoder import document_layers, label_of, newest_model
from m2dr.tasks.fit import ONE_OF, snippets
from m2dr.tasks.fit_index import Snippets, fit_states, held_out, snippet_places
from m2dr.tasks.make_stores import Workers, make_stores

CORPUS = "corpus.jsonl"  # of a folder in the layout of BEIR

# Shapes in this file: n documents of a fit, S shallow layers.

# Random signs per token: the more the better, and the longer the regressions take. A fit of few
# documents, which are encoded soon, has fewer.
FEW, FEW_SIGNS, SIGNS = 3000, 1024, 3072


@dataclass(frozen=True)
class IndexReport:
    """The indexes that were built."""

    folders: tuple[Path, ...]  # one per layer, dim and engine
    documents: int
    bytes: int  # of the vectors and indexes together
    seconds: float
    notes: tuple[str, ...] = ()  # where an index is not what its engine usually builds


def index_corpus(request: IndexRequest) -> IndexReport:
    """Encode the documents that are missing, and build the indexes that are missing."""
    begun = time.monotonic()
    model, card, layers, dims = check_index_request(request)
    ways = _ways(request)
    stores = encode_corpus(request, model, card, layers)
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
    notes = [f"{folder}: {note}" for folder in folders for note in IndexManifest.read(folder).notes]
    notes += _unfitted_prefixes(request.corpus, model, card, dims)
    return IndexReport(folders, stores[0].documents, size, time.monotonic() - begun, tuple(notes))


def _unfitted_prefixes(
    corpus: str, model: str, card: ModelCard, dims: Sequence[int]
) -> Iterator[str]:
    """Yield a note on the prefixes of an encoder that was neither trained nor fitted for them."""
    known = {cut.dim for cut in card.cuts} | {card.width}
    short = [str(dim) for dim in sorted(set(dims)) if dim not in known]
    if short and not card.is_trained and not card.exported_from:
        yield (
            f"{model} was neither trained nor fitted for dims {', '.join(short)}. A fit on these "
            "documents rotates its embedding so that short prefixes find more: "
            f"{command('fit', backbone=model, corpus=corpus)}"
        )


@dataclass(frozen=True)
class ChangeReport:
    """What a change of documents did."""

    documents: int  # now
    added: int
    deleted: int  # those that were replaced count in both


def change_documents(
    request: IndexRequest,
    home: Path,
    add: Iterable[Document] = (),
    delete: Iterable[str] = (),
    *,
    replace: bool = False,
) -> ChangeReport:
    """Change the corpus.jsonl of a folder, and then all stores and indexes that were made of it.

    Args:
        request: of the corpus, a folder, and its model.
        home: folder of the stores of all layers.
        add: documents to add.
        delete: docids to delete.
        replace: whether documents of the same ids are replaced by those that are added.

    Raises:
        UserError: the corpus is no such folder, a docid to add is there already, one to delete is
            not, or no document would be left; nothing has changed then.
    """
    path = Path(request.corpus) / CORPUS
    if not path.is_file():
        raise UserError(f"Documents of {request.corpus} were to be changed, and it has no {path}.")
    new, gone = {document.id: document for document in add}, set(delete)
    absent, there, count = set(gone), set(), 0
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for document in open_corpus(request.corpus).documents():
            absent.discard(document.id)
            if document.id in new:
                there.add(document.id)
            elif document.id not in gone:
                file.write(document_line(document))
                count += 1
        for document in new.values():
            file.write(document_line(document))
        if there and not replace:
            raise UserError(
                f"{path} holds {', '.join(sorted(there)[:3])} already; nothing changed."
            )
        if absent:
            raise UserError(f"{path} has no {', '.join(sorted(absent)[:3])}; nothing was deleted.")
        if not count + len(new):
            raise UserError(f"All documents of {path} were to be deleted, and one must stay.")
    built = [index for store in store_folders_of(home) for index in built_indexes(store)]
    index_corpus(
        dataclasses.replace(
            request,
            layers=tuple(
                int(folder.name.removeprefix("layer-")) for folder in store_folders_of(home)
            ),
            dims=tuple(sorted({index.dim for index in built})),
            overwrite=True,
        )
    )
    return ChangeReport(count + len(new), len(new), len(gone) + len(there))


def check_index_request(
    request: IndexRequest,
) -> tuple[str, ModelCard, tuple[int, ...], tuple[int, ...]]:
    """Return the model, its card, the layers and the dims of a request; nothing is written.

    Raises:
        UserError: there is no such model, layer, dim or engine.
    """
    model = request.model or newest_model()
    card = read_card(model)
    layers = request.layers or document_layers(card)
    dims = request.dims or (card.width,)
    for layer, dim in product(layers, dims):
        card.check(Cut(layer, dim), model)
        for engine, factory in _ways(request):
            check_engine(engine, factory, dim, card.similarity)
    return model, card, layers, dims


def _ways(request: IndexRequest) -> list[tuple[str, str]]:
    """Return engine and factory string of each index of a dim; one of the two is empty."""
    engines = request.engines or (() if request.factory else ("flat",))
    ways = [(engine, "") for engine in dict.fromkeys(engines)]
    return [*ways, ("", request.factory)] if request.factory else ways


def encode_corpus(
    request: IndexRequest, model: str, card: ModelCard, layers: Sequence[int]
) -> list[Store]:
    """Return a finished store per layer, from one pass over the missing documents.

    Raises:
        Interrupted: Ctrl-C; the shards written so far are kept.
    """
    workers = Workers(request.workers, request.backend)
    dataset = open_corpus(request.corpus)
    label = label_of(card, model, request.corpus)
    stores = tuple(
        (
            store_folder(request.root, dataset.name, card.fingerprint, layer),
            StorePlan(dataset.name, layer, card.width, label, request.store, request.shard_rows),
        )
        for layer in sorted(set(layers))
    )
    home = stores[0][0].parent
    documents = dataset.document_count
    device = request.device
    job = EncodingJob(
        request.corpus, documents, model, device, request.dtype, stores, runtime=request.runtime
    )
    last = next((folder for folder, plan in stores if plan.layer == card.layers), None)
    exits = exits_folder(last) if last and card.layers > 0 else None
    if request.exits and exits and not checkpoint.ends_fitted(model):
        job = replace(job, exits=exits)
    made = make_stores(job, dataset, workers, overwrite=request.overwrite, exits=exits)
    keep_fields_of(home, partial(fields_of_rows, dataset))
    if job.exits:
        fit_exits(replace(job, runtime=made[-1].manifest.runtime), dataset, made[-1])
    return made


def fit_exits(job: EncodingJob, dataset: Dataset, store: Store) -> None:
    """Fit the exits of an index from the states that encoding kept, and remove those.

    Where exits of these documents are there already, or nothing was encoded just now, nothing is
    done. A shard whose states are missing, because it was encoded by an earlier command, is run
    again for its sampled documents.

    Args:
        job: that made the store; `exits` is its folder of exits.
        dataset: the documents.
        store: of the last layer.
    """
    folder = exits_folder(store.folder)
    if fitting_exits(store.folder):
        forget_states(folder)
        remove_stale_lock(folder)
        return
    if not any(folder.glob("states-*")):  # a store of before: m2dr index fit adds exits to it
        return
    _fit(job, dataset, store, folder)


def fit_index(request: FitIndexRequest) -> tuple[Path, IndexExits]:
    """Fit exits on the documents of an index that is there; return their folder and record.

    Raises:
        UserError: there is no such index of the last layer, it has exits already, the model or the
            corpus has changed since, or the model ends in an exit of its own.
    """
    model = request.model or newest_model()
    request = replace(request, model=model)
    card, dataset = read_card(model), open_corpus(request.corpus)
    checkpoint.refuse_ended(model)
    store = _open_store(request, card, dataset)
    folder = store.folder
    exits = exits_folder(folder)
    if not request.overwrite and fitting_exits(folder):
        again = command_of(
            ("index", "fit"),
            replace(request, overwrite=True),
            always=("corpus", "model"),
        )
        raise UserError(f"{exits} has exits of these documents. Replace them with: {again}")
    store.manifest.label.accept(label_of(card, model), store.manifest.corpus, folder)
    job = EncodingJob(
        request.corpus,
        store.documents,
        model,
        request.device,
        request.dtype,
        ((folder, store.manifest.plan),),
        exits,
        store.manifest.runtime,
    )
    _refuse_changed(job, dataset, store)
    return exits, _fit(job, dataset, store, exits)


def _open_store(request: FitIndexRequest, card: ModelCard, dataset: Dataset) -> Store:
    """Open the store of the last layer, on whose documents the exits are fitted."""
    folder = store_folder(request.root, dataset.name, card.fingerprint, card.layers)
    if not ((folder / STORE).exists() or (folder / PARTIAL).exists()):
        made = index_command(
            IndexRequest(
                request.corpus,
                request.model,
                layers=(card.layers,),
                root=request.root,
                device=request.device,
                dtype=request.dtype,
            )
        )
        raise UserError(
            f"Exits of an index were asked for, and {folder} holds no store of documents. Make one "
            f"with: {made}"
        )
    return open_store(folder)


def _refuse_changed(job: EncodingJob, dataset: Dataset, store: Store) -> None:
    """Raise UserError if the corpus is not the one that was encoded."""
    if dataset.document_count != store.documents:
        raise _changed(job, store)
    reader = ShardReader(dataset, job.shard_rows)
    for number, shard in enumerate(store.manifest.shards):
        if digest_of(reader.read(number))[1] != shard.texts:
            raise _changed(job, store)


def _changed(job: EncodingJob, store: Store) -> UserError:
    return UserError(
        f"The documents of {job.corpus} are not those that {store.folder} holds. Encode them again "
        f"{store_remedy(store.folder, overwrite=True)}"
    )


def _fit(job: EncodingJob, dataset: Dataset, store: Store, folder: Path) -> IndexExits:
    begun = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        device = choose_device(job.device)
        dtype = choose_dtype(job.dtype, device)
        encoder, tokenizer = checkpoint.load(job.model, None, device, dtype)
        rows, states = _states(job, dataset, store, folder, encoder, tokenizer)
        fit = fit_states(
            encoder,
            tokenizer,
            rows,
            states,
            (store.manifest.corpus,),
            FEW_SIGNS if len(rows) < FEW else SIGNS,
            _snippets(dataset, store.documents, encoder, tokenizer),
            whole_words=len(rows) >= FEW,
        )
        record = _write(encoder, store, fit, str(dtype), folder)
    table, *others = ("-" if cosine is None else f"{cosine:.3f}" for cosine in fit.cosines)
    rest = f", {', '.join(others)} of a few words of some at layers 1 to {len(others)}"
    rest = rest if others else ""
    say(
        f"Exits fitted on {counted(fit.texts, 'documents', ',')} in "
        f"{time.monotonic() - begun:,.0f} s, by which queries of any layer search the index. "
        f"Cosines with the full model, held out: {table} of documents at layer 0{rest}."
    )
    return record


def _write(encoder: Encoder, store: Store, fit: FitRecord, dtype: str, folder: Path) -> IndexExits:
    """Replace the exits in the folder by those of an encoder, their record last."""
    if encoder.fitted is None:
        raise AssertionError("exits were given just now")
    remove_files(folder, EXITS_FILE, TOKENIZER, f".*{TEMPORARY_SUFFIX}")
    write_exits(encoder.fitted, folder)
    names = (EXITS, STATIC, *((TOKENIZER,) if encoder.fitted.whole_words else ()))
    record = IndexExits(
        store.manifest.corpus,
        encoder.card.fingerprint,
        store.manifest.texts,
        fit,
        encoding_of(store.manifest.label),
        dtype,
        tuple((name, sha256_of(folder / name)) for name in names),
        fit_command_anywhere(folder),
    )
    write_exits_record(folder, record)
    forget_states(folder)
    return record


def _states(
    job: EncodingJob,
    dataset: Dataset,
    store: Store,
    folder: Path,
    encoder: Encoder,
    tokenizer: ModelTokenizer,
) -> tuple[Ragged, NDArray[np.float32]]:
    """Return token rows and states of the documents of the fit, in the order of the corpus."""
    reader, files = ShardReader(dataset, job.shard_rows), []
    same: BatchEncoder | None = encoder if job.runtime == "torch" else None
    total = len(sampled_rows(store.documents))
    with progress("Reading states", total, "documents") as advance:
        for number, shard in enumerate(store.manifest.shards):
            chosen = job.sampled(number)
            if not chosen.size:
                continue
            found = StateFile.read(folder, number, shard.texts, job.encoding)
            if found is None:
                documents = reader.read(number)
                if digest_of(documents)[1] != shard.texts:
                    raise _changed(job, store)
                contents = [documents[place].content for place in chosen]
                rows = Ragged.of(tokenize(encoder.card, tokenizer, contents, "document"))
                places = np.arange(len(rows))
                layers = (encoder.layers,)
                same = same or _opened(job)
                _, kept = embed_tokens_and_states(same, rows, tokenizer.pad_id, layers, places)
                found = StateFile(shard.texts, job.encoding, rows.tokens, rows.lengths, kept)
                found.write(folder, number)
            files.append(found)
            advance(len(chosen))
    rows = Ragged(
        np.concatenate([found.tokens for found in files]),
        np.concatenate([found.lengths for found in files]),
    )
    return rows, np.concatenate([found.states for found in files])


def _opened(job: EncodingJob) -> BatchEncoder:
    """Open the encoder in the runtime that made the vectors of a store."""
    require_runtime(job.runtime)
    return job.source.open(job.runtime)[0]


def _snippets(
    dataset: Dataset, documents: int, encoder: Encoder, tokenizer: ModelTokenizer
) -> Snippets | None:
    """Run the first words of some documents, encoded as queries, through all layers."""
    sampled = sampled_rows(documents)
    judges = held_out(len(sampled))
    chosen = snippet_places(judges)
    contents = [dataset.document_at(place).content for place in sampled[chosen].tolist()]
    texts, of = snippets(contents, 1, np.random.default_rng(documents))
    places = chosen[of]
    held = judges[places]
    if len(texts) < ONE_OF or held.all() or not held.any():  # too few for some to be held out
        return None
    rows = Ragged.of(tokenize(encoder.card, tokenizer, texts, "query"))
    layers, everything = (encoder.layers,), np.arange(len(rows))
    with progress("Reading snippets", len(rows), "texts") as advance:
        _, states = embed_tokens_and_states(
            encoder, rows, tokenizer.pad_id, layers, everything, advance
        )
    return Snippets(rows, states, places, held)
