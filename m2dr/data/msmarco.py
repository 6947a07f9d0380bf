"""MS MARCO passage files, under the names they are published with."""

import re
from collections.abc import Iterator, Mapping, Set
from functools import partial
from pathlib import Path

from m2dr.core.errors import counted
from m2dr.core.records import Document, Judgement, Query
from m2dr.data.dataset import (
    Corpus,
    Dataset,
    JudgedQueries,
    NegativeLists,
    Negatives,
    Split,
    open_corpus_file,
)
from m2dr.data.pairs import (
    FindScores,
    TrainingRow,
    answers,
    build_dataset,
    read_group,
    split_in,
)
from m2dr.data.qrels import FindQueries, read_split
from m2dr.data.readers import Line, encodable, header_of, identifier, nonempty, read_lines

LOOKED_FOR = ("collection.tsv", "triples.*.tsv", "*.jsonl")  # a folder needs one of them
_QRELS = re.compile(r"^(?P<before>.*?)[.-]?qrels[.-]?(?P<after>.*?)\.(?:tsv|txt)(?:\.gz)?$")
# The archive that official files come in, collectionandqueries.tar.gz, may lie beside them.
_QUERIES = re.compile(r".*queries(?!.*\.tar\b).*\.(tsv|txt)(\.gz)?$")

IdTriple = tuple[str, str, str]  # query id, docid that answers, docid that does not


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
        return build_dataset(folder.resolve().name, partial(_rows, files))
    corpus = open_corpus_file(collection, _document, read_lines)
    find = partial(find_queries, [path for path in files if _QUERIES.match(path.name)])
    splits = {
        split: Split(
            partial(read_split, path, corpus, find), partial(_negatives, files, split, corpus)
        )
        for path in files
        if (split := qrels_split(path))
    }
    for split in sorted({split_in(path) for path in files if is_id_triples(path)} - splits.keys()):
        splits[split] = Split(
            partial(_judged_by_triples, files, split, find),
            partial(_negatives, files, split, corpus),
        )
    return Dataset(folder.resolve().name, corpus, splits)


def recognises_triples(name: str) -> bool:
    """Return whether the name is a file of text triples, without a header."""
    path = Path(name)
    if not is_text_triples(path) or not path.is_file():
        return False
    header = header_of(path)
    return header is None or not answers(header[1])


def is_text_triples(path: Path) -> bool:
    """Return whether the name is that of text triples, as triples.train.small.tsv."""
    return path.name.startswith("triples.") and path.name.endswith((".tsv", ".tsv.gz"))


def is_id_triples(path: Path) -> bool:
    """Return whether the name is that of id triples, as qidpidtriples.train.full.2.tsv."""
    return path.name.startswith("qidpidtriples.") and path.name.endswith((".tsv", ".tsv.gz"))


def open_triples(name: str) -> Dataset:
    """Read a file of text triples into memory; the corpus is the documents of the triples."""
    path = Path(name)
    return build_dataset(path.name.partition(".tsv")[0], partial(_rows, [path]))


def text_triples(path: Path) -> Iterator[TrainingRow]:
    """Yield the rows of a file of query, positive text and negative text."""
    split = split_in(path)
    for line in read_lines(path):
        query, positive, negative = (
            nonempty(line, text, "one of the three texts") for text in _three(line, "\t")
        )
        answers, does_not = (Document("", text) for text in (positive, negative))
        yield TrainingRow(split, Query("", query), (answers,), (does_not,))


def id_triples(path: Path) -> Iterator[tuple[Line, IdTriple]]:
    """Yield the lines and ids of a file of query id, positive docid and negative docid."""
    for line in read_lines(path):
        query, positive, negative = _three(line, None)
        query_id = identifier(line, query, "the query id")
        answers = identifier(line, positive, "the positive docid")
        yield line, (query_id, answers, identifier(line, negative, "the negative docid"))


def qrels_split(path: Path) -> str:
    """Return the split that a qrels file judges; empty for another file.

    >>> qrels_split(Path("qrels.dev.small.tsv")), qrels_split(Path("2019qrels-pass.txt"))
    ('dev.small', '2019-pass')
    """
    match = _QRELS.match(path.name)
    return "-".join(filter(None, match.groups())) if match else ""


def find_queries(files: list[Path], wanted: Set[str]) -> Mapping[str, Query]:
    """Return the wanted queries by id, of the first files that hold them, in file order."""
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
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _collection(files: list[Path]) -> Path | None:
    named = [path for path in files if path.name in ("collection.tsv", "collection.tsv.gz")]
    return named[0] if named else None


def _texts(files: list[Path]) -> list[Path]:
    return [path for path in files if is_text_triples(path) or _is_groups(path)]


def _is_groups(path: Path) -> bool:
    return path.name.endswith((".jsonl", ".jsonl.gz"))


def _rows(files: list[Path]) -> Iterator[tuple[TrainingRow, FindScores]]:
    """Yield the rows of text triples, which have no scores, and of groups."""
    for path in _texts(files):
        if _is_groups(path):
            yield from map(read_group, read_lines(path))
        else:
            yield from ((row, lambda _: ()) for row in text_triples(path))


def _document(line: Line) -> Document:
    return Document(*_two(line))


def _three(line: Line, separator: str | None) -> list[str]:
    columns = line.text.split(separator)
    if len(columns) != 3:
        raise line.error(
            f"has {counted(len(columns), 'columns')}, not 3: query, positive, negative."
        )
    return columns


def _two(line: Line) -> tuple[str, str]:
    name, tab, text = line.text.partition("\t")
    if not tab:
        raise line.error("has no tab between an id and a text.")
    return identifier(line, name, "the id"), encodable(line, text, "the text")


def _triples_of(files: list[Path], split: str) -> Iterator[tuple[Line, IdTriple]]:
    # The triples of "train" also serve a split such as "train.judged", whose queries are fewer.
    for path in files:
        if is_id_triples(path) and split.split(".")[0] == split_in(path):
            yield from id_triples(path)


def _negatives(files: list[Path], split: str, corpus: Corpus) -> Negatives:
    kept = NegativeLists()
    for line, (query_id, _, docid) in _triples_of(files, split):
        if kept.has_room(query_id):
            kept.add(query_id, _present(line, docid, corpus))
    return kept.by_query()


def _judged_by_triples(files: list[Path], split: str, find: FindQueries) -> JudgedQueries:
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
