"""The data set that the rest of m2dr sees, whatever its files look like."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property, partial
from hashlib import sha256
from itertools import chain, count
from math import isfinite
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from m2dr.core.errors import UserError, nearest
from m2dr.core.progress import say_once
from m2dr.core.records import Document, Fields, Judgement, Query, Value
from m2dr.data.roles import DOCUMENT, METADATA
from m2dr.data.tables import Ids, Row, StoredRows, id_of, made, parsed, text_of

# Given negatives kept per query. A group draws some ten of them, and official files give up to a
# thousand: 400 million ids, more than fit in memory.
NEGATIVES_KEPT = 64
# The queries of ArguAna and Quora are themselves documents of the corpus, under the same ids; BEIR
# leaves those out of the ranking. Elsewhere an equal id is chance, and dropping would lose answers.
_DROP_OWN_DOCUMENT = {"arguana", "quora"}
_COMPARED_QUERIES = 1000  # queries of a split that are compared with the documents of their ids

_MISSING = (type(None), float, Mapping, list, tuple)  # whose values may be missing or empty
# Names of fields that are something else where they stand beside the text.
_READ_OTHERWISE = {*chain.from_iterable(DOCUMENT.values()), *METADATA, "id_"}

JudgedQueries = tuple[list[Query], list[Judgement]]  # the queries in file order, the judgements
Negatives = Mapping[str, tuple[str, ...]]  # query id → docids given as not relevant


class Corpus(Protocol):
    """Documents in a fixed order, each with an id of its own."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Document]: ...

    def __contains__(self, docid: str) -> bool: ...

    def at(self, row: int) -> Document:
        """Return the document of a row, counted from 0."""
        ...

    def find(self, docid: str) -> Document:
        """Return the document of an id; raise KeyError when there is none."""
        ...


class TeacherScore(NamedTuple):
    """How well a document answers a query, by a teacher such as a cross-encoder."""

    query_id: str
    docid: str
    value: float
    # The docid of the positive that this score is relative to, as a margin is; empty where scores
    # of one query compare with each other.
    origin: str = ""
    row: int = 0  # of its file, from 1; 0: not known


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
        unread: files that lie there and are not read.

    Attributes:
        drops_own_document: whether the document with the query's own id is left out of its
            ranking.
        unread: as given.
    """

    def __init__(
        self,
        name: str,
        corpus: Corpus,
        splits: Mapping[str, Split],
        aliases: Mapping[str, str] | None = None,
        unread: Iterable[Path] = (),
    ) -> None:
        self.name = name
        self.unread = tuple(unread)
        # By the name of the data set, whatever its indexes are called.
        self.drops_own_document = not _DROP_OWN_DOCUMENT.isdisjoint(name.lower().split("-"))
        self._corpus = corpus
        self._splits = splits
        self._aliases = aliases or {"validation": "dev"}
        self._judged: dict[str, JudgedQueries] = {}
        self._negatives: dict[str, Negatives] = {}

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have judgements."""
        return tuple(self._splits)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold the documents; none where they come from elsewhere."""
        return self._corpus.files if isinstance(self._corpus, TableCorpus) else ()

    @property
    def document_count(self) -> int:
        """Number of documents; the first use checks all of them."""
        return len(self._corpus)

    def documents(self) -> Iterator[Document]:
        """Return an iterator over all documents, in file order."""
        return iter(self._corpus)

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

    def own_document(self, query_id: str) -> str | None:
        """Return the docid that is left out of a query's ranking and negatives, if there is one."""
        return query_id if self.drops_own_document and self.holds(query_id) else None

    def kept_own(self, split: str) -> str:
        """Return a sentence if queries of a split are documents, of one id, and stay in rankings.

        Those that are judged relevant to themselves are meant to be found, and do not count.
        """
        if self.drops_own_document:
            return ""
        queries, judgements = self._judged[self._known(split)]
        compared = queries[:_COMPARED_QUERIES]
        texts = {query.id: query.text for query in compared if self.holds(query.id)}
        meant = {j.query_id for j in judgements if j.query_id == j.document_id and j.relevance > 0}
        found = [
            name
            for name, text in texts.items()
            if name not in meant and text in (self.document(name).text, self.document(name).content)
        ]
        if not found:
            return ""
        return (
            f"{self.name}: queries of {split}, such as {found[0]!r}, are documents too and find "
            "themselves; m2dr leaves them out only if the name of the data contains quora."
        )

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
        return split if split in self._splits else self._aliases.get(split, split)

    def _read(self, split: str) -> JudgedQueries:
        name = self._known(split)
        if name not in self._judged:
            self._judged[name] = self._splits[name].read()
            if note := self.kept_own(name):
                say_once(note)
        return self._judged[name]

    def _known(self, split: str) -> str:
        name = self.canonical(split)
        if name in self._splits:
            return name
        if not self._splits:
            raise UserError(f"{self.name} has no judged queries, so no split {split!r}.")
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

    def at(self, row: int) -> Document:
        """See Corpus."""
        return self._order[row]

    def find(self, docid: str) -> Document:
        """See Corpus."""
        return self._by_id[docid]


