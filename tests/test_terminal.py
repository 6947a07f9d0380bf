"""What texts, ids and names of files hold does not reach the terminal as a command to it."""

import io
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from shell import COMMAND, ENVIRONMENT
from world import make_corpus

from m2dr import cli
from m2dr.core.files import write_text
from m2dr.core.progress import printable, progress

# Clears the screen, sets the title (ended by BEL, and as C1), turns the direction of writing.
EVIL = "\x1b[2J\x1b]0;title\x07\x9b2J\u202egnp\u2066\u200f\x7f"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command in this process."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus whose folder, ids and texts hold control characters."""
    folder = make_corpus(tmp_path_factory.mktemp("evil") / f"a{EVIL}b")
    lines = (folder / "corpus.jsonl").read_text().splitlines()
    rows = [{**row, "_id": f"{row['_id']}{EVIL}"} for row in map(json.loads, lines)]
    for row in rows:
        row["text"] = f"{EVIL} {row['text']}"
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def indexed(evil: Path, tiny_backbone: Path) -> tuple[str | Path, ...]:
    """The options that search the corpus."""
    words = ("--corpus", evil, "--model", tiny_backbone, "--indexes", evil.parent / "indexes")
    with pytest.raises(SystemExit) as ended:
        cli.main(["index", "corpus", *map(str, words), "--device", "cpu", "--layer", "4"])
    assert not ended.value.code
    return (*words, "--device", "cpu")


def test_hits_are_shown_with_escapes(
    indexed: tuple[str | Path, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "search", *indexed, "read the file")

    assert code == 0, err
    assert not OBEYED.search(out + err)
    assert r"\x1b[2J\x1b]0;title\x07\x9b2J\u202egnp" in out
    assert r"documents of a\x1b[2J" in err


def test_lists_and_verdicts_are_shown_with_escapes(
    indexed: tuple[str | Path, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    root = indexed[5]

    for words in (("list",), ("verify", "--sample", "0")):
        code, out, err = run(capsys, "index", *words, "--indexes", root)

        assert code == 0, err
        assert r"a\x1b[2J" in out
        assert not OBEYED.search(out + err)


@pytest.mark.parametrize(
    "words",
    [
        ("bm25", "--corpus", f"no{EVIL}", "--split", "test", "--run", "never"),
        ("compare", f"no{EVIL}", "--against", "bm25"),
        ("search", f"--no{EVIL}"),
        ("search", "-k", f"{EVIL}", "text"),
        (f"no{EVIL}",),
        ("index", f"no{EVIL}"),
        ("train", "--set", f"no{EVIL}=1"),
    ],
)
def test_refusals_are_shown_with_escapes(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *words)

    assert code == 2
    assert r"\x1b[2J" in err
    assert not OBEYED.search(out + err)


@pytest.mark.parametrize(
    "words",
    [
        ("search", "--model", "no\nError: b", "text"),
        ("compare", "no\nError: b", "--against", "bm25"),
        ("bm25", "--corpus", "no\nError: b", "--split", "test", "--run", "never"),
    ],
)
def test_a_refusal_that_quotes_a_line_feed_stays_on_one_line(
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *words)

    assert code == 2
    assert r"no\nError: b" in err
    assert sum(line.startswith("Error: ") for line in err.splitlines()) == 1


def test_lines_and_bars_of_progress_are_shown_with_escapes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress(f"Reading {EVIL}", 2, "documents") as advance:
        advance(2)
    told = capsys.readouterr().err

    assert r"Reading \x1b[2J" in told
    assert not OBEYED.search(told)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with progress(f"Reading [red]{EVIL}", 2, "documents") as advance:
        advance(2)
    assert "\x1b]0;" not in terminal.getvalue()
    assert "[red]" in terminal.getvalue()


def test_words_of_every_language_are_printed_as_they_are() -> None:
    text = "naïve 日本語 שלום مرحبا हिन्दी 👩‍💻\n\tcafé"  # an emoji of two, joined

    assert printable(text) == text
    assert printable("a\r\udce9") == r"a\r\udce9"


def test_a_run_is_written_as_it_is_and_messages_go_beside_it(
    indexed: tuple[str | Path, ...], evil: Path
) -> None:
    topics = evil.parent / "topics.tsv"
    write_text(topics, "q1\tread the file\nq2\twrite a path\n")
    words = ("search", *indexed, "--topics", topics, "-k", "2", "--run")
    file = evil.parent / "run.trec"

    done, piped = (
        subprocess.run(
            [*COMMAND, *map(str, words), str(to)], env=ENVIRONMENT, capture_output=True, check=False
        )
        for to in (file, "/dev/stdout")
    )

    assert (done.returncode, piped.returncode) == (0, 0), done.stderr + piped.stderr
    assert EVIL.encode() in piped.stdout
    assert piped.stdout == file.read_bytes()
    assert b"2 queries: /dev/stdout" in piped.stderr
    assert f"2 queries: {file}".encode().split(b"\x1b")[0] in done.stdout
    assert os.path.lexists("/dev/stdout")
