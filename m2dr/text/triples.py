"""MS MARCO's training triples: a query, what answers it, what does not, in three columns."""

from collections.abc import Iterator
from pathlib import Path

from m2dr.errors import counted
from m2dr.records.texts import Document, Query
from m2dr.text.collection import Dataset
from m2dr.text.fields import filled, identifier
from m2dr.text.gathering import Gathering, Row
from m2dr.text.lines import Line, read_lines
from m2dr.text.pairs import split_in

IdTriple = tuple[str, str, str]  # query id, docid that answers, docid that does not


def recognises(name: str) -> bool:
    """Whether the name is a file of text triples; id triples alone hold no text."""
    return is_text_triples(Path(name)) and Path(name).is_file()


def is_text_triples(path: Path) -> bool:
    """By name, as in triples.train.small.tsv."""
    return path.name.startswith("triples.") and path.name.endswith((".tsv", ".tsv.gz"))


def is_id_triples(path: Path) -> bool:
    """By name, as in qidpidtriples.train.full.2.tsv."""
    return path.name.startswith("qidpidtriples.") and path.name.endswith((".tsv", ".tsv.gz"))


def open_triples(name: str) -> Dataset:
    """Read a file of text triples into memory; the corpus is the documents seen in it."""
    path = Path(name)
    gathering = Gathering()
    for row in text_triples(path):
        gathering.add(row)
    return gathering.dataset(path.name.partition(".tsv")[0])


def text_triples(path: Path) -> Iterator[Row]:
    """Rows of a file of query, positive text and negative text."""
    split = split_in(path)
    for line in read_lines(path):
        query, positive, negative = (
            filled(line, text, "one of the three texts") for text in _three(line, "\t")
        )
        answers, does_not = (Document("", text) for text in (positive, negative))
        yield Row(split, Query("", query), (answers,), (does_not,))


def id_triples(path: Path) -> Iterator[tuple[Line, IdTriple]]:
    """Ids of a file of query id, docid that answers and docid that does not."""
    for line in read_lines(path):
        query, positive, negative = _three(line, None)
        yield (
            line,
            (
                identifier(line, query, "the query id"),
                identifier(line, positive, "the positive docid"),
                identifier(line, negative, "the negative docid"),
            ),
        )


def _three(line: Line, separator: str | None) -> list[str]:
    columns = line.text.split(separator)
    if len(columns) != 3:
        raise line.error(
            f"has {counted(len(columns), 'columns')}, not 3: query, positive, negative."
        )
    return columns
