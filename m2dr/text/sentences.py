"""Sentences to train on: pairs with a score, or single ones, which stand for themselves."""

from dataclasses import dataclass
from pathlib import Path

from m2dr.errors import UserError, counted
from m2dr.records.texts import Pair
from m2dr.text.couples import (
    COUPLES,
    KINDS,
    SCORES,
    SINGLES,
    holds_lines,
    holds_sentences,
    name_of,
    paths_of,
)
from m2dr.text.couples import read_sentences as read_file

__all__ = [
    "COUPLES",
    "KINDS",
    "SCORES",
    "SINGLES",
    "Sentences",
    "holds_lines",
    "name_of",
    "open_sentences",
    "recognises_sentences",
]


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


def recognises_sentences(name: str) -> bool:
    """Whether it names a file of sentences rather than of queries and documents.

    The suffix and the first line decide. Of several files joined by commas, one is enough.
    """
    return any(map(holds_sentences, paths_of(name)))


def open_sentences(names: str, split: str = "train") -> Sentences:
    """Read a file, or several that are joined by commas, into memory.

    Columns are found by name, as COUPLES, SCORES and SINGLES have them. Scores are numbers, each
    file's on its own scale, or labels of NLI. Where a column says that rows are of the wanted
    split, all others are left out: nothing is trained on test pairs by oversight.

    Raises:
        UserError: a file that is not there, has none of those columns, is empty, holds a malformed
            row or one score alone; files of pairs and files of single sentences together.
    """
    files = [_open(path, split) for path in paths_of(names)]
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


def _open(path: Path, split: str) -> Sentences:
    file = read_file(path)
    wanted = {split} if split in file.splits else file.splits
    pairs = [row.pair for row in file.rows if row.pair is not None and row.split in wanted]
    if not pairs:
        raise UserError(
            f"{path} holds no sentence to train on in {counted(len(file.rows), 'rows')}."
        )
    between = file.scale.between_0_and_1(path, pairs) if file.scale else tuple(pairs)
    return Sentences(file.name, between, file.scored, len(file.rows) - len(pairs))
