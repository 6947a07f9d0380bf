from pathlib import Path

import pytest
from world import piped

from m2dr.core.errors import UserError
from m2dr.core.records import Query
from m2dr.data.qrels import read_topics


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.tsv", "q1\tfirst one\n\nq2\tsecond\n"),
        ("t.jsonl", '{"_id": "q1", "text": "first one"}\n{"_id": "q2", "text": "second"}\n'),
        ("t.jsonl", '{"query_id": "q1", "query": "first one"}\n{"id": "q2", "text": "second"}\n'),
    ],
)
def test_queries_are_read_in_their_order(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)

    assert read_topics(tmp_path / name) == [Query("q1", "first one"), Query("q2", "second")]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("t.tsv", "q1 first\n", "line 1: has no tab"),
        ("t.tsv", "q1\ta\nq1\tb\n", "line 2: the id 'q1' is already used in line 1"),
        ("t.tsv", "q 1\ta\n", "holds whitespace"),
        ("t.tsv", "q1\t \n", "the text is empty"),
        ("t.tsv", "", "holds no queries"),
        ("t.jsonl", '{"text": "no id"}\n', "has no '_id'"),
        ("t.jsonl", '{"_id": "q1"}\n', "has no 'text'"),
    ],
)
def test_a_malformed_line_is_named(name: str, content: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)

    with pytest.raises(UserError, match=sentence):
        read_topics(tmp_path / name)


def test_queries_are_read_from_a_pipe_whole() -> None:
    pipe = piped("".join(f"q{i}\ta question\n" for i in range(20_000)).encode())

    assert len(read_topics(pipe)) == 20_000
