"""A folder of MS MARCO passage files, under the names they are published with."""

import re
from collections.abc import Iterator, Mapping, Set
from functools import partial
from pathlib import Path

from m2dr.records.texts import Document, Judgement, Query
from m2dr.text.collection import Asked, Dataset, Negatives, Score, Split
from m2dr.text.corpora import Corpus, open_corpus
from m2dr.text.fields import identifier, valid
from m2dr.text.gathering import Gathering, NegativesKept, Row
from m2dr.text.lines import Line, read_lines
from m2dr.text.pairs import group_row, object_of, scores_of_row, split_in
from m2dr.text.qrels import FindQueries, read_split
from m2dr.text.triples import id_triples, is_id_triples, is_text_triples, text_triples

LOOKED_FOR = ("collection.tsv", "triples.*.tsv", "*.jsonl")  # any one makes it such a folder
_QRELS = re.compile(r"^(?P<before>.*?)[.-]?qrels[.-]?(?P<after>.*?)\.(?:tsv|txt)(?:\.gz)?$")


def recognises(name: str) -> bool:
    """Whether the name is a folder with a collection, text triples or groups."""
    files = _files(Path(name))
    return bool(_collection(files) or _texts(files))


def open_msmarco(name: str) -> Dataset:
    """Open the folder.

    With a collection.tsv, documents stay on disk; splits come from the qrels files and, where a
    split has none, from the id triples; given negatives come from the id triples. Without one,
    the corpus is the documents seen in text triples and JSONL groups, in memory. A file of text
    triples or groups beside a collection is a data set of its own: give its path.
    """
    folder = Path(name)
    files = _files(folder)
    collection = _collection(files)
    if collection is None:
        return _from_texts(folder.resolve().name, files)
    corpus = open_corpus(collection, _document)
    find = partial(find_queries, [path for path in files if "queries" in path.name])
    splits = {
        split: Split(
            partial(read_split, path, corpus, find), partial(_negatives, files, split, corpus)
        )
        for path in files
        if (split := qrels_split(path))
    }
    for split in sorted({split_in(path) for path in files if is_id_triples(path)} - splits.keys()):
        splits[split] = Split(
            partial(_asked_by_triples, files, split, find),
            partial(_negatives, files, split, corpus),
        )
    return Dataset(folder.resolve().name, corpus, splits)


def qrels_split(path: Path) -> str:
    """The split that a qrels file judges, or nothing for another file.

    >>> qrels_split(Path("qrels.dev.small.tsv")), qrels_split(Path("2019qrels-pass.txt"))
    ('dev.small', '2019-pass')
    """
    match = _QRELS.match(path.name)
    return "-".join(filter(None, match.groups())) if match else ""


def find_queries(files: list[Path], wanted: Set[str]) -> Mapping[str, Query]:
    """The wanted queries of the first files that hold them, by id, in file order."""
    found: dict[str, Query] = {}
    for path in files:
        for line in read_lines(path):
            query_id, text = _two(line)
            if query_id in wanted:
                found.setdefault(query_id, Query(query_id, text))
        if found.keys() >= wanted:
            break
    return found


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir()) if folder.is_dir() else []


def _collection(files: list[Path]) -> Path | None:
    named = [path for path in files if path.name in ("collection.tsv", "collection.tsv.gz")]
    return named[0] if named else None


def _texts(files: list[Path]) -> list[Path]:
    return [path for path in files if is_text_triples(path) or _is_groups(path)]


def _is_groups(path: Path) -> bool:
    return path.name.endswith((".jsonl", ".jsonl.gz"))


def _from_texts(name: str, files: list[Path]) -> Dataset:
    gathering = Gathering()
    for row, _ in _rows(files):
        gathering.add(row)
    return gathering.dataset(name, scores=partial(_scores, files))


def _rows(files: list[Path]) -> Iterator[tuple[Row, Line | None]]:
    """Yield the rows of text triples and of groups, a group with its line."""
    for path in _texts(files):
        if _is_groups(path):
            yield from ((group_row(line), line) for line in read_lines(path))
        else:
            yield from ((row, None) for row in text_triples(path))


def _scores(files: list[Path], split: str) -> Iterator[Score]:
    """Yield what a teacher said of the groups of a split, under the ids that gathering gives."""
    gathering = Gathering()
    for row, line in _rows(files):
        ids = gathering.add(row)
        if line and row.split == split:
            yield from scores_of_row(line, object_of(line), ids)


def _document(line: Line) -> Document:
    return Document(*_two(line))


def _two(line: Line) -> tuple[str, str]:
    name, tab, text = line.text.partition("\t")
    if not tab:
        raise line.error("has no tab between an id and a text.")
    return identifier(line, name, "the id"), valid(line, text, "the text")


def _triples_of(files: list[Path], split: str) -> Iterator[tuple[Line, tuple[str, str, str]]]:
    # The triples of "train" also serve a split such as "train.judged", whose queries are fewer.
    for path in files:
        if is_id_triples(path) and split.split(".")[0] == split_in(path):
            yield from id_triples(path)


def _negatives(files: list[Path], split: str, corpus: Corpus) -> Negatives:
    kept = NegativesKept()
    for line, (query_id, _, docid) in _triples_of(files, split):
        if kept.wants(query_id):
            kept.add(query_id, _present(line, docid, corpus))
    return kept.mapping()


def _asked_by_triples(files: list[Path], split: str, find: FindQueries) -> Asked:
    kept: dict[tuple[str, str], Judgement] = {}
    lines: dict[str, Line] = {}
    for line, (query_id, docid, _) in _triples_of(files, split):
        if (query_id, docid) not in kept:
            kept[query_id, docid] = Judgement(query_id, docid, 1)
            lines.setdefault(query_id, line)
    found = find(lines.keys())
    for query_id, line in lines.items():
        if query_id not in found:
            raise line.error(f"names query {query_id!r}, which no queries file holds.")
    return list(found.values()), list(kept.values())


def _present(line: Line, docid: str, corpus: Corpus) -> str:
    if docid not in corpus:
        raise line.error(f"names document {docid!r}, which the corpus does not hold.")
    return docid
