"""Files of sentence pairs with a score or an NLI label, and of single sentences.

They are rows of any file that m2dr.data.tables reads, or plain text; columns are found by name.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from m2dr.core.errors import UserError, counted, nearest, suggestion
from m2dr.core.files import refuse_pipe
from m2dr.core.records import SentencePair
from m2dr.data.pairs import QUERY_KEYS, answers
from m2dr.data.readers import (
    Line,
    Row,
    header_of,
    nonempty,
    number,
    read_lines,
    read_table,
    required,
    string,
    suffix_of,
)
from m2dr.data.tables import ARROW, TEXT, columns_of, is_place, name_of, read_records

SUFFIXES = (".tsv", ".csv", ".jsonl", ".txt", *ARROW)
# Column names in lower case: STS-B and SNLI, SICK, MultiNLI, MTEB, Quora, MRPC.
PAIR_COLUMNS = (
    ("sentence1", "sentence2"),
    ("sentence_a", "sentence_b"),
    ("premise", "hypothesis"),
    ("text1", "text2"),
    ("question1", "question2"),
    ("#1 string", "#2 string"),
)
SCORE_COLUMNS = (
    "score",
    "similarity",
    "relatedness_score",
    "label",
    "labels",
    "gold_label",
    "quality",
    "is_duplicate",
)
SENTENCE_COLUMNS = ("text", "sentence")
SPLIT_COLUMNS = ("split", "semeval_set")  # in files that hold train, dev and test together
NLI_LABELS = {"entailment": 1.0, "neutral": 0.5, "contradiction": 0.0}  # as scores
NLI_NUMBERS = {"0": 1.0, "1": 0.5, "2": 0.0}  # the same three, in the order of Hugging Face
_LABEL_COLUMNS = ("label", "gold_label")  # may hold labels; other columns hold numbers only
_NO_LABEL = ("-", "-1")  # the annotators disagreed: in SNLI, on Hugging Face


@dataclass(frozen=True)
class Sentences:
    """Training sentences, in file order.

    Of single sentences, `first` and `second` are the same and the score is 1: unsupervised SimCSE
    encodes each of them twice (Gao et al. 2021, arXiv:2104.08821).
    """

    name: str  # short, fit to name a folder
    pairs: tuple[SentencePair, ...]
    scored: bool  # False for single sentences
    skipped: int = 0  # rows left out: the annotators disagreed, or another split than train


@dataclass(frozen=True)
class ScoredPairs:
    """Test pairs in file order, each with its score on the scale of the file."""

    name: str  # short, fit to name a folder
    split: str  # empty: the files have no column for it
    pairs: tuple[SentencePair, ...]
    skipped: int = 0  # rows on whose label the annotators disagreed


def recognises_sentences(name: str) -> bool:
    """Return whether a name is of a file of sentences, by its suffix and first line.

    Of several files joined by commas, one is enough.
    """
    return any(map(_has_sentences, paths_of(name)))


def is_plain_text(path: Path) -> bool:
    """Return whether a file has one sentence per line, and no columns."""
    return suffix_of(path) == ".txt" and path.is_file() and _has_no_columns(path)


def open_sentences(names: str, split: str = "train") -> Sentences:
    """Read training sentences of a file, or of several joined by commas, into memory.

    Columns are found by the names in PAIR_COLUMNS, SCORE_COLUMNS and SENTENCE_COLUMNS. Scores are
    numbers, each file's on its own scale, or labels of NLI. Where a column names the split, rows
    of other splits are left out, so that test pairs are not trained on.

    Raises:
        UserError: a file that does not exist, has none of those columns, is empty, or holds a
            malformed row or one score alone; files of pairs and of single sentences together.
    """
    files = [_training_sentences(path, split) for path in paths_of(names)]
    if not files:
        raise UserError("No file of sentences was named; give a path, or several with commas.")
    scored, single = ([file for file in files if file.scored is kind] for kind in (True, False))
    if scored and single:
        raise UserError(
            f"{scored[0].name} holds pairs with a score and {single[0].name} single sentences, "
            "which one training does not mix. Give files of one kind."
        )
    pairs = tuple(pair for file in files for pair in file.pairs)
    name = "+".join(file.name for file in files)
    return Sentences(name, pairs, bool(scored), sum(file.skipped for file in files))


def open_scored_pairs(names: str, split: str = "") -> ScoredPairs:
    """Read the scored pairs of a file, or of several joined by commas, as one test set.

    Several files are assumed to share one scale, and their scores are not changed: rescaled one by
    one, their pairs could not be ranked together.

    Args:
        names: the files; each must have a column of scores.
        split: which rows to read; required where a column names several splits.

    Raises:
        UserError: as `open_sentences`; or a file has no scores, holds several splits and none was
            named, or lacks the named one.
    """
    return _scored_pairs(names, split, _rows_of_split(names, split))


def open_binary_pairs(names: str, split: str = "") -> ScoredPairs:
    """Read pairs whose label is 1 (alike) or 0 (not alike), as `open_scored_pairs` does.

    Raises:
        UserError: also where a label is neither, or no pair has one of the two.
    """
    rows = _rows_of_split(names, split)
    for row in rows:
        if row.pair is not None and row.pair.score not in (0.0, 1.0):
            raise row.line.error(
                f"has the label {row.pair.score:g}, and a pair is either alike, 1, or not, 0. Give "
                f"a file of these two classes."
            )
    found = _scored_pairs(names, split, rows)
    present = {pair.score for pair in found.pairs}
    absent = [label for label in (0, 1) if label not in present]
    if absent:
        raise UserError(
            f"None of the {counted(len(found.pairs), 'pairs')} of {names} has the label "
            f"{absent[0]}; classification needs pairs of both labels, 0 and 1."
        )
    return found


def paths_of(names: str) -> list[Path]:
    """Return the files that a name means: one, or several joined by commas."""
    if names.strip() and Path(names).exists():  # a comma may be part of its name
        return [Path(names)]
    return [Path(name.strip()) for name in names.split(",") if name.strip()]


def read_rows(path: Path) -> Iterator[tuple[Line, Row]]:
    """Return the rows of a place or of plain text by column name, in lower case."""
    if is_place(path):
        return ((line, _lowered(line)) for line in read_records(path))
    if _has_no_columns(path):
        column = SENTENCE_COLUMNS[0]
        return ((line, {column: line.text}) for line in read_lines(path) if line.text.strip())
    return read_table(path)


# How the scores of one file are read


@dataclass(frozen=True)
class _ScoreScale:
    """How the values of a score column are read."""

    column: str
    labels: Mapping[str, float]  # the score of each label; empty where the column holds numbers

    @classmethod
    def of(
        cls, path: Path, column: str, values: Iterable[object], inference: bool
    ) -> "_ScoreScale":
        """Return the scale of a column.

        Args:
            path: of its file.
            column: its name.
            values: those of its rows; read up to the first that is a label.
            inference: whether the pairs are premise and hypothesis, whose 0, 1 and 2 are labels.

        Raises:
            UserError: a premise has 0 and 1 alone, which are two labels of three, or no and yes.
        """
        if column not in _LABEL_COLUMNS:
            return cls(column, {})
        labels = (word for word in map(_label, values) if word not in _NO_LABEL)
        first = next(labels, "")
        if first in NLI_LABELS:
            return cls(column, NLI_LABELS)
        if not inference:
            return cls(column, {})
        if {first, *labels} in ({"0", "1"}, {"1"}):
            raise UserError(
                f"{path}: every {column!r} of a premise is 0 or 1, which may mean entailment and "
                "neutral, or alike and not alike. Write the labels as words (entailment, neutral, "
                "contradiction), or name the columns sentence1 and sentence2, where 1 is alike."
            )
        return cls(column, NLI_NUMBERS)

    def read(self, line: Line, row: Row) -> float | None:
        """Return the score of a row on the file's scale; None where the annotators disagreed."""
        value = required(line, row, self.column)
        if not self.labels:
            labels = f", nor one of {', '.join(NLI_LABELS)}"
            nor = labels if self.column in _LABEL_COLUMNS else ""
            # Quora on Hugging Face has true and false.
            score = int(value) if isinstance(value, bool) else value
            return number(line, score, repr(self.column), nor)
        label = _label(value)
        if label in _NO_LABEL:
            return None
        if label not in self.labels:
            known = ", ".join(self.labels)
            raise line.error(f"{self.column!r} is {value!r}, not one of {known}, as others are.")
        return self.labels[label]

    def between_0_and_1(
        self, path: Path, pairs: Sequence[SentencePair]
    ) -> tuple[SentencePair, ...]:
        """Return the pairs of a file with scores scaled linearly to 0 … 1; labels are kept.

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
        return tuple(
            SentencePair(pair.first, pair.second, (pair.score - lowest) / width) for pair in pairs
        )


def _label(value: object) -> str:
    # pandas writes 1.0 for a whole number in a column with missing values.
    return str(value).strip().lower().removesuffix(".0")


# One file


class _SentenceRow(NamedTuple):
    """One row and its place."""

    line: Line
    split: str  # in lower case; empty where the file has no column for it
    pair: SentencePair | None  # its score is the file's; None where the annotators disagreed


@dataclass(frozen=True)
class _SentenceFile:
    """The rows of a file, in its order; the two sentences of a single one are the same."""

    path: Path
    scale: _ScoreScale | None  # None for single sentences
    rows: tuple[_SentenceRow, ...]

    @property
    def splits(self) -> frozenset[str]:
        """The splits of all rows; only "" where the file has no such column."""
        return frozenset(row.split for row in self.rows)


class _Columns(NamedTuple):
    """Names of the columns that are read; empty for one that the file does not have."""

    first: str
    second: str
    score: str
    split: str


def _training_sentences(path: Path, split: str) -> Sentences:
    file = _read_file(path)
    wanted = {split} if split in file.splits else file.splits
    pairs = [row.pair for row in file.rows if row.pair is not None and row.split in wanted]
    if not pairs:
        raise UserError(
            f"{path} holds no sentence to train on in {counted(len(file.rows), 'rows')}."
        )
    scaled = file.scale.between_0_and_1(path, pairs) if file.scale else tuple(pairs)
    skipped = len(file.rows) - len(pairs)
    return Sentences(name_of(path), scaled, file.scale is not None, skipped)


def _scored_pairs(names: str, split: str, rows: Sequence[_SentenceRow]) -> ScoredPairs:
    pairs = tuple(row.pair for row in rows if row.pair is not None)
    name = "+".join(name_of(path) for path in paths_of(names))
    return ScoredPairs(name, split.lower(), pairs, len(rows) - len(pairs))


def _rows_of_split(names: str, split: str) -> list[_SentenceRow]:
    files = [_read_file(path) for path in paths_of(names)]
    if not files:
        raise UserError("No file of sentence pairs was named; give a path, or several with commas.")
    for file in files:
        if file.scale is None:
            raise UserError(
                f"{file.path} has no scores; give a file with a column that says how alike the "
                f"sentences of each pair are ({', '.join(SCORE_COLUMNS)})."
            )
    return [row for file in files for row in _of_split(file, split)]


def _of_split(file: _SentenceFile, split: str) -> Sequence[_SentenceRow]:
    wanted, there = split.lower(), sorted(file.splits - {""})
    if not there:
        if split:
            raise UserError(
                f"--split {split} was asked for, and {file.path} has no column that names a split "
                f"({' or '.join(SPLIT_COLUMNS)}); leave --split out, or take another file."
            )
        return file.rows
    if not split and len(file.splits) > 1:
        default = "test" if "test" in there else there[0]
        raise UserError(
            f"{file.path} holds rows of several splits, {', '.join(there)}; say which to measure, "
            f"as in --split {default}."
        )
    if split and wanted not in file.splits:
        raise UserError(f"{file.path} has no row of the split {split!r}. {nearest(wanted, there)}")
    return [row for row in file.rows if not split or row.split == wanted]


def _read_file(path: Path) -> _SentenceFile:
    refuse_pipe(path)
    if not path.exists() and not is_place(path):
        near = [found.name for found in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"There is no file {path}. {suggestion(path.name, near)}".strip())
    if not _is_readable(path):
        raise UserError(
            f"{path} is not a file of sentences by its name; those end in {', '.join(SUFFIXES)}, "
            f"or in {', '.join((*TEXT, '.txt'))} and .gz, and a folder holds such files."
        )
    header = _header(path)
    if header is None:
        raise UserError(f"{path} holds no sentence: every line of it is blank.")
    columns = _columns(*header)
    scale = None
    if columns.score:
        values = (row.get(columns.score) for _, row in read_rows(path))
        scale = _ScoreScale.of(path, columns.score, values, columns.first == "premise")
    return _SentenceFile(path, scale, tuple(_read(path, columns, scale)))


def _read(path: Path, columns: _Columns, scale: _ScoreScale | None) -> Iterator[_SentenceRow]:
    for line, row in read_rows(path):
        split = str(row.get(columns.split)).strip().lower() if columns.split else ""
        score = scale.read(line, row) if scale else 1.0
        first, second = (
            nonempty(line, string(line, row, column), repr(column))
            for column in (columns.first, columns.second)
        )
        pair = None if score is None else SentencePair(first, second, score)
        yield _SentenceRow(line, split, pair)


def _is_readable(path: Path) -> bool:
    """Return whether a path is a place of rows or a file of plain text."""
    return is_place(path) or (suffix_of(path) == ".txt" and path.is_file())


def _has_sentences(path: Path) -> bool:
    try:
        header = _header(path) if _is_readable(path) else None
    except UserError:
        return False  # absent or malformed, which whoever opens it is told
    columns = header[1] if header else []
    pair, single = _pair_columns(columns), bool(_first_of(SENTENCE_COLUMNS, columns))
    if header and pair and answers(columns):
        raise header[0].error(
            f"names sentence pairs ({', '.join(pair)}) and also a query and its answer; rename or "
            f"leave out the columns of one of them: {', '.join(columns)}."
        )
    # In a row of a query, `text` is no sentence of its own.
    return pair is not None or (single and not _first_of(QUERY_KEYS, columns))


def _header(path: Path) -> tuple[Line, list[str]] | None:
    """Return the line that names the columns, and their names in lower case."""
    if suffix_of(path) in (".csv", ".tsv", ".txt") and path.is_file():
        header = header_of(path)
        return (header[0], [SENTENCE_COLUMNS[0]]) if header and _has_no_columns(path) else header
    found = columns_of(path)
    return found and (found[0], [name.lower() for name in found[1]])


def _has_no_columns(path: Path) -> bool:
    """Return whether each line is a sentence; SICK and MRPC are tables that end in .txt too."""
    header = header_of(path)
    return suffix_of(path) == ".txt" and (header is None or _pair_columns(header[1]) is None)


def _lowered(line: Line) -> Row:
    return {key.lower(): value for key, value in line.json().items()}


def _columns(line: Line, columns: list[str]) -> _Columns:
    pair, single = _pair_columns(columns), _first_of(SENTENCE_COLUMNS, columns)
    split = _first_of(SPLIT_COLUMNS, columns)
    names = ", ".join(map(repr, columns)) or "none"
    found = f"its columns are {names}. Give the columns such names."
    if pair is None and not single:
        pairs = ", ".join(" and ".join(names) for names in PAIR_COLUMNS)
        raise line.error(
            f"names neither a pair of sentences ({pairs}) nor single ones "
            f"({' or '.join(SENTENCE_COLUMNS)}); {found}"
        )
    if pair is None:
        return _Columns(single, single, "", split)
    score = _first_of(SCORE_COLUMNS, columns)
    if not score:
        raise line.error(f"names no score of the pairs ({', '.join(SCORE_COLUMNS)}); {found}")
    return _Columns(*pair, score, split)


def _pair_columns(columns: Collection[str]) -> tuple[str, str] | None:
    return next((names for names in PAIR_COLUMNS if set(names) <= set(columns)), None)


def _first_of(names: Collection[str], columns: Collection[str]) -> str:
    return next((name for name in names if name in columns), "")
