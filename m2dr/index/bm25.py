"""BM25 of the documents of an index, alone or beside their vectors.

indexes/<corpus>/<model fingerprint>/bm25.safetensors
    words    stems in sorted order, each with a line feed
    starts   [words + 1], where the postings of each begin
    rows     [postings], documents that hold the word, increasing
    weights  [postings] float32, what the word adds to their score
"""

import hashlib
import json
import struct
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from m2dr.core.analyzer import Analyzer, language_of
from m2dr.core.arrays import Array, Bools
from m2dr.core.errors import UserError
from m2dr.core.files import HASHED_BYTES, write_bytes
from m2dr.core.records import Document, Ranking
from m2dr.index.docids import Docids, encode_docids
from m2dr.index.hits import Hits
from m2dr.index.searchable import Rows, Scores
from m2dr.index.vectors import check_depth

K1, B = 0.9, 0.4  # Anserini's, which published BM25 runs are made with
_DTYPES = {"words": np.uint8, "starts": np.int64, "rows": np.int32, "weights": np.float32}
_NONE: Any = (np.empty(0, np.float32), np.empty(0, np.int64))  # scores and rows
_LANGUAGE_SAMPLE = 500  # documents whose language is looked at
HYBRID_DEPTH = 1000  # documents of the vectors' ranking that a hybrid adds BM25 to
# Lucene's stop words of English.
STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then "
    "there these they this to was will with"
)


