"""`m2dr search`: a query, cut to a layer and a dim, finds its documents in an index."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import counted
from m2dr.evaluate.runfiles import write_run
from m2dr.index.searchable import Searchable
from m2dr.records.cut import Cut
from m2dr.records.run import Ranking, Run
from m2dr.records.texts import Query
from m2dr.text.topics import read_topics
from m2dr.verbs.models import label_of
from m2dr.verbs.progress import say
from m2dr.verbs.searching.online import QueryEncoder, Tell, open_query_encoder
from m2dr.verbs.searching.opening import Place, SearchRequest, find_place, open_documents

__all__ = [
    "Answer",
    "Hit",
    "SearchRequest",
    "Searcher",
    "as_queries",
    "read_topics",
    "search_topics",
]


@dataclass(frozen=True)
class Hit:
    """One line of an answer."""

    rank: int
    score: float
    docid: str
    _find: Callable[[str], str] = field(repr=False, compare=False)

    @property
    def text(self) -> str:
        """The document's title and text, read from the corpus when asked for.

        Raises:
            UserError: the corpus is not on this machine, or has changed.
        """
        return self._find(self.docid)


@dataclass(frozen=True)
class Answer:
    """The documents of one query, and the milliseconds that each step took.

    Of queries that were searched together, each took its share.
    """

    hits: tuple[Hit, ...]
    tokenise_ms: float
    encode_ms: float
    search_ms: float


def _warn(sentence: str) -> None:
    say(f"Warning: {sentence}")


class Searcher:
    """A cut query encoder and documents, kept open between queries; any thread may search."""

    def __init__(
        self,
        request: SearchRequest,
        place: Place | None = None,
        encoder_of: Callable[[Place], QueryEncoder] | None = None,
        tell: Tell = _warn,
    ) -> None:
        """Open what the request names.

        Args:
            request: what is searched, and how.
            place: where that lies, when it is known.
            encoder_of: gives an encoder that is kept elsewhere, instead of loading one.
            tell: is given what a person should know of a search that went on all the same.

        Raises:
            UserError: no such model or index, or the two do not fit; before any weight is loaded.
        """
        self._place = place or find_place(request)
        self._documents = open_documents(self._place)
        self._tell = tell
        self.cut = Cut(self._place.query_layer, self._documents.dim)
        self._documents.accept(label_of(self._place.card, self._place.model), self.cut)
        exits = self._place.exits
        self.warnings = [] if exits else self._documents.warnings(self.cut)
        self._encoder = (encoder_of or _load)(self._place)
        self.describe = (
            f"{counted(self._documents.documents, 'documents')} of {self._documents.corpus} "
            f"(layer {self._documents.layer}), queries at {self.cut} of {self._place.model}"
            f"{' by exits of the index' if exits else ''}"
        )

    @property
    def documents(self) -> Searchable:
        """What is searched."""
        return self._documents

    @property
    def place(self) -> Place:
        """Where it lies."""
        return self._place

    def warm_up(self) -> None:
        """Run one query, so that the first that counts does not pay for loading libraries."""
        self._encoder.warm_up()
        self.search("warm up", k=1)

    def search(self, text: str, k: int) -> Answer:
        """The best `k` documents of one query."""
        return self.answers([text], k)[0]

    def answers(self, texts: Sequence[str], k: int) -> list[Answer]:
        """The best `k` documents of each query, in the order of the queries.

        Raises:
            UserError: a query is empty, or k is below 1.
        """
        if not texts:
            return []
        names = [str(number) for number in range(len(texts))]
        run, spans = self._walk(names, texts, k, own=False)
        times = [1000 * span / len(texts) for span in spans]
        return [Answer(self._hits(run.rankings[name]), *times) for name in names]

    def run(self, queries: Sequence[Query], k: int) -> Run:
        """Rank for many queries at once."""
        texts = [query.text for query in queries]
        own = self._place.dataset.drops_own_document
        return self._walk([query.id for query in queries], texts, k, own)[0]

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Queries as the encoder gives them, [Q, width], not normalised."""
        return self._encoder.embed(self._encoder.tokenize(texts, lambda _: None))

    def _walk(
        self, names: Sequence[str], texts: Sequence[str], k: int, own: bool
    ) -> tuple[Run, tuple[float, float, float]]:
        """The run of queries, and the seconds of tokenising, encoding and searching.

        Args:
            names: of the queries.
            texts: of the queries.
            k: how many documents for each.
            own: whether the document of a query's own name is left out.
        """
        if k > self._documents.documents:
            self._tell(
                f"{k} documents per query were asked for, and {self._documents.corpus} holds "
                f"{self._documents.documents}; all of them are ranked."
            )
        start = time.perf_counter()
        rows = self._encoder.tokenize(texts, self._tell)
        tokenised = time.perf_counter()
        vectors = self._encoder.embed(rows)
        encoded = time.perf_counter()
        drop = {name: name for name in names} if own else None
        run = self._documents.ranked(names, vectors, k, drop)
        found = time.perf_counter()
        return run, (tokenised - start, encoded - tokenised, found - encoded)

    def _hits(self, ranking: Ranking) -> tuple[Hit, ...]:
        pairs = zip(ranking.docids, ranking.scores, strict=True)
        return tuple(
            Hit(rank, score, docid, self._text)
            for rank, (docid, score) in enumerate(pairs, start=1)
        )

    def _text(self, docid: str) -> str:
        return self._place.dataset.document(docid).content


def _load(place: Place) -> QueryEncoder:
    request = place.request
    return open_query_encoder(
        place.model,
        place.query_layer,
        request.runtime,
        request.device,
        request.dtype,
        say,
        place.exits,
    )


def search_topics(searcher: Searcher, queries: Sequence[Query], run_file: Path, k: int) -> Run:
    """Rank for queries, and write the TREC run.

    Raises:
        UserError: an id cannot stand in a run file, which is then left as it was.
    """
    run = searcher.run(queries, k)
    write_run(run, run_file)
    return run


def as_queries(texts: Sequence[str]) -> list[Query]:
    """Texts that have no ids, numbered from 1."""
    return [Query(str(number), text) for number, text in enumerate(texts, start=1)]
