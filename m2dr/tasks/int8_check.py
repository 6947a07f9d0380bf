"""Compare a graph of int8 weights with fp32 weights on a sample of a corpus."""

# Shapes in this file:
#   N texts, Q queries, D documents, K dims of the cut.

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError, command
from m2dr.core.records import Document, Judgement, QuantizedCheck, Query, Ranking, Run, Side
from m2dr.data.dataset import Dataset
from m2dr.data.tokens import buckets, pad
from m2dr.evaluate.measures import Evaluator
from m2dr.index.vectors import prefixes
from m2dr.model.tokenizer import tokenize
from m2dr.tasks.encode_texts import embed_tokens, open_corpus

if TYPE_CHECKING:
    from m2dr.model.encoder import Encoder
    from m2dr.model.runtimes import Graph
    from m2dr.model.standalone import CutModel

MEASURE = "nDCG@10"
_QUERIES, _DOCUMENTS = 64, 512  # of a sample at most
_BATCH = 2048  # tokens
_DEPTH = 100  # documents of a ranking
Vectors = NDArray[np.float32]
Embed = Callable[[Sequence[str], Side], Vectors]


@dataclass(frozen=True)
class JudgedSample:
    """Queries of a corpus, the documents judged for them, and others of it."""

    corpus: str
    queries: tuple[Query, ...]
    documents: tuple[Document, ...]
    judgements: tuple[Judgement, ...]


def open_sample(corpus: str) -> JudgedSample:
    """Take a sample of the test split of a corpus, or of the first split that it has.

    Raises:
        UserError: there is no such corpus, or it has no judged queries.
    """
    dataset = open_corpus(corpus)
    if not dataset.splits:
        again = command("export", "MODEL", cut="L4D128", format="onnx", int8=True, corpus="pydocs")
        raise UserError(
            f"The loss of int8 was to be measured on {corpus}, which has no judged queries. Name a "
            f"test collection, or pydocs: {again}"
        )
    split = "test" if dataset.canonical("test") in dataset.splits else dataset.splits[0]
    by_query: dict[str, list[Judgement]] = {}
    for one in dataset.judgements(split):
        if dataset.holds(one.document_id):
            by_query.setdefault(one.query_id, []).append(one)
    judged = [query for query in dataset.queries(split) if query.id in by_query]
    queries = tuple(judged[i] for i in _spread(len(judged), _QUERIES))
    judgements, documents = _with_documents(dataset, queries, by_query)
    return JudgedSample(corpus, queries, documents, judgements)


def _with_documents(
    dataset: Dataset, queries: Sequence[Query], by_query: dict[str, list[Judgement]]
) -> tuple[tuple[Judgement, ...], tuple[Document, ...]]:
    """Return judgements of some queries and their documents, relevant ones first, and others."""
    room = max(_DOCUMENTS // (2 * max(len(queries), 1)), 1)  # documents of a query
    chosen = [
        one
        for query in queries
        for one in sorted(by_query[query.id], key=lambda one: -one.relevance)[:room]
    ]
    judged = dict.fromkeys(one.document_id for one in chosen)
    others = _spread(dataset.document_count, max(_DOCUMENTS - len(judged), 0))
    rows = {document.id: document for document in map(dataset.document_at, others)}
    found = {name: dataset.document(name) for name in judged} | rows
    return tuple(chosen), tuple(found.values())


def _spread(count: int, most: int) -> list[int]:
    kept = min(count, most)
    return [i * count // kept for i in range(kept)]


def compare(
    sample: JudgedSample, made: "CutModel", exact: "Encoder", graph: "Graph", full: "Encoder | None"
) -> QuantizedCheck:
    """Return what int8 weights change in vectors and in rankings.

    Args:
        sample: to encode and rank.
        made: the cut.
        exact: its encoder with fp32 weights.
        graph: with int8 weights.
        full: the encoder of the full model, where documents are its own; else the cut's.
    """

    def by_torch(encoder: "Encoder") -> Embed:
        return lambda texts, side: _by_torch(made, encoder, texts, side)

    queries, documents = (
        [query.text for query in sample.queries],
        [document.content for document in sample.documents],
    )
    mine = _by_graph(made, graph, queries, "query")
    theirs = _by_torch(made, exact, queries, "query")
    found = by_torch(full or exact)(documents, "document")
    other = found if full is not None else _by_graph(made, graph, documents, "document")
    cosines = _cosines(mine, theirs)
    if full is None:
        cosines = np.concatenate([cosines, _cosines(other, found)])
    evaluator = Evaluator(sample.judgements, (MEASURE,))

    def measured(left: Vectors, right: Vectors) -> float:
        return evaluator.scores(_run(sample, left @ right.T)).mean[MEASURE]

    return QuantizedCheck(
        corpus=sample.corpus,
        queries=len(queries),
        documents=len(documents),
        cosine=float(cosines.mean()),
        lowest=float(cosines.min()),
        measure=MEASURE,
        value=measured(mine, other),
        fp32=measured(theirs, found),
    )


def _run(sample: JudgedSample, scores: Vectors) -> Run:
    names = [document.id for document in sample.documents]
    rows = zip(sample.queries, scores, strict=True)
    return Run({query.id: Ranking.of(names, row.tolist(), _DEPTH) for query, row in rows})


def _cosines(left: Vectors, right: Vectors) -> Vectors:
    dim = left.shape[1]
    units = [prefixes(one, dim, "cosine") for one in (left, right)]
    found: Vectors = (units[0] * units[1]).sum(axis=1)
    return found


def _by_torch(made: "CutModel", encoder: "Encoder", texts: Sequence[str], side: Side) -> Vectors:
    """Return the vectors of texts in fp32, [N, K]."""
    rows = tokenize(made.parent, made.tokenizer, texts, side)
    found = embed_tokens(encoder, rows, made.tokenizer.pad_id, [encoder.layers])[0]
    return prefixes(found, made.cut.dim, made.card.similarity)


def _by_graph(made: "CutModel", graph: "Graph", texts: Sequence[str], side: Side) -> Vectors:
    """Return the vectors of texts by a graph, [N, K]."""
    rows = tokenize(made.parent, made.tokenizer, texts, side)
    found = np.empty((len(rows), made.cut.dim), np.float32)
    for chosen in buckets([len(row) for row in rows], _BATCH):
        ids, mask = pad([rows[number] for number in chosen], made.tokenizer.pad_id)
        found[chosen] = graph.run(ids, mask)
    return prefixes(found, made.cut.dim, made.card.similarity)
