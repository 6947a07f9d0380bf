"""`m2dr data check`: read a corpus whole, and count what it holds and what is wrong with it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from m2dr.core.errors import counted
from m2dr.core.progress import progress
from m2dr.core.requests import CheckRequest
from m2dr.data.dataset import is_document
from m2dr.data.sentences import open_sentences, paths_of, recognises_sentences
from m2dr.data.tables import columns_of, is_table
from m2dr.tasks.encode_texts import open_corpus


@dataclass(frozen=True)
class TextCounts:
    """Counts of some texts; lengths are in words, 0 where there is no text.

    Attributes:
        empty: texts without a word.
        duplicates: texts that an earlier one equals, compared by 64-bit hash.
        median: length that half of the texts do not exceed, as 95 % of them `share_95`.
    """

    count: int
    empty: int
    duplicates: int
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
    """

    queries: TextCounts
    judgements: int
    relevant: int
    groups: int
    with_negatives: int
    absent_documents: int
    absent_queries: int


@dataclass(frozen=True)
class DataReport:
    """What a corpus holds: documents and splits, or sentences; and a sentence for each fault."""

    name: str
    unit: str  # of the texts: "documents" or "sentences"
    texts: TextCounts
    splits: dict[str, SplitCounts]
    problems: tuple[str, ...] = ()
    pairs: int = 0  # of sentences
    skipped: int = 0  # rows of sentences without a label or of other splits


def check_data(request: CheckRequest) -> DataReport:
    """Read all documents, queries and judgements of a corpus, or all sentences of a file.

    Raises:
        UserError: there is no such data, or something in it is malformed.
    """
    problems: list[str] = []
    if recognises_sentences(request.name):
        # A table of documents has a column of texts too.
        path, *others = paths_of(request.name)
        if others or not is_table(path) or not is_document(columns_of(path)):
            sentences = open_sentences(request.name)
            sides = 2 if sentences.scored else 1
            each = (text for pair in sentences.pairs for text in (pair.first, pair.second)[:sides])
            texts = _counts((("", text) for text in each), "", "sentences", [])
            pairs = len(sentences.pairs) if sentences.scored else 0
            return DataReport(sentences.name, "sentences", texts, {}, (), pairs, sentences.skipped)
    dataset = open_corpus(request.name)
    with progress("Reading", dataset.document_count, "documents") as advance:

        def documents() -> Iterator[tuple[str, str]]:
            for document in dataset.documents():
                yield document.id, document.content
                advance(1)

        texts = _counts(documents(), "", "documents", problems)
    splits = {}
    for split in dataset.splits:
        queries, judgements = dataset.queries(split), dataset.judgements(split)
        where, known = f"{split}: ", {query.id for query in queries}
        relevant = [j for j in judgements if j.relevance > 0]
        absent_documents = [j.document_id for j in judgements if not dataset.holds(j.document_id)]
        absent_queries = [j.query_id for j in judgements if j.query_id not in known]
        counts = _counts(((q.id, q.text) for q in queries), where, "queries", problems)
        absent = "of {} that are not there".format
        _add(problems, absent_documents, where, "judgements", absent("documents"))
        _add(problems, absent_queries, where, "judgements", absent("queries"))
        splits[split] = SplitCounts(
            counts,
            len(judgements),
            len(relevant),
            len(known & {j.query_id for j in relevant if dataset.holds(j.document_id)}),
            len(dataset.negatives(split)),
            len(absent_documents),
            len(absent_queries),
        )
    return DataReport(dataset.name, "documents", texts, splits, tuple(problems))


def tables(report: DataReport) -> list[list[tuple[str, ...]]]:
    """Return the tables of a report: texts with their lengths, and judgements; a row per split."""

    def row(name: str, *numbers: float) -> tuple[str, ...]:
        return name, *(f"{number:,}".removesuffix(".0") for number in numbers)

    texts: list[tuple[str, ...]] = [
        ("", "count", "empty", "duplicates", "median words", "95 %", "longest")
    ]
    judged: list[tuple[str, ...]] = [
        ("", "judgements", "relevant", "groups", "given negatives", "no document", "no query")
    ]
    named = {report.unit: report.texts}
    for split, s in report.splits.items():
        named[f"queries, {split}"] = s.queries
        numbers = (s.judgements, s.relevant, s.groups, s.with_negatives)
        judged.append(row(split, *numbers, s.absent_documents, s.absent_queries))
    for name, t in named.items():
        texts.append(row(name, t.count, t.empty, t.duplicates, t.median, t.share_95, t.longest))
    return [texts, judged] if report.splits else [texts]


def _counts(
    texts: Iterable[tuple[str, str]], where: str, unit: str, problems: list[str]
) -> TextCounts:
    lengths: list[int] = []
    seen: set[int] = set()
    empty: list[str] = []
    duplicates: list[str] = []
    for name, text in texts:
        lengths.append(len(text.split()))
        if not lengths[-1]:
            empty.append(name)
        elif hash(text) in seen:
            duplicates.append(name)
        seen.add(hash(text))
    _add(problems, empty, where, unit, "without a word")
    _add(problems, duplicates, where, unit, "with the text of an earlier one")
    words = np.array(lengths or [0])
    share = float(np.percentile(words, 95, method="inverted_cdf"))
    median, longest = float(np.median(words)), int(words.max())
    return TextCounts(len(lengths), len(empty), len(duplicates), median, share, longest)


def _add(problems: list[str], names: Sequence[str], where: str, unit: str, what: str) -> None:
    if names:
        first = f"the first is {names[0]!r}"
        problems.append(f"{where}{counted(len(names), unit, ',')} {what}; {first}.")
