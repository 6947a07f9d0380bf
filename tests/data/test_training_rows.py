"""Pairs and groups become a data set; a teacher's scores come from columns or from files."""

from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import made_up

from m2dr.core.errors import UserError
from m2dr.core.records import Document, Judgement, Query
from m2dr.data.dataset import NEGATIVES_KEPT, Dataset, TeacherScore
from m2dr.data.loaders import open_dataset
from m2dr.data.training_rows import (
    ScoredGroups,
    TrainingRow,
    build_dataset,
    read_scores,
)


def test_a_pair_becomes_a_query_judged_by_its_document(write) -> None:
    row = {"query": "a?", "document": "A.", "query_id": "1", "document_id": "one", "title": "T"}

    dataset = open_dataset(str(write("pairs.jsonl.gz", row)))

    (split,) = dataset.splits
    assert dataset.name == "pairs"
    assert dataset.queries(split) == [Query("1", "a?")]
    assert dataset.judgements(split) == [Judgement("1", "one", 1)]
    assert dataset.document("one") == Document("one", "A.", title="T")


def test_a_pair_file_is_split_by_document_in_about_96_2_and_2_percent(write) -> None:
    rows = [{"query": f"q {n}", "document": f"document number {n // 2}"} for n in range(8000)]

    dataset = open_dataset(str(write("pairs.jsonl", *rows)))
    part = open_dataset(str(write("part.jsonl", *reversed(rows[::3]))))

    judged = {split: {j.document_id for j in dataset.judgements(split)} for split in dataset.splits}
    assert list(judged) == ["train", "dev", "test"]
    assert len(judged["dev"]) == pytest.approx(80, abs=30)
    assert len(judged["test"]) == pytest.approx(80, abs=30)
    assert sum(map(len, judged.values())) == dataset.document_count == 4000  # in one split each
    for split in part.splits:  # a pair stays in its split when others come and go
        texts = {query.text for query in part.queries(split)}
        assert texts <= {query.text for query in dataset.queries(split)}


def test_groups_of_tevatron_keep_their_ids_and_titles_and_may_lack_them(write) -> None:
    row = {
        "query_id": 7,
        "query": None,
        "query_text": "a",
        "positive_passages": [
            {"docid": "p1", "text": "yes", "title": "T"},
            {"docid": 3, "text": "b", "title": None},
        ],
        "negative_passages": [{"docid": "n1", "title": "", "text": "no"}],
        "answer": None,
    }

    dataset = open_dataset(str(write("mined-dev.jsonl", row)))

    assert dataset.splits == ("dev",)
    assert dataset.queries("validation") == [Query("7", "a")]
    documents = [Document("p1", "yes", title="T"), Document("3", "b"), Document("n1", "no")]
    assert list(dataset.documents()) == documents
    assert dataset.negatives("dev") == {"7": ("n1",)}


@pytest.mark.parametrize(
    ("name", "negatives", "lines"),
    [
        ("a.jsonl", 1, [{"anchor": "a", "positive": "yes", "negative": "no"}]),
        (
            "b.jsonl.gz",
            2,
            [{"question": "a", "answer": "yes", "negative_2": "never", "negative_1": "no"}],
        ),
        ("c.jsonl", 2, [["a", "yes", "no", "never"]]),
        ("d.jsonl", 2, [{"query": "a", "pos": ["yes"], "neg": ["no", "never"], "neg_scores": [1]}]),
        ("e.jsonl", 0, [["a", "yes"]]),
        ("f.tsv", 1, ["anchor\tpositive\tnegative", "a\tyes\tno"]),
        ("g.csv", 2, ["Query,Positive,negative_1,negative_2", 'a,"yes",no,"never"']),
        ("h.csv.gz", 2, ["negative_10,negative_9,anchor,positive", "never,no,a,yes"]),
        ("i.csv", 1, ["query,positive,negative,negative_1,negative_2", "a,yes,,,no"]),
        ("triples.train.tsv", 1, ["query\tpositive\tnegative", "a\tyes\tno"]),
    ],
)
def test_triplets_are_read_from_every_form_that_other_toolkits_write(
    write, name: str, negatives: int, lines: list[object]
) -> None:
    dataset = open_dataset(str(write(name, *lines)))

    assert dataset.name == name.removesuffix(".gz").rpartition(".")[0]
    assert dataset.splits == ("train",)
    assert [query.text for query in dataset.queries("train")] == ["a"]
    assert [d.text for d in dataset.documents()] == ["yes", "no", "never"][: 1 + negatives]
    assert [j.document_id for j in dataset.judgements("train")] == ["d0"]
    assert sum(map(len, dataset.negatives("train").values())) == negatives


