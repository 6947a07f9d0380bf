"""Encode a corpus into stores, a shard at a time; a corpus that changed, only where it did."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import Interrupted, UserError, counted
from m2dr.core.files import (
    atomic_path,
    cache_folder,
    fsync,
    json_sha256,
    read_record,
)
from m2dr.core.progress import progress, say
from m2dr.core.records import EXITS_FILE, Document, Fields
from m2dr.core.requests import SHARD_ROWS, IndexRequest, QueryLog, of_queries
from m2dr.data.dataset import Dataset
from m2dr.index.faiss import rebuild_indexes
from m2dr.index.filters import FIELDS, write_fields
from m2dr.index.folder import SYNCING, IndexFolder
from m2dr.index.manifest import IMPORTED, PARTIAL, STORE, StorePlan, begun_plan
from m2dr.index.store import (
    Store,
    StoreWriter,
    begin_store,
    clear_store,
    open_store,
    remove_leftovers,
    text_digests,
)
from m2dr.maps import files as map_files
from m2dr.maps.files import Maps
from m2dr.maps.log import asked_now, read_log
from m2dr.model.checkpoint import Model
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.model.graphs import (
    INT8,
    OPENVINO,
    DocumentSource,
    choose_runtime,
    int8_digest,
    require_runtime,
)
from m2dr.model.int8 import SAMPLED_DOCUMENTS, quantize
from m2dr.model.tokens import Ragged
from m2dr.tasks.corpus import (
    CorpusRows,
    absolute,
    as_indexed,
    finish_change,
    name_of_corpus,
    open_corpus,
    read_texts,
    refuse_imported,
)
from m2dr.tasks.indexing.on_ray import map_on_ray
from m2dr.tasks.indexing.workers import Work, map_locally
from m2dr.tasks.models import with_lengths_of_index

# Shapes in this file: L layers, n documents of a shard, H dims, N documents of the corpus.

OTHER = 0.5  # of the documents, that are new where another corpus, not a later one, was given
PlannedStore = tuple[Path, StorePlan]  # its folder, and what it holds
COPIED = "copied.npy"  # in a store that a sync writes: rows of the store before, [N]; -1 for none


@dataclass(frozen=True)
class EncodingJob:
    """What to encode: corpus, model and stores, in a form that any process can open."""

    corpus: str
    documents: int
    model: Model  # with the lengths of the texts of the stores
    index: IndexFolder  # that is there, and which a sync replaces by what it writes beside
    device: str
    dtype: str
    stores: tuple[PlannedStore, ...]  # one per layer, with shards of the same rows
    keeps_states: bool = False  # of some documents, to which maps are fitted
    runtime: str = "torch"  # what multiplies: torch, openvino, or auto until it is chosen
    copies: bool = False  # whether unchanged vectors are copied from the stores of the index

    @classmethod
    def of_store(
        cls,
        store: Store,
        index: IndexFolder,
        model: Model,
        corpus: str,
        device: str,
        dtype: str,
    ) -> "EncodingJob":
        """Return the job that would make a store, to which maps are fitted."""
        manifest = store.manifest
        return cls(
            corpus, store.documents, model.with_lengths_of(manifest.label), index, device, dtype,
            ((store.folder, manifest.plan),), True, manifest.runtime,
        )  # fmt: skip

    @property
    def shard_rows(self) -> int:
        """Documents of every shard but the last."""
        return self.stores[0][1].shard_rows

    @property
    def encoding(self) -> str:
        """Digest of what determines the states of a text, --dtype and --runtime included."""
        runtime = "" if self.runtime == "torch" else f" {self.runtime}"
        return self.stores[0][1].label.digest(self.dtype + runtime)

    @property
    def source(self) -> DocumentSource:
        """The model, up to the deepest layer that some store needs; in int8 all of it."""
        deepest = max(plan.layer for _, plan in self.stores)
        source = DocumentSource(self.model, deepest, self.device, self.dtype, cache_folder())
        return self.in_int8(source) if self.runtime.startswith(INT8) else source

    def in_int8(self, source: DocumentSource) -> DocumentSource:
        """Return the model in int8, whose one graph for all layers lies beside the stores."""
        return replace(source, layer=self.model.card.layers, int8=self.index.int8)

    def copied(self, folder: Path, number: int) -> NDArray[np.int64]:
        """Return for each document of a shard its row in the store before, [n]; -1 for none."""
        if not self.copies:
            return np.full(self.rows_of(number), -1)
        rows = np.load(folder / COPIED, mmap_mode="r")
        return np.array(rows[number * self.shard_rows : (number + 1) * self.shard_rows])

    def rows_of(self, number: int) -> int:
        """Return the number of documents in a shard."""
        return min(self.shard_rows, self.documents - number * self.shard_rows)

    def fresh(self, number: int) -> int:
        """Return the number of documents of a shard that are not copied."""
        return int((self.copied(self.stores[0][0], number) < 0).sum())

    def sampled(self, number: int) -> NDArray[np.int64]:
        """Return the positions, increasing, of the shard's documents that a fit of exits reads."""
        first = number * self.shard_rows
        rows = map_files.sampled_rows(self.documents)
        return rows[(rows >= first) & (rows < first + self.shard_rows)] - first

    def lacks(self, number: int) -> bool:
        """Whether any layer lacks this shard."""
        return not all(StoreWriter(folder, plan).has(number) for folder, plan in self.stores)


