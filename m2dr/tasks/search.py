"""`m2dr search`: search an index with a query encoder cut to a layer and a dim."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError, counted
from m2dr.core.progress import say
from m2dr.core.records import Cut, Document, Query, Ranking, Run
from m2dr.core.requests import SearchRequest
from m2dr.evaluate.runs import write_run
from m2dr.index.fields import FIELDS, field_types, typed
from m2dr.index.filters import Filter, Value
from m2dr.index.searchable import Searchable
from m2dr.index.store import open_store
from m2dr.tasks.encoder import LruCache, QueryEncoder, Tell, label_of
from m2dr.tasks.resolve import ResolvedIndex, open_documents, resolve_index, store_of

DEPTH = 10  # documents of an answer where no number is asked for
_FILTERS = 8  # whose documents are kept open


@dataclass(frozen=True)
class Hit:
    """A document of an answer."""

    rank: int
    score: float
    docid: str
    _find: Callable[[str], Document] = field(repr=False, compare=False)
    _kinds: Callable[[], Mapping[str, Any]] = field(repr=False, compare=False)

    @property
    def text(self) -> str:
        """Title and text of the document, read from the corpus on demand.

        Raises:
            UserError: the corpus is not on this machine, or has changed.
        """
        return self._document.content

    @property
    def fields(self) -> dict[str, Value]:
        """The document's own fields by name, read from the corpus on demand.

        Numbers and truths are such where all documents of the index have them; else they are texts.

        Raises:
            UserError: the corpus is not on this machine, or has changed.
        """
        return typed(self._document.fields, self._kinds())

    @cached_property
    def _document(self) -> Document:
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
    """A cut query encoder and an open index; thread-safe."""

    def __init__(
        self,
        request: SearchRequest,
        resolved: ResolvedIndex | None = None,
        encoder_of: Callable[[ResolvedIndex], QueryEncoder] | None = None,
        tell: Tell = _warn,
    ) -> None:
        """Open the index and encoder that the request names.

        Args:
            request: what is searched, and how.
            resolved: the request, where it is resolved already.
            encoder_of: gives an encoder that is kept elsewhere, instead of loading one.
            tell: is given what a person should know of a search that went on all the same.

        Raises:
            UserError: no such model or index, or the two do not fit; before any weight is loaded.
        """
        self._resolved = resolved or resolve_index(request)
        self._documents = open_documents(self._resolved)
        self._tell = tell
        self.cut = Cut(self._resolved.query_layer, self._documents.dim)
        self._documents.accept(label_of(self._resolved.card, self._resolved.model), self.cut)
        self._filtered = LruCache(self._where, _FILTERS)
        self._filter = request.filter
        self.where(request.filter)
        exits = self._resolved.exits
        self.warnings = [] if exits else self._documents.warnings(self.cut)
        if self.warnings and (fitting := self._resolved.fitting_command(self._documents.layer)):
            self.warnings[-1] += f" Or fit exits on the documents that there are, with: {fitting}"
        self._encoder = (encoder_of or _load)(self._resolved)
        self.describe = (
            f"{counted(self._documents.documents, 'documents')} of {self._documents.corpus} "
            f"(layer {self._documents.layer}), queries at {self.cut} of {self._resolved.model}"
            f"{' by exits of the index' if exits else ''}"
        )

    @property
    def documents(self) -> Searchable:
        """The open index."""
        return self._documents

    @property
    def resolved(self) -> ResolvedIndex:
        """The resolved request."""
        return self._resolved

    def where(self, filter: str) -> Searchable:  # as the option is called
        """Return the open index, in which only documents that fit a filter are found.

        Those that were asked for last stay open.

        Args:
            filter: such as `year >= 2020 and lang = en`; that of the request when empty.

        Raises:
            UserError: it is not written as a filter is, names a field that the documents do not
                have, or compares one with a value of another kind; or fields are not known.
        """
        asked = filter or self._filter
        return self._filtered.get(asked) if asked else self._documents

    def _where(self, asked: str) -> Searchable:
        return self._documents.where(Filter.parse(asked))

    def warm_up(self) -> None:
        """Run one query, so that libraries are loaded before the first one that counts."""
        self._encoder.warm_up()
        self.search("warm up", k=1)

    def search(self, text: str, k: int | None = None) -> Answer:
        """Return the best `k` documents of one query."""
        return self.answers([text], k)[0]

    def answers(
        self,
        texts: Sequence[str],
        k: int | None = None,
        filter: str = "",  # as the option is called
    ) -> list[Answer]:
        """Return the best `k` documents of each query, in the order of the queries.

        Args:
            texts: queries.
            k: documents per query; None: 10, or all where there are fewer.
            filter: as `where` takes it. Fewer documents than `k` may fit it.

        Raises:
            UserError: a query is empty, k is below 1, or `where` refuses the filter.
        """
        if not texts:
            return []
        names = [str(number) for number in range(len(texts))]
        run, spans = self._walk(names, texts, k, self.where(filter), own=False)
        times = [1000 * span / len(texts) for span in spans]
        return [Answer(self._hits(run.rankings[name]), *times) for name in names]

    def run(self, queries: Sequence[Query], k: int) -> Run:
        """Rank for many queries at once."""
        texts = [query.text for query in queries]
        own = self._resolved.dataset.drops_own_document
        return self._walk([query.id for query in queries], texts, k, self.where(""), own)[0]

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode queries: [Q, width], not normalised."""
        return self._encoder.embed(self._encoder.tokenize(texts, lambda _: None))

    def _walk(
        self,
        names: Sequence[str],
        texts: Sequence[str],
        k: int | None,
        documents: Searchable,
        own: bool,
    ) -> tuple[Run, tuple[float, float, float]]:
        """Return the run of queries, and the seconds of tokenising, encoding and searching.

        Args:
            names: of the queries.
            texts: of the queries.
            k: how many documents for each; None: DEPTH of them, or fewer.
            documents: that are searched.
            own: whether the document of a query's own name is left out.
        """
        whole = documents is self._documents  # of a filter, fewer are no surprise
        if whole and k is not None and k > documents.documents:
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
        run = documents.ranked(names, vectors, DEPTH if k is None else k, drop)
        found = time.perf_counter()
        return run, (tokenised - start, encoded - tokenised, found - encoded)

    def _hits(self, ranking: Ranking) -> tuple[Hit, ...]:
        pairs = zip(ranking.docids, ranking.scores, strict=True)
        return tuple(
            Hit(rank, score, docid, self._document, lambda: self._kinds)
            for rank, (docid, score) in enumerate(pairs, start=1)
        )

    def _document(self, docid: str) -> Document:
        return self._resolved.dataset.document(docid)

    @cached_property
    def _kinds(self) -> Mapping[str, Any]:
        """Return the types of the documents' fields; none where they are not known."""
        try:
            return field_types(store_of(self._resolved) / FIELDS)
        except UserError:
            return {}


