"""Words and exits of an index, fitted on its vectors and on the states that encoding kept.

Shapes: N texts, P dims of a pooled state, L layers, W dims of the embedding.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
from m2dr.core.records import EXITS_FILE, FitRecord, IndexExits, UnrelatedScores
from m2dr.core.report import Report
from m2dr.core.requests import FitIndexRequest
from m2dr.data.dataset import Dataset
from m2dr.data.tokens import Ragged
from m2dr.index import exit_files
from m2dr.index.manifest import store_folder
from m2dr.index.store import Store, open_store
from m2dr.model import checkpoint
from m2dr.model.checkpoint import open_model
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.model.encoder import Encoder
from m2dr.model.exits import FittedExits, write_exits
from m2dr.model.graphs import BatchEncoder, require_runtime
from m2dr.model.hub import EXITS, WORDS
from m2dr.model.tokenizer import ModelTokenizer, tokenize
from m2dr.model.words import WordTable, unit_rows
from m2dr.tasks.corpus import CorpusDigest, model_for, open_corpus, texts_of
from m2dr.tasks.embed import embed_tokens_and_states
from m2dr.tasks.encoder import Encoder as QueryModel
from m2dr.tasks.indexing.encode import EncodingJob, ShardReader
from m2dr.tasks.indexing.unrelated import measure_unrelated
from m2dr.tasks.models import label_of
from m2dr.tasks.training.fit import (
    drop_exits,
    fit_exits,
    held_out,
    unfit,
    with_snippets,
    words_towards,
)
from m2dr.training.linear_fit import fit_head


def fit_encoded(job: EncodingJob, dataset: Dataset, store: Store, language: str = "") -> None:
    """Fit words and exits of an index from the states that encoding kept, and remove those.

    Where exits of these documents are there already, or nothing was encoded just now, nothing is
    done. A shard whose states are missing, because it was encoded by an earlier command, is run
    again for its sampled documents.

    Args:
        job: that made the store; `exits` is its folder of exits.
        dataset: the documents.
        store: of the last layer.
        language: of the stemmer; by default that of the texts.
    """
    folder = exit_files.exits_folder(store.folder)
    if exit_files.fitting_exits(store.folder):
        exit_files.forget_states(folder)
        remove_stale_lock(folder)
    elif any(folder.glob("states-*")):
        _fit(job, dataset, store, folder, language)
    fitting = exit_files.fitting_exits(store.folder)
    if fitting and not exit_files.read_exits_record(folder).unrelated:
        measure_unrelated(job.model, dataset, store, job.device, job.dtype)


def refit_words(store: Store, dataset: Dataset) -> None:
    """Fit the words of an index again where its documents have changed since, in seconds.

    Exits of layers from 1 stay, as a fit of these encodes documents again: what they lack of
    documents that came is nearly all in the words (docs/decisions/0029-words-follow.md).

    Args:
        store: of the last layer.
        dataset: its documents.

    Raises:
        UserError: a vector is not finite.
    """
    if not exit_files.are_outdated(store.folder):
        return
    folder, begun = exit_files.exits_folder(store.folder), time.monotonic()
    with lock_folder(folder):
        record, before = exit_files.read_exits_record(folder), WordTable.open(folder)
        words = words_of(store, dataset, before.language)
        # Stopped before the record is written, the words are not those of the record and refused.
        words_and_exits = replace(words, beside=before.beside, bridge=before.bridge)
        replace(words_and_exits, query_model=before.query_model).write(folder)
        fit = replace(record.fit, words=len(words.rows), language=words.language)
        _write_record(store, fit, record.dtype, folder, record.exits_texts, record.unrelated)
    exits = "; exits stay, and m2dr index fit --overwrite fits these again" * bool(before.beside)
    say(
        f"{counted(len(words.rows), 'words', ',')} fitted to the documents of now in "
        f"{time.monotonic() - begun:,.0f} s{exits}."
    )


@dataclass(frozen=True)
class FitIndexReport(Report):
    """The exits that an index has now; `files` is their folder."""

    exits: IndexExits


def fit_index(request: FitIndexRequest) -> FitIndexReport:
    """Fit exits on the documents of an index that is there.

    With a `query_model`, exits that are there stay, and get a bridge from its queries; where
    documents have changed since, they stay too, and their words are fitted again.

    Raises:
        UserError: there is no such index of the last layer, it has exits already, the model or the
            corpus has changed since, or the model ends in an exit of its own.
    """
    model = open_model(request.model or model_for(request.corpus, request.root))
    card, dataset = model.card, open_corpus(request.corpus)
    checkpoint.refuse_ended(model)
    folder = store_folder(request.root, dataset.name, card.fingerprint, card.layers)
    store, exits = open_store(folder), exit_files.exits_folder(folder)
    outdated = not request.overwrite and exit_files.are_outdated(folder)
    if outdated:
        refit_words(store, dataset)
    fitted = not request.overwrite and exit_files.fitting_exits(folder)
    measured = fitted and exit_files.read_exits_record(exits).unrelated
    if measured and not request.query_model and not outdated:
        these = "exits of these documents"
        if exit_files.are_outdated(folder, 1):
            these = "exits of documents that have changed since"
        raise UserError(f"{exits} has {these}; --overwrite replaces them.")
    model = model.with_lengths_of(store.manifest.label)
    store.manifest.label.accept(label_of(model), store.manifest.corpus)
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
    if not CorpusDigest.of(dataset).is_of(store.manifest):
        raise UserError(f"{folder} holds other documents than {request.corpus}; index it again.")
    if not fitted:
        _fit(job, dataset, store, exits, request.language)
    if request.query_model:
        _bridge(request, dataset, store, exits)
    record = measure_unrelated(model, dataset, store, request.device, request.dtype)
    text = f"{counted(record.fit.texts, 'documents')}: {exits}"
    return FitIndexReport(record, text=text, files=(exits,))


def _bridge(request: FitIndexRequest, dataset: Dataset, store: Store, folder: Path) -> IndexExits:
    """Add to the words in the folder what leads queries of another model to the stored vectors.

    The model encodes documents, and M = argmin Σ ‖M v − b‖² + λ ‖M‖² goes from the stored vector v
    of each to the model's b. So a query b' scores v as the model would score b: b'·b ≈ (Mᵀ b')·v.
    The other direction, from b to v, knows nothing of queries, which lie far from all documents:
    docs/decisions/0025-a-bridge-between-models.md.
    """
    encoder = QueryModel(request.query_model, device=request.device, dtype=request.dtype)
    rows = exit_files.sampled_rows(store.documents)
    ours, none = _vectors_of(store, rows), np.zeros((len(rows), 0), np.float32)
    theirs = encoder.encode_documents(texts_of(dataset, rows), show_progress_bar=True)
    with lock_folder(folder):
        record, words = exit_files.read_exits_record(folder), WordTable.open(folder)
        try:
            head = fit_head(ours, none, theirs - theirs.mean(axis=0), held_out(len(rows)))
        except ValueError as error:
            raise unfit([store.manifest.corpus], error) from error
        remove_files(folder, EXITS_FILE)
        model = exit_files.encoding_of(label_of(encoder.model))
        replace(words, bridge=head.weight.T, query_model=model).write(folder)
        written = _write_record(store, record.fit, record.dtype, folder, record.exits_texts)
    cosine = (
        "" if head.cosine is None else f"; cosine with its vectors, held out: {head.cosine:.3f}"
    )
    say(f"Bridge to {encoder.name} by {counted(len(rows), 'documents', ',')}{cosine}.")
    return written


def _fit(
    job: EncodingJob, dataset: Dataset, store: Store, folder: Path, language: str
) -> IndexExits:
    begun = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        if not job.model.card.query_layer:
            words = words_of(store, dataset, language)
            count, names = len(words.rows), (store.manifest.corpus,)
            fit = FitRecord(names, store.documents, 0, "none", count, words.language, (), ())
            return _write(words, store, fit, "", folder)
        device = choose_device(job.device)
        dtype = choose_dtype(job.dtype, device)
        encoder, tokenizer = checkpoint.load(job.model, None, device, dtype)
        drop_exits(encoder)
        states = _states(job, dataset, store, folder, encoder, tokenizer)
        texts = list(texts_of(dataset, exit_files.sampled_rows(store.documents)))
        read = with_snippets(encoder, tokenizer, texts, states, store.documents)
        words = words_of(store, dataset, language)
        fit = fit_exits(encoder, read, words, (store.manifest.corpus,), "none")
        assert encoder.fitted is not None
        record = _write(encoder.fitted, store, fit, str(dtype), folder)
    cosines = ", ".join("-" if cosine is None else f"{cosine:.3f}" for cosine in fit.cosines)
    say(
        f"{counted(fit.words, 'words', ',')} and exits fitted in {time.monotonic() - begun:,.0f} s;"
        f" cosines of layers from 1 with the full model, held out: {cosines}."
    )
    return record


def words_of(store: Store, dataset: Dataset, language: str) -> WordTable:
    """Return the words that give the stored vectors of documents.

    Where there are more than MOST_WORD_TEXTS, as many are read, evenly spread, which is said.

    Args:
        store: of the documents.
        dataset: the same documents.
        language: of the stemmer; by default that of the texts.

    Raises:
        UserError: a vector is not finite.
    """
    rows = exit_files.sampled_rows(store.documents, exit_files.MOST_WORD_TEXTS)
    if len(rows) < store.documents:
        say(f"Words are fitted on {len(rows):,} of {store.documents:,} documents, evenly spread")
    names, length = (store.manifest.corpus,), store.manifest.label.document_length
    texts = texts_of(dataset, rows)
    return words_towards(texts, _vectors_of(store, rows), length, language, names)


def _vectors_of(store: Store, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return stored vectors, of length 1 where they are compared by cosine."""
    vectors = np.asarray(store.rows(rows), np.float32)
    return unit_rows(vectors) if store.manifest.label.similarity == "cosine" else vectors


