"""Queries from a file of their own, without judgements."""

from pathlib import Path

from m2dr.errors import UserError
from m2dr.records.texts import Query
from m2dr.text.fields import filled, identifier, optional_identifier, required, string
from m2dr.text.lines import Line, read_lines

ID_KEYS = ("_id", "id", "query_id")
TEXT_KEYS = ("text", "query")


def read_topics(path: Path) -> list[Query]:
    """Queries in file order: `id<tab>text` lines, or JSONL where the name says so.

    Raises:
        UserError: the file cannot be read, is empty, or a line is malformed or repeats an id.
    """
    parse = _from_json if ".jsonl" in path.suffixes else _from_tsv
    found: dict[str, Query] = {}
    for line in read_lines(path, once=True):
        query = parse(line)
        if query.id in found:
            raise line.error(f"the query id {query.id!r} was on an earlier line too.")
        found[query.id] = query
    if not found:
        raise UserError(f"{path} holds no queries; each line is an id, a tab and a text.")
    return list(found.values())


def _from_tsv(line: Line) -> Query:
    name, tab, text = line.text.partition("\t")
    if not tab:
        raise line.error("has no tab between a query id and its text.")
    return Query(identifier(line, name, "the query id"), filled(line, text, "the text"))


def _from_json(line: Line) -> Query:
    row = line.json()
    name = optional_identifier(line, row, ID_KEYS)
    if not name:
        required(line, row, ID_KEYS[0])
    key = TEXT_KEYS[1] if TEXT_KEYS[1] in row else TEXT_KEYS[0]
    return Query(name, filled(line, string(line, row, key), repr(key)))
