"""Queries of a log, from which the words of a fit learn too."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from m2dr.core.errors import UserError, counted
from m2dr.core.files import json_sha256
from m2dr.core.progress import say
from m2dr.core.records import FitRecord, Query
from m2dr.core.requests import refuse_weight_alone
from m2dr.data.qrels import read_topics
from m2dr.data.sentences import is_plain_text
from m2dr.data.tables import read_lines
from m2dr.maps.files import sampled_rows

QUERY_WEIGHT = 0.2  # of a log, by default
MOST_QUERIES = 20_000  # of a log


def weight_told(
    queries: Sequence[str],
    weight: float | None,
    judged: Callable[[], tuple[float, str] | None] = lambda: None,
) -> tuple[float, str]:
    """Return the weight of a log and what says so, which is printed.

    Args:
        queries: the log.
        weight: that was given.
        judged: returns what judgements say, where none was given; else the constant counts.
    """
    if not queries:
        return 0.0, ""
    found = (weight, "--query-weight") if weight is not None else judged()
    found = found or (QUERY_WEIGHT, "the default")
    count = counted(len(queries), "queries", ",")
    say(f"{count} of weight {found[0]:g} in the words, by {found[1]}")
    return found


def logged(fit: FitRecord, queries: Sequence[str], weight: tuple[float, str]) -> FitRecord:
    """Return the record of a fit with what it owes to a log."""
    return replace(
        fit,
        queries=len(queries),
        query_weight=weight[0],
        query_weight_by=weight[1],
        log=json_sha256(queries) if queries else "",
    )


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
