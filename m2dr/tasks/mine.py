"""`m2dr mine`: find hard negatives, documents that rank high and are not relevant."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol, get_args

import numpy as np

from m2dr.core.errors import Interrupted, UserError, command, counted, nearest, were
from m2dr.core.files import atomic_path, lock_file
from m2dr.core.progress import progress, say
from m2dr.core.records import Cut, Document, ModelCard, Query, Ranking
from m2dr.core.requests import (
    IndexRequest,
    MineRequest,
    Retriever,
    SearchRequest,
    index_command,
)
from m2dr.data.dataset import Dataset
from m2dr.data.tables import split_in
from m2dr.data.tokens import batched
from m2dr.data.training_rows import answered_queries, known_positives
from m2dr.index.bm25 import Bm25
from m2dr.index.faiss import FaissIndex
from m2dr.index.faiss_build import open_index
from m2dr.index.layout import STORE, built_dims, index_folder, store_folder, store_remedy
from m2dr.index.manifest import StoreManifest
from m2dr.index.store import open_store
from m2dr.index.vectors import prefixes
from m2dr.model import checkpoint
from m2dr.model.checkpoint import read_card
from m2dr.model.devices import choose_device, choose_dtype
from m2dr.tasks.encode_texts import embed_texts, open_corpus
from m2dr.tasks.encoder import document_layer, label_of, newest_model

Answers = Mapping[str, frozenset[str]]  # query id → docids known to answer it, one at least
BATCH = 256  # queries that are encoded and ranked together

# Why a candidate is no negative, in the order in which it is asked.
FILTERS = {
    "answers": "known answers",
    "own": "own documents",
    "copies": "copies of what ranks before them or answers",  # or without any text
    "skipped": "skipped",
    "margin": "above the margin",
}


class RankedAnswers(NamedTuple):
    """The ranking of a query, and the score of the best of its known answers."""

    ranking: Ranking
    answer: float


class NegativeRanker(Protocol):
    """A way to find candidates."""

    def rank(self, queries: Sequence[Query]) -> Iterator[RankedAnswers]:
        """Return the candidates of each query, in the order of the queries."""


class Bm25Negatives:
    """Candidates by BM25, indexed in memory."""

    def __init__(self, dataset: Dataset, known: Answers, depth: int) -> None:
        self._depth, self._known = depth, known
        with progress("Reading", dataset.document_count, "documents") as advance:
            self._bm25 = Bm25(dataset.documents(), advance)
        self._rows = _rows(self._bm25.docids, known, "by the same command")

    def rank(self, queries: Sequence[Query]) -> Iterator[RankedAnswers]:
        """Score all documents, one query at a time."""
        for query in queries:
            scores = self._bm25.scores(query.text)
            rows = [self._rows[docid] for docid in self._known[query.id]]
            yield RankedAnswers(self._bm25.rank(scores, self._depth), float(scores[rows].max()))


class ModelNegatives:
    """Candidates by a model's own index."""

    def __init__(
        self, dataset: Dataset, known: Answers, depth: int, request: SearchRequest
    ) -> None:
        model = request.model or newest_model()
        card = read_card(model)
        self._layer = card.layers if request.query_layer is None else request.query_layer
        card.check(Cut(self._layer, request.dim or 1), model)
        self._index, store = _open_index(request, dataset.name, model, card, self._layer)
        cut = Cut(self._layer, self._index.manifest.dim)
        self._index.accept(label_of(card, model), cut)
        self._store = open_store(store)
        self._depth, self._known = depth, known
        self._rows = _rows(self._store.docids, known, store_remedy(store, overwrite=True))
        device = choose_device(request.device)
        dtype = choose_dtype(request.dtype, device)
        self._encoder, self._tokenizer = checkpoint.load(model, self._layer, device, dtype)
        say(f"Mining {dataset.name} with queries at {cut} of {model} on {device.type}, {dtype}")
        for warning in self._index.warnings(cut):
            say(f"Warning: {warning}")

    def rank(self, queries: Sequence[Query]) -> Iterator[RankedAnswers]:
        """Encode and search all queries at once."""
        ids, texts = [query.id for query in queries], [query.text for query in queries]
        vectors = embed_texts(self._encoder, self._tokenizer, texts, "query", [self._layer])[0]
        run = self._index.ranked(ids, vectors, self._depth)
        for name, vector in zip(ids, self._index.prepare(vectors), strict=True):
            rows = [self._rows[docid] for docid in sorted(self._known[name])]
            # From the store, whatever the engine keeps of a vector; summed in float64 and rounded
            # as the ranking's scores are, so that the two compare.
            manifest = self._index.manifest
            answers = prefixes(self._store.rows(rows), manifest.dim, manifest.similarity)
            scores = answers.astype(np.float64) @ vector.astype(np.float64)
            yield RankedAnswers(run.rankings[name], float(np.float32(scores.max())))


