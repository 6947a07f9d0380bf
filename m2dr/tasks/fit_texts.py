"""The texts of a fit, read as token rows, token features, pooled states and embeddings."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.core.files import atomic_path
from m2dr.core.records import ModelCard, Side
from m2dr.data.pydocs import cache_folder
from m2dr.data.readers import DistinctLines, is_gzipped, stem_of
from m2dr.data.sentence_pairs import is_plain_text, open_sentences, recognises_sentences
from m2dr.data.tokens import Ragged, buckets
from m2dr.evaluate.sentence_tasks import distinct
from m2dr.model.encoder import Encoder
from m2dr.model.token_features import TokenFeatures, WordFeatures, token_features
from m2dr.model.tokenizer import ModelTokenizer, tokenize
from m2dr.tasks.encode_texts import (
    embed_tokens,
    embed_tokens_and_states,
    open_corpus,
    tokens_per_batch,
)
from m2dr.train.linear_fit import Sample

# Shapes in this file:
#   S shallow layers, N texts, V ids of the vocabulary, P dims of a pooled state, F features of the
#   tokens, W dims of the embedding.

KEPT_BYTES = range(2**20, 2**26)  # of the embeddings of a vocabulary that are kept
QUERIES = "train"  # the split whose queries are read
WORDS = (3, 15)  # of a snippet, from the first to below the second
SNIPPETS = 2  # of each long text
AMONG = 4  # snippets that each of these is chosen among


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
    if recognises_sentences(word) and is_plain_text(path := Path(word)) and not is_gzipped(path):
        lines = DistinctLines(path)  # a file of any length: none of its texts is kept
        return stem_of(path), [_Source(number, "document", len(lines), lines.__getitem__)]
    if recognises_sentences(word):
        sentences = open_sentences(word)
        texts, _, _ = distinct(sentences.pairs)
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
    totals: dict[int, int] = {}
    for source in sources:
        totals[source.corpus] = totals.get(source.corpus, 0) + source.count
    of_corpus = dict(zip(totals, _even(list(totals.values()), most), strict=True))
    found = [0] * len(sources)
    for corpus, share in of_corpus.items():
        mine = [number for number, source in enumerate(sources) if source.corpus == corpus]
        parts = _even([sources[number].count for number in mine], share)
        for number, part in zip(mine, parts, strict=True):
            found[number] = part
    return found


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


def drop_exits(encoder: Encoder) -> None:
    """Remove all exits below the last layer, fitted or trained."""
    encoder.fitted = None
    for layer in [layer for layer in encoder.exit_heads if int(layer) < encoder.layers]:
        del encoder.exit_heads[layer]


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


def count_tokens(rows: Ragged, ids: int) -> NDArray[np.int64]:
    """Return how often each id stands in some rows, [V]."""
    return np.bincount(rows.tokens, minlength=ids)


def read_features(
    encoder: Encoder,
    tokenizer: ModelTokenizer,
    counts: NDArray[np.int64],
    identity: int,
    advance: Callable[[int], None] = lambda _: None,
) -> TokenFeatures:
    """Return the features of tokens; the full model embeds each token of the vocabulary alone.

    Args:
        encoder: with all layers.
        tokenizer: of the same model.
        counts: [V], how often each id stands in the texts of the fit.
        identity: random signs per token.
        advance: is told how many tokens have been embedded.
    """
    ids = tokenizer.ordinary_ids()
    place = _vocabulary_file(encoder, len(ids))
    found = _kept_vocabulary(place, (len(ids), encoder.card.width))
    if found is None:
        rows = tokenizer.alone(ids)
        found = embed_tokens(encoder, rows, tokenizer.pad_id, (encoder.layers,), advance)[0]
        _keep_vocabulary(place, found)
    single = np.zeros((len(counts), found.shape[1]), np.float32)
    single[ids] = found
    special = sorted({*range(len(counts))} - {*ids})
    return token_features(encoder.words, single, counts, special, identity)


def _vocabulary_file(encoder: Encoder, tokens: int) -> Path | None:
    """Return the file that keeps the embeddings of single tokens; None where they are not kept.

    They depend on the model alone, and take most of the time of a fit on few documents.
    """
    card = encoder.card
    size = 4 * tokens * card.width
    if not card.fingerprint or not KEPT_BYTES.start <= size < KEPT_BYTES.stop:
        return None
    with suppress(UserError):
        dtype = str(next(encoder.parameters()).dtype).removeprefix("torch.")
        sizes = (str(encoder.layers), str(card.width))  # a fingerprint tells nothing of a cut width
        words = (card.fingerprint, *sizes, card.pooling, encoder.device.type, dtype)
        return cache_folder() / "vocabularies" / f"{'-'.join(words)}.npy"
    return None


def _kept_vocabulary(place: Path | None, shape: tuple[int, int]) -> NDArray[np.float32] | None:
    """Return embeddings of this shape, [V, W], that an earlier fit kept; None without any."""
    if place is None or not place.is_file():
        return None
    try:
        found: NDArray[np.float32] = np.load(place, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    fits = found.shape == shape and found.dtype == np.float32
    return found if fits and np.isfinite(found).all() else None


def _keep_vocabulary(place: Path | None, found: NDArray[np.float32]) -> None:
    if place is None:
        return
    with suppress(UserError), atomic_path(place) as temporary, temporary.open("wb") as file:
        np.save(file, found, allow_pickle=False)


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
    found = read_sample(
        encoder,
        features,
        Ragged.of(rows_of(encoder.card, tokenizer, texts, length)),
        tokenizer.pad_id,
        advance,
    )
    parts, of = snippets([text for _, text in texts], SNIPPETS * AMONG, draw)
    if not parts:
        return found, of
    asked: list[tuple[Side, str]] = [("query", part) for part in parts]
    rows = rows_of(encoder.card, tokenizer, asked, length)
    chosen = widest(rows, AMONG)
    short = Ragged.of([rows[place] for place in chosen])
    return found + read_sample(encoder, features, short, tokenizer.pad_id), of[chosen]


def read_sample(
    encoder: Encoder,
    features: TokenFeatures,
    rows: Ragged,
    pad_id: int,
    advance: Callable[[int], None] = lambda _: None,
) -> Sample:
    """Run texts through all layers.

    Args:
        encoder: with all layers.
        features: of its tokens.
        rows: token ids of N texts.
        pad_id: fills up short rows.
        advance: is told how many texts have been run.
    """
    everything = np.arange(len(rows))
    layers = (encoder.layers,)
    _, states = embed_tokens_and_states(encoder, rows, pad_id, layers, everything, advance)
    return as_sample(states, token_parts(encoder, features, rows, pad_id), encoder)


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
