"""TREC files (`query Q0 document rank score tag`, and judgements), and runs fused into one."""

import gzip
import re
from array import array
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from math import isnan
from pathlib import Path

from m2dr.core.errors import UserError, counted
from m2dr.core.files import atomic_path, write_text
from m2dr.core.records import Judgement, Ranking, Run

# Characters that no column can hold: ASCII white space, zero bytes (which end strings in C) and
# halves of surrogate pairs (which have no UTF-8).
_NO_WORD = re.compile(r"[\s\0\ud800-\udfff]", re.ASCII)
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
        UserError: an id or the tag is empty or has white space in it.
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

    As in trec_eval, documents are ranked by their scores, not by the rank column. Lines of three
    columns hold a score, as of Tevatron, or, where each query has 1 to its number of lines once
    each, the rank, as of MS MARCO.

    Raises:
        UserError: the file cannot be read, or a line is malformed, or a query has a document
            twice; with file and line number.
    """
    docids: dict[str, dict[str, None]] = {}
    scores: dict[str, array[float]] = {}
    number, line = 0, b""
    try:
        with path.open("rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            file: Iterable[bytes] = gzip.GzipFile(fileobj=raw) if packed else raw
            for number, line in enumerate(file, start=1):
                query, docid, score = _parse(line.removeprefix(BOM_UTF8) if number == 1 else line)
                known = docids.setdefault(query, {})
                if docid in known:
                    raise ValueError(f"document {docid} is listed twice for query {query}")
                known[docid] = None
                scores.setdefault(query, array("f")).append(score)
    except FileNotFoundError:
        raise UserError(f"There is no run file {path}.") from None
    except Exception as error:  # whatever gzip raises for damaged bytes
        raise UserError(f"{path}, line {number}: {error}, in place of {_COLUMNS}.") from error
    are_ranks = all(sorted(values) == [*range(1, len(values) + 1)] for values in scores.values())
    if len(line.split(None, 3)) == 3 and are_ranks:
        scores = {query: array("f", (-rank for rank in ranks)) for query, ranks in scores.items()}
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
        for docid in ranking.docids:
            _require_word(docid, "document id")
        rows = enumerate(zip(ranking.docids, ranking.scores, strict=True), start=1)
        lines = [f"{query} Q0 {docid} {rank} {score:.9g} {tag}\n" for rank, (docid, score) in rows]
        yield "".join(lines).encode()


def _require_word(text: str, what: str) -> None:
    if not text or _NO_WORD.search(text):
        raise UserError(f"The {what} {text!r} cannot be written to a run: it must be one word.")


def _parse(line: bytes) -> tuple[str, str, float]:
    """Return query id, document id and score of a line; ValueError says what is wrong.

    As in trec_eval, rank and tag mean nothing, and only ASCII white space separates columns: an id
    may hold a no-break space.
    """
    columns = line.split(None, 5)  # the last is the tag, which may have several words
    if len(columns) not in (3, 6):
        raise ValueError(f"{counted(len(columns), 'columns')} instead of 6")
    query, docid, text = columns if len(columns) == 3 else columns[::2]
    score = float(text)
    if isnan(score) or b"_" in text:
        raise ValueError("the score is not a number")
    return query.decode(), docid.decode(), score


def reciprocal_ranks(runs: Sequence[Run], k: int = 1000, offset: float = 60.0) -> Run:
    """Fuse runs by ranks: a document scores the sum over the runs of 1 / (offset + rank).

    Ranks count from 1, and a run that does not hold a document adds nothing to it. Cormack, Clarke
    and Büttcher, Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods,
    SIGIR 2009, where the offset is 60.

    Args:
        runs: at least one.
        k: number of documents kept per query.
        offset: 0 or more; the larger, the smaller the advantage of the first ranks.

    Returns:
        Every query of any run, in the order in which they first appear.
    """
    totals: dict[str, dict[str, float]] = {}
    for run in runs:
        for query, ranking in run.rankings.items():
            total = totals.setdefault(query, {})
            for rank, docid in enumerate(ranking.docids, start=1):
                total[docid] = total.get(docid, 0.0) + 1 / (offset + rank)
    fused = {query: Ranking.of(list(one), one.values(), k) for query, one in totals.items()}
    return Run(fused)