# Shards


class WrittenShard(NamedTuple):
    """A shard that is written at every layer."""

    number: int
    documents: int  # that were encoded
    bytes: int  # of vectors
    cut: int  # documents as long as the model reads, whose ends are not in their vectors


@dataclass(frozen=True)
class _Texts:
    """A shard of documents; those that are encoded, tokenised."""

    number: int
    docids: list[str]
    digests: bytes
    positions: NDArray[np.int64]  # in the shard, of the documents that are encoded
    contents: list[str]  # of these
    rows: Ragged


# An encoded shard, the stores that lack it, their vectors [L, n, H], and states for a fit.
_Encoded = tuple[_Texts, list[StoreWriter], NDArray[np.float32], map_files.StateFile | None]


class ShardEncoder:
    """Encodes shards of a job in this process."""

    def __init__(self, job: EncodingJob, dataset: Dataset | None = None) -> None:
        self.job = job
        self._encoder = job.source.open(job.runtime)
        self._stores = [StoreWriter(folder, plan) for folder, plan in job.stores]
        self._reader = ShardReader(dataset or open_corpus(job.corpus), job.shard_rows)
        self._before: dict[Path, Store] = {}
        if job.copies:
            self._before = {path: job.index.store(plan.layer) for path, plan in job.stores}

    def encode(
        self, numbers: Sequence[int], advance: Callable[[int], None] = lambda _: None
    ) -> Iterator[WrittenShard]:
        """Encode and write shards, and yield each; one is read and one written meanwhile.

        Args:
            numbers: of the shards.
            advance: receives the number of documents of each step.

        Raises:
            UserError: a text is malformed or a value is not finite. Shards that were run before
                are written.
        """
        with ThreadPoolExecutor(1, "read") as reader, ThreadPoolExecutor(1, "write") as writer:
            shards = map(self._read, numbers)
            reading, writing = reader.submit(next, shards, None), None
            while texts := reading.result():
                reading = reader.submit(next, shards, None)
                encoded = self._run(texts, advance)
                if writing:
                    yield writing.result()
                writing = writer.submit(self._write, *encoded)
                del texts, encoded
            if writing:
                yield writing.result()

    def _read(self, number: int) -> _Texts:
        documents = self._reader.read(number)
        if len(documents) != self.job.rows_of(number):
            raise UserError(f"{self.job.corpus} has become shorter while it was encoded.")
        positions = np.flatnonzero(self.job.copied(self._stores[0].folder, number) < 0)
        contents = [documents[position].content for position in positions]
        rows = self._encoder.tokens(contents, "document")
        digests = text_digests(document.content for document in documents)
        docids = [document.id for document in documents]
        return _Texts(number, docids, digests, positions, contents, rows)

    def _run(self, texts: _Texts, advance: Callable[[int], None]) -> _Encoded:
        lacking = [store for store in self._stores if not store.has(texts.number)]
        layers = [store.plan.layer for store in lacking]
        card, given = self._encoder.card, (texts.contents, advance)
        vectors, states = np.empty((len(layers), 0, card.width), np.float32), None
        sampled = self.job.sampled(texts.number)
        if self.job.keeps_states and sampled.size and card.layers in layers:
            read = self._encoder.with_states(texts.rows, layers, sampled, *given)
            vectors, sampled_states = read
            digest = hashlib.sha256(texts.digests).hexdigest()
            states = map_files.StateFile(digest, self.job.encoding, sampled_states)
        elif layers and len(texts.rows):
            vectors = self._encoder.of_tokens(texts.rows, layers, *given)
        return texts, lacking, vectors, states

    def _write(
        self,
        texts: _Texts,
        stores: Sequence[StoreWriter],
        vectors: NDArray[np.float32],
        states: map_files.StateFile | None,
    ) -> WrittenShard:
        size = 0
        if states:  # first, so that every recorded shard has its states
            states.write(self.job.index.exits, texts.number)
        for store, rows in zip(stores, vectors, strict=True):
            copied = None
            if old_store := self._before.get(store.folder):
                sources = self.job.copied(store.folder, texts.number)
                rows_before = sources[sources >= 0]
                copied = np.flatnonzero(sources >= 0), old_store.packed(rows_before, compare=True)
            size += store.write(texts.number, texts.docids, rows, texts.digests, copied)
        cut = int((texts.rows.lengths >= self._encoder.card.document_length).sum())
        return WrittenShard(texts.number, len(texts.positions), size, cut)


