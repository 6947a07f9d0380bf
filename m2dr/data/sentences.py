"""Files of sentences: pairs with a score or an NLI label, single sentences, labelled texts."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from m2dr.core.errors import UserError, nearest
from m2dr.core.records import SentencePair
from m2dr.data import tables
from m2dr.data.roles import DOCUMENT, GROUP, LABELLED, SENTENCE, say_unread

SUFFIXES = (*tables.TEXT, ".txt", *tables.ARROW)
NLI_LABELS = {"entailment": 1.0, "neutral": 0.5, "contradiction": 0.0}  # as scores
NLI_NUMBERS = {"0": 1.0, "1": 0.5, "2": 0.0}  # the same three, in the order of Hugging Face
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
    skipped: int = 0  # rows left out: no label, another split than train, or neutral


@dataclass(frozen=True)
class ScoredPairs:
    """Test pairs in file order, each with its score on the scale of the file."""

    name: str  # short, fit to name a folder
    split: str  # empty: the files have no column for it
    pairs: tuple[SentencePair, ...]


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


def recognises_sentences(name: str, documents: bool = False) -> bool:
    """Return whether a name is of a file of sentences, by its suffix and first line.

    Of several files joined by commas, one is enough.

    Args:
        name: of the files.
        documents: whether rows of a text that name no split are documents, and no sentences.
    """
    return any(_has_sentences(path, documents) for path in paths_of(name))


def is_plain_text(path: Path) -> bool:
    """Return whether a file has one sentence per line; SICK and MRPC are tables in .txt."""
    return (
        tables.suffix_of(path) == ".txt"
        and path.is_file()
        and not _gold_of(path)
        and _pair_columns(tables.header_of(path)) is None
    )


def paths_of(names: str) -> list[Path]:
    """Return the files that a name means: one, several joined by commas, or a year of SemEval."""
    if names.strip() and Path(names).exists():  # a comma may be part of its name
        return sorted(filter(_gold_of, Path(names).glob("STS.input.*"))) or [Path(names)]
    return [Path(name.strip()) for name in names.split(",") if name.strip()]


def open_sentences(names: str, neutral: bool = True) -> Sentences:
    """Read training sentences of a file, or of several joined by commas, into memory.

    Columns are found by the names of SENTENCE in m2dr/data/roles.py. Scores are numbers,
    each file's on its own scale, or labels of NLI. Where a column names the split train, rows of
    others are left out, so that test pairs are not trained on; so are the pairs that are neither
    entailment nor contradiction, unless `neutral`.

    Raises:
        UserError: a file has none of those columns, no sentence, a malformed row or one score
            alone; or files of pairs and of single sentences come together.
    """
    files = list(map(_read_file, paths_of(names)))
    if len({bool(file.score) for file in files}) != 1:
        raise UserError(f"{names!r} names no file, or pairs with a score and single sentences.")
    every: list[SentencePair] = []
    for file in files:
        wanted = {"train"} if "train" in file.splits else file.splits
        pairs = [row.pair for row in file.rows if row.pair is not None and row.split in wanted]
        if file.labels and not neutral:
            pairs = [pair for pair in pairs if pair.score != NLI_LABELS["neutral"]]
        if not pairs:
            raise UserError(f"{file.path} holds no sentence to train on in {len(file.rows)} rows.")
        if file.score and not file.labels:
            scores = [pair.score for pair in pairs]
            lowest, width = min(scores), max(scores) - min(scores)
            if width == 0:
                raise UserError(f"{file.path}: every {file.score} is {lowest:g}.")
            pairs = [SentencePair(p.first, p.second, (p.score - lowest) / width) for p in pairs]
        every += pairs
    skipped = sum(len(file.rows) for file in files) - len(every)
    name = "+".join(tables.name_of(file.path) for file in files)
    return Sentences(name, tuple(every), bool(files[0].score), skipped)


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
    paths, split = paths_of(names), split.lower()
    rows: list[_SentenceRow] = []
    for file in map(_read_file, paths):
        if not file.score:
            raise UserError(
                f"{file.path} has no column of scores ({', '.join(SENTENCE['score'])})."
            )
        if (split and split not in file.splits) or (not split and len(file.splits) > 1):
            splits = ", ".join(sorted(file.splits - {""})) or "none"
            wanted = f"the split {split!r}" if split else "no split"
            raise UserError(f"{file.path}: {wanted} was asked for; its splits are {splits}.")
        rows += [row for row in file.rows if not split or row.split == split]
    pairs = tuple(row.pair for row in rows if row.pair is not None)
    return ScoredPairs("+".join(map(tables.name_of, paths)), split, pairs)


def open_binary_pairs(names: str, split: str = "") -> ScoredPairs:
    """Read pairs whose label is 1 (alike) or 0 (not alike), as `open_scored_pairs` does.

    Raises:
        UserError: also where a label is neither, or no pair has one of the two.
    """
    pairs = open_scored_pairs(names, split)
    labels = sorted({pair.score for pair in pairs.pairs})
    if labels != [0.0, 1.0]:
        raise UserError(f"{names} has the labels {labels}; pairs are 1 (alike) or 0 (not alike).")
    return pairs


def open_labelled_texts(path: Path, split: str = "test") -> LabelledTexts:
    """Read a folder of a file per split, or one file whose column names the split.

    A file holds a split when its name has that word, as `train.csv` and `msr_train.tsv` do. Each
    row has a text and a label, in columns named as in LABELLED of m2dr/data/roles.py.

    Raises:
        UserError: a split is missing or empty, a row is malformed, all training labels are the
            same, or a test label is not among them.
    """
    train, test = (_labelled(path, each) for each in ("train", split.lower()))
    labels = {row.label for row in train}
    strange = next((row.label for row in test if row.label not in labels), None)
    if len(labels) == 1 or strange is not None:
        unknown = f", and the test label {strange!r} is none of them" if strange else ""
        raise UserError(f"{path} has {len(labels)} training labels{unknown}.")
    return LabelledTexts(tables.name_of(path), split.lower(), train, test)


def split_file(folder: Path, split: str) -> Path:
    """Return the one file of a folder whose name has the word `split`.

    Raises:
        UserError: there is none, or more than one.
    """
    files = sorted(file for file in folder.iterdir() if tables.suffix_of(file) in SUFFIXES)
    of_split = [f for f in files if split.lower() in re.split(r"[^a-z0-9]+", f.name.lower())]
    if len(of_split) != 1:
        names = ", ".join(file.name for file in files) or "nothing"
        raise UserError(f"{folder} has {len(of_split)} files of the split {split!r}: {names}.")
    return of_split[0]


def _labelled(path: Path, split: str) -> tuple[LabelledText, ...]:
    def parse(row: tables.Row) -> tuple[str, LabelledText]:
        values, _ = LABELLED.of(row, "text", "label")
        text, label = tables.text_of(values["text"], "the text"), values["label"]
        label = str(label) if isinstance(label, int) else tables.text_of(label, "the label")
        return str(values.get("split", "")).strip().lower(), LabelledText(text, label.strip())

    rows = list(_rows(split_file(path, split) if path.is_dir() else path, parse))
    chosen = tuple(text for of, text in rows if path.is_dir() or of == split)
    if not chosen:
        splits = ", ".join(sorted({of for of, _ in rows} - {""})) or "none"
        raise UserError(f"{path} holds no text of the split {split!r}; its splits are {splits}.")
    return chosen


# Files of pairs and sentences


class _SentenceRow(NamedTuple):
    split: str  # in lower case; empty where the file has no column for it
    pair: SentencePair | None  # its score is the file's; None where the annotators disagreed


class _SentenceFile(NamedTuple):
    """The rows of a file, in its order; the two sentences of a single one are the same."""

    path: Path
    score: str  # the column of scores; empty for single sentences
    labels: Mapping[str, float]  # the score of each label; empty where the column holds numbers
    rows: tuple[_SentenceRow, ...]

    @property
    def splits(self) -> frozenset[str]:
        return frozenset(row.split for row in self.rows)


def _read_file(path: Path) -> _SentenceFile:
    if not (tables.is_table(path) or tables.suffix_of(path) == ".txt"):
        near = nearest(path.name, (p.name for p in path.parent.glob("*"))) if path.name else ""
        raise UserError(f"There is no file of sentences {path}. {near}")
    columns = _columns(path)
    pair = _pair_columns(columns)
    score = next((name for name in SENTENCE["score"] if name in columns), "") if pair else ""
    if pair and not score:
        raise UserError(f"{path} names no score of its pairs ({', '.join(SENTENCE['score'])}).")
    if pair is None and not SENTENCE.has(columns, "text"):
        raise UserError(f"{path} has no columns of sentences, only {', '.join(columns) or 'none'}.")
    labels, unread = _labels(path, score, pair) if pair else {}, dict[str, None]()

    def parse(row: tables.Row) -> _SentenceRow:
        values, rest = SENTENCE.of(row, *(() if pair else ("text",)))
        unread.update(dict.fromkeys(rest))
        split = str(values.get("split", "")).strip().lower()
        texts = [(row.get(name), name) for name in pair] if pair else [(values["text"], "text")] * 2
        first, second = (tables.text_of(text, name) for text, name in texts)
        value = row.get(score)
        if not labels:
            number = tables.number_of(value, score) if score else 1.0
        elif (label := _label(value)) in labels:
            number = labels[label]
        elif label in _NO_LABEL:
            return _SentenceRow(split, None)
        else:
            raise ValueError(f"{score} is {value!r}, not one of {', '.join(labels)}")
        return _SentenceRow(split, SentencePair(first, second, number))

    rows = tuple(_rows(path, parse))
    say_unread(path, unread)
    return _SentenceFile(path, score, labels, rows)


def _labels(path: Path, score: str, pair: Collection[str]) -> Mapping[str, float]:
    """Return the score of each label of NLI in a column; empty where it holds numbers.

    Raises:
        UserError: a premise has 0 and 1 alone, which are two labels of three, or no and yes.
    """
    if score not in ("label", "gold_label"):
        return {}
    labels = {_label(value) for value in _rows(path, lambda row: row.get(score))} - {*_NO_LABEL}
    if labels & NLI_LABELS.keys():
        return NLI_LABELS
    if "premise" not in pair:
        return {}
    if labels in ({"0", "1"}, {"1"}):
        raise UserError(f"{path}: every {score} is 0 or 1; write the labels as words.")
    return NLI_NUMBERS


def _label(value: object) -> str:
    # pandas writes 1.0 for a whole number in a column with missing values.
    return str(value).strip().lower().removesuffix(".0")


def _rows(path: Path, parse: Callable[[tables.Row], tables.Parsed]) -> Iterator[tables.Parsed]:
    """Yield rows by column names in lower case; a line of plain text is a row of one column.

    SemEval has pairs between tabs, and in the same line of another file a score, empty for pairs
    that were not judged.
    """
    if gold := _gold_of(path):
        pairs, scores = (list(tables.read_lines(each, blank=True)) for each in (path, gold))
        if len(pairs) != len(scores):
            raise UserError(f"{gold} has {len(scores)} scores, and {path} {len(pairs)} pairs.")
        lines = zip((pair.split("\t") for pair in pairs), scores, strict=True)
        cells = ((*pair[:2], score) for pair, score in lines if score.strip())
        return (parse(dict(zip(_columns(path), row, strict=True))) for row in cells)
    if is_plain_text(path):
        return (parse({"text": line}) for line in tables.read_lines(path) if line.strip())
    return tables.parsed(
        path, lambda row: parse({name.lower(): value for name, value in row.items()})
    )


def _gold_of(path: Path) -> Path | None:
    """Return the file of scores beside STS.input.NAME.txt, as SemEval publishes it."""
    gold = path.with_name(path.name.replace("STS.input.", "STS.gs.")) if path.name else path
    return gold if gold != path and gold.is_file() else None


def _columns(path: Path) -> list[str]:
    """Return the names of the columns, in lower case."""
    if _gold_of(path):
        return [SENTENCE[role][0] for role in ("first", "second", "score")]
    if is_plain_text(path):
        return ["text"]
    if tables.suffix_of(path) in (".csv", ".tsv", ".txt") and path.is_file():
        return tables.header_of(path)
    return [name.lower() for name in tables.columns_of(path)]


def _has_sentences(path: Path, documents: bool) -> bool:
    if not (tables.is_table(path) or (tables.suffix_of(path) == ".txt" and path.is_file())):
        return False
    try:
        columns = _columns(path)
    except UserError:
        return False  # malformed, which whoever opens it is told
    pair = _pair_columns(columns)
    if documents and DOCUMENT.has(columns, "text") and not SENTENCE.has(columns, "split"):
        return pair is not None or is_plain_text(path)
    # In a row of a query, `text` is no sentence of its own.
    return pair is not None or (SENTENCE.has(columns, "text") and not GROUP.has(columns, "query"))


def _pair_columns(columns: Collection[str]) -> tuple[str, str] | None:
    pairs = zip(SENTENCE["first"], SENTENCE["second"], strict=True)
    return next((names for names in pairs if set(names) <= set(columns)), None)