names = st.sampled_from(["", "1", "1~2", "d0", "q0"])
words = st.sampled_from(["a", "b", "c"])
rows = st.builds(
    TrainingRow,
    split=st.sampled_from(["train", "test"]),
    query=st.builds(Query, names, words),
    positives=st.tuples(st.builds(Document, names, words, words)),
    negatives=st.tuples(st.builds(Document, names, words, words)),
    labelled=st.none(),
)


@given(given_rows=st.lists(rows, min_size=1, max_size=8))
def test_each_text_has_one_id_and_each_id_one_text_whatever_ids_were_given(
    given_rows: list[TrainingRow],
) -> None:
    dataset = build_dataset("gathered", lambda: given_rows)

    documents = list(dataset.documents())
    contents = {(document.title, document.text) for document in documents}
    assert len({document.id for document in documents}) == len(documents) == len(contents)
    for split in dataset.splits:
        texts = {query.id: query.text for query in dataset.queries(split)}
        found = {
            (texts[j.query_id], dataset.document(j.document_id).content)
            for j in dataset.judgements(split)
        }
        assert found == {
            (row.query.text, row.positives[0].content) for row in given_rows if row.split == split
        }


# A teacher's scores


def groups(data: Dataset, rows: Sequence[Any], **changes: object) -> ScoredGroups:
    settings: dict[str, Any] = {
        "negatives": 1, "source": "scored", "seed": 13, "where": "ce.tsv", **changes
    }  # fmt: skip
    scores = [TeacherScore(*row) for row in rows]
    return ScoredGroups(data, settings.pop("split", "train"), scores=scores, **settings)


def of_columns(path: Path, **changes: object) -> ScoredGroups:
    source = open_dataset(str(path))
    (split,) = source.splits
    return groups(source, list(source.scores(split)), split=split, where=str(path), **changes)


def differences(made: ScoredGroups, epochs: int = 1) -> dict[tuple[str, str], float]:
    """By query and document text, over some epochs: the score less that of the positive."""
    found = {}
    for epoch in range(epochs):
        made.set_epoch(epoch)
        for group in made:
            assert len(group.scores) == 1 + len(group.negatives)
            for document, score in zip(group.negatives, group.scores[1:], strict=True):
                found[group.query.text, document.text] = score - group.scores[0]
    return found


Q = {"query": "q", "positive": "p"}
FLAG = {"query": "q", "pos": ["p"], "neg": ["n", "m"], "pos_scores": [5], "neg_scores": [2, -1]}
COLUMNS: dict[str, Any] = {
    "FlagEmbedding": [FLAG],
    "Tevatron's passages": [{
        "query": "q",
        "positive_passages": [{"docid": "1", "title": "", "text": "p", "score": 5}],
        "negative_passages": [{"docid": "2", "text": "n", "score": 2.0}, {"docid": "3", "text": "m", "score": -1}],
    }],
    "Tevatron's lists": [{"query": "q", "positives": ["p"], "negatives": ["n", "m"], "positive_scores": [5], "negative_scores": [2, -1]}],
    "sentence-transformers' scores": [{**Q, "negative_1": "n", "negative_2": "m", "scores": [5, 2, -1]}],
    "sentence-transformers' margins": [{"anchor": "q", "positive": "p", "negative_2": "m", "negative_1": "n", "label": [3, 6]}],
    "a pair beside an answer": [{"query": "q", "document": "p", "answer": "x", "negatives": ["n", "m"], "score": [5, 2, -1]}],
    "margins in cells": ["query\tpositive\tnegative\tscore", "q\tp\tn\t3", "q\tp\tm\t6"],
    "scores in cells": ["query\tpositive\tnegative\tpos_score\tneg_score", "q\tp\tn\t5\t2", "q\tp\tm\t5.0\t-1"],
}  # fmt: skip


