"""The steps from stores to a finished index: maps of queries, BM25 and engines.

Each does what an index lacks, and nothing where it lacks nothing, so that any command that was
stopped is given again.

Shapes: N texts, P dims of a pooled state, L layers, W dims of the embedding.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError, counted
from m2dr.core.files import lock_folder, sha256_of, write_record
from m2dr.core.progress import progress, say
from m2dr.core.records import EXITS_FILE, FitRecord, IndexExits
from m2dr.data.dataset import Dataset
from m2dr.index.faiss import build_index
from m2dr.index.folder import exchange
from m2dr.index.manifest import NEW, OLD
from m2dr.index.store import Store
from m2dr.maps import files as map_files
from m2dr.maps.exits import fit_head
from m2dr.maps.files import NO_SHORT_TEXTS, Maps, ShortFile
from m2dr.maps.fit import (
    as_targets,
    drop_exits,
    fit_exits,
    held_out,
    span_weight,
    spans_and_log,
    unfit,
    with_spans,
    word_rows,
    words_towards,
)
from m2dr.maps.log import distinct_queries, log_weight, logged, queries_of
from m2dr.model import checkpoint
from m2dr.model.checkpoint import Model
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.model.embed import TextEncoder
from m2dr.model.encoder import DualEncoder
from m2dr.model.exits import FittedExits, write_exits
from m2dr.model.graphs import BatchEncoder, require_runtime
from m2dr.model.hub import EXITS, WORDS
from m2dr.model.words import WordTable, unit_rows
from m2dr.tasks.corpus import open_bm25, read_documents, read_texts
from m2dr.tasks.encoder import Encoder as QueryModel
from m2dr.tasks.indexing.certificate import MOST_SPANS, bridge_told, measure_bridge
from m2dr.tasks.indexing.encode import EncodingJob, link
from m2dr.tasks.vectors import query_vectors


@dataclass(frozen=True)
class Target:
    """What an index should have, whose stores are finished.

    Attributes:
        job: that made the stores, or would make them; its index.
        dataset: the documents; None for vectors whose texts are not there.
        stores: by layer, one at least.
        fits: whether maps are fitted where there are none.
        refits: whether maps that are there are fitted again from the first document.
        given: a log that is named, and its vectors that somebody else made.
        query_model: whose queries a bridge leads to the vectors; empty for none.
        engines: dim, name and factory string of those of every store; one of the two is empty.
        threads: of the builder of hnsw.
    """

    job: EncodingJob
    dataset: Dataset | None
    stores: Sequence[Store]
    fits: bool = False
    refits: bool = False
    given: tuple[Path | None, Path | None] = (None, None)
    query_model: str = ""
    engines: Sequence[tuple[int, str, str]] = ()
    threads: int = 1

    @property
    def last(self) -> Store:
        """The store of the deepest layer."""
        return self.stores[-1]

    @property
    def texts(self) -> Dataset:
        """The documents, which are there."""
        assert self.dataset is not None
        return self.dataset

    @property
    def maps(self) -> Maps:
        """Maps of the index."""
        return Maps(self.job.index)


def fit_lacking(target: Target) -> None:
    """Fit the maps that an index lacks; raises as `reach`."""
    for step in lacks(target) if target.dataset else ():
        step(target)


def reach(target: Target) -> tuple[Path, ...]:
    """Do the steps that an index lacks; return the folders of its engines.

    Raises:
        UserError: a vector is not finite, or another process writes there.
    """
    fit_lacking(target)
    if target.dataset:
        open_bm25(target.job.index, target.last, lambda: target.texts, rebuild=True)
    ways = [(store, way) for store in target.stores for way in target.engines]
    with progress("Indexing", len(ways) * target.last.documents, "documents") as advance:
        return tuple(
            build_index(
                store, dim, engine, progress=advance, factory=factory, workers=target.threads
            )
            for store, (dim, engine, factory) in ways
        )


def check_given(model: Model, queries: Path | None, vectors: Path | None) -> None:
    """Refuse vectors of a log for a model that makes them, and one without the other for none.

    Raises:
        UserError: as said.
    """
    if vectors and model.card.query_layer:
        raise UserError(f"{vectors} is for vectors without a model, and these are of {model}.")
    if not model.card.query_layer and (queries is None) != (vectors is None):
        raise UserError(
            f"{queries or vectors} was given alone; vectors without a model need both --queries "
            "and --query-vectors."
        )


def lacks(target: Target) -> Iterator[Callable[[Target], None]]:
    """Yield the steps that maps lack; each is asked for when those before it are done."""
    maps = target.maps
    if target.refits or (target.fits and not maps.are_fitted):
        yield _fit
    elif maps.are_fitted:
        with suppress(UserError, OSError), lock_folder(maps.folder):  # else another fits them
            map_files.forget_states(maps.folder)
            shutil.rmtree(_new(maps.folder), ignore_errors=True)
    if maps.is_old():
        yield _refit_words
    if target.query_model:
        yield _bridge


def _refit_words(target: Target) -> None:
    """Fit the words of an index again where its documents have changed since, in seconds.

    Exits of layers from 1 stay, as a fit of these encodes documents again: what they lack of
    documents that came is nearly all in the words (docs/decisions/0029-words-follow.md).
    """
    maps, index, dataset, begun = target.maps, target.job.index, target.texts, time.monotonic()
    folder = maps.folder
    with lock_folder(folder), _replacing(folder, EXITS) as new:
        record, before = maps.record, WordTable.open(folder)
        store = index.store(record.layer)
        short = ShortFile.read(folder).of(store.digests())
        words = _words(store, dataset, before.language, short, record.fit.query_weight)
        words = replace(words, beside=before.beside, bridge=before.bridge)
        replace(words, query_model=before.query_model).write(new)
        short.write(new)
        spans = len(short.digests)
        fit = replace(record.fit, words=len(words.rows), language=words.language)
        fit = replace(fit, spans=spans, span_weight=span_weight(store.documents) if spans else 0.0)
        _write_record(replace(record, fit=fit, texts=store.manifest.texts), new)
    exits = " Exits unchanged; m2dr index fit --overwrite refits them." * bool(before.beside)
    count = counted(len(words.rows), "words", ",")
    say(f"Refitted {count} in {time.monotonic() - begun:,.0f} s.{exits}")


def _bridge(target: Target) -> None:
    """Add to the words of an index what leads queries of another model to the stored vectors.

    The model encodes documents, and M = argmin Σ ‖M v − b‖² + λ ‖M‖² goes from the stored vector v
    of each to the model's b. So a query b' scores v as the model would score b: b'·b ≈ (Mᵀ b')·v.
    The other direction, from b to v, knows nothing of queries, which lie far from all documents:
    docs/decisions/0025-a-bridge-between-models.md.
    """
    job, dataset, store, maps = target.job, target.texts, target.last, target.maps
    encoder = QueryModel(target.query_model, device=job.device, dtype=job.dtype)
    rows = map_files.sampled_rows(store.documents)
    ours, none = _vectors_of(store, rows), np.zeros((len(rows), 0), np.float32)
    theirs = encoder.encode_documents(read_texts(dataset, rows, store), show_progress_bar=True)
    folder = maps.folder
    with lock_folder(folder), _replacing(folder, EXITS, map_files.SPANS_FILE) as new:
        record, words = maps.record, WordTable.open(folder)
        try:
            head = fit_head(ours, none, theirs - theirs.mean(axis=0), held_out(len(rows)))
        except ValueError as error:
            raise unfit([store.manifest.corpus], error) from error
        model = encoder.model.card.digest()
        words = replace(words, bridge=head.weight.T, query_model=model)
        judges = np.flatnonzero(held_out(len(rows)))
        judges = judges[map_files.sampled_rows(len(judges), MOST_SPANS)]
        worth = None
        if judges.size:
            texts = list(read_texts(dataset, rows[judges], store))
            worth = measure_bridge(encoder, words, texts, ours, theirs)
        words.write(new)
        _write_record(replace(record, bridge=worth), new)
    cosine = "" if head.cosine is None else f"; held-out cosine {head.cosine:.3f}"
    say(f"Fitted a bridge for {encoder.name} to {counted(len(rows), 'documents', ',')}{cosine}.")
    if worth:
        say(bridge_told(worth))


def _fit(target: Target) -> None:
    """Fit exits, or words of vectors without a model.

    States of documents that encoding did not keep are computed for the sampled ones.
    """
    job, dataset, store = target.job, target.texts, target.last
    asked, folder, begun = job.index.asked, job.index.exits, time.monotonic()
    queries = asked.queries
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        names, weight = (store.manifest.corpus,), log_weight(queries, asked.query_weight)
        if not job.model.card.query_layer:
            short = _log_with_vectors(target)
            words = _words(store, dataset, asked.language, short, weight)
            fit = FitRecord(
                names, store.documents, 0, "none", len(words.rows), words.language, (), ()
            )
            _write(words, store, logged(fit, queries, weight), "", folder, short)
            return
        device = choose_device(job.device)
        dtype = choose_dtype(job.dtype, device)
        loaded = checkpoint.load(job.model, None, device, dtype)
        encoder = loaded.runtime
        drop_exits(encoder)
        states = _states(job, dataset, store, folder, loaded)
        sampled = map_files.sampled_rows(store.documents)
        texts = list(read_texts(dataset, sampled, store))
        read = with_spans(loaded, texts, states, store.documents, queries)
        short = ShortFile.packed(
            (*read.spans, *queries),
            as_targets(encoder, read.short[:, -job.model.card.width :]),
            store.digests()[sampled[read.places]],
        )
        words = _words(store, dataset, asked.language, short, weight)
        fit = fit_exits(encoder, read, words, names, "none", weight)
        fit = replace(fit, span_weight=span_weight(store.documents) if read.spans else 0.0)
        assert encoder.fitted is not None
        _write(encoder.fitted, store, fit, str(dtype), folder, short)
    cosines = ", ".join("-" if cosine is None else f"{cosine:.3f}" for cosine in fit.cosines)
    say(
        f"Fitted {counted(fit.words, 'words', ',')} and exits, with "
        f"{counted(fit.spans, 'spans', ',')}, in {time.monotonic() - begun:,.0f} s; "
        f"cosines of layers from 1 with the full model on held-out texts: {cosines}."
    )


def _log_with_vectors(target: Target) -> ShortFile:
    """Return a log with its imported vectors, by its ids or in its order.

    Where none is named now, it is the one that was named before, with the vectors of then.
    """
    (path, given), index, card = target.given, target.job.index, target.job.model.card
    if path is None:
        short = ShortFile.read(index.exits).of(NO_SHORT_TEXTS.digests)
        fits = not short.texts or short.vectors.shape[1] == card.width
        if not fits or len(short.texts) != len(index.asked.queries):
            raise UserError(
                f"{index} was built with {counted(len(index.asked.queries), 'queries')}, whose "
                "vectors are missing; give --queries and --query-vectors."
            )
        return short
    assert given  # `check_given` wants both
    queries = queries_of(path)
    places = distinct_queries(path, queries)
    vectors = query_vectors(given, card, index)
    if not queries[0].id:
        vectors = replace(vectors, ids=None)
    rows = vectors.of([query.id for query in queries], "queries")[list(places.values())]
    found = vectors.finite(rows)
    found = unit_rows(found) if card.similarity == "cosine" else found
    return ShortFile.packed(tuple(places), found, np.empty(0, "S"))


def _words(
    store: Store, dataset: Dataset, language: str, short: ShortFile, query_weight: float
) -> WordTable:
    """Return words fitted to the stored vectors, to spans of documents and to a log.

    Where there are more documents than MOST_WORD_TEXTS, as many are read, evenly spread.
    """
    rows = map_files.sampled_rows(store.documents, map_files.MOST_WORD_TEXTS)
    if len(rows) < store.documents:
        say(f"Fitting words to {len(rows):,} of {store.documents:,} documents, evenly spread")
    length, texts = store.manifest.label.document_length, read_texts(dataset, rows, store)
    words, targets = word_rows(texts, len(rows), length, language), short.vectors.astype(np.float32)
    beside = spans_and_log(short.texts, targets, len(short.digests), store.documents, query_weight)
    return words_towards(words, _vectors_of(store, rows), beside, (store.manifest.corpus,))


def _vectors_of(store: Store, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return stored vectors, of length 1 where they are compared by cosine."""
    vectors = np.asarray(store.rows(rows), np.float32)
    return unit_rows(vectors) if store.manifest.label.similarity == "cosine" else vectors


