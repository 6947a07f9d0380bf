"""`m2dr data check`, as a person runs it."""

import json
import statistics
from pathlib import Path

import pytest
from shell import m2dr
from tabular import write_rows

CLEAN = [
    {"query_id": "1", "query": "one two", "positive": "a b c", "negative": "a b"},
    {"query_id": "2", "query": "three", "positive": "d e f g h", "negative": "a"},
]


@pytest.fixture
def spoilt(tiny_corpus: Path, tmp_path: Path) -> Path:
    """The tiny corpus with a fault of every kind."""
    folder = tmp_path / "spoilt"
    for path in tiny_corpus.rglob("*.*"):
        target = folder / path.relative_to(tiny_corpus)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    first = json.loads((folder / "corpus.jsonl").read_text().splitlines()[0])
    added = {
        "corpus.jsonl": [{**first, "_id": "again"}, {"_id": "empty", "title": "", "text": " "}],
        "queries.jsonl": [{"_id": "blank", "text": ""}, {"_id": "q0b", "text": "x"}],
        "qrels/test.tsv": ["q39\tgone\t1", "nobody\td1\t0", "blank\td2\t1", "q0b\td2\t1"],
    }
    for name, rows in added.items():
        with (folder / name).open("a") as file:
            file.writelines(f"{row if name[0:5] == 'qrels' else json.dumps(row)}\n" for row in rows)
    return folder


def test_every_kind_of_fault_is_counted_and_named(spoilt: Path, tmp_path: Path) -> None:
    found = m2dr("data", "check", spoilt, "--json", cwd=tmp_path)

    assert found.returncode == 0
    report = json.loads(found.stdout)
    assert (report["name"], report["texts"]["count"]) == ("spoilt", 42)
    assert (report["texts"]["empty"], report["texts"]["duplicates"]) == (1, 1)
    test = report["splits"]["test"]
    assert (test["judgements"], test["relevant"], test["groups"]) == (12, 11, 10)
    assert (test["absent_documents"], test["absent_queries"]) == (1, 1)
    assert report["problems"] == [
        "1 document without a word; the first is 'empty'.",
        "1 document with the text of an earlier one; the first is 'again'.",
        "test: 1 query without a word; the first is 'blank'.",
        "test: 1 judgement of documents that are not there; the first is 'gone'.",
        "test: 1 judgement of queries that are not there; the first is 'nobody'.",
    ]


def test_with_strict_a_fault_ends_in_exit_code_1_and_a_clean_corpus_in_0(
    spoilt: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    assert m2dr("data", "check", spoilt, "--strict", cwd=tmp_path).returncode == 1
    clean = m2dr("data", "check", tiny_corpus, "--strict", cwd=tmp_path)
    assert clean.returncode == 0
    assert clean.stdout.endswith("Nothing is wrong with it.\n")


def test_lengths_are_those_that_a_script_would_count(data: Path, tmp_path: Path) -> None:
    corpus = data / "beir" / "scifact"
    rows = [json.loads(line) for line in (corpus / "corpus.jsonl").read_text().splitlines()]
    words = sorted(len(f"{row['title']} {row['text']}".split()) for row in rows)

    report = json.loads(m2dr("data", "check", corpus, "--json", cwd=tmp_path).stdout)

    texts = report["texts"]
    assert texts["count"] == len(words)
    assert texts["median"] == statistics.median(words)
    assert texts["longest"] == words[-1]
    within = sum(length <= texts["share_95"] for length in words) / len(words)
    below = sum(length < texts["share_95"] for length in words) / len(words)
    assert below < 0.95 <= within


@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
def test_the_table_of_a_file_of_groups_is_that_of_any_other_kind(kind: str, tmp_path: Path) -> None:
    write_rows(tmp_path / f"groups{kind}", CLEAN)

    found = m2dr("data", "check", f"groups{kind}", "--strict", cwd=tmp_path)

    assert (found.returncode, found.stdout.splitlines()) == (
        0,
        [
            "                count  empty  duplicates  median words  95 %  longest",
            "documents           4      0           0           2.5     5        5",
            "queries, train      2      0           0           1.5     2        2",
            "",
            "       judgements  relevant  groups  given negatives  no document  no query",
            "train           2         2       2                2            0         0",
            "",
            "Nothing is wrong with it.",
        ],
    )
