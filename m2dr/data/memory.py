"""Data in memory, with columns of other names, or in passages, as files that commands open."""

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, count
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import msgspec

from m2dr.core.errors import UserError
from m2dr.core.files import (
    cache_folder,
    file_state,
    json_sha256,
    read_record,
    sha256_of,
    write_record,
)
from m2dr.core.records import Document
from m2dr.data import tables
from m2dr.data.dataset import as_documents, row_of_document
from m2dr.data.loaders import open_dataset
from m2dr.data.qrels import JUDGED, judgement_of, read_judgements
from m2dr.data.roles import DOCUMENT, GROUP, JUDGEMENT, METADATA, PLAIN, QUERY
from m2dr.data.tables import Row, by_role, id_of, made, name_of, read_rows, row_of, rows_of, text_of
from m2dr.data.training_rows import training_row

CORPUS_FILE = "corpus.jsonl"  # of a folder in the layout of BEIR, which every command opens
Columns = Mapping[str, str]  # by m2dr's name of a column, that of the data
Passages = tuple[int, int]  # words of each, and of its overlap with the one before
_MADE = "made.json"  # beside a copy in the cache
_BYTES = (bytes, bytearray, memoryview)
_encode = msgspec.json.Encoder(enc_hook=lambda _: None).encode


@dataclass(frozen=True)
class Made:
    """What a copy in the cache was made from: a file, and how it was read."""

    path: str
    columns: tuple[tuple[str, str], ...] = ()
    passages: Passages | None = None

    @classmethod
    def of(cls, name: str) -> "Made":
        """Return what a file was made from; of one that is no copy, the file itself."""
        record = Path(name).parent / _MADE
        of_cache = cache_folder() / "data" in record.parents and record.exists()
        return read_record(record, cls) if of_cache else cls(name)


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
    parts = {CORPUS_FILE: _kept(data, columns or {}, passages)}
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


def documents_in(
    data: object, columns: Columns | None, passages: Passages | None = None, first: int | None = 0
) -> Iterator[Document]:
    """Yield the documents of data in memory; arguments as of `name_of_data` and `as_documents`."""
    documents = as_documents(_renamed(rows_of(data), columns or {}), first)
    return passages_of(documents, passages) if passages else documents


def document_of(passage: str) -> str:
    """Return the id of a document of which `passages_of` made a passage of this id."""
    return re.sub(r"#[1-9][0-9]*$", "", passage)


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
    files: Iterable[Path] = [path] if path.is_file() else sorted(path.rglob("*"))
    name = name_of(path)
    if not tables.is_table(path):
        dataset = open_dataset(str(path))
        files, name = dataset.files, dataset.name
        if columns:
            told = "give the file of its documents or training rows"
            raise UserError(f"Columns are those of a table, and {path} is none; {told}.")
        if not files:
            raise UserError(f"Passages are made of documents in files, and {path} has none.")
    stamps = [(str(file), *file_state(file)) for file in files]
    key = json_sha256([str(path.resolve()), stamps, dict(columns), passages])[:12]
    folder = cache_folder() / "data" / key
    target = folder / f"{name}.jsonl"
    if not (target.exists() and (folder / _MADE).exists()):
        folder.mkdir(parents=True, exist_ok=True)
        write_record(folder / _MADE, Made(str(path), tuple(columns.items()), passages))
        with tempfile.TemporaryDirectory(prefix=".", dir=folder) as aside:
            _write(Path(aside), {target.name: _kept(path, columns, passages)})
            Path(aside, target.name).replace(target)
    return str(target)


def _write(folder: Path, parts: Mapping[str, Iterable[Row]]) -> None:
    for name, rows in parts.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            file.writelines(_encode(row) + b"\n" for row in rows)
            if not file.tell():
                raise UserError(f"No rows were given for {path.stem}.")


