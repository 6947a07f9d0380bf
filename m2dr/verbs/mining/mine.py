"""`m2dr mine`: documents that rank high and do not answer become negatives to train with."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from m2dr.errors import Interrupted, UserError, command, counted, nearest, were
from m2dr.io import aside, locked_file
from m2dr.records.texts import Document, Query
from m2dr.text.collection import Dataset
from m2dr.text.groups import answered, known_positives
from m2dr.text.pairs import split_in
from m2dr.text.tokens import windows
from m2dr.verbs.corpora import open_corpus
from m2dr.verbs.indexing.request import INDEXES
from m2dr.verbs.mining.candidates import Answers, Found, Ranker, WithBm25, WithModel
from m2dr.verbs.progress import progress, say
from m2dr.verbs.searching.search import SearchRequest

BATCH = 256  # queries that are encoded and ranked together

By = Literal["model", "bm25"]

# Why a candidate is no negative, in the order in which it is asked.
FILTERS = {
    "answers": "known answers",
    "own": "own documents",
    "copies": "copies of what ranks before them or answers",  # or without any text
    "skipped": "skipped",
    "margin": "above the margin",
}


@dataclass(frozen=True)
class MineRequest:
    """What `m2dr mine` was asked."""

    out: Path
    corpus: str = "pydocs"
    split: str = "train"
    by: By = "model"  # who ranks
    model: str = ""  # empty: the newest trained one
    layer: int | None = None  # of the queries; None: all of the encoder
    dim: int | None = None  # None: the longest that is built
    depth: int = 100  # how many of the best documents are candidates
    negatives: int = 16  # kept per query, at most
    skip: int = 0  # of the best that are not known to answer: some of them may
    margin: float = 0.95  # share of the answer's score that a negative may have; 0: any score
    queries: int = 0  # the first so many of the split; 0: all
    root: Path = INDEXES
    overwrite: bool = False
    device: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True)
class MineReport:
    """What was written, and what was not."""

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
        """All of it in one line, with the command that trains on it."""
        left_out = f", {self.unreadable:,} without a text left out" if self.unreadable else ""
        mean = self.negatives / max(self.queries, 1)
        dropped = ", ".join(f"{self.dropped[name]:,} {why}" for name, why in FILTERS.items())
        split = split_in(self.out)
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
    """Write a training group for each query with a relevant document, as Tevatron lays them out.

    Raises:
        UserError: what was asked cannot be met, a file is in the way, or there is no such corpus,
            split or index; before the first query.
        Interrupted: Ctrl-C; nothing was written.
    """
    begun = time.monotonic()
    _refuse(request)
    counts: Counter[str] = Counter()
    with locked_file(request.out, "give another --out"):
        _refuse_existing(request)
        dataset = open_corpus(request.corpus)
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
    with aside(request.out) as unfinished, unfinished.open("w", encoding="utf-8") as file:
        try:
            for group in _groups(request, dataset, counts):
                file.write(json.dumps(group, ensure_ascii=False) + "\n")
        except KeyboardInterrupt:
            raise Interrupted(
                f"Mining stopped after {counted(counts['queries'], 'queries')}; nothing was "
                f"written to {request.out}."
            ) from None


def _refuse(request: MineRequest) -> None:
    """Refuse what is wrong whatever the corpus holds."""
    if request.by not in get_args(By):
        raise UserError(f"--with {request.by} ranks nothing. {nearest(request.by, get_args(By))}")
    if request.by == "bm25" and (request.model or request.layer is not None or request.dim):
        raise UserError("--model, --layer and --dim are of a model; leave them out with BM25.")
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
    """The lines of the file, with what they count up to."""
    found = answered(dataset, request.split)
    if found.note:
        say(f"{dataset.name} {request.split}: {found.note}")
    queries, relevant = found.queries, found.relevant
    known = known_positives(queries, relevant)
    queries = queries[: request.queries or None]
    ranker = _ranker(request, dataset, {query.id: known[query.id] for query in queries})
    pairs = (
        pair
        for batch in windows(queries, BATCH)
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


def _ranker(request: MineRequest, dataset: Dataset, known: Answers) -> Ranker:
    if request.by == "bm25":
        return WithBm25(dataset, known, request.depth)
    search = SearchRequest(
        request.corpus,
        request.model,
        query_layer=request.layer,
        dim=request.dim,
        root=request.root,
        device=request.device,
        dtype=request.dtype,
    )
    return WithModel(dataset, known, request.depth, search)


def _negatives(
    request: MineRequest,
    dataset: Dataset,
    query: Query,
    found: Found,
    answers: frozenset[str],
    counts: Counter[str],
) -> list[Document]:
    """The best candidates that pass every filter, the hardest first."""
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
    """The highest score of a negative: what scores almost as the answer does may be one too.

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
    """The documents that hold a text, which a training file cannot do without."""
    documents = (dataset.document(docid) for docid in docids)
    return [document for document in documents if document.content]


def _passage(document: Document) -> dict[str, str]:
    """A document as Tevatron writes it; one of a title alone has it as text: both read the same."""
    title, text = document.title, document.text
    if not text.strip():
        title, text = "", title
    return {"docid": document.id, "title": title, "text": text}
