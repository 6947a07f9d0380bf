"""Scores of a teacher that stand beside the documents of a training group."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from m2dr.errors import counted
from m2dr.text.fields import Row, number
from m2dr.text.lines import Line

# The first of each that a row has counts: names of m2dr, FlagEmbedding and single ones in tables.
POSITIVE_SCORES = ("positive_scores", "pos_scores", "positive_score", "pos_score")
NEGATIVE_SCORES = ("negative_scores", "neg_scores", "negative_score", "neg_score")
SCORES = ("scores", "score", "labels", "label")  # of all documents, as sentence-transformers has it
_INSIDE = "score"  # of a document that is an object

Numbers = tuple[float, ...]


class RowScores(NamedTuple):
    """What a teacher said of the documents of one row, in the row's order."""

    positives: Numbers
    negatives: Numbers
    relative: bool = False  # to the one positive, whose own score is 0


def scores_of(
    line: Line, row: Row, positives: Sequence[object], negatives: Sequence[object]
) -> RowScores | None:
    """Return the scores of a row, or None where it has none.

    They stand inside the documents, in a list for the positives and one for the negatives, or in
    one list for all of them. A list that is one shorter than the documents, or a single number,
    holds margins: the positive's score less that of each negative.

    Args:
        line: where the row stands.
        row: what it holds.
        positives: its positives, as it has them: texts or objects.
        negatives: its negatives, the same.

    Raises:
        UserError: there are more or fewer scores than documents, or one is not a finite number.
    """
    shape = (len(positives), len(negatives))
    if any(isinstance(item, dict) and _INSIDE in item for item in (*positives, *negatives)):
        return _split([_inside(line, item) for item in (*positives, *negatives)], shape)
    if _first(row, POSITIVE_SCORES) or _first(row, NEGATIVE_SCORES):
        return RowScores(
            _of_side(line, row, POSITIVE_SCORES, len(positives), "positives"),
            _of_side(line, row, NEGATIVE_SCORES, len(negatives), "negatives"),
        )
    key = _first(row, SCORES)
    return _of_all(line, key, _numbers(line, row, key), shape) if key else None


def _of_side(line: Line, row: Row, keys: Sequence[str], size: int, what: str) -> Numbers:
    """Return the scores of the positives, or of the negatives."""
    key = _first(row, keys)
    found = _numbers(line, row, key) if key else ()
    if len(found) != size:
        raise line.error(
            f"{key or keys[0]!r} has {counted(len(found), 'scores')} for {counted(size, what)}; "
            "give one for each."
        )
    return found


def _of_all(line: Line, key: str, found: Numbers, shape: tuple[int, int]) -> RowScores:
    positives, negatives = shape
    if len(found) == positives + negatives:
        return _split(found, shape)
    if positives == 1 and len(found) == negatives:
        return RowScores((0.0,), tuple(-margin for margin in found), relative=True)
    raise line.error(
        f"{key!r} has {counted(len(found), 'scores')} for {counted(positives, 'positives')} and "
        f"{counted(negatives, 'negatives')}; give one for each, or one margin for each negative of "
        "a single positive."
    )


def _split(found: Sequence[float], shape: tuple[int, int]) -> RowScores:
    return RowScores(tuple(found[: shape[0]]), tuple(found[shape[0] :]))


def _inside(line: Line, item: object) -> float:
    if not isinstance(item, dict) or _INSIDE not in item:
        raise line.error(f"has documents with a {_INSIDE!r} and one without; give all of them one.")
    return number(line, item[_INSIDE], f"the {_INSIDE!r} of a document")


def _first(row: Row, keys: Sequence[str]) -> str:
    return next((key for key in keys if row.get(key) not in (None, "")), "")


def _numbers(line: Line, row: Row, key: str) -> Numbers:
    """Return the numbers under a key; a cell of a table holds one, or a list as JSON has it."""
    value = row[key]
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise line.error(f"{key!r} is {value!r}, not a list of numbers.") from None
    values = value if isinstance(value, list) else [value]
    return tuple(number(line, item, f"a score in {key!r}") for item in values)
