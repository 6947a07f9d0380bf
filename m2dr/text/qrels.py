"""Judgement files: three columns as BEIR writes them, four as TREC does."""

import re
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path

from m2dr.errors import UserError, counted
from m2dr.records.texts import Judgement, Query
from m2dr.text.collection import Asked
from m2dr.text.corpora import Corpus
from m2dr.text.fields import identifier
from m2dr.text.lines import Line, read_lines

FindQueries = Callable[[Set[str]], Mapping[str, Query]]  # wanted ids → those found, in file order
_SCORE_TITLES = {"score", "relevance", "rel", "label"}  # last column of a header
_QUOTED = re.compile(r'"(?:[^"]|"")*"')  # a cell as CSV quotes it


def read_judgements(path: Path) -> Iterator[tuple[Line, Judgement]]:
    """Judgements of a file with the lines they stand in; columns split by tabs or spaces.

    `query-id corpus-id score`, with or without that header, or `qid 0 docid relevance`. Between
    tabs a cell may be quoted, as BEIR's files quote ids that hold a quotation mark.
    """
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


def cells_of(text: str) -> list[str]:
    """Return the columns of a line, split by tabs or else by spaces.

    Between tabs a cell that is quoted as in CSV is read so.
    """
    if "\t" not in text:
        return text.split()
    if '"' not in text:
        return text.split("\t")
    return [
        cell[1:-1].replace('""', '"') if _QUOTED.fullmatch(cell) else cell
        for cell in text.split("\t")
    ]


def _relevance(line: Line, score: str) -> int:
    """Return the level, a whole number; some writers give it as 1.0."""
    try:
        return int(score.removesuffix(".0"))
    except ValueError:
        raise line.error(f"the score {score!r} is not a whole number.") from None


def read_split(path: Path, corpus: Corpus, find_queries: FindQueries) -> Asked:
    """Return the judged queries that have a text, and all judgements of a file.

    Published sets judge documents and queries that their files lack (ArguAna five documents).
    These judgements stay, as they do in trec_eval: relevant, and never found.

    Raises:
        UserError: two judgements of one pair differ, there is none, or the corpus or the queries
            hold nothing at all of what is judged, which are then of another collection.
    """
    rows = list(read_judgements(path))
    found = find_queries({judgement.query_id for _, judgement in rows})
    kept: dict[tuple[str, str], Judgement] = {}
    for line, judgement in rows:
        first = kept.setdefault((judgement.query_id, judgement.document_id), judgement)
        if first != judgement:
            raise line.error(f"says {judgement.relevance} where a line above {first.relevance}.")
    if not kept:
        raise UserError(f"{path} holds no judgement.")
    if not found:
        raise _foreign(*rows[0], "query", "queries file")
    if all(judgement.document_id not in corpus for judgement in kept.values()):
        raise _foreign(*rows[0], "document", "corpus")
    return list(found.values()), list(kept.values())


def _foreign(line: Line, first: Judgement, what: str, where: str) -> UserError:
    judged = first.query_id if what == "query" else first.document_id
    return line.error(
        f"judges {what} {judged!r}, and like every other {what} of this file the {where} does not "
        "hold it: they are of different collections. Give the files of one collection."
    )
