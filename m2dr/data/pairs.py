"""Training files of pairs (query, document) or groups (query, positives, negatives).

Both are rows of any file that m2dr.data.tables reads. Keys and columns are found by name.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from m2dr.core.errors import UserError, counted
from m2dr.core.records import Document, Judgement, Query
from m2dr.data.dataset import (
    Dataset,
    JudgedQueries,
    MemoryCorpus,
    NegativeLists,
    Split,
    TeacherScore,
    split_of,
)
from m2dr.data.readers import (
    Line,
    Row,
    nonempty,
    number,
    optional_identifier,
    optional_string,
    string,
)
from m2dr.data.tables import SPLIT_WORDS, name_of, read_records, split_name

# Of several names, the first that a row has counts: m2dr's own, then those of Tevatron,
# sentence-transformers and FlagEmbedding, and single ones in tables.
QUERY_KEYS = ("query", "anchor", "question", "query_text")
POSITIVE_KEYS = ("positive_passages", "positives", "positive", "pos", "answer")
NEGATIVE_KEYS = ("negative_passages", "negatives", "negative", "neg")
POSITIVE_SCORE_KEYS = ("positive_scores", "pos_scores", "positive_score", "pos_score")
NEGATIVE_SCORE_KEYS = ("negative_scores", "neg_scores", "negative_score", "neg_score")
SCORE_KEYS = ("scores", "score", "labels", "label")  # scores of all documents of the row
_DOCUMENT_SCORE = "score"  # key of the score inside a document that is an object
_NUMBERED = re.compile(r"neg(?:ative)?_?(\d+)")  # negative_1, negative_2, one text in each
_PASSAGE_IDS = re.compile(r"(?:positive|negative)_\w*ids")  # the texts are in another file

SHARES = {"train": 0.96, "dev": 0.02, "test": 0.02}  # of the documents of a pair file
_SEED = "pairs-1"  # another seed gives another split, and makes trained models incomparable
_SUFFIXES = (".jsonl", ".jsonl.gz")
_ANSWERS = {"document", *POSITIVE_KEYS}

Numbers = tuple[float, ...]
Rows = Iterator[tuple[Line, Row]]
FindScores = Callable[["RowIds"], Iterable[TeacherScore]]  # of one row, under the ids that it has
Items = list[tuple[str, object]]  # texts or objects, each with the key that holds it


class TrainingRow(NamedTuple):
    """One line of a training file; where an id is empty, one is made."""

    split: str
    query: Query
    positives: tuple[Document, ...]
    negatives: tuple[Document, ...] = ()


class RowIds(NamedTuple):
    """The ids that a row has in the data set."""

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]


class RowScores(NamedTuple):
    """A teacher's scores of the documents of one row, in the row's order."""

    positives: Numbers
    negatives: Numbers
    relative: bool = False  # to the one positive, whose own score is 0


def recognises(name: str) -> bool:
    """Return whether the name is a JSONL file."""
    return name.endswith(_SUFFIXES) and Path(name).is_file()


def answers(columns: Collection[str]) -> bool:
    """Return whether columns hold a query and a document that answers it."""
    return not set(QUERY_KEYS).isdisjoint(columns) and not _ANSWERS.isdisjoint(columns)


def open_rows(name: str) -> Dataset:
    """Read pairs or groups into memory; the columns of the first row say which of them it holds.

    Pairs are split by a hash of the document's text, so no document is in two splits. Groups are
    one split, which the file's name says: train, unless it names dev or test. A column `split`
    decides for both. An empty negative of a table of text is none.

    Args:
        name: a file, a folder or `hf:ID`.
    """
    path = Path(name)
    first = next(read_records(path), None)
    if first is None:
        raise UserError(f"{path} holds no {'line' if recognises(name) else 'row'}.")
    return _dataset(path, first, _object_of(first).keys(), partial(_objects, path))


def build_dataset(
    name: str,
    rows: Callable[[], Iterable[tuple[TrainingRow, FindScores]]],
    order: Iterable[str] = (),
) -> Dataset:
    """Return the data set of all rows.

    Args:
        name: of the data set.
        rows: yields the rows, each with what finds its teacher scores; called again for scores.
        order: splits that come first; the others follow as they came.

    Raises:
        UserError: there is no row.
    """
    builder = DatasetBuilder()
    for row, _ in rows():
        builder.add(row)

    def scores(split: str) -> Iterator[TeacherScore]:
        again = DatasetBuilder()  # the same rows in the same order get the same ids
        for row, find in rows():
            ids = again.add(row)
            if row.split == split:
                yield from find(ids)

    return builder.dataset(name, order, scores)


class DatasetBuilder:
    """Collects rows into a data set. The same title and text are one document, of the first id.

    In such files an id is a label that nothing else refers to, and published ones reuse it for
    other texts (MedQuAD does, in one row of four): the later text gets the id `id~2`.
    """

    def __init__(self) -> None:
        self.documents: dict[str, Document] = {}
        self._docids = _IdAllocator("d")
        self._query_ids = _IdAllocator("q")
        self._splits: dict[str, _SplitBuilder] = {}

    def add(self, row: TrainingRow) -> RowIds:
        """Add one row; the same rows in the same order get the same ids."""
        query_id = self._query_ids.of((row.query.id, row.query.text), row.query.id)
        split = self._splits.setdefault(row.split, _SplitBuilder())
        split.queries[query_id] = Query(query_id, row.query.text)
        positives = tuple(map(self._keep, row.positives))
        negatives = tuple(map(self._keep, row.negatives))
        for docid in positives:
            split.judgements[query_id, docid] = Judgement(query_id, docid, 1)
        for docid in negatives:
            split.negatives.add(query_id, docid)
        return RowIds(query_id, positives, negatives)

    def dataset(
        self,
        name: str,
        order: Iterable[str] = (),
        scores: Callable[[str], Iterable[TeacherScore]] = lambda _: (),
    ) -> Dataset:
        """Return the data set of all rows; see `build_dataset`."""
        if not self.documents:
            raise UserError(f"{name} holds no document.")
        first = [split for split in order if split in self._splits]
        splits = {
            split: Split(
                self._splits[split].judged,
                self._splits[split].negatives.by_query,
                partial(scores, split),
            )
            for split in dict.fromkeys([*first, *self._splits])
        }
        aliases = {"validation": "dev"} if "dev" in splits else {}
        return Dataset(name, MemoryCorpus(self.documents.values()), splits, aliases)

    def _keep(self, document: Document) -> str:
        docid = self._docids.of((document.title, document.text), document.id)
        self.documents.setdefault(docid, Document(docid, document.text, document.title))
        return docid


class _SplitBuilder:
    """Queries, judgements and negatives of one split."""

    def __init__(self) -> None:
        self.queries: dict[str, Query] = {}
        self.judgements: dict[tuple[str, str], Judgement] = {}
        self.negatives = NegativeLists()

    def judged(self) -> JudgedQueries:
        return list(self.queries.values()), list(self.judgements.values())


class _IdAllocator:
    """Gives each text an id: the wanted one, with a number where another text has it."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._ids: dict[tuple[str, str], str] = {}
        self._taken: set[str] = set()
        self._uses: Counter[str] = Counter()

    def of(self, key: tuple[str, str], wanted: str) -> str:
        """Return the id of a text; the first call decides it, an empty `wanted` makes one up."""
        if key not in self._ids:
            name = candidate = wanted or f"{self._prefix}{len(self._ids)}"
            while candidate in self._taken:
                self._uses[name] += 1
                candidate = f"{name}~{self._uses[name] + 1}"
            self._taken.add(candidate)
            self._ids[key] = candidate
        return self._ids[key]


