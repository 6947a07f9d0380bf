"""`m2dr fit`: fit an exit to every layer of an unchanged encoder by least squares.

Shapes: S shallow layers, N texts, V ids of the vocabulary, P dims of a pooled state, F features of
the tokens, W dims of the embedding.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError, counted
from m2dr.core.files import return_free_memory
from m2dr.core.progress import progress, say
from m2dr.core.records import FitInputs, FitRecord, ModelCard, Rotation, Side
from m2dr.core.settings import FitSettings
from m2dr.data.sentences import is_plain_text, open_sentences, recognises_sentences
from m2dr.data.tables import DistinctLines, name_of
from m2dr.data.tokens import Ragged, buckets
from m2dr.evaluate.sentence_tasks import distinct
from m2dr.model import checkpoint
from m2dr.model.devices import choose_dtype, choose_training_device
from m2dr.model.encoder import Encoder
from m2dr.model.exits import TokenFeatures, WordFeatures, give_exits, token_features
from m2dr.model.hub import find_folder, revision_of
from m2dr.model.modules import rotate
from m2dr.model.tokenizer import ModelTokenizer, tokenize
from m2dr.tasks.corpus import open_corpus
from m2dr.tasks.encoder import (
    at_revision,
    default_dims,
    embed_tokens,
    embed_tokens_and_states,
    fitted_cuts,
    tokens_per_batch,
)
from m2dr.tasks.run_folder import begin, clear, held, refuse_backbone
from m2dr.train.linear_fit import (
    RIDGES,
    STEPS,
    FittedHead,
    Moments,
    Sample,
    fit_head,
    fit_rotation,
)

FITTED = "fitted"  # the variant of a fitted backbone that was never trained
WINDOW = 1024  # texts that are read and added to the sums at a time
MOST = 65536  # texts that are read at most where no number was asked for
FIRST = 2048  # texts after which it is asked for the first time whether more are needed
ENOUGH = 0.002  # of the mean held-out cosine: a doubling that gains less is the last
COUNTED = 16384  # texts whose tokens are counted, to know which are rare
HELD_OUT = 1024  # texts to choose λ by, at most; never part of the moments
ONE_OF = 8  # of so many texts one is held out, until there are enough
VECTORS = 8192  # embeddings that the rotation is fitted on, at most
QUERIES = "train"  # the split whose queries are read
WORDS = (3, 15)  # of a snippet, from the first to below the second
SNIPPETS = 2  # of each long text
AMONG = 4  # snippets that each of these is chosen among


@dataclass(frozen=True)
class FitReport:
    """The result of a fit."""

    folder: Path
    card: ModelCard
    texts: int
    cosines: tuple[float | None, ...]  # held out, of layers 0 to L - 1
    seconds: float


@at_revision
def fit(settings: FitSettings, folder: Path, overwrite: bool = False) -> FitReport:
    """Fit exits as `settings` say, and write the model's folder.

    Raises:
        UserError: anything a person can fix, before the first text where it can be known.
    """
    begun = time.monotonic()
    refuse_backbone(settings.backbone, folder)
    device = choose_training_device(settings.device)
    texts = fit_texts(settings.corpus, settings.texts or MOST, settings.seed)
    encoder, tokenizer = checkpoint.load(settings.backbone)
    dtype = choose_dtype(settings.dtype, device)
    runner = checkpoint.load(settings.backbone, None, device, dtype)[0]
    for each in (encoder, runner):
        drop_exits(each)
    with held(folder):
        begin(folder, settings, resume=False, overwrite=overwrite)
        say(f"Fitting {settings.backbone} on {counted(len(texts), 'texts')} at most")
        sums, features = _read(settings, texts, runner, tokenizer)
        heads = heads_of(sums, texts.names, settings.inputs, settings.ridge)
        how = settings.rotation, settings.inputs, settings.identity
        record = give_fit(encoder, features.cpu(), heads, sums, texts.names, settings.seed, *how)
        card = encoder.card
        if not card.is_trained:
            revision = revision_of(find_folder(settings.backbone))
            card = replace(card, backbone=settings.backbone, revision=revision, variant=FITTED)
        card = replace(
            card,
            cuts=fitted_cuts(card),
            documents=settings.documents,
            exported_from="",
            fit=record,
            fingerprint="",
        )
        card = checkpoint.save(encoder, tokenizer, card, folder)
        clear(folder)
    return FitReport(folder, card, sums.texts, record.cosines, time.monotonic() - begun)


def _read(
    settings: FitSettings, texts: "FitTexts", encoder: Encoder, tokenizer: ModelTokenizer
) -> "tuple[Sums, TokenFeatures]":
    """Read texts, twice as many in each round, until a round gains too little for another one."""
    counts, length = np.zeros(len(encoder.words), np.int64), settings.length
    for start in range(0, min(COUNTED, len(texts)), WINDOW):  # a tokenizer needs kilobytes a text
        part = texts.read(start, min(start + WINDOW, COUNTED))
        rows = rows_of(encoder.card, tokenizer, part, length)
        counts += np.bincount(Ragged.of(rows).tokens, minlength=len(counts))
    features = read_features(encoder, tokenizer, counts, settings.identity)
    sums = Sums(Moments(encoder.layers - 1, settings.inputs == "all-layers"))
    done, until = 0, len(texts) if settings.texts else FIRST
    before: float | None = None
    while True:
        read_sums(
            sums, encoder, tokenizer, features, texts, range(done, until), length, settings.seed
        )
        if until >= len(texts):
            return sums, features
        # Both rounds are judged on the texts that the earlier one held out: later ones may be
        # easier.
        cosine = gained = _cosine(settings, texts, sums)
        earlier = {w: sample for w, sample in sums.held_out.items() if w * WINDOW < done}
        if 0 < len(earlier) < len(sums.held_out):
            gained = _cosine(settings, texts, replace(sums, held_out=earlier))
        if before is not None and gained - before < ENOUGH:
            return sums, features
        before, done, until = cosine, until, 2 * until


def _cosine(settings: FitSettings, texts: "FitTexts", sums: "Sums") -> float:
    heads = heads_of(sums, texts.names, settings.inputs, settings.ridge)
    return sum(head.cosine or 0.0 for head in heads) / len(heads)


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


def snippets(
    texts: Sequence[str], each: int, draw: np.random.Generator
) -> tuple[list[str], NDArray[np.int64]]:
    """Cut snippets as short as queries out of texts.

    The states of a short text are unlike those of a long one, and most queries are short.

    Args:
        texts: those with no more words than a snippet may have are left out.
        each: snippets of a text.
        draw: says how many words, and which.

    Returns:
        The snippets, and the place of the text that each is of.
    """
    found, places = [], []
    for place, text in enumerate(texts):
        words = text.split()
        if len(words) < WORDS[1]:
            continue
        for _ in range(each):
            count = int(draw.integers(*WORDS))
            first = int(draw.integers(len(words) - count + 1))
            found.append(" ".join(words[first : first + count]))
            places.append(place)
    return found, np.array(places, np.int64)


def widest(rows: Sequence[Sequence[int]], among: int) -> list[int]:
    """Choose one of every `among` rows so that the chosen ones have as many tokens as they can.

    A row is worth the sum of 1 / √(1 + n) over its distinct tokens, where n is how many rows that
    were chosen before have the token, divided by the root of their number. What this is worth:
    docs/decisions/0014-what-a-fit-reads.md.

    Args:
        rows: token ids of m · `among` texts.
        among: how many consecutive rows one is chosen of.

    Returns:
        The places of m rows.

    >>> widest([[5, 6], [7, 7], [5, 6], [5, 8]], 2)
    [0, 3]
    """
    found = []
    counts = np.zeros(1 + max((max(row, default=0) for row in rows), default=0))
    for first in range(0, len(rows), among):
        tokens = [np.unique(np.array(row, np.int64)) for row in rows[first : first + among]]
        roots = [len(one) ** 0.5 or 1.0 for one in tokens]
        worth = [
            ((1 + counts[one]) ** -0.5).sum() / root
            for one, root in zip(tokens, roots, strict=True)
        ]
        best = int(np.argmax(worth))
        counts[tokens[best]] += 1
        found.append(first + best)
    return found


def rows_of(
    card: ModelCard, tokenizer: ModelTokenizer, texts: Sequence[tuple[Side, str]], length: int
) -> list[list[int]]:
    """Return the token ids of texts, each with the prefix and length of its side.

    Args:
        card: of the model.
        tokenizer: of the same model.
        texts: with the sides that they are encoded as.
        length: tokens of a text, at most. The exits of a fit that reads 64 find what those do of
            one that reads all, in a third of the time.
    """
    card = replace(
        card,
        query_length=min(card.query_length, length),
        document_length=min(card.document_length, length),
    )
    rows: list[list[int]] = [[] for _ in texts]
    sides: tuple[Side, ...] = ("query", "document")
    for side in sides:
        places = [place for place, (found, _) in enumerate(texts) if found == side]
        found = tokenize(card, tokenizer, [texts[place][1] for place in places], side)
        for place, row in zip(places, found, strict=True):
            rows[place] = row
    return rows


def drop_exits(encoder: Encoder) -> None:
    """Remove all exits below the last layer, fitted or trained."""
    encoder.fitted = None
    for layer in [layer for layer in encoder.exit_heads if int(layer) < encoder.layers]:
        del encoder.exit_heads[layer]


@dataclass
class Sums:
    """Moments over windows of texts.

    Attributes:
        moments: of all texts and snippets but those held out.
        snippets: how many of what the moments are of are parts of other texts.
        held_out: by window, texts that are held out.
        vectors: of each window, embeddings [N, W].
    """

    moments: Moments
    snippets: int = 0
    held_out: dict[int, Sample] = field(default_factory=dict)
    vectors: list[NDArray[np.float32]] = field(default_factory=list)

    def add(self, window: int, sample: Sample, of: NDArray[np.int64]) -> None:
        """Add a window of texts, in their order, and snippets of them, held out as their texts are.

        Args:
            window: its number.
            sample: the texts, then the snippets.
            of: the place of the text that each snippet is of.

        Raises:
            ValueError: a value is not finite.
        """
        first, texts = window * WINDOW, len(sample) - len(of)
        places = np.arange(first, first + texts)
        held = (places % ONE_OF == ONE_OF - 1) & (places < HELD_OUT * ONE_OF)
        held = np.concatenate([held, held[of]])
        self.moments.add(_rows(sample, ~held))
        self.snippets += int((~held[texts:]).sum())
        if held.any():
            self.held_out[window] = _rows(sample, held)
        if first < VECTORS:
            self.vectors.append(sample.targets[: min(VECTORS - first, texts)])

    @property
    def texts(self) -> int:
        """Number of texts in the moments."""
        return self.moments.count - self.snippets


def _rows(sample: Sample, chosen: NDArray[np.bool_]) -> Sample:
    return Sample(sample.states[:, chosen], sample.tokens[chosen], sample.targets[chosen])


def read_features(
    encoder: Encoder, tokenizer: ModelTokenizer, counts: NDArray[np.int64], identity: int
) -> TokenFeatures:
    """Return the features of tokens; the full model embeds each token of the vocabulary alone.

    Args:
        encoder: with all layers.
        tokenizer: of the same model.
        counts: [V], how often each id stands in the texts of the fit.
        identity: random signs per token.
    """
    ids = tokenizer.ordinary_ids()
    rows, layers = tokenizer.alone(ids), (encoder.layers,)
    single = np.zeros((len(counts), encoder.card.width), np.float32)
    with progress("Reading the vocabulary", len(ids), "tokens") as advance:
        single[ids] = embed_tokens(encoder, rows, tokenizer.pad_id, layers, advance)[0]
    special = sorted({*range(len(counts))} - {*ids})
    return token_features(encoder.words, single, counts, special, identity)


def read_texts(
    encoder: Encoder,
    tokenizer: ModelTokenizer,
    features: TokenFeatures,
    texts: Sequence[tuple[Side, str]],
    length: int,
    draw: np.random.Generator,
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[Sample, NDArray[np.int64]]:
    """Run texts, and snippets of the long ones, through all layers.

    Args:
        encoder: with all layers.
        tokenizer: of the same model.
        features: of its tokens.
        texts: with the sides that they are encoded as.
        length: tokens of a text, at most.
        draw: of the snippets.
        advance: is told how many texts have been run.

    Returns:
        The texts and then the snippets; and the place of the text that each snippet is of.
    """

    def sample(rows: Ragged, advance: Callable[[int], None] = lambda _: None) -> Sample:
        layers, pad_id, everything = (encoder.layers,), tokenizer.pad_id, np.arange(len(rows))
        _, states = embed_tokens_and_states(encoder, rows, pad_id, layers, everything, advance)
        return as_sample(states, token_parts(encoder, features, rows, pad_id), encoder)

    whole = sample(Ragged.of(rows_of(encoder.card, tokenizer, texts, length)), advance)
    parts, of = snippets([text for _, text in texts], SNIPPETS * AMONG, draw)
    if not parts:
        return whole, of
    rows = rows_of(encoder.card, tokenizer, [("query", part) for part in parts], length)
    chosen = widest(rows, AMONG)
    return whole + sample(Ragged.of([rows[place] for place in chosen])), of[chosen]


def token_parts(
    encoder: Encoder,
    features: TokenFeatures | WordFeatures,
    rows: Ragged,
    pad_id: int,
) -> NDArray[np.float32]:
    """Return the features of the tokens of texts, [N, F]."""
    batches = buckets(rows.lengths, tokens_per_batch(encoder.device.type), longest_first=True)
    padded = (rows.pad(chosen, pad_id) for chosen in batches)
    found = np.empty((len(rows), features.width(encoder.words)), np.float32)
    for chosen, tokens in zip(batches, encoder.features_many(features, padded), strict=True):
        found[chosen] = tokens
    return found


def as_sample(states: NDArray[np.float32], tokens: NDArray[np.float32], encoder: Encoder) -> Sample:
    """Return a sample of states as `Encoder.states` gives them, [N, S P + W].

    Targets are the embeddings, divided by their length where they are compared by cosine.
    """
    width = encoder.card.width
    targets = states[:, -width:]
    if encoder.card.similarity == "cosine":
        lengths = np.linalg.norm(targets, axis=1, keepdims=True)
        targets = targets / np.maximum(lengths, np.float32(1e-12))
    shallow = states[:, :-width].reshape(len(states), encoder.layers - 1, encoder.pooled_width)
    return Sample(np.ascontiguousarray(shallow.swapaxes(0, 1)), tokens, targets)


def read_sums(
    sums: Sums,
    encoder: Encoder,
    tokenizer: ModelTokenizer,
    features: TokenFeatures,
    texts: FitTexts,
    places: range,
    length: int,
    seed: int,
) -> None:
    """Run the texts of some places, whole windows of them, and add them to the sums.

    Raises:
        UserError: a state or an embedding is not finite.
    """
    stop = min(places.stop, len(texts))
    with progress("Reading", stop - places.start, "texts") as advance:
        for first in range(places.start, stop, WINDOW):
            window = first // WINDOW
            draw, part = np.random.default_rng([seed, window]), texts.read(first, first + WINDOW)
            sample, of = read_texts(encoder, tokenizer, features, part, length, draw, advance)
            try:
                sums.add(window, sample, of)
            except ValueError as error:
                raise unfit(texts.names, error) from error
            return_free_memory()


def fit_texts_now(
    encoder: Encoder,
    tokenizer: ModelTokenizer,
    texts: FitTexts,
    seed: int,
    rotation: Rotation,
    features: TokenFeatures | None = None,
) -> FitRecord:
    """Run texts through an encoder in memory, and give it exits fitted on them.

    Args:
        encoder: changed in place.
        tokenizer: of the same model.
        texts: to fit on.
        seed: of snippets and a learned rotation.
        rotation: of the embedding.
        features: of tokens; read and counted on these texts by default.

    Raises:
        UserError: a state or an embedding is not finite.
    """
    encoder.fitted = None
    length, inputs = FitSettings.length, FitSettings.inputs
    if features is None:
        read = texts.read(0, len(texts))
        rows = Ragged.of(rows_of(encoder.card, tokenizer, read, length))
        counts = np.bincount(rows.tokens, minlength=len(encoder.words))
        features = read_features(encoder, tokenizer, counts, 0)
    sums, places = Sums(Moments(encoder.layers - 1)), range(len(texts))
    read_sums(sums, encoder, tokenizer, features, texts, places, length, seed)
    heads = heads_of(sums, texts.names, inputs)
    return give_fit(encoder, features, heads, sums, texts.names, seed, rotation, inputs, 0)


def heads_of(
    sums: Sums, names: Sequence[str], inputs: FitInputs, ridge: float = 0.0
) -> list[FittedHead]:
    """Return the exits of layers 0 to L - 1 towards the embedding.

    Args:
        sums: of all texts.
        names: of the corpora.
        inputs: what an exit reads.
        ridge: λ; 0: the best of several on the texts that are held out.

    Raises:
        UserError: a regression has no solution.
    """
    kept, layers = list(sums.held_out.values()), range(sums.moments.layers + 1)
    held_out = sum(kept[1:], kept[0]) if kept else None
    ridges = (ridge,) if ridge else RIDGES
    try:
        return [fit_head(sums.moments, held_out, layer, inputs, ridges) for layer in layers]
    except ValueError as error:
        raise unfit(names, error) from error


def give_fit(
    encoder: Encoder,
    features: TokenFeatures,
    heads: Sequence[FittedHead],
    sums: Sums,
    names: Sequence[str],
    seed: int,
    rotation: Rotation,
    inputs: FitInputs,
    identity: int,
) -> FitRecord:
    """Rotate the embedding of an encoder, give it these exits, and return the record of the fit.

    Args:
        encoder: changed in place.
        features: of its tokens.
        heads: of layers 0 to L - 1, towards the embedding as it is.
        sums: of all texts, and the embeddings to fit the rotation on.
        names: of the corpora.
        seed: of a learned rotation.
        rotation: of the embedding.
        inputs: what an exit reads.
        identity: random signs per token.
    """
    if rotation != "none":
        dims, similarity = default_dims(encoder.card.width), encoder.card.similarity
        vectors = np.concatenate(sums.vectors)
        with progress("Rotating", STEPS, "steps") as advance:
            turned = fit_rotation(vectors, rotation, similarity, dims, seed, advance)
        heads = [head.rotated(turned) for head in heads]
        encoder.behind = rotate(encoder.behind, encoder.pooled_width, turned)
    give_exits(encoder, features, inputs, [(head.weight, head.bias) for head in heads])
    return record_of(heads, names, sums.texts, sums.snippets, rotation, inputs, identity)


def record_of(
    heads: Sequence[FittedHead],
    names: Sequence[str],
    texts: int,
    snippets: int,
    rotation: Rotation,
    inputs: FitInputs,
    identity: int,
) -> FitRecord:
    """Return the record of a fit."""
    return FitRecord(
        corpora=tuple(names),
        texts=texts,
        snippets=snippets,
        rotation=rotation,
        inputs=inputs,
        identity=identity,
        ridges=tuple(head.ridge for head in heads),
        cosines=tuple(head.cosine for head in heads),
    )


def unfit(names: Sequence[str], error: ValueError) -> UserError:
    """Return the error of a fit on texts of some corpora."""
    return UserError(f"Exits cannot be fitted on {', '.join(names)}: {error}.")