def _open_index(
    request: SearchRequest, corpus: str, model: str, card: ModelCard, layer: int
) -> tuple[FaissIndex, Path]:
    """Open the index that queries of a layer were trained to search; return it and its folder."""
    layer = document_layer(card, layer)
    store = store_folder(request.root, corpus, card.fingerprint, layer)
    built = built_dims(store)
    dim = request.dim or max(built, default=card.width)
    if dim not in built:
        there = f" Built are dims {', '.join(map(str, built))}." if built else ""
        asked = IndexRequest(
            request.corpus,
            model,
            dims=(dim,),
            layers=(layer,),
            root=request.root,
            device=request.device,
            dtype=request.dtype,
            store=StoreManifest.read(store).dtype if (store / STORE).exists() else "f16",
        )
        raise UserError(
            f"There is no index of {corpus} by {model} at layer {layer} and dim {dim} in "
            f"{request.root}/.{there} Build it with: {index_command(asked)}"
        )
    return open_index(index_folder(store, dim)), store


def _rows(docids: Sequence[str], known: Answers, remedy: str) -> dict[str, int]:
    """Return the rows of the known answers."""
    wanted: Set[str] = frozenset().union(*known.values())
    rows = {docid: row for row, docid in enumerate(docids) if docid in wanted}
    if len(rows) < len(wanted):
        raise UserError(
            f"Document {min(wanted - rows.keys())!r} answers a query, and the index does not hold "
            f"it: the corpus has changed. Encode it again {remedy}"
        )
    return rows


@dataclass(frozen=True)
class MineReport:
    """Counts of what was written and of what was left out."""

    out: Path
    asked: int  # negatives per query
    queries: int  # written
    bare: int  # of these, those without a negative
    unreadable: int  # queries left out: they, or all their answers, hold no text
    negatives: int  # in all
    dropped: Mapping[str, int]  # by name in FILTERS; what ranks below the last one kept is not seen
    seconds: float

    @property
    def line(self) -> str:
        """Return the report in one line, with the command that trains on the file."""
        left_out = f", {self.unreadable:,} without a text left out" if self.unreadable else ""
        mean = self.negatives / max(self.queries, 1)
        dropped = ", ".join(f"{self.dropped[name]:,} {why}" for name, why in FILTERS.items())
        split = split_in(self.out.name)
        next_one = command(
            "train",
            corpus=self.out,
            negatives=self.asked,
            set="" if split == "train" else f"split={split}",
        )
        return (
            f"{counted(self.queries, 'queries', ',')}{left_out}, {mean:.2f} negatives each "
            f"({self.bare:,} have none) in {self.seconds:,.0f} s; candidates dropped: {dropped}; "
            f"{self.out}. Next: {next_one}"
        )


def mine(request: MineRequest) -> MineReport:
    """Write a training group per query with a relevant document, in Tevatron's layout.

    Raises:
        UserError: what was asked cannot be met, a file is in the way, or there is no such corpus,
            split or index; before the first query.
        Interrupted: Ctrl-C; nothing was written.
    """
    begun = time.monotonic()
    _refuse(request)
    counts: Counter[str] = Counter()
    with lock_file(request.out):
        _refuse_existing(request)
        dataset = open_corpus(request.corpus)
        if request.retriever == "model":
            request = replace(request, model=request.model or newest_model())
        _write(request, dataset, counts)
    return MineReport(
        request.out,
        request.negatives,
        counts["queries"],
        counts["bare"],
        counts["unreadable"],
        counts["negatives"],
        {name: counts[name] for name in FILTERS},
        time.monotonic() - begun,
    )


def _write(request: MineRequest, dataset: Dataset, counts: Counter[str]) -> None:
    with atomic_path(request.out) as unfinished, unfinished.open("w", encoding="utf-8") as file:
        try:
            for group in _groups(request, dataset, counts):
                file.write(json.dumps(group, ensure_ascii=False) + "\n")
        except KeyboardInterrupt:
            raise Interrupted(
                f"Mining stopped after {counted(counts['queries'], 'queries')}; nothing was "
                f"written to {request.out}."
            ) from None


