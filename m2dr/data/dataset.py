"""The data set that the rest of m2dr sees, whatever its files look like."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Protocol

from m2dr.core.errors import UserError, nearest
from m2dr.core.records import Document, Judgement, Query
from m2dr.data.readers import IdTable, Line, LineTable, is_gzipped, refuse_repeat, suffix_of
from m2dr.data.tables import SCALARS, ArrowTable, is_arrow, read_records

# Given negatives kept per query. A group draws some ten of them, and official files give up to a
# thousand: 400 million ids, more than fit in memory.
NEGATIVES_KEPT = 64
# The queries of ArguAna and Quora are themselves documents of the corpus, under the same ids; BEIR
# leaves those out of the ranking. Elsewhere an equal id is chance, and dropping would lose answers.
_DROP_OWN_DOCUMENT = {"arguana", "quora"}

# Columns of a document, in rows: of several names of one thing a row may have one.
DOCUMENT_IDS = ("_id", "id", "docid", "document_id")
DOCUMENT_TEXTS = ("text", "contents")
DOCUMENT_COLUMNS = (*DOCUMENT_IDS, "title", *DOCUMENT_TEXTS)

Parse = Callable[[Line], Document]
ReadLines = Callable[[Path], Iterator[Line]]
JudgedQueries = tuple[list[Query], list[Judgement]]  # the queries in file order, the judgements
Negatives = Mapping[str, tuple[str, ...]]  # query id → docids given as not relevant


class Corpus(Protocol):
    """Documents in a fixed order, each with an id of its own."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Document]: ...

    def __contains__(self, docid: str) -> bool: ...

    def with_fields(self) -> Iterator[Document]:
        """Return an iterator over all documents with fields, which others may lack."""
        ...

    def at(self, row: int) -> Document:
        """Return the document of a row, counted from 0."""
        ...

    def find(self, docid: str) -> Document:
        """Return the document of an id; raise KeyError when there is none."""
        ...


class TeacherScore(NamedTuple):
    """How well a document answers a query, by a teacher such as a cross-encoder."""

    line: Line  # where the score was read
    query_id: str
    docid: str
    value: float
    # The docid of the positive that this score is relative to, as a margin is; empty where scores
    # of one query compare with each other.
    origin: str = ""


@dataclass(frozen=True)
class Split:
    """The functions that read one split; each is called when its result is first wanted."""

    read: Callable[[], JudgedQueries]
    negatives: Callable[[], Negatives] = dict
    scores: Callable[[], Iterable[TeacherScore]] = tuple


