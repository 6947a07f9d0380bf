"""Scores of a teacher, such as a cross-encoder: files of them, and training groups with them."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from sys import intern
from typing import Literal

from numpy.random import default_rng

from m2dr.core.errors import UserError, counted
from m2dr.core.files import refuse_pipe
from m2dr.core.records import Group, Query
from m2dr.data.dataset import NEGATIVES_KEPT, Dataset, Negatives, TeacherScore
from m2dr.data.groups import Groups
from m2dr.data.qrels import cells_of
from m2dr.data.readers import Line, begins_with, identifier, number, read_lines, required
from m2dr.data.tables import is_arrow, read_records

# Names of one line in JSONL: {"query_id": …, "document_ids": […], "scores": […]}.
_QUERY = ("query_id", "qid")
_DOCUMENTS = ("document_ids", "docids", "passage_ids", "pids")
_VALUES = ("scores",)
_DOCUMENT, _VALUE = ("document_id", "docid", "passage_id", "pid"), "score"  # of one document
_TITLES = {"score", "pos_score", "margin", "label", "relevance"}  # score column in a header
_PICKLES = {".pkl", ".pickle"}
_PICKLE_START = b"\x80"  # first byte since protocol 2; no text in UTF-8 begins with it
# Two scores of one pair that differ by more come from two teachers; by less, from the precision of
# two batches, and the first is kept.
SAME = 0.1

Cells = list[str]
ScoredSource = Literal["given", "scored"]


def read_scores(path: Path) -> Iterator[TeacherScore]:
    """Yield the scores of a file, plain or gzipped, line by line, or of Arrow tables by row.

    Lines of JSON are `{query: {document: score}}` or objects of `query_id`, `document_ids` and
    `scores`. Tables are recognised by their number of columns: `query document score` (with or
    without a header), `query positive negative margin` (GPL), `positive-score negative-score query
    positive negative` (Hofstätter et al. 2020), and TREC runs, `query Q0 document rank score tag`.
    Arrow tables have `query_id`, and `document_id` and `score` or lists of both.

    Raises:
        UserError: the file cannot be read, is empty or a pickle, or a line is malformed.
    """
    refuse_pipe(path)
    if is_arrow(path):
        for line in read_records(path):
            yield from _of_row(line)
        return
    if _PICKLES & set(path.suffixes) or begins_with(path, _PICKLE_START):
        raise UserError(
            f"{path} is a pickle, and reading a pickle can run any code. If you trust it, write "
            "its scores as lines of JSON, {query: {document: score}}, and name that file in "
            "teacher_scores."
        )
    first = next(read_lines(path), None)
    if first is None:
        raise UserError(f"{path} holds no line.")
    if first.text.lstrip().startswith("{"):
        for line in read_lines(path):
            yield from _of_json(line)
    else:
        yield from _of_columns(path, first)


def _of_row(line: Line) -> Iterator[TeacherScore]:
    """Yield the scores of a row of Arrow: one document, or lists of documents and scores."""
    row = line.json()
    places = (_QUERY, (*_DOCUMENTS, *_DOCUMENT), (*_VALUES, _VALUE))
    query, documents, values = (
        required(line, row, next((name for name in names if name in row), names[0]))
        for names in places
    )
    if isinstance(documents, list):
        yield from _of_lists(line, query, documents, values)
    else:
        yield _score(line, query, documents, values)


def _of_json(line: Line) -> Iterator[TeacherScore]:
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


def _of_lists(
    line: Line, query: object, documents: object, values: object
) -> Iterator[TeacherScore]:
    if not isinstance(documents, list) or not isinstance(values, list):
        raise line.error("has document ids or scores that are not a list.")
    if len(documents) != len(values):
        raise line.error(
            f"has {counted(len(values), 'scores')} for {counted(len(documents), 'documents')}; "
            "give one for each."
        )
    for docid, value in zip(documents, values, strict=True):
        yield _score(line, query, docid, value)


def _of_columns(path: Path, first: Line) -> Iterator[TeacherScore]:
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


def _of_pair(line: Line, cells: Cells) -> Iterator[TeacherScore]:
    query, docid, value = cells
    yield _score(line, query, docid, value)


def _of_margin(line: Line, cells: Cells) -> Iterator[TeacherScore]:
    query, positive, negative, margin = cells
    origin = identifier(line, positive, "the positive docid")
    yield _score(line, query, positive, 0.0, origin)
    yield _score(line, query, negative, -number(line, margin, "the margin"), origin)


def _of_triple(line: Line, cells: Cells) -> Iterator[TeacherScore]:
    above, below, query, positive, negative = cells
    yield _score(line, query, positive, above)
    yield _score(line, query, negative, below)


def _of_run(line: Line, cells: Cells) -> Iterator[TeacherScore]:
    query, _, docid, _, value, _ = cells
    yield _score(line, query, docid, value)


# By the number of columns: the function that reads a line, and the position of the score column.
_LAYOUTS: dict[int, tuple[Callable[[Line, Cells], Iterator[TeacherScore]], int]] = {
    3: (_of_pair, 2),
    4: (_of_margin, 3),
    5: (_of_triple, 0),
    6: (_of_run, 4),
}


def _score(
    line: Line, query: object, docid: object, value: object, origin: str = ""
) -> TeacherScore:
    return TeacherScore(
        line,
        identifier(line, query, "the query id"),
        identifier(line, docid, "the document id"),
        number(line, value, "the score"),
        origin,
    )


class ScoreTable:
    """Scores by query and document, of a bounded number of documents per query.

    Kept are the scores of the relevant documents and of the first `NEGATIVES_KEPT` others.

    Args:
        scores: in any order; read once.
        relevant: relevant docids by query id; scores of other queries are dropped.
        allowed: says whether a document may be a negative of a query, given both ids.

    Raises:
        UserError: two lines give one pair different scores.
    """

    def __init__(
        self,
        scores: Iterable[TeacherScore],
        relevant: Mapping[str, Collection[str]],
        allowed: Callable[[str, str], bool],
    ) -> None:
        self._relevant, self._allowed = relevant, allowed
        # By query id and origin: a margin compares only with those of the same positive.
        self._tables: dict[tuple[str, str], dict[str, float]] = {}
        self.first: TeacherScore | None = None
        for score in scores:
            self.first = self.first or score
            if score.query_id in relevant:
                self._keep(score)

    @property
    def has_scores(self) -> bool:
        """Whether any of the queries has a score."""
        return bool(self._tables)

    def of(self, query_id: str, positive: str) -> Mapping[str, float]:
        """Return the scores that compare with a positive's, by docid; empty where it has none."""
        own = self._tables.get((query_id, positive))
        table = own if own is not None else self._tables.get((query_id, ""), {})
        return table if positive in table else {}

    def _keep(self, score: TeacherScore) -> None:
        relevant = self._relevant[score.query_id]
        if score.origin and score.origin not in relevant:
            return  # a margin to a document that is not relevant
        table = self._tables.setdefault((score.query_id, score.origin), {})
        known = table.get(score.docid)
        if known is not None:
            if abs(known - score.value) > SAME:
                raise score.line.error(
                    f"scores document {score.docid!r} for query {score.query_id!r} with "
                    f"{score.value:g} where a line above gives {known:g}. Give the scores of one "
                    "teacher, each pair once."
                )
        elif score.docid in relevant or (
            len(table) < NEGATIVES_KEPT + len(relevant)
            and self._allowed(score.query_id, score.docid)
        ):
            table[intern(score.docid)] = score.value  # interned: one string for all queries


