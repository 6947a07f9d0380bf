"""Pairs of sentences to measure by: what people said of each, of one split, on one scale."""

from collections.abc import Sequence
from dataclasses import dataclass

from m2dr.errors import UserError, counted, nearest
from m2dr.records.texts import Pair
from m2dr.text.couples import SPLITS, SentenceFile, SentenceRow, name_of, paths_of, read_sentences


@dataclass(frozen=True)
class Judged:
    """Pairs in file order, each with its score on the scale of the file."""

    name: str  # short, fit to name a folder
    split: str  # empty: the files have no column for it
    pairs: tuple[Pair, ...]
    skipped: int = 0  # rows that no label was agreed on for


def open_judged(names: str, split: str = "") -> Judged:
    """Read the scored pairs of a file, or of several joined by commas, as one set.

    Several files are taken to score on one scale, as the parts of one collection do, and their
    scores stay as they are: rescaled one by one, their pairs could not be ranked together.

    Args:
        names: the files; each must have a column of scores.
        split: which rows count, where a column names their split; such a file needs one.

    Raises:
        UserError: as `read_sentences`; or a file has no scores, holds several splits and none was
            asked for, or lacks the one that was.
    """
    return _judged(names, split, _rows(names, split))


def open_classes(names: str, split: str = "") -> Judged:
    """The same for pairs that are either alike, 1, or not, 0.

    Raises:
        UserError: also where a label is neither, or no pair has one of the two.
    """
    rows = _rows(names, split)
    for row in rows:
        if row.pair is not None and row.pair.score not in (0.0, 1.0):
            raise row.line.error(
                f"has the label {row.pair.score:g}, and a pair is either alike, 1, or not, 0. Give "
                f"a file of these two classes."
            )
    found = _judged(names, split, rows)
    present = {pair.score for pair in found.pairs}
    absent = [label for label in (0, 1) if label not in present]
    if absent:
        raise UserError(
            f"None of the {counted(len(found.pairs), 'pairs')} of {names} has the label "
            f"{absent[0]}; without both, 0 and 1, there is nothing to tell apart."
        )
    return found


def _rows(names: str, split: str) -> list[SentenceRow]:
    files = [read_sentences(path) for path in paths_of(names)]
    if not files:
        raise UserError("No file of sentence pairs was named; give a path, or several with commas.")
    for file in files:
        if not file.scored:
            raise UserError(
                f"{file.path} has no scores to agree with; give a file that says of each pair of "
                f"sentences how alike they are."
            )
    return [row for file in files for row in _of_split(file, split)]


def _judged(names: str, split: str, rows: Sequence[SentenceRow]) -> Judged:
    pairs = tuple(row.pair for row in rows if row.pair is not None)
    name = "+".join(name_of(path) for path in paths_of(names))
    return Judged(name, split.lower(), pairs, len(rows) - len(pairs))


def _of_split(file: SentenceFile, split: str) -> Sequence[SentenceRow]:
    wanted, there = split.lower(), sorted(file.splits - {""})
    if not there:
        if split:
            raise UserError(
                f"--split {split} was asked for, and {file.path} has no column that names a split "
                f"({' or '.join(SPLITS)}); leave --split out, or take another file."
            )
        return file.rows
    if not split and len(file.splits) > 1:
        usual = "test" if "test" in there else there[0]
        raise UserError(
            f"{file.path} holds rows of several splits, {', '.join(there)}; say which to measure, "
            f"as in --split {usual}."
        )
    if split and wanted not in file.splits:
        raise UserError(f"{file.path} has no row of the split {split!r}. {nearest(wanted, there)}")
    return [row for row in file.rows if not split or row.split == wanted]
