"""Groups whose documents a teacher scored: from columns, from files, and where scores lack."""

import json
from collections.abc import Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m2dr.core.errors import UserError
from m2dr.core.records import Document, Judgement, Query
from m2dr.data.dataset import NEGATIVES_KEPT, Dataset, MemoryCorpus, Split, TeacherScore
from m2dr.data.loaders import open_dataset
from m2dr.data.pairs import (
    NEGATIVE_SCORE_KEYS,
    POSITIVE_KEYS,
    POSITIVE_SCORE_KEYS,
    QUERY_KEYS,
    SCORE_KEYS,
)
from m2dr.data.readers import Line
from m2dr.data.teachers import ScoredGroups, read_scores

Columns = dict[str, Any]
NO_GIVEN: dict[str, tuple[str, ...]] = {}


def scores(*rows: tuple[Any, ...]) -> list[TeacherScore]:
    """Of (query, document, score) or (query, document, score, origin), each on a line."""
    return [TeacherScore(Line(Path("ce.tsv"), n, ""), *row) for n, row in enumerate(rows, start=1)]


def dataset(
    judged: Sequence[tuple[str, str]],
    documents: int = 200,
    given: dict[str, tuple[str, ...]] = NO_GIVEN,
) -> Dataset:
    """Documents d0, d1, …; every judged pair answers."""
    queries = [Query(name, f"text of {name}") for name in dict.fromkeys(q for q, _ in judged)]
    judgements = [Judgement(query, document, 1) for query, document in judged]
    corpus = MemoryCorpus(Document(f"d{n}", f"text {n}") for n in range(documents))
    read = partial(lambda asked: asked, (queries, judgements))
    return Dataset("made-up", corpus, {"train": Split(read, lambda: given)})


def groups(data: Dataset, rows: Sequence[TeacherScore], **changes: object) -> ScoredGroups:
    asked: dict[str, Any] = {
        "negatives": 1,
        "source": "scored",
        "seed": 13,
        "where": "ce.tsv",
        **changes,
    }
    return ScoredGroups(data, "train", scores=rows, **asked)


def of_columns(path: Path, **changes: object) -> ScoredGroups:
    source = open_dataset(str(path))
    return groups(source, list(source.scores("train")), where=str(path), **changes)


def said(made: ScoredGroups, epochs: int = 1) -> dict[tuple[str, str], float]:
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
SAME: dict[str, Columns] = {
    "FlagEmbedding": {"query": "q", "pos": ["p"], "neg": ["n", "m"], "pos_scores": [5], "neg_scores": [2, -1]},
    "Tevatron's passages": {
        "query": "q",
        "positive_passages": [{"docid": "1", "title": "", "text": "p", "score": 5}],
        "negative_passages": [{"docid": "2", "text": "n", "score": 2.0}, {"docid": "3", "text": "m", "score": -1}],
    },
    "Tevatron's lists": {"query": "q", "positives": ["p"], "negatives": ["n", "m"], "positive_scores": [5], "negative_scores": [2, -1]},
    "sentence-transformers' scores": {**Q, "negative_1": "n", "negative_2": "m", "scores": [5, 2, -1]},
    "sentence-transformers' margins": {"anchor": "q", "positive": "p", "negative_2": "m", "negative_1": "n", "label": [3, 6]},
    "texts for numbers": {**Q, "negatives": ["n", "m"], "labels": "[5, 2, -1]"},
    "a pair with negatives": {"query": "q", "document": "p", "negatives": ["n", "m"], "scores": [5, 2, -1]},
    "a pair beside an answer": {"query": "q", "document": "p", "answer": "x", "negatives": ["n", "m"], "score": [5, 2, -1]},
}  # fmt: skip


@pytest.mark.parametrize("form", SAME)
def test_every_form_of_columns_says_the_same(form: str, write) -> None:
    (split,) = open_dataset(str(write("groups.jsonl", SAME[form]))).splits
    source = open_dataset(str(write("groups.jsonl", SAME[form])))

    made = ScoredGroups(source, split, 2, "scored", 13, source.scores(split), "groups.jsonl")

    assert said(made) == {("q", "n"): -3.0, ("q", "m"): -6.0}


def test_a_table_may_hold_a_margin_or_two_scores_in_its_cells(write) -> None:
    by_margin = write("m.tsv", "query\tpositive\tnegative\tscore", "q\tp\tn\t3", "q\tp\tm\t6")
    by_scores = write(
        "s.csv", "query,positive,negative,pos_score,neg_score", "q,p,n,5,2", "q,p,m,5.0,-1"
    )
    by_list = write("l.csv", "query,positive,negative,label", 'q,p,n,"[5, 2]"', 'q,p,m,"[5, -1]"')

    expected = {("q", "n"): -3.0, ("q", "m"): -6.0}
    for path in (by_margin, by_scores, by_list):
        assert said(of_columns(path, negatives=2)) == expected


