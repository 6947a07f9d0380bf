"""`m2dr data check`, as a person runs it."""

import json
import statistics
from pathlib import Path

import pytest
from shell import m2dr
from tabular import write_rows

ROWS = [
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


def test_faults_are_counted_and_named(spoilt: Path, tmp_path: Path) -> None:
    found = m2dr("data", "check", spoilt, "--json", cwd=tmp_path)

    report = json.loads(found.stdout)
    assert (report["name"], report["texts"]["documents"]["count"]) == ("spoilt", 42)
    assert report["splits"]["test"] == {
        "judgements": 12, "relevant": 11, "groups": 10, "given negatives": 0,
    }  # fmt: skip
    assert report["problems"] == [
        "documents: 1 empty; the first is 'empty'.",
        "documents: 1 duplicates; the first is 'again'.",
        "queries, test: 1 empty; the first is 'blank'.",
        "test: 1 document of the judgements missing; the first is 'gone'.",
        "test: 1 query of the judgements missing; the first is 'nobody'.",
    ]
    assert m2dr("data", "check", spoilt, "--strict", cwd=tmp_path).returncode == 1


def test_lengths_are_those_that_a_script_would_count(data: Path, tmp_path: Path) -> None:
    corpus = data / "beir" / "scifact"
    rows = [json.loads(line) for line in (corpus / "corpus.jsonl").read_text().splitlines()]
    words = [len(f"{row['title']} {row['text']}".split()) for row in rows]

    report = json.loads(m2dr("data", "check", corpus, "--json", cwd=tmp_path).stdout)

    counts = report["texts"]["documents"]
    assert (counts["count"], counts["longest"]) == (len(words), max(words))
    assert counts["median words"] == int(statistics.median(words))


@pytest.mark.parametrize("kind", [".jsonl", ".parquet"])
def test_a_file_of_groups(kind: str, tmp_path: Path) -> None:
    write_rows(tmp_path / f"groups{kind}", ROWS)

    found = m2dr("data", "check", f"groups{kind}", "--strict", cwd=tmp_path)

    lines = found.stdout.splitlines()
    assert found.returncode == 0, found.stderr
    assert lines[1].split() == ["documents", "4", "0", "0", "2", "5"]
    assert lines[5].split() == ["train", "2", "2", "2", "2"]
    assert any("'text': 'a b c'" in line for line in lines)
    used = "no negatives unless --negatives says how many: those given for 2 queries of train first"
    assert any(used in line for line in lines)
    assert lines[-1] == "Nothing is wrong with it."