def split_in(path: Path) -> str:
    """Return the split that a file's name contains, else train.

    >>> split_in(Path("mined-dev.jsonl.gz")), split_in(Path("triples.train.small.tsv"))
    ('dev', 'train')
    """
    words = re.split(r"[-_.:]", path.name)
    return next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), "train")


def read_group(line: Line) -> tuple[TrainingRow, FindScores]:
    """Return one group (a query, positives, negatives), and what finds its teacher scores.

    Besides plain strings it reads what other toolkits write: `query_id` and passages of `docid`,
    `title` and `text` (Tevatron); `anchor`, `positive`, `negative_1`, `negative_2`, or a list of
    these texts without their names (sentence-transformers).
    """
    row = _object_of(line)
    return _group(line, row), partial(_scores, line, row, POSITIVE_KEYS)


def _remedy(keys: Collection[str]) -> str:
    """Return what to do with a row of these keys, which no kind of data has."""
    if any(";" in key or "\t" in key for key in keys):
        return "Separate the columns by commas, or by tabs in a .tsv file."
    if "text" in keys:
        return "Add an 'id' to each row."
    return "Rename them to those of one kind."


def _scores(
    line: Line, row: Row, positive_keys: tuple[str, ...], ids: RowIds
) -> Iterator[TeacherScore]:
    """Yield the teacher scores of one row."""
    positives = [item for _, item in _items(row, positive_keys)]
    found = _row_scores(line, row, positives, [item for _, item in _negatives(row)])
    if found is not None:
        origin = ids.positives[0] if found.relative else ""
        docids, values = ids.positives + ids.negatives, found.positives + found.negatives
        for docid, value in zip(docids, values, strict=True):
            yield TeacherScore(line, ids.query, docid, value, origin)


