import pytest

from m2dr.core.errors import UserError
from m2dr.core.records import SentencePair
from m2dr.data.sentences import open_binary_pairs, open_scored_pairs

HEADER = "score\tsentence1\tsentence2"
MIXED = "split\tscore\tsentence1\tsentence2"


def test_scores_stay_on_the_scale_of_the_file(write) -> None:
    path = write("a.tsv", HEADER, "3.5\tone\ttwo", "1\tthree\tfour")

    found = open_scored_pairs(str(path))

    assert found.pairs == (SentencePair("one", "two", 3.5), SentencePair("three", "four", 1.0))
    assert (found.name, found.split, found.skipped) == ("a", "", 0)


def test_files_joined_by_commas_are_one_set_on_one_scale(write) -> None:
    first = write("a.tsv", HEADER, "2\ta\tb", "3\tc\td")
    second = write("b.csv", "score,sentence1,sentence2", "5,e,f", "1,g,h")

    found = open_scored_pairs(f"{first}, {second}")

    assert found.name == "a+b"
    assert [pair.score for pair in found.pairs] == [2, 3, 5, 1]


def test_the_asked_split_is_read_whatever_its_capitals(write) -> None:
    path = write("a.tsv", MIXED, "TRAIN\t1\ta\tb", "Test\t2\tc\td", "test\t3\te\tf")

    found = open_scored_pairs(str(path), "TEST")

    assert [pair.score for pair in found.pairs] == [2, 3]
    assert found.split == "test"


@pytest.mark.parametrize(
    ("rows", "split", "problem"),
    [
        ((MIXED, "dev\t1\ta\tb", "train\t2\tc\td"), "", "several splits, dev, train; .* --split dev"),
        ((MIXED, "dev\t1\ta\tb"), "test", "no row of the split 'test'. Known: dev"),
        ((HEADER, "1\ta\tb"), "test", "has no column that names a split"),
        (("a line", "another"), "", "names neither a pair of sentences"),
        (("sentence", "another"), "", "has no scores; give a file"),
        ((HEADER, "much\ta\tb"), "", "line 2: 'score' is 'much', not a finite number"),
        ((HEADER, "nan\ta\tb"), "", "line 2: 'score' is 'nan', not a finite number"),
        (("sentence1\tsentence2", "a\tb"), "", "line 1: names no score of the pairs"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused(
    write, rows: tuple[str, ...], split: str, problem: str
) -> None:
    path = write("a.tsv", *rows)

    with pytest.raises(UserError, match=problem):
        open_scored_pairs(str(path), split)


def test_no_file_at_all_is_refused() -> None:
    with pytest.raises(UserError, match="No file of sentence pairs was named"):
        open_scored_pairs(" , ")


@pytest.mark.parametrize(
    "names", [("label", "text1", "text2"), ("labels", "sentence1", "sentence2")]
)
def test_two_classes_are_read_from_the_columns_of_pair_classification(write, names) -> None:
    path = write(
        "a.jsonl", *(dict(zip(names, row, strict=True)) for row in ((1, "a", "b"), (0, "c", "d")))
    )

    assert [pair.score for pair in open_binary_pairs(str(path)).pairs] == [1, 0]


def test_true_and_false_are_labels_in_json(write) -> None:
    names = ("question1", "question2", "is_duplicate")  # Quora on Hugging Face
    rows = (("a", "b", True), ("c", "d", False))
    path = write("a.jsonl", *(dict(zip(names, row, strict=True)) for row in rows))

    assert [pair.score for pair in open_binary_pairs(str(path)).pairs] == [1, 0]


@pytest.mark.parametrize(
    ("scores", "problem"),
    [
        (("1", "0.5"), r"a.tsv, line 3: has the label 0.5, and a pair is either alike, 1, or not, 0"),
        (("1", "2"), r"line 3: has the label 2"),
        (("1", "1"), "None of the 2 pairs of .*a.tsv has the label 0"),
        (("0", "0"), "None of the 2 pairs of .*a.tsv has the label 1"),
        (("1", "yes"), "line 3: 'score' is 'yes', not a finite number"),
    ],
)  # fmt: skip
def test_what_is_not_of_two_classes_is_refused(
    write, scores: tuple[str, ...], problem: str
) -> None:
    path = write("a.tsv", HEADER, *(f"{score}\ta\tb" for score in scores))

    with pytest.raises(UserError, match=problem):
        open_binary_pairs(str(path))
