"""Folders in the layout of BEIR: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv."""

import os
from collections.abc import Mapping, Set
from functools import partial
from pathlib import Path

from m2dr.data.dataset import Dataset, Split, open_corpus_file
from m2dr.data.qrels import read_split
from m2dr.data.readers import (
    Line,
    identifier,
    optional_string,
    read_lines,
    refuse_repeat,
    required,
    string,
)
from m2dr.errors import UserError
from m2dr.records.texts import Document, Query

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
    """Open the folder; documents stay on disk, queries and judgements are read when wanted."""
    folder = find_folder(name)
    corpus_path = folder and _either(folder / "corpus.jsonl")
    if not folder or not corpus_path:
        raise UserError(f"There is no corpus.jsonl in {name}; a BEIR folder holds its documents.")
    corpus = open_corpus_file(corpus_path, _document)
    queries = _either(folder / "queries.jsonl") or folder / "queries.jsonl"
    qrels = [*(folder / "qrels").glob("*.tsv"), *(folder / "qrels").glob("*.tsv.gz")]
    splits = {
        path.name.partition(".tsv")[0]: Split(
            partial(read_split, path, corpus, partial(find_queries, queries))
        )
        for path in sorted(qrels)
    }
    return Dataset(_name(folder.resolve()), corpus, splits)


def find_queries(path: Path, wanted: Set[str]) -> Mapping[str, Query]:
    """Return the wanted queries of a queries.jsonl by id, in file order."""
    found: dict[str, Query] = {}
    seen: dict[str, int] = {}
    for line in read_lines(path):
        row = line.json()
        query_id = identifier(line, required(line, row, "_id"), "'_id'")
        query = Query(query_id, string(line, row, "text"))
        refuse_repeat(line, query_id, seen)
        if query_id in wanted:
            found[query_id] = query
    return found


def _candidates(name: str) -> tuple[Path, ...]:
    return (Path(name), *(folder / name for folder in data_folders()))


def _is_dataset(folder: Path) -> bool:
    return _either(folder / "corpus.jsonl") is not None or (
        (folder / "qrels").is_dir() and _either(folder / "queries.jsonl") is not None
    )


def _name(folder: Path) -> str:
    """Return the folder's name, that of a part behind the name of the composed data set."""
    whole = folder.parent.name
    return f"{whole}-{folder.name}" if folder.name in _COMPOSED.get(whole, ()) else folder.name


def _document(line: Line) -> Document:
    row = line.json()
    docid = identifier(line, required(line, row, "_id"), "'_id'")
    return Document(docid, string(line, row, "text"), optional_string(line, row, "title"))


def _either(path: Path) -> Path | None:
    """Return the file, or the gzipped file beside it; None when neither exists."""
    return next(filter(Path.is_file, (path, path.with_name(f"{path.name}.gz"))), None)
