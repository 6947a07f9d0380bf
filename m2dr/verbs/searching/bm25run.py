"""`m2dr bm25`: rank by words alone, as a partner in a fusion or a bar to clear."""

import time
from dataclasses import dataclass
from pathlib import Path

from m2dr.errors import UserError
from m2dr.evaluate.runfiles import write_run
from m2dr.index.bm25 import Bm25
from m2dr.records.run import Ranking, Run
from m2dr.records.texts import Query
from m2dr.text.topics import read_topics
from m2dr.verbs.corpora import open_corpus
from m2dr.verbs.progress import progress


@dataclass(frozen=True)
class Bm25Request:
    """What `m2dr bm25` was asked."""

    run_file: Path
    corpus: str = "pydocs"
    topics: Path | None = None  # None: the judged queries of `split`
    split: str = ""
    k: int = 1000


@dataclass(frozen=True)
class Bm25Report:
    """What was written."""

    run_file: Path
    documents: int
    queries: int
    empty: int  # queries that share no word with any document
    seconds: float


def bm25(request: Bm25Request) -> Bm25Report:
    """Index the documents' words in memory, rank them for the queries, and write the TREC run.

    Raises:
        UserError: corpus or queries cannot be read, or bm25s is not installed.
    """
    begun = time.monotonic()
    if bool(request.split) == (request.topics is not None):
        raise UserError("Queries come from --topics or from a --split of the corpus; give one.")
    dataset = open_corpus(request.corpus)
    queries = read_topics(request.topics) if request.topics else dataset.queries(request.split)
    with progress("Reading words", dataset.document_count, "documents") as advance:
        index = Bm25(dataset.documents(), advance)
    rankings: dict[str, Ranking] = {}
    with progress("Searching", len(queries), "queries") as advance:
        for query in queries:
            rankings[query.id] = _rank(index, query, request.k, dataset.drops_own_document)
            advance(1)
    write_run(Run(rankings), request.run_file, tag="bm25")
    empty = sum(not ranking.docids for ranking in rankings.values())
    spent = time.monotonic() - begun
    return Bm25Report(request.run_file, len(index.docids), len(queries), empty, spent)


def _rank(index: Bm25, query: Query, k: int, drops_own: bool) -> Ranking:
    return index.rank(index.scores(query.text), k, query.id if drops_own else None)
