"""Training data: rows of a query with documents, groups drawn of them, and a teacher's scores.

Shapes in this file: B groups of a batch with N documents, their B positives and all negatives.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path
from sys import intern
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.random import Generator, default_rng

from m2dr.core.arrays import Bools
from m2dr.core.errors import UserError, counted
from m2dr.core.progress import say
from m2dr.core.records import Document, Group, Judgement, Query
from m2dr.data import tables
from m2dr.data.dataset import (
    NEGATIVES_KEPT,
    Dataset,
    JudgedQueries,
    MemoryCorpus,
    Negatives,
    Split,
    TeacherScore,
    first_negatives,
    split_of,
)
from m2dr.data.roles import GROUP, PASSAGE, SCORES, say_unread
from m2dr.data.text_files import first_line

_NUMBERED = re.compile(r"neg(?:ative)?_?(\d+)")  # negative_1, negative_2, one text in each
SHARES = {"train": 0.96, "dev": 0.02, "test": 0.02}  # of the documents of a pair file
_SPLIT_SEED = "pairs-1"  # another seed gives another split, and makes trained models incomparable


class TrainingRow(NamedTuple):
    """A query with documents; where an id is empty, one is made."""

    split: str
    query: Query
    positives: tuple[Document, ...]
    negatives: tuple[Document, ...] = ()
    scores: tuple[float, ...] = ()  # of a teacher, for positives and negatives, or none
    relative: bool = False  # whether scores are relative to the one positive, whose own is 0
    labelled: bool | None = None  # whether a label says what answers; None where negatives do


def open_rows(name: str) -> Dataset:
    """Read pairs or groups of a file, a folder or `hf:ID` into memory.

    A column `split` decides, or else the word train, dev or test in the file's name. Where neither
    does, groups, which have negatives, are for training, and pairs are split by a hash of the
    document's text, so that no document is in two splits.
    """
    path = Path(name)
    if "no_in_batch_neg" in path.name:
        say(f"{name}: training ignores no_in_batch_neg of FlagEmbedding")
    return build_dataset(tables.name_of(path), partial(training_rows, path))


def training_rows(path: Path, scored: bool = False) -> Iterator[TrainingRow]:
    """Yield the rows of a file; `scored` says whether a teacher's scores are read too.

    Rows are those of m2dr, and what other toolkits write: `query_id` and passages of `docid`,
    `title` and `text` (Tevatron); `anchor`, `positive`, `negative_1`, `negative_2`, or a list of
    these texts without their names (sentence-transformers). At the end say which columns are not
    read.
    """
    unread: dict[str, None] = {}
    parse = partial(training_row, tables.split_in(path.name, ""), scored, unread)
    yield from tables.parsed(path, parse)
    say_unread(path, unread)


def training_row(
    split: str, scored: bool, unread: dict[str, None], given: tables.Row
) -> TrainingRow:
    """Return a row of `split`, or of its own; columns that are not read are added to `unread`."""
    # An empty cell of a table holds nothing.
    named = {name.lower(): value for name, value in reversed(given.items()) if value != ""}
    row, rest = GROUP.of(named, "query")
    grouped = GROUP.has(columns := [name.lower() for name in given], "negatives")
    numbers = {int(match[1]): name for name in columns if (match := _NUMBERED.fullmatch(name))}
    several = [row.get("negatives"), *(rest.pop(numbers[n], None) for n in sorted(numbers))]
    positives = _items(row.get("positives"))
    negatives = [item for each in several for item in _items(each) if item != ""]
    if not positives:
        raise ValueError(f"it has no document; its columns are {', '.join(given)}")
    grouped = grouped or bool(numbers)
    known = () if negatives else ("label", "relevance", *(() if grouped else ("scores",)))
    labels = _labels(row, positives, known)
    scores, relative = _scores(row, positives, negatives) if scored else ((), False)
    own = {}
    if named.get("document") is not None:
        own = {"title": rest.pop("title", None), "id": rest.pop("document_id", None)}
    answering = tuple(_document(item, own, unread) for item in positives)
    others = tuple(_document(item, {}, unread) for item in negatives)
    unread.update(dict.fromkeys(rest))
    if labels is not None:
        labels += [False] * len(others)
        order = sorted(range(len(labels)), key=lambda place: not labels[place])
        documents, count = (*answering, *others), sum(labels)
        answering = tuple(documents[place] for place in order[:count])
        others = tuple(documents[place] for place in order[count:])
        compared = scores if answering or not relative else ()  # a margin is that of an answer
        scores = tuple(compared[place] for place in order if compared)
    if isinstance(row.get("split"), str):
        split = tables.split_name(row["split"])
    elif not split:
        pair = len(answering) == 1 and not grouped and labels is None
        split = split_of(answering[0].text, SHARES, _SPLIT_SEED) if pair else "train"
    query = Query(
        tables.id_of(row["id"]) if "id" in row else "", tables.text_of(row["query"], "the query")
    )
    labelled = None if grouped else labels is not None
    return TrainingRow(split, query, answering, others, scores, relative, labelled)


def _labels(row: tables.Row, documents: Sequence[Any], known: Sequence[str]) -> list[bool] | None:
    """Return which documents answer by labels inside them or of the row, which are taken of it."""
    inside = [
        PASSAGE.of(item)[0].get("label") if isinstance(item, dict) else None for item in documents
    ]
    if any(label is not None for label in inside):
        return [_answers(label) for label in inside]
    role = next((role for role in known if role in row), None)
    if role is None:
        return None
    value = _listed(row.pop(role))
    values = value if isinstance(value, list) else [value]
    if len(values) != len(documents):
        raise ValueError(f"its {role} is {value!r:.100}, not one for each of its documents")
    return [_answers(each) for each in values]


def _answers(label: object) -> bool:
    if isinstance(label, str) and label.strip().lower() in ("true", "false"):
        return label.strip().lower() == "true"
    number = tables.number_of(label, "the label of a document")
    if number < 0 or not number.is_integer():
        raise ValueError(
            f"the label of a document is {label!r}, not 1 (it answers the query) or 0 (it does "
            "not); graded pairs need the columns sentence1, sentence2 and score"
        )
    return number > 0


def _items(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _document(item: object, own: tables.Row, unread: dict[str, None]) -> Document:
    """Return a text or an object as a document; a text has the title and id of its pair."""
    values = {"text": item, **own}
    if isinstance(item, dict):
        values, rest = PASSAGE.of(item)
        unread.update(dict.fromkeys(rest))
    docid = values.get("id")
    return Document(
        tables.id_of(docid) if docid is not None else "",
        tables.text_of(values.get("text"), "the text of a document"),
        tables.text_of(values.get("title") or "", "a title", empty=True),
    )


def _scores(
    row: tables.Row, positives: Sequence[Any], negatives: Sequence[Any]
) -> tuple[tuple[float, ...], bool]:
    """Return a teacher's scores of the documents of a row, and whether they are relative.

    They are inside the documents, in a list for the positives and one for the negatives, or in
    one list for all of them. A list that is one shorter than the documents, or a single number,
    holds margins: the positive's score less that of each negative.
    """
    documents = (*positives, *negatives)
    inside = [item.get("score") if isinstance(item, dict) else None for item in documents]
    if any(score is not None for score in inside):
        return tuple(tables.number_of(value, "a score of a document") for value in inside), False
    above, below = (_numbers(row.get(f"{side}_scores")) for side in ("positive", "negative"))
    if above or below:
        if (len(above), len(below)) != (len(positives), len(negatives)):
            raise ValueError(f"it has {len(above)} and {len(below)} scores, not one per document")
        return above + below, False
    numbers = _numbers(row.get("scores", row.get("label")))
    if len(positives) == 1 and numbers and len(numbers) == len(negatives):
        return (0.0, *(-margin for margin in numbers)), True
    if numbers and len(numbers) != len(documents):
        raise ValueError(f"it has {len(numbers)} scores for {len(documents)} documents")
    return numbers, False


def _numbers(value: Any) -> tuple[float, ...]:
    return tuple(tables.number_of(item, "a score") for item in _items(_listed(value)))


# Rows as a data set


def build_dataset(name: str, rows: Callable[..., Iterable[TrainingRow]]) -> Dataset:
    """Return the data set of all rows. The same title and text are one document, of the first id.

    In such files an id is a label that nothing else refers to, and published ones reuse it for
    other texts (MedQuAD does, in one row of four): the later text gets the id `id~2`.

    Args:
        name: of the data set.
        rows: yields the rows; called again, with `scored=True`, where scores are asked for.

    Raises:
        UserError: there is no row, or no answer; some rows have no label, or two say different.
    """
    builder = _Builder()
    labelled: dict[bool, int] = {}  # the first row with a label, and the first without
    for number, row in enumerate(rows(), 1):
        builder.add(row)
        if row.labelled is not None:
            labelled.setdefault(row.labelled, number)
    if not builder.documents:
        raise UserError(f"{name} holds no row.")
    if len(labelled) == 2:
        with_one, without = labelled[True], labelled[False]
        raise UserError(f"{name}: row {with_one} has a label or score, and row {without} has none.")
    for split in builder.splits.values() if True in labelled else ():
        for query_id, docid in split.negatives:
            if (query_id, docid) in split.judgements:
                query, text = split.queries[query_id].text, builder.documents[docid].content
                raise UserError(f"{name}: {text!r:.200} is labelled both ways for {query!r:.200}.")
    if not any(split.judgements for split in builder.splits.values()):
        raise UserError(
            f"{name}: every label is 0, so no document answers its query. An InputExample has the "
            "label 0 by default: give it 1, or give its texts alone."
        )

    def scores(split: str) -> Iterator[TeacherScore]:
        again = _Builder()  # the same rows in the same order get the same ids
        for number, row in enumerate(rows(scored=True), 1):
            query_id, positives, negatives = again.add(row)
            if row.split == split and row.scores:
                origin = positives[0] if row.relative else ""
                for docid, value in zip(positives + negatives, row.scores, strict=True):
                    yield TeacherScore(query_id, docid, value, origin, number)

    order = [split for split in SHARES if split in builder.splits]
    splits = {
        split: Split(
            builder.splits[split].judged,
            partial(first_negatives, builder.splits[split].negatives),
            partial(scores, split),
        )
        for split in dict.fromkeys([*order, *builder.splits])
    }
    return Dataset(name, MemoryCorpus(builder.documents.values()), splits)


class _Builder:
    def __init__(self) -> None:
        self.documents: dict[str, Document] = {}
        self.splits: dict[str, _SplitBuilder] = {}
        self._docids = _IdAllocator("d")
        self._query_ids = _IdAllocator("q")

    def add(self, row: TrainingRow) -> tuple[str, list[str], list[str]]:
        """Add one row, and return the ids of its query, its positives and its negatives."""
        query_id = self._query_ids.of((row.query.id, row.query.text), row.query.id)
        split = self.splits.setdefault(row.split, _SplitBuilder({}, {}, []))
        split.queries[query_id] = Query(query_id, row.query.text)
        docids = []
        for given in (*row.positives, *row.negatives):
            docid = self._docids.of((given.title, given.text), given.id)
            self.documents.setdefault(docid, Document(docid, given.text, given.title))
            docids.append(docid)
        positives, negatives = docids[: len(row.positives)], docids[len(row.positives) :]
        for docid in positives:
            split.judgements[query_id, docid] = Judgement(query_id, docid, 1)
        split.negatives.extend((query_id, docid) for docid in negatives)
        return query_id, positives, negatives


class _SplitBuilder(NamedTuple):
    queries: dict[str, Query]
    judgements: dict[tuple[str, str], Judgement]
    negatives: list[tuple[str, str]]

    def judged(self) -> JudgedQueries:
        answered = {query_id for query_id, _ in self.judgements}
        queries = [query for name, query in self.queries.items() if name in answered]
        return queries, list(self.judgements.values())


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


# Groups


NegativeSource = Literal["given", "random", "none"]


class AnsweredQueries(NamedTuple):
    """Queries with the docids that answer them.

    Attributes:
        queries: those with a relevant document that the corpus holds.
        relevant: these docids by query id, in file order.
        known: relevant docids by query id; queries of the same text share theirs.
        barred: those, and the query's own document where the data set drops it: no negatives.
    """

    queries: list[Query]
    relevant: dict[str, list[str]]
    known: dict[str, frozenset[str]]
    barred: dict[str, frozenset[str]]


class Groups:
    """One group per query with a relevant document, drawn again in each epoch.

    Each epoch uses another relevant document of a query until all were used: NFCorpus has 43 per
    training query, and one group for each would let a few queries dominate the training. Group `i`
    of epoch `e` depends on the seed, `e` and `i` alone, so resumed runs and parallel workers see
    the same data.

    Args:
        dataset: the texts.
        split: of the judgements to train on.
        negatives: number of negatives per group.
        source: "given" takes those of the data set and fills up with random ones; "none" takes
            none, whatever `negatives` says.
        seed: of all random choices.

    Attributes:
        short: queries with fewer given negatives than wanted.

    Raises:
        UserError: the split has nothing relevant, gives no negatives, or has too few documents.
    """

    def __init__(
        self, dataset: Dataset, split: str, negatives: int, source: NegativeSource, seed: int
    ) -> None:
        self._dataset = dataset
        self._wanted = 0 if source == "none" else negatives
        self._seed = seed
        self._epoch = 0
        self._queries, self._relevant, _, self.barred = answered_queries(dataset, split)
        self._given = dataset.negatives(split) if source == "given" and self._wanted else {}
        if source == "given" and self._wanted and not self._given:
            raise UserError(f"{dataset.name} has no negatives for {split!r}; run m2dr mine.")
        self.short = 0
        if self._given:
            self.short = sum(len(self._others(query)) < self._wanted for query in self._queries)
        most = max(len(self.barred[query.id]) for query in self._queries)
        if (left := dataset.document_count - most) < self._wanted:
            raise UserError(f"{self._wanted} negatives were asked for; {left} documents are left.")

    def __len__(self) -> int:
        return len(self._queries)

    def __getitem__(self, i: int) -> Group:
        query = self._queries[i]  # raises IndexError past the end, which ends a `for`
        i %= len(self)
        generator = default_rng([self._seed, self._epoch, i])
        return Group(query, self._positive(query, i), tuple(self._negatives(query, generator)))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0; to be called before the epoch's data workers start."""
        self._epoch = epoch

    def _positive(self, query: Query, i: int) -> Document:
        docids = self._relevant[query.id]
        turn, place = divmod(self._epoch, len(docids))
        # Negatives are drawn from another stream, whose seed has no fourth number.
        order = default_rng([self._seed, turn, i, len(docids)]).permutation(len(docids))
        return self._dataset.document(docids[int(order[place])])

    def _negatives(self, query: Query, generator: Generator) -> list[Document]:
        given = self._others(query)
        order = generator.permutation(len(given))
        negatives = [self._dataset.document(given[int(place)]) for place in order[: self._wanted]]
        taken = {*self.barred[query.id], *(document.id for document in negatives)}
        while len(negatives) < self._wanted:
            row = int(generator.integers(self._dataset.document_count))
            document = self._dataset.document_at(row)
            if document.id not in taken:
                negatives.append(document)
                taken.add(document.id)
        return negatives

    def _others(self, query: Query) -> list[str]:
        barred = self.barred[query.id]
        return [docid for docid in self._given.get(query.id, ()) if docid not in barred]


