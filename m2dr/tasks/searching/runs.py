"""`m2dr search`, `bm25` and `fuse`: answers and runs, lexical runs, and several runs in one."""

from dataclasses import dataclass
from typing import Any

from m2dr.core import requests
from m2dr.core.errors import UserError, counted
from m2dr.core.files import refuse_same_file
from m2dr.core.progress import progress, say
from m2dr.core.records import Ranking, Run
from m2dr.core.report import Report, timed
from m2dr.data.qrels import read_topics
from m2dr.evaluation.runs import read_run, reciprocal_ranks, write_run
from m2dr.index.bm25 import Bm25
from m2dr.tasks.corpus import open_corpus
from m2dr.tasks.searching.search import DEFAULT_K, Hit, open_searcher


@dataclass(frozen=True)
class SearchReport(Report):
    """The documents of a query; `notes` are the milliseconds of each step, and what is missing."""

    query: str
    query_layer: int
    document_layer: int
    dim: int
    hits: tuple[dict[str, Any], ...]  # the fields of a `Hit`; a text that is not at hand is None
    tokenise_ms: float
    encode_ms: float
    search_ms: float


def search(request: requests.QueriesRequest) -> Report:
    """Search with a query, or write the run of all queries of a file.

    Raises:
        UserError: both were given or neither, or as `Searcher` does.
    """
    request, topics = requests.at_cut(request, "layer"), request.topics
    if (topics is None) != (request.run_file is None):
        raise UserError("--topics names the queries and --run the file for the run; give both.")
    if request.text and topics is not None:
        raise UserError("A query was given and --topics too; give one of them.")
    if topics is None and not request.text.strip():
        raise UserError('Nothing to search for: give a query, such as: m2dr search "read a file"')
    if request.explain and topics is not None:
        raise UserError("--explain explains the hits of one query; a run file cannot hold it.")
    refuse_same_file("--run", request.run_file, {"--topics": topics, "--corpus": request.corpus})
    queries = read_topics(topics) if topics else None  # before anything is loaded
    searcher = open_searcher(request)
    for line in (searcher.describe, *(f"Warning: {each}" for each in searcher.warnings)):
        say(line)
    if queries is not None and request.run_file:
        run = searcher.run(queries, request.k or DEFAULT_K)
        write_run(run, request.run_file)
        empty = sum(not ranking.docids for ranking in run.rankings.values())
        text = f"{counted(len(run), 'queries')}{f', {empty} without a document' * bool(empty)}"
        text = f"{text}: {request.run_file}"
        return Report(text=text, files=(request.run_file,))
    searcher.search("warm up", k=1)  # so that libraries are loaded before the query that counts
    answer = searcher.search(request.text)
    notes = []
    if not answer.hits:
        if not searcher.vectors([request.text]).any():
            reason = "no word of the query is known at layer 0"
        elif request.min_score is not None:
            reason = f"none reaches --min-score {request.min_score:g}"
        elif request.filter:
            reason = "none fits the filter"
        else:  # by BM25 alone
            reason = "none has a word of the query"
        notes.append(f"No document was found: {reason}.")
    hits, lines = [], []
    for hit in answer.hits:
        row, shown, problem = _row(hit, request.explain)
        hits.append(row)
        lines += shown
        notes = [f"Warning: {problem}"] if problem else notes
    explained = [name for row in hits for name in row.get("explain", ())]
    if explained and all(name[0] == "(" for name in explained):
        notes.append("No word has a share of its own here: the model reads the query as a whole.")
    times = (answer.tokenise_ms, answer.encode_ms, answer.search_ms)
    notes.append("tokenise {:.2f} ms, encode {:.2f} ms, search {:.2f} ms".format(*times))
    cut = (searcher.cut.layer, searcher.documents.layer, searcher.cut.dim)
    return SearchReport(
        request.text, *cut, tuple(hits), *times, text="\n".join(lines), notes=tuple(notes)
    )


def _row(hit: Hit, explain: bool) -> tuple[dict[str, Any], list[str], str]:
    """Return the fields of a hit, its lines, and why its text is missing."""
    row: dict[str, Any] = {"rank": hit.rank, "score": float(hit.score), "docid": hit.docid}
    lines, problem = [f"{hit.rank:>3}  {hit.score:>8.4f}  {hit.docid}"], ""
    if hit.bm25_score is not None:
        row |= {"vector_score": hit.vector_score, "bm25_score": hit.bm25_score}
        by_vectors = "–" if hit.vector_score is None else f"{hit.vector_score:.4f}"
        lines[-1] += f"  (vectors {by_vectors}, BM25 {hit.bm25_score:.2f})"
    try:
        snippet = " ".join(hit.text.split())
        lines.append(f"     {snippet if len(snippet) <= 100 else snippet[:99] + '…'}")
        row |= {"text": hit.text, "fields": hit.fields}
    except UserError as error:
        row |= {"text": None, "fields": {}}
        problem = str(error)
    if explain:
        row["explain"] = shares = hit.explain()
        if any(name[0] != "(" for name in shares):
            lines.append(f"     {', '.join(f'{each} {shares[each]:.4f}' for each in shares)}")
    return row, lines, problem


@dataclass(frozen=True)
class Bm25Report(Report):
    """The run that was written."""

    documents: int
    queries: int

    def __str__(self) -> str:
        return (
            f"{counted(self.queries, 'queries', ',')} over "
            f"{counted(self.documents, 'documents', ',')}, "
            f"{self.seconds:,.0f} s: {self.files[0]}"
        )


@timed
def bm25(request: requests.Bm25Request) -> Bm25Report:
    """Rank the documents by BM25 for all queries, and write the TREC run.

    Raises:
        UserError: corpus or queries cannot be read or are the file of the run, or there is no
            such language.
    """
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
    return Bm25Report(len(index.docids), len(queries), files=(request.run_file,))


@dataclass(frozen=True)
class FuseReport(Report):
    """The run that was written."""

    queries: int
    documents: int  # over all queries


def fuse(request: requests.FuseRequest) -> FuseReport:
    """Fuse the runs by reciprocal ranks, and write the result when all of them are read.

    Raises:
        UserError: a run file cannot be read or is the one to write.
    """
    for path in request.runs:
        refuse_same_file("--out", request.out, {"RUNS": path})
    runs = [read_run(path) for path in request.runs]
    fused = reciprocal_ranks(runs, request.top_k, request.rrf_k)
    write_run(fused, request.out, tag="m2dr-rrf")
    documents = sum(len(ranking.docids) for ranking in fused.rankings.values())
    text = (
        f"{counted(len(fused), 'queries', ',')}, {counted(documents, 'lines', ',')}: {request.out}"
    )
    return FuseReport(len(fused), documents, text=text, files=(request.out,))
