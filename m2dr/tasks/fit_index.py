"""Exits of an index, fitted on the states of its own documents that encoding kept.

Shapes: S shallow layers, N texts, n snippets, P dims of a pooled state, W dims of the embedding.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from m2dr.core.records import EXITS_FILE, FitRecord, IndexExits
from m2dr.core.requests import FitIndexRequest
from m2dr.core.settings import FitSettings
from m2dr.data.dataset import Dataset
from m2dr.data.tokens import Ragged, batched
from m2dr.index.exit_files import (
    StateFile,
    encoding_of,
    exits_folder,
    fitting_exits,
    forget_states,
    sampled_rows,
)
from m2dr.index.manifest import store_folder
from m2dr.index.store import Store, open_store
from m2dr.model import checkpoint
from m2dr.model.checkpoint import read_card
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.model.encoder import Encoder
from m2dr.model.exits import (
    TokenFeatures,
    WholeWords,
    WordFeatures,
    give_exits,
    with_counts,
    with_words,
    write_exits,
)
from m2dr.model.graphs import BatchEncoder, require_runtime
from m2dr.model.hub import EXITS, STATIC, TOKENIZER
from m2dr.model.tokenizer import ModelTokenizer, tokenize
from m2dr.tasks.corpus import CorpusDigest, open_corpus
from m2dr.tasks.encode_corpus import EncodingJob, ShardReader
from m2dr.tasks.encoder import embed_tokens, embed_tokens_and_states, label_of, newest_model
from m2dr.tasks.fit import (
    HELD_OUT,
    ONE_OF,
    as_sample,
    read_features,
    record_of,
    snippets,
    token_parts,
    unfit,
)
from m2dr.train.linear_fit import RIDGES, RIDGES_OF_SIGNS, Moments, Sample, fit_head

# Random signs per token: the more the better, and the longer the regressions take. A fit of few
# documents, which are encoded soon, has fewer.
FEW, FEW_SIGNS, SIGNS = 3000, 1024, 3072
AT_ONCE = 1024  # texts whose products are summed, or whose rows are lists, at a time
ONE_SNIPPET_OF = 4  # of so many documents of the fit a few words are read as a query
SNIPPETS = 4096  # at most
SHARE = 0.3  # of a document, that a snippet counts at layer 0


@dataclass(frozen=True)
class Snippets:
    """The first words of some documents, run through the encoder as queries.

    Attributes:
        rows: token ids of n snippets.
        states: [n, S P + W].
        places: [n], of their documents among those of the fit.
        held: [n] bool, those of documents that are held out.
    """

    rows: Ragged
    states: NDArray[np.float32]
    places: NDArray[np.int64]
    held: NDArray[np.bool_]


def held_out(count: int) -> NDArray[np.bool_]:
    """Return which of `count` texts λ is chosen by, evenly spread: [count].

    >>> held_out(16).nonzero()[0].tolist()
    [7, 15]
    """
    step = max(ONE_OF, -(-count // HELD_OUT))
    held: NDArray[np.bool_] = np.arange(count) % step == step - 1
    return held


def snippet_places(held: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the documents that snippets are read of, increasing and evenly spread.

    One snippet of `ONE_OF` is of a document that is held out, and is held out with it.

    Args:
        held: [N], as `held_out` gives it.
    """
    count = min(len(held) // ONE_SNIPPET_OF, SNIPPETS)
    found = []
    for part, share in ((held, count // ONE_OF), (~held, count - count // ONE_OF)):
        places = np.flatnonzero(part)
        found.append(places[np.arange(share) * len(places) // max(share, 1)])
    return np.sort(np.concatenate(found))


def fit_states(
    encoder: Encoder,
    tokenizer: ModelTokenizer,
    rows: Ragged,
    states: NDArray[np.float32],
    names: Sequence[str],
    identity: int,
    parts: Snippets | None = None,
    whole_words: bool = False,
) -> FitRecord:
    """Replace the exits of an encoder by exits fitted on some documents.

    All are fitted on the documents and on snippets of them. The layers from 1 have the λ that is
    best on snippets that are held out. Layer 0 reads no states, which are what distinguishes a
    short text most: a snippet counts SHARE of a document there, and λ is chosen by documents. The
    embedding is not rotated. Measured: docs/decisions/0014-what-a-fit-reads.md.

    Args:
        encoder: changed in place; with all layers.
        tokenizer: of the same model.
        rows: token ids of N texts.
        states: [N, S P + W], as `Encoder.states` gives them.
        names: of the corpora, for the record.
        identity: random signs per token.
        parts: the snippets; some of them are held out, and others are not.
        whole_words: whether layer 0 knows whole words of the documents.

    Raises:
        UserError: a state or an embedding is not finite.
    """
    counts = np.bincount(rows.tokens, minlength=len(encoder.words))
    if encoder.fitted is not None and not whole_words:
        # A fit embeds tokens before it rotates the embedding, and words are embedded after it.
        features = with_counts(encoder.fitted.tokens, counts, identity)
    else:
        features = read_features(encoder, tokenizer, counts, identity)
    inputs, ridges = FitSettings.inputs, RIDGES_OF_SIGNS if identity else RIDGES
    try:
        held = held_out(len(rows))
        shallow = encoder.layers - 1
        moments, judges = _sums(encoder, tokenizer, features, rows, states, held, shallow)
        texts, of_table, of_held = moments.count, moments.of_tokens(), judges
        whole = word_features(encoder, tokenizer, features, rows) if whole_words else None
        if whole is not None:
            read_words, longer, with_words = whole
            of_table, of_held = _sums(encoder, tokenizer, read_words, longer, states, held, 0)
        if parts is not None:
            read = (parts.states, parts.held)
            short, judges = _sums(encoder, tokenizer, features, parts.rows, *read, shallow)
            of_parts = short.of_tokens()
            if whole is not None:
                words = with_words(parts.rows)
                of_parts, _ = _sums(encoder, tokenizer, read_words, words, *read, 0)
            of_table.merge(of_parts, SHARE)
            short.merge(moments)
            moments = short
        heads, above = [fit_head(of_table, of_held, 0, inputs, ridges)], range(1, encoder.layers)
        heads += [fit_head(moments, judges, layer, inputs, ridges) for layer in above]
    except ValueError as error:
        raise unfit(names, error) from error
    weights = [(head.weight, head.bias) for head in heads]
    give_exits(encoder, features, inputs, weights, None if whole is None else whole[0])
    return record_of(heads, names, texts, moments.count - texts, "none", inputs, identity)


def _sums(
    encoder: Encoder,
    tokenizer: ModelTokenizer,
    features: TokenFeatures | WordFeatures,
    rows: Ragged,
    states: NDArray[np.float32],
    held: NDArray[np.bool_],
    layers: int,
) -> tuple[Moments, Sample]:
    """Return the moments of some texts at `layers` shallow layers, and the sample held out."""

    def sample(chosen: NDArray[np.int64]) -> Sample:
        tokens = token_parts(encoder, features, rows.some(chosen), tokenizer.pad_id)
        found = as_sample(states[chosen], tokens, encoder)
        return replace(found, states=found.states[:layers])

    moments, kept = Moments(layers), np.flatnonzero(~held)
    with progress("Fitting", len(kept), "texts") as advance:
        for chosen in np.array_split(kept, -(-len(kept) // AT_ONCE)):
            moments.add(sample(chosen))
            advance(len(chosen))
    return moments, sample(np.flatnonzero(held))


def word_features(
    encoder: Encoder, tokenizer: ModelTokenizer, tokens: TokenFeatures, rows: Ragged
) -> tuple[WordFeatures, Ragged, Callable[[Ragged], Ragged]] | None:
    """Return the features of texts in which the words of all of them stand beside their pieces.

    Args:
        encoder: with all layers; it embeds each word alone.
        tokenizer: of the same model.
        tokens: features of its tokens.
        rows: token ids of N texts.

    Returns:
        The features, the texts as rows of ids with words, and a function that gives such rows of
        other texts; None where the tokenizer splits no word twice, or is of a kind to which none
        can be added.
    """
    found = WholeWords.of(tokenizer, _lists(rows), len(encoder.words))
    if found is None:
        return None
    words, pieces = found
    with_its_words = partial(rows_with_words, words, pieces, len(encoder.words))
    longer = with_its_words(rows)
    counts = np.bincount(longer.tokens, minlength=len(encoder.words) + words.count)
    with progress("Reading words", len(pieces), "words") as advance:
        around, layers = tokenizer.enclosed(pieces), (encoder.layers,)
        alone = embed_tokens(encoder, around, tokenizer.pad_id, layers, advance)[0]
    identity = tokens.identity
    features = with_words(tokens, encoder.words, words, pieces, alone, counts, identity)
    return features, longer, with_its_words


def rows_with_words(
    words: WholeWords, pieces: Sequence[Sequence[int]], first: int, rows: Ragged
) -> Ragged:
    """Return texts as rows in which each word stands before its pieces.

    Args:
        words: the tokenizer with words.
        pieces: ids of the tokens of each word.
        first: the id of the first word.
        rows: token ids of the texts without words.
    """

    def beside(row: list[int]) -> list[int]:
        return [n for word in row for n in (word, *(pieces[word - first] if word >= first else ()))]

    some = batched(_lists(rows), AT_ONCE)
    parts = [Ragged.of([beside(row) for row in words.rows(texts)]) for texts in some]
    return Ragged(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.lengths for part in parts]),
    )


def _lists(rows: Ragged) -> Iterator[list[int]]:
    """Yield rows as lists, which take ten times the memory of an array."""
    end = 0
    for length in rows.lengths.tolist():
        start, end = end, end + length
        yield rows.tokens[start:end].tolist()


# The command


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
    elif any(folder.glob("states-*")):
        _fit(job, dataset, store, folder)


def fit_index(request: FitIndexRequest) -> tuple[Path, IndexExits]:
    """Fit exits on the documents of an index that is there; return their folder and record.

    Raises:
        UserError: there is no such index of the last layer, it has exits already, the model or the
            corpus has changed since, or the model ends in an exit of its own.
    """
    model = request.model or newest_model()
    card, dataset = read_card(model), open_corpus(request.corpus)
    checkpoint.refuse_ended(model)
    folder = store_folder(request.root, dataset.name, card.fingerprint, card.layers)
    store, exits = open_store(folder), exits_folder(folder)
    if not request.overwrite and fitting_exits(folder):
        raise UserError(f"{exits} has exits of these documents; --overwrite replaces them.")
    queries = label_of(card.with_lengths_of(store.manifest.label), model)
    store.manifest.label.accept(queries, store.manifest.corpus)
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
        raise UserError(
            f"The documents of {request.corpus} are not those that {folder} holds; "
            "m2dr index corpus encodes what has changed."
        )
    return exits, _fit(job, dataset, store, exits)


def _fit(job: EncodingJob, dataset: Dataset, store: Store, folder: Path) -> IndexExits:
    begun = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        device = choose_device(job.device)
        dtype = choose_dtype(job.dtype, device)
        encoder, tokenizer = checkpoint.load(job.model, None, device, dtype)
        encoder.card = encoder.card.with_lengths_of(store.manifest.label)
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
    cosines = ", ".join("-" if cosine is None else f"{cosine:.3f}" for cosine in fit.cosines)
    say(
        f"Exits fitted on {counted(fit.texts, 'documents', ',')} in "
        f"{time.monotonic() - begun:,.0f} s; cosines with the full model, held out: {cosines}."
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
    )
    write_record(folder / EXITS_FILE, record)
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
                contents = [documents[place].content for place in chosen]
                rows = Ragged.of(tokenize(encoder.card, tokenizer, contents, "document"))
                places = np.arange(len(rows))
                layers = (encoder.layers,)
                if same is None:
                    require_runtime(job.runtime)
                    same = job.source.open(job.runtime)[0]
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