def test_a_folder_of_groups_has_the_scores_of_its_files(write) -> None:
    write("folder/triples.train.tsv", "q\tp\tz")
    write("folder/one.jsonl", {**SAME["FlagEmbedding"], "query_id": "1"})
    folder = write("folder/two.jsonl", {**Q, "query": "r", "negative": "p2", "scores": [1, 4]})

    made = of_columns(folder.parent)

    assert said(made, epochs=8) == {("q", "n"): -3.0, ("q", "m"): -6.0, ("r", "p2"): 3.0}
    assert "1 of 3 queries left out" in made.note  # that of the triple


def test_every_name_of_a_column_stands_in_the_page_of_training_data() -> None:
    page = (Path(__file__).parents[2] / "docs" / "training-data.md").read_text()

    names = (*QUERY_KEYS, *POSITIVE_KEYS, *POSITIVE_SCORE_KEYS, *NEGATIVE_SCORE_KEYS, *SCORE_KEYS)
    assert not [name for name in names if f"`{name}`" not in page]


def test_columns_are_read_for_a_teacher_alone(write) -> None:
    """`label` is many things: whoever does not distil is not asked what it holds."""
    path = write("groups.jsonl", {**Q, "negative": "n", "label": "entailment"})

    assert open_dataset(str(path)).document_count == 2
    with pytest.raises(UserError, match="line 1: a score in 'label' is 'entailment', not a finite"):
        of_columns(path)


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


BAD = [
    ({**Q, "neg": ["n", "m"], "pos_scores": [5], "neg_scores": [2]}, "'neg_scores' has 1 score for 2 negatives"),
    ({**Q, "neg": ["n"], "neg_scores": [2]}, "'positive_scores' has 0 scores for 1 positive; give one for each"),
    ({**Q, "neg": ["n"], "pos_scores": [2]}, "'negative_scores' has 0 scores for 1 negative"),
    ({**Q, "neg": ["n", "m"], "scores": [1, 2, 3, 4]}, "'scores' has 4 scores for 1 positive and 2 negatives"),
    ({"query": "q", "pos": ["p", "r"], "neg": ["n"], "score": 2}, "'score' has 1 score for 2 positives and 1 negative"),
    ({**Q, "neg": ["n"], "pos_scores": [5], "neg_scores": [None]}, "a score in 'neg_scores' is None"),
    ('{"query": "q", "positive": "p", "negative": "n", "scores": [5, NaN]}', "a score in 'scores' is nan"),
    ('{"query": "q", "positive": "p", "negative": "n", "scores": [5, -Infinity]}', "a score in 'scores' is -inf"),
    ({**Q, "neg": ["n"], "scores": [5, True]}, "a score in 'scores' is True"),
    ({**Q, "neg": ["n"], "scores": "[5, "}, "'scores' is '.5, ', not a list of numbers"),
    ({"query": "q", "pos": [{"text": "p", "score": 1}], "neg": ["n"]}, "has documents with a 'score' and one without"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "sentence"), BAD)
def test_columns_that_do_not_fit_are_named_by_file_and_line(row, sentence: str, write) -> None:
    path = write("groups.jsonl", SAME["FlagEmbedding"], row)

    with pytest.raises(UserError, match=rf"groups\.jsonl, line 2: {sentence}"):
        of_columns(path)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=6,
)


@given(
    name=st.sampled_from([*POSITIVE_SCORE_KEYS, *NEGATIVE_SCORE_KEYS, *SCORE_KEYS]), value=ANYTHING
)
def test_whatever_stands_in_a_column_is_finite_scores_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: object
) -> None:
    path = tmp_path_factory.mktemp("any") / "groups.jsonl"
    path.write_text(json.dumps({**Q, "neg": ["n", "m"], name: value}) + "\n")

    found, refusal = [], None
    try:
        found = list(open_dataset(str(path)).scores("train"))
    except UserError as error:
        refusal = str(error)

    assert refusal is None or "groups.jsonl, line 1" in refusal
    assert len(found) in (0, 3)
    assert all(isfinite(score.value) for score in found)


def test_a_query_without_enough_scores_is_left_out_and_named() -> None:
    source = dataset([("q1", "d1"), ("q2", "d2"), ("q3", "d3"), ("q4", "d4")])
    rows = scores(
        ("q1", "d1", 9), ("q1", "d8", 1), ("q1", "d9", 2),
        ("q2", "d2", 9), ("q2", "d9", 2),  # one other document
        ("q3", "d8", 1), ("q3", "d9", 2),  # no answer
    )  # fmt: skip

    made = groups(source, rows, negatives=2)

    assert [group.query.id for group in made] == ["q1"]
    assert len(made) == 1
    assert made.note == (
        "3 of 4 queries left out, which lack the teacher's score of a relevant document or of 2 "
        "other documents; 'q2' is the first."
    )
    assert groups(source, rows[:3], negatives=1).note.startswith("3 of 4 queries")


