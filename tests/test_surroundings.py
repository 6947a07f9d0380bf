"""What surrounds a command: its streams, its words, its folder, and variables of the environment."""

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from shell import COMMAND, ENVIRONMENT

from m2dr.cli import main

SHELL = " ".join(COMMAND)


def shell(line: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of bash, where `m2dr` stands for the command."""
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; m2dr() {{ {SHELL} \"$@\"; }}; {line}"],
        cwd=cwd, env=ENVIRONMENT | variables, capture_output=True, timeout=120, check=False,
    )  # fmt: skip


def run(*words: str | Path, **variables: str | None) -> Result:
    return CliRunner().invoke(main, list(map(str, words)), env=variables)


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("m2dr search <&-", 2, b"Nothing to search for"),
        ("m2dr index list <&- >&- 2>&-", 0, b""),
        ("m2dr search <&- 2>&- >&-", 2, b""),
        ("m2dr search $'\\xff'", 2, b"Word 2 of the command, '\\udcff', is not UTF-8"),
        ("m2dr index list --indexes $'caf\\xe9'", 2, b"Word 4 of the command"),
        ("m2dr index list > /dev/full", 2, b"The disk is full"),
        ("mkdir gone; cd gone; rmdir ../gone; m2dr index list", 2, b"was deleted; change to one"),
        ("m2dr fuse --help | true", 1, b""),
    ],
)
def test_streams_words_and_folders_that_are_not_there_are_one_sentence(
    line: str, code: int, told: bytes, tmp_path: Path
) -> None:
    done = shell(line, tmp_path)

    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert done.stderr.count(b"\n") == bool(told)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_output_in_any_encoding_prints_every_character_in_some_way(
    encoding: str, tmp_path: Path
) -> None:
    done = shell("m2dr index list --indexes 日本", tmp_path, PYTHONIOENCODING=encoding)

    assert done.returncode == 0, done.stderr
    shown = done.stdout.decode("latin-1" if encoding == "latin-1" else "utf-8")  # click's of ASCII
    assert shown.startswith(("日本/ holds no store", "\\u65e5\\u672c/ holds no store"))


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE=abc is not a whole number"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 is set and RANK, MASTER_ADDR, MASTER_PORT not"),
        ({"RANK": "-1"}, "RANK=-1 is not a whole number"),
        ({"RANK": "1"}, "RANK=1: ranks count from 0 and end below WORLD_SIZE"),
        ({"RANK": "٣"}, "RANK=٣ is not a whole number"),
        ({"LOCAL_RANK": "9" * 5000}, "is not a whole number"),
        ({"LOCAL_RANK": "2", "RANK": "0", "WORLD_SIZE": "1"}, "ranks count from 0"),
        ({"WORLD_SIZE": "1", "MASTER_PORT": "x"}, "MASTER_PORT=x is not a whole number"),
    ],
)
@pytest.mark.parametrize("verb", ["train", "index"])
def test_variables_of_torchrun_that_are_wrong_are_named(
    variables: dict[str, str], told: str, verb: str, tiny_backbone: Path, tiny_corpus: Path,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    words = {
        "train": ("train", "--backbone", tiny_backbone, "--steps", "1", "--batch-size", "4"),
        "index": ("index", "corpus", "--model", tiny_backbone, "--layer", "1", "--dim", "8"),
    }[verb]

    done = run(*words, "--corpus", tiny_corpus, "--device", "cpu", **variables)

    assert done.exit_code == 2, done.output
    assert told in done.stderr
    assert "unset RANK LOCAL_RANK WORLD_SIZE" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_byte_that_is_no_text_on_the_prompt_does_not_end_the_session(
    tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    named = ("--corpus", str(tiny_corpus), "--model", str(tiny_backbone))
    assert run("index", "corpus", *named, "--layer", "4", "--dim", "8").exit_code == 0
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)

    done = CliRunner().invoke(main, ["search", *named], input=b"file \xff\xfe\nread a list\n\n")

    assert done.exit_code == 0, (done.output, done.exception)
    assert done.stderr.count("tokenise") == 2


def test_without_a_folder_to_keep_a_cache_in_a_command_works_or_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.tsv").write_text("1\tread a file\n")
    words = ("bm25", "--corpus", "pydocs:stdlib", "--topics", tmp_path / "t.tsv", "--run")
    lost = {"HOME": None, "XDG_CACHE_HOME": None, "TMPDIR": "/nonexistent"}

    done = run(*words, tmp_path / "r.trec", **lost, M2DR_CACHE="/dev/null/x")

    assert done.exit_code == 0, (done.output, done.exception)

    def no_account(_: int) -> object:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", no_account)
    done = run(*words, tmp_path / "s.trec", **lost, M2DR_CACHE=None)

    assert done.exit_code == 2
    assert done.stderr.endswith("name one with: export M2DR_CACHE=FOLDER\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("index", "list", "--indexes", ""), "'' names nothing"),
        (("fuse", "a", "b", "--out", " "), "' ' names nothing"),
        (("fuse", "a\0b", "--out", "c"), "'a\\x00b' names nothing"),
        (("bm25", "--run", "r.trec", "-k", "9" * 30), "has more than 64 bits"),
        (("train", "--dims", "9" * 5_000), "is not a whole number from 1"),
    ],
)
def test_a_word_that_names_or_counts_nothing_is_refused(
    words: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    done = run(*words)

    assert done.exit_code == 2, (done.output, done.exception)
    assert told in done.stderr
    assert not list(tmp_path.iterdir())


def test_links_that_lead_in_a_circle_are_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").symlink_to("a.csv")

    done = run("train", "--corpus", "a.csv", "--variant", "plain")

    assert done.exit_code == 2, (done.output, done.exception)
    assert "Symbolic links form a loop" in done.stderr