def _write(
    fitted: "FittedExits | WordTable",
    store: Store,
    fit: FitRecord,
    dtype: str,
    folder: Path,
    short: ShortFile,
) -> None:
    """Replace the exits or the words in the folder."""
    label, texts = store.manifest.label, store.manifest.texts
    record = IndexExits(
        store.manifest.corpus,
        label.fingerprint,
        texts,
        fit,
        label.digest(),
        dtype,
        exits_texts=texts,
    )
    with _replacing(folder) as new:
        if isinstance(fitted, WordTable):
            fitted.write(new)
        else:
            write_exits(fitted, new)
        short.write(new)
        _write_record(record, new)


def _write_record(record: IndexExits, folder: Path) -> None:
    """Write a record with the digests of the files that are there."""
    written = [n for n in (EXITS, WORDS, map_files.SPANS_FILE) if (folder / n).exists()]
    files = tuple((name, sha256_of(folder / name)) for name in written)
    write_record(folder / EXITS_FILE, replace(record, files=files))


@contextmanager
def _replacing(folder: Path, *kept: str) -> Iterator[Path]:
    """Give a folder, with files that stay, which then takes the place of a locked one at once."""
    new, old = _new(folder), folder.with_name(folder.name + OLD)
    for path in (new, old):  # of a fit that was killed
        shutil.rmtree(path, ignore_errors=True)
    new.mkdir()
    try:
        for name in kept:
            if (folder / name).exists():
                link(folder / name, new / name)
        yield new
        exchange(folder, new)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _new(folder: Path) -> Path:
    return folder.with_name(folder.name + NEW)


