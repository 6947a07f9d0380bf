from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tabular import as_tsv, write_rows

from m2dr.core.errors import UserError
from m2dr.core.records import SentencePair
from m2dr.data.sentences import (
    SUFFIXES,
    LabelledText,
    open_binary_pairs,
    open_labelled_texts,
    open_scored_pairs,
    open_sentences,
    recognises_sentences,
)

texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\t\r\n"), min_size=1, max_size=20
).filter(lambda text: text.strip())
scores = st.floats(-1e6, 1e6)
rows = st.lists(st.tuples(texts, texts, scores), min_size=2, max_size=8).filter(
    lambda found: len({score for _, _, score in found}) > 1
)


def scaled(found: Sequence[tuple[str, str, float]]) -> list[SentencePair]:
    """The naive formula: where each score lies between the file's lowest and its highest."""
    lowest = highest = found[0][2]
    for _, _, score in found:
        lowest = score if score < lowest else lowest
        highest = score if score > highest else highest
    return [SentencePair(a, b, (score - lowest) / (highest - lowest)) for a, b, score in found]


@pytest.mark.parametrize("kind", SUFFIXES)
@given(found=rows)
def test_every_format_gives_the_same_pairs_between_0_and_1(
    kind: str, found: list[tuple[str, str, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("rows") / f"given{kind}"
    columns = ("sentence1", "sentence2", "score")
    if kind == ".txt":
        path.write_text(as_tsv([columns, *found]), newline="")
    else:
        write_rows(path, [dict(zip(columns, row, strict=True)) for row in found])

    sentences = open_sentences(str(path))

    assert list(sentences.pairs) == scaled(found)
    assert min(pair.score for pair in sentences.pairs) == 0
    assert max(pair.score for pair in sentences.pairs) == 1
    assert (sentences.name, sentences.scored, sentences.skipped) == ("given", True, 0)


@pytest.mark.parametrize(
    ("header", "roles"),
    [
        ("score|sentence2|other|sentence1", "s2-1"),
        ("relatedness_score|Sentence_B|Sentence_A", "s21"),
        ("premise|hypothesis|similarity", "12s"),
        ("label|text2|text1", "s21"),
        ("Quality|#1 ID|#2 String|#1 String", "s-21"),
        ("question1|question2|is_duplicate", "12s"),
        ("sentence1|sentence2|gold_label|score", "12-s"),
    ],
)
def test_columns_are_found_by_name_in_any_order(write, header: str, roles: str) -> None:
    rows = ["\t".join({"1": "one", "2": "two", "s": s, "-": "odd"}[r] for r in roles) for s in "01"]

    path = write("a.tsv", header.replace("|", "\t"), *rows)

    assert recognises_sentences(str(path))
    assert open_sentences(str(path)).pairs == (
        SentencePair("one", "two", 0.0),
        SentencePair("one", "two", 1.0),
    )


@pytest.mark.parametrize("column", ["label", "gold_label"])
def test_labels_of_inference_are_scores_and_rows_without_one_are_counted(
    write, column: str
) -> None:
    labels = ["-", "entailment", "neutral", "-", "Contradiction"]
    rows = [{"sentence1": "a", "sentence2": f"b{n}", column: x} for n, x in enumerate(labels)]

    sentences = open_sentences(str(write("snli.jsonl", *rows)))

    assert sentences.pairs == (
        SentencePair("a", "b1", 1.0),
        SentencePair("a", "b2", 0.5),
        SentencePair("a", "b4", 0.0),
    )
    assert sentences.skipped == 2
    without = open_sentences(str(write("snli.jsonl", *rows)), neutral=False)
    assert [pair.score for pair in without.pairs] == [1.0, 0.0]


@pytest.mark.parametrize(
    "labels", [[0, 1, 2, -1], ["0", "1", "2", "-1"], ["0.0", 1.0, "2.0", "-1.0"]]
)
def test_whole_numbers_beside_a_premise_are_labels_of_inference(
    write, labels: list[object]
) -> None:
    rows = [{"premise": "a", "hypothesis": "b", "label": label} for label in labels]

    sentences = open_sentences(str(write("nli.jsonl", *rows)))

    assert [pair.score for pair in sentences.pairs] == [1.0, 0.5, 0.0]
    assert sentences.skipped == 1


@pytest.mark.parametrize("labels", [[1, 0], ["0", "1", "-1"], ["1.0"]])
@pytest.mark.parametrize("read", [open_sentences, open_scored_pairs, open_binary_pairs])
def test_noughts_and_ones_beside_a_premise_are_refused(write, read, labels: list[object]) -> None:
    rows = [{"premise": "a", "hypothesis": "b", "label": label} for label in labels]
    path = write("nli.jsonl", *rows)

    with pytest.raises(UserError, match=r"nli\.jsonl: every label is 0 or 1"):
        read(str(path))


@pytest.mark.parametrize(("column", "train"), [("split", "train"), ("SemEval_set", "TRAIN")])
def test_of_a_file_with_all_splits_only_train_is_read_and_scaled(
    write, column: str, train: str
) -> None:
    path = write(
        "all.tsv",
        f"{column}\tsentence1\tsentence2\tscore",
        f"{train}\ta\tb\t1",
        "test\tc\td\t5",
        f"{train}\te\tf\t3",
        "dev\tg\th\t0",
    )

    sentences = open_sentences(str(path))

    assert sentences.pairs == (SentencePair("a", "b", 0.0), SentencePair("e", "f", 1.0))
    assert sentences.skipped == 2


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("a.txt", ["one", " ", "", "\u00a0", "two, 2"]),
        ("a.txt.gz", ["one", "two, 2"]),
        ("a.jsonl", [{"Sentence": "one"}, {"Sentence": "two, 2", "label": 3}]),
        ("a.tsv", ["id\ttext", "1\tone", "2\ttwo, 2"]),
        ("a.csv", ["Text,category", "one,x", '"two, 2",y']),
    ],
)
def test_a_single_sentence_stands_for_itself(write, name: str, lines: list[object]) -> None:
    path = str(write(name, *lines))

    sentences = open_sentences(path)

    assert recognises_sentences(path)
    assert sentences.pairs == (
        SentencePair("one", "one", 1.0),
        SentencePair("two, 2", "two, 2", 1.0),
    )
    assert (sentences.name, sentences.scored) == ("a", False)


def test_files_joined_by_commas_are_each_scaled_on_their_own(write) -> None:
    first = write("sts.tsv", "score\tsentence1\tsentence2", "0\ta\tb", "5\tc\td", "4\te\tf")
    second = write("sick.csv", "sentence_A,sentence_B,relatedness_score", "g,h,1", "i,j,5", "k,l,3")

    sentences = open_sentences(f"{first}, {second}")

    assert [pair.score for pair in sentences.pairs] == [0, 1, 0.8, 0, 1, 0.5]
    assert [pair.first for pair in sentences.pairs] == list("acegik")
    assert sentences.name == "sts+sick"


PAIR = {"sentence1": "a", "sentence2": "b", "score": 1}


@pytest.mark.parametrize(
    ("name", "lines", "reason"),
    [
        ("a.jsonl", [PAIR, {**PAIR, "score": "x"}], "row 2: score is 'x', not a finite number"),
        ("a.jsonl", [PAIR, {"sentence1": "a", "score": 1}], "row 2: sentence2 is None"),
        ("a.csv", ["sentence1,sentence2,label", "a,b,neutral", "a,b,3"], "'3', not one of"),
        ("a.tsv", ["sentence1\tsentence2", "a\tb"], "names no score of its pairs"),
        ("a.tsv", ["score\tsentence1\tsentence2"], "holds no sentence to train on"),
        ("a.tsv", ["score\tsentence1\tsentence2", "3\ta\tb", "3\tc\td"], "every score is 3"),
    ],
)
def test_a_file_that_cannot_be_trained_on_says_why(
    write, name: str, lines: list[object], reason: str
) -> None:
    with pytest.raises(UserError, match=rf"a\.\w+.*{reason}"):
        open_sentences(str(write(name, *lines)))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("a.jsonl", {"query": "a", "positives": ["b"]}),
        ("a.jsonl", {"query": "a", "document": "b", "text": "c"}),
        ("a.jsonl", {"anchor": "a", "positive": "b", "negative": "c"}),
        ("a.jsonl", ["a", "b", "c"]),
        ("a.jsonl", "nonsense"),
        ("a.tsv", "query\tpositive\tnegative"),
        ("triples.train.tsv", "a\tb\tc"),
        ("a.csv", ""),
        ("a", {"text": "a"}),
    ],
)
def test_queries_and_documents_are_not_taken_for_sentences(write, name: str, line: object) -> None:
    assert not recognises_sentences(str(write(name, line)))


# Labelled texts

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


# Published files


def test_a_year_of_semeval_is_read_as_published(tmp_path: Path) -> None:
    year = tmp_path / "sts16"
    year.mkdir()
    for name, pairs, gold in (
        ("answer", 'A "b.\tC d.\tsource\turl\nE.\tF.\nG.\tH.\n', "5\n\n0.5\n"),
        ("headlines", "I.\tJ.\n", "3\n"),
    ):
        (year / f"STS.input.{name}.txt").write_text(pairs)
        (year / f"STS.gs.{name}.txt").write_text(gold)
    (year / "STS.gs.ALL.txt").write_text("5\n\n0.5\n3\n")

    both = open_scored_pairs(str(year)).pairs

    judged = [('A "b.', "C d.", 5.0), ("G.", "H.", 0.5), ("I.", "J.", 3.0)]
    assert both == tuple(SentencePair(*pair) for pair in judged)
    assert open_scored_pairs(str(year / "STS.input.answer.txt")).pairs == both[:2]
    assert recognises_sentences(str(year))
    (year / "STS.gs.headlines.txt").write_text("3\n4\n")
    with pytest.raises(UserError, match="has 2 scores, and .* 1 pairs"):
        open_scored_pairs(str(year))
