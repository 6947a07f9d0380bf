"""`m2dr data check`: read a corpus whole, and count what it holds and what is wrong with it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from m2dr.core.errors import counted
from m2dr.core.progress import progress
from m2dr.core.report import Report
from m2dr.core.requests import CheckRequest
from m2dr.data.dataset import Dataset
from m2dr.data.loaders import unread
from m2dr.data.roles import DOCUMENT
from m2dr.data.sentences import Sentences, open_sentences, paths_of, recognises_sentences
from m2dr.data.tables import columns_of, is_table, unread_files
from m2dr.evaluation.grid import aligned
from m2dr.tasks.corpus import open_corpus

SHOWN = 3  # rows


@dataclass(frozen=True)
class DataReport(Report):
    """What a corpus holds.

    Attributes:
        name: of the corpus.
        texts: of documents, of the queries of each split, or of sentences: how many there are, how
            many are empty or repeat an earlier one, and their median and greatest number of words.
        splits: of each split: judgements, those above 0, queries with a relevant document that is
            there (the groups of a training), and queries with given negatives.
        first: the first rows, as they were understood.
        problems: a sentence per kind of fault.
        use: which commands take it.
    """

    name: str
    texts: dict[str, dict[str, int]]
    splits: dict[str, dict[str, int]]
    first: tuple[dict[str, Any], ...]
    problems: tuple[str, ...]
    use: str = ""

    def __str__(self) -> str:
        """Return the tables, the first rows and the problems."""
        parts = [_table(rows) for rows in (self.texts, self.splits) if rows]
        parts.append("\n".join(str(row)[:500] for row in self.first))
        if (given := self.splits.get("train", {}).get("given negatives")) is not None:
            used = f"those given for {counted(given, 'queries', ',')} of train first"
            used = used if given else "all at random, as train gives none"
            parts.append(f"A training draws no negatives unless --negatives says how many: {used}.")
        parts.append("\n".join(self.problems) or f"Nothing is wrong with it{self.use}.")
        return "\n\n".join(parts)


def check_data(request: CheckRequest) -> DataReport:
    """Read all documents, queries and judgements of a corpus, or all sentences of a file.

    Raises:
        UserError: there is no such data, or something in it is malformed.
    """
    report = _checked(request)
    return replace(report, exit_code=int(request.strict and bool(report.problems)))


def _checked(request: CheckRequest) -> DataReport:
    if recognises_sentences(request.corpus):
        path, *others = paths_of(request.corpus)
        # A table of documents has a column of texts too.
        if others or not is_table(path) or not DOCUMENT.has(columns_of(path), "text"):
            left = [file for each in (path, *others) for file in unread_files(each)]
            return _of_sentences(open_sentences(request.corpus), left)
    return _of_corpus(open_corpus(request.corpus))


def _of_sentences(sentences: Sentences, left: Sequence[Path]) -> DataReport:
    sides = 2 if sentences.scored else 1
    texts = (("", text) for pair in sentences.pairs for text in (pair.first, pair.second)[:sides])
    counts = {"sentences": _counts(texts, "sentences", [])}
    first = tuple(asdict(pair) for pair in sentences.pairs[:SHOWN])
    use = " as sentences to train and fit on; it is no corpus to index"
    problems = (unread(sentences.name, left),) if left else ()
    return DataReport(sentences.name, counts, {}, first, problems, use)


def _of_corpus(dataset: Dataset) -> DataReport:
    problems: list[str] = []
    first: list[dict[str, Any]] = []
    with progress("Reading", dataset.document_count, "documents") as advance:

        def documents() -> Iterator[tuple[str, str]]:
            for document in dataset.documents():
                if len(first) < SHOWN:
                    first.append(asdict(document))
                yield document.id, document.content
                advance(1)

        texts, splits = {"documents": _counts(documents(), "documents", problems)}, {}
    if dataset.unread:
        problems.append(unread(dataset.name, dataset.unread))
    for split in dataset.splits:
        queries, judgements = dataset.queries(split), dataset.judgements(split)
        unit, known = f"queries, {split}", {query.id for query in queries}
        texts[unit] = _counts(((query.id, query.text) for query in queries), unit, problems)
        negatives = dataset.negatives(split)
        for query in queries[:SHOWN]:
            judged = {j.document_id: j.relevance for j in judgements if j.query_id == query.id}
            first.append(asdict(query) | {"judged": judged})
            if query.id in negatives:
                first[-1]["negatives"] = negatives[query.id]
        problems += filter(None, [dataset.kept_own(split)])
        there = [j for j in judgements if dataset.holds(j.document_id)]
        gone = {j.document_id for j in judgements} - {j.document_id for j in there}
        for what, ids in (
            ("documents", sorted(gone)),
            ("queries", sorted({j.query_id for j in judgements} - known)),
        ):
            if ids:
                problems.append(
                    f"{split}: {counted(len(ids), what, ',')} of the judgements missing; the "
                    f"first is {ids[0]!r}."
                )
        splits[split] = {
            "judgements": len(judgements),
            "relevant": sum(j.relevance > 0 for j in judgements),
            "groups": len(known & {j.query_id for j in there if j.relevance > 0}),
            "given negatives": len(negatives),
        }
    return DataReport(dataset.name, texts, splits, tuple(first), tuple(problems))


def _counts(texts: Iterable[tuple[str, str]], unit: str, problems: list[str]) -> dict[str, int]:
    lengths, seen = list[int](), set[int]()
    faults: dict[str, list[str]] = {"empty": [], "duplicates": []}
    for name, text in texts:
        lengths.append(len(text.split()))
        if not lengths[-1]:
            faults["empty"].append(name)
        elif hash(text) in seen:
            faults["duplicates"].append(name)
        seen.add(hash(text))
    for what, names in faults.items():
        if names and unit != "sentences":
            problems.append(f"{unit}: {len(names):,} {what}; the first is {names[0]!r}.")
    return {
        "count": len(lengths),
        **{what: len(names) for what, names in faults.items()},
        "median words": int(median(lengths or [0])),
        "longest": max(lengths, default=0),
    }


def _table(rows: dict[str, dict[str, int]]) -> str:
    head = ["", *next(iter(rows.values()))]
    body = [[name, *(f"{number:,}" for number in row.values())] for name, row in rows.items()]
    return "\n".join(aligned([head, *body], left={0}))