def _load(resolved: ResolvedIndex) -> QueryEncoder:
    request = resolved.request
    return QueryEncoder(
        resolved.model,
        resolved.query_layer,
        request.runtime,
        request.device,
        request.dtype,
        resolved.exits,
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
    """Return texts as queries, numbered from 1."""
    return [Query(str(number), text) for number, text in enumerate(texts, start=1)]


@dataclass(frozen=True)
class ScanReport:
    """Recall and work of a search against a full scan."""

    queries: int
    k: int
    recall: float  # of the exact best k, mean over queries
    scanned: int  # multiply-adds per query of the full scan
    spent: int  # multiply-adds per query of this way; 0: not known

    def __str__(self) -> str:
        queries = counted(self.queries, "queries")
        found = f"recall@{self.k} {self.recall:.4f} of a full scan over {queries}"
        if not self.spent:
            return f"{found}; that takes {self.scanned:,} multiply-adds per query"
        return (
            f"{found}; {self.spent:,} multiply-adds per query against {self.scanned:,}, "
            f"{self.scanned / self.spent:.1f} times fewer"
        )


def compare_with_scan(searcher: Searcher, queries: Sequence[Query], k: int) -> ScanReport:
    """Search again by a full scan, and compare.

    A funnel is compared with the full width, which it stands for; all else with its own dim.

    Raises:
        UserError: the vectors are not on this machine.
    """
    from m2dr.index.exact import ExactIndex

    store = open_store(store_of(searcher.resolved))
    dim = store.width if searcher.resolved.request.funnel else searcher.documents.dim
    documents = searcher.where("")
    asked = searcher.resolved.request.filter
    scan = ExactIndex(store, dim, rows=store.matching(Filter.parse(asked)) if asked else None)
    vectors = searcher.vectors([query.text for query in queries])
    names = [query.id for query in queries]
    k = max(1, min(k, documents.documents))
    exact, found = (way.ranked(names, vectors, k).rankings for way in (scan, documents))
    spent = int(getattr(documents, "multiply_adds", 0))
    return ScanReport(len(queries), k, recall(found, exact), documents.documents * dim, spent)


def record_of(
    searcher: Searcher, text: str, answer: Answer, queries: Sequence[Query] | None, k: int
) -> dict[str, object]:
    """Return an answer by the names of its fields; with `queries`, a full scan's recall too."""
    times = {name: getattr(answer, name) for name in ("tokenise_ms", "encode_ms", "search_ms")}
    scan = asdict(compare_with_scan(searcher, queries, k)) if queries else None
    cut = {"query_layer": searcher.cut.layer, "document_layer": searcher.documents.layer}
    hits = {"dim": searcher.cut.dim, "hits": _hit_records(answer)}
    return {"query": text, **cut, **hits, **times, "report": scan}


def _hit_records(answer: Answer) -> list[dict[str, object]]:
    """Return hits by the names of their fields; one warning tells of texts that are not at hand."""
    rows: list[dict[str, object]] = []
    missing = ""
    for hit in answer.hits:
        text, fields = None, {}
        try:
            text, fields = hit.text, hit.fields
        except UserError as error:
            missing = str(error)
        place = {"rank": hit.rank, "score": float(hit.score), "docid": hit.docid}
        rows.append(place | {"text": text, "fields": fields})
    if missing:
        _warn(missing)
    return rows


def recall(found: Mapping[str, Ranking], exact: Mapping[str, Ranking]) -> float:
    """Return the share of the exact best documents that were found, mean over queries; 0 to 1.

    >>> best = {"q": Ranking(("a", "b"), (2.0, 1.0))}
    >>> recall({"q": Ranking(("b", "c"), (1.0, 0.5))}, best)
    0.5
    """
    shares = [
        len({*found[name].docids} & {*best.docids}) / len(best.docids)
        for name, best in exact.items()
        if best.docids
    ]
    return fmean(shares or [1.0])
