"""Errors as one sentence, and what surrounds a command."""

import errno
import subprocess
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from commands import run
from shell import COMMAND, ENVIRONMENT

from m2dr.core.errors import Interrupted, UserError, sentence_of


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

    monkeypatch.setattr("m2dr.tasks.indexing.listing.list_stores", fail)
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    words = ("train", "--backbone", tiny_backbone, "--steps", "1", "--batch-size", "4")

    done = run(*words, "--corpus", tiny_corpus, "--device", "cpu", **variables)

    assert done.exit_code == 2, done.output
    assert told in done.stderr
    assert not list(tmp_path.iterdir())