@pytest.mark.parametrize("form", COLUMNS)
def test_every_form_of_columns_says_the_same(form: str, write) -> None:
    lines = COLUMNS[form]

    path = write("groups.tsv" if isinstance(lines[0], str) else "groups.jsonl", *lines)

    assert differences(of_columns(path, negatives=2)) == {("q", "n"): -3.0, ("q", "m"): -6.0}


def test_margins_of_two_positives_are_never_compared(write) -> None:
    rows = [
        {"query": "q", "positive": "p", "negative": "n", "score": 3},
        {"query": "q", "positive": "r", "negative": "m", "score": 9},
    ]
    made = of_columns(write("groups.jsonl", *rows))

    drawn = set()
    for epoch in range(6):
        made.set_epoch(epoch)
        (group,) = made
        drawn.add((group.positive.text, group.negatives[0].text, group.scores))
    assert drawn == {("p", "n", (0.0, -3.0)), ("r", "m", (0.0, -9.0))}


PAIRS = [("q1", "d1", 9.25, ""), ("q1", "d2", -1.5, ""), ("q2", "d1", 0.5, "")]
FILES: dict[str, Any] = {
    "a TREC run": ("q1 Q0 d1 1 9.25 ce", "q1 Q0 d2 2 -1.5 ce", "q2 Q0 d1 1 .5 ce"),
    "a run parted by tabs": ("q1\tQ0\td1\t1\t9.25\tce", "q1\t0\td2\t2\t-1.5\tce", "q2\t0\td1\t1\t5e-1\tce"),
    "columns": ("q1\td1\t9.25", "q1\td2\t-1.5", "q2\td1\t0.5"),
    "columns with a header": ("query-id\tcorpus-id\tscore", "q1\td1\t9.25", "q1\td2\t-1.5", "q2\td1\t.5"),
    "spaces and blank lines": ("q1 d1 9.25", "", "q1  d2  -1.5", "q2 d1 0.5 ", ""),
    "lists": (
        {"query_id": "q1", "document_ids": ["d1", "d2"], "scores": [9.25, -1.5]},
        {"qid": "q2", "pids": ["d1"], "scores": [0.5]},
    ),
    "rows": ({"qid": "q1", "pid": "d1", "score": 9.25}, {"qid": "q1", "pid": "d2", "score": -1.5}, {"qid": "q2", "pid": "d1", "score": 0.5}),
}  # fmt: skip


@pytest.mark.parametrize("name", ["scores", "scores.gz", "scores.tsv"])
@pytest.mark.parametrize("form", FILES)
def test_every_file_of_scores_says_the_same(form: str, name: str, write) -> None:
    assert [score[:4] for score in read_scores(write(name, *FILES[form]))] == PAIRS


def read_or_refusal(read: Callable[[], Iterable[TeacherScore]]) -> tuple[list[TeacherScore], str]:
    try:
        return list(read()), ""
    except UserError as error:
        return [], str(error)


ATOMS = st.sampled_from(
    ["q", "Q0", "d", "1", "-.5", "nan", "1e999", "9" * 400, '"', "{", "[", "\t", " ", "\n", "\0", "é", ":", "null"]
)  # fmt: skip


@given(st.lists(ATOMS, max_size=30).map("".join).map(str.encode) | st.binary(max_size=40))
def test_any_bytes_are_finite_scores_or_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "scores.tsv"
    path.write_bytes(data)

    scores, refusal = read_or_refusal(lambda: read_scores(path))
    assert bool(scores) is not bool(refusal)
    assert not refusal or "scores.tsv" in refusal
    assert all(isfinite(s.value) and s.query_id and s.docid for s in scores)


# Groups of scored documents


