"""`m2dr bm25` and `fuse`: lexical runs, and several runs in one."""

import time
from dataclasses import dataclass
from pathlib import Path

from m2dr.core import requests
from m2dr.core.errors import UserError
from m2dr.core.files import refuse_same_file
from m2dr.core.progress import progress
from m2dr.core.records import Ranking, Run
from m2dr.data.qrels import read_topics
from m2dr.evaluation.runs import read_run, reciprocal_ranks, write_run
from m2dr.index.bm25 import Bm25
from m2dr.tasks.corpus import open_corpus


@dataclass(frozen=True)
class Bm25Report:
    """The run that was written."""

    run_file: Path
    documents: int
    queries: int
    seconds: float


def bm25(request: requests.Bm25Request) -> Bm25Report:
    """Rank the documents by BM25 for all queries, and write the TREC run.

    Raises:
        UserError: corpus or queries cannot be read or are the file of the run, or there is no
            such language.
    """
    begun = time.monotonic()
    if bool(request.split) == (request.topics is not None):
        raise UserError("Queries come from --topics or from a --split of the corpus; give one.")
    read = {"--topics": request.topics, "--corpus": request.corpus}
    refuse_same_file("--run", request.run_file, read)
    dataset = open_corpus(request.corpus)
    queries = read_topics(request.topics) if request.topics else dataset.queries(request.split)
    with progress("Reading words", dataset.document_count, "documents") as advance:
        index = Bm25.of(dataset.documents(), advance, request.language)
    rankings: dict[str, Ranking] = {}
    with progress("Searching", len(queries), "queries") as advance:
        for query in queries:
            own = dataset.own_document(query.id)
            rankings[query.id] = index.rank(index.scores(query.text), request.top_k, own)
            advance(1)
    write_run(Run(rankings), request.run_file, tag="bm25")
    spent = time.monotonic() - begun
    return Bm25Report(request.run_file, len(index.docids), len(queries), spent)


@dataclass(frozen=True)
class FuseReport:
    """The run that was written."""

    out: Path
    queries: int
    documents: int  # over all queries


def fuse(request: requests.FuseRequest) -> FuseReport:
    """Fuse the runs by reciprocal ranks, and write the result when all of them are read.

    Raises:
        UserError: there are fewer than two runs, or a run file cannot be read or is the one to
            write.
    """
    for path in request.runs:
        refuse_same_file("--out", request.out, {"RUNS": path})
    given = [read_run(path) for path in request.runs]
    fused = reciprocal_ranks(given, request.top_k, request.rrf_k)
    write_run(fused, request.out, tag="m2dr-rrf")
    documents = sum(len(ranking.docids) for ranking in fused.rankings.values())
    return FuseReport(request.out, len(fused), documents)
