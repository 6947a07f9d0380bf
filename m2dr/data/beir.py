"""Folders in the layout of BEIR: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv, or as tables."""

import os
from collections.abc import Collection, Mapping, Sequence, Set
from functools import partial
from pathlib import Path

from m2dr.core.errors import UserError
from m2dr.core.records import Document, Query
from m2dr.data.dataset import (
    DOCUMENT_COLUMNS,
    DOCUMENT_IDS,
    DOCUMENT_TEXTS,
    Dataset,
    Split,
    open_corpus_file,
)
from m2dr.data.own_fields import own_fields
from m2dr.data.qrels import query_of, read_split
from m2dr.data.readers import Line, Row, identifier, optional_string, refuse_repeat, string
from m2dr.data.tables import (
    ARROW,
    is_arrow,
    is_place,
    read_records,
    split_name,
    stem_without_shard,
)

# Published as one folder of several data sets, whose measures are averaged.
_COMPOSED = {
    "cqadupstack": (
        "android",
        "english",
        "gaming",
        "gis",
        "mathematica",
        "physics",
        "programmers",
        "stats",
        "tex",
        "unix",
        "webmasters",
        "wordpress",
    )
}


def recognises(name: str) -> bool:
    """Return whether the name is such a folder, or that of one in a data folder."""
    return find_folder(name) is not None


def data_folders() -> tuple[Path, ...]:
    """Return the folders in which a bare name, such as scifact, is looked for."""
    given = os.environ.get("M2DR_DATA")
    shared = (Path(given) / "beir",) if given else ()
    return (*shared, Path("data"), Path("datasets"))


def find_folder(name: str) -> Path | None:
    """Return the BEIR folder that the name means.

    One that lacks only its corpus.jsonl is returned too, and `open_beir` refuses it.
    """
    return next(filter(_is_dataset, _candidates(name)), None)


def parts_of(name: str) -> dict[str, Path | None]:
    """Return the folders of the data sets that one consists of (CQADupStack's twelve), by name.

    The folder is None for a part that is absent. Empty for the name of anything else.
    """
    for folder in _candidates(name):
        known = _COMPOSED.get(folder.resolve().name, ())
        parts = {part: folder / part for part in known if _is_dataset(folder / part)}
        if parts and not _is_dataset(folder):
            return {part: parts.get(part) for part in known}
    return {}


def open_beir(name: str) -> Dataset:
    """Open the folder; documents stay on disk, queries and judgements are read when wanted.

    In place of .jsonl and .tsv each part may be a table: corpus.parquet, queries.arrow, or a folder
    of such files, corpus/.
    """
    folder = find_folder(name)
    corpus = folder and _part(folder, "corpus")
    if not folder or not corpus:
        raise UserError(f"There is no corpus.jsonl in {name}; a BEIR folder holds its documents.")
    queries = _part(folder, "queries") or folder / "queries.jsonl"
    return open_parts(_name(folder.resolve()), corpus, queries, _qrels(folder))


def open_parts(name: str, corpus: Path, queries: Path, qrels: Mapping[str, Path]) -> Dataset:
    """Open a data set whose documents, queries and judgements, by split, are places of rows."""
    documents = open_corpus_file(corpus, document_of)
    splits = {
        split: Split(partial(read_split, path, documents, partial(find_queries, queries)))
        for split, path in qrels.items()
    }
    return Dataset(name, documents, splits, {"validation": "dev"} if "dev" in splits else {})


def is_document(columns: Collection[str]) -> bool:
    """Return whether columns hold an id and a text."""
    return not (set(DOCUMENT_IDS).isdisjoint(columns) or set(DOCUMENT_TEXTS).isdisjoint(columns))


def document_of(line: Line) -> Document:
    """Return the document of a row: an id, a text and perhaps a title; the rest are its fields.

    Raises:
        UserError: there is no id or no text, or there are several under different names.
    """
    row = line.json()
    key = _one_of(line, row, DOCUMENT_IDS)
    docid = identifier(line, row[key], repr(key))
    text = string(line, row, _one_of(line, row, DOCUMENT_TEXTS))
    title = optional_string(line, row, "title")
    return Document(docid, text, title, own_fields(row, DOCUMENT_COLUMNS))


def find_queries(path: Path, wanted: Set[str]) -> Mapping[str, Query]:
    """Return the wanted queries of a place of rows by id, in file order."""
    found: dict[str, Query] = {}
    seen: dict[str, tuple[Path, int]] = {}
    for line in read_records(path):
        query = query_of(line)
        refuse_repeat(line, query.id, seen)
        if query.id in wanted:
            found[query.id] = query
    return found


def _candidates(name: str) -> tuple[Path, ...]:
    return (Path(name), *(folder / name for folder in data_folders()))


def _is_dataset(folder: Path) -> bool:
    return _part(folder, "corpus") is not None or (
        (folder / "qrels").is_dir() and _part(folder, "queries") is not None
    )


def _name(folder: Path) -> str:
    """Return the folder's name, that of a part behind the name of the composed data set."""
    whole = folder.parent.name
    return f"{whole}-{folder.name}" if folder.name in _COMPOSED.get(whole, ()) else folder.name


def _one_of(line: Line, row: Row, names: Sequence[str]) -> str:
    """Return the name of the column that a row has; the first name counts before others.

    Raises:
        UserError: none of them, or two of the others.
    """
    there = [name for name in names if name in row]
    if not there:
        found = ", ".join(map(repr, row)) or "none"
        others = " or ".join(map(repr, names[1:]))
        raise line.error(f"has no {names[0]!r}; its keys are {found}, and {others} would do too.")
    if len(there) > 1 and there[0] != names[0]:
        raise line.error(
            f"has {' and '.join(map(repr, there))}, of which one is read; rename the others."
        )
    return there[0]


def _part(folder: Path, name: str) -> Path | None:
    """Return the file or folder of a part, such as corpus.jsonl; None when there is none."""
    for suffix in (".jsonl", *ARROW, ".csv", ".tsv"):
        found = _either(folder / f"{name}{suffix}")
        if found:
            return found
    return folder / name if is_place(folder / name) else None


def _qrels(folder: Path) -> dict[str, Path]:
    """Return the judgements by split, which their file or folder names."""
    found = {}
    for path in sorted((folder / "qrels").glob("*")):
        if path.name.endswith((".tsv", ".tsv.gz")):
            found[path.name.partition(".tsv")[0]] = path
        elif is_arrow(path):
            found[split_name(stem_without_shard(path))] = path
    return found


def _either(path: Path) -> Path | None:
    """Return the file, or the gzipped file beside it; None when neither exists."""
    return next(filter(Path.is_file, (path, path.with_name(f"{path.name}.gz"))), None)