def test_a_query_without_enough_scores_is_left_out_and_named() -> None:
    source = made_up([(f"q{n}", f"d{n}") for n in (1, 2, 3, 4)])
    rows = [
        ("q1", "d1", 9), ("q1", "d8", 1), ("q1", "d9", 2), ("q1", "absent", 2),
        ("q2", "d2", 9), ("q2", "d9", 2),  # one other document
        ("q3", "d8", 1), ("q3", "d9", 2),  # no answer
    ]  # fmt: skip

    made = groups(source, rows, negatives=2)

    assert [group.query.id for group in made] == ["q1"]
    assert len(made) == 1
    assert made.note.startswith("3 of 4 queries left out")


@given(
    answers=st.sets(st.integers(0, 19), min_size=1, max_size=4),
    scored=st.sets(st.integers(0, 19), min_size=1),
    wanted=st.integers(1, 4),
    epoch=st.integers(0, 5),
)
def test_a_group_holds_scored_documents_alone_each_with_its_own_score(
    answers: set[int], scored: set[int], wanted: int, epoch: int
) -> None:
    source = made_up([("q", f"d{n}") for n in answers], documents=20)
    rows = [("q", f"d{n}", n / 7) for n in scored]
    if not (answers & scored and len(scored - answers) >= wanted):
        with pytest.raises(UserError):
            groups(source, rows, negatives=wanted)
        return

    made = groups(source, rows, negatives=wanted)
    made.set_epoch(epoch)
    group = made[0]

    others = [int(document.id[1:]) for document in group.negatives]
    assert len(set(others)) == len(others) == wanted
    assert set(others) <= scored - answers
    assert int(group.positive.id[1:]) in answers & scored
    assert group.scores == (int(group.positive.id[1:]) / 7, *(n / 7 for n in others))
    assert made[0] == group
    assert made.barred["q"] == {f"d{n}" for n in answers}  # an unscored answer is one too


def test_of_many_scores_the_first_are_kept_and_every_answer() -> None:
    """A file scores a thousand documents of each of 500,000 queries, which no memory holds."""
    source = made_up([("q", "d1999")], documents=2000)
    rows = [("q", f"d{n}", n) for n in range(2000)]

    made = groups(source, rows, negatives=NEGATIVES_KEPT)

    assert max(int(document.id[1:]) for document in made[0].negatives) <= NEGATIVES_KEPT
    assert made[0].scores[0] == 1999
    with pytest.raises(UserError, match="too few scores"):
        groups(source, rows, negatives=NEGATIVES_KEPT + 2)


LABELS: dict[str, Any] = {
    "pairs": [{"query": "q", "answer": "p", "label": 1}, {"query": "q", "answer": "n", "label": 0}],
    "lists": [{"query": "q", "answer": ["n", "p"], "labels": [0, 1]}],
    "scores of 0 and 1": [{"query": "q", "answer": ["n", "p"], "score": [0.0, 1.0]}],
    "inside": [{"query": "q", "positives": [{"text": "n", "label": 0}, {"text": "p", "label": 2}]}],
    "inside, beside a negative": [
        {"query": "q", "positives": [{"text": "p", "label": 1}], "negatives": ["n"]},
        {"query": "q", "positives": [{"text": "n", "label": 0}], "negatives": ["n"]},
    ],
    "similarities": [
        {"query": "q", "answer": "p", "similarity": 1.0},
        {"query": "q", "answer": "n", "similarity": 0.0},
    ],
    "gold": ["query\tanswer\tgold", "q\tn\t0", "q\tp\t1"],
    "cells": ["Query\tAnswer\tIs_Relevant", "q\tn\t0", "q\tp\t1"],
    "words": ["query\tanswer\tlabel", "q\tn\tFalse", "q\tp\tTrue"],
    "empty negatives": ["query\tanswer\tnegative\tlabel", "q\tn\t\t0", "q\tp\t\t1"],
    "unanswered queries": ["query\tanswer\tlabel", "q\tn\t0", "q\tp\t1", "r\tp\t0"],
}


