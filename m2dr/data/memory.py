"""Data in memory, with columns of other names, or in passages, as files that commands open."""

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
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
from m2dr.core.records import paired
from m2dr.data.dataset import DOCUMENT_COLUMNS, DOCUMENT_IDS, DOCUMENT_TEXTS, METADATA
from m2dr.data.loaders import open_dataset
from m2dr.data.qrels import JUDGED, QUERY_IDS, QUERY_TEXTS, read_judgements
from m2dr.data.tables import Row, id_of, name_of, optional, read_rows, row_of, rows_of
from m2dr.data.training_rows import NEGATIVES, POSITIVES, QUERIES

CORPUS_FILE = "corpus.jsonl"  # of a folder in the layout of BEIR, which every command opens
Columns = Mapping[str, str]  # by m2dr's name of a column, that of the data
Passages = tuple[int, int]  # words of each, and of its overlap with the one before
# Columns of ids and texts, whose values are written as they are or not at all.
_EXACT = {
    *DOCUMENT_COLUMNS, *QUERY_IDS, *QUERY_TEXTS, *JUDGED[0], *JUDGED[1],
    *QUERIES, *POSITIVES, *NEGATIVES,
}  # fmt: skip
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
        columns: such as {"text": "Body"}, where columns have other names than m2dr's.
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
    parts = {CORPUS_FILE: _documents(data)}
    if queries is not None:
        parts |= {"queries.jsonl": _queries(queries), f"qrels/{split}.jsonl": _judgements(qrels)}
    home = cache_folder() / "data"
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=home) as aside:
        _write(Path(aside), parts, columns or {}, passages)
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


def passages_of(rows: Iterable[Row], passages: Passages) -> Iterator[Row]:
    """Yield documents, and in place of a long one its passages, whose ids end in #1, #2, ….

    Args:
        rows: documents.
        passages: words of a passage, and how many of them it shares with the one before.

    >>> rows = [{"_id": "a", "text": "one two  three four"}]
    >>> [(row["_id"], row["text"]) for row in passages_of(rows, (3, 1))]
    [('a#1', 'one two  three'), ('a#2', 'three four')]
    """
    try:
        length, shared = passages
        fits = 0 <= shared < length
    except (TypeError, ValueError):
        raise UserError(f"passages = {passages!r} is no pair, such as (200, 50).") from None
    if not fits:
        raise UserError(f"Passages of {length} words cannot share {shared} of them.")
    for number, row in enumerate(rows):
        name = next((each for each in DOCUMENT_TEXTS if isinstance(row.get(each), str)), "")
        words = [word.span() for word in re.finditer(r"\S+", row.get(name, ""))]
        given = optional(row, DOCUMENT_IDS)
        docid = number if given is None else given
        if len(words) <= length:
            yield row | {"_id": docid}
            continue
        try:
            docid = id_of(docid)
        except ValueError as error:
            raise UserError(f"Row {number}: {error}.") from None
        starts = range(0, len(words) - shared, length - shared)
        for part, first in enumerate(starts, 1):
            last = words[min(first + length, len(words)) - 1]
            own = {"_id": f"{docid}#{part}", name: row[name][words[first][0] : last[1]]}
            yield row | own


def _changed_file(path: Path, columns: Columns, passages: Passages | None) -> str:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    stamps = [(str(file), *file_state(file)) for file in files]
    key = json_sha256([str(path.resolve()), stamps, dict(columns), passages])[:12]
    folder = cache_folder() / "data" / key
    target = folder / f"{name_of(path)}.jsonl"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=folder) as aside:
            _write(Path(aside), {target.name: read_rows(path)}, columns, passages)
            Path(aside, target.name).replace(target)
    return str(target)


def _write(
    folder: Path, parts: Mapping[str, Iterable[Row]], columns: Columns, passages: Passages | None
) -> None:
    """Write rows as JSON lines, with the columns renamed, and long ones in passages."""
    encoder, absent = msgspec.json.Encoder(enc_hook=_plain), set(columns.values())

    def renamed(rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            own = {str(each).lower(): each for each in row}  # in lower case, as of a CSV file
            used = {to: own[of.lower()] for to, of in columns.items() if of.lower() in own}
            absent.difference_update(columns[to] for to in used)
            rest = {each: row[each] for each in row if each not in used.values()}
            yield rest | {to: row[each] for to, each in used.items()}

    for name, rows in parts.items():
        path, row = folder / name, Row()
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            exact = map(_exact, renamed(rows))
            for row in passages_of(exact, passages) if passages else exact:
                try:
                    line = encoder.encode(row)
                except UnicodeEncodeError:  # half a surrogate pair
                    plain = msgspec.to_builtins(row, enc_hook=_plain)
                    line = paired(json.dumps(plain, ensure_ascii=False)).encode()
                file.write(line + b"\n")
        if not row:
            raise UserError(f"No rows were given for {path.stem}.")
    if absent:
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
        given = optional(row, QUERY_IDS) is not None
        numbered = not given if numbered is None else numbered
        if numbered == given:
            raise UserError(f"Query {number} has {'an' if given else 'no'} id, unlike the first.")
        yield {"_id": number} | row if numbered else row


def _query(item: Any) -> Row:  # of any form
    if isinstance(item, list | tuple) and not hasattr(item, "_fields"):
        if len(item) != 2:
            raise ValueError(f"it is {item!r:.100}, not the id of a query and its text")
        return dict(zip(("_id", "text"), item, strict=True))
    return row_of(item)


def _judgements(data: object) -> Iterator[Row]:
    if isinstance(data, str | PathLike):
        for each in read_judgements(Path(data)):
            yield _judged(each.query_id, each.document_id, each.relevance)
    elif isinstance(data, Mapping) and not set(data) & {*JUDGED[0]}:  # those of columns
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
    return {JUDGED[0][0]: query, JUDGED[1][0]: docid, JUDGED[2][0]: relevance}