def _dataset(path: Path, first: Line, keys: Collection[str], rows: Callable[[], Rows]) -> Dataset:
    _refuse_passage_ids(first, keys)
    if _ANSWERS.isdisjoint(keys):
        raise first.error(
            f"has neither 'document' (pairs) nor {POSITIVE_KEYS[0]!r} (groups), nor an id and a "
            f"text (documents); its keys are {', '.join(map(repr, keys)) or 'none'}. "
            f"{_remedy(keys)}"
        )
    paired = "document" in keys
    read, positives = (_pair, ("document",)) if paired else (_group, POSITIVE_KEYS)

    def training_rows() -> Iterator[tuple[TrainingRow, FindScores]]:
        for line, row in rows():
            yield read(line, row), partial(_scores, line, row, positives)

    return build_dataset(name_of(path), training_rows, SHARES)


def _object_of(line: Line) -> Row:
    """Return the values of a row; a list of texts is a query, a positive and negatives.

    Empty negatives of a table are left out.
    """
    if line.row is not None:
        return _without_gaps(line.row)
    if not line.text.lstrip().startswith("["):
        return line.json()
    texts = line.parsed()
    other = next((text for text in texts if not isinstance(text, str)), None)
    if other is not None or len(texts) < 2:
        found = f"holds {other!r}" if other is not None else f"has {counted(len(texts), 'items')}"
        raise line.error(
            f"is a list that {found}; such a list is of texts: a query, a positive, negatives."
        )
    query, positive, *negatives = texts
    return {QUERY_KEYS[0]: query, POSITIVE_KEYS[0]: positive, NEGATIVE_KEYS[0]: negatives}


def _objects(path: Path) -> Rows:
    return ((line, _object_of(line)) for line in read_records(path))


def _without_gaps(row: Row) -> Row:
    """Return a row without the empty cells of its negatives."""
    return {
        key: cell
        for key, cell in row.items()
        if cell is None
        or str(cell).strip()
        or not (key in NEGATIVE_KEYS or _NUMBERED.fullmatch(key))
    }


def _pair(line: Line, row: Row) -> TrainingRow:
    text = nonempty(line, string(line, row, "document"), "'document'")
    docid = optional_identifier(line, row, ("document_id",))
    document = Document(docid, text, optional_string(line, row, "title"))
    negatives = _documents(line, _negatives(row))
    split = _named_split(row) or split_of(text, SHARES, _SEED)
    return TrainingRow(split, _query(line, row), (document,), negatives)


def _group(line: Line, row: Row) -> TrainingRow:
    _refuse_passage_ids(line, row)
    positives = _documents(line, _items(row, POSITIVE_KEYS))
    if not positives:
        raise line.error(f"has no positive document under any of {', '.join(POSITIVE_KEYS)}.")
    negatives = _documents(line, _negatives(row))
    split = _named_split(row) or split_in(line.path)
    return TrainingRow(split, _query(line, row), positives, negatives)


def _named_split(row: Row) -> str:
    """Return the split that a column names; empty where there is none."""
    named = row.get("split")
    return split_name(named) if isinstance(named, str) else ""


def _refuse_passage_ids(line: Line, keys: Collection[str]) -> None:
    """Raise UserError where passages are given by id alone; an 'answer' is no passage."""
    by_id = next((key for key in keys if _PASSAGE_IDS.fullmatch(key)), None)
    if by_id and {"document", *POSITIVE_KEYS[:-1]}.isdisjoint(keys):
        raise line.error(
            f"names passages by id under {by_id!r}, and their texts are in another file. m2dr "
            "reads groups that hold them: objects of docid, title and text under "
            f"{POSITIVE_KEYS[0]!r} and {NEGATIVE_KEYS[0]!r}."
        )


