"""An index is known by the documents that it was made from, not by the name of their file."""

import json
from pathlib import Path

import pytest
from shell import m2dr
from world import WORDS

from m2dr.tasks import corpus as module
from m2dr.tasks.corpus import CorpusDigest, open_corpus


def written(path: Path, first: int, count: int = 6) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [f"{WORDS[(first + n) % 14]} {WORDS[first]}" for n in range(count)]
    rows = [{"id": f"d{n}", "text": text} for n, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_file_of_the_same_name_is_another_corpus(tiny_backbone: Path, tmp_path: Path) -> None:
    one, other = (written(tmp_path / name / "docs.jsonl", n) for name, n in (("a", 1), ("b", 7)))
    usual = ("--model", tiny_backbone, "--device", "cpu")

    def index(corpus: object) -> tuple[int, str]:
        done = m2dr("index", "corpus", "--corpus", corpus, *usual, "--dim", "8", cwd=tmp_path)
        return done.returncode, done.stderr

    def search(corpus: object) -> tuple[int, str]:
        words = ("search", "--corpus", corpus, *usual, "-k", "1", "read")
        done = m2dr(*words, cwd=tmp_path)
        return done.returncode, done.stdout + done.stderr

    assert index(one)[0] == 0
    code, told = search(other)
    assert code == 2
    assert f"holds other documents than {other}" in told
    code, told = index(other)
    assert code == 2
    assert f"is of {one}; give --corpus NAME={other}" in told
    assert index(f"mine={other}")[0] == 0

    assert search(one)[0] == 0
    code, told = search(f"mine={other}")
    assert code == 0
    assert WORDS[7] in told
    written(one, 1, 7)
    assert search(one)[0] == 2
    assert index(one)[0] == 0  # the same file, of which one document is new
    assert search(one)[0] == 0


def test_a_changed_file_with_columns_is_named_and_not_its_copy(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    (tmp_path / "art.csv").write_text("Key,Body\na,read\nb,list\n")
    of = ("--corpus", "art.csv", "--model", tiny_backbone, "--device", "cpu")
    columns = ("--columns", "id=Key,text=Body", "--dim", "8")
    assert m2dr("index", "corpus", *of, *columns, cwd=tmp_path).returncode == 0

    (tmp_path / "art.csv").write_text("Key,Body\na,read\nc,list\n")

    told = m2dr("search", *of, "read", cwd=tmp_path)
    assert told.returncode == 2
    assert "holds other documents than art.csv: m2dr index corpus" in told.stderr


def test_documents_are_read_again_only_if_their_file_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("M2DR_CACHE", str(tmp_path / "cache"))
    path = written(tmp_path / "docs.jsonl", 1)
    first = CorpusDigest.of(open_corpus(str(path)))
    monkeypatch.setattr(module, "CorpusRows", None)

    assert CorpusDigest.of(open_corpus(str(path))) == first
    monkeypatch.undo()
    monkeypatch.setenv("M2DR_CACHE", str(tmp_path / "cache"))
    written(path, 2)
    assert CorpusDigest.of(open_corpus(str(path))) != first