class ShardReader:
    """Reads the documents of a shard; shards in increasing order take one pass over the corpus."""

    def __init__(self, dataset: Dataset, rows: int) -> None:
        self._dataset, self._rows = dataset, rows
        self._next, self._stream = 0, dataset.documents()

    def read(self, number: int) -> list[Document]:
        """Return the documents of a shard, fewer than its rows where the corpus ends."""
        if number < self._next:
            self._next, self._stream = 0, self._dataset.documents()
        skipped = (number - self._next) * self._rows
        self._next = number + 1
        return list(islice(self._stream, skipped, skipped + self._rows))


# Stores


def encode_stores(
    request: IndexRequest,
    model: Model,
    layers: Sequence[int],
    changed: Path | None = None,
    fits: bool | None = None,
) -> tuple[EncodingJob, Dataset, list[Store]]:
    """Return a finished store per layer, from one pass over the missing documents.

    Where the corpus has changed since, the stores of all layers follow, with their indexes.

    Args:
        request: of the corpus; its layers are not read.
        model: that was opened.
        layers: to encode.
        changed: file of the documents that the corpus will have.
        fits: whether exits will be fitted; None: as the index was asked.

    Returns:
        The job with the runtime that was chosen, the documents, and the stores.

    Raises:
        Interrupted: Ctrl-C; the shards written so far are kept.
        UserError: another process writes there, stores were made with other settings, or what
            encoding and writing refuse.
    """
    if request.overwrite:
        _ = model.folder  # before vectors are removed that no model makes again
    index = IndexFolder.of(request.root, name_of_corpus(request.corpus), model.card.fingerprint)
    corpus, asked = as_indexed(request.corpus, index.asked)
    asked = asked_now(
        asked, request, language=request.language, store=request.store, exits=request.exits,
        query_length=request.query_length, document_length=request.document_length,
    )  # fmt: skip
    model = model if request.overwrite else with_lengths_of_index(model, index, None, None)
    model = model.with_lengths(asked.query_length, asked.document_length)
    card, dataset = model.card, open_corpus(corpus)
    if changed is None:
        finish_change(dataset, index)
    else:
        corpus = f"{dataset.name}={changed}"
        dataset = open_corpus(corpus)
    label = model.label(absolute(request.corpus))
    form = asked.store or ("f32" if card.exits == "model" else "f16")
    plan = StorePlan(dataset.name, 0, card.width, label, form)
    plans = {index.layer(layer): replace(plan, layer=layer) for layer in sorted(set(layers))}
    stores = tuple(_as_begun(request, plans))
    maps, exits = Maps(index), asked.exits if fits is None else fits
    if request.queries and not exits:
        raise UserError(f"{request.queries} is for exits, and {index} was asked to have none.")
    exits = exits and max(layers) == card.layers > 0
    exits = exits and changed is None and not model.last_layer_has_exit
    if exits and maps.exist and not request.overwrite:
        refuse_other_fit(maps, request, request.language)
    if exits and dataset.document_count < map_files.FEWEST_DOCUMENTS:
        exits = False
        few = f"({dataset.document_count} < {map_files.FEWEST_DOCUMENTS})"
        told = f"Too few documents to fit exits {few}. m2dr index fit fits them anyway"
        if request.queries:
            raise UserError(f"{told}, with --queries too.")
        if not index.is_begun:
            say(f"{told}.")
    count, device, dtype = dataset.document_count, request.device, of_queries(request.dtype)
    job = EncodingJob(corpus, count, model, index, device, dtype, stores, exits, request.runtime)
    rows = CorpusRows.of(dataset) if index.is_begun and not request.overwrite else None
    with index.lock():
        index.end_sync()
        if request.overwrite:
            if max(layers) == card.layers:
                maps.drop()
            for path, _ in stores:
                clear_store(path)
            if not any(index.record(each).runtime.startswith(INT8) for each in index.layers):
                shutil.rmtree(index.int8, ignore_errors=True)
            rows = CorpusRows.of(dataset) if index.is_begun else None
        for path, plan in stores:
            _refuse_other(index, path, plan, request.dtype)
        index.ask(asked)
        if rows and not all(rows.digest.is_of(store.manifest) for store in index.stores()):
            _sync(replace(job, keeps_states=False), dataset, rows, request.workers, request.backend)
        shutil.rmtree(index.new.path, ignore_errors=True)  # the corpus is what it was
        job = _with_runtime(job, dataset, request.dtype)
        _encode_missing(job, dataset, rows, request.workers, request.backend)
    return job, dataset, [open_store(path) for path, _ in stores]