class TableCorpus:
    """The documents of a table, which stay on disk where they are many.

    Iterating streams. The first use of ids reads the file once, and refuses repeated ones. Where
    the first row has no id, no row may have one, and the id of each is its number, from 0.

    Args:
        path: a file, a folder or `hf:ID`.
        names: of the columns of a file without a header.

    Raises:
        UserError: there is no document, or the first is malformed.
    """

    def __init__(self, path: Path, names: tuple[str, ...] = ()) -> None:
        self._path, self._names = path, names
        first = next(parsed(path, dict, names), None)
        if first is None:
            raise UserError(f"{path} holds no document.")
        self._numbered = "id" not in DOCUMENT.of(first)[0]
        next(parsed(path, lambda row: self._document(row, 0), names))

    @property
    def files(self) -> tuple[Path, ...]:
        """The file, or all files of the folder; none of a data set of the hub."""
        inside = sorted(path for path in self._path.rglob("*") if path.is_file())
        return (self._path,) if self._path.is_file() else tuple(inside)

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[Document]:
        numbers = count()
        return parsed(
            self._path, lambda row: self._document(row, next(numbers)), self._names, scalars=True
        )

    def __contains__(self, docid: str) -> bool:
        return docid in self._ids

    def at(self, row: int) -> Document:
        """See Corpus."""
        return self._document(self._rows[row], row)

    def find(self, docid: str) -> Document:
        """See Corpus."""
        return self.at(self._ids.row(docid))

    def __getstate__(self) -> dict[str, object]:
        """Return what another process is sent: no ids, whose hashes differ between processes."""
        return {name: getattr(self, name) for name in ("_path", "_names", "_numbered")}

    def _document(self, row: Row, number: int) -> Document:
        return document_of(row, str(number) if self._numbered else "")

    @cached_property
    def _ids(self) -> Ids:
        ids = (each.id for each in self) if self._numbered else self._rows.ids()
        return Ids(ids, lambda row: self.at(row).id, self._path)

    @cached_property
    def _rows(self) -> StoredRows:
        return StoredRows(self._path, self._names)


def document_of(row: Row, number: str = "") -> Document:
    """Return the document of a row: an id, a text and perhaps a title; the rest are its fields.

    Args:
        row: of a table.
        number: the id of a row that has none; empty where rows have one.

    Raises:
        ValueError: there is no id or no text, or an id beside a number.
    """
    values, rest = DOCUMENT.of(row, *(("text",) if number else ("id", "text")))
    if number and "id" in values:
        raise ValueError("it has an id, and the first row has none")
    if "page_content" in row and rest.get("type") == "Document":
        del rest["type"]  # of a class of LangChain
    docid, text = id_of(values.get("id", number)), text_of(values["text"], "the text", empty=True)
    title = text_of(values.get("title") or "", "the title", empty=True)
    return Document(docid, text, title, own_fields(rest) if rest else ())


def as_documents(rows: Iterable[Row], first: int | None = 0) -> Iterator[Document]:
    """Yield the documents of rows.

    Args:
        rows: of data in memory.
        first: number of the first one; those without an id have theirs as id, unless None.

    Raises:
        UserError: a row has no text, or no id although it needs one.
    """
    numbered = first is not None
    for number, row in enumerate(rows):
        numbered = numbered and (number > 0 or "id" not in DOCUMENT.of(row)[0])
        own = str(number + (first or 0)) if numbered else ""
        yield made(partial(document_of, number=own), row, number)


