import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m2dr.core.errors import UserError
from m2dr.core.records import Document, Judgement, Query
from m2dr.data.dataset import NEGATIVES_KEPT, Dataset, split_of
from m2dr.data.loaders import open_dataset
from m2dr.data.pairs import DatasetBuilder, TrainingRow

HALVES = {"train": 0.5, "test": 0.5}


def built(rows: Sequence[TrainingRow]) -> Dataset:
    builder = DatasetBuilder()
    for row in rows:
        builder.add(row)
    return builder.dataset("gathered")


def test_a_pair_becomes_a_query_judged_by_its_document(write) -> None:
    path = write(
        "pairs.jsonl.gz",
        {"query": "a?", "document": "A.", "query_id": "1", "document_id": "one", "title": "T"},
    )

    dataset = open_dataset(str(path))

    (split,) = dataset.splits
    assert dataset.name == "pairs"
    assert dataset.queries(split) == [Query("1", "a?")]
    assert dataset.judgements(split) == [Judgement("1", "one", 1)]
    assert dataset.document("one") == Document("one", "A.", title="T")


def test_ids_are_made_where_none_are_given(write) -> None:
    rows = [{"query": f"q {n % 3}", "document": f"d {n}"} for n in range(200)]

    dataset = open_dataset(str(write("pairs.jsonl", *rows)))

    asked = [query for split in dataset.splits for query in dataset.queries(split)]
    assert {query.text: query.id for query in asked} == {"q 0": "q0", "q 1": "q1", "q 2": "q2"}
    assert [document.id for document in dataset.documents()] == [f"d{n}" for n in range(200)]


def test_a_pair_file_is_split_in_about_96_2_and_2_percent(write) -> None:
    rows = [{"query": f"q {n}", "document": f"document number {n}"} for n in range(4000)]

    dataset = open_dataset(str(write("pairs.jsonl", *rows)))

    counts = {split: len(dataset.judgements(split)) for split in dataset.splits}
    assert list(counts) == ["train", "dev", "test"]
    assert sum(counts.values()) == 4000
    assert counts["dev"] == pytest.approx(80, abs=30)
    assert counts["test"] == pytest.approx(80, abs=30)


def test_no_document_is_in_two_splits_and_equal_texts_are_one_document(write) -> None:
    rows = [{"query": f"q {n}", "document": f"document {n % 500}"} for n in range(2000)]

    dataset = open_dataset(str(write("pairs.jsonl", *rows)))

    judged = [{j.document_id for j in dataset.judgements(split)} for split in dataset.splits]
    assert len(judged) == 3
    assert sum(map(len, judged)) == len(set.union(*judged)) == dataset.document_count == 500


def test_a_pair_stays_in_its_split_when_others_come_and_go(write) -> None:
    rows = [{"query": f"q {n}", "document": f"document {n}"} for n in range(500)]
    whole = open_dataset(str(write("whole.jsonl", *rows)))
    part = open_dataset(str(write("part.jsonl", *reversed(rows[::3]))))

    for split in part.splits:
        texts = {query.text for query in part.queries(split)}
        assert texts <= {query.text for query in whole.queries(split)}


def test_negatives_of_a_pair_join_the_corpus_and_are_given(write) -> None:
    row = {"query": "a", "document": "yes", "negatives": ["no", "never"]}

    dataset = open_dataset(str(write("pairs.jsonl", row)))

    (split,) = dataset.splits
    assert dataset.negatives(split) == {"q0": ("d1", "d2")}
    assert [document.text for document in dataset.documents()] == ["yes", "no", "never"]


def test_a_query_with_very_many_negatives_keeps_the_first_of_them(write) -> None:
    row = {"query": "a", "positives": ["yes"], "negatives": [f"no {n}" for n in range(100)]}

    dataset = open_dataset(str(write("groups.jsonl", row)))

    assert dataset.negatives("train")["q0"] == tuple(f"d{n + 1}" for n in range(NEGATIVES_KEPT))


