"""Data in memory, with columns of other names, or in passages, as files that commands open."""

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import msgspec

from m2dr.core.errors import UserError
from m2dr.core.files import cache_folder, json_sha256, sha256_of
from m2dr.data.dataset import DOCUMENT_IDS, DOCUMENT_TEXTS, METADATA
from m2dr.data.loaders import open_dataset
from m2dr.data.qrels import JUDGED, QUERY_IDS, read_judgements
from m2dr.data.tables import Row, name_of, optional, read_rows, rows_of

Columns = Mapping[str, str]  # by m2dr's name of a column, that of the data
Passages = tuple[int, int]  # words of each, and of its overlap with the one before


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
    parts = {"corpus.jsonl": _documents(data)}
    if queries is not None:
        parts |= {"queries.jsonl": _queries(queries), f"qrels/{split}.jsonl": _judgements(qrels)}
    home = cache_folder() / "data"
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=home) as aside:
        _write(Path(aside), parts, columns or {}, passages)
        digest = json_sha256([(name, sha256_of(Path(aside, name))) for name in parts])[:12]
        if queries is None:
            target = home / f"data-{digest}.jsonl"
            Path(aside, "corpus.jsonl").replace(target)
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
    length, shared = passages
    if not 0 <= shared < length:
        raise UserError(f"Passages of {length} words cannot share {shared} of them.")
    for number, row in enumerate(rows):
        name = next((each for each in DOCUMENT_TEXTS if isinstance(row.get(each), str)), "")
        words = [word.span() for word in re.finditer(r"\S+", row.get(name, ""))]
        given = optional(row, DOCUMENT_IDS)
        docid = number if given is None else given
        if len(words) <= length:
            yield row | {"_id": docid}
            continue
        starts = range(0, len(words) - shared, length - shared)
        for part, first in enumerate(starts, 1):
            last = words[min(first + length, len(words)) - 1]
            own = {"_id": f"{docid}#{part}", name: row[name][words[first][0] : last[1]]}
            yield row | own


def _changed_file(path: Path, columns: Columns, passages: Passages | None) -> str:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    stamps = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
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
            for row in passages_of(renamed(rows), passages) if passages else renamed(rows):
                file.write(encoder.encode(row) + b"\n")
        if not row:
            raise UserError(f"No rows were given for {path.stem}.")
    if absent:
        raise UserError(f"There is no column {min(absent)!r}; the columns are {', '.join(row)}.")


def _plain(value: object) -> object:
    """Return a value of numpy as one of Python; what no JSON holds, such as an image, is left out.

    >>> import numpy
    >>> _plain(numpy.int64(3)), _plain(print)
    (3, None)
    """
    return value.tolist() if hasattr(value, "tolist") else None


def _documents(data: object) -> Iterator[Row]:
    if not isinstance(data, str | PathLike):
        yield from rows_of(data)
        return
    for document in open_dataset(fspath(data)).documents():
        fields = dict(document.fields)
        text = {"title": document.title, "text": document.text}
        yield {"_id": document.id, **text, METADATA[0]: fields}


def _queries(data: object) -> Iterator[Row]:
    rows = read_rows(Path(data)) if isinstance(data, str | PathLike) else rows_of(data)
    for number, row in enumerate(rows):
        yield row if optional(row, QUERY_IDS) is not None else {"_id": number} | row


def _judgements(data: object) -> Iterator[Row]:
    names = [each[0] for each in JUDGED]
    if isinstance(data, str | PathLike):
        for each in read_judgements(Path(data)):
            yield dict(zip(names, (each.query_id, each.document_id, each.relevance), strict=True))
    elif isinstance(data, Mapping) and not set(data) & {*JUDGED[0]}:  # those of columns
        for query, judged in data.items():
            for docid in judged:
                grade = judged[docid] if isinstance(judged, Mapping) else 1
                yield dict(zip(names, (query, docid, grade), strict=True))
    elif isinstance(data, list | tuple) and isinstance(next(iter(data), None), list | tuple):
        for query, *_, docid, grade in data:
            yield dict(zip(names, (query, docid, grade), strict=True))
    else:
        yield from rows_of(data)