def answered_queries(dataset: Dataset, split: str) -> AnsweredQueries:
    """Return the queries of a split with a relevant document that the corpus holds.

    Raises:
        UserError: there is no such split, or nothing in it is relevant.
    """
    relevant: dict[str, list[str]] = defaultdict(list)
    for judgement in dataset.judgements(split):
        if judgement.relevance > 0 and dataset.holds(judgement.document_id):
            relevant[judgement.query_id].append(judgement.document_id)
    queries = [query for query in dataset.queries(split) if query.id in relevant]
    if not queries:
        raise UserError(f"{dataset.name}: no query of {split!r} has a relevant document.")
    by_text: dict[str, set[str]] = defaultdict(set)
    for query in queries:
        by_text[query.text].update(relevant[query.id])
    known = {query.id: frozenset(by_text[query.text]) for query in queries}
    own = {query.id: dataset.own_document(query.id) for query in queries}
    barred = {name: known[name] | {docid} if docid else known[name] for name, docid in own.items()}
    return AnsweredQueries(queries, dict(relevant), known, barred)


def documents_of(groups: Sequence[Group]) -> list[Document]:
    """Return the N documents of a batch: the B positives, then the negatives group by group."""
    positives = [group.positive for group in groups]
    return positives + [document for group in groups for document in group.negatives]


