"""Words and exits of every layer of an encoder, fitted by least squares.

Shapes: L layers, N texts, n spans, P dims of a pooled state, W dims of the embedding.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from m2dr.core.analyzer import cut_words, word_places
from m2dr.core.arrays import Float32
from m2dr.core.errors import UserError
from m2dr.core.progress import progress
from m2dr.core.records import FitRecord, Rotation, Side, default_dims
from m2dr.core.settings import FitSettings
from m2dr.maps.exits import ONE_OF, STEPS, fit_head, fit_rotation
from m2dr.maps.log import log_weight, logged
from m2dr.maps.words import ShortTexts, WordRows, read_words
from m2dr.model.embed import TextEncoder
from m2dr.model.encoder import DualEncoder
from m2dr.model.exits import with_heads
from m2dr.model.modules import rotate
from m2dr.model.words import WordTable, unit_rows

RIDGE_HELD_OUT = 1024  # texts to choose λ by, at most; never part of the regressions
ROTATION_VECTORS = 8192  # embeddings that the rotation is fitted on, at most
SPAN_WORDS = (3, 11)  # from the first to below the second
ONE_SPAN_OF = 4  # of so many texts one gives a span; more of the same weight are no better


@dataclass(frozen=True)
class FitTexts:
    """Texts to fit on, each with the side that it is encoded as, and the names of their corpora."""

    names: tuple[str, ...]
    texts: Sequence[tuple[Side, str]]


@dataclass(frozen=True)
class Read:
    """Texts that were run through all layers.

    Attributes:
        texts: N of them.
        states: [N, (L - 1) P + W], as `Encoder.states` gives them.
        spans: n short parts of some texts, run as queries.
        places: [n], of the texts that the spans are parts of.
        queries: m of a log.
        short: [n + m, (L - 1) P + W], of the spans and then of the queries.
    """

    texts: Sequence[str]
    states: Float32
    spans: Sequence[str]
    places: NDArray[np.int64]
    queries: Sequence[str]
    short: Float32


def cut_spans(
    texts: Sequence[str], draw: np.random.Generator
) -> tuple[list[str], NDArray[np.int64]]:
    """Cut spans as short as queries out of some texts.

    The states of a short text are unlike those of a long one, and most queries are short.

    Args:
        texts: those with no more words than a span may have are left out.
        draw: chooses texts, numbers of words, and places.

    Returns:
        The spans, and the place of the text that each is of.
    """
    found, places = [], []
    for place in np.sort(draw.permutation(len(texts))[: len(texts) // ONE_SPAN_OF]).tolist():
        words = word_places(texts[place])
        if len(words) >= SPAN_WORDS[1]:
            count = int(draw.integers(*SPAN_WORDS))
            first = int(draw.integers(len(words) - count + 1))
            found.append(cut_words(texts[place], words[first : first + count]))
            places.append(place)
    return found, np.array(places, np.int64)


def states_of(
    encoder: TextEncoder[DualEncoder], texts: Sequence[tuple[Side, str]], what: str
) -> Float32:
    """Return the states of texts, [N, (L - 1) P + W], each run as a text of its side."""
    states = np.empty((len(texts), 0), np.float32)
    sides: tuple[Side, ...] = ("query", "document")
    with progress(f"Reading {what}", len(texts), "texts") as advance:
        for side in sides:
            chosen = [place for place, (named, _) in enumerate(texts) if named == side]
            if chosen:
                read = encoder.states([texts[place][1] for place in chosen], side, advance)
                if not states.size:
                    states = np.empty((len(texts), read.shape[1]), np.float32)
                states[chosen] = read
    return states


def with_spans(
    encoder: TextEncoder[DualEncoder],
    texts: Sequence[str],
    states: Float32,
    seed: int,
    queries: Sequence[str] = (),
) -> Read:
    """Return texts that were read already with spans of them and queries, which are read now."""
    spans, places = cut_spans(texts, np.random.default_rng(seed))
    given: list[tuple[Side, str]] = [("query", text) for text in (*spans, *queries)]
    rows = states_of(encoder, given, "short texts")
    return Read(texts, states, spans, places, queries, rows.reshape(len(given), states.shape[1]))


def drop_exits(encoder: DualEncoder) -> None:
    """Remove all exits below the last layer, fitted or trained."""
    encoder.fitted = None
    for layer in [layer for layer in encoder.exit_heads if int(layer) < encoder.layers]:
        del encoder.exit_heads[layer]


def as_targets(encoder: DualEncoder, vectors: Float32) -> Float32:
    """Return embeddings [N, W] of length 1 where they are compared by cosine."""
    return unit_rows(vectors) if encoder.card.similarity == "cosine" else vectors


def held_out(count: int) -> NDArray[np.bool_]:
    """Return which of `count` texts λ is chosen by, evenly spread: [count].

    >>> held_out(16).nonzero()[0].tolist()
    [7, 15]
    """
    step = max(ONE_OF, -(-count // RIDGE_HELD_OUT))
    judges: NDArray[np.bool_] = np.arange(count) % step == step - 1
    return judges


def fit_exits(
    encoder: DualEncoder,
    read: Read,
    words: WordTable | None,
    names: Sequence[str],
    rotation: Rotation,
    query_weight: float = 0.0,
) -> FitRecord:
    """Give an encoder exits of layers 1 to L - 1, fitted on texts and spans of them.

    λ is the one that is best on spans of texts that are held out. What each input is worth:
    docs/decisions/0023-words-in-closed-form.md.

    Args:
        encoder: changed in place. Exits that it has already stay as they are but for their scale,
            and words are fitted to what they leave.
        read: the texts.
        words: layer 0; None for exits that read no words.
        names: of the corpora, for messages and the record.
        rotation: that the embedding has, for the record.
        query_weight: that the queries have in the words, for the record.

    Raises:
        UserError: a state or an embedding is not finite.
    """
    pooled, shallow = encoder.pooled_width, encoder.layers - 1
    judges = held_out(len(read.texts))
    of_spans = np.concatenate([judges[read.places], np.full(len(read.queries), False)])
    by_texts = not of_spans.any()
    kept = np.concatenate([~judges | by_texts, np.full(len(of_spans), True)])
    judging = np.concatenate([judges & by_texts, of_spans])[kept]
    states = np.concatenate([read.states, read.short])[kept]
    targets = as_targets(encoder, states[:, pooled * shallow :])
    every = [*read.texts, *read.spans, *read.queries]
    texts = [text for text, use in zip(every, kept, strict=True) if use]
    beside = np.zeros((len(texts), 0), np.float32)
    if words is not None:
        # Words that learned from the spans would seem better than they are at other queries.
        beside = unit_rows(words.of_documents.embed(texts))
    trained = encoder.fitted
    heads: dict[int, tuple[Float32, Float32]] = {}
    matrices, ridges, cosines = {}, [], []
    try:
        for layer in range(1, encoder.layers):
            state = states[:, pooled * (layer - 1) : pooled * layer]
            if trained is None:
                fitted = fit_head(state, beside, targets, judging)
                heads[layer] = fitted.weight, fitted.bias
            else:
                left = trained.scale_to(layer, state, targets)
                fitted = fit_head(state[:, :0], beside, left, judging)
            matrices[layer] = fitted.beside
            ridges.append(fitted.ridge)
            cosines.append(fitted.cosine)
    except ValueError as error:
        raise unfit(names, error) from error
    if words is not None:
        words = replace(words, beside=matrices)
    encoder.fitted = with_heads(encoder.fitted, heads, words).to(encoder.device)
    record = FitRecord(
        corpora=tuple(names),
        texts=len(read.texts),
        spans=len(read.spans),
        rotation=rotation,
        words=len(words.rows) if words is not None else 0,
        language=words.language if words is not None else "",
        ridges=tuple(ridges),
        cosines=tuple(cosines),
        span_weight=span_weight(len(read.texts)) if words is not None and read.spans else 0.0,
    )
    return logged(record, read.queries, query_weight)


def fit_maps(
    loaded: TextEncoder[DualEncoder],
    given: FitTexts,
    seed: int,
    rotation: Rotation,
    length: int = FitSettings.length,
    language: str = "",
    with_words: bool = True,
    queries: Sequence[str] = (),
    query_weight: float | None = None,
) -> FitRecord:
    """Run texts through an encoder, and give it layer 0 and exits that are fitted on them.

    Args:
        loaded: changed in place; exits that it has already get words beside them.
        given: texts to fit on.
        seed: of spans and a learned rotation.
        rotation: of the embedding.
        length: tokens of a text that are read. The exits of a fit that reads 64 find what those do
            of one that reads all, in a third of the time.
        language: of the stemmer; by default that of the texts.
        with_words: whether there are words; a training reaches exits that read none.
        queries: a log.
        query_weight: of all of these in layer 0; None is QUERY_WEIGHT.

    Raises:
        UserError: a state or an embedding is not finite.
    """
    encoder, card = loaded.runtime, loaded.card
    lengths = min(card.query_length, length), min(card.document_length, length)
    encoder.card = replace(card, query_length=lengths[0], document_length=lengths[1])
    trained, encoder.fitted = encoder.fitted, None
    contents = [text for _, text in given.texts]
    states = states_of(loaded, given.texts, "texts")
    read = with_spans(loaded, contents, states, seed, queries)
    weight = log_weight(queries, query_weight)
    width = card.width
    if rotation != "none":
        vectors = read.states[:ROTATION_VECTORS, -width:]
        with progress("Rotating", STEPS, "steps") as advance:
            dims, similarity = default_dims(width), card.similarity
            try:
                turned = fit_rotation(vectors, rotation, similarity, dims, seed, advance)
            except ValueError as error:
                raise unfit(given.names, error) from error
        for states in (read.states, read.short):
            states[:, -width:] = states[:, -width:] @ turned.T
        encoder.behind = rotate(encoder.behind, encoder.pooled_width, turned)
    words = None
    if with_words:
        targets = as_targets(encoder, read.states[:, -width:])
        rows = word_rows(contents, len(targets), length, language)
        short = as_targets(encoder, read.short[:, -width:])
        both, spans = (*read.spans, *read.queries), len(read.spans)
        beside = spans_and_log(both, short, spans, len(contents), weight)
        words = words_towards(rows, targets, beside, given.names)
    encoder.fitted, encoder.card = trained, card
    return fit_exits(encoder, read, words, given.names, rotation, weight)


def span_weight(texts: int) -> float:
    """Return the weight in layer 0 of all spans together, where the texts together have 1.

    Spans pay where there are many texts (docs/decisions/0031-spans-and-query-logs.md).

    >>> [span_weight(texts) for texts in (1000, 5000, 44_036)]
    [0.01, 0.05, 0.4]
    """
    return min(0.4, texts / 100_000)


def spans_and_log(
    texts: Sequence[str], vectors: Float32, spans: int, documents: int, query_weight: float
) -> list[ShortTexts]:
    """Return the first `spans` short texts as spans of documents, the others as a log."""
    return [
        ShortTexts(texts[:spans], vectors[:spans], span_weight(documents)),
        ShortTexts(texts[spans:], vectors[spans:], query_weight),
    ]


def word_rows(texts: Iterable[str], count: int, tokens: int, language: str) -> WordRows:
    """Return the words of texts; arguments as for `read_words`."""
    with progress("Fitting words", count, "texts") as advance:
        return read_words(texts, count, tokens, language, advance)


def words_towards(
    rows: WordRows, vectors: Float32, beside: Sequence[ShortTexts], names: Sequence[str]
) -> WordTable:
    """Return the words that give the vectors of texts; arguments as for `WordRows.fit`.

    Raises:
        UserError: a vector is not finite.
    """
    try:
        return rows.fit(vectors, beside)
    except ValueError as error:
        raise unfit(names, error) from error


def unfit(names: Sequence[str], error: ValueError) -> UserError:
    """Return the error of a fit on texts of some corpora."""
    return UserError(f"Exits cannot be fitted on {', '.join(names)}: {error}.")
