"""No input ends in a traceback, hangs, changes what it reads, or leaves a half-written file.

A command ends with exit code 0, or with 2 and one sentence (`index verify` with 2 and its
verdicts). Code 1 is Ctrl-C's alone. How to run a case by itself stands in `hostile`.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile import COMMANDS, failures, make_world, refusal, sentence_of

from m2dr.core.errors import UserError
from m2dr.core.trainings import read_train_settings

CASES, MANY, AT_ONCE = 500, 5_000, 25


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("M2DR_DATA", "/nonexistent")
        patch.setenv("OMP_NUM_THREADS", "1")
        yield make_world(tmp_path_factory.mktemp("hostile"))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words[:60])
def test_each_command_works_before_anything_is_spoilt(command: object, world: Path) -> None:
    assert sentence_of(command, world) == ""


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("first", range(0, CASES, AT_ONCE))
def test_what_is_hostile_is_refused_in_a_sentence(first: int, world: Path) -> None:
    assert list(failures(range(first, first + AT_ONCE), world)) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("first", range(CASES, MANY, 4 * AT_ONCE))
def test_much_more_that_is_hostile_is_refused_in_a_sentence(first: int, world: Path) -> None:
    assert list(failures(range(first, first + 4 * AT_ONCE), world)) == []


_GRID = "results/corpus/test/model"
_STORE = "indexes/corpus/*/layer-04"
_SEARCH = "search --corpus corpus --model model --indexes indexes --device cpu file"
_RECORD = "train --resume --backbone backbone --corpus corpus --out new"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[" * 100_000, "nested"),
        (b"[" * 500 + b"]" * 500, "nested"),
        (b'{"format": ' + b"9" * 5_000 + b"}", "more than 64 bits"),
        (b'{"format": 1e999}', "1e999, which is not a finite number"),
        (b'{"format": NaN}', "NaN, which is not a finite number"),
        (b'{\n"format": "\xff"}', "it is not UTF-8"),
        (b'{"format": 1, "format": 1}', "holds the key 'format' twice"),
        (b'{"format": 1,\n', "Expecting property name"),
    ],
    ids=["deep", "deeper", "digits", "infinite", "nan", "bytes", "twice", "cut"],
)
@pytest.mark.parametrize(
    ("words", "files"),
    [
        (f"pick {_GRID} --quality 50%", f"{_GRID}/grid.json"),
        (f"pick {_GRID} --quality 50%", f"{_GRID}/costs.json"),
        (_SEARCH, f"{_STORE}/store.json"),
        (_SEARCH, f"{_STORE}/dim-32/manifest.json"),
        (_SEARCH, "model/m2dr.json"),
        (_RECORD, "new/training.json"),
    ],
    ids=["grid", "costs", "made", "comparison", "store", "manifest", "card", "record"],
)
def test_a_file_of_json_that_cannot_be_read_is_named_with_the_reason(
    words: str, files: str, text: bytes, reason: str, world: Path
) -> None:
    (world / "new").mkdir(exist_ok=True)
    path = next(world.glob(files), world / files)
    kept = path.read_bytes() if path.exists() else None
    path.write_bytes(text)
    try:
        told = refusal(words, world)
    finally:
        path.write_bytes(kept) if kept is not None else path.unlink()

    assert reason in told
    assert text.count(b"\n") == told.count("line 2")
    assert str(path.relative_to(world)) in told


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[" * 100_000, "nested"),
        ('{"_id": "d", "text": "x", "n": ' + "9" * 5_000 + "}", "thousands of digits"),
        ('{"_id": "d", "text": ' + "[" * 100_000, "nested"),
        ('{"_id": "\\ud800", "text": "x"}', "half a surrogate pair"),
    ],
)
def test_a_line_of_json_that_cannot_be_read_is_named_with_the_reason(
    line: str, reason: str, tmp_path: Path, tiny_corpus: Path
) -> None:
    (tmp_path / "topics.jsonl").write_text(f'{{"_id": "a", "text": "b"}}\n{line}\n')

    told = refusal(f"bm25 --corpus {tiny_corpus} --topics topics.jsonl --run r.trec", tmp_path)

    assert told.startswith("Error: topics.jsonl, line 2: ")
    assert reason in told


@pytest.mark.parametrize(
    "text",
    [
        b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4',",
        b"\x93NUMPY\x01\x00\x06\x00((((((",
        b"PK\x03\x04 no archive",
        b"PK\x05\x06" + b"\xff" * 30,
        b"\x93NUMPY\x01\x00\x47\x00{'descr': '<f4', 'fortran_order': False, 'shape': (%s, 2)}" % (b"9" * 20),
        b"\x93NUMPY\x09\x09",
        b"",
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["v.npy", "per_query.npz"])
def test_a_fragment_of_an_array_is_a_sentence(text: bytes, name: str, world: Path) -> None:
    path = next(world.rglob(name))
    kept = path.read_bytes()
    path.write_bytes(text)
    words = {
        "v.npy": "index import --vectors v.npy --ids ids.txt --corpus c --model model --sample 0",
        "per_query.npz": f"compare {_GRID} --against {_GRID}@L2D8 --out out",
    }[name]
    try:
        told = refusal(words, world)
    finally:
        path.write_bytes(kept)

    assert name in told


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("steps=" + "[" * 50_000, "--set steps: its value is not TOML"),
        ("steps=" + "9" * 5_000, "thousands of digits"),
        ("learning_rate=" + "9" * 400, "is not a number"),
        ("seed=" + "9" * 40, "is not a whole number"),
        ("steps=3\nseed=4", "is not a whole number"),
        ("layers=[[[[", "is not a list of whole numbers"),
    ],
)
def test_a_setting_that_no_number_holds_is_a_sentence(word: str, reason: str) -> None:
    with pytest.raises(UserError) as refused:
        read_train_settings(None, [word])

    assert reason in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("text", ["a = " + "[" * 50_000, "steps = " + "9" * 5_000, "a = '\ud800'"])
def test_a_file_of_settings_that_cannot_be_read_is_a_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_bytes(text.encode(errors="surrogatepass"))

    with pytest.raises(UserError, match=r"train\.toml is not TOML"):
        read_train_settings(path)


def test_an_error_that_quotes_a_file_stays_readable(tmp_path: Path) -> None:
    (tmp_path / "a.trec").write_text(f"q Q0 d 1 {'x' * 50_000} tag\n")

    assert len(refusal("fuse a.trec a.trec --out c.trec", tmp_path)) < 2_500


@pytest.mark.parametrize(
    "name",
    [
        "m2dr.json",
        "store.json",
        "manifest.json",
        "docid",
        "grid.json",
        "costs.json",
        "made.json",
        "per_query.npz",
    ],
)
def test_a_fifo_in_the_place_of_a_file_of_ours_is_not_waited_for(name: str, world: Path) -> None:
    path = next(
        path
        for path in world.rglob(name)
        if "dim-8" not in path.parts[-2] and "flat" not in path.parts
    )
    kept = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    words = {
        "grid.json": "figures results --out o",
        "costs.json": f"pick {_GRID} --quality 50%",
        "per_query.npz": f"compare {_GRID} --against {_GRID}@L2D8 --out out",
    }
    try:
        told = refusal(words.get(name, f"{_SEARCH} --dim 32"), world)
    finally:
        path.unlink()
        path.write_bytes(kept)

    assert name in told
    assert "FIFO" in told or "device" in told
