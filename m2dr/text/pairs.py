"""JSONL files of pairs (query, document) or of groups (query, positives, negatives)."""

from pathlib import Path

from m2dr.errors import UserError
from m2dr.records.texts import Document, Query
from m2dr.text.collection import Dataset
from m2dr.text.fields import filled, optional_identifier, optional_string, string
from m2dr.text.gathering import Gathering
from m2dr.text.gathering import Row as TrainingRow
from m2dr.text.lines import Line, read_lines
from m2dr.text.splitting import split_of

Row = dict[str, object]

SHARES = {"train": 0.96, "dev": 0.02, "test": 0.02}  # of the documents of a pair file
_SEED = "pairs-1"  # another word is another split, and makes trained models incomparable
_POSITIVES = ("positive_passages", "positives", "positive", "pos")
_NEGATIVES = ("negative_passages", "negatives", "negative", "neg")
_SUFFIXES = (".jsonl", ".jsonl.gz")


def recognises(name: str) -> bool:
    """Whether the name is such a file."""
    return name.endswith(_SUFFIXES) and Path(name).is_file()


def open_jsonl(name: str) -> Dataset:
    """Read the file into memory; its first line says whether it holds pairs or groups.

    Pairs are split by a hash of the document's text, so no document is in two splits. Groups are
    one split, which the file's name says: train, unless it names dev or test.
    """
    path = Path(name)
    first = next(read_lines(path), None)
    if first is None:
        raise UserError(f"{path} holds no line.")
    keys = first.json().keys()
    if not keys & {"document", *_POSITIVES}:
        raise first.error(
            f"has neither 'document' (pairs) nor {_POSITIVES[0]!r} (groups); "
            f"its keys are {', '.join(map(repr, keys)) or 'none'}."
        )
    gathering = Gathering()
    read = _pair if "document" in keys else group_row
    for line in read_lines(path):
        gathering.add(read(line))
    return gathering.dataset(path.name.partition(".jsonl")[0], order=SHARES)


def _pair(line: Line) -> TrainingRow:
    row = line.json()
    text = filled(line, string(line, row, "document"), "'document'")
    docid = optional_identifier(line, row, ("document_id",))
    document = Document(docid, text, optional_string(line, row, "title"))
    negatives = _documents(line, row, _NEGATIVES)
    split = split_of(text, SHARES, _SEED)
    return TrainingRow(split, _query(line, row), (document,), negatives)


def group_row(line: Line) -> TrainingRow:
    """One group: a query, documents that answer it, documents that do not.

    Besides plain strings it reads what other toolkits write: `query_id`, and passages of `docid`,
    `title` and `text`.
    """
    row = line.json()
    positives = _documents(line, row, _POSITIVES)
    if not positives:
        raise line.error(f"has no positive document under any of {', '.join(_POSITIVES)}.")
    split = split_in(line.path)
    return TrainingRow(split, _query(line, row), positives, _documents(line, row, _NEGATIVES))


def split_in(path: Path) -> str:
    """The split that a file's name speaks of.

    >>> split_in(Path("mined-dev.jsonl.gz")), split_in(Path("triples.train.small.tsv"))
    ('dev', 'train')
    """
    words = path.name.replace("-", ".").replace("_", ".").split(".")
    return next((word for word in words if word in SHARES), "train")


def _query(line: Line, row: Row) -> Query:
    query_id = optional_identifier(line, row, ("query_id",))
    return Query(query_id, filled(line, string(line, row, "query"), "'query'"))


def _documents(line: Line, row: Row, keys: tuple[str, ...]) -> tuple[Document, ...]:
    key = next((key for key in keys if row.get(key) is not None), None)
    if key is None:
        return ()
    value = row[key]
    return tuple(
        _document(line, item, key) for item in (value if isinstance(value, list) else [value])
    )


def _document(line: Line, item: object, key: str) -> Document:
    if isinstance(item, str):
        item = {"text": item}
    if not isinstance(item, dict):
        raise line.error(f"{key!r} holds {item!r}, which is neither a text nor an object.")
    docid = optional_identifier(line, item, ("docid", "document_id", "_id", "id"))
    text = filled(line, string(line, item, "text"), f"a text of {key!r}")
    return Document(docid, text, optional_string(line, item, "title"))