def _query(line: Line, row: Row) -> Query:
    query_id = optional_identifier(line, row, ("query_id",))
    there = [key for key in QUERY_KEYS if key in row]
    key = next((key for key in there if row[key] is not None), (*there, QUERY_KEYS[0])[0])
    return Query(query_id, nonempty(line, string(line, row, key), repr(key)))


def _negatives(row: Row) -> Items:
    """Return the negatives in a list and those in columns of their own, by number."""
    numbers = {int(found[1]): key for key in row if (found := _NUMBERED.fullmatch(key))}
    columns = [NEGATIVE_KEYS, *((numbers[number],) for number in sorted(numbers))]
    return [item for keys in columns for item in _items(row, keys)]


def _items(row: Row, keys: tuple[str, ...]) -> Items:
    """Return the items under the first of these keys that the row has, each with the key."""
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
    text = nonempty(line, string(line, item, "text"), f"a text of {key!r}")
    return Document(docid, text, optional_string(line, item, "title"))


def _row_scores(
    line: Line, row: Row, positives: Sequence[object], negatives: Sequence[object]
) -> RowScores | None:
    """Return the scores of a row, or None where it has none.

    They are inside the documents, in a list for the positives and one for the negatives, or in
    one list for all of them. A list that is one shorter than the documents, or a single number,
    holds margins: the positive's score less that of each negative.
    """
    shape = (len(positives), len(negatives))
    documents = (*positives, *negatives)
    if any(isinstance(item, dict) and _DOCUMENT_SCORE in item for item in documents):
        return _split_scores([_score_inside(line, item) for item in documents], shape)
    if _first(row, POSITIVE_SCORE_KEYS) or _first(row, NEGATIVE_SCORE_KEYS):
        return RowScores(
            _scores_of_side(line, row, POSITIVE_SCORE_KEYS, len(positives), "positives"),
            _scores_of_side(line, row, NEGATIVE_SCORE_KEYS, len(negatives), "negatives"),
        )
    key = _first(row, SCORE_KEYS)
    return _scores_of_all(line, key, _numbers(line, row, key), shape) if key else None


def _scores_of_side(line: Line, row: Row, keys: Sequence[str], size: int, what: str) -> Numbers:
    """Return the scores of the positives, or of the negatives."""
    key = _first(row, keys)
    found = _numbers(line, row, key) if key else ()
    if len(found) != size:
        raise line.error(
            f"{key or keys[0]!r} has {counted(len(found), 'scores')} for {counted(size, what)}; "
            "give one for each."
        )
    return found


def _scores_of_all(line: Line, key: str, found: Numbers, shape: tuple[int, int]) -> RowScores:
    positives, negatives = shape
    if len(found) == positives + negatives:
        return _split_scores(found, shape)
    if positives == 1 and len(found) == negatives:
        return RowScores((0.0,), tuple(-margin for margin in found), relative=True)
    raise line.error(
        f"{key!r} has {counted(len(found), 'scores')} for {counted(positives, 'positives')} and "
        f"{counted(negatives, 'negatives')}; give one for each, or one margin for each negative of "
        "a single positive."
    )


def _split_scores(found: Sequence[float], shape: tuple[int, int]) -> RowScores:
    return RowScores(tuple(found[: shape[0]]), tuple(found[shape[0] :]))


def _score_inside(line: Line, item: object) -> float:
    if not isinstance(item, dict) or _DOCUMENT_SCORE not in item:
        raise line.error(
            f"has documents with a {_DOCUMENT_SCORE!r} and one without; give all of them one."
        )
    return number(line, item[_DOCUMENT_SCORE], f"the {_DOCUMENT_SCORE!r} of a document")


def _first(row: Row, keys: Sequence[str]) -> str:
    return next((key for key in keys if row.get(key) not in (None, "")), "")


def _numbers(line: Line, row: Row, key: str) -> Numbers:
    """Return the numbers under a key; a cell of a table holds one, or a list in JSON."""
    value = row[key]
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            raise line.error(f"{key!r} is {value!r}, not a list of numbers.") from None
    values = value if isinstance(value, list) else [value]
    return tuple(number(line, item, f"a score in {key!r}") for item in values)