def own_fields(row: Mapping[str, object]) -> Fields:
    """Return the fields of a row: what is missing, empty or a list of decimals is left out.

    The keys of `metadata` are fields, and those of any other object follow its own name and a dot.
    One that has the name of a column is called metadata.NAME.

    Args:
        row: of a document, without its id, its title and its text.

    >>> own_fields({"year": 1999, "metadata": {"open": True, "_id": "7"}})
    (('year', 1999), ('open', True), ('_id', '7'))
    """
    fields: dict[str, Value] = {}
    for name, value in row.items():
        if name not in METADATA:
            fields.update(_flattened(name, value))
    for column_name in METADATA:
        for name, value in _flattened("", row.get(column_name)):
            if fields.setdefault(name or column_name, value) != value:
                fields[f"{column_name}.{name}"] = value
    return tuple(fields.items())


def row_of_document(document: Document) -> Row:
    """Return a row that is read as this document: its fields beside the text, or in `metadata`.

    >>> row_of_document(Document("d", "text", fields=(("year", 1999), ("id", "7"))))
    {'id': 'd', 'title': '', 'text': 'text', 'year': 1999, 'metadata': {'id': '7'}}
    """
    row = {"id": document.id, "title": document.title, "text": document.text}
    beside = {name: value for name, value in document.fields if name not in _READ_OTHERWISE}
    inside = {name: value for name, value in document.fields if name in _READ_OTHERWISE}
    return row | beside | ({METADATA[0]: inside} if inside else {})


def document_line(document: Document) -> str:
    """Return the line of a document in a corpus.jsonl; its fields are an object, as in BEIR.

    Raises:
        UserError: its id cannot stand in a run file.
    """
    try:
        id_of(document.id)
    except ValueError as error:
        raise UserError(f"A document cannot be kept: {error}.") from None
    table: dict[str, object] = {
        "_id": document.id, "title": document.title, "text": document.text
    }  # fmt: skip
    if document.fields:
        table["metadata"] = dict(document.fields)
    return json.dumps(table, ensure_ascii=False) + "\n"


def _flattened(name: str, value: object) -> Iterator[tuple[str, Value]]:
    """Yield the fields of a value, of its own type: one, or those of an object."""
    own = _plain(value)
    if isinstance(own, dict):
        for key, inner in own.items():
            yield from _flattened(f"{name}.{key}" if name else key, inner)
    elif isinstance(own, list) and _is_vector(own):
        say_once(f"The field {name!r} is left out: a list of decimals is taken for a vector.")
    elif own is None and not isinstance(value, _MISSING):
        say_once(f"The field {name!r} is left out: JSON holds no {type(value).__name__}.")
    elif own is not None and (not isinstance(own, str) or own.strip()):
        yield name, own


def _plain(value: object) -> Any:  # as JSON has it; None for what it has not
    """Return a value of the types of JSON: days as ISO 8601, a decimal as the same number."""
    value = value.value if isinstance(value, Enum) else value
    if isinstance(value, Decimal) and value.is_finite():
        number = int(value) if value == value.to_integral_value() else float(value)
        return number if Decimal(repr(number)) == value else str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        own = [_plain(each) for each in value]
        return own if any(each is not None for each in own) else None
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, UUID | timedelta):
        return str(value)
    is_number = isinstance(value, int) or (isinstance(value, float) and isfinite(value))
    return value if is_number or isinstance(value, str) else None


def _is_vector(values: list[Any]) -> bool:
    return any(
        _is_vector(each) if isinstance(each, list) else type(each) is float for each in values
    )


def first_negatives(pairs: Iterable[tuple[str, str]]) -> Negatives:
    """Return the first `NEGATIVES_KEPT` docids of each query, from pairs of query id and docid."""
    lists: dict[str, list[str]] = defaultdict(list)
    for query_id, docid in pairs:
        known = lists[query_id]
        if len(known) < NEGATIVES_KEPT and docid not in known:
            known.append(intern(docid))  # one string for all queries
    return {query_id: tuple(docids) for query_id, docids in lists.items()}


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
