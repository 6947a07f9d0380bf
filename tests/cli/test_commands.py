"""Mistakes are sentences with exit code 2."""

import errno
import json
import subprocess
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from commands import refused, run
from shell import COMMAND, ENVIRONMENT

from m2dr.core.errors import Interrupted, UserError, sentence_of


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "--backbone", "./nowhere"], "./nowhere"),
        (["train", "--resume"], "was never begun"),
        (["search", "read", "--corpus", "other.jsonl"], "--corpus was given twice"),
        (["train", "--lr", "1e-5"], "--learning-rate"),
        (["train", "--pooling", "mean"], "--set pooling="),
        (["search", "read", "--pooling", "mean"], "m2dr export --model FOLDER --pooling"),
        (["index", "corpus", "--indexes", "x\udcff"], "'x\\udcff' is not UTF-8."),
        (["mine", "--out", "g.jsonl", "--split", "tain"], "Did you mean train?"),
    ],
)  # fmt: skip
def test_mistake_is_one_sentence(
    words: list[str], sentence: str, tiny_backbone: Path, tiny_corpus: Path, here: Path
) -> None:
    model = "--model" if words[0] != "train" else "--backbone"
    usual = () if model in words else (model, tiny_backbone)

    told = refused(*words, *usual, "--corpus", tiny_corpus)

    assert sentence in " ".join(told.split())
    assert not (here / "models").exists()


@pytest.mark.usefixtures("here")
def test_passages_of_a_corpus_with_a_name_of_its_own(tiny_backbone: Path) -> None:
    Path("a.jsonl").write_text('{"id": "a", "text": "one two three four five"}\n')
    usual = ("--corpus", "notes=a.jsonl", "--passages", "3:1", "--model", tiny_backbone)

    run("index", "corpus", *usual)

    assert "a#1" in run("search", *usual, "two").output
    assert [each.name for each in Path("indexes").iterdir()] == ["notes"]


def test_a_model_folder_is_never_overwritten_unasked(
    tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")

    words = ("--corpus", tiny_corpus, "--backbone", tiny_backbone, "--batch-size", "4")

    told = refused("train", *words, "--out", tmp_path)

    assert "holds other files; choose another --out" in told
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_explain_prints_the_terms_and_trains_nothing(tiny_backbone: Path, here: Path) -> None:
    result = run("train", "--variant", "dims", "--backbone", tiny_backbone, "--explain")

    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["L2D8", "contrastive", "0.5906"] in rows
    assert ["L4D32", "contrastive", "1.0000"] in rows
    assert not list(here.iterdir())


def test_corpus_is_an_argument_and_its_columns_are_told(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    path = tmp_path / "own.csv"
    path.write_text("Key,Body,text\nk,open a file,0\nl,close it,1\n")
    how = (
        "--columns", "_id=Key,text=Body", "--model", tiny_backbone, "--dim", "8",
        "--indexes", tmp_path / "indexes",
    )  # fmt: skip

    done = run("index", "corpus", path, "--no-exits", *how)
    found = run("search", "open a file", "--corpus", path, "--json", *how)

    assert done.exit_code == 0, done.output
    assert {hit["docid"] for hit in json.loads(found.stdout)["hits"]} == {"k", "l"}
    assert (tmp_path / "indexes" / "own").is_dir()
    assert "A corpus was given, and --corpus too" in refused(
        "index", "corpus", path, "--corpus", path
    )


# What surrounds a command


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (UserError("Layer 7 was asked for."), "Layer 7 was asked for."),
        (FileNotFoundError(errno.ENOENT, "No such file", "x.tsv"), "x.tsv: No such file."),
        (OSError(errno.ENOSPC, "No space left on device"), "The disk is full: No space left"),
        (RuntimeError("CUDA out of memory."), "There is not enough memory"),
        (MemoryError(), "There is not enough memory"),
        (msgspec.ValidationError("Expected `int`"), "Expected `int`"),
        (pa.ArrowInvalid("CSV parse error\n in row 3"), "CSV parse error in row 3"),
        (ValueError("no such norm"), "no such norm"),
        (KeyError("bug"), ""),
        (RuntimeError("bug"), ""),
    ],
)
def test_sentence_of_an_error(error: Exception, sentence: str) -> None:
    told = sentence_of(error)

    assert told.startswith(sentence)
    assert bool(told) == bool(sentence)


@pytest.mark.parametrize(
    ("error", "code"), [(UserError("a\nb"), 2), (Interrupted("a\nb"), 1), (KeyError("a"), None)]
)
def test_exit_codes(error: Exception, code: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr("m2dr.tasks.indexing.listing.store_folders", fail)
    done, debugged = (run("index", "list", *flag) for flag in ([], ["--debug"]))

    assert debugged.exception is error
    if code is None:
        assert done.exception is error
    else:
        assert (done.exit_code, done.stderr) == (code, "Error: a\\nb\n")


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_output_in_any_encoding(encoding: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "index", "list", "--indexes", "日本"],
        cwd=tmp_path, env=ENVIRONMENT | {"PYTHONIOENCODING": encoding}, capture_output=True, check=True,
    )  # fmt: skip

    assert done.stdout.decode().startswith(
        ("日本/ holds no store", "\\u65e5\\u672c/ holds no store")
    )


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"WORLD_SIZE": "abc"}, "RANK=0 and WORLD_SIZE=abc"),
        ({"RANK": "1"}, "RANK=1 and WORLD_SIZE=1"),
    ],
)
def test_variables_of_torchrun_are_checked(
    variables: dict[str, str], told: str, tiny_backbone: Path, tiny_corpus: Path,
    here: Path
) -> None:  # fmt: skip
    words = ("train", "--backbone", tiny_backbone, "--steps", "1", "--batch-size", "4")

    done = run(*words, "--corpus", tiny_corpus, "--device", "cpu", **variables)

    assert done.exit_code == 2, done.output
    assert told in done.stderr
    assert not list(here.iterdir())
