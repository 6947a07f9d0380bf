"""`m2dr mine`: find hard negatives, documents that rank high and are not relevant."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from m2dr.core.errors import UserError, counted
from m2dr.core.files import atomic_path, lock_file
from m2dr.core.progress import progress
from m2dr.core.records import Cut, Document, Query, Ranking
from m2dr.core.report import Report, timed
from m2dr.core.requests import MineRequest, QueryOptions
from m2dr.data.dataset import Dataset
from m2dr.data.training_rows import answered_queries
from m2dr.index.bm25 import Bm25
from m2dr.index.faiss import open_faiss
from m2dr.index.folder import IndexFolder
from m2dr.index.vectors import prefixes
from m2dr.model.checkpoint import open_model
from m2dr.model.tokens import batched
from m2dr.tasks.corpus import model_for, open_corpus, options_of
from m2dr.tasks.query import open_queries, plan_query

Answers = Mapping[str, frozenset[str]]  # query id → docids known to answer it, one at least
# Queries to their rankings, each with the score of the best of its known answers.
RankQueries = Callable[[Sequence[Query]], Iterator[tuple[Ranking, float]]]
QUERY_BATCH = 256  # queries that are encoded and ranked together


@dataclass(frozen=True)
class MineReport(Report):
    """Counts of what was written and of what was left out."""

    queries: int  # written
    bare: int  # of these, those without a negative
    negatives: int  # in all

    def __str__(self) -> str:
        mean = self.negatives / max(self.queries, 1)
        return (
            f"{counted(self.queries, 'queries', ',')}, {mean:.2f} negatives each "
            f"({self.bare:,} have none) in {self.seconds:,.0f} s; {self.files[0]}"
        )


@timed
def mine(request: MineRequest) -> MineReport:
    """Write a training group per query with a relevant document, in Tevatron's layout.

    Raises:
        UserError: what was asked cannot be met, a file is in the way, or there is no such corpus,
            split or index; before the first query.
    """
    if request.retriever == "bm25" and (
        request.model or request.query_layer is not None or request.dim
    ):
        raise UserError("--model, --query-layer and --dim do not go with BM25; leave them out.")
    if request.out.suffix != ".jsonl":
        raise UserError(f"--out {request.out} must end in .jsonl, by which m2dr train knows it.")
    if request.out.is_file() and not request.overwrite:
        raise UserError(f"{request.out} exists; choose another --out, or --overwrite it.")
    counts: list[int] = []  # negatives of each query
    with lock_file(request.out):
        dataset = open_corpus(request.corpus)
        with atomic_path(request.out) as unfinished, unfinished.open("w", encoding="utf-8") as file:
            for group, negatives in _groups(request, dataset):
                file.write(json.dumps(group, ensure_ascii=False) + "\n")
                counts.append(negatives)
    return MineReport(len(counts), counts.count(0), sum(counts), files=(request.out,))


def _groups(request: MineRequest, dataset: Dataset) -> Iterator[tuple[dict[str, object], int]]:
    """Yield the lines of the file, and the number of negatives of each.

    A query without a text, or whose answers have none, is left out.
    """
    queries, relevant, known, barred = answered_queries(dataset, request.split)
    queries = queries[: request.queries or None]
    asked = {query.id: known[query.id] for query in queries}
    # What is barred of a query is no candidate, and may take every place of a short ranking.
    most_barred = max((len(barred[query.id]) for query in queries), default=0)
    deeper = replace(request, depth=request.depth + most_barred)
    ranker = {"bm25": _by_bm25, "model": _by_model}[request.retriever](deeper, dataset, asked)
    with progress("Mining", len(queries), "queries") as advance:
        for batch in batched(queries, QUERY_BATCH):
            for query, (ranking, answer) in zip(batch, ranker(batch), strict=True):
                advance(1)
                documents = (dataset.document(docid) for docid in relevant[query.id])
                positives = [document for document in documents if document.content]
                if not query.text.strip() or not positives:
                    continue
                most = highest(answer, request.margin)
                negatives = _negatives(request, dataset, query, ranking, most, barred[query.id])
                group: dict[str, object] = {
                    "query_id": query.id,
                    "query": query.text,
                    "positive_passages": [_passage(document) for document in positives],
                    "negative_passages": [_passage(document) for document in negatives],
                }
                yield group, len(negatives)


def _by_bm25(request: MineRequest, dataset: Dataset, known: Answers) -> RankQueries:
    """Rank by BM25, indexed in memory."""
    with progress("Reading", dataset.document_count, "documents") as advance:
        bm25 = Bm25.of(dataset.documents(), advance)
    rows_of = _rows(bm25.docids, known)

    def rank(queries: Sequence[Query]) -> Iterator[tuple[Ranking, float]]:
        for query in queries:
            scores = bm25.scores(query.text)
            rows = [rows_of[docid] for docid in known[query.id]]
            yield bm25.rank(scores, request.depth), float(scores[rows].max())

    return rank


def _by_model(request: MineRequest, dataset: Dataset, known: Answers) -> RankQueries:
    """Rank by a model's own index."""
    model = open_model(request.model or model_for(dataset.name, request.root))
    card = model.card
    index_of = IndexFolder.of(request.root, dataset.name, card.fingerprint)
    layer = card.layers if request.query_layer is None else request.query_layer
    plan = plan_query(QueryOptions(), model, index_of, layer)
    card.check(Cut(card.layers, request.dim or 1))
    source = plan.document_layer
    built = index_of.dims(source)
    dim = request.dim or max(built, default=card.width)
    if dim not in built:
        raise UserError(
            f"{index_of.layer(source)} has no flat index of dim {dim}; m2dr index corpus "
            f"{options_of(request.corpus, model.name, request.root)} --layer {source} --dim {dim} "
            "builds it."
        )
    index, store = open_faiss(index_of.engine(source, dim)), index_of.store(source)
    cut = Cut(layer, dim)
    index.accept(model.label(), cut)
    rows_of = _rows(store.docids, known)
    encoder = open_queries(plan, "torch", request.device, request.dtype)

    def rank(queries: Sequence[Query]) -> Iterator[tuple[Ranking, float]]:
        ids, texts = [query.id for query in queries], [query.text for query in queries]
        vectors = encoder.encode(texts)
        run, similarity = index.ranked(ids, vectors, request.depth), index.manifest.similarity
        for name, vector in zip(ids, prefixes(vectors, dim, similarity), strict=True):
            rows = [rows_of[docid] for docid in sorted(known[name])]
            # From the store, whatever the engine keeps of a vector; summed in float64 and rounded
            # as the ranking's scores are, so that the two compare.
            answers = prefixes(store.rows(rows), dim, similarity)
            scores = answers.astype(np.float64) @ vector.astype(np.float64)
            yield run.rankings[name], float(np.float32(scores.max()))

    return rank


