"""The texts of a fit: documents and training queries, in an order drawn from a seed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError
from m2dr.records.texts import Side
from m2dr.text.lines import DistinctLines, is_gzipped
from m2dr.text.sentences import holds_lines, name_of, open_sentences, recognises_sentences
from m2dr.verbs.corpora import open_corpus

QUERIES = "train"  # the split whose queries are read
WORDS = (3, 15)  # of a snippet, from the first to below the second


@dataclass(frozen=True)
class _Source:
    """Texts of one kind of one corpus."""

    corpus: int  # its number
    side: Side
    count: int
    at: Callable[[int], str]


@dataclass(frozen=True)
class FitTexts:
    """Texts to fit on, by their place; none is read before it is asked for.

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
    """Cut a few words out of texts, as a query has them.

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
    if recognises_sentences(word) and holds_lines(path := Path(word)) and not is_gzipped(path):
        lines = DistinctLines(path)  # a file of any length: none of its texts is kept
        return name_of(path), [_Source(number, "document", len(lines), lines.__getitem__)]
    if recognises_sentences(word):
        sentences = open_sentences(word)
        texts = list(
            dict.fromkeys(t for pair in sentences.pairs for t in (pair.first, pair.second))
        )
        return sentences.name, [_Source(number, "document", len(texts), texts.__getitem__)]
    dataset = open_corpus(word)
    documents = _Source(
        number, "document", dataset.document_count, lambda row: dataset.document_at(row).content
    )
    queries = dataset.queries(split) if split in dataset.splits else []
    return dataset.name, [
        documents,
        _Source(number, "query", len(queries), lambda row: queries[row].text),
    ]


def _shares(sources: Sequence[_Source], most: int) -> list[int]:
    """Share out `most` texts, evenly among the corpora and evenly among what each has.

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
    """Return how much of each is taken, evenly, `most` at most in all.

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
