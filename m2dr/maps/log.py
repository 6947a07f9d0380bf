"""Queries of a log, from which the words of a fit learn too."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from m2dr.core.errors import UserError, counted
from m2dr.core.files import json_sha256
from m2dr.core.progress import say
from m2dr.core.records import Asked, FitRecord, Query
from m2dr.core.requests import QueryLog, refuse_weight_alone
from m2dr.data.qrels import read_topics
from m2dr.data.sentences import is_plain_text
from m2dr.data.tables import read_lines
from m2dr.maps.files import sampled_rows

QUERY_WEIGHT = 0.2  # of a log, by default
MOST_QUERIES = 20_000  # of a log


def log_weight(queries: Sequence[str], weight: float | None) -> float:
    """Return the weight of a log: the one that was given, or QUERY_WEIGHT; it is printed."""
    if not queries:
        return 0.0
    found = QUERY_WEIGHT if weight is None else weight
    say(f"{counted(len(queries), 'queries', ',')} of weight {found:g} in the words")
    return found


def logged(fit: FitRecord, queries: Sequence[str], weight: float) -> FitRecord:
    """Return the record of a fit with what it owes to a log."""
    return replace(
        fit,
        queries=len(queries),
        query_weight=weight,
        log=json_sha256(queries) if queries else "",
    )


def asked_now(before: Asked, log: QueryLog, **named: Any) -> Asked:
    """Return what an index is asked to be; what is not named now is as before.

    Args:
        before: what was asked until now.
        log: a file of queries and their weight; without a file it is that of those of before.
        named: other fields of `Asked`; None, "" and () name nothing.

    Raises:
        UserError: as `read_log`.
    """
    queries, weight = before.queries, log.query_weight
    if log.queries is not None or not queries:
        queries = read_log(log.queries, weight)
    elif weight is None:
        weight = before.query_weight
    told = {name: value for name, value in named.items() if value not in (None, "", ())}
    return replace(before, queries=queries, query_weight=weight, **told)


def read_log(path: Path | None, weight: float | None) -> tuple[str, ...]:
    """Return the distinct queries of a log, MOST_QUERIES evenly spread ones at most.

    Args:
        path: topics, or a .txt file with a query per line; None: no query.
        weight: that was given to them.

    Raises:
        UserError: there is no query, or a weight of none.
    """
    refuse_weight_alone(path, weight)
    return tuple(distinct_queries(path, queries_of(path))) if path is not None else ()


def queries_of(path: Path) -> list[Query]:
    """Return all queries of a log, repeated ones too; those of a .txt file of lines have no ids."""
    lines = list(read_lines(path)) if is_plain_text(path) else []
    if lines and "\t" not in lines[0]:
        return [Query("", line) for line in lines]
    return read_topics(path)


def distinct_queries(path: Path, queries: Sequence[Query]) -> dict[str, int]:
    """Return the places of the distinct texts of a log, MOST_QUERIES evenly spread ones at most."""
    places: dict[str, int] = {}
    for place, query in enumerate(queries):
        if text := " ".join(query.text.split()):
            places.setdefault(text, place)
    if not places:
        raise UserError(f"{path} holds no queries.")
    texts = list(places)
    chosen = sampled_rows(len(texts), MOST_QUERIES).tolist()
    return {texts[row]: places[texts[row]] for row in chosen}