def false_negatives(groups: Sequence[Group], barred: Mapping[str, frozenset[str]]) -> Bools:
    """Return which documents of a batch must not count as negatives of which query.

    Those are its positive, the docids that are barred for its text, the positives of other groups
    with the same query text, and any document with the text of one of these or the query's.
    Leaving a document out of the softmax costs little; a relevant one among the negatives teaches
    the opposite of what it should.

    Args:
        groups: B of them.
        barred: docids by query id; see `AnsweredQueries.barred`.

    Returns:
        [B, N], columns as in `documents_of`; False at column b of query b, its own positive.
    """
    documents = documents_of(groups)
    # Strings as numbers, so that all columns are compared at once.
    numbers: dict[str, int] = {}
    codes = [numbers.setdefault(document.content, len(numbers)) for document in documents]
    contents = np.array(codes, np.int64)
    codes_of: dict[str, set[int]] = defaultdict(set)  # docid → numbers of its texts
    for document, code in zip(documents, codes, strict=True):
        codes_of[document.id].add(code)
    answers: dict[str, set[str]] = defaultdict(set)  # query text → docids
    for group in groups:
        answers[group.query.text] |= {group.positive.id, *barred.get(group.query.id, ())}
    masks: dict[str, Bools] = {}
    for text, docids in answers.items():
        same = {code for docid in docids & codes_of.keys() for code in codes_of[docid]}
        masks[text] = np.isin(contents, [*same, numbers.get(text, -1)])
    mask = np.zeros((len(groups), len(documents)), dtype=np.bool_)
    for row, group in enumerate(groups):
        mask[row] = masks[group.query.text]
    np.fill_diagonal(mask, val=False)
    return mask


