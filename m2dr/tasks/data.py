"""`m2dr data check`: read a corpus whole, and count what it holds and what is wrong with it."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from m2dr.core.errors import counted
from m2dr.core.progress import Advance, progress
from m2dr.core.requests import CheckRequest
from m2dr.data.dataset import Dataset, is_document
from m2dr.data.sentences import open_sentences, paths_of, recognises_sentences
from m2dr.data.tables import columns_of, is_table
from m2dr.data.training_rows import relevant_documents
from m2dr.tasks.encode_texts import open_corpus


@dataclass(frozen=True)
class TextCounts:
    """Counts of some texts; lengths are in words, 0 where there is no text.

    Attributes:
        empty: texts without a word.
        duplicates: texts that an earlier one equals.
        first_empty: id of the first such text; empty for none.
        first_duplicate: as `first_empty`.
        median: length that half of the texts do not exceed, as 95 % of them `share_95`.
    """

    count: int
    empty: int
    duplicates: int
    first_empty: str
    first_duplicate: str
    median: float
    share_95: float
    longest: int


@dataclass(frozen=True)
class SplitCounts:
    """Counts of a split.

    Attributes:
        relevant: judgements above 0.
        groups: queries with a relevant document that the corpus holds, which a training draws.
        with_negatives: queries with given negatives.
        absent_documents: judgements of documents that the corpus does not hold.
        absent_queries: judgements of queries that have no text.
        first_absent_document: id of the first such document; empty for none.
        first_absent_query: as `first_absent_document`.
    """

    queries: TextCounts
    judgements: int
    relevant: int
    groups: int
    with_negatives: int
    absent_documents: int
    absent_queries: int
    first_absent_document: str
    first_absent_query: str


@dataclass(frozen=True)
class DataReport:
    """What a corpus holds: documents and splits, or sentences."""

    name: str
    unit: str  # of the texts: "documents" or "sentences"
    texts: TextCounts
    splits: dict[str, SplitCounts]
    pairs: int = 0  # of sentences
    skipped: int = 0  # rows of sentences without a label or of other splits

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence for each kind of fault found."""
        return tuple(self._problems())

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what is no fault."""
        notes = []
        if self.pairs:
            notes.append(f"{counted(self.pairs, 'pairs', ',')} of sentences with a score.")
        if self.skipped:
            rows = counted(self.skipped, "rows", ",")
            notes.append(f"{rows} without a label, or of another split.")
        return (*notes,) if self.problems else (*notes, "Nothing is wrong with it.")

    def _problems(self) -> Iterator[str]:
        if self.unit == "documents":  # sentences repeat in pairs
            yield from _faults(self.texts, "documents")
        for split, counts in self.splits.items():
            yield from (f"{split}: {fault}" for fault in _faults(counts.queries, "queries"))
            for count, what, first in (
                (counts.absent_documents, "documents", counts.first_absent_document),
                (counts.absent_queries, "queries", counts.first_absent_query),
            ):
                if count:
                    yield (
                        f"{split}: {counted(count, 'judgements', ',')} of {what} that are not "
                        f"there; the first is {first!r}."
                    )


def check_data(request: CheckRequest) -> DataReport:
    """Read all documents, queries and judgements of a corpus, or all sentences of a file.

    Raises:
        UserError: there is no such data, or something in it is malformed.
    """
    if _has_sentences(request.name):
        sentences = open_sentences(request.name)
        halves = slice(0, 2 if sentences.scored else 1)
        each = (text for pair in sentences.pairs for text in (pair.first, pair.second)[halves])
        texts = _counts((str(number), text) for number, text in enumerate(each, start=1))
        pairs = len(sentences.pairs) if sentences.scored else 0
        return DataReport(sentences.name, "sentences", texts, {}, pairs, sentences.skipped)
    dataset = open_corpus(request.name)
    with progress("Reading", dataset.document_count, "documents") as advance:
        texts = _counts(_documents(dataset, advance))
    splits = {split: _split_counts(dataset, split) for split in dataset.splits}
    return DataReport(dataset.name, "documents", texts, splits)


def tables(report: DataReport) -> list[list[tuple[str, ...]]]:
    """Return the tables of a report: texts with their lengths, and judgements; a row per split."""
    named = {report.unit: report.texts}
    named |= {f"queries, {split}": counts.queries for split, counts in report.splits.items()}
    texts = [
        _row(name, c.count, c.empty, c.duplicates, c.median, c.share_95, c.longest)
        for name, c in named.items()
    ]
    judged = [
        _row(
            split, c.judgements, c.relevant, c.groups, c.with_negatives, c.absent_documents,
            c.absent_queries,
        )
        for split, c in report.splits.items()
    ]  # fmt: skip
    texts.insert(0, ("", "count", "empty", "duplicates", "median words", "95 %", "longest"))
    head = ("judgements", "relevant", "groups", "given negatives", "no document", "no query")
    return [texts, [("", *head), *judged]] if judged else [texts]


def _row(name: str, *numbers: float) -> tuple[str, ...]:
    return name, *(f"{number:,}".removesuffix(".0") for number in numbers)


def _has_sentences(name: str) -> bool:
    """Return whether a name is of sentences; a table of documents has a column of texts too."""
    if not recognises_sentences(name):
        return False
    path, *others = paths_of(name)
    return bool(others) or not is_table(path) or not is_document(columns_of(path))


def _documents(dataset: Dataset, advance: Advance) -> Iterator[tuple[str, str]]:
    for document in dataset.documents():
        yield document.id, document.content
        advance(1)


def _split_counts(dataset: Dataset, split: str) -> SplitCounts:
    queries, judgements = dataset.queries(split), dataset.judgements(split)
    known = {query.id for query in queries}
    documents = [each.document_id for each in judgements if not dataset.holds(each.document_id)]
    asked = [each.query_id for each in judgements if each.query_id not in known]
    return SplitCounts(
        _counts((query.id, query.text) for query in queries),
        len(judgements),
        sum(each.relevance > 0 for each in judgements),
        len(known & relevant_documents(dataset, split)[0].keys()),
        len(dataset.negatives(split)),
        len(documents),
        len(asked),
        documents[0] if documents else "",
        asked[0] if asked else "",
    )


def _counts(texts: Iterable[tuple[str, str]]) -> TextCounts:
    """Return the counts of texts with their ids; texts are compared by 64-bit hash."""
    lengths, seen = array("q"), set[int]()
    empty: list[str] = []
    duplicates: list[str] = []
    for name, text in texts:
        words = len(text.split())
        lengths.append(words)
        key = hash(text)
        if not words:
            empty.append(name)
        elif key in seen:
            duplicates.append(name)
        seen.add(key)
    found = np.frombuffer(lengths, dtype=np.int64) if lengths else np.zeros(1, np.int64)
    return TextCounts(
        len(lengths),
        len(empty),
        len(duplicates),
        empty[0] if empty else "",
        duplicates[0] if duplicates else "",
        float(np.median(found)),
        float(np.percentile(found, 95, method="inverted_cdf")),
        int(found.max()),
    )


def _faults(texts: TextCounts, unit: str) -> Iterator[str]:
    for count, what, first in (
        (texts.empty, "without a word", texts.first_empty),
        (texts.duplicates, "with the text of an earlier one", texts.first_duplicate),
    ):
        if count:
            yield f"{counted(count, unit, ',')} {what}; the first is {first!r}."
