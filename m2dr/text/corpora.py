"""Where documents lie: in memory, or in a file too large for it."""

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Protocol

from m2dr.errors import UserError
from m2dr.records.texts import Document
from m2dr.text.lines import Line, LineTable, is_gzipped, read_lines

Parse = Callable[[Line], Document]


class Corpus(Protocol):
    """Documents in a fixed order, each with an id of its own."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Document]: ...

    def __contains__(self, docid: str) -> bool: ...

    def at(self, row: int) -> Document:
        """The document at this place of the order, from 0."""
        ...

    def find(self, docid: str) -> Document:
        """The document of this id; KeyError when there is none."""
        ...


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


class FileCorpus:
    """Documents left in a plain file of one document per line.

    Iterating streams and checks each line. The first use of anything else reads the file once to
    learn where its lines are, which also refuses repeated ids.
    """

    def __init__(self, path: Path, parse: Parse) -> None:
        self._path = path
        self._parse = parse

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[Document]:
        return map(self._parse, read_lines(self._path))

    def __contains__(self, docid: str) -> bool:
        return docid in self._table

    def at(self, row: int) -> Document:
        """See Corpus."""
        return self._parse(self._table.line(row))

    def find(self, docid: str) -> Document:
        """See Corpus."""
        return self._parse(self._table.find(docid))

    def __getstate__(self) -> dict[str, object]:
        """What a data worker is sent: not the table, whose hashes hold in this process alone."""
        return {"_path": self._path, "_parse": self._parse}

    @cached_property
    def _table(self) -> LineTable:
        return LineTable(self._path, lambda line: self._parse(line).id)


def open_corpus(path: Path, parse: Parse) -> Corpus:
    """The corpus of a file; a gzipped one is read into memory, as it has no random access.

    Raises:
        UserError: no document in it, or (at once when gzipped) a malformed or repeated one.
    """
    corpus = MemoryCorpus(_unrepeated(path, parse)) if is_gzipped(path) else FileCorpus(path, parse)
    if next(iter(corpus), None) is None:
        raise UserError(f"{path} holds no document.")
    return corpus


def _unrepeated(path: Path, parse: Parse) -> Iterator[Document]:
    seen: dict[str, int] = {}
    for line in read_lines(path):
        document = parse(line)
        first = seen.setdefault(document.id, line.number)
        if first != line.number:
            raise line.error(f"the id {document.id!r} stands in line {first} already.")
        yield document