# A teacher's scores


_TITLES = {"score", "pos_score", "margin", "label", "relevance"}  # score column in a header
# Two scores of one pair that differ by more come from two teachers; by less, from the precision of
# two batches, and the first is kept.
SCORE_TOLERANCE = 0.1

ScoredSource = Literal["given", "scored"]


def read_scores(path: Path) -> Iterator[TeacherScore]:
    """Yield the scores of a file, line by line, or of a table by row.

    Lines of JSON are objects of `query_id`, `document_ids` and `scores`. Tables are recognised by
    their number of columns: `query document score` (with or without a header), `query positive
    negative margin` (GPL), `positive-score negative-score query positive negative` (Hofstätter et
    al. 2020), and TREC runs, `query Q0 document rank score tag`.
    Tables with named columns have `query_id`, and `document_id` and `score` or lists of both.

    Raises:
        UserError: the file cannot be read or is empty, or a line is malformed.
    """
    scores: Iterator[TeacherScore]
    if tables.is_named(path, ".csv") or first_line(path).startswith("{"):
        rows = tables.by_role(path, SCORES, (*SCORES,), partial(_of_row, count(1)))
        scores = chain.from_iterable(rows)
    else:
        scores = _of_columns(path)
    first = next(scores, None)
    if first is None:
        raise UserError(f"{path} holds no score.")
    yield first
    yield from scores