def test_groups_of_other_toolkits_keep_their_ids_and_titles(write) -> None:
    row = {
        "query_id": "7",
        "query": "a",
        "positive_passages": [{"docid": "p1", "title": "T", "text": "yes"}],
        "negative_passages": [{"docid": "n1", "title": "", "text": "no"}],
    }

    dataset = open_dataset(str(write("mined-train.jsonl", row)))

    assert dataset.splits == ("train",)
    assert dataset.queries("train") == [Query("7", "a")]
    assert dataset.document("p1") == Document("p1", "yes", title="T")
    assert dataset.negatives("train") == {"7": ("n1",)}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("nonsense", "line 2: is not JSON"),
        ({"query": "a"}, "line 2: has no 'document'; its keys are 'query'"),
        ({"document": "a"}, "line 2: has no 'query'"),
        ({"query": "a", "document": " "}, "line 2: 'document' is empty"),
        ({"query": "", "document": "a"}, "line 2: 'query' is empty"),
        ({"query": "a", "document": 3}, "line 2: 'document' is 3, not a string"),
        ({"query": "a", "document": "b", "query_id": "x y"}, "line 2: 'query_id' 'x y' holds"),
        ({"query": "a", "document": "b", "negatives": [1]}, "line 2: 'negatives' holds 1"),
    ],
)
def test_a_wrong_pair_is_named_by_file_and_line(write, row: object, reason: str) -> None:
    path = write("pairs.jsonl", {"query": "a", "document": "b"}, row)

    with pytest.raises(UserError, match=f"pairs.jsonl, {reason}"):
        open_dataset(str(path))


def test_a_group_without_a_positive_is_refused(write) -> None:
    first = {"query": "a", "positives": ["b"], "negatives": []}
    path = write("groups.jsonl", first, {"query": "a", "positives": [], "negatives": ["c"]})

    with pytest.raises(UserError, match=r"groups\.jsonl, line 2: has no positive document"):
        open_dataset(str(path))


def test_a_file_of_neither_pairs_nor_groups_is_refused(write) -> None:
    path = write("other.jsonl", {"question": "a", "options": "b"})

    with pytest.raises(UserError, match=r"other\.jsonl, line 1: has neither 'document' \(pairs\)"):
        open_dataset(str(path))


def test_passages_of_tevatron_may_lack_titles_and_negatives(write) -> None:
    row = {
        "query_id": 7,
        "query": None,
        "query_text": "a",
        "query_image": None,
        "positive_passages": [
            {"docid": "p1", "text": "yes"},
            {"docid": 3, "text": "b", "title": None},
        ],
        "negative_passages": [],
        "answer": None,
    }

    dataset = open_dataset(str(write("train.jsonl.gz", row)))

    assert dataset.queries("train") == [Query("7", "a")]
    assert list(dataset.documents()) == [Document("p1", "yes"), Document("3", "b")]
    assert dataset.negatives("train") == {}


@pytest.mark.parametrize("answer", [{}, {"answer": None}, {"answer": "Paris"}])
def test_groups_that_name_their_passages_by_id_are_told_what_is_read(write, answer: dict) -> None:
    row = {"query_id": "1", "query_text": "a", "positive_document_ids": ["4"], **answer}

    with pytest.raises(
        UserError,
        match=r"ids\.jsonl, line 1: names passages by id under 'positive_document_ids'.*"
        "docid, title and text under 'positive_passages'",
    ):
        open_dataset(str(write("ids.jsonl", row)))


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
        ("i.csv", 1, ["query,positive,negative,negative_1,negative_2", "a,yes,, ,no"]),
        ("j.tsv", 0, ["question\tanswer", "a\tyes"]),
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