def _as_begun(request: IndexRequest, plans: Mapping[Path, StorePlan]) -> Iterator[PlannedStore]:
    """Yield the plans of stores; options without a value follow existing stores."""
    by_state = sorted(plans, key=lambda path: (path / STORE).exists())  # half-written ones first
    found = {} if request.overwrite else {path: begun_plan(path) for path in by_state}
    kept = {path: begun for path, begun in found.items() if begun}
    rows = request.shard_rows or next((begun.shard_rows for begun in kept.values()), SHARD_ROWS)
    for path, plan in plans.items():
        dtype = request.store or kept.get(path, plan).dtype
        yield path, replace(plan, shard_rows=rows, dtype=dtype)


def refuse_other_fit(maps: Maps, log: QueryLog, language: str = "") -> None:
    """Raise UserError where maps are of another language, log or weight of it."""
    queries, fit = read_log(log.queries, log.query_weight), maps.record.fit
    weight = fit.query_weight if log.query_weight is None else log.query_weight
    if queries and (fit.log, fit.query_weight) != (json_sha256(queries), weight):
        raise UserError(
            f"{maps} has exits without {log.queries} of weight {weight:g}; m2dr index fit "
            "--overwrite --queries replaces them."
        )
    if language and language != fit.language:
        raise UserError(
            f"{maps} has words of language {fit.language}, not {language}; m2dr index fit "
            f"--overwrite --language {language} replaces them."
        )


def _refuse_other(index: IndexFolder, folder: Path, plan: StorePlan, dtype: str) -> None:
    """Refuse vectors of other settings, or of int8 where another number format is named."""
    runtime = _runtime_of(folder)
    if runtime and dtype != "auto" and (dtype == "int8") != runtime.startswith(INT8):
        raise UserError(f"{folder} was encoded in {runtime}, not in {dtype}.")
    if (folder / STORE).exists():
        stored = open_store(folder).manifest.plan
        imported = ("width",) if stored.runtime == IMPORTED else ()
        stored.refuse_other(plan, folder, ("shard_rows", "runtime", *imported))
    for begun in index.plans:  # of other layers
        begun.refuse_other(replace(begun, label=plan.label), index.layer(begun.layer))