class Dataset:
    """A corpus and, per split, queries with their judgements, given negatives and teacher scores.

    Args:
        name: short, fit to name a folder.
        corpus: the documents.
        splits: those with judgements, by name.
        aliases: other names of a split.
    """

    def __init__(
        self,
        name: str,
        corpus: Corpus,
        splits: Mapping[str, Split],
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._corpus = corpus
        self._splits = splits
        self._aliases = aliases or {}
        self._judged: dict[str, JudgedQueries] = {}
        self._negatives: dict[str, Negatives] = {}

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have judgements."""
        return tuple(self._splits)

    @property
    def drops_own_document(self) -> bool:
        """Whether the document with the query's own id is left out of its ranking."""
        return not _DROP_OWN_DOCUMENT.isdisjoint(self.name.lower().split("-"))

    @property
    def document_count(self) -> int:
        """Number of documents; the first use checks all of them."""
        return len(self._corpus)

    def with_corpus(self, corpus: Corpus) -> "Dataset":
        """Return a dataset of other documents with the same queries and judgements."""
        return Dataset(self.name, corpus, self._splits, self._aliases)

    def documents(self) -> Iterator[Document]:
        """Return an iterator over all documents, in file order."""
        return iter(self._corpus)

    def documents_with_fields(self) -> Iterator[Document]:
        """Return an iterator over all documents, in file order, each with its own fields."""
        return self._corpus.with_fields()

    def document_ids(self) -> Iterator[str]:
        """Return an iterator over all docids, in file order."""
        return (document.id for document in self._corpus)

    def document_at(self, row: int) -> Document:
        """Return the document of a row of the file, counted from 0."""
        return self._corpus.at(row)

    def holds(self, docid: str) -> bool:
        """Return whether there is a document of this id."""
        return docid in self._corpus

    def document(self, docid: str) -> Document:
        """Return the document of an id; raise UserError when there is none."""
        try:
            return self._corpus.find(docid)
        except KeyError:
            raise UserError(f"{self.name} holds no document {docid!r}.") from None

    def queries(self, split: str) -> list[Query]:
        """Return the judged queries of a split that have a text, in file order."""
        return self._read(split)[0]

    def judgements(self, split: str) -> list[Judgement]:
        """Return the judgements of a split, also of documents that the corpus does not hold."""
        return self._read(split)[1]

    def negatives(self, split: str) -> Negatives:
        """Return docids given as not relevant, by query id; empty when the data gives none."""
        name = self._known(split)
        if name not in self._negatives:
            self._negatives[name] = self._splits[name].negatives()
        return self._negatives[name]

    def scores(self, split: str) -> Iterable[TeacherScore]:
        """Return the teacher scores of a split, in file order; empty when the data gives none."""
        return self._splits[self._known(split)].scores()

    def canonical(self, split: str) -> str:
        """Return the split that an alias stands for; any other word is returned as it is."""
        return self._aliases.get(split, split)

    def _read(self, split: str) -> JudgedQueries:
        name = self._known(split)
        if name not in self._judged:
            self._judged[name] = self._splits[name].read()
        return self._judged[name]

    def _known(self, split: str) -> str:
        name = self.canonical(split)
        if name in self._splits:
            return name
        if not self._splits:
            raise UserError(
                f"{self.name} has no judged queries, so no split {split!r}. Give a file of pairs, "
                "or a folder with queries.jsonl and qrels/test.tsv beside the corpus."
            )
        raise UserError(f"{self.name} has no split {split!r}. {nearest(split, self._splits)}")


class MemoryCorpus:
    """Documents held in memory."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._order = list(documents)
        self._by_id = {document.id: document for document in self._order}

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Document]:
        return iter(self._order)

    def __contains__(self, docid: str) -> bool:
        return docid in self._by_id

    def with_fields(self) -> Iterator[Document]:
        """See Corpus."""
        return iter(self)

    def at(self, row: int) -> Document:
        """See Corpus."""
        return self._order[row]

    def find(self, docid: str) -> Document:
        """See Corpus."""
        return self._by_id[docid]


class FileCorpus:
    """Documents that stay in a plain file of one document per line, or in Arrow tables.

    Iterating streams and checks each row. The first use of anything else reads the file once to
    learn where its rows are, which also refuses repeated ids.
    """

    def __init__(self, path: Path, parse: Parse, read: ReadLines) -> None:
        self._path, self._parse, self._read = path, parse, read

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[Document]:
        return map(self._parse, self._read(self._path))

    def __contains__(self, docid: str) -> bool:
        return docid in self._table

    def with_fields(self) -> Iterator[Document]:
        """See Corpus; of Arrow tables all columns are read that may be fields."""
        if is_arrow(self._path):
            return map(self._parse, read_records(self._path, SCALARS))
        return iter(self)

    def at(self, row: int) -> Document:
        """See Corpus."""
        return self._parse(self._table.line(row))

    def find(self, docid: str) -> Document:
        """See Corpus."""
        return self._parse(self._table.find(docid))

    def __getstate__(self) -> dict[str, object]:
        """Return what a data worker is sent: no table, whose hashes differ between processes."""
        return {"_path": self._path, "_parse": self._parse, "_read": self._read}

    @cached_property
    def _table(self) -> IdTable:
        def identify(line: Line) -> str:
            return self._parse(line).id

        if is_arrow(self._path):
            return ArrowTable(self._path, identify, DOCUMENT_COLUMNS)
        return LineTable(self._path, identify)


class NegativeLists:
    """Given negatives by query id, in file order; the first `NEGATIVES_KEPT` of each query."""

    def __init__(self) -> None:
        self._lists: dict[str, dict[str, None]] = defaultdict(dict)

    def has_room(self, query_id: str) -> bool:
        """Return whether another negative of this query would be kept."""
        return len(self._lists[query_id]) < NEGATIVES_KEPT

    def add(self, query_id: str, docid: str) -> None:
        """Keep a negative, unless the query has enough."""
        if self.has_room(query_id):
            self._lists[query_id][docid] = None

    def by_query(self) -> Negatives:
        """Return docids by query id, of the queries that have any."""
        return {query: tuple(docids) for query, docids in self._lists.items() if docids}


def read_documents(path: Path) -> Iterator[Line]:
    """Return an iterator over the rows of a place, of Arrow tables the columns of a document."""
    return read_records(path, DOCUMENT_COLUMNS)


def open_corpus_file(path: Path, parse: Parse, read: ReadLines = read_documents) -> Corpus:
    """Open a corpus of one document per row; what has no random access is read into memory.

    That is a gzipped file, a table of text, whose rows may have several lines, and a folder of
    these.

    Args:
        path: a place of rows.
        parse: makes a document of a row.
        read: `read_lines` for a file without column names.

    Raises:
        UserError: no document in it, or (at once when in memory) a malformed or repeated one.
    """
    by_line = read is not read_documents or (suffix_of(path) == ".jsonl" and not path.is_dir())
    if is_arrow(path) or (by_line and not is_gzipped(path)):
        corpus: Corpus = FileCorpus(path, parse, read)
    else:
        corpus = MemoryCorpus(_unrepeated(read(path), parse))
    if next(iter(corpus), None) is None:
        raise UserError(f"{path} holds no document.")
    return corpus


def split_of(key: str, shares: Mapping[str, float], seed: str) -> str:
    """Return the split in which everything with this key belongs.

    Args:
        key: what must not be spread over splits, such as a document's text.
        shares: fractions by split, which add up to 1.
        seed: another one gives an unrelated split.

    >>> split_of("a text", {"train": 0.0, "test": 1.0}, seed="13")
    'test'
    """
    digest = sha256(f"{seed}\n{key}".encode()).digest()
    point = int.from_bytes(digest[:8], "big") / 2**64  # uniform in [0, 1)
    upper = 0.0
    for name, share in shares.items():
        upper += share
        if point < upper:
            return name
    return name  # the shares add up to a little less than 1 in floating point


def _unrepeated(lines: Iterator[Line], parse: Parse) -> Iterator[Document]:
    seen: dict[str, tuple[Path, int]] = {}
    for line in lines:
        document = parse(line)
        refuse_repeat(line, document.id, seen)
        yield document