def test_a_table_of_queries_and_documents_is_split_as_the_same_jsonl_is(write) -> None:
    rows = [{"query": f"q {n}", "document": f"d {n}"} for n in range(300)]
    table = write("a.tsv", "query\tdocument", *("\t".join(row.values()) for row in rows))

    ours, theirs = (open_dataset(str(path)) for path in (table, write("a.jsonl", *rows)))

    assert len(ours.splits) == 3
    for split in ours.splits:
        assert ours.judgements(split) == theirs.judgements(split)


@pytest.mark.parametrize(
    ("name", "lines", "reason"),
    [
        ("a.tsv", ["anchor\tpositive", "a\tb", "\tb"], "line 3: 'anchor' is empty"),
        ("a.csv", ["anchor,positive", "a,b", "a,"], "line 3: a text of 'positive' is empty"),
        ("a.csv", ["anchor,positive", "a,b", "a"], "line 3: has 1 column, and the header has 2"),
        ("a.jsonl", [["a"]], r"line 1: is a list that has 1 item; such a list is of texts"),
        ("a.jsonl", [["a", "b"], [4, 5, 6]], "line 2: is a list that holds 4; such a list"),
        ("a.jsonl", [["a", "b"], "[nonsense]"], "line 2: is not JSON"),
        ("a.jsonl", [{"anchor": "a", "positive": "b"}, {"anchor": "a"}], "line 2: has no positive"),
        ("a.jsonl", [{"positive": "b"}], "line 1: has no 'query'; its keys are 'positive'"),
    ],
)
def test_a_wrong_triplet_is_named_by_file_and_line(
    write, name: str, lines: list[object], reason: str
) -> None:
    with pytest.raises(UserError, match=rf"{re.escape(name)}, {reason}"):
        open_dataset(str(write(name, *lines)))


def test_a_table_of_a_header_alone_is_refused(write) -> None:
    with pytest.raises(UserError, match=r"a\.csv holds no row"):
        open_dataset(str(write("a.csv", "anchor,positive")))


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["query\tid", "a\t1"], "line 2: has neither 'document' .* its keys are 'query', 'id'"),
        (["positive\tnegative", "a\tb"], "line 2: has no 'query'; its keys are 'positive', 'neg"),
        ([], "holds no row"),
    ],
)
def test_a_table_of_other_columns_is_told_what_is_looked_for(write, lines, reason: str) -> None:
    with pytest.raises(UserError, match=rf"b\.tsv,? {reason}"):
        open_dataset(str(write("b.tsv", *lines)))


def test_an_empty_file_is_refused(write) -> None:
    with pytest.raises(UserError, match=r"none\.jsonl holds no line"):
        open_dataset(str(write("none.jsonl")))


names = st.sampled_from(["", "1", "1~2", "d0", "q0"])
words = st.sampled_from(["a", "b", "c"])
rows = st.builds(
    TrainingRow,
    split=st.sampled_from(["train", "test"]),
    query=st.builds(Query, names, words),
    positives=st.tuples(st.builds(Document, names, words, words)),
    negatives=st.tuples(st.builds(Document, names, words, words)),
)


@given(given_rows=st.lists(rows, min_size=1, max_size=8))
def test_each_text_has_one_id_and_each_id_one_text_whatever_ids_were_given(
    given_rows: list[TrainingRow],
) -> None:
    dataset = built(given_rows)

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


@given(key=st.text(st.characters(exclude_categories=["Cs"])), seed=st.text(max_size=3))
def test_a_key_is_always_in_the_same_one_of_the_splits(key: str, seed: str) -> None:
    seed = seed.encode(errors="ignore").decode()

    assert split_of(key, HALVES, seed) == split_of(key, dict(HALVES), seed)
    assert split_of(key, HALVES, seed) in HALVES


def test_another_seed_is_another_split() -> None:
    keys = [str(n) for n in range(200)]

    same = [split_of(key, HALVES, "one") == split_of(key, HALVES, "two") for key in keys]

    assert 60 < sum(same) < 140
