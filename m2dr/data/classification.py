"""Labelled texts for classification: a training split and a test split."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from m2dr.core.errors import UserError, nearest
from m2dr.data.readers import Line, Row, nonempty, stem_of, string, suffix_of
from m2dr.data.sentence_pairs import SPLIT_COLUMNS, read_rows
from m2dr.data.tables import ARROW

# Column names in lower case: MTEB, SetFit and Hugging Face, Banking77, CLINC150.
TEXT_COLUMNS = ("text", "sentence", "utterance", "query", "content")
LABEL_COLUMNS = ("label", "category", "labels", "intent", "class", "label_text")
SUFFIXES = (".tsv", ".csv", ".jsonl", *ARROW)


class LabelledText(NamedTuple):
    """A text and its label."""

    text: str
    label: str


@dataclass(frozen=True)
class LabelledTexts:
    """Labelled texts to train a classifier on and to test it on, in file order."""

    name: str  # short, fit to name a folder
    split: str  # of the test texts
    train: tuple[LabelledText, ...]
    test: tuple[LabelledText, ...]


class _Row(NamedTuple):
    line: Line
    split: str  # in lower case
    labelled: LabelledText


def open_labelled_texts(path: Path, split: str = "test") -> LabelledTexts:
    """Read a folder of a file per split, or one file whose column names the split.

    A file holds a split when its name has that word, as `train.csv` and `msr_train.tsv` do. Each
    row has a text and a label, in columns named as in TEXT_COLUMNS and LABEL_COLUMNS.

    Raises:
        UserError: a split is missing or empty, a row is malformed, all training labels are the
            same, or a test label is not among them.
    """
    read = _from_folder if path.is_dir() else _from_file
    train, test = read(path, "train"), read(path, split.lower())
    known = {row.labelled.label for row in train}
    if len(known) == 1:
        raise UserError(
            f"Every text of the split train of {path} has the label {train[0].labelled.label!r}; a "
            f"classifier needs two or more."
        )
    strange = next((row for row in test if row.labelled.label not in known), None)
    if strange is not None:
        raise strange.line.error(
            f"the label {strange.labelled.label!r} is on no text of the split train, so no "
            f"classifier can learn it. {nearest(strange.labelled.label, sorted(known)[:20])}"
        )
    name = path.resolve().name if path.is_dir() else stem_of(path)
    texts = (tuple(row.labelled for row in rows) for rows in (train, test))
    return LabelledTexts(name, split.lower(), *texts)


def split_file(folder: Path, split: str) -> Path:
    """Return the one file of a folder whose name has the word `split`.

    Raises:
        UserError: there is none, or more than one.
    """
    files = sorted(file for file in folder.iterdir() if suffix_of(file) in (*SUFFIXES, ".txt"))
    found = [file for file in files if split.lower() in re.split(r"[^a-z0-9]+", file.name.lower())]
    if len(found) == 1:
        return found[0]
    names = ", ".join(file.name for file in found or files) or "none"
    which = "several files" if found else "no file"
    raise UserError(
        f"{folder} has {which} of the split {split!r} by name ({names}); give one file per split, "
        f"such as {split.lower()}.csv."
    )


def _from_folder(folder: Path, split: str) -> Sequence[_Row]:
    path = split_file(folder, split)
    rows = list(_rows(path))
    if not rows:
        raise UserError(f"{path} holds no labelled text; every line but the header is blank.")
    return rows


def _from_file(path: Path, split: str) -> Sequence[_Row]:
    if suffix_of(path) not in SUFFIXES:
        raise UserError(
            f"{path} is not a file of labelled texts by its name; those end in "
            f"{', '.join(SUFFIXES)}, or one of these and .gz. Give such a file, or a folder of "
            "train.csv and test.csv."
        )
    rows = list(_rows(path))
    splits = sorted({row.split for row in rows} - {""})
    if not splits:
        raise UserError(
            f"{path} has no column that names a split ({' or '.join(SPLIT_COLUMNS)}), and needs "
            f"train and {split}; give a folder of train.csv and {split}.csv."
        )
    if split not in splits:
        raise UserError(f"{path} has no row of the split {split!r}. {nearest(split, splits)}")
    return [row for row in rows if row.split == split]


def _rows(path: Path) -> Iterator[_Row]:
    for line, row in read_rows(path):
        text, label = (_column(line, row, names) for names in (TEXT_COLUMNS, LABEL_COLUMNS))
        split = next((name for name in SPLIT_COLUMNS if name in row), "")
        yield _Row(
            line,
            str(row[split]).strip().lower() if split else "",
            LabelledText(
                nonempty(line, string(line, row, text), repr(text)), _label(line, row, label)
            ),
        )


def _column(line: Line, row: Row, names: Sequence[str]) -> str:
    found = next((name for name in names if name in row), None)
    if found is None:
        raise line.error(
            f"has none of the columns {', '.join(names)}; its columns are "
            f"{', '.join(map(repr, row)) or 'none'}."
        )
    return found


def _label(line: Line, row: Row, column: str) -> str:
    """Return a label; a whole number in JSON becomes text."""
    value = row[column]
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return nonempty(line, string(line, row, column), repr(column)).strip()