def _kept(data: object, columns: Columns, passages: Passages | None) -> Iterator[Row]:
    """Yield documents by role, and rows to train on as they are, without their bytes."""
    if isinstance(data, str | PathLike) and not columns:
        documents = open_dataset(fspath(data)).documents()
        documents = passages_of(documents, passages) if passages else documents
        yield from map(row_of_document, documents)
        return
    rows = read_rows(Path(data)) if isinstance(data, str | PathLike) else rows_of(data)
    rows = _renamed(rows, columns)
    first = next(rows, Row())
    rows = chain([first] if first else [], rows)
    if passages or (DOCUMENT.has(first, "text") and not GROUP.has(first, "query")):
        documents = as_documents(rows)
        documents = passages_of(documents, passages) if passages else documents
        yield from map(row_of_document, documents)
        return
    check = partial(training_row, "", False, {}) if GROUP.has(first, "query", "positives") else dict
    for number, row in enumerate(rows):
        made(check, row, number)  # JSON may hold its ids and texts otherwise
        yield {name: value for name, value in row.items() if not isinstance(value, _BYTES)}


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
            inside = inner if isinstance(inner, Mapping) else {METADATA[0]: inner}
            rest[METADATA[0]] = {**lost, **inside}
        yield rest | {to: row[name] for to, name in used.items()}
    if row and absent:
        raise UserError(f"There is no column {min(absent)!r}; the columns are {', '.join(row)}.")


def _is_labelled(data: object) -> bool:
    """Return whether data is a series of pandas with labels that may be meant as ids."""
    series = hasattr(data, "notna") and hasattr(data, "index") and not hasattr(data, "columns")
    return series and list(data.index) != [*range(len(data.index))]  # type: ignore[attr-defined]  # it has one


def _queries(data: object) -> Iterator[Row]:
    named = isinstance(data, str | PathLike)
    rows = read_rows(Path(data)) if named else rows_of(data, _query)  # type: ignore[arg-type]  # a path
    numbers, has_ids = count(), list[bool]()

    def query(values: Row) -> Row:
        number = next(numbers)
        has_ids.append("id" in values)
        if has_ids[0] != has_ids[-1]:
            raise ValueError(f"it has {'no' if has_ids[0] else 'an'} id, unlike the first")
        text = text_of(values["text"], "the text", empty=True)
        return {"_id": id_of(values.get("id", number)), "text": text}

    return by_role(rows, QUERY, ("text",), query)


def _query(item: Any) -> Row:  # of any form
    if isinstance(item, list | tuple) and not hasattr(item, "_fields"):
        if len(item) != 2:
            raise ValueError(f"it is {item!r:.100}, not the id of a query and its text")
        return dict(zip(PLAIN, item, strict=True))
    return row_of(item)


def _judgements(data: object) -> Iterator[Row]:
    if isinstance(data, str | PathLike):
        return map(asdict, read_judgements(Path(data)))
    if isinstance(data, Mapping) and not JUDGEMENT.has(data, "query"):  # those of columns
        data = [pair for query, judged in data.items() for pair in _pairs(query, judged)]
    rows = rows_of(data, _judgement)
    return map(asdict, by_role(rows, JUDGEMENT, JUDGED, judgement_of))


def _pairs(query: object, judged: Any) -> list[tuple[object, object, object]]:
    docids = [judged] if isinstance(judged, str | bytes) else judged
    if _is_labelled(docids) or not isinstance(docids, Iterable):
        kind = type(judged).__name__
        raise UserError(f"The judgements of {query!r} are of the type {kind}, not docids.")
    ordered = sorted(docids, key=str) if isinstance(docids, set) else docids
    return [(query, each, judged[each] if isinstance(judged, Mapping) else 1) for each in ordered]


def _judgement(item: Any) -> Row:  # of any form
    if not isinstance(item, list | tuple) or hasattr(item, "_fields"):
        return row_of(item)
    if len(item) not in (3, 4):
        raise ValueError(f"it is {item!r:.100}, not a query id, a docid and a relevance")
    return {"query_id": item[0], "document_id": item[-2], "relevance": item[-1]}
