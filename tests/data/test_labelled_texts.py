from pathlib import Path

import pytest

from m2dr.core.errors import UserError
from m2dr.data.sentences import LabelledText, open_labelled_texts, split_file

ROWS = [("one, two", "a"), ("three", "b")]


@pytest.mark.parametrize(
    "names", [("text", "category"), ("Sentence", "label"), ("utterance", "intent")]
)
@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "csv.gz"])
def test_a_folder_holds_a_file_of_each_split(write, names: tuple[str, str], kind: str) -> None:
    for split in ("train", "test"):
        if kind == "jsonl":
            lines = [dict(zip(names, row, strict=True)) for row in ROWS]
        else:
            mark = "\t" if kind == "tsv" else ","
            quote = '"{}"' if "csv" in kind else "{}"
            lines = [mark.join(names), *(mark.join(map(quote.format, row)) for row in ROWS)]
        write(f"bank/{split}.{kind}", *lines)
        folder = write("bank/README.md", "read me").parent

    found = open_labelled_texts(folder)

    assert found.train == found.test == tuple(LabelledText(*row) for row in ROWS)
    assert (found.name, found.split) == ("bank", "test")


def test_one_file_may_hold_both_splits(write) -> None:
    rows = [f"{split}\t{text}\t{label}" for split in ("train", "Dev") for text, label in ROWS]
    path = write("bank.tsv", "split\ttext\tlabel", *rows, "test\tfour\tc")

    found = open_labelled_texts(path, "dev")

    assert (len(found.train), len(found.test), found.name, found.split) == (2, 2, "bank", "dev")


def test_a_label_may_be_a_whole_number_of_json(write) -> None:
    rows = [
        {"text": "x", "label": label, "split": split}
        for label in (0, 7)
        for split in ("train", "test")
    ]

    assert [row.label for row in open_labelled_texts(write("a.jsonl", *rows)).train] == ["0", "7"]


def test_a_split_is_a_word_of_the_name_of_its_file(write) -> None:
    for name in ("msr_test.txt", "latest.csv", "msr_train.txt"):
        folder = write(f"mrpc/{name}", "x").parent

    assert split_file(folder, "Test").name == "msr_test.txt"


TRAIN = ("text,label", "x,a", "y,b")


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"train.csv": TRAIN}, r"no file of the split 'test' by name \(train.csv\)"),
        ({"train.csv": TRAIN, "test.csv": TRAIN, "test.tsv": TRAIN}, "several files of the split 'test'"),
        ({}, r"no file of the split 'train' by name \(none\)"),
        ({"train.csv": TRAIN, "test.csv": ()}, "test.csv holds no labelled text"),
        ({"train.csv": TRAIN, "test.csv": TRAIN[:1]}, "test.csv holds no labelled text"),
        ({"train.csv": TRAIN[:2], "test.csv": TRAIN[:2]}, "split train of .* has the label 'a'; a classifier needs two"),
        ({"train.csv": TRAIN, "test.csv": (*TRAIN, "z,aa")}, "test.csv, line 4: the label 'aa' is on no text of the split train"),
        ({"train.csv": ("words,label", "x,a"), "test.csv": TRAIN}, "train.csv, line 2: has none of the columns text"),
        ({"train.csv": ("text,group", "x,a"), "test.csv": TRAIN}, "line 2: has none of the columns label, .* 'text', 'group'"),
        ({"train.csv": (*TRAIN, " ,b"), "test.csv": TRAIN}, "train.csv, line 4: 'text' is empty"),
        ({"train.csv": (*TRAIN, "z, "), "test.csv": TRAIN}, "train.csv, line 4: 'label' is empty"),
        ({"train.csv": (*TRAIN, "z"), "test.csv": TRAIN}, "train.csv, line 4: has 1 column, and the header has 2"),
        ({"train.jsonl": ({"text": "x", "label": 1.5},), "test.csv": TRAIN}, "line 1: 'label' is 1.5, not a string"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_learnt_from_is_refused(
    write, tmp_path: Path, files: dict[str, tuple[object, ...]], problem: str
) -> None:
    (tmp_path / "bank").mkdir()
    for name, lines in files.items():
        write(f"bank/{name}", *lines)

    with pytest.raises(UserError, match=problem):
        open_labelled_texts(tmp_path / "bank")


@pytest.mark.parametrize(
    ("name", "lines", "problem"),
    [
        ("a.csv", TRAIN, "has no column that names a split"),
        ("a.csv", ("split,text,label", "train,x,a", "tets,x,a"), "no row of the split 'test'. Did you mean tets?"),
        ("a.xlsx", TRAIN, "not a file of labelled texts by its name"),
    ],
)  # fmt: skip
def test_a_file_without_both_splits_is_refused(
    write, name: str, lines: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        open_labelled_texts(write(name, *lines))


def test_banking77_has_its_official_counts(data: Path) -> None:
    found = open_labelled_texts(data / "classification" / "banking77")

    assert (len(found.train), len(found.test)) == (10_003, 3_080)
    assert len({row.label for row in found.train}) == 77
