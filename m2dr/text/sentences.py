"""Sentences to train on: pairs with a score, or single ones, which stand for themselves."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from m2dr.errors import UserError, nearest
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
    "gold_label",
    "quality",
    "is_duplicate",
)
SINGLES = ("text", "sentence")
KINDS = (".tsv", ".csv", ".jsonl", ".txt")
_SPLITS = ("split", "semeval_set")  # in files that hold train, dev and test together


@dataclass(frozen=True)
class Sentences:
    """What is trained on, in file order.

    Of single sentences, `first` and `second` are the same and the score is 1: unsupervised SimCSE
    encodes each of them twice (Gao et al. 2021, arXiv:2104.08821).
    """

    name: str  # short, fit to name a folder
    pairs: tuple[Pair, ...]
    scored: bool  # False for single sentences
    skipped: int = 0  # rows left out: no label was agreed on, or not of the split train


class _Layout(NamedTuple):
    """The columns that are read; an empty name stands for one that the file does not have."""

    first: str
    second: str
    score: str
    split: str


def recognises_sentences(name: str) -> bool:
    """Whether it names a file of sentences rather than of queries and documents.

    The suffix and the first line decide. Of several files joined by commas, one is enough.
    """
    return any(map(_holds_sentences, _paths(name)))


def open_sentences(names: str) -> Sentences:
    """Read a file, or several that are joined by commas, into memory.

    Columns are found by name, as COUPLES, SCORES and SINGLES have them. Scores are numbers, each
    file's on its own scale, or labels of NLI. Where a column says that rows are of the split
    `train`, all others are left out: nothing is trained on test pairs by oversight.

    Raises:
        UserError: a file that is not there, has none of those columns, is empty, holds a malformed
            row or one score alone; files of pairs and files of single sentences together.
    """
    files = [_open(path) for path in _paths(names)]
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


def _paths(names: str) -> list[Path]:
    if Path(names).is_file():  # a comma may be part of its name
        return [Path(names)]
    return [Path(name.strip()) for name in names.split(",") if name.strip()]


def _holds_sentences(path: Path) -> bool:
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


def _open(path: Path) -> Sentences:
    found = _columns(_checked(path))
    if found is None:
        raise UserError(f"{path} holds no sentence: every line of it is blank.")
    layout = _layout(*found)
    scale = None
    if layout.score:
        values = (row.get(layout.score) for _, row in _records(path))
        scale = scale_of(layout.score, values, inference=layout.first == "premise")
    rows = list(_read(path, layout, scale))
    splits = {split for split, _ in rows}
    wanted = {"train"} if "train" in splits else splits
    pairs = [pair for split, pair in rows if pair is not None and split in wanted]
    if not pairs:
        raise UserError(f"{path} holds no sentence to train on in {len(rows)} rows.")
    between = scale.between_0_and_1(path, pairs) if scale else tuple(pairs)
    name = path.name.removesuffix(".gz")[: -len(kind_of(path))]
    return Sentences(name, between, scale is not None, len(rows) - len(pairs))


def _checked(path: Path) -> Path:
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


def _is_plain(path: Path) -> bool:
    """Whether each line is a sentence; SICK and MRPC are tables that end in .txt too."""
    header = header_of(path)
    return kind_of(path) == ".txt" and (header is None or _couple(header[1]) is None)


def _records(path: Path) -> Iterator[tuple[Line, Row]]:
    """Each row by column name in lower case."""
    if kind_of(path) == ".jsonl":
        return ((line, _lowered(line)) for line in read_lines(path))
    if _is_plain(path):
        return ((line, {SINGLES[0]: line.text}) for line in read_lines(path) if line.text.strip())
    return read_table(path)


def _lowered(line: Line) -> Row:
    return {key.lower(): value for key, value in line.json().items()}


def _layout(line: Line, columns: list[str]) -> _Layout:
    couple, single = _couple(columns), _first_of(SINGLES, columns)
    split = _first_of(_SPLITS, columns)
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


def _read(path: Path, layout: _Layout, scale: Scale | None) -> Iterator[tuple[str, Pair | None]]:
    """Per row its split and its pair, which has the file's own score; None without a label."""
    for line, row in _records(path):
        split = str(row.get(layout.split)).strip().lower() if layout.split else ""
        score = scale.read(line, row) if scale else 1.0
        first, second = (
            filled(line, string(line, row, column), repr(column))
            for column in (layout.first, layout.second)
        )
        yield split, None if score is None else Pair(first, second, score)


def _couple(columns: Collection[str]) -> tuple[str, str] | None:
    return next((names for names in COUPLES if set(names) <= set(columns)), None)


def _first_of(names: Collection[str], columns: Collection[str]) -> str:
    return next((name for name in names if name in columns), "")


def _asks(columns: Collection[str]) -> bool:
    """Whether a row is of a query: then its `text` is no sentence of its own."""
    return not set(ASKS).isdisjoint(columns)