def _write(
    fitted: "FittedExits | WordTable", store: Store, fit: FitRecord, dtype: str, folder: Path
) -> IndexExits:
    """Replace the exits or the words in the folder, their record last."""
    remove_files(folder, EXITS_FILE, EXITS, f".*{TEMPORARY_SUFFIX}")
    if isinstance(fitted, WordTable):
        fitted.write(folder)
    else:
        write_exits(fitted, folder)
    return _write_record(store, fit, dtype, folder)


def _write_record(
    store: Store,
    fit: FitRecord,
    dtype: str,
    folder: Path,
    exits_texts: str = "",
    unrelated: tuple[UnrelatedScores, ...] = (),
) -> IndexExits:
    record = IndexExits(
        store.manifest.corpus,
        store.manifest.label.fingerprint,
        store.manifest.texts,
        fit,
        exit_files.encoding_of(store.manifest.label),
        dtype,
        tuple((n, sha256_of(folder / n)) for n in (EXITS, WORDS) if (folder / n).exists()),
        unrelated,
        exits_texts or store.manifest.texts,
    )
    write_record(folder / EXITS_FILE, record)
    exit_files.forget_states(folder)
    return record


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
    total = len(exit_files.sampled_rows(store.documents))
    with progress("Reading states", total, "documents") as advance:
        for number, shard in enumerate(store.manifest.shards):
            chosen = job.sampled(number)
            if not chosen.size:
                continue
            file = exit_files.StateFile.read(folder, number, shard.texts, job.encoding)
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
                file = exit_files.StateFile(shard.texts, job.encoding, states)
                file.write(folder, number)
            files.append(file)
            advance(len(chosen))
    return np.concatenate([file.states for file in files])
