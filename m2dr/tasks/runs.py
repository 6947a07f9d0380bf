"""`m2dr bm25` and `m2dr fuse`: write a lexical run (BM25), and fuse several runs into one."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from m2dr.core.errors import UserError, counted
from m2dr.core.files import refuse_same_file
from m2dr.core.progress import progress
from m2dr.core.records import Query, Ranking, Run
from m2dr.core.requests import Bm25Request, FuseRequest
from m2dr.data.qrels import read_topics
from m2dr.evaluate.runs import RANK_OFFSET, interpolated, read_run, reciprocal_ranks, write_run
from m2dr.index.bm25 import Bm25
from m2dr.tasks.encode_texts import open_corpus


@dataclass(frozen=True)
class Bm25Report:
    """The run that was written."""

    run_file: Path
    documents: int
    queries: int
    empty: int  # queries that share no word with any document
    seconds: float


def bm25(request: Bm25Request) -> Bm25Report:
    """Rank the documents by BM25 for all queries, and write the TREC run.

    Raises:
        UserError: corpus or queries cannot be read or are the file of the run, or bm25s is not
            installed.
    """
    begun = time.monotonic()
    if bool(request.split) == (request.topics is not None):
        raise UserError("Queries come from --topics or from a --split of the corpus; give one.")
    read = {"--topics": request.topics, "--corpus": request.corpus}
    refuse_same_file("--run", request.run_file, read)
    dataset = open_corpus(request.corpus)
    queries = read_topics(request.topics) if request.topics else dataset.queries(request.split)
    with progress("Reading words", dataset.document_count, "documents") as advance:
        index = Bm25(dataset.documents(), advance)
    rankings: dict[str, Ranking] = {}
    with progress("Searching", len(queries), "queries") as advance:
        for query in queries:
            rankings[query.id] = _rank(index, query, request.top_k, dataset.drops_own_document)
            advance(1)
    write_run(Run(rankings), request.run_file, tag="bm25")
    empty = sum(not ranking.docids for ranking in rankings.values())
    spent = time.monotonic() - begun
    return Bm25Report(request.run_file, len(index.docids), len(queries), empty, spent)


def _rank(index: Bm25, query: Query, k: int, drops_own: bool) -> Ranking:
    return index.rank(index.scores(query.text), k, query.id if drops_own else None)


@dataclass(frozen=True)
class FuseReport:
    """The run that was written."""

    out: Path
    queries: int
    documents: int  # over all queries
    warnings: tuple[str, ...]  # queries that a run does not hold


def fuse(request: FuseRequest) -> FuseReport:
    """Fuse the runs, and write the result when all of them are read.

    Raises:
        UserError: a run file cannot be read or is the one to write, or a setting would change
            nothing.
    """
    if request.method == "rrf" and request.scale is not None:
        raise UserError("--scale is of scores, and --method rrf looks at ranks; leave it out.")
    if request.method == "interpolate" and request.rrf_k is not None:
        raise UserError(
            "--rrf-k is of ranks, and --method interpolate looks at scores; leave it out."
        )
    for path in request.runs:
        refuse_same_file("--out", request.out, {"RUNS": path})
    runs = {path: read_run(path) for path in request.runs}
    given = [runs[path] for path in request.runs]
    if request.method == "rrf":
        offset = RANK_OFFSET if request.rrf_k is None else request.rrf_k
        fused = reciprocal_ranks(given, request.weights, request.top_k, offset)
    else:
        fused = interpolated(given, request.weights, request.top_k, request.scale or "min-max")
    write_run(fused, request.out, tag=f"m2dr-{request.method}")
    documents = sum(len(ranking.docids) for ranking in fused.rankings.values())
    return FuseReport(request.out, len(fused), documents, tuple(_gaps(runs, fused)))


def _gaps(runs: Mapping[Path, Run], fused: Run) -> list[str]:
    """Return a sentence for each run that lacks queries which others have."""
    counts = {path: len(fused) - len(run) for path, run in runs.items()}
    return [
        f"{path} lacks {count} of the {counted(len(fused), 'queries')}; the others decide there."
        for path, count in counts.items()
        if count
    ]