def _of_row(numbers: Iterator[int], row: tables.Row) -> list[TeacherScore]:
    number, query, documents, values = next(numbers), *(row[role] for role in SCORES)
    if isinstance(_listed(documents), list) and isinstance(_listed(values), list):
        documents, values = _listed(documents), _listed(values)
    if not isinstance(documents, list):
        documents, values = [documents], [values]
    if not isinstance(values, list) or len(values) != len(documents):
        raise ValueError(f"its scores are not one for each of {len(documents)} documents")
    pairs = zip(documents, values, strict=True)
    return [_score(number, query, docid, value) for docid, value in pairs]


def _listed(value: Any) -> Any:
    """Return the list that a text spells, as data sets for PyLate have it; others as they are."""
    if not (isinstance(value, str) and value.startswith("[")):
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return value


def _of_columns(path: Path) -> Iterator[TeacherScore]:
    for number, line in enumerate(tables.read_lines(path), 1):
        cells = tables.words_of(line)
        if number == 1 and not _TITLES.isdisjoint(cell.lower() for cell in cells):
            continue
        try:
            match cells:
                case query, docid, value:
                    scores = [_score(number, query, docid, value)]
                case query, positive, negative, margin:
                    below = tables.number_of(margin, "the margin")
                    scores = [
                        _score(number, query, positive, 0, positive),
                        _score(number, query, negative, -below, positive),
                    ]
                case above, beneath, query, positive, negative:
                    scores = [
                        _score(number, query, positive, above),
                        _score(number, query, negative, beneath),
                    ]
                case query, _, docid, _, value, _:
                    scores = [_score(number, query, docid, value)]
                case _:
                    raise ValueError(f"{len(cells)} columns, where scores have 3 to 6")
        except ValueError as error:
            raise UserError(f"{path}, row {number}: {error}.") from None
        yield from scores


