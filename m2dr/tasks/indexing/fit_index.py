"""Words and exits of an index, fitted on its vectors and on the states that encoding kept.

Shapes: N texts, P dims of a pooled state, L layers, W dims of the embedding.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.core.arrays import Float32
from m2dr.core.errors import UserError, counted
from m2dr.core.files import (
    TEMPORARY_SUFFIX,
    lock_folder,
    remove_files,
    remove_stale_lock,
    sha256_of,
    write_record,
)
from m2dr.core.progress import progress, say
from m2dr.core.records import (
    EXITS_FILE,
    FitRecord,
    IndexExits,
    ModelCard,
)
from m2dr.core.report import Report
from m2dr.core.requests import FitIndexRequest, QueryLog
from m2dr.data.dataset import Dataset
from m2dr.index.folder import IndexFolder
from m2dr.index.store import Store
from m2dr.maps import files as map_files
from m2dr.maps.exits import fit_head
from m2dr.maps.files import NO_SHORT_TEXTS, FitOptions, Maps, ShortFile
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
from m2dr.maps.words import WordRows
from m2dr.model import checkpoint
from m2dr.model.checkpoint import open_model
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.model.embed import embed_tokens_and_states
from m2dr.model.encoder import Encoder
from m2dr.model.exits import FittedExits, write_exits
from m2dr.model.graphs import BatchEncoder, require_runtime
from m2dr.model.hub import EXITS, WORDS
from m2dr.model.tokenizer import ModelTokenizer, tokenize
from m2dr.model.tokens import Ragged
from m2dr.model.words import WordTable, unit_rows
from m2dr.tasks.corpus import CorpusDigest, model_for, open_bm25, open_corpus, texts_of
from m2dr.tasks.encoder import Encoder as QueryModel
from m2dr.tasks.indexing.certificate import MOST_SPANS, bridge_told, measure_bridge
from m2dr.tasks.indexing.encode import EncodingJob, ShardReader, asked_of, refuse_other_fit
from m2dr.tasks.vectors import query_vectors


def fit_encoded(
    job: EncodingJob, dataset: Dataset, store: Store, language: str, log: QueryLog
) -> None:
    """Fit words and exits of an index from the states that encoding kept, and remove those.

    Where exits of these documents are there already, or nothing was encoded just now, nothing is
    done. A shard whose states are missing, because it was encoded by an earlier command, is run
    again for its sampled documents.

    Args:
        job: that made the store, with the index.
        dataset: the documents.
        store: of the last layer.
        language: of the stemmer; by default that of the texts.
        log: of queries.
    """
    maps = Maps(job.index)
    if maps.are_fitted:
        map_files.forget_states(maps.folder)
        remove_stale_lock(maps.folder)
    elif any(maps.folder.glob("states-*")):
        _fit(job, dataset, store, asked_of(log, language, FitOptions.before(job.index)))


def refit_words(index: IndexFolder, dataset: Dataset) -> None:
    """Fit the words of an index again where its documents have changed since, in seconds.

    Exits of layers from 1 stay, as a fit of these encodes documents again: what they lack of
    documents that came is nearly all in the words (docs/decisions/0029-words-follow.md).

    Args:
        index: whose last layer may not be there.
        dataset: its documents.

    Raises:
        UserError: a vector is not finite.
    """
    maps, begun = Maps(index), time.monotonic()
    if not maps.is_old():
        return
    folder = maps.folder
    with lock_folder(folder):
        record, before = maps.record, WordTable.open(folder)
        store = index.store(record.layer)
        short = ShortFile.read(folder).of(store.digests())
        words = _words(store, dataset, before.language, short, record.fit.query_weight)
        # Stopped before the record is written, the words are not those of the record and refused.
        words_and_exits = replace(words, beside=before.beside, bridge=before.bridge)
        replace(words_and_exits, query_model=before.query_model).write(folder)
        short.write(folder)
        spans = len(short.digests)
        fit = replace(record.fit, words=len(words.rows), language=words.language)
        fit = replace(fit, spans=spans, span_weight=span_weight(store.documents) if spans else 0.0)
        _write_record(replace(record, fit=fit, texts=store.manifest.texts), folder)
    exits = " Exits unchanged; m2dr index fit --overwrite refits them." * bool(before.beside)
    count = counted(len(words.rows), "words", ",")
    say(f"Refitted {count} in {time.monotonic() - begun:,.0f} s.{exits}")


@dataclass(frozen=True)
class FitIndexReport(Report):
    """The exits that an index has now; `files` is their folder."""

    exits: IndexExits


def fit_index(request: FitIndexRequest) -> FitIndexReport:
    """Fit exits on the documents of an index.

    With a `query_model`, exits that are there stay, and get a bridge from its queries; where
    documents have changed since, they stay too, and their words are fitted again.

    Raises:
        UserError: there is no such index of the last layer, it has exits already, the model or the
            corpus has changed since, or the model ends in an exit of its own.
    """
    model = open_model(request.model or model_for(request.corpus, request.root))
    card, dataset = model.card, open_corpus(request.corpus)
    checkpoint.refuse_ended(model)
    index = IndexFolder.of(request.root, dataset.name, card.fingerprint)
    store, maps = index.store(card.layers), Maps(index)
    fitted = not request.overwrite and maps.are_fitted
    if fitted:
        refuse_other_fit(maps, request, request.language)
    outdated = fitted and maps.is_old()
    if fitted and not request.query_model and not outdated:
        these = "exits of these documents"
        if maps.is_old(1):
            these = "exits of documents that have changed since"
        raise UserError(f"{maps} has {these}; --overwrite replaces them.")
    model = model.with_lengths_of(store.manifest.label)
    store.manifest.label.accept(model.label(), store.manifest.corpus)
    job = EncodingJob(
        request.corpus,
        store.documents,
        model,
        index,
        request.device,
        request.dtype,
        ((store.folder, store.manifest.plan),),
        True,
        store.manifest.runtime,
    )
    if not CorpusDigest.of(dataset).is_of(store.manifest):
        raise UserError(
            f"{store.folder} holds other documents than {request.corpus}; index it again."
        )
    if outdated:
        refit_words(index, dataset)
    if not fitted:
        options = asked_of(request, request.language, FitOptions.before(index))
        _fit(job, dataset, store, options, (request.queries, request.query_vectors))
    if request.language:
        open_bm25(index, store, lambda: dataset, request.language, rebuild=True)
    if request.query_model:
        _bridge(request, dataset, store, maps)
    record = maps.record
    text = f"{counted(record.fit.texts, 'documents')}: {maps}"
    return FitIndexReport(record, text=text, files=(maps.folder,))


def _bridge(request: FitIndexRequest, dataset: Dataset, store: Store, maps: Maps) -> None:
    """Add to the words of an index what leads queries of another model to the stored vectors.

    The model encodes documents, and M = argmin Σ ‖M v − b‖² + λ ‖M‖² goes from the stored vector v
    of each to the model's b. So a query b' scores v as the model would score b: b'·b ≈ (Mᵀ b')·v.
    The other direction, from b to v, knows nothing of queries, which lie far from all documents:
    docs/decisions/0025-a-bridge-between-models.md.
    """
    encoder = QueryModel(request.query_model, device=request.device, dtype=request.dtype)
    rows = map_files.sampled_rows(store.documents)
    ours, none = _vectors_of(store, rows), np.zeros((len(rows), 0), np.float32)
    theirs = encoder.encode_documents(texts_of(dataset, rows), show_progress_bar=True)
    folder = maps.folder
    with lock_folder(folder):
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
            texts = list(texts_of(dataset, rows[judges]))
            worth = measure_bridge(encoder, words, texts, ours, theirs)
        remove_files(folder, EXITS_FILE)
        words.write(folder)
        _write_record(replace(record, bridge=worth), folder)
    cosine = "" if head.cosine is None else f"; held-out cosine {head.cosine:.3f}"
    say(f"Fitted a bridge for {encoder.name} to {counted(len(rows), 'documents', ',')}{cosine}.")
    if worth:
        say(bridge_told(worth))


def _fit(
    job: EncodingJob,
    dataset: Dataset,
    store: Store,
    asked: FitOptions,
    given: tuple[Path | None, Path | None] = (None, None),
) -> None:
    """Fit exits, or words of vectors without a model.

    Args:
        job: with the model of the store.
        dataset: the documents.
        store: of the last layer.
        asked: of the words.
        given: a log that is named, and its vectors.
    """
    begun, queries, folder = time.monotonic(), asked.queries, job.index.exits
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        names, weight = (store.manifest.corpus,), log_weight(queries, asked.query_weight)
        if not job.model.card.query_layer:
            kept = queries and given == (None, None)
            short = (
                ShortFile.read(folder).of(NO_SHORT_TEXTS.digests)
                if kept
                else _given(*given, job.model.card, job.index)
            )
            words = _words(store, dataset, asked.language, short, weight)
            fit = FitRecord(
                names, store.documents, 0, "none", len(words.rows), words.language, (), ()
            )
            _write(words, store, logged(fit, queries, weight), "", folder, short)
            return
        if given[1] is not None:
            raise UserError(
                f"{given[1]} is for vectors without a model, and these are of {job.model}."
            )
        device = choose_device(job.device)
        dtype = choose_dtype(job.dtype, device)
        encoder, tokenizer = checkpoint.load(job.model, None, device, dtype)
        drop_exits(encoder)
        states = _states(job, dataset, store, folder, encoder, tokenizer)
        sampled = map_files.sampled_rows(store.documents)
        texts = list(texts_of(dataset, sampled))
        read = with_spans(encoder, tokenizer, texts, states, store.documents, queries)
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


def _given(path: Path | None, given: Path | None, card: ModelCard, index: IndexFolder) -> ShortFile:
    """Return a log with its imported vectors, by its ids or in its order."""
    if path is None or given is None:
        if path or given:
            raise UserError(
                f"{path or given} was given alone; of vectors without a model --queries and "
                "--query-vectors go together."
            )
        return NO_SHORT_TEXTS
    queries = queries_of(path)
    places = distinct_queries(path, queries)
    vectors = query_vectors(given, card, index)
    if not queries[0].id:
        vectors = replace(vectors, ids=None)
    rows = vectors.of([query.id for query in queries], "queries")[list(places.values())]
    found = vectors.finite(rows)
    found = unit_rows(found) if card.similarity == "cosine" else found
    return ShortFile.packed(tuple(places), found, np.empty(0, "S"))


def _rows_of(store: Store, dataset: Dataset, language: str) -> tuple[WordRows, Float32]:
    """Return the words of documents, and the stored vectors of these.

    Where there are more than MOST_WORD_TEXTS, as many are read, evenly spread, which is said.
    """
    rows = map_files.sampled_rows(store.documents, map_files.MOST_WORD_TEXTS)
    if len(rows) < store.documents:
        say(f"Fitting words to {len(rows):,} of {store.documents:,} documents, evenly spread")
    length, texts = store.manifest.label.document_length, texts_of(dataset, rows)
    return word_rows(texts, len(rows), length, language), _vectors_of(store, rows)


def _words(
    store: Store, dataset: Dataset, language: str, short: ShortFile, query_weight: float
) -> WordTable:
    """Return words fitted to the stored vectors, to spans of documents and to a log."""
    rows, vectors = _rows_of(store, dataset, language)
    targets = short.vectors.astype(np.float32)
    beside = spans_and_log(short.texts, targets, len(short.digests), store.documents, query_weight)
    return words_towards(rows, vectors, beside, (store.manifest.corpus,))


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
    """Replace the exits or the words in the folder, their record last."""
    remove_files(folder, EXITS_FILE, EXITS, map_files.SPANS_FILE, f".*{TEMPORARY_SUFFIX}")
    if isinstance(fitted, WordTable):
        fitted.write(folder)
    else:
        write_exits(fitted, folder)
    short.write(folder)
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
    _write_record(record, folder)


def _write_record(record: IndexExits, folder: Path) -> None:
    """Write a record with the digests of the files."""
    written = [n for n in (EXITS, WORDS, map_files.SPANS_FILE) if (folder / n).exists()]
    files = tuple((name, sha256_of(folder / name)) for name in written)
    write_record(folder / EXITS_FILE, replace(record, files=files))
    map_files.forget_states(folder)


def _states(
    job: EncodingJob,
    dataset: Dataset,
    store: Store,
    folder: Path,
    encoder: Encoder,
    tokenizer: ModelTokenizer,
) -> NDArray[np.float32]:
    """Return the states of the documents of the fit, in the order of the corpus."""
    reader, files = ShardReader(dataset, job.shard_rows), []
    runner: BatchEncoder | None = encoder if job.runtime == "torch" else None
    total = len(map_files.sampled_rows(store.documents))
    with progress("Reading states", total, "documents") as advance:
        for number, shard in enumerate(store.manifest.shards):
            chosen = job.sampled(number)
            if not chosen.size:
                continue
            file = map_files.StateFile.read(folder, number, shard.texts, job.encoding)
            if file is None:
                documents = reader.read(number)
                contents = [documents[position].content for position in chosen]
                rows = Ragged.of(tokenize(encoder.card, tokenizer, contents, "document"))
                every = np.arange(len(rows))
                layers = (encoder.layers,)
                if runner is None:
                    require_runtime(job.runtime)
                    runner = job.source.open(job.runtime)[0]
                _, states = embed_tokens_and_states(runner, rows, tokenizer.pad_id, layers, every)
                file = map_files.StateFile(shard.texts, job.encoding, states)
                file.write(folder, number)
            files.append(file)
            advance(len(chosen))
    return np.concatenate([file.states for file in files])