class ScoredGroups(Groups):
    """Groups whose documents all have a teacher's score; other queries are left out.

    Positives without a score are not drawn, and negatives are drawn from the scored documents. All
    else is as in `Groups`.

    Args:
        dataset: the texts.
        split: of the judgements to train on.
        negatives: number of negatives per group, at least 1.
        source: "given" draws negatives that the data set gives, "scored" any scored document.
        seed: of all random choices.
        scores: of the teacher.
        where: the name of their source in messages.

    Raises:
        UserError: the split has nothing relevant, or no query has enough scores.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: str,
        negatives: int,
        source: ScoredSource,
        seed: int,
        scores: Iterable[TeacherScore],
        where: str,
    ) -> None:
        super().__init__(dataset, split, 0, "none", seed)
        self._wanted = negatives
        self._drawn: Negatives | None = dataset.negatives(split) if source == "given" else None
        self._held: dict[str, bool] = {}  # docid -> whether the corpus holds it
        self._teacher = ScoreTable(scores, self._relevant, self._may_draw)
        count = len(self._queries)
        usable = {query.id: self._usable(query) for query in self._queries}
        self._left_out = [query.id for query in self._queries if not usable[query.id]]
        if len(self._left_out) == count:
            raise self._nothing(split, where)
        self._relevant = {name: docids for name, docids in usable.items() if docids}
        self._queries = [query for query in self._queries if usable[query.id]]
        self.note = self._note(count)

    def __getitem__(self, i: int) -> Group:
        query = self._queries[i]  # raises IndexError past the end, which ends a `for`
        i %= len(self)
        positive = self._positive(query, i)
        table = self._teacher.of(query.id, positive.id)
        candidates = self._candidates(query, table)
        order = default_rng([self._seed, self._epoch, i]).permutation(len(candidates))
        docids = [candidates[int(place)] for place in order[: self._wanted]]
        negatives = tuple(self._dataset.document(docid) for docid in docids)
        return Group(query, positive, negatives, tuple(table[d] for d in (positive.id, *docids)))

    def widest(self) -> float:
        """Return the largest absolute difference between a positive's and a negative's score."""
        return max(
            abs(table[docid] - table[negative])
            for query in self._queries
            for docid in self._relevant[query.id]
            for table in [self._teacher.of(query.id, docid)]
            for negative in self._candidates(query, table)
        )

    def _candidates(self, query: Query, table: Mapping[str, float]) -> list[str]:
        """Return the docids of a table that may be negatives, in its order."""
        barred = self._barred(query)
        return [docid for docid in table if docid not in barred]

    def _usable(self, query: Query) -> list[str]:
        """Return the relevant docids with a score and enough scored negatives."""
        return [
            docid
            for docid in self._relevant[query.id]
            if len(self._candidates(query, self._teacher.of(query.id, docid))) >= self._wanted
        ]

    def _may_draw(self, query_id: str, docid: str) -> bool:
        if self._drawn is not None and docid not in self._drawn.get(query_id, ()):
            return False
        if docid not in self._held:
            self._held[docid] = self._dataset.holds(docid)
        return self._held[docid]

    def _note(self, count: int) -> str:
        absent = sum(not held for held in self._held.values())
        notes = []
        if self._left_out:
            notes.append(
                f"{len(self._left_out):,} of {counted(count, 'queries', ',')} left out, which lack "
                "the teacher's score of a relevant document or of "
                f"{counted(self._wanted, 'other documents')}; {self._left_out[0]!r} is the first."
            )
        if absent:
            scored = counted(absent, "scored documents", ",")
            notes.append(f"{scored} left out, which the corpus does not hold.")
        return " ".join(notes)

    def _nothing(self, split: str, where: str) -> UserError:
        """Return the error for a split without a query that has enough scores."""
        first, name = self._teacher.first, self._dataset.name
        if first is None:
            return UserError(
                f"Distillation needs the scores of a teacher, and {where} has none for the split "
                f"{split!r}. Give its rows pos_scores and neg_scores, or name a file of scores in "
                "teacher_scores."
            )
        if not self._teacher.has_scores:
            return first.line.error(
                f"scores query {first.query_id!r}, and the split {split!r} of {name} has neither "
                f"it nor any other query of {where}: they belong to different data sets. Give the "
                "scores of this one."
            )
        return UserError(
            f"{where} has too few scores for every query of the split {split!r} of {name}: each "
            f"needs a relevant document and {counted(self._wanted, 'other documents')} with a "
            f"score, and {self._left_out[0]!r} has fewer. Score more documents, or set fewer "
            f"negatives. {self._note(len(self._left_out))}"
        )
