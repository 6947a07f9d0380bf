"""TREC files: runs (`query Q0 document rank score tag`), read and written, and qrels, written."""

import gzip
import re
import zlib
from array import array
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from math import isnan
from pathlib import Path

from m2dr.core.errors import UserError, counted
from m2dr.core.files import atomic_path, write_text
from m2dr.core.records import Judgement, Ranking, Run

# Characters that no column can hold: white space, zero bytes (which end strings in C) and halves
# of surrogate pairs (which have no UTF-8).
_NO_WORD = re.compile(r"[\s\0\ud800-\udfff]")
_COLUMNS = "query Q0 document rank score tag"


def write_run(run: Run, path: Path, tag: str = "m2dr") -> None:
    """Write a run file that gives `read_run` and trec_eval the same scores in the same order.

    A query without documents has no line; measures count it as 0 all the same. A path that ends in
    .gz is compressed, reproducibly.

    Args:
        run: its scores are float32 values, written with nine digits, which preserves them.
        path: replaced atomically.
        tag: the name of the system, one word.

    Raises:
        UserError: an id or the tag is empty or has white space in it, or a document is repeated.
    """
    _require_word(tag, "tag")
    with atomic_path(path) as unfinished, unfinished.open("wb") as raw:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
                packed.writelines(_lines(run, tag))
        else:
            raw.writelines(_lines(run, tag))


def read_run(path: Path) -> Run:
    """Read a run file, plain or gzip, with its lines in any order.

    As in trec_eval, documents are ranked by their scores, not by the rank column.

    Raises:
        UserError: the file cannot be read, or a line is malformed, or a query has a document
            twice; with file and line number.
    """
    docids: dict[str, dict[str, None]] = {}
    scores: dict[str, array[float]] = {}
    number = 0
    try:
        with _opened(path) as file:
            for number, line in enumerate(file, start=1):
                query, docid, score = _parse(line.removeprefix(BOM_UTF8) if number == 1 else line)
                known = docids.setdefault(query, {})
                if docid in known:
                    raise ValueError(f"document {docid} is listed twice for query {query}")
                known[docid] = None
                scores.setdefault(query, array("f")).append(score)
    except ValueError as error:
        raise UserError(
            f"{path}, line {number}: {error}. A line of a run file is: {_COLUMNS}."
        ) from error
    except FileNotFoundError:
        raise UserError(f"There is no run file {path}; write one or correct the path.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{path} cannot be read as a run file after line {number}: {error}."
        ) from error
    return Run({query: Ranking.of(list(docids[query]), scores[query]) for query in docids})


def write_qrels(judgements: Iterable[Judgement], path: Path) -> None:
    """Write judgements as `query 0 document relevance`, one line each, separated by tabs.

    Raises:
        UserError: an id is empty or has white space in it.
    """
    lines = []
    for one in judgements:
        _require_word(one.query_id, "query id")
        _require_word(one.document_id, "document id")
        lines.append(f"{one.query_id}\t0\t{one.document_id}\t{one.relevance}\n")
    write_text(path, "".join(lines))


def _lines(run: Run, tag: str) -> Iterator[bytes]:
    """Yield the lines of the run, query by query."""
    for query, ranking in run.rankings.items():
        _require_word(query, "query id")
        _require_distinct(query, ranking.docids)
        rows = zip(count(1), ranking.docids, ranking.scores, strict=False)
        lines = [f"{query} Q0 {docid} {rank} {score:.9g} {tag}\n" for rank, docid, score in rows]
        yield "".join(lines).encode()


def _require_distinct(query: str, docids: Iterable[str]) -> None:
    seen = set()
    for docid in docids:
        _require_word(docid, "document id")
        if docid in seen:
            raise UserError(
                f"Document {docid} is ranked twice for query {query}, which no run file can hold; "
                f"rank each document once."
            )
        seen.add(docid)


def _require_word(text: str, what: str) -> None:
    if not text or _NO_WORD.search(text):
        raise UserError(
            f"The {what} {text!r} cannot be written to a run or qrels file, where white space "
            f"separates columns; use one word."
        )


@contextmanager
def _opened(path: Path) -> Iterator[Iterable[bytes]]:
    """Open a file, decompressing it if its first bytes say gzip.

    It is opened only once, since a pipe, such as a shell makes of <(command), can be read once.
    """
    with path.open("rb") as file:
        packed = file.peek(2)[:2] == b"\x1f\x8b"
        yield gzip.GzipFile(fileobj=file) if packed else file


def _parse(line: bytes) -> tuple[str, str, float]:
    """Return query id, document id and score of a line; ValueError says what is wrong.

    As in trec_eval, only ASCII white space separates columns: an id may hold a no-break space.
    """
    columns = line.split()
    if len(columns) != 6:
        raise ValueError(f"{counted(len(columns), 'columns')} instead of 6")
    query, _, docid, rank, text, _ = columns
    try:
        int(rank)
        score = float(text)
    except ValueError:
        shown = b" ".join((rank, text)).decode(errors="replace")
        raise ValueError(f"rank and score are not two numbers: {shown}") from None
    if isnan(score):
        raise ValueError("the score is not a number")
    return query.decode(), docid.decode(), score
