"""TREC files (`query Q0 document rank score tag`, and judgements), and runs fused into one."""

import gzip
import re
from array import array
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf, isfinite, isnan
from pathlib import Path
from statistics import fmean, pstdev

from m2dr.core.errors import UserError, counted
from m2dr.core.files import atomic_path, write_text
from m2dr.core.records import Judgement, Ranking, Run

# Characters that no column can hold: ASCII white space, zero bytes (which end strings in C) and
# halves of surrogate pairs (which have no UTF-8).
_NO_WORD = re.compile(r"[\s\0\ud800-\udfff]", re.ASCII)
_COLUMNS = "query Q0 document rank score tag"

RANK_OFFSET = 60  # k of Cormack et al.
Scores = Mapping[str, float]  # by docid


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

    As in trec_eval, documents are ranked by their scores, not by the rank column. Lines of three
    columns hold a score, as of Tevatron, or the rank, 1, 2, 3, as of MS MARCO.

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
    counts_up = all(list(values) == [*range(1, len(values) + 1)] for values in scores.values())
    if len(line.split(None, 3)) == 3 and counts_up:
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
        if len(set(ranking.docids)) < len(ranking.docids):
            raise UserError(f"A document is ranked twice for query {query}.")
        for docid in ranking.docids:
            _require_word(docid, "document id")
        rows = enumerate(zip(ranking.docids, ranking.scores, strict=True), start=1)
        lines = [f"{query} Q0 {docid} {rank} {score:.9g} {tag}\n" for rank, (docid, score) in rows]
        yield "".join(lines).encode()


def _require_word(text: str, what: str) -> None:
    if not text or _NO_WORD.search(text):
        raise UserError(f"The {what} {text!r} cannot be written to a run, as one word.")


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


# Fusion


def _scaled(scores: Scores, scale: str) -> tuple[dict[str, float], float]:
    """Scale the scores of one ranking; return them, and that of a document it does not hold."""
    low, high = min(scores.values()), max(scores.values())
    shift, span = 0.0, 1.0
    if scale == "min-max":
        if high == low:
            return dict.fromkeys(scores, 1.0), 0.0
        shift, span = low, high - low
    elif scale == "z":
        shift, span = fmean(scores.values()), pstdev(scores.values()) or inf
    scaled = {docid: (score - shift) / span for docid, score in scores.items()}
    return scaled, 0.0 if scale == "min-max" else min(scaled.values())


def reciprocal_ranks(
    runs: Sequence[Run], weights: Sequence[float] = (), k: int = 1000, offset: float = RANK_OFFSET
) -> Run:
    """Fuse runs by ranks: a document scores the sum over the runs of weight / (offset + rank).

    Ranks count from 1, and a run that does not hold a document adds nothing to it. Cormack, Clarke
    and Büttcher, Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods,
    SIGIR 2009, where all weights are 1.

    Args:
        runs: two or more.
        weights: one per run; all 1 when empty.
        k: number of documents kept per query.
        offset: 0 or more; the larger, the smaller the advantage of the first ranks.

    Returns:
        Every query of any run, in the order in which they first appear.

    Raises:
        UserError: the weights are not one per run and from 0, or `k` is too small.
    """

    def scores(_: str, ranking: Ranking, total: dict[str, float], weight: float) -> None:
        for rank, docid in enumerate(ranking.docids, start=1):
            total[docid] = total.get(docid, 0.0) + weight / (offset + rank)

    return _fused(runs, scores, weights, 1.0, k)


def interpolated(
    runs: Sequence[Run], weights: Sequence[float] = (), k: int = 1000, scale: str = "min-max"
) -> Run:
    """Fuse runs by scores: a document scores the weighted sum of its scaled scores in the runs.

    Scores are scaled over the documents that a run found for the query. A document that the run did
    not find gets the lowest of them; a run without the query adds 0 to all documents.

    Args:
        runs: two or more.
        weights: one per run; equal, with a sum of 1, when empty.
        k: number of documents kept per query.
        scale: min-max, a share of the range; z, z-scores; or none.

    Returns:
        Every query of any run, in the order in which they first appear.

    Raises:
        UserError: the weights are not one per run and from 0, a score is infinite, or `k` is too
            small.
    """

    def scores(query: str, ranking: Ranking, total: dict[str, float], weight: float) -> None:
        if not all(map(isfinite, ranking.scores)):
            raise UserError(f"A score of query {query} is infinite and cannot be scaled.")
        if ranking.docids:
            by_docid = dict(zip(ranking.docids, ranking.scores, strict=True))
            scaled, absent = _scaled(by_docid, scale)
            for docid in total:
                total[docid] += weight * scaled.get(docid, absent)

    return _fused(runs, scores, weights, 1 / max(len(runs), 1), k)


def _fused(
    runs: Sequence[Run],
    add: Callable[[str, Ranking, dict[str, float], float], None],
    weights: Sequence[float],
    default: float,
    k: int,
) -> Run:
    """Fuse runs; `add` adds the scores of one ranking of a query to the totals by docid."""
    if len(runs) < 2 or k < 1:
        raise UserError(f"Fusing takes 2 runs and 1 document at least, not {len(runs)} and {k}.")
    weights = weights or [default] * len(runs)
    sound = all(isfinite(weight) and weight >= 0 for weight in weights) and any(weights)
    if len(weights) != len(runs) or not sound:
        raise UserError(f"{list(weights)} are no weights of {len(runs)} runs, from 0, not all 0.")
    rankings = {}
    for query in dict.fromkeys(query for run in runs for query in run.rankings):
        own = [run.rankings.get(query, Ranking((), ())) for run in runs]
        total = dict.fromkeys((docid for ranking in own for docid in ranking.docids), 0.0)
        for ranking, weight in zip(own, weights, strict=True):
            add(query, ranking, total, weight)
        rankings[query] = Ranking.of(list(total), total.values(), k)
    return Run(rankings)
