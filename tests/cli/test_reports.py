"""A command prints the report of its function, and its record with --json."""

import json
from pathlib import Path

import pytest
from commands import run
from shell import m2dr as in_shell

import m2dr

DOCUMENTS = [{"id": "a", "text": "open a file"}, {"id": "b", "text": "open a door again"}]
JUDGED = {"queries": {"q": "open it"}, "qrels": {"q": {"a": 1}}}


@pytest.fixture
def place(here: Path) -> Path:
    """The working folder, with two runs and a corpus."""
    for name in "ab":
        Path(name).write_text(f"q Q0 {name} 1 1.0 x\n")
    Path("corpus.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in DOCUMENTS))
    return here


@pytest.mark.parametrize(
    ("words", "name", "options"),
    [
        ("fuse a b --out fused", "fuse", {"runs": ["a", "b"], "out": "fused"}),
        ("data check corpus.jsonl", "data_check", {"corpus": "corpus.jsonl"}),
        ("index list", "index_list", {}),
    ],
)
def test_a_command_prints_the_report_of_its_function(
    words: str, name: str, options: dict[str, object], place: Path
) -> None:
    report = getattr(m2dr, name)(**options)

    assert run(*words.split()).stdout == f"{report}\n"
    assert json.loads(run(*words.split(), "--json").stdout) == json.loads(
        json.dumps(report.record())
    )
    assert all((place / path).exists() for path in report.files)


def test_what_is_written_to_standard_output_stands_there_alone(place: Path) -> None:
    done = in_shell("fuse", "a", "b", "--out", "/dev/stdout", cwd=place)

    assert [line.split()[0] for line in done.stdout.splitlines()] == ["q", "q"]
    assert "1 query, 2 lines: /dev/stdout" in done.stderr


def test_the_function_of_a_command_takes_a_corpus_in_memory(tmp_path: Path) -> None:
    out = tmp_path / "groups.jsonl"

    report = m2dr.mine(corpus=DOCUMENTS, retriever="bm25", margin=0, out=out, **JUDGED)

    (group,) = map(json.loads, out.read_text().splitlines())
    assert [row["docid"] for row in group["positive_passages"]] == ["a"]
    assert [row["docid"] for row in group["negative_passages"]] == ["b"]
    assert (report.queries, report.negatives, report.files) == (1, 1, (out,))


def test_a_training_is_not_both_resumed_and_begun_again(place: Path) -> None:
    with pytest.raises(m2dr.UserError, match="give one of them"):
        m2dr.train(corpus="corpus.jsonl", out=place / "model", resume=True, overwrite=True)
