import os
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
    open_binary_pairs,
    open_scored_pairs,
    open_sentences,
    recognises_sentences,
)

DATA = Path(os.environ.get("M2DR_DATA") or Path(__file__).parents[3] / "shared" / "data")

texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\t\r\n"), min_size=1, max_size=20
).filter(lambda text: text.strip())
cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r")).filter(
    lambda text: text.strip() and "\n\n" not in f"\n{text}\n" and not _has_blank_line(text)
)
scores = st.floats(-1e6, 1e6)
rows = st.lists(st.tuples(texts, texts, scores), min_size=2, max_size=8).filter(
    lambda found: len({score for _, _, score in found}) > 1
)


def _has_blank_line(text: str) -> bool:
    return any(not line.encode().strip() for line in text.split("\n"))


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


@given(found=st.lists(cells, min_size=1, max_size=5))
def test_a_quoted_cell_of_a_csv_may_hold_commas_quotes_and_line_ends(
    found: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cells") / "given.csv"
    write_rows(path, [{"sentence": text} for text in found])

    assert [pair.first for pair in open_sentences(str(path)).pairs] == found


def test_a_quote_in_a_tsv_is_a_part_of_the_text(write) -> None:
    path = write("a.tsv.gz", "score\tsentence1\tsentence2", '1\t"Yes\tsaid', '2\tso"\t"', "3\tx\ty")

    pairs = open_sentences(str(path)).pairs

    assert [(pair.first, pair.second) for pair in pairs] == [
        ('"Yes', "said"),
        ('so"', '"'),
        ("x", "y"),
    ]


@pytest.mark.parametrize(
    ("header", "first", "second", "score"),
    [
        (["score", "sentence2", "other", "sentence1"], "sentence1", "sentence2", "score"),
        (
            ["relatedness_score", "Sentence_B", "Sentence_A"],
            "Sentence_A",
            "Sentence_B",
            "relatedness_score",
        ),
        (["premise", "hypothesis", "similarity"], "premise", "hypothesis", "similarity"),
        (["label", "text2", "text1"], "text1", "text2", "label"),
        (["Quality", "#1 ID", "#2 String", "#1 String"], "#1 String", "#2 String", "Quality"),
        (["question1", "question2", "is_duplicate"], "question1", "question2", "is_duplicate"),
        (["sentence1", "sentence2", "gold_label", "score"], "sentence1", "sentence2", "score"),
    ],
)
def test_columns_are_found_by_name_in_any_order(
    write, header: list[str], first: str, second: str, score: str
) -> None:
    def row(value: str) -> str:
        known = {first: "one", second: "two", score: value}
        return "\t".join(known.get(name, "odd") for name in header)

    path = write("a.tsv", "\t".join(header), row("0"), row("1"))

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

    with pytest.raises(UserError, match=r"nli\.jsonl: every 'label' of a premise is 0 or 1.*words"):
        read(str(path))


def test_whole_numbers_beside_other_columns_are_scores(write) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "label": label} for label in (0, 1, 2)]

    assert [pair.score for pair in open_sentences(str(write("a.jsonl", *rows))).pairs] == [
        0,
        0.5,
        1,
    ]


def test_labels_keep_their_meaning_where_only_one_of_them_occurs(write) -> None:
    path = write("a.tsv", "premise\thypothesis\tlabel", "a\tb\tneutral")

    assert open_sentences(str(path)).pairs == (SentencePair("a", "b", 0.5),)


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


def test_a_file_of_another_split_alone_is_read_whole(write) -> None:
    path = write("d.tsv", "split\tsentence1\tsentence2\tscore", "dev\ta\tb\t1", "dev\tc\td\t2")

    assert len(open_sentences(str(path)).pairs) == 2


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


def test_rows_left_out_of_several_files_are_counted_together(write) -> None:
    lines = ["label\tpremise\thypothesis", "-\ta\tb", "neutral\tc\td"]
    names = [str(write(name, *lines)) for name in ("a.tsv", "b.tsv")]

    assert open_sentences(",".join(names)).skipped == 2


def test_a_comma_may_be_a_part_of_a_file_name(write) -> None:
    path = write("a,b.txt", "one")

    assert recognises_sentences(str(path))
    assert open_sentences(str(path)).name == "a,b"


