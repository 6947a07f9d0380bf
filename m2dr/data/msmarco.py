"""MS MARCO passage files, under the names they are published with."""

import re
from collections.abc import Iterator, Mapping, Set
from functools import partial
from pathlib import Path

from m2dr.core.errors import UserError
from m2dr.core.records import Document, Judgement, Query
from m2dr.data.dataset import (
    Corpus,
    Dataset,
    JudgedQueries,
    Negatives,
    Split,
    TableCorpus,
    first_negatives,
)
from m2dr.data.qrels import FindQueries, query_of, read_split
from m2dr.data.tables import has_header, parsed, read_cells, split_in, suffix_of, text_of
from m2dr.data.training_rows import POSITIVES, TrainingRow, build_dataset, training_rows

_QRELS = re.compile(r"^(?P<before>.*?)[.-]?qrels[.-]?(?P<after>.*?)\.(?:tsv|txt)(?:\.gz)?$")
# The archive that official files come in, collectionandqueries.tar.gz, may lie beside them.
_QUERIES = re.compile(r".*queries(?!.*\.tar\b).*\.(tsv|txt)(\.gz)?$")
_TRIPLE = ("query", "positive", "negative")  # ids or texts
_NAMED = ("_id", "text")


def recognises(name: str) -> bool:
    """Return whether the name is a folder with a collection.tsv, text triples or groups."""
    files = _files(Path(name))
    return bool(_collection(files) or _texts(files))


def open_msmarco(name: str) -> Dataset:
    """Open the folder.

    With a collection.tsv, documents stay on disk; splits come from the qrels files and, where a
    split has none, from the id triples; given negatives come from the id triples. Without one,
    the corpus is the documents of text triples and JSONL groups, in memory. A file of text
    triples or groups beside a collection.tsv is a data set of its own: give its path.
    """
    folder = Path(name)
    files = _files(folder)
    collection = _collection(files)
    if collection is None:
        return build_dataset(folder.resolve().name, partial(_rows, _texts(files)))
    corpus = TableCorpus(collection, _NAMED)
    find = partial(_find_queries, [path for path in files if _QUERIES.match(path.name)])
    splits = {
        split: Split(
            partial(read_split, path, corpus, find), partial(_negatives, files, split, corpus)
        )
        for path in files
        if (split := qrels_split(path))
    }
    for split in sorted({split_in(path.name) for path in files if _is(path, "qidpidtriples.")}):
        if split not in splits:
            splits[split] = Split(
                partial(_judged_by_triples, files, split, find),
                partial(_negatives, files, split, corpus),
            )
    return Dataset(folder.resolve().name, corpus, splits)


def recognises_triples(name: str) -> bool:
    """Return whether the name is a file of text triples, without a header."""
    path = Path(name)
    return _is(path, "triples.") and path.is_file() and not has_header(path, POSITIVES)


def open_triples(name: str) -> Dataset:
    """Read a file of text triples into memory; the corpus is the documents of the triples."""
    path = Path(name)
    return build_dataset(path.name.partition(".tsv")[0], partial(_rows, [path]))


def qrels_split(path: Path) -> str:
    """Return the split that a qrels file judges; empty for another file.

    >>> qrels_split(Path("qrels.dev.small.tsv")), qrels_split(Path("2019qrels-pass.txt"))
    ('dev.small', '2019-pass')
    """
    match = _QRELS.match(path.name)
    return "-".join(filter(None, match.groups())) if match else ""


def _is(path: Path, prefix: str) -> bool:
    return path.name.startswith(prefix) and suffix_of(path) == ".tsv"


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _collection(files: list[Path]) -> Path | None:
    names = ("collection.tsv", "collection.tsv.gz")
    return next((path for path in files if path.name in names), None)


def _texts(files: list[Path]) -> list[Path]:
    return [path for path in files if _is(path, "triples.") or suffix_of(path) == ".jsonl"]


def _rows(files: list[Path], scored: bool = False) -> Iterator[TrainingRow]:
    for path in files:
        if suffix_of(path) == ".jsonl":
            yield from training_rows(path, scored)
        else:
            yield from parsed(path, partial(_triple, split_in(path.name)), _TRIPLE)


def _triple(split: str, row: dict[str, str]) -> TrainingRow:
    query, *documents = (text_of(row[name], f"the {name}") for name in _TRIPLE)
    positive, negative = (Document("", text) for text in documents)
    return TrainingRow(split, Query("", query), (positive,), (negative,))


def _find_queries(files: list[Path], wanted: Set[str]) -> Mapping[str, Query]:
    """Return the wanted queries by id, of the first files that hold them, in file order."""
    found: dict[str, Query] = {}
    for path in files:
        for query in parsed(path, query_of, _NAMED):
            if query.id in wanted:
                found.setdefault(query.id, query)
        if found.keys() >= wanted:
            break
    return found


def _id_triples(files: list[Path], split: str) -> Iterator[tuple[str, ...]]:
    """Yield query id, docid that answers, docid that does not."""
    # The triples of "train" also serve a split such as "train.judged", whose queries are fewer.
    for path in files:
        if _is(path, "qidpidtriples.") and split.split(".")[0] == split_in(path.name):
            yield from read_cells(path, _TRIPLE)


def _negatives(files: list[Path], split: str, corpus: Corpus) -> Negatives:
    negatives = first_negatives((query, docid) for query, _, docid in _id_triples(files, split))
    for docids in negatives.values():
        for docid in docids:
            if docid not in corpus:
                raise UserError(f"A negative of {split} is {docid!r}, which the corpus lacks.")
    return negatives


def _judged_by_triples(files: list[Path], split: str, find: FindQueries) -> JudgedQueries:
    pairs = dict.fromkeys((query, docid) for query, docid, _ in _id_triples(files, split))
    queries = find({query for query, _ in pairs})
    for query, _ in pairs:
        if query not in queries:
            raise UserError(f"The triples of {split} name query {query!r}, which has no text.")
    return list(queries.values()), [Judgement(query, docid, 1) for query, docid in pairs]
