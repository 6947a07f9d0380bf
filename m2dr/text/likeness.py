"""What a file says of how alike two sentences are: a number on its own scale, or a label of NLI."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from m2dr.errors import UserError
from m2dr.records.texts import Pair
from m2dr.text.fields import Row, required
from m2dr.text.lines import Line

# What follows from a premise is nearest to it, what contradicts it farthest.
WORDS = {"entailment": 1.0, "neutral": 0.5, "contradiction": 0.0}
NUMBERS = {"0": 1.0, "1": 0.5, "2": 0.0}  # the same three, in the order of Hugging Face
_LABELS = ("label", "gold_label")  # columns that may hold a label; others hold numbers alone
_NONE = ("-", "-1")  # the annotators did not agree: as SNLI writes it, as Hugging Face does


@dataclass(frozen=True)
class Scale:
    """How the values of one column are read."""

    column: str
    labels: Mapping[str, float]  # scores of the labels it holds; empty when it holds numbers

    def read(self, line: Line, row: Row) -> float | None:
        """The score of a row, still on the file's scale; None where no label was agreed on."""
        value = required(line, row, self.column)
        if not self.labels:
            return _number(line, value, self.column)
        word = _plain(value)
        if word in _NONE:
            return None
        if word not in self.labels:
            known = ", ".join(self.labels)
            raise line.error(f"{self.column!r} is {value!r}, not one of {known}, as others are.")
        return self.labels[word]

    def between_0_and_1(self, path: Path, pairs: Sequence[Pair]) -> tuple[Pair, ...]:
        """The pairs of a file with its lowest score at 0 and its highest at 1.

        Labels have a meaning of their own and stay as they are.

        Raises:
            UserError: all numbers are the same.
        """
        if self.labels:
            return tuple(pairs)
        scores = [pair.score for pair in pairs]
        lowest, highest = min(scores), max(scores)
        if lowest == highest:
            raise UserError(
                f"{path}: every {self.column!r} is {lowest:g}, so no pair is more alike than "
                "another. Score the pairs, or give pairs that belong together as query and "
                "positive."
            )
        width = highest - lowest
        return tuple(Pair(pair.first, pair.second, (pair.score - lowest) / width) for pair in pairs)


def scale_of(column: str, values: Iterable[object], inference: bool) -> Scale:
    """The scale of a column.

    Args:
        column: its name.
        values: those of its rows; read up to the first that is a label.
        inference: whether the pairs are premise and hypothesis, whose 0, 1 and 2 are labels.
    """
    if column not in _LABELS:
        return Scale(column, {})
    first = next((word for word in map(_plain, values) if word not in _NONE), "")
    if first in WORDS:
        return Scale(column, WORDS)
    return Scale(column, NUMBERS if inference else {})


def _plain(value: object) -> str:
    # pandas writes 1.0 for a whole number in a column that has holes.
    return str(value).strip().lower().removesuffix(".0")


def _number(line: Line, value: object, column: str) -> float:
    try:
        number = float(value) if isinstance(value, int | float | str) else float("nan")
    except (ValueError, OverflowError):
        number = float("nan")
    if isfinite(number):
        return number
    labels = f", nor one of {', '.join(WORDS)}" if column in _LABELS else ""
    raise line.error(f"{column!r} is {value!r}, which is not a number{labels}.")
