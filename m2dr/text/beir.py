"""A folder in the layout of BEIR: corpus.jsonl, queries.jsonl, qrels/<split>.tsv."""

import os
from collections.abc import Mapping, Set
from functools import partial
from pathlib import Path

from m2dr.errors import UserError
from m2dr.records.texts import Document, Query
from m2dr.text.collection import Dataset, Split
from m2dr.text.corpora import open_corpus
from m2dr.text.fields import identifier, optional_string, required, string
from m2dr.text.lines import Line, read_lines
from m2dr.text.qrels import read_split

# Published as one folder of several collections, whose measures are averaged.
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
    """Whether the name is such a folder, or that of one in a place where data usually lies."""
    return find_folder(name) is not None


def places() -> tuple[Path, ...]:
    """Folders in which a bare name, such as scifact, is looked for."""
    given = os.environ.get("M2DR_DATA")
    shared = (Path(given) / "beir",) if given else ()
    return (*shared, Path("data"), Path("datasets"))


def find_folder(name: str) -> Path | None:
    """The folder that the name means, if it holds what a BEIR folder holds.

    One that lacks its corpus.jsonl alone is meant too, and `open_beir` says so.
    """
    return next(filter(_is_collection, _candidates(name)), None)


def parts_of(name: str) -> dict[str, Path | None]:
    """Return the collections of which a published one consists (CQADupStack's twelve), by name.

    One that is absent has no folder. Empty for the name of anything else.
    """
    for folder in _candidates(name):
        known = _COMPOSED.get(folder.resolve().name, ())
        parts = {part: folder / part for part in known if _is_collection(folder / part)}
        if parts and not _is_collection(folder):
            return {part: parts.get(part) for part in known}
    return {}


def _candidates(name: str) -> tuple[Path, ...]:
    return (Path(name), *(place / name for place in places()))


def _is_collection(folder: Path) -> bool:
    return _either(folder / "corpus.jsonl") is not None or (
        (folder / "qrels").is_dir() and _either(folder / "queries.jsonl") is not None
    )


def open_beir(name: str) -> Dataset:
    """Open the folder; documents stay on disk, queries and judgements are read when wanted."""
    folder = find_folder(name)
    corpus_path = folder and _either(folder / "corpus.jsonl")
    if not folder or not corpus_path:
        raise UserError(f"There is no corpus.jsonl in {name}; a BEIR folder holds its documents.")
    corpus = open_corpus(corpus_path, _document)
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
    """The wanted queries that a queries.jsonl holds, by id, in file order."""
    found: dict[str, Query] = {}
    seen: dict[str, int] = {}
    for line in read_lines(path):
        row = line.json()
        query_id = identifier(line, required(line, row, "_id"), "'_id'")
        query = Query(query_id, string(line, row, "text"))
        first = seen.setdefault(query_id, line.number)
        if first != line.number:
            raise line.error(f"the id {query_id!r} stands in line {first} already.")
        if query_id in wanted:
            found[query_id] = query
    return found


def _name(folder: Path) -> str:
    """Return the folder's name; that of a part says of what it is one."""
    whole = folder.parent.name
    return f"{whole}-{folder.name}" if folder.name in _COMPOSED.get(whole, ()) else folder.name


def _document(line: Line) -> Document:
    row = line.json()
    docid = identifier(line, required(line, row, "_id"), "'_id'")
    return Document(docid, string(line, row, "text"), optional_string(line, row, "title"))


def _either(path: Path) -> Path | None:
    """The file, or the gzipped file beside it, that exists."""
    for candidate in (path, path.with_name(f"{path.name}.gz")):
        if candidate.is_file():
            return candidate
    return None