def _states(
    job: EncodingJob,
    dataset: Dataset,
    store: Store,
    folder: Path,
    encoder: TextEncoder[DualEncoder],
) -> NDArray[np.float32]:
    """Return the states of the documents of the fit, in the order of the corpus."""
    runner: TextEncoder[BatchEncoder] | None = encoder if job.runtime == "torch" else None
    files: dict[int, map_files.StateFile | None] = {}
    for number, shard in enumerate(store.manifest.shards):
        if job.sampled(number).size:
            files[number] = map_files.StateFile.read(folder, number, shard.texts, job.encoding)
    lacking = {number: job.sampled(number) for number, file in files.items() if file is None}
    rows = [number * job.shard_rows + at for number, own in lacking.items() for at in own.tolist()]
    texts = (document.content for document in read_documents(dataset, rows, store))
    with progress("Reading states", len(rows), "documents") as advance:
        for number, own in lacking.items():
            if runner is None:
                require_runtime(job.runtime)
                runner = job.source.open(job.runtime)
            states = runner.states(list(islice(texts, len(own))), "document")
            file = map_files.StateFile(store.manifest.shards[number].texts, job.encoding, states)
            file.write(folder, number)
            files[number] = file
            advance(len(own))
    return np.concatenate([file.states for file in files.values() if file])