def _score(
    number: int, query: object, docid: object, value: object, origin: str = ""
) -> TeacherScore:
    score = tables.number_of(value, "the score")
    return TeacherScore(tables.id_of(query), tables.id_of(docid), score, origin, number)


class ScoredGroups(Groups):
    """Groups whose documents all have a teacher's score; other queries are left out.

    Positives without a score are not drawn, and negatives are drawn from the scored documents: of
    each query the first `NEGATIVES_KEPT`. All else is as in `Groups`.

    Args:
        dataset: the texts.
        split: of the judgements to train on.
        negatives: number of negatives per group, at least 1.
        source: "given" draws negatives that the data set gives, "scored" any scored document.
        seed: of all random choices.
        scores: of the teacher, in any order; read once.
        where: the name of their source in messages.

    Raises:
        UserError: the split has nothing relevant, no query has enough scores, or a pair has two.
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
        self._wanted, self._where = negatives, where
        self._drawn: Negatives | None = dataset.negatives(split) if source == "given" else None
        # By query id and origin: a margin compares only with those of the same positive.
        self._tables: dict[tuple[str, str], dict[str, float]] = {}
        for score in scores:
            if score.query_id in self._relevant:
                self._keep(score)
        if not self._tables:
            raise UserError(f"{where} has no scores of a teacher for the split {split!r}.")
        queries = self._queries
        for query in queries:
            self._relevant[query.id] = [
                docid
                for docid in self._relevant[query.id]
                if len(self._candidates(query, self._table(query.id, docid))) >= negatives
            ]
        self._queries = [query for query in queries if self._relevant[query.id]]
        self.note = ""
        if lacking := [query.id for query in queries if not self._relevant[query.id]]:
            self.note = (
                f"{len(lacking):,} of {counted(len(queries), 'queries', ',')} left out for lack of "
                f"a teacher's scores; {lacking[0]!r} is the first."
            )
        if not self._queries:
            raise UserError(f"{where} has too few scores for every query of {split!r}.")

    def __getitem__(self, i: int) -> Group:
        query = self._queries[i]  # raises IndexError past the end, which ends a `for`
        i %= len(self)
        positive = self._positive(query, i)
        table = self._table(query.id, positive.id)
        candidates = self._candidates(query, table)
        order = default_rng([self._seed, self._epoch, i]).permutation(len(candidates))
        docids = [candidates[int(place)] for place in order[: self._wanted]]
        negatives = tuple(self._dataset.document(docid) for docid in docids)
        return Group(query, positive, negatives, tuple(table[d] for d in (positive.id, *docids)))

    def _keep(self, score: TeacherScore) -> None:
        relevant = self._relevant[score.query_id]
        if score.origin and score.origin not in relevant:
            return  # a margin to a document that is not relevant
        table = self._tables.setdefault((score.query_id, score.origin), {})
        known = table.get(score.docid)
        if known is not None:
            if abs(known - score.value) > SCORE_TOLERANCE:
                raise UserError(
                    f"{self._where}, row {score.row}: the teacher's score of document "
                    f"{score.docid!r} for query {score.query_id!r} is {score.value:g}, and an "
                    f"earlier row has {known:g}."
                )
        elif score.docid in relevant or (
            len(table) < NEGATIVES_KEPT + len(relevant)
            and (self._drawn is None or score.docid in self._drawn.get(score.query_id, ()))
            and self._dataset.holds(score.docid)
        ):
            table[intern(score.docid)] = score.value  # interned: one string for all queries

    def _table(self, query_id: str, positive: str) -> Mapping[str, float]:
        """Return the scores that compare with a positive's, by docid; empty where it has none."""
        own = self._tables.get((query_id, positive))
        table = own if own is not None else self._tables.get((query_id, ""), {})
        return table if positive in table else {}

    def _candidates(self, query: Query, table: Mapping[str, float]) -> list[str]:
        """Return the docids of a table that may be negatives, in its order."""
        barred = self.barred[query.id]
        return [docid for docid in table if docid not in barred]
