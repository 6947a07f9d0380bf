"""Files of pairs (query, document) or of groups (query, positives, negatives): JSONL or tables."""

import json
import re
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

from m2dr.errors import UserError, counted
from m2dr.jsontext import reason_of
from m2dr.records.texts import Document, Query
from m2dr.text.collection import Dataset, Score
from m2dr.text.fields import Row, filled, optional_identifier, optional_string, string
from m2dr.text.gathering import Gathering, Ids
from m2dr.text.gathering import Row as TrainingRow
from m2dr.text.lines import Line, read_lines
from m2dr.text.scorecolumns import scores_of
from m2dr.text.splitting import split_of
from m2dr.text.tables import header_of, kind_of, read_table

Rows = Iterator[tuple[Line, Row]]
Items = list[tuple[str, object]]  # texts or objects, each with the key that it stands under
SHARES = {"train": 0.96, "dev": 0.02, "test": 0.02}  # of the documents of a pair file
_SEED = "pairs-1"  # another word is another split, and makes trained models incomparable
# The first of each that a row has counts: m2dr's own names, Tevatron's, sentence-transformers'.
ASKS = ("query", "anchor", "question", "query_text")
POSITIVES = ("positive_passages", "positives", "positive", "pos", "answer")
_NEGATIVES = ("negative_passages", "negatives", "negative", "neg")
_NUMBERED = re.compile(r"neg(?:ative)?_?(\d+)")  # negative_1, negative_2, one text in each
_BY_ID = re.compile(r"(?:positive|negative)_\w*ids")  # passages that stand in another file
_SUFFIXES = (".jsonl", ".jsonl.gz")
_TABLES = (".csv", ".tsv")


def recognises(name: str) -> bool:
    """Whether the name is a JSONL file."""
    return name.endswith(_SUFFIXES) and Path(name).is_file()


def recognises_table(name: str) -> bool:
    """Whether the name is a table whose header names a query and what answers it."""
    path = Path(name)
    if kind_of(path) not in _TABLES or not path.is_file():
        return False
    header = header_of(path)
    if header is None or set(ASKS).isdisjoint(header[1]):
        return False
    return not {"document", *POSITIVES}.isdisjoint(header[1])


def open_jsonl(name: str) -> Dataset:
    """Read the file into memory; its first line says whether it holds pairs or groups.

    Pairs are split by a hash of the document's text, so no document is in two splits. Groups are
    one split, which the file's name says: train, unless it names dev or test.
    """
    path = Path(name)
    first = next(read_lines(path), None)
    if first is None:
        raise UserError(f"{path} holds no line.")
    return _gathered(path, first, object_of(first).keys(), partial(_objects, path))


def open_table(name: str) -> Dataset:
    """Read a table with a header into memory, as `open_jsonl` does; an empty negative is none."""
    path = Path(name)
    header = header_of(path)
    if header is None:
        raise UserError(f"{path} holds no line.")
    return _gathered(path, *header, partial(_table, path))


def _gathered(path: Path, first: Line, keys: Collection[str], rows: Callable[[], Rows]) -> Dataset:
    _refuse_ids(first, keys)
    if {"document", *POSITIVES}.isdisjoint(keys):
        raise first.error(
            f"has neither 'document' (pairs) nor {POSITIVES[0]!r} (groups); "
            f"its keys are {', '.join(map(repr, keys)) or 'none'}."
        )
    gathering = Gathering()
    read = _pair if "document" in keys else _group
    for line, row in rows():
        gathering.add(read(line, row))
    name = path.name.removesuffix(".gz")[: -len(kind_of(path))]
    return gathering.dataset(name, SHARES, lambda split: _scores(rows(), read, split))


def _scores(rows: Rows, read: Callable[[Line, Row], TrainingRow], wanted: str) -> Iterator[Score]:
    """Yield what a teacher said of the rows of a split, under the ids that gathering gives."""
    gathering = Gathering()
    for line, row in rows:
        training = read(line, row)
        ids = gathering.add(training)
        if training.split == wanted:
            yield from scores_of_row(line, row, ids, paired=read is _pair)


def scores_of_row(line: Line, row: Row, ids: Ids, paired: bool = False) -> Iterator[Score]:
    """Yield what a teacher said of the documents of one row.

    Args:
        line: where it stands.
        row: what it holds.
        ids: of its query and documents.
        paired: it is a pair, whose positive stands under 'document'.

    Raises:
        UserError: scores and documents are not as many, or one is not a finite number.
    """
    positives = [row["document"]] if paired else [item for _, item in _answers(row)]
    found = scores_of(line, row, positives, [item for _, item in _given(row)])
    if found is not None:
        origin = ids.positives[0] if found.relative else ""
        docids, values = ids.positives + ids.negatives, found.positives + found.negatives
        for docid, value in zip(docids, values, strict=True):
            yield Score(line, ids.query, docid, value, origin)


