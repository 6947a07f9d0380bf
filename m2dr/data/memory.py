"""Data in memory, with columns of other names, or in passages, as files that commands open."""

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import date, time, timedelta
from decimal import Decimal
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import numpy as np

from m2dr.core.errors import UserError
from m2dr.core.files import cache_folder, file_state, json_sha256, sha256_of
from m2dr.core.records import Document
from m2dr.data.dataset import as_documents, row_of_document
from m2dr.data.loaders import open_dataset
from m2dr.data.qrels import read_judgements
from m2dr.data.roles import DOCUMENT, GROUP, JUDGEMENT, METADATA, PLAIN, QUERY
from m2dr.data.tables import Row, name_of, read_rows, row_of, rows_of

CORPUS_FILE = "corpus.jsonl"  # of a folder in the layout of BEIR, which every command opens
Columns = Mapping[str, str]  # by m2dr's name of a column, that of the data
Passages = tuple[int, int]  # words of each, and of its overlap with the one before
# Columns of ids and texts, whose values are written as they are or not at all.
_EXACT = {
    name
    for roles in (DOCUMENT, QUERY, JUDGEMENT, GROUP)
    for role in ("id", "title", "text", "query", "document", "positives", "negatives")
    for name in roles.get(role, ())
}
_BYTES = (bytes, bytearray, memoryview)
# What JSON would write as a text, or in any order.
_NO_JSON = (*_BYTES, date, time, timedelta, np.datetime64, Decimal, UUID, set, frozenset)


def name_of_data(
    data: object,
    columns: Columns | None = None,
    queries: object = None,
    qrels: object = None,
    split: str = "test",
    passages: Passages | None = None,
) -> str:
    """Return a name of data that every command opens: its own, or that of a copy in the cache.

    The copy of data in memory is called after its content, that of a table after the table.

    Args:
        data: documents, or rows to train on: a name, or what `rows_of` takes.
        columns: of the documents or rows, such as {"text": "Body"}, where they have other names
            than m2dr's.
        queries: about the documents: a file, or what `rows_of` takes.
        qrels: judgements: a file; by query id, relevance by docid or a list of docids; or rows of a
            query id, a docid and a relevance.
        split: of the judgements.
        passages: into which documents are divided, as `passages_of` does.

    Raises:
        UserError: the data is of no such form, holds no row, or has no column of that name.
    """
    if (queries is None) != (qrels is None):
        raise UserError("Queries and judgements belong together; one of the two was given.")
    if passages and qrels is not None:
        raise UserError("Documents are judged as they are; leave passages out.")
    if isinstance(data, str | PathLike) and queries is None:
        if not columns and not passages:
            return fspath(data)
        return _changed_file(Path(data), columns or {}, passages)
    if qrels is not None and (_is_labelled(data) or _is_labelled(queries)):
        raise UserError("A series is a list, and has no ids; give a dict of id to text.")
    parts = {CORPUS_FILE: _changed(_documents(data), columns, passages)}
    if queries is not None:
        parts |= {"queries.jsonl": _queries(queries), f"qrels/{split}.jsonl": _judgements(qrels)}
    home = cache_folder() / "data"
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=home) as aside:
        _write(Path(aside), parts)
        digest = json_sha256([(name, sha256_of(Path(aside, name))) for name in parts])[:12]
        if queries is None:
            target = home / f"data-{digest}.jsonl"
            Path(aside, CORPUS_FILE).replace(target)
        elif not (target := home / f"data-{digest}").exists():
            Path(aside).rename(target)
            Path(aside).mkdir()  # to be removed
    return str(target)


def changed(
    data: Any, columns: Columns | None, passages: Passages | None = None
) -> Any:  # a name, or what `rows_of` takes
    """Return data with the columns that m2dr knows, where others are named, and in passages."""
    if not columns and not passages:
        return data
    name = name_of_data(data, columns, passages=passages)
    return name if isinstance(data, str | PathLike) else read_rows(Path(name))


def passages_of(documents: Iterable[Document], passages: Passages) -> Iterator[Document]:
    """Yield documents, and in place of a long one its passages, whose ids end in #1, #2, ….

    Args:
        documents: to divide.
        passages: words of a passage, and how many of them it shares with the one before.

    >>> documents = [Document("a", "one two  three four")]
    >>> [(each.id, each.text) for each in passages_of(documents, (3, 1))]
    [('a#1', 'one two  three'), ('a#2', 'three four')]
    """
    try:
        length, shared = passages
        fits = 0 <= shared < length
    except (TypeError, ValueError):
        raise UserError(f"passages = {passages!r} is no pair, such as (200, 50).") from None
    if not fits:
        raise UserError(f"Passages of {length} words cannot share {shared} of them.")
    for document in documents:
        words = [word.span() for word in re.finditer(r"\S+", document.text)]
        if len(words) <= length:
            yield document
            continue
        starts = range(0, len(words) - shared, length - shared)
        for part, first in enumerate(starts, 1):
            last = words[min(first + length, len(words)) - 1]
            text = document.text[words[first][0] : last[1]]
            yield replace(document, id=f"{document.id}#{part}", text=text)


def _changed_file(path: Path, columns: Columns, passages: Passages | None) -> str:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    stamps = [(str(file), *file_state(file)) for file in files]
    key = json_sha256([str(path.resolve()), stamps, dict(columns), passages])[:12]
    folder = cache_folder() / "data" / key
    target = folder / f"{name_of(path)}.jsonl"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=folder) as aside:
            _write(Path(aside), {target.name: _changed(read_rows(path), columns, passages)})
            Path(aside, target.name).replace(target)
    return str(target)


