"""Files of judgements (qrels), with three columns as in BEIR or four as in TREC, and of queries."""

import re
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path

from m2dr.core.errors import UserError, counted
from m2dr.core.records import Judgement, Query
from m2dr.data.dataset import Corpus, JudgedQueries
from m2dr.data.readers import (
    Line,
    identifier,
    nonempty,
    optional_identifier,
    read_lines,
    refuse_repeat,
    required,
    string,
)
from m2dr.data.tables import is_arrow, read_records

ID_KEYS = ("_id", "id", "query_id")
TEXT_KEYS = ("text", "query")
# Columns of a table of judgements: query, document, relevance; the first name that a row has.
JUDGED_COLUMNS = (
    ("query-id", "query_id", "qid"),
    ("corpus-id", "corpus_id", "docid", "document_id", "doc_id", "pid"),
    ("score", "relevance", "rel", "label"),
)
_SCORE_TITLES = {"score", "relevance", "rel", "label"}  # last column of a header
_QUOTED = re.compile(r'"(?:[^"]|"")*"')  # a cell as CSV quotes it

FindQueries = Callable[[Set[str]], Mapping[str, Query]]  # wanted ids → those found, in file order


def read_judgements(path: Path) -> Iterator[tuple[Line, Judgement]]:
    """Yield the judgements of a file with their lines; columns are split by tabs or spaces.

    `query-id corpus-id score`, with or without that header, or `qid 0 docid relevance`. Between
    tabs a cell may be quoted, as BEIR's files quote ids that hold a quotation mark. In Arrow
    tables, columns are found by the names in JUDGED_COLUMNS.
    """
    if is_arrow(path):
        yield from ((line, _judgement(line)) for line in read_records(path))
        return
    for line in read_lines(path):
        columns = cells_of(line.text)
        if line.number == 1 and columns[-1].strip().lower() in _SCORE_TITLES:
            continue
        if len(columns) not in (3, 4):
            raise line.error(
                f"has {counted(len(columns), 'columns')}; a judgement has 3 (query, document, "
                "score) or 4 (query, 0, document, score)."
            )
        query, document, score = columns[0], columns[-2], columns[-1]
        yield (
            line,
            Judgement(
                identifier(line, query, "the query id"),
                identifier(line, document, "the document id"),
                _relevance(line, score),
            ),
        )


def _judgement(line: Line) -> Judgement:
    row = line.json()
    query, document, score = (
        required(line, row, next((name for name in names if name in row), names[0]))
        for names in JUDGED_COLUMNS
    )
    return Judgement(
        identifier(line, query, "the query id"),
        identifier(line, document, "the document id"),
        _relevance(line, str(score)),
    )


def cells_of(text: str) -> list[str]:
    """Return the columns of a line, split by tabs (then unquoted as in CSV) or else by spaces."""
    if "\t" not in text:
        return text.split()
    if '"' not in text:
        return text.split("\t")
    return [
        cell[1:-1].replace('""', '"') if _QUOTED.fullmatch(cell) else cell
        for cell in text.split("\t")
    ]


def read_split(path: Path, corpus: Corpus, find_queries: FindQueries) -> JudgedQueries:
    """Return the judged queries that have a text, and all judgements of a file.

    Published sets judge documents and queries that their files lack (ArguAna five documents).
    These judgements are kept, as in trec_eval: such a document is relevant and never found.

    Raises:
        UserError: two judgements of one pair differ, there is none, or no judged query or no
            judged document is in the files, which then belong to another data set.
    """
    rows = list(read_judgements(path))
    found = find_queries({judgement.query_id for _, judgement in rows})
    kept: dict[tuple[str, str], Judgement] = {}
    for line, judgement in rows:
        first = kept.setdefault((judgement.query_id, judgement.document_id), judgement)
        if first != judgement:
            raise line.error(
                f"judges document {first.document_id!r} {judgement.relevance} for query "
                f"{first.query_id!r}, and a line above {first.relevance}. Keep one of the two."
            )
    if not kept:
        raise UserError(f"{path} holds no judgement. Write one to a line: query, document, score.")
    if not found:
        raise _mismatch(*rows[0], "query", "queries file")
    if all(judgement.document_id not in corpus for judgement in kept.values()):
        raise _mismatch(*rows[0], "document", "corpus")
    return list(found.values()), list(kept.values())


def read_topics(path: Path) -> list[Query]:
    """Return the queries of a file in its order: `id<tab>text` lines, or JSONL by its suffix.

    Raises:
        UserError: the file cannot be read, is empty, or a line is malformed or repeats an id.
    """
    named = ".jsonl" in path.suffixes or is_arrow(path)
    found: list[Query] = []
    seen: dict[str, tuple[Path, int]] = {}
    for line in read_records(path) if is_arrow(path) else read_lines(path, once=True):
        found.append(query_of(line, empty=False) if named else _from_tsv(line))
        refuse_repeat(line, found[-1].id, seen)
    if not found:
        raise UserError(f"{path} holds no queries; each line is an id, a tab and a text.")
    return found


def _relevance(line: Line, score: str) -> int:
    """Return the relevance, a whole number; some writers give it as 1.0."""
    try:
        return int(score.removesuffix(".0"))
    except ValueError:
        raise line.error(f"the score {score!r} is not a whole number.") from None


def _mismatch(line: Line, first: Judgement, what: str, where: str) -> UserError:
    judged = first.query_id if what == "query" else first.document_id
    return line.error(
        f"judges {what} {judged!r}, and the {where} holds neither it nor any other {what} of this "
        "file: they belong to different data sets. Give the files of one data set."
    )


def _from_tsv(line: Line) -> Query:
    name, tab, text = line.text.partition("\t")
    if not tab:
        raise line.error("has no tab between a query id and its text.")
    return Query(identifier(line, name, "the query id"), nonempty(line, text, "the text"))


def query_of(line: Line, empty: bool = True) -> Query:
    """Return the query of a row with an id and a text; `empty` says whether it may be blank."""
    row = line.json()
    name = optional_identifier(line, row, ID_KEYS)
    if not name:
        required(line, row, ID_KEYS[0])
    key = TEXT_KEYS[1] if TEXT_KEYS[1] in row else TEXT_KEYS[0]
    text = string(line, row, key)
    return Query(name, text if empty else nonempty(line, text, repr(key)))