@pytest.mark.parametrize("form", LABELS)
def test_labels_say_which_documents_answer(form: str, write) -> None:
    lines = LABELS[form]

    dataset = open_dataset(str(write("a.tsv" if isinstance(lines[0], str) else "a.jsonl", *lines)))

    texts = {document.id: document.text for document in dataset.documents()}
    assert dataset.splits == ("train",)
    assert [query.text for query in dataset.queries("train")] == ["q"]
    assert [texts[j.document_id] for j in dataset.judgements("train")] == ["p"]
    assert [texts[docid] for docid in dataset.negatives("train")["q0"]] == ["n"]
    assert not list(dataset.scores("train"))  # a label is no score of a teacher


def test_scores_beside_labels_are_those_of_a_teacher(write) -> None:
    row = {"query": "q", "answer": ["n", "p"], "labels": [0, 1], "scores": [2.5, 7.0]}

    dataset = open_dataset(str(write("a.jsonl", row)))

    scores = {dataset.document(s.docid).text: s.value for s in dataset.scores("train")}
    assert scores == {"n": 2.5, "p": 7.0}


@pytest.mark.parametrize("label", ["0.4", "-1", "relevant", "nan", "[1, 0]"])
def test_a_label_that_does_not_say_whether_a_document_answers_is_refused(label: str, write) -> None:
    path = write("a.tsv", "query\tanswer\tlabel", "q\tp\t1", f"q\tn\t{label}")

    with pytest.raises(UserError, match="row 2: .*label"):
        open_dataset(str(path))


def test_a_file_of_negatives_alone_or_of_some_labels_is_refused(write) -> None:
    with pytest.raises(UserError, match="every label is 0"):
        open_dataset(str(write("a.tsv", "query\tanswer\tlabel", "q\tn\t0")))
    with pytest.raises(UserError, match="row 1 has a label or score, and row 2 has none"):
        open_dataset(str(write("a.tsv", "query\tanswer\tlabel", "q\tp\t1", "q\tn\t")))


def test_two_labels_of_a_pair_that_differ_are_refused(write) -> None:
    with pytest.raises(UserError, match="'p' is labelled both ways for 'q'"):
        open_dataset(str(write("a.tsv", "query\tanswer\tlabel", "q\tp\t1", "q\tp\t0")))


def test_lists_written_as_texts_are_lists(write) -> None:
    row = {"query_id": 1, "document_ids": "['7', '8']", "scores": "[0.9, 0.1]"}

    scores = list(read_scores(write("scores.jsonl", row)))

    assert scores == [TeacherScore("1", "7", 0.9, row=1), TeacherScore("1", "8", 0.1, row=1)]


@pytest.mark.parametrize("form", ["columns", "rows", "groups"])
def test_two_scores_of_a_document_are_named_with_their_file_and_row(form: str, write) -> None:
    pair = {"query_id": "q", "query": "q", "positive": "p", "negative": "n"}
    rows: list[Any] = [{**pair, "score": [5, 1]}, {**pair, "score": [5, 2]}]
    path = write("groups.jsonl", *rows)
    data = open_dataset(str(path))
    if form == "columns":
        path = write("ce.tsv", "q\td0\t5", "q\td1\t1", "q\td1\t2")
    elif form == "rows":
        rows = [
            {"query_id": "q", "document_id": d, "score": s}
            for d, s in (("d0", 5), ("d1", 1), ("d1", 2))
        ]
        path = write("ce.jsonl", *rows)
    scores = data.scores("train") if form == "groups" else read_scores(path)

    with pytest.raises(UserError) as refused:
        groups(data, list(scores), where=str(path))

    row = 2 if form == "groups" else 3
    start = f"{path}, row {row}: the teacher's score of document 'd1' for query 'q' is 2"
    assert str(refused.value) == f"{start}, and an earlier row has 1."


def test_columns_and_keys_without_a_role_are_named(write, capsys) -> None:
    rows = [
        {"query": "q", "pos": ["p"], "neg": ["n"], "type": "symmetric_clustering", "prompt": ""},
        {"query": "q", "pos": [{"text": "p", "url": "u"}], "answer": "a", "is_it": 0, "title": "T"},
    ]
    path = write("train.jsonl", *rows)

    open_dataset(str(path))

    told = f"{path}: not read are the columns answer, is_it, title, type, url;"
    assert told in capsys.readouterr().err.replace("\n", " ")