def _write(folder: Path, parts: Mapping[str, Iterable[Row]]) -> None:
    """Write rows as JSON lines."""
    encoder = msgspec.json.Encoder(enc_hook=_plain)
    for name, rows in parts.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            file.writelines(encoder.encode(row) + b"\n" for row in map(_exact, rows))
            if not file.tell():
                raise UserError(f"No rows were given for {path.stem}.")


def _changed(
    rows: Iterator[Row], columns: Columns | None, passages: Passages | None
) -> Iterator[Row]:
    rows = _renamed(rows, columns) if columns else rows
    if not passages:
        return rows
    return map(row_of_document, passages_of(as_documents(map(_exact, rows)), passages))


def _renamed(rows: Iterator[Row], columns: Columns) -> Iterator[Row]:
    """Yield rows with the names of columns that were told; what has such a name is a field then."""
    absent, row = set(columns.values()), Row()
    roles = [*DOCUMENT.values(), *GROUP.values()]
    taken = {name for names in roles if not columns.keys().isdisjoint(names) for name in names}
    for row in rows:
        own = {str(name).lower(): name for name in row}  # in lower case, as of a CSV file
        used = {to: own[of.lower()] for to, of in columns.items() if of.lower() in own}
        absent.difference_update(columns[to] for to in used)
        rest = {name: value for name, value in row.items() if name not in used.values()}
        lost = {name: rest.pop(name) for name in list(rest) if name in {*taken, *used}}
        if lost:
            inner = rest.get(METADATA[0])
            rest[METADATA[0]] = lost | (inner if isinstance(inner, Mapping) else {})
        yield rest | {to: row[name] for to, name in used.items()}
    if row and absent:
        raise UserError(f"There is no column {min(absent)!r}; the columns are {', '.join(row)}.")


def _exact(row: Row) -> Row:
    """Return a row without columns of bytes; ids and texts that JSON would change are refused."""
    for name, value in row.items():
        if name in _EXACT and _changes(value):
            raise UserError(f"{name!r} is {value!r:.100} in a row, and is no text.")
    return {name: value for name, value in row.items() if not isinstance(value, _BYTES)}


def _changes(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_changes, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_changes, value))
    return isinstance(value, _NO_JSON)


def _plain(value: object) -> object:
    """Return a value of numpy as one of Python; what no JSON holds, such as an image, is left out.

    >>> import numpy
    >>> _plain(numpy.int64(3)), _plain(print)
    (3, None)
    """
    return value.tolist() if hasattr(value, "tolist") else None


def _is_labelled(data: object) -> bool:
    """Return whether data is a series of pandas with labels that may be meant as ids."""
    series = hasattr(data, "notna") and hasattr(data, "index") and not hasattr(data, "columns")
    return series and list(data.index) != [*range(len(data.index))]  # type: ignore[attr-defined]  # it has one


def _documents(data: object) -> Iterator[Row]:
    if not isinstance(data, str | PathLike):
        yield from rows_of(data)
        return
    for document in open_dataset(fspath(data)).documents():
        fields = dict(document.fields)
        text = {"title": document.title, "text": document.text}
        yield {"_id": document.id, **text, METADATA[0]: fields}


def _queries(data: object) -> Iterator[Row]:
    named = isinstance(data, str | PathLike)
    rows = read_rows(Path(data)) if named else rows_of(data, _query)  # type: ignore[arg-type]  # a path
    numbered = None
    for number, row in enumerate(rows):
        given = "id" in QUERY.of(row)[0]
        numbered = not given if numbered is None else numbered
        if numbered == given:
            raise UserError(f"Query {number} has {'an' if given else 'no'} id, unlike the first.")
        yield {"_id": number} | row if numbered else row


def _query(item: Any) -> Row:  # of any form
    if isinstance(item, list | tuple) and not hasattr(item, "_fields"):
        if len(item) != 2:
            raise ValueError(f"it is {item!r:.100}, not the id of a query and its text")
        return dict(zip(PLAIN, item, strict=True))
    return row_of(item)


def _judgements(data: object) -> Iterator[Row]:
    if isinstance(data, str | PathLike):
        for each in read_judgements(Path(data)):
            yield _judged(each.query_id, each.document_id, each.relevance)
    elif isinstance(data, Mapping) and not JUDGEMENT.has(data, "query"):  # those of columns
        for query, judged in data.items():
            docids = [judged] if isinstance(judged, str | bytes) else judged
            if _is_labelled(docids) or not isinstance(docids, Iterable):
                kind = type(judged).__name__
                raise UserError(f"The judgements of {query!r} are of the type {kind}, not docids.")
            for docid in sorted(docids, key=str) if isinstance(docids, set) else docids:
                yield _judged(query, docid, judged[docid] if isinstance(judged, Mapping) else 1)
    else:
        yield from rows_of(data, _judgement)


def _judgement(item: Any) -> Row:  # of any form
    if not isinstance(item, list | tuple) or hasattr(item, "_fields"):
        return row_of(item)
    if len(item) not in (3, 4):
        raise ValueError(f"it is {item!r:.100}, not a query id, a docid and a relevance")
    return _judged(item[0], item[-2], item[-1])


def _judged(query: object, docid: object, relevance: object) -> Row:
    names = (JUDGEMENT[role][0] for role in ("query", "document", "relevance"))
    return dict(zip(names, (query, docid, relevance), strict=True))