def test_pairs_and_single_sentences_are_not_mixed(write) -> None:
    pairs = write("p.tsv", "score\tsentence1\tsentence2", "0\ta\tb", "5\tc\td")
    single = write("s.txt", "one")

    for names in (f"{pairs},{single}", f"{single},{pairs}"):
        with pytest.raises(UserError, match="^p holds pairs with a score and s single sentences"):
            open_sentences(names)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("x\ta\tb", r"line 3: 'score' is 'x', not a finite number\."),
        ("nan\ta\tb", r"line 3: 'score' is 'nan', not a finite number\."),
        ("inf\ta\tb", r"line 3: 'score' is 'inf', not a finite number\."),
        ("-\ta\tb", r"line 3: 'score' is '-', not a finite number\."),
        ("\ta\tb", r"line 3: 'score' is '', not a finite number\."),
        ("1\t \tb", r"line 3: 'sentence1' is empty"),
        ("1\ta\t", r"line 3: 'sentence2' is empty"),
        ("1\ta", r"line 3: has 2 columns, and the header has 3: score, sentence1, sentence2\."),
        ("1\ta\tb\tc", r"line 3: has 4 columns, and the header has 3"),
    ],
)
def test_a_wrong_row_of_a_table_is_named_by_file_and_line(write, row: str, reason: str) -> None:
    path = write("a.tsv", "score\tsentence1\tsentence2", "5\ta\tb", row)

    with pytest.raises(UserError, match=rf"a\.tsv, {reason}"):
        open_sentences(str(path))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("nonsense", "is not JSON"),
        ({"sentence1": "a", "score": 1}, "has no 'sentence2'; its keys are 'sentence1', 'score'"),
        ({"sentence1": "a", "sentence2": "b"}, "has no 'score'"),
        ({"sentence1": "a", "sentence2": 3, "score": 1}, "'sentence2' is 3, not a string"),
        ({"sentence1": "a", "sentence2": "b", "score": None}, "'score' is None, not a finite n"),
        ({"sentence1": "a", "sentence2": "\ud800", "score": 1}, "'sentence2' holds half a surr"),
        (
            {"sentence1": "a", "sentence2": "b", "score": 10**400},
            "'score' is 1000.*not a finite number",
        ),
    ],
)
def test_a_wrong_row_of_jsonl_is_named_by_file_and_line(write, row: object, reason: str) -> None:
    first = {"sentence1": "a", "sentence2": "b", "score": 1}
    path = write("a.jsonl", first, "", row)

    with pytest.raises(UserError, match=rf"a\.jsonl, line 3: {reason}"):
        open_sentences(str(path))


@pytest.mark.parametrize(
    ("header", "first", "second", "reason"),
    [
        ("sentence1", "neutral", "3", "'label' is '3', not one of entailment, neutral, contra"),
        ("sentence1", "3", "neutral", "'label' is 'neutral', not a finite number, nor one of"),
        ("premise", "0", "3", "'label' is '3', not one of 0, 1, 2"),
    ],
)
def test_a_label_of_another_kind_than_the_first_is_refused(
    write, header: str, first: str, second: str, reason: str
) -> None:
    other = "hypothesis" if header == "premise" else "sentence2"
    path = write("a.csv", f"{header},{other},label", f"a,b,{first}", f"a,b,{second}")

    with pytest.raises(UserError, match=rf"a\.csv, line 3: {reason}"):
        open_sentences(str(path))


def test_a_row_after_one_of_several_lines_is_named_by_the_line_it_begins_in(write) -> None:
    path = write("a.csv", "sentence1,sentence2,score", '"a', 'b",c,1', '"d', 'e",,2')

    with pytest.raises(UserError, match=r"a\.csv, line 4: 'sentence2' is empty"):
        open_sentences(str(path))


@pytest.mark.parametrize("row", ['"a" b,c,1', 'a,"never ended,1'])
def test_what_is_not_csv_is_named_by_the_line_its_row_begins_in(write, row: str) -> None:
    path = write("a.csv", "sentence1,sentence2,score", "a,b,1", row, "c,d,2")

    with pytest.raises(UserError, match=r"a\.csv, line 3: begins a row that is not CSV"):
        open_sentences(str(path))


