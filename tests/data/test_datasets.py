import pytest
from shell import python

from m2dr.core.records import Document, Query
from m2dr.data.loaders import open_texts
from m2dr.data.qrels import read_topics


def test_the_table_of_loaders_is_read_without_any_heavy_library() -> None:
    heavy = "{'torch', 'transformers', 'ir_datasets', 'pyarrow', 'datasets', 'pandas'}"
    code = f"import sys, m2dr.data.loaders; print(*{heavy} & sys.modules.keys())"

    assert not python("-c", code).split()


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("t.tsv", ["q1\tfirst one", "", "q2\tsecond"]),
        ("t.tsv", ["qid\tquery", "q1\tfirst one", "q2\tsecond"]),
        ("t.tsv", ["query_id\tquery_text", "q1\tfirst one", "q2\tsecond"]),
        ("t.tsv", ["topic\ttitle", "q1\tfirst one", "q2\tsecond"]),
        ("topics", ["q1\tfirst one", "q2\tsecond"]),
        ("t.csv", ["id,text", 'q1,"first one"', "q2,second"]),
        ("t.jsonl", [{"_id": "q1", "text": "first one"}, {"query_id": "q2", "query": "second"}]),
    ],
)
def test_queries_are_read_in_their_order(write, name: str, lines: list[object]) -> None:
    assert read_topics(write(name, *lines)) == [Query("q1", "first one"), Query("q2", "second")]


def test_a_query_of_the_word_text_is_no_header(write) -> None:
    assert read_topics(write("t.tsv", "1\ttext")) == [Query("1", "text")]


@pytest.mark.parametrize(
    ("name", "lines", "documents"),
    [
        ("a.txt", ["one", "", "two\tthree"], [("0", "one"), ("1", ""), ("2", "two\tthree")]),
        ("a.tsv.gz", ["x\tone", "y\ttwo"], [("x", "one"), ("y", "two")]),
        ("a.tsv", ["text\tother", "one\t1"], [("0", "one")]),
        ("a.jsonl", [{"text": "one"}, {"_id": "y", "text": ""}], [("0", "one"), ("y", "")]),
        ("a.jsonl", [{"contents": "one", "id": 3}], [("3", "one")]),
    ],
)
def test_texts_to_encode_have_ids_or_their_numbers(write, name, lines, documents) -> None:
    texts = open_texts(str(write(name, *lines)))

    assert list(texts()) == list(texts()) == [Document(*each) for each in documents]
