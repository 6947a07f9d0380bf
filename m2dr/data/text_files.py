"""Texts to encode, whatever holds them: a file of lines or records, or a corpus."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from m2dr.core.errors import UserError
from m2dr.core.records import Document
from m2dr.data.dataset import DOCUMENT_IDS, DOCUMENT_TEXTS
from m2dr.data.loaders import open_dataset
from m2dr.data.readers import (
    Line,
    encodable,
    header_of,
    identifier,
    optional_identifier,
    optional_string,
    read_lines,
    read_table,
    string,
    suffix_of,
)

Texts = Callable[[], Iterator[Document]]  # a new iterator at each call
ID_KEYS = (*DOCUMENT_IDS, "query_id")
TEXT_KEYS = DOCUMENT_TEXTS  # the first that a record has; of queries also "query"


def open_texts(name: str, queries: bool = False) -> Texts:
    """Return a function that reads the texts of a name, in order, each with an id.

    Of a `.txt` file each line is a text, blank ones too, and its id is its number from 0. A `.tsv`
    file holds an id, a tab and a text per line, or columns that its first line names; a `.jsonl`
    file an object with a text, and perhaps a title and an id. Each of them may be gzipped. Any
    other name is that of a corpus, whose documents are read.

    Args:
        name: of a file or a corpus.
        queries: whether queries are meant: under `query` in a record, and not those of a corpus.

    Raises:
        UserError: there is no such file or corpus, or a corpus is named where queries are meant;
            from the iterator, a line is malformed.
    """
    path = Path(name)
    parse = _PARSERS.get(suffix_of(path))
    if parse and path.is_file():
        keys = (*TEXT_KEYS, "query") if queries else TEXT_KEYS
        if parse is _from_tsv and _has_header(path, keys):
            return lambda: (
                _from_json(row, line._replace(row=cells), keys)
                for row, (line, cells) in enumerate(read_table(path))
            )
        if parse is _from_json:
            parse = partial(parse, keys=keys)
        keep = parse is _from_line  # so that vector number i is that of line number i
        return lambda: (parse(row, line) for row, line in enumerate(read_lines(path, blank=keep)))
    if parse:
        raise UserError(f"There is no file {name}. Correct its name.")
    dataset = open_dataset(name)
    if queries:
        raise UserError(
            f"{name} is a corpus, whose documents are read, and queries were asked for. Give a "
            "file of them, such as its queries.jsonl."
        )
    return dataset.documents


def _has_header(path: Path, keys: Sequence[str]) -> bool:
    """Return whether the first line of a table names its columns.

    It does where it holds the name of a column of texts, first or beside one of ids.

    Raises:
        UserError: it begins with the name of a column of ids, and no column is one of texts.
    """
    header = header_of(path)
    if header is None:
        return False
    line, names = header
    has_texts, has_ids = (not set(names).isdisjoint(known) for known in (keys, ID_KEYS))
    if names[0] in ID_KEYS and not has_texts:
        raise line.error(
            f"begins with {names[0]!r}, as a header does, and names no column of texts "
            f"({', '.join(keys)}). Rename the column that holds them, or take the line out."
        )
    return has_texts and (has_ids or names[0] in keys)


def _from_line(row: int, line: Line) -> Document:
    return Document(str(row), line.text)


def _from_tsv(_: int, line: Line) -> Document:
    name, tab, text = line.text.partition("\t")
    if not tab:
        raise line.error("has no tab between an id and its text.")
    return Document(identifier(line, name, "the id"), encodable(line, text, "the text"))


def _from_json(row: int, line: Line, keys: Sequence[str] = TEXT_KEYS) -> Document:
    record = line.json()
    key = next((key for key in keys if key in record), keys[0])
    docid = optional_identifier(line, record, ID_KEYS) or str(row)
    return Document(docid, string(line, record, key), optional_string(line, record, "title"))


_PARSERS: dict[str, Callable[[int, Line], Document]] = {
    ".txt": _from_line,
    ".tsv": _from_tsv,
    ".jsonl": _from_json,
}