@pytest.mark.parametrize(
    ("name", "lines", "reason"),
    [
        (
            "a.tsv",
            ["one\ttwo"],
            r"line 1: names neither a pair of sentences .*'one', 'two'\. Give the",
        ),
        ("a.tsv", ["sentence1\tsentence2"], "line 1: names no score of the pairs"),
        (
            "a.tsv",
            ["score\tsentence1\tsentence2\tScore", "1\ta\tb\t1"],
            "columns 'Score' and 'score', which differ in case alone",
        ),
        ("a.jsonl", [{}], "line 1: names neither a pair of .*its columns are none"),
        ("a.jsonl", ["[1]"], "line 1: is not a JSON object"),
        ("a.tsv", ["score\tsentence1\tsentence2"], "holds no sentence to train on"),
        ("a.tsv", ["label\tpremise\thypothesis", "-\ta\tb"], "no sentence to train on in 1 row"),
        ("a.tsv", ["score\tsentence1\tsentence2", "3\ta\tb", "3\tc\td"], "every 'score' is 3, so"),
        ("a.txt", [], "holds no sentence"),
        ("a.csv", ["", " "], "holds no sentence"),
        ("a.json", ["{}"], r"is not a file of sentences by its name; those end in \.tsv"),
    ],
)
def test_a_file_that_cannot_be_trained_on_says_why(
    write, name: str, lines: list[object], reason: str
) -> None:
    with pytest.raises(UserError, match=rf"a\.\w+.*{reason}"):
        open_sentences(str(write(name, *lines)))


def test_a_file_that_is_not_there_is_answered_with_its_neighbour(write) -> None:
    path = write("stsb-train.tsv", "score\tsentence1\tsentence2").with_name("stsb-trian.tsv")

    assert not recognises_sentences(str(path))
    with pytest.raises(UserError, match=r"no file .*trian\.tsv\. Did you mean stsb-train\.tsv\?"):
        open_sentences(str(path))


@pytest.mark.parametrize("names", ["", " , "])
def test_no_name_is_refused(names: str) -> None:
    assert not recognises_sentences(names)
    with pytest.raises(UserError, match="No file of sentences was named"):
        open_sentences(names)


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
        ("a.json", {"text": "a"}),
        ("a", {"text": "a"}),
    ],
)
def test_queries_and_documents_are_not_taken_for_sentences(write, name: str, line: object) -> None:
    assert not recognises_sentences(str(write(name, line)))


def test_a_pair_without_its_score_is_still_recognised_to_be_told_what_is_missing(write) -> None:
    assert recognises_sentences(str(write("a.tsv", "sentence1\tsentence2", "a\tb")))


@pytest.mark.parametrize(
    ("name", "count", "scores"),
    [
        ("sts/stsb-train.tsv", 5_749, (0, 5)),
        ("sts/stsb-dev.tsv", 1_500, (0, 5)),
        ("sts/stsb-test.tsv", 1_379, (0, 5)),
        ("sts/sick-train.tsv", 4_500, (1, 5)),
        ("sts/sick-dev.tsv", 500, (1, 5)),
        ("sts/sick-test.tsv", 4_927, (1, 5)),
        ("sts/sts12-test.tsv", 3_108, (0, 5)),
        ("sts/sts13-test.tsv", 1_500, (0, 5)),
        ("sts/sts14-test.tsv", 3_750, (0, 5)),
        ("pair-classification/mrpc/msr_paraphrase_train.txt", 4_076, (0, 1)),
        ("pair-classification/mrpc/msr_paraphrase_test.txt", 1_725, (0, 1)),
    ],
)
def test_a_published_file_has_its_published_count(
    name: str, count: int, scores: tuple[int, int]
) -> None:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not below $M2DR_DATA")
    raw = [line.split("\t") for line in path.read_text("utf-8-sig").split("\n") if line]
    column = next(n for n, title in enumerate(raw[0]) if title.lower() in ("score", "quality"))

    sentences = open_sentences(str(path))

    assert recognises_sentences(str(path))
    assert (len(sentences.pairs), sentences.scored, sentences.skipped) == (count, True, 0)
    lowest, highest = scores
    assert [lowest + pair.score * (highest - lowest) for pair in sentences.pairs] == pytest.approx(
        [float(row[column]) for row in raw[1:]]
    )
