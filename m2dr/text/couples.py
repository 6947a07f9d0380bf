"""Files of sentences, row by row: pairs with a score, or single ones; columns found by name."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from m2dr.errors import UserError, nearest
from m2dr.io import refuse_pipe
from m2dr.records.texts import Pair
from m2dr.text.fields import Row, filled, string
from m2dr.text.likeness import Scale, scale_of
from m2dr.text.lines import Line, read_lines
from m2dr.text.pairs import ASKS
from m2dr.text.tables import header_of, kind_of, read_table

# Column names in lower case: STS-B and SNLI, SICK, MultiNLI, mteb, Quora, MRPC.
COUPLES = (
    ("sentence1", "sentence2"),
    ("sentence_a", "sentence_b"),
    ("premise", "hypothesis"),
    ("text1", "text2"),
    ("question1", "question2"),
    ("#1 string", "#2 string"),
)
SCORES = (
    "score",
    "similarity",
    "relatedness_score",
    "label",
    "labels",
    "gold_label",
    "quality",
    "is_duplicate",
)
SINGLES = ("text", "sentence")
KINDS = (".tsv", ".csv", ".jsonl", ".txt")
SPLITS = ("split", "semeval_set")  # in files that hold train, dev and test together


class SentenceRow(NamedTuple):
    """One row and where it stands."""

    line: Line
    split: str  # in lower case; empty where the file has no column for it
    pair: Pair | None  # its score as the file has it; None where no label was agreed on


@dataclass(frozen=True)
class SentenceFile:
    """What a file holds, in its order; of single sentences both parts of a pair are the same."""

    path: Path
    name: str  # without the suffix
    scale: Scale | None  # None for single sentences
    rows: tuple[SentenceRow, ...]

    @property
    def scored(self) -> bool:
        """Whether these are pairs with a score."""
        return self.scale is not None

    @property
    def splits(self) -> frozenset[str]:
        """Every split that a row is of; that of no name alone where the file has no such column."""
        return frozenset(row.split for row in self.rows)


class _Layout(NamedTuple):
    """The columns that are read; an empty name stands for one that the file does not have."""

    first: str
    second: str
    score: str
    split: str


def paths_of(names: str) -> list[Path]:
    """The files that a name means: one, or several that are joined by commas."""
    if Path(names).is_file():  # a comma may be part of its name
        return [Path(names)]
    return [Path(name.strip()) for name in names.split(",") if name.strip()]


def name_of(path: Path) -> str:
    """The file's name without its suffix.

    >>> name_of(Path("sts/stsb.test.tsv.gz"))
    'stsb.test'
    """
    return path.name.removesuffix(".gz")[: -len(kind_of(path))]


def read_sentences(path: Path) -> SentenceFile:
    """Read a whole file into memory.

    Raises:
        UserError: it is not there, has none of the columns, is blank, or holds a malformed row.
    """
    found = _columns(_checked(path))
    if found is None:
        raise UserError(f"{path} holds no sentence: every line of it is blank.")
    layout = _layout(*found)
    scale = None
    if layout.score:
        values = (row.get(layout.score) for _, row in records_of(path))
        scale = scale_of(layout.score, values, inference=layout.first == "premise")
    return SentenceFile(path, name_of(path), scale, tuple(_read(path, layout, scale)))


def holds_sentences(path: Path) -> bool:
    """Whether its suffix and its first line say that it is such a file."""
    if kind_of(path) not in KINDS:
        return False
    try:
        found = _columns(path)
    except UserError:
        return False  # absent or malformed: whoever reads it after all says so
    columns = found[1] if found else []
    return _couple(columns) is not None or (
        bool(_first_of(SINGLES, columns)) and not _asks(columns)
    )


def _checked(path: Path) -> Path:
    refuse_pipe(path)
    if not path.is_file():
        near = [found.name for found in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = nearest(path.name, near)
        raise UserError(
            f"There is no file {path}. {hint if hint.startswith('Did') else ''}".strip()
        )
    if kind_of(path) not in KINDS:
        raise UserError(
            f"{path} is not a file of sentences by its name; those end in {', '.join(KINDS)}, or "
            "one of these and .gz."
        )
    return path


def _columns(path: Path) -> tuple[Line, list[str]] | None:
    """The line that names the columns, and their names in lower case."""
    if kind_of(path) != ".jsonl":
        header = header_of(path)
        return (header[0], list(SINGLES[:1])) if header and _is_plain(path) else header
    line = next(read_lines(path), None)
    return None if line is None else (line, list(_lowered(line)))


def holds_lines(path: Path) -> bool:
    """Whether it is a file of one sentence per line, and no table."""
    return kind_of(path) == ".txt" and path.is_file() and _is_plain(path)


def _is_plain(path: Path) -> bool:
    """Whether each line is a sentence; SICK and MRPC are tables that end in .txt too."""
    header = header_of(path)
    return kind_of(path) == ".txt" and (header is None or _couple(header[1]) is None)


def records_of(path: Path) -> Iterator[tuple[Line, Row]]:
    """Each row of a table or of JSONL by column name, in lower case."""
    if kind_of(path) == ".jsonl":
        return ((line, _lowered(line)) for line in read_lines(path))
    if _is_plain(path):
        return ((line, {SINGLES[0]: line.text}) for line in read_lines(path) if line.text.strip())
    return read_table(path)


def _lowered(line: Line) -> Row:
    return {key.lower(): value for key, value in line.json().items()}


def _layout(line: Line, columns: list[str]) -> _Layout:
    couple, single = _couple(columns), _first_of(SINGLES, columns)
    split = _first_of(SPLITS, columns)
    names = ", ".join(map(repr, columns)) or "none"
    found = f"its columns are {names}. Give the columns such names."
    if couple is None and not single:
        couples = ", ".join(" and ".join(names) for names in COUPLES)
        raise line.error(
            f"names neither a pair of sentences ({couples}) nor single ones "
            f"({' or '.join(SINGLES)}); {found}"
        )
    if couple is None:
        return _Layout(single, single, "", split)
    score = _first_of(SCORES, columns)
    if not score:
        raise line.error(f"names no score of the pairs ({', '.join(SCORES)}); {found}")
    return _Layout(*couple, score, split)


def _read(path: Path, layout: _Layout, scale: Scale | None) -> Iterator[SentenceRow]:
    for line, row in records_of(path):
        split = str(row.get(layout.split)).strip().lower() if layout.split else ""
        score = scale.read(line, row) if scale else 1.0
        first, second = (
            filled(line, string(line, row, column), repr(column))
            for column in (layout.first, layout.second)
        )
        yield SentenceRow(line, split, None if score is None else Pair(first, second, score))


def _couple(columns: Collection[str]) -> tuple[str, str] | None:
    return next((names for names in COUPLES if set(names) <= set(columns)), None)


def _first_of(names: Collection[str], columns: Collection[str]) -> str:
    return next((name for name in names if name in columns), "")


def _asks(columns: Collection[str]) -> bool:
    """Whether a row is of a query: then its `text` is no sentence of its own."""
    return not set(ASKS).isdisjoint(columns)