def _refuse(request: MineRequest) -> None:
    """Check the request as far as no corpus is needed."""
    if request.retriever not in get_args(Retriever):
        raise UserError(
            f"--retriever {request.retriever} ranks nothing. "
            f"{nearest(request.retriever, get_args(Retriever))}"
        )
    if request.retriever == "bm25" and (
        request.model or request.query_layer is not None or request.dim
    ):
        raise UserError(
            "--model, --query-layer and --dim are of a model; leave them out with BM25."
        )
    if not 0 <= request.margin <= 1:
        raise UserError(
            f"--margin {request.margin:g} was asked for; it is the share of its answer's score "
            "that a negative may have, from above 0 to 1, or 0 for any score."
        )
    left = request.depth - request.skip
    if not 1 <= request.negatives <= left:
        raise UserError(
            f"{counted(request.negatives, 'negatives')} per query {were(request.negatives)} asked "
            f"for; --depth {request.depth} "
            f"less --skip {request.skip} leaves {counted(left, 'candidates')}. Raise --depth."
        )
    if request.out.suffix != ".jsonl":
        raise UserError(f"--out {request.out} must end in .jsonl, by which m2dr train knows it.")
    _refuse_existing(request)


def _refuse_existing(request: MineRequest) -> None:
    if request.out.is_file() and not request.overwrite:
        raise UserError(f"{request.out} exists; choose another --out, or --overwrite it.")


def _groups(
    request: MineRequest, dataset: Dataset, counts: Counter[str]
) -> Iterator[dict[str, object]]:
    """Yield the lines of the file; count them in the report."""
    found = answered_queries(dataset, request.split)
    if found.note:
        say(f"{dataset.name} {request.split}: {found.note}")
    queries, relevant = found.queries, found.relevant
    known = known_positives(queries, relevant)
    queries = queries[: request.queries or None]
    ranker = _ranker(request, dataset, {query.id: known[query.id] for query in queries})
    pairs = (
        pair
        for batch in batched(queries, BATCH)
        for pair in zip(batch, ranker.rank(batch), strict=True)
    )
    with progress("Mining", len(queries), "queries") as advance:
        for query, candidates in pairs:
            advance(1)
            positives = _readable(dataset, relevant[query.id])
            if not query.text.strip() or not positives:
                counts["unreadable"] += 1
                continue
            negatives = _negatives(request, dataset, query, candidates, known[query.id], counts)
            counts.update(queries=1, negatives=len(negatives), bare=not negatives)
            yield {
                "query_id": query.id,
                "query": query.text,
                "positive_passages": [_passage(document) for document in positives],
                "negative_passages": [_passage(document) for document in negatives],
            }


def _ranker(request: MineRequest, dataset: Dataset, known: Answers) -> NegativeRanker:
    if request.retriever == "bm25":
        return Bm25Negatives(dataset, known, request.depth)
    search = SearchRequest(
        request.corpus,
        request.model,
        query_layer=request.query_layer,
        dim=request.dim,
        root=request.root,
        device=request.device,
        dtype=request.dtype,
    )
    return ModelNegatives(dataset, known, request.depth, search)


def _negatives(
    request: MineRequest,
    dataset: Dataset,
    query: Query,
    found: RankedAnswers,
    answers: frozenset[str],
    counts: Counter[str],
) -> list[Document]:
    """Return the best candidates that pass every filter, hardest first."""
    own = query.id if dataset.drops_own_document else None
    texts = {"", *(dataset.document(docid).content for docid in answers)}
    most = highest(found.answer, request.margin)
    kept: list[Document] = []
    skipped = 0
    for docid, score in zip(found.ranking.docids, found.ranking.scores, strict=True):
        document = dataset.document(docid)
        passes = {
            "answers": docid not in answers,
            "own": docid != own,
            "copies": document.content not in texts,
            "skipped": skipped == request.skip,
            "margin": score <= most,
        }
        failed = next((name for name, passed in passes.items() if not passed), None)
        if failed in (None, "skipped"):
            texts.add(document.content)
        if failed:
            counts[failed] += 1
            skipped += failed == "skipped"
        else:
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


def _readable(dataset: Dataset, docids: Sequence[str]) -> list[Document]:
    """Return the documents that have a text."""
    documents = (dataset.document(docid) for docid in docids)
    return [document for document in documents if document.content]


def _passage(document: Document) -> dict[str, str]:
    """Return a document in Tevatron's layout; a title without text becomes the text."""
    title, text = document.title, document.text
    if not text.strip():
        title, text = "", title
    return {"docid": document.id, "title": title, "text": text}
