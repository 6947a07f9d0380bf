"""Damaged JSON in a model folder: refused in one sentence, or without any effect on the vectors."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.model.checkpoint import load, save

HOSTILE: tuple[object, ...] = (
    None, True, False, -1, 0, 1, 3, 10**9, 2**31, 2**63, 10**400, 0.5, -1e30, 1e-300,
    float("nan"), float("inf"), "", "32", "nan", "bert", "\ud800", "\0", "../..", "x" * 5000,
    [], [1], [None], ["a"], [[]], {}, {"a": 1}, {"a": {"b": []}},
)  # fmt: skip
TEXT: tuple[bytes, ...] = (
    b"", b"{", b"[]", b"{}", b"null", b"7", b'"x"', b"\xff\xfe{}", b"\0", b"[" * 100_000,
    b'{"format": ' + b"9" * 5000 + b"}", b'{"a": NaN}', b'[{"path": 5}]', b'[{"path": "../x"}]',
    b'[{"path": "' + b"x" * 5000 + b'"}]',
)  # fmt: skip
FILES = (
    "m2dr.json", "config.json", "tokenizer.json", "tokenizer_config.json", "modules.json",
    "1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json",
)  # fmt: skip
WORDS = ["read a file", "the list of numbers"]
CASES = 40  # of each file and folder
READ = ("config.json", "tokenizer.json", "tokenizer_config.json")  # of a folder with m2dr.json


@pytest.fixture(scope="module")
def own(backbone: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete folder that m2dr wrote."""
    folder = tmp_path_factory.mktemp("own") / "model"
    encoder, tokenizer = load(backbone("bert"))
    save(encoder, tokenizer, encoder.card, folder)
    return folder


def vectors(folder: Path) -> NDArray[np.float32]:
    """[texts, width] of the last layer, as queries and documents would be encoded."""
    encoder, tokenizer = load(folder)
    card = encoder.card
    rows = [
        tokenizer([prefix + text for text in WORDS], length)
        for prefix, length in (
            (card.query_prefix, card.query_length),
            (card.document_prefix, card.document_length),
        )
    ]
    return np.concatenate(
        [
            encoder.embed(np.array([row]), np.ones((1, len(row)), np.int64))[-1]
            for side in rows
            for row in side
        ]
    )


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every value in JSON; of a long list or object, the first few."""
    yield path
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        for key in keys[:60]:
            yield from places(value[key], (*path, key))


def damaged(content: bytes, generator: random.Random) -> bytes:
    """The same JSON with one value replaced, removed or renamed; or no JSON any more."""
    way = generator.random()
    if way < 0.1:
        return generator.choice(TEXT)
    if way < 0.2:
        at = generator.randrange(len(content))
        return content[:at] + bytes([generator.randrange(256)]) + content[at + 1 :]
    table = json.loads(content)
    *parents, last = generator.choice([path for path in places(table) if path])
    inner: Any = table
    for key in parents:
        inner = inner[key]
    if way < 0.3:
        del inner[last]
    elif way < 0.35 and isinstance(inner, dict):
        inner[f"{last}s"] = inner.pop(last)
    else:
        inner[last] = generator.choice(HOSTILE)
    return json.dumps(table).encode()


def check(folder: Path, file: str, content: bytes, expected: NDArray[np.float32] | None) -> None:
    """One damaged file ends in a sentence; or, accepted, gives vectors as `expected`, if given."""
    (folder / file).write_bytes(content)
    found, sentence = None, ""
    try:
        found = vectors(folder)
    except UserError as error:
        sentence = str(error)
    if found is None:
        assert 0 < len(sentence) < 1000
        assert "\n" not in sentence
        return
    assert np.isfinite(found).all()
    if expected is not None:
        np.testing.assert_allclose(found, expected, atol=1e-5)


def check_many(folder: Path, file: str, seeds: range, same: bool) -> None:
    content, expected = (folder / file).read_bytes(), vectors(folder) if same else None
    for seed in seeds:
        changed = damaged(content, random.Random(seed))
        try:
            check(folder, file, changed, expected)
        except Exception as error:
            error.add_note(f"{file}, seed {seed}: {changed[:3000]!r}")
            raise
    (folder / file).write_bytes(content)


@pytest.mark.parametrize("file", [file for file in FILES if file != "m2dr.json"])
def test_a_damaged_file_of_an_own_folder_is_refused_or_changes_no_vector(
    file: str, own: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(own, tmp_path / "model"))
    check_many(folder, file, range(CASES if file in READ else 4), same=True)


def test_a_damaged_card_is_refused_or_gives_finite_vectors(own: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(own, tmp_path / "model"))
    check_many(folder, "m2dr.json", range(3 * CASES), same=False)


@pytest.mark.parametrize("file", [file for file in FILES if file != "m2dr.json"])
def test_a_damaged_file_of_a_backbone_is_refused_or_gives_finite_vectors(
    file: str, own: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(own, tmp_path / "model"))
    (folder / "m2dr.json").unlink()
    check_many(folder, file, range(CASES), same=False)


@pytest.mark.slow
@pytest.mark.parametrize("untrained", [False, True], ids=["own", "backbone"])
@pytest.mark.parametrize("file", FILES)
def test_many_damaged_files(file: str, untrained: bool, own: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(own, tmp_path / "model"))
    if untrained:
        (folder / "m2dr.json").unlink()
    if (folder / file).exists():
        check_many(folder, file, range(1000, 1300), same=not untrained and file != "m2dr.json")