def _encode_missing(
    job: EncodingJob, dataset: Dataset, rows: CorpusRows | None, count: int, backend: str
) -> None:
    """Encode the shards that are missing, and finish the stores."""
    writers = []
    for folder, plan in job.stores:
        if (folder / STORE).exists():
            remove_leftovers(folder)
            continue
        writer = begin_store(folder, plan)
        if rows is not None:
            writer.drop_other(rows.docids, rows.digests)
        writers.append(writer)
    if not writers:
        return
    unfinished = replace(job, stores=tuple((writer.folder, writer.plan) for writer in writers))
    shards = range(-(-job.documents // unfinished.shard_rows))
    missing = [number for number in shards if unfinished.lacks(number)]
    if missing:
        _encode(unfinished, dataset, missing, count, backend)
    _finish(writers, dataset)


def _finish(writers: Sequence[StoreWriter], dataset: Dataset) -> None:
    """Write the fields of the documents, which all layers share, and finish the stores."""
    first = writers[0].folder / FIELDS
    digest = hashlib.sha256()

    def fields() -> Iterator[Fields]:
        for document in dataset.documents():
            digest.update(repr(document.fields).encode())
            yield document.fields

    file_digest = write_fields(first, fields())
    for writer in writers:
        if file_digest and writer.folder != first.parent:
            link(first, writer.folder / FIELDS)
        writer.finish(file_digest, digest.hexdigest())


def _sync(job: EncodingJob, dataset: Dataset, rows: CorpusRows, count: int, backend: str) -> None:
    """Replace the stores of all layers, and their indexes, by those of the changed corpus.

    They are written to a folder beside, with the vectors of texts that are the same, and swapped
    in by one rename. Exits are unchanged; words follow.
    """
    index, new, before = job.index, job.index.new, job.index.stores()
    refuse_imported(index)
    sources = [rows.sources(store) for store in before]
    absent = np.any([rows_of_store < 0 for rows_of_store in sources], axis=0)
    source, label = before[-1].manifest.label.source, job.stores[0][1].label
    if source != label.source and absent.mean() > OTHER:
        raise UserError(f"{index} is of {source}; give --corpus NAME={job.corpus} or --overwrite.")
    new.path.mkdir(exist_ok=True)
    (new.path / SYNCING).touch()
    for store, rows_of_store in zip(before, sources, strict=True):
        folder = new.layer(store.layer)
        folder.mkdir(exist_ok=True)
        with atomic_path(folder / COPIED) as temporary, temporary.open("wb") as file:
            np.save(file, np.where(absent, -1, rows_of_store))
    runtime = before[-1].manifest.runtime
    require_runtime(runtime)
    plans = tuple(
        (
            new.layer(store.layer),
            replace(store.manifest.plan, label=label, shard_rows=job.shard_rows, runtime=runtime),
        )
        for store in before
    )
    say(
        f"{dataset.name} has changed: encoding {counted(int(absent.sum()), 'documents', ',')} of "
        f"{len(absent):,}, and copying the vectors of the others."
    )
    for folder, plan in plans:  # an earlier sync may have been to other documents
        begun, done = (folder / PARTIAL).exists(), (folder / STORE).exists()
        if (done and not rows.digest.is_of(open_store(folder).manifest)) or (
            begun and read_record(folder / PARTIAL, StorePlan) != plan
        ):
            clear_store(folder)
    job = replace(job, stores=plans, runtime=runtime, copies=True)
    _encode_missing(job, dataset, rows, count, backend)
    for store in before:
        (new.layer(store.layer) / COPIED).unlink(missing_ok=True)
        rebuild_indexes(store, new.store(store.layer))
    if Maps(index).are_fitted:
        _keep_maps(Maps(index), Maps(new).folder)
    index.swap_in()


def _keep_maps(maps: Maps, target: Path) -> None:
    """Keep maps that were fitted on the old documents, which their record names by digest."""
    target.mkdir(exist_ok=True)
    for name in (*(name for name, _ in maps.record.files), EXITS_FILE):
        link(maps.folder / name, target / name)


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where a disk has no links."""
    target.unlink(missing_ok=True)
    with suppress(OSError):
        os.link(source, target)
    if not target.exists():
        with atomic_path(target) as temporary:
            shutil.copyfile(source, temporary)
    fsync(target.parent)


def _runtime_of(folder: Path) -> str:
    """Return the runtime that a store, finished or not, is encoded in; without one ''."""
    begun = begun_plan(folder)
    return begun.runtime if begun else ""


def _with_runtime(job: EncodingJob, dataset: Dataset, dtype: str) -> EncodingJob:
    """Return a job whose runtime is chosen, in its plans too.

    Products are int8 if that is the dtype, whose graph is calibrated if needed; auto goes on with
    the runtime of a store.

    Raises:
        UserError: the runtime cannot run this encoder, or is not installed, or as `quantize`.
    """
    begun = [name for folder, _ in job.stores if (name := _runtime_of(folder))]
    encoded = [name for name in begun if name != IMPORTED]
    if dtype == "int8":
        if job.runtime not in ("auto", OPENVINO):
            raise UserError(f"--dtype int8 computes in {OPENVINO}, not in {job.runtime}.")
        runtime = begun[0] if begun else _calibrated(job, dataset)
    elif all((folder / STORE).exists() for folder, _ in job.stores):
        runtime = begun[-1]  # nothing is encoded
    elif job.runtime == "auto" and encoded:
        runtime = encoded[0]
        require_runtime(runtime)
    else:
        runtime = choose_runtime(job.source, job.runtime, job.documents)
    stores = tuple((folder, replace(plan, runtime=runtime)) for folder, plan in job.stores)
    return replace(job, runtime=runtime, stores=stores)


def _calibrated(job: EncodingJob, dataset: Dataset) -> str:
    """Return the runtime of the int8 graph of an index, calibrated on documents if it is new."""
    source = job.in_int8(job.source)
    assert source.int8 is not None
    if not source.int8.exists():
        rows = map_files.sampled_rows(job.documents, SAMPLED_DOCUMENTS)
        quantize(source, list(read_texts(dataset, rows)), source.int8)
    return f"{INT8}{int8_digest(source.int8)}"


LOCAL = "local"
# Where workers run; a new place is a row.
MAPS: Mapping[str, Callable[[Work[WrittenShard], Sequence[int], int], Iterator[WrittenShard]]] = {
    LOCAL: map_locally,
    "ray": map_on_ray,
}


def _encode_shards(job: EncodingJob, device: str, numbers: Sequence[int]) -> list[WrittenShard]:
    """Encode shards in a worker, which loads the model once."""
    return list(_shard_encoder(replace(job, device=device)).encode(numbers))


@lru_cache(maxsize=1)
def _shard_encoder(job: EncodingJob) -> ShardEncoder:
    return ShardEncoder(replace(job, model=job.model.on_this_machine()))


def _counting(
    shards: Iterable[WrittenShard], advance: Callable[[int], None]
) -> Iterator[WrittenShard]:
    for shard in shards:
        advance(shard.documents)
        yield shard


def _encode(
    job: EncodingJob, dataset: Dataset, missing: Sequence[int], count: int, backend: str
) -> None:
    """Encode the missing shards and report progress."""
    documents = sum(map(job.fresh, missing))
    device = choose_device(job.device)
    layers = ", ".join(str(plan.layer) for _, plan in job.stores)
    how = f"{device.type}, {choose_dtype(job.dtype, device)}, {job.runtime}"
    how += f", {counted(count, 'workers')}" * (count > 1) + f" on {backend}" * (backend != LOCAL)
    say(f"Encoding {dataset.name} at layers {layers} with {job.model} on {how}")
    if documents < job.documents and not job.copies:
        encoded = job.documents - documents
        say(f"{encoded} of {counted(job.documents, 'documents')} are encoded already")
    done: list[WrittenShard] = []

    def written() -> str:
        return f"{sum(shard.bytes for shard in done) / 1e6:,.1f} MB written"

    try:
        with progress("Encoding", documents, "documents", written) as advance:
            if count == 1 and backend == LOCAL:
                shards = ShardEncoder(job, dataset).encode(missing, advance)
            else:
                work = Work(partial(_encode_shards, job), job.device, job.lacks)
                shards = _counting(MAPS[backend](work, missing, count), advance)
            for shard in shards:
                done.append(shard)  # noqa: PERF402  # what is written is shown meanwhile
    except KeyboardInterrupt:
        left = sum(job.rows_of(number) for number in missing if job.lacks(number))
        stopped = f"after {job.documents - left} of {counted(job.documents, 'documents')}"
        raise Interrupted(f"Encoding stopped {stopped}; the same command goes on.") from None
    length = job.stores[0][1].label.document_length
    if cut := sum(shard.cut for shard in done):
        of = f"{cut:,} of {counted(documents, 'documents', ',')}"
        say(f"{of} were cut at {length} tokens; --passages splits long ones for searches.")