class Bm25:
    """A BM25 index of word stems, with the scores of Lucene 8 and later.

    The score of a document is the sum over the query's words, repeated ones counted again, of

        ln(1 + (N - df + 0.5) / (df + 0.5)) · tf / (tf + K1 (1 - B + B · length / mean length))

    (Kamphuis et al., Which BM25 Do You Mean?, ECIR 2020, table 1, "Lucene (accurate)"). Words are
    those of `Analyzer`, without letters that an apostrophe splits off and, in English, without
    Lucene's 33 stop words. Lucene itself rounds lengths to a byte.

    Attributes:
        docids: in row order.
        language: of the stems.
        digest: of the documents; empty where it was not given.
    """

    def __init__(
        self, tensors: Mapping[str, Array], docids: Docids, language: str, digest: str = ""
    ) -> None:
        self._tensors, self.docids = tensors, docids
        self.language, self.digest = language, digest
        self._words = Docids(tensors["words"].tobytes())
        self._starts, self._rows, self._weights = (
            tensors[name] for name in ("starts", "rows", "weights")
        )
        self._analyzer = _analyzer(language)

    @classmethod
    def of(
        cls,
        documents: Iterable[Document],
        advance: Callable[[int], None] = lambda _: None,
        language: str = "",
        digest: str = "",
    ) -> "Bm25":
        """Index documents, which are read once, by the same text that the encoder reads.

        Args:
            documents: N of them.
            advance: receives the number of documents of each step.
            language: as `Analyzer` takes it; by default that of the texts.
            digest: of the documents, which `write` keeps.

        Raises:
            UserError: there is no such language, or an id is not one line.
        """
        from scipy.sparse import csr_array

        stream, docids = iter(documents), list[str]()
        first = list(islice(stream, _LANGUAGE_SAMPLE))
        language = language or language_of(document.content for document in first)
        analyzer = _analyzer(language)
        numbers: dict[str, int] = {}
        words, counts, ends = array("i"), array("f"), array("q", [0])
        for document in chain(first, stream):
            docids.append(document.id)
            stems = Counter(analyzer(document.content))
            words.extend(numbers.setdefault(stem, len(numbers)) for stem in stems)
            counts.extend(stems.values())
            ends.append(len(words))
            advance(1)
        order = sorted(numbers)
        columns_of = np.empty(len(order), np.int32)  # number of a word -> its place in `order`
        columns_of[[numbers[word] for word in order]] = np.arange(len(order))
        tf = np.frombuffer(counts, np.float32)
        columns = columns_of[np.frombuffer(words, np.int32)]
        shape = (len(docids), len(order))
        postings = csr_array((tf, columns, np.frombuffer(ends, np.int64)), shape).tocsc()
        starts, rows = postings.indptr.astype(np.int64), postings.indices.astype(np.int32)
        lengths = np.add.reduceat(np.append(tf, 0), ends[:-1]) * (np.diff(ends) > 0)
        norms = K1 * (1 - B + B * lengths / max(lengths.mean(), 1e-9))
        df = np.diff(starts)
        idf = np.log(1 + (len(docids) - df + 0.5) / (df + 0.5))
        weights = np.repeat(idf, df) * postings.data / (postings.data + norms[rows])
        tensors = {
            "words": np.frombuffer("".join(f"{word}\n" for word in order).encode(), np.uint8),
            "starts": starts,
            "rows": rows,
            "weights": weights.astype(np.float32),
        }
        return cls(tensors, Docids(encode_docids(docids)), language, digest)

    @classmethod
    def open(cls, path: Path, docids: Docids, *, whole: bool = False) -> "Bm25 | None":
        """Map what `write` wrote, in milliseconds; None where there is no file.

        Args:
            path: the file.
            docids: in row order, if they are those of the digest.
            whole: compare a file of more than HASHED_BYTES with its own digest too.

        Raises:
            UserError: it is not the file that was written.
        """
        try:
            with path.open("rb") as file:
                (size,) = struct.unpack("<Q", file.read(8))  # of the header; safetensors
                if size > path.stat().st_size:
                    raise ValueError("its header ends behind it")
                header = json.loads(file.read(size))
            *about, digest = json.loads(header.pop("__metadata__")["bm25"])
            tensors = {}
            for name, part in header.items():
                begin, (count,) = 8 + size + part["data_offsets"][0], part["shape"]
                mapped = np.memmap(path, _DTYPES[name], "r", begin, count)
                tensors[name] = np.asarray(mapped)  # whose slices cost less
            checks = whole or path.stat().st_size <= HASHED_BYTES
            if checks and digest != _digest_of(tensors, *about):
                raise ValueError("its sha256 differs")
            return cls(tensors, docids, *about)
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError, struct.error) as error:
            raise UserError(
                f"{path} is not the file that was written. Build the index again."
            ) from error

    def write(self, path: Path) -> None:
        """Write the index to a file, atomically."""
        from safetensors.numpy import save

        # One entry, as several have no order.
        about = self.language, self.digest
        metadata = json.dumps([*about, _digest_of(self._tensors, *about)])
        write_bytes(path, save(dict(self._tensors), {"bm25": metadata}))

    def scores(self, text: str) -> Scores:
        """Return the score of every document, [documents]; 0 where it shares no word with it."""
        scores = np.zeros(len(self.docids), np.float32)
        for word in self._analyzer(text):
            rows, weights = self._postings(word)
            scores[rows] += weights
        return scores

    def _postings(self, word: str) -> tuple[Array, Array]:
        """Return the rows of the documents with a word, and what it adds to their scores."""
        number = bisect_left(self._words, word)
        postings = slice(0)
        if number < len(self._words) and self._words[number] == word:
            postings = slice(*self._starts[number : number + 2].tolist())
        return self._rows[postings], self._weights[postings]

    def parts(self, text: str, rows: Rows) -> dict[str, Scores]:
        """Return what each word of a query adds to the scores of rows [n]."""
        counts, parts = Counter(self._analyzer(text)), {}
        for stem, form in self._analyzer.written(text).items():
            holding, weights = self._postings(stem)
            places = np.minimum(np.searchsorted(holding, rows), max(len(holding) - 1, 0))
            if len(holding):
                added = np.where(holding[places] == rows, weights[places], np.float32(0))
                parts[form] = counts[stem] * added
        return parts

    def rank(self, scores: Scores, k: int, drop: str | None = None) -> Ranking:
        """Rank the best `k` documents that share a word with the query.

        Args:
            scores: [documents], as `scores` gives them.
            k: how many documents.
            drop: a docid to leave out, such as the query's own document.

        Raises:
            UserError: k is below 1.
        """
        check_depth(k)
        rows = np.flatnonzero(scores > 0)
        rows, scores = contenders(rows, scores[rows], k + (drop is not None))
        return Ranking.of(self.docids.take(rows), scores, k, drop)

    def blend(
        self,
        many: Sequence[Hits],
        texts: Sequence[str],
        weight: float,
        k: int,
        own: Rows,
        unfit: Bools | None = None,
        *,
        with_parts: bool = False,
    ) -> list[Hits]:
        """Add BM25 to rankings of the same queries by vectors: [Q, n] become [Q, at most k].

        Scores are those of `blended`, and ties break by docid descending.

        Args:
            many: rankings without the documents of `own`.
            texts: Q queries.
            weight: of BM25, 0 to 1.
            k: documents per query.
            own: row of a document of each query to leave out, [Q]; -1 for none.
            unfit: which documents are not found, [documents]; None: all are.
            with_parts: whether both scores of each document, and the scale, are kept.
        """
        shape = len(texts), min(k, len(self.docids))
        made = []
        for _ in many:
            hits = Hits(np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int64))
            if with_parts:
                parts, scale = np.empty((*shape, 2), np.float32), np.empty((shape[0], 3))
                hits = replace(hits, parts=parts, scale=scale)
            made.append(hits)
        for number, text in enumerate(texts):
            words = self.scores(text)
            if unfit is not None:
                words[unfit] = 0
            if own[number] >= 0:
                words[own[number]] = 0
            for hits, blend in zip(many, made, strict=True):
                is_hit = hits.rows[number] >= 0
                scores, rows = hits.scores[number, is_hit], hits.rows[number, is_hit]
                if len(rows) > HYBRID_DEPTH:
                    # A deeper document counts by BM25 alone; without a word of the query its
                    # vector's score, below 0 then, orders it behind all others.
                    kept = words[rows] == 0
                    kept[:HYBRID_DEPTH] = True
                    scores, rows = scores[kept], rows[kept]
                best, totals, factors = blended(words, scores, rows, weight, k)
                order = np.lexsort((-self.docids.places(best), -totals))[:k]
                best = best[order]
                blend.scores[number, : len(best)] = totals[order]
                blend.rows[number, : len(best)] = best
                if blend.parts is not None and blend.scale is not None:
                    by_vectors = np.full_like(words, np.nan)
                    by_vectors[rows] = scores
                    both = np.stack([by_vectors[best], words[best]], axis=1)
                    blend.parts[number, : len(best)] = both
                    blend.scale[number] = factors
        return made