def test_documents_that_the_corpus_lacks_are_left_out_and_counted() -> None:
    source = dataset([("q1", "d1")])

    made = groups(source, scores(("q1", "d1", 9), ("q1", "x", 1), ("q1", "y", 1), ("q1", "d2", 3)))

    assert [document.id for document in made[0].negatives] == ["d2"]
    assert made.note == "2 scored documents left out, which the corpus does not hold."


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([], "Distillation needs the scores of a teacher, and ce.tsv has none for the split 'train'"),
        ([("x", "d1", 1), ("y", "d2", 1)], "ce.tsv, line 1: scores query 'x', and the split"),
        ([("q1", "d1", 1)], "ce.tsv has too few scores for every query of the split 'train' of made-up: each needs"),
        ([("q1", "x", 1), ("q1", "y", 1)], "too few .* 2 scored documents left out, which the corpus"),
        ([("q1", "d1", 1), ("q1", "d1", 4)], "ce.tsv, line 2: scores document 'd1' for query 'q1' wi"),
    ],
)  # fmt: skip
def test_scores_of_nothing_here_are_refused(rows: list[Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        groups(dataset([("q1", "d1"), ("q2", "d2")]), scores(*rows))


def test_a_pair_that_comes_again_counts_once_with_its_first_score() -> None:
    """Published triples score a pair once in each of its rows, in half precision."""
    rows = scores(("q1", "d1", 9.0), ("q1", "d2", 1.0), ("q1", "d1", 9.06), ("q1", "d2", 0.95))

    (group,) = groups(dataset([("q1", "d1")]), rows)

    assert group.scores == (9.0, 1.0)


def test_given_negatives_are_drawn_where_they_are_asked_for() -> None:
    source = dataset([("q1", "d1")], given={"q1": ("d5", "d6")})
    rows = scores(("q1", "d1", 9), ("q1", "d2", 2), ("q1", "d6", 6))

    made = {
        kind: said(groups(source, rows, source=kind), epochs=12) for kind in ("given", "scored")
    }

    assert made["given"] == {("text of q1", "text 6"): -3.0}
    assert made["scored"].keys() == {("text of q1", "text 6"), ("text of q1", "text 2")}


@given(
    answers=st.sets(st.integers(0, 19), min_size=1, max_size=4),
    scored=st.sets(st.integers(0, 19), min_size=1),
    wanted=st.integers(1, 4),
    epoch=st.integers(0, 5),
)
def test_a_group_holds_scored_documents_alone_each_with_its_own_score(
    answers: set[int], scored: set[int], wanted: int, epoch: int
) -> None:
    source = dataset([("q", f"d{n}") for n in answers], documents=20)
    rows = scores(*[("q", f"d{n}", n / 7) for n in scored])
    enough = answers & scored and len(scored - answers) >= wanted
    if not enough:
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
    assert made.known_positives["q"] == {f"d{n}" for n in answers}  # an unscored answer is one too


def test_of_many_scores_the_first_are_kept_and_every_answer() -> None:
    """A file scores a thousand documents of each of 500,000 queries, which no memory holds."""
    source = dataset([("q", "d1999")], documents=2000)
    rows = scores(*[("q", f"d{n}", n) for n in range(2000)])

    made = groups(source, rows, negatives=NEGATIVES_KEPT)

    kept = {int(document.id[1:]) for document in made[0].negatives}
    assert max(kept) <= NEGATIVES_KEPT
    assert made[0].scores[0] == 1999
    with pytest.raises(UserError, match="too few scores"):
        groups(source, rows, negatives=NEGATIVES_KEPT + 2)


def test_the_widest_margin_is_that_of_a_drawn_pair() -> None:
    source = dataset([("q1", "d1"), ("q1", "d2"), ("q2", "d3")])
    rows = scores(
        ("q1", "d1", 4), ("q1", "d2", -9), ("q1", "d7", 1), ("q2", "d3", 0), ("q2", "d8", 5.5)
    )  # fmt: skip

    assert groups(source, rows).widest() == 10.0


def test_a_run_of_a_reranker_teaches_a_beir_folder(beir: Path, write) -> None:
    path = write("ce.trec", "q1 Q0 d1 1 7 ce", "q1 Q0 d3 2 5.5 ce", "q2 Q0 d1 1 3 ce")
    source = open_dataset(str(beir))

    (group,) = ScoredGroups(source, "train", 1, "scored", 13, read_scores(path), str(path))

    assert (group.positive.id, group.negatives[0].id, group.scores) == ("d3", "d1", (5.5, 7.0))
