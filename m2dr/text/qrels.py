"""Judgement files: three columns as BEIR writes them, four as TREC does."""

from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path

from m2dr.errors import UserError
from m2dr.records.texts import Judgement, Query
from m2dr.text.collection import Asked
from m2dr.text.corpora import Corpus
from m2dr.text.fields import identifier
from m2dr.text.lines import Line, read_lines

FindQueries = Callable[[Set[str]], Mapping[str, Query]]  # wanted ids → those found, in file order
_SCORE_TITLES = {"score", "relevance", "rel", "label"}  # last column of a header


def read_judgements(path: Path) -> Iterator[tuple[Line, Judgement]]:
    """Judgements of a file with the lines they stand in; columns split by tabs or spaces.

    `query-id corpus-id score`, with or without that header, or `qid 0 docid relevance`.
    """
    for line in read_lines(path):
        columns = line.text.split("\t") if "\t" in line.text else line.text.split()
        if line.number == 1 and columns[-1].strip().lower() in _SCORE_TITLES:
            continue
        if len(columns) not in (3, 4):
            raise line.error(
                f"has {len(columns)} columns; a judgement has 3 (query, document, score) or 4 "
                "(query, 0, document, score)."
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


def _relevance(line: Line, score: str) -> int:
    try:
        return int(score)
    except ValueError:
        raise line.error(f"the score {score!r} is not a whole number.") from None


def read_split(path: Path, corpus: Corpus, find_queries: FindQueries) -> Asked:
    """The judged queries and the judgements of a file, every one of which must be answerable.

    Raises:
        UserError: a document or query that is not there, two judgements of one pair that differ,
            or no judgement at all.
    """
    rows = list(read_judgements(path))
    found = find_queries({judgement.query_id for _, judgement in rows})
    kept: dict[tuple[str, str], Judgement] = {}
    for line, judgement in rows:
        if judgement.document_id not in corpus:
            raise line.error(f"judges {judgement.document_id!r}, which the corpus does not hold.")
        if judgement.query_id not in found:
            raise line.error(f"judges query {judgement.query_id!r}, which no queries file holds.")
        first = kept.setdefault((judgement.query_id, judgement.document_id), judgement)
        if first != judgement:
            raise line.error(f"says {judgement.relevance} where a line above {first.relevance}.")
    if not kept:
        raise UserError(f"{path} holds no judgement.")
    return list(found.values()), list(kept.values())
