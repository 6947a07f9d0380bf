"""`m2dr data check`: read a corpus whole, and count what it holds and what is wrong with it."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from m2dr.core.errors import counted
from m2dr.core.progress import progress
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
        duplicates: texts that an earlier one equals, compared by 64-bit hash.
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
        """A sentence for each kind of fault."""
        texts = {"": self.texts} if self.unit == "documents" else {}  # sentences repeat in pairs
        texts |= {f"{split}: ": counts.queries for split, counts in self.splits.items()}
        faults = []
        for where, t in texts.items():
            unit = "queries" if where else "documents"
            faults += [
                (where, t.empty, unit, "without a word", t.first_empty),
                (where, t.duplicates, unit, "with the text of an earlier one", t.first_duplicate),
            ]
        for split, s in self.splits.items():
            of, where = "of {} that are not there", f"{split}: "
            documents, queries = of.format("documents"), of.format("queries")
            faults += [
                (where, s.absent_documents, "judgements", documents, s.first_absent_document),
                (where, s.absent_queries, "judgements", queries, s.first_absent_query),
            ]
        return tuple(
            f"{where}{counted(count, unit, ',')} {what}; the first is {first!r}."
            for where, count, unit, what, first in sorted(faults, key=lambda fault: fault[0])
            if count
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what is no fault."""
        rows = f"{counted(self.skipped, 'rows', ',')} without a label, or of another split."
        notes = {
            f"{counted(self.pairs, 'pairs', ',')} of sentences with a score.": self.pairs,
            rows: self.skipped,
            "Nothing is wrong with it.": not self.problems,
        }
        return tuple(note for note, applies in notes.items() if applies)


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

        def documents() -> Iterator[tuple[str, str]]:
            for document in dataset.documents():
                yield document.id, document.content
                advance(1)

        texts = _counts(documents())
    splits = {split: _split_counts(dataset, split) for split in dataset.splits}
    return DataReport(dataset.name, "documents", texts, splits)


def tables(report: DataReport) -> list[list[tuple[str, ...]]]:
    """Return the tables of a report: texts with their lengths, and judgements; a row per split."""

    def row(name: str, *numbers: float) -> tuple[str, ...]:
        return name, *(f"{number:,}".removesuffix(".0") for number in numbers)

    named = {report.unit: report.texts}
    named |= {f"queries, {split}": counts.queries for split, counts in report.splits.items()}
    texts: list[tuple[str, ...]] = [
        ("", "count", "empty", "duplicates", "median words", "95 %", "longest")
    ]
    for name, t in named.items():
        texts.append(row(name, t.count, t.empty, t.duplicates, t.median, t.share_95, t.longest))
    judged: list[tuple[str, ...]] = [
        ("", "judgements", "relevant", "groups", "given negatives", "no document", "no query")
    ]
    for split, s in report.splits.items():
        numbers = (s.judgements, s.relevant, s.groups, s.with_negatives)
        judged.append(row(split, *numbers, s.absent_documents, s.absent_queries))
    return [texts, judged] if report.splits else [texts]


def _has_sentences(name: str) -> bool:
    """Return whether a name is of sentences; a table of documents has a column of texts too."""
    if not recognises_sentences(name):
        return False
    path, *others = paths_of(name)
    return bool(others) or not is_table(path) or not is_document(columns_of(path))


def _split_counts(dataset: Dataset, split: str) -> SplitCounts:
    queries, judgements = dataset.queries(split), dataset.judgements(split)
    known = {query.id for query in queries}
    documents = [j.document_id for j in judgements if not dataset.holds(j.document_id)]
    absent = [j.query_id for j in judgements if j.query_id not in known]
    return SplitCounts(
        _counts((query.id, query.text) for query in queries),
        len(judgements),
        sum(judgement.relevance > 0 for judgement in judgements),
        len(known & relevant_documents(dataset, split)[0].keys()),
        len(dataset.negatives(split)),
        len(documents),
        len(absent),
        next(iter(documents), ""),
        next(iter(absent), ""),
    )


def _counts(texts: Iterable[tuple[str, str]]) -> TextCounts:
    lengths, seen = array("q"), set[int]()
    empty: list[str] = []
    duplicates: list[str] = []
    for name, text in texts:
        words = len(text.split())
        lengths.append(words)
        if not words:
            empty.append(name)
        elif hash(text) in seen:
            duplicates.append(name)
        seen.add(hash(text))
    words_of = np.frombuffer(lengths, dtype=np.int64) if lengths else np.zeros(1, np.int64)
    return TextCounts(
        len(lengths),
        len(empty),
        len(duplicates),
        next(iter(empty), ""),
        next(iter(duplicates), ""),
        float(np.median(words_of)),
        float(np.percentile(words_of, 95, method="inverted_cdf")),
        int(words_of.max()),
    )