def _rows(docids: Sequence[str], known: Answers) -> dict[str, int]:
    """Return the rows of the known answers."""
    wanted = {docid for answers in known.values() for docid in answers}
    rows = {docid: row for row, docid in enumerate(docids) if docid in wanted}
    if len(rows) < len(wanted):
        gone = min(wanted - rows.keys())
        raise UserError(f"Document {gone!r} answers a query, and the index does not hold it.")
    return rows


def _negatives(
    request: MineRequest,
    dataset: Dataset,
    query: Query,
    ranking: Ranking,
    most: float,
    barred: frozenset[str],
) -> list[Document]:
    """Return the best candidates that pass every filter, hardest first."""
    texts = {"", query.text, *(dataset.document(docid).content for docid in barred)}
    kept: list[Document] = []
    skipped = 0
    ranked = zip(ranking.docids, ranking.scores, strict=True)
    candidates = ((docid, score) for docid, score in ranked if docid not in barred)
    for docid, score in islice(candidates, request.depth):
        document = dataset.document(docid)
        if document.content in texts:
            continue
        if skipped < request.skip:
            texts.add(document.content)
            skipped += 1
        elif score <= most:
            texts.add(document.content)
            kept.append(document)
        if len(kept) == request.negatives:
            break
    return kept


def highest(answer: float, margin: float) -> float:
    """Return the highest score that a negative may have, given the score of the answer.

    TopK-PercPos of NV-Retriever (arXiv:2407.15831): a share of the answer's score. Of one below 0,
    as far below it as it would be of one above.

    Args:
        answer: the answer's score.
        margin: the share; 0 lets every score pass.

    >>> highest(10.0, 0.95), highest(-10.0, 0.95), highest(10.0, 0)
    (9.5, -10.5, inf)
    """
    return answer - (1 - margin) * abs(answer) if margin else float("inf")


def _passage(document: Document) -> dict[str, str]:
    """Return a document in Tevatron's layout; a title without text becomes the text."""
    title, text = document.title, document.text
    if not text.strip():
        title, text = "", title
    return {"docid": document.id, "title": title, "text": text}
