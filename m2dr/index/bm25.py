"""Lexical search with BM25, in memory."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import missing
from m2dr.core.records import Document, Query, Ranking, Run
from m2dr.index.searchable import Docids, encode_docids
from m2dr.index.vectors import check_depth

K1, B = 0.9, 0.4  # Anserini's, which published BM25 runs are made with


class Bm25:
    """A BM25 index of word stems, with the scores of Lucene 8 and later.

    The score of a document is the sum over the query's words, repeated ones counted again, of

        ln(1 + (N - df + 0.5) / (df + 0.5)) · tf / (tf + K1 (1 - B + B · length / mean length))

    (Kamphuis et al., Which BM25 Do You Mean?, ECIR 2020, table 1, "Lucene (accurate)"). A word is
    two letters or digits at least, in lower case, none of Lucene's 33 English stop words, cut to
    its stem by Snowball's English stemmer. Lucene itself also keeps single letters, and rounds
    lengths to a byte.

    Args:
        documents: read once; scored by the same text that the encoder reads.
        advance: told how many documents were read, again and again.

    Raises:
        UserError: bm25s or PyStemmer is not installed.

    Attributes:
        docids: in row order.
    """

    def __init__(
        self, documents: Iterable[Document], advance: Callable[[int], None] = lambda _: None
    ) -> None:
        try:
            import bm25s
            import Stemmer
        except ImportError as error:
            raise missing("bm25s", "bm25") from error
        stemmer = Stemmer.Stemmer("english")
        tokenizer = bm25s.tokenization.Tokenizer(stopwords="english", stemmer=stemmer)
        self._tokenizer = tokenizer
        docids: list[str] = []

        def texts() -> Iterable[str]:
            for document in documents:
                docids.append(document.id)
                advance(1)
                yield document.content

        stream = tokenizer.streaming_tokenize(texts(), update_vocab=True, allow_empty=False)
        words = list(stream)  # per document, the ids of its stems
        self.docids = Docids(encode_docids(docids))
        self._index: Any = None  # bm25s has no type stubs; none where no document has a word
        if any(words):
            self._index = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numpy")
            stems = bm25s.tokenization.Tokenized(words, tokenizer.get_vocab_dict())
            self._index.index(stems, create_empty_token=False, show_progress=False)

    def scores(self, text: str) -> NDArray[np.float32]:
        """Return the score of every document, [documents]; 0 where it shares no word with it."""
        words = self._tokenizer.streaming_tokenize([text], update_vocab=False, allow_empty=False)
        stems = next(iter(words))
        if not stems:
            return np.zeros(len(self.docids), np.float32)
        found: NDArray[np.float32] = self._index.get_scores_from_ids(stems)
        return found

    def rank(self, scores: NDArray[np.float32], k: int, drop: str | None = None) -> Ranking:
        """Rank the best `k` documents that share a word with the query.

        Args:
            scores: [documents], as `scores` gives them.
            k: how many documents.
            drop: a docid to leave out, such as the query's own document.

        Raises:
            UserError: k is below 1.
        """
        check_depth(k)
        wanted = k + (drop is not None)
        rows = np.flatnonzero(scores > 0)
        if rows.size > wanted:
            # All that share the last score are kept; the rule for ties decides which of them stay.
            last = np.partition(scores[rows], -wanted)[-wanted]
            rows = rows[scores[rows] >= last]
        return Ranking.of(self.docids.take(rows), scores[rows], k, drop)

    def search(
        self, queries: Sequence[Query], k: int, drop: Mapping[str, str] | None = None
    ) -> Run:
        """Rank the best `k` documents of each query: score descending, then docid descending.

        Args:
            queries: with the texts to score by.
            k: how many documents for each query.
            drop: per query id, a docid to leave out.

        Raises:
            UserError: k is below 1.
        """
        left_out = drop or {}
        return Run(
            {
                query.id: self.rank(self.scores(query.text), k, left_out.get(query.id))
                for query in queries
            }
        )