def _digest_of(tensors: Mapping[str, Array], *about: str) -> str:
    """Return the sha256 of all that a file holds."""
    digest = hashlib.sha256(json.dumps(about).encode())
    for name in sorted(tensors):
        digest.update(f"\n{name} {tensors[name].size}\n".encode())
        digest.update(tensors[name].data)
    return digest.hexdigest()


def _analyzer(language: str) -> Analyzer:
    stop_words = STOP_WORDS.split() if language == "english" else ()
    return Analyzer(language, stop_words, split_letters=False)


def contenders(rows: Rows, scores: Scores, k: int) -> tuple[Rows, Scores]:
    """Return the best `k` and all that tie with the last of them, as docids decide ties."""
    if rows.size <= k:
        return rows, scores
    is_contender = scores >= np.partition(scores, -k)[-k]
    return rows[is_contender], scores[is_contender]


# Beside vectors


def blended(
    words: Scores, scores: Scores, rows: Rows, weight: float, k: int
) -> tuple[Rows, Scores, tuple[float, float, float]]:
    """Add BM25 to the best documents of a query by its vector.

    The sum of `weight` times the BM25 score, as a share of the best one, and of 1 - `weight` times
    the vectors' score, scaled to 0 at the last of their first HYBRID_DEPTH and 1 at the first: a
    convex combination (Bruch, Gai and Ingber, An Analysis of Fusion Functions for Hybrid Retrieval,
    TOIS 2023). A document that the vectors' ranking lacks has 0 there.

    Args:
        words: BM25 scores of all documents, [N].
        scores: by the vectors, [n], best first.
        rows: of those documents, [n].
        weight: of BM25, 0 to 1.
        k: how many documents are wanted.

    Returns:
        Rows, increasing, and scores of the documents that may be among the best `k`; each shares a
        word with the query or, where the vectors have a weight, is among `rows`. Last,
        `Ranking.scale`.
    """
    if weight == 1:
        scores, rows = _NONE
    best = words.max(initial=0) or np.float32(1)
    total = words / best * np.float32(weight)
    least = np.float32(0)
    factor = offset = 0.0
    if rows.size:
        low, high = scores[:HYBRID_DEPTH].min(), scores.max()
        if high > low:  # else the vector, perhaps of unknown words, tells no document from another
            total[rows] += (scores - low) / (high - low) * np.float32(1 - weight)
            factor = (1 - weight) / float(high - low)
            offset = -factor * float(low)
        elif rows.size == 1:  # which alone fits a filter, and is the best
            total[rows] += np.float32(1 - weight)
            offset = 1 - weight
        if rows.size >= k:
            least = np.partition(total[rows], -k)[-k]
    if least > 0:  # which k documents reach
        is_candidate = total >= least
    else:
        is_candidate = words > 0
        is_candidate[rows] = True
    candidates = np.flatnonzero(is_candidate)
    scale = (factor, weight / float(best), offset)
    return *contenders(candidates, total[candidates], k), scale
