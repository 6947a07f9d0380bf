"""A command prints the report of its function, and its record with --json."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import refused, run
from shell import m2dr as in_shell

import m2dr
from m2dr.core.commands import Command

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


def test_queries_of_a_command_are_its_own_where_no_judgements_stand_beside_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    corpus = str(tmp_path / "corpus.jsonl")
    asked: list[Any] = []
    monkeypatch.setattr(Command, "__call__", lambda _, request: asked.append(request))

    m2dr.mine(corpus=corpus, out="a.jsonl", queries=5)
    m2dr.index_fit(corpus=corpus, queries="log.txt")
    m2dr.index_import("v.npy", corpus=corpus, queries="log.txt", query_vectors="q.npy")

    assert [each.queries for each in asked] == [5, Path("log.txt"), Path("log.txt")]
    assert {each.corpus for each in asked} == {corpus}


@pytest.mark.parametrize("name", ["train", "fit", "mine"])
def test_what_is_about_a_corpus_is_not_dropped_without_one(name: str, place: Path) -> None:
    parts = [{"columns": {"text": "Body"}}, *([] if name == "fit" else [JUDGED])]

    for given in parts:
        with pytest.raises(m2dr.UserError, match=f"{next(iter(given))}.* given, and no corpus"):
            getattr(m2dr, name)(out=place / "out.jsonl", **given)
    if name != "mine":  # whose corpus is pydocs by default
        assert "name it" in refused(name, "--columns", "text=Body")


def test_a_training_is_not_both_resumed_and_begun_again(place: Path) -> None:
    with pytest.raises(m2dr.UserError, match="give one of them"):
        m2dr.train(corpus="corpus.jsonl", out=place / "model", resume=True, overwrite=True)