def _pair(line: Line, row: Row) -> TrainingRow:
    text = filled(line, string(line, row, "document"), "'document'")
    docid = optional_identifier(line, row, ("document_id",))
    document = Document(docid, text, optional_string(line, row, "title"))
    negatives = _documents(line, _given(row))
    split = split_of(text, SHARES, _SEED)
    return TrainingRow(split, _query(line, row), (document,), negatives)


def group_row(line: Line) -> TrainingRow:
    """One group: a query, documents that answer it, documents that do not.

    Besides plain strings it reads what other toolkits write: `query_id` and passages of `docid`,
    `title` and `text` (Tevatron); `anchor`, `positive`, `negative_1`, `negative_2`, or a list of
    these texts without their names (sentence-transformers).
    """
    return _group(line, object_of(line))


def _group(line: Line, row: Row) -> TrainingRow:
    _refuse_ids(line, row)
    positives = _documents(line, _answers(row))
    if not positives:
        raise line.error(f"has no positive document under any of {', '.join(POSITIVES)}.")
    negatives = _documents(line, _given(row))
    return TrainingRow(split_in(line.path), _query(line, row), positives, negatives)


def _refuse_ids(line: Line, keys: Collection[str]) -> None:
    """Refuse what names its passages by id; an answer beside it is no passage."""
    by_id = next((key for key in keys if _BY_ID.fullmatch(key)), None)
    if by_id and {"document", *POSITIVES[:-1]}.isdisjoint(keys):
        raise line.error(
            f"names passages by id under {by_id!r}, and their texts stand in another file. m2dr "
            "reads groups that hold them: objects of docid, title and text under "
            f"{POSITIVES[0]!r} and {_NEGATIVES[0]!r}."
        )


def split_in(path: Path) -> str:
    """The split that a file's name speaks of.

    >>> split_in(Path("mined-dev.jsonl.gz")), split_in(Path("triples.train.small.tsv"))
    ('dev', 'train')
    """
    words = path.name.replace("-", ".").replace("_", ".").split(".")
    return next((word for word in words if word in SHARES), "train")


def object_of(line: Line) -> Row:
    """Return the JSON object of a line; a list of texts is a query, a positive and negatives."""
    if not line.text.lstrip().startswith("["):
        return line.json()
    try:
        texts = json.loads(line.text)
    except (ValueError, RecursionError) as error:
        raise line.error(f"is not JSON ({reason_of(error)}).") from None
    other = next((text for text in texts if not isinstance(text, str)), None)
    if other is not None or len(texts) < 2:
        found = f"holds {other!r}" if other is not None else f"has {counted(len(texts), 'items')}"
        raise line.error(
            f"is a list that {found}; such a list is of texts: a query, a positive, negatives."
        )
    query, positive, *negatives = texts
    return {ASKS[0]: query, POSITIVES[0]: positive, _NEGATIVES[0]: negatives}


def _objects(path: Path) -> Rows:
    return ((line, object_of(line)) for line in read_lines(path))


def _table(path: Path) -> Rows:
    return ((line, _without_gaps(row)) for line, row in read_table(path))


def _without_gaps(row: Row) -> Row:
    return {key: cell for key, cell in row.items() if str(cell).strip() or not _is_negative(key)}


def _is_negative(key: str) -> bool:
    return key in _NEGATIVES or _NUMBERED.fullmatch(key) is not None


def _query(line: Line, row: Row) -> Query:
    query_id = optional_identifier(line, row, ("query_id",))
    key = next((key for key in ASKS if row.get(key) is not None), ASKS[0])
    return Query(query_id, filled(line, string(line, row, key), repr(key)))


def _answers(row: Row) -> Items:
    return _items(row, POSITIVES)


def _given(row: Row) -> Items:
    """Return the negatives in a list and those in columns of their own, by number."""
    numbers = {int(found[1]): key for key in row if (found := _NUMBERED.fullmatch(key))}
    columns = [_NEGATIVES, *((numbers[number],) for number in sorted(numbers))]
    return [item for keys in columns for item in _items(row, keys)]


def _items(row: Row, keys: tuple[str, ...]) -> Items:
    """Return what stands under the first of these keys that is there, each with the key."""
    key = next((key for key in keys if row.get(key) is not None), None)
    if key is None:
        return []
    value = row[key]
    return [(key, item) for item in (value if isinstance(value, list) else [value])]


def _documents(line: Line, items: Items) -> tuple[Document, ...]:
    return tuple(_document(line, item, key) for key, item in items)


def _document(line: Line, item: object, key: str) -> Document:
    if isinstance(item, str):
        item = {"text": item}
    if not isinstance(item, dict):
        raise line.error(f"{key!r} holds {item!r}, which is neither a text nor an object.")
    docid = optional_identifier(line, item, ("docid", "document_id", "_id", "id"))
    text = filled(line, string(line, item, "text"), f"a text of {key!r}")
    return Document(docid, text, optional_string(line, item, "title"))
