"""Files of a teacher's scores by query id and document id, in the forms that they are published."""

from collections.abc import Callable, Iterator
from pathlib import Path

from m2dr.errors import UserError, counted
from m2dr.io import refuse_pipe
from m2dr.text.collection import Score
from m2dr.text.fields import identifier, number
from m2dr.text.lines import Line, begins_with, read_lines
from m2dr.text.qrels import cells_of

# Names of one line in JSONL: {"query_id": …, "document_ids": […], "scores": […]}.
_QUERY = ("query_id", "qid")
_DOCUMENTS = ("document_ids", "docids", "passage_ids", "pids")
_VALUES = ("scores",)
_TITLES = {"score", "pos_score", "margin", "label", "relevance"}  # of the score, in a header
_PICKLES = {".pkl", ".pickle"}
_PICKLED = b"\x80"  # the first byte since protocol 2; no text in UTF-8 begins with it

Cells = list[str]


def read_scores(path: Path) -> Iterator[Score]:
    """Yield the scores of a file, plain or gzipped, one line in memory at a time.

    Lines of JSON are `{query: {document: score}}` or objects of `query_id`, `document_ids` and
    `scores`. Columns are told apart by their number: `query document score` (with or without a
    header), `query positive negative margin` (GPL), `positive-score negative-score query positive
    negative` (Hofstätter et al. 2020), and a TREC run, `query Q0 document rank score tag`.

    Raises:
        UserError: the file cannot be read, is empty or a pickle, or a line is malformed.
    """
    refuse_pipe(path)
    if _PICKLES & set(path.suffixes) or begins_with(path, _PICKLED):
        raise UserError(
            f"{path} is a pickle, which runs any code that it holds when it is read. Where you "
            "trust it, write its scores as lines of JSON, {query: {document: score}}, and name "
            "that file in teacher_scores."
        )
    first = next(read_lines(path), None)
    if first is None:
        raise UserError(f"{path} holds no line.")
    if first.text.lstrip().startswith("{"):
        for line in read_lines(path):
            yield from _of_json(line)
    else:
        yield from _of_columns(path, first)


def _of_json(line: Line) -> Iterator[Score]:
    row = line.json()
    query, documents, values = (
        next((name for name in names if name in row), "") for names in (_QUERY, _DOCUMENTS, _VALUES)
    )
    if query and documents and values:
        yield from _of_lists(line, row[query], row[documents], row[values])
        return
    for query_id, scores in row.items():
        if not isinstance(scores, dict):
            raise line.error(
                f"holds {scores!r} under {query_id!r}; a line is {{query: {{document: score}}}} or "
                f"has {_QUERY[0]!r}, {_DOCUMENTS[0]!r} and {_VALUES[0]!r}."
            )
        for docid, value in scores.items():
            yield _score(line, query_id, docid, value)


def _of_lists(line: Line, query: object, documents: object, values: object) -> Iterator[Score]:
    if not isinstance(documents, list) or not isinstance(values, list):
        raise line.error("has document ids or scores that are no list.")
    if len(documents) != len(values):
        raise line.error(
            f"has {counted(len(values), 'scores')} for {counted(len(documents), 'documents')}; "
            "give one for each."
        )
    for docid, value in zip(documents, values, strict=True):
        yield _score(line, query, docid, value)


def _of_columns(path: Path, first: Line) -> Iterator[Score]:
    size = len(cells_of(first.text))
    if size not in _LAYOUTS:
        raise first.error(
            f"has {counted(size, 'columns')}; scores have 3 (query, document, score), 4 (query, "
            "positive, negative, margin), 5 (two scores, query, positive, negative) or 6 (a TREC "
            "run)."
        )
    read, place = _LAYOUTS[size]
    for line in read_lines(path):
        cells = cells_of(line.text)
        if len(cells) != size:
            raise line.error(
                f"has {counted(len(cells), 'columns')}, and line {first.number} has {size}."
            )
        if line.number != first.number or cells[place].strip().lower() not in _TITLES:
            yield from read(line, cells)


def _of_pair(line: Line, cells: Cells) -> Iterator[Score]:
    query, docid, value = cells
    yield _score(line, query, docid, value)


def _of_margin(line: Line, cells: Cells) -> Iterator[Score]:
    query, positive, negative, margin = cells
    origin = identifier(line, positive, "the positive docid")
    yield _score(line, query, positive, 0.0, origin)
    yield _score(line, query, negative, -number(line, margin, "the margin"), origin)


def _of_triple(line: Line, cells: Cells) -> Iterator[Score]:
    above, below, query, positive, negative = cells
    yield _score(line, query, positive, above)
    yield _score(line, query, negative, below)


def _of_run(line: Line, cells: Cells) -> Iterator[Score]:
    query, _, docid, _, value, _ = cells
    yield _score(line, query, docid, value)


# By the number of columns: what reads them, and the place of the score that a header would name.
_LAYOUTS: dict[int, tuple[Callable[[Line, Cells], Iterator[Score]], int]] = {
    3: (_of_pair, 2),
    4: (_of_margin, 3),
    5: (_of_triple, 0),
    6: (_of_run, 4),
}


def _score(line: Line, query: object, docid: object, value: object, origin: str = "") -> Score:
    return Score(
        line,
        identifier(line, query, "the query id"),
        identifier(line, docid, "the document id"),
        number(line, value, "the score"),
        origin,
    )
