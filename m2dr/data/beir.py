"""Folders in the layout of BEIR: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv, or as tables."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from m2dr.core.errors import UserError
from m2dr.core.files import absolute_path
from m2dr.data.dataset import Dataset, Split, TableCorpus
from m2dr.data.qrels import find_queries, judgement_files, read_split
from m2dr.data.tables import is_table, unread_files

# Published as one folder of several data sets, whose measures are averaged.
_COMPOSED = {
    "cqadupstack": (
        *("android", "english", "gaming", "gis", "mathematica", "physics", "programmers"),
        *("stats", "tex", "unix", "webmasters", "wordpress"),
    )
}


def recognises(name: str) -> bool:
    """Return whether the name is such a folder, or that of one in a data folder."""
    return find_beir(name) is not None


def data_folders() -> tuple[Path, ...]:
    """Return the folders in which a bare name, such as scifact, is looked for."""
    given = os.environ.get("M2DR_DATA")
    shared = (Path(given) / "beir",) if given else ()
    return (*shared, Path("data"), Path("datasets"))


def find_beir(name: str) -> Path | None:
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
    folder = find_beir(name)
    corpus = folder and _part(folder, "corpus")
    if not folder or not corpus:
        raise UserError(f"There is no corpus.jsonl in {name}; a BEIR folder holds its documents.")
    qrels, unread = judgement_files(folder)
    unread += [path for name in ("corpus", "queries") for path in _parts(folder, name)[1:]]
    unread += unread_files(corpus)
    queries = _part(folder, "queries") or folder / "queries.jsonl"
    folder = absolute_path(folder)
    whole = folder.parent.name
    part = folder.name in _COMPOSED.get(whole, ())
    name = f"{whole}-{folder.name}" if part else folder.name
    return open_parts(name, corpus, queries, qrels, unread)


def open_parts(
    name: str,
    corpus: Path,
    queries: Path,
    qrels: Mapping[str, Path],
    unread: Sequence[Path] = (),
) -> Dataset:
    """Open a data set whose documents, queries and judgements, by split, are tables."""
    documents = TableCorpus(corpus)
    splits = {
        split: Split(partial(read_split, path, documents, partial(find_queries, queries)))
        for split, path in qrels.items()
    }
    return Dataset(name, documents, splits, unread=unread)


def _candidates(name: str) -> tuple[Path, ...]:
    return (Path(name), *(folder / name for folder in data_folders()))


def _is_dataset(folder: Path) -> bool:
    return _part(folder, "corpus") is not None or (
        (folder / "qrels").is_dir() and _part(folder, "queries") is not None
    )


def _part(folder: Path, name: str) -> Path | None:
    """Return the file or folder of a part, such as corpus.jsonl; None when there is none."""
    return next(iter(_parts(folder, name)), None)


def _parts(folder: Path, name: str) -> list[Path]:
    """Return the tables that are called after a part; the first is read."""
    paths = [
        path for path in sorted(folder.glob(f"{name}*")) if path.name.partition(".")[0] == name
    ]
    paths.sort(key=lambda path: (".jsonl" not in path.suffixes, path.is_dir(), len(path.name)))
    return list(filter(is_table, paths))
