"""`m2dr fit`: words and exits for every layer of an unchanged encoder, by least squares.

Shapes: L layers, N texts, n spans, P dims of a pooled state, W dims of the embedding.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.core.analyzer import cut_words, word_places
from m2dr.core.arrays import Float32
from m2dr.core.errors import UserError, counted
from m2dr.core.files import json_sha256
from m2dr.core.progress import progress, say
from m2dr.core.records import FitRecord, ModelCard, Query, Rotation, Side
from m2dr.core.report import Report, timed
from m2dr.core.requests import refuse_weight_alone
from m2dr.core.settings import FitSettings
from m2dr.data.qrels import read_topics
from m2dr.data.sentences import is_plain_text, open_sentences, recognises_sentences
from m2dr.data.tables import DistinctLines, name_of, read_lines
from m2dr.data.tokens import Ragged
from m2dr.evaluation.sentence_tasks import distinct
from m2dr.index.exit_files import sampled_rows
from m2dr.model import checkpoint
from m2dr.model.devices import choose_training_device
from m2dr.model.encoder import Encoder
from m2dr.model.exits import with_heads
from m2dr.model.hub import revision_of
from m2dr.model.modules import rotate
from m2dr.model.tokenizer import ModelTokenizer, tokenize
from m2dr.model.words import WordTable, unit_rows
from m2dr.tasks.corpus import open_corpus
from m2dr.tasks.embed import embed_tokens_and_states
from m2dr.tasks.models import default_dims, fitted_cuts
from m2dr.tasks.training.run_folder import begin, clear, held, open_backbone
from m2dr.training.linear_fit import STEPS, fit_head, fit_rotation
from m2dr.training.words import ShortTexts, WordRows, read_words

FITTED = "fitted"  # the variant of a fitted backbone that was never trained
MOST_TEXTS = 20_000  # texts whose states are read; more hardly help, and cost time and memory
HELD_OUT = 1024  # texts to choose λ by, at most; never part of the regressions
ONE_OF = 8  # of so many texts one is held out, until there are enough
VECTORS = 8192  # embeddings that the rotation is fitted on, at most
QUERIES = "train"  # the split whose queries are read
SPAN_WORDS = (3, 11)  # from the first to below the second
QUERY_WEIGHT = 0.2  # of a log, by default
MOST_QUERIES = 20_000  # of a log
ONE_SPAN_OF = 4  # of so many texts one gives a span; more of the same weight are no better


@dataclass(frozen=True)
class FitReport(Report):
    """The result of a fit."""

    folder: Path
    card: ModelCard
    texts: int
    cosines: tuple[float | None, ...]  # held out, of layers 1 to L - 1

    def __str__(self) -> str:
        cosines = ", ".join("-" if cosine is None else f"{cosine:.3f}" for cosine in self.cosines)
        return (
            f"{counted(self.texts, 'texts')} in {self.seconds:,.0f} s, cosines of layers 1 to "
            f"{self.card.layers - 1} with the full model on held-out texts: {cosines}; "
            f"{self.folder}"
        )


@timed
def fit(settings: FitSettings, folder: Path, overwrite: bool = False) -> FitReport:
    """Fit exits as `settings` say, and write the model's folder.

    Raises:
        UserError: anything a person can fix, before the first text where it can be known.
    """
    backbone = open_backbone(settings, folder)
    device = choose_training_device(settings.device)
    texts = fit_texts(settings.corpus, settings.texts or MOST_TEXTS, settings.seed)
    queries = read_log(Path(settings.queries) if settings.queries else None, settings.query_weight)
    encoder, tokenizer = checkpoint.load(backbone)
    runner = checkpoint.load(backbone, None, device, settings.dtype)[0]
    for each in (encoder, runner):
        drop_exits(each)
    with held(folder):
        begin(folder, settings, resume=False, overwrite=overwrite)
        say(f"Fitting {settings.backbone} on {counted(len(texts), 'texts', ',')}")
        record = fit_texts_now(
            runner, tokenizer, texts, settings.seed, settings.rotation,
            settings.length, settings.language, queries=queries, query_weight=settings.query_weight,
        )  # fmt: skip
        encoder.fitted, encoder.behind = runner.fitted, runner.behind
        encoder.to("cpu")
        card = encoder.card
        if not card.is_trained:
            revision = revision_of(backbone.folder)
            card = replace(card, backbone=settings.backbone, revision=revision, variant=FITTED)
        card = replace(
            card,
            cuts=fitted_cuts(card),
            documents="last",
            exported_from="",
            exits="",
            fit=record,
            fingerprint="",
        )
        card = checkpoint.save(encoder, tokenizer, card, folder)
        clear(folder)
    return FitReport(folder, card, record.texts, record.cosines, files=(folder,))


@dataclass(frozen=True)
class _Source:
    """Texts of one kind of one corpus."""

    corpus: int  # its number
    side: Side
    count: int
    at: Callable[[int], str]


@dataclass(frozen=True)
class FitTexts:
    """Texts of a fit by place, read on demand.

    Attributes:
        names: of the corpora.
        order: [N, 2], number of the source and row in it.
    """

    names: tuple[str, ...]
    order: NDArray[np.int64]
    _sources: tuple[_Source, ...]

    def __len__(self) -> int:
        return len(self.order)

    def read(self, start: int, stop: int) -> list[tuple[Side, str]]:
        """Return texts and the sides that they are encoded as."""
        rows = self.order[start:stop].tolist()
        return [(self._sources[number].side, self._sources[number].at(row)) for number, row in rows]


def fit_texts(corpora: str, most: int, seed: int, split: str = QUERIES) -> FitTexts:
    """Choose the texts of a fit.

    Corpora share the number evenly, and in each of them queries and documents do; what one lacks
    is given to the others.

    Args:
        corpora: what each is called, joined by commas; files of sentences too.
        most: how many texts.
        seed: of the choice and the order.
        split: whose queries are read, where a corpus has it; never one of a test set.

    Raises:
        UserError: no such corpus, or one without a text.
    """
    given = [part.strip() for part in corpora.split(",") if part.strip()]
    words = [corpora] if Path(corpora).exists() else list(dict.fromkeys(given))
    if not words:
        raise UserError("A fit needs texts: name a corpus, such as pydocs or a .txt file.")
    names, sources = [], []
    for number, word in enumerate(words):
        name, found = _sources_of(number, word, split)
        names.append(name)
        sources += [source for source in found if source.count]
    draw = np.random.default_rng(seed)
    shares = _shares(sources, most)
    rows = [
        np.stack([np.full(share, number), draw.choice(source.count, share, replace=False)], axis=1)
        for number, (source, share) in enumerate(zip(sources, shares, strict=True))
    ]
    return FitTexts(tuple(names), draw.permutation(np.concatenate(rows)), tuple(sources))


def _sources_of(number: int, word: str, split: str) -> tuple[str, list[_Source]]:
    if recognises_sentences(word) and is_plain_text(path := Path(word)):
        lines = DistinctLines(path)  # a file of any length: none of its texts is kept
        return name_of(path), [_Source(number, "document", len(lines), lines.__getitem__)]
    if recognises_sentences(word):
        sentences = open_sentences(word)
        texts = distinct(sentences.pairs)[0]
        return sentences.name, [_Source(number, "document", len(texts), texts.__getitem__)]
    dataset = open_corpus(word)
    documents = _Source(
        number, "document", dataset.document_count, lambda row: dataset.document_at(row).content
    )
    queries = dataset.queries(split) if dataset.canonical(split) in dataset.splits else []
    return dataset.name, [
        documents,
        _Source(number, "query", len(queries), lambda row: queries[row].text),
    ]


def _shares(sources: Sequence[_Source], most: int) -> list[int]:
    """Divide `most` texts evenly among the corpora, and among the kinds of texts of each.

    Smallest first, each takes what is its due, and what it lacks goes to the larger ones.
    """
    kinds = [[s.count for s in some] for _, some in groupby(sources, lambda s: s.corpus)]
    of_corpora = _even([sum(counts) for counts in kinds], most)
    return [
        part
        for counts, share in zip(kinds, of_corpora, strict=True)
        for part in _even(counts, share)
    ]


def _even(counts: Sequence[int], most: int) -> list[int]:
    """Return how many of each are taken, evenly, at most `most` in all.

    >>> _even([10, 2, 50], 30)
    [10, 2, 18]
    """
    found = [0] * len(counts)
    left = most
    smallest_first = sorted(range(len(counts)), key=lambda number: counts[number])
    for done, number in enumerate(smallest_first):
        found[number] = min(counts[number], left // (len(counts) - done))
        left -= found[number]
    return found


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
        draw: says of which texts, how many words, and which.

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
    encoder: Encoder, tokenizer: ModelTokenizer, texts: Sequence[tuple[Side, str]], what: str
) -> Float32:
    """Return the states of texts, [N, (L - 1) P + W], each run as a text of its side."""
    states = np.empty((len(texts), 0), np.float32)
    sides: tuple[Side, ...] = ("query", "document")
    with progress(f"Reading {what}", len(texts), "texts") as advance:
        for side in sides:
            chosen = [place for place, (named, _) in enumerate(texts) if named == side]
            if chosen:
                own = [texts[place][1] for place in chosen]
                rows = Ragged.of(tokenize(encoder.card, tokenizer, own, side))
                everything, layers = np.arange(len(rows)), (encoder.layers,)
                read = embed_tokens_and_states(
                    encoder, rows, tokenizer.pad_id, layers, everything, advance
                )[1]
                if not states.size:
                    states = np.empty((len(texts), read.shape[1]), np.float32)
                states[chosen] = read
    return states


def with_spans(
    encoder: Encoder,
    tokenizer: ModelTokenizer,
    texts: Sequence[str],
    states: Float32,
    seed: int,
    queries: Sequence[str] = (),
) -> Read:
    """Return texts that were read already with spans of them and queries, which are read now."""
    spans, places = cut_spans(texts, np.random.default_rng(seed))
    given: list[tuple[Side, str]] = [("query", text) for text in (*spans, *queries)]
    rows = states_of(encoder, tokenizer, given, "short texts")
    return Read(texts, states, spans, places, queries, rows.reshape(len(given), states.shape[1]))


def drop_exits(encoder: Encoder) -> None:
    """Remove all exits below the last layer, fitted or trained."""
    encoder.fitted = None
    for layer in [layer for layer in encoder.exit_heads if int(layer) < encoder.layers]:
        del encoder.exit_heads[layer]


def as_targets(encoder: Encoder, vectors: Float32) -> Float32:
    """Return embeddings [N, W] of length 1 where they are compared by cosine."""
    return unit_rows(vectors) if encoder.card.similarity == "cosine" else vectors


def held_out(count: int) -> NDArray[np.bool_]:
    """Return which of `count` texts λ is chosen by, evenly spread: [count].

    >>> held_out(16).nonzero()[0].tolist()
    [7, 15]
    """
    step = max(ONE_OF, -(-count // HELD_OUT))
    judges: NDArray[np.bool_] = np.arange(count) % step == step - 1
    return judges


def fit_exits(
    encoder: Encoder,
    read: Read,
    words: WordTable | None,
    names: Sequence[str],
    rotation: Rotation,
    query_weight: tuple[float, str] = (0.0, ""),
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
        query_weight: that the queries have in the words, and what says so, for the record.

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


def fit_texts_now(
    encoder: Encoder,
    tokenizer: ModelTokenizer,
    texts: FitTexts,
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
        encoder: changed in place; exits that it has already get words beside them.
        tokenizer: of the same model.
        texts: to fit on.
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
    card = encoder.card
    lengths = min(card.query_length, length), min(card.document_length, length)
    encoder.card = replace(card, query_length=lengths[0], document_length=lengths[1])
    trained, encoder.fitted = encoder.fitted, None
    given = texts.read(0, len(texts))
    contents = [text for _, text in given]
    states = states_of(encoder, tokenizer, given, "texts")
    read = with_spans(encoder, tokenizer, contents, states, seed, queries)
    weight = weight_told(queries, query_weight)
    width = card.width
    if rotation != "none":
        vectors = read.states[:VECTORS, -width:]
        with progress("Rotating", STEPS, "steps") as advance:
            dims, similarity = default_dims(width), card.similarity
            try:
                turned = fit_rotation(vectors, rotation, similarity, dims, seed, advance)
            except ValueError as error:
                raise unfit(texts.names, error) from error
        for states in (read.states, read.short):
            states[:, -width:] = states[:, -width:] @ turned.T
        encoder.behind = rotate(encoder.behind, encoder.pooled_width, turned)
    words = None
    if with_words:
        targets = as_targets(encoder, read.states[:, -width:])
        rows = word_rows(contents, len(targets), length, language)
        short = as_targets(encoder, read.short[:, -width:])
        both, spans = (*read.spans, *read.queries), len(read.spans)
        beside = spans_and_log(both, short, spans, len(contents), weight[0])
        words = words_towards(rows, targets, beside, texts.names)
    encoder.fitted, encoder.card = trained, card
    return fit_exits(encoder, read, words, texts.names, rotation, weight)


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


def weight_told(
    queries: Sequence[str],
    weight: float | None,
    judged: Callable[[], tuple[float, str] | None] = lambda: None,
) -> tuple[float, str]:
    """Return the weight of a log and what says so, which is printed.

    Args:
        queries: the log.
        weight: that was given.
        judged: returns what judgements say, where none was given; else the constant counts.
    """
    if not queries:
        return 0.0, ""
    found = (weight, "--query-weight") if weight is not None else judged()
    found = found or (QUERY_WEIGHT, "the default")
    count = counted(len(queries), "queries", ",")
    say(f"{count} of weight {found[0]:g} in the words, by {found[1]}")
    return found


def logged(fit: FitRecord, queries: Sequence[str], weight: tuple[float, str]) -> FitRecord:
    """Return the record of a fit with what it owes to a log."""
    return replace(
        fit,
        queries=len(queries),
        query_weight=weight[0],
        query_weight_by=weight[1],
        log=json_sha256(queries) if queries else "",
    )


def read_log(path: Path | None, weight: float | None) -> tuple[str, ...]:
    """Return the distinct queries of a log, MOST_QUERIES evenly spread ones at most.

    Args:
        path: topics, or a .txt file with a query per line; None: no query.
        weight: that was given to them.

    Raises:
        UserError: there is no query, or a weight of none.
    """
    refuse_weight_alone(path, weight)
    return tuple(distinct_queries(path, queries_of(path))) if path is not None else ()


def queries_of(path: Path) -> list[Query]:
    """Return all queries of a log, repeated ones too; those of a .txt file of lines have no ids."""
    lines = list(read_lines(path)) if is_plain_text(path) else []
    if lines and "\t" not in lines[0]:
        return [Query("", line) for line in lines]
    return read_topics(path)


def distinct_queries(path: Path, queries: Sequence[Query]) -> dict[str, int]:
    """Return the places of the distinct texts of a log, MOST_QUERIES evenly spread ones at most."""
    places: dict[str, int] = {}
    for place, query in enumerate(queries):
        if text := " ".join(query.text.split()):
            places.setdefault(text, place)
    if not places:
        raise UserError(f"{path} holds no queries.")
    texts = list(places)
    chosen = sampled_rows(len(texts), MOST_QUERIES).tolist()
    return {texts[row]: places[texts[row]] for row in chosen}


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
        return WordTable(*rows.fit(vectors, beside))
    except ValueError as error:
        raise unfit(names, error) from error


def unfit(names: Sequence[str], error: ValueError) -> UserError:
    """Return the error of a fit on texts of some corpora."""
    return UserError(f"Exits cannot be fitted on {', '.join(names)}: {error}.")
