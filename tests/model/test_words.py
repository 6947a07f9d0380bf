"""The table of words: rows added up in numpy, from one file."""

# Shapes in this file: N texts, F words, W dims, L layers.

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from m2dr.core.errors import UserError
from m2dr.maps.words import ShortTexts, read_words
from m2dr.model.hub import WORDS
from m2dr.model.words import WordTable, unit_rows

CORPUS = ["Open the file", "close the file", "a list of numbers", "parse a number of the list"]
UNKNOWN = ["", "?!", "unheard words"]
W = 24


def made(beside: tuple[int, ...] = (), language: str = "english") -> WordTable:
    draw = np.random.default_rng(5)
    vectors = draw.normal(size=(len(CORPUS), W)).astype(np.float32)
    matrices = {layer: draw.normal(size=(W, W)).astype(np.float32) for layer in beside}
    words = read_words(CORPUS, len(vectors), 64, language).fit(vectors)
    return replace(words, beside=matrices)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> WordTable:
    folder = tmp_path_factory.mktemp("words")
    made((1, 3)).write(folder)
    return WordTable.open(folder)


def sum_of_rows(table: WordTable, text: str) -> NDArray[np.float64]:
    """The formula, in float64, from the file as safetensors reads it."""
    tensors = load_file(table.path)
    rows = {word: row for row, word in enumerate(bytes(tensors["words"]).decode().split("\n"))}
    stems = [stem for stem in table.analyzer(text)[: table.limit] if stem in rows]
    shares = {rows[s]: stems.count(s) ** 0.5 * float(tensors["weights"][rows[s]]) for s in stems}
    length = sum(share**2 for share in shares.values()) ** 0.5
    parts = [tensors["table"][row].astype(float) * share for row, share in shares.items()]
    vector: NDArray[np.float64] = sum(parts, np.zeros(W)) / (length or 1)
    return vector


WORDS_OF = st.sampled_from([*" ".join(CORPUS).split(), "FILES", "unheard", "?"])


@given(st.lists(st.lists(WORDS_OF, max_size=9).map(" ".join), max_size=4), st.integers(1, W))
def test_a_text_is_the_sum_of_the_rows_of_its_words(
    table: WordTable, texts: list[str], dim: int
) -> None:
    vectors = table.embed(texts)

    assert (vectors.shape, vectors.dtype) == ((len(texts), W), np.float32)
    for vector, text in zip(vectors, texts, strict=True):
        np.testing.assert_allclose(vector, sum_of_rows(table, text), atol=1e-5)
    np.testing.assert_allclose(table.embed(texts, dim), vectors[:, :dim], atol=1e-6)


def test_texts_without_a_known_word_are_zeros(table: WordTable) -> None:
    assert not table.embed(UNKNOWN).any()
    assert table.embed(["the of a"]).any()  # function words alone are words


def test_words_are_added_where_a_layer_reads_them(table: WordTable) -> None:
    texts, layers = ["open a list", *UNKNOWN], (0, 1, 2, 3)
    before = np.random.default_rng(7).normal(size=(len(layers), len(texts), W)).astype(np.float32)
    vectors = before.copy()

    table.add(vectors, layers, texts)

    unit = unit_rows(table.embed(texts))
    expected = {0: table.embed(texts), 2: 0} | {n: unit @ table.beside[n] for n in (1, 3)}
    for layer in layers:
        np.testing.assert_allclose(vectors[layer], before[layer] + expected[layer], atol=1e-5)
    assert table.layers == (0, 1, 3)


@pytest.mark.parametrize("layer", [0, 1])
def test_a_cut_table_gives_the_first_dims(layer: int, table: WordTable) -> None:
    whole, cut = np.zeros((1, 4, W), np.float32), np.zeros((1, 4, 8), np.float32)
    table.add(whole, [layer], CORPUS)
    table.cut(layer, 8).add(cut, [layer], CORPUS)

    np.testing.assert_allclose(cut, whole[:, :, :8], atol=1e-5)
    with pytest.raises(UserError, match=r"Dim 25 was asked for; layer 0 has 24"):
        table.embed(CORPUS, W + 1)


def test_a_file_is_the_same_from_every_run_and_read_back(tmp_path: Path) -> None:
    def written(table: WordTable) -> bytes:
        table.write(tmp_path)
        return (tmp_path / WORDS).read_bytes()

    first = written(made((2,), "none"))
    again = WordTable.open(tmp_path)

    assert first == written(made((2,), "none")) == written(again)
    assert (again.language, again.limit, list(again.rows)[:2]) == ("none", 96, ["open", "the"])


def test_rows_that_are_not_used_are_not_read(table: WordTable, tmp_path: Path) -> None:
    tensors = load_file(table.path)
    tensors["table"][table.rows["file"], 2] = np.nan
    save_file(tensors, tmp_path / WORDS, {"m2dr": '{"language": "english", "limit": 96}'})
    damaged = WordTable.open(tmp_path)

    assert np.isfinite(damaged.embed(["open a list"])).all()
    with pytest.raises(UserError, match=r"words.safetensors holds a number that is not finite"):
        damaged.embed(["open a list", "a file"])
    with pytest.raises(UserError, match=r"words.safetensors cannot be written: a number"):
        damaged.write(tmp_path)


def changed(path: Path, **tensors: NDArray[np.generic]) -> None:
    save_file(load_file(path) | tensors, path, {"m2dr": '{"language": "english", "limit": 96}'})


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "no json": lambda path: path.write_bytes(b"\x04" + bytes(7) + b"{{{{"),
    "a pickle": lambda path: path.write_bytes(b"\x80\x04\x95" + b"x" * 90),
    "of another program": lambda path: save_file({"table": np.ones((3, W), np.float16)}, path),
    "float64": lambda path: changed(path, table=np.ones((9, W))),
    "fewer weights": lambda path: changed(path, weights=np.ones(3, np.float32)),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_file_that_is_no_table_is_named(name: str, tmp_path: Path) -> None:
    made().write(tmp_path)
    DAMAGE[name](tmp_path / WORDS)
    with pytest.raises(UserError, match=r"words\.safetensors"):
        WordTable.open(tmp_path)


def test_a_mix_and_exits_read_the_words_of_documents_alone(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    vectors, spans = (draw.normal(size=(4, W)).astype(np.float32) for _ in range(2))
    beside = ShortTexts(["open file", "a list", "number", "close"], spans, 0.4)
    exits = {1: np.eye(W, dtype=np.float32)}
    rows = read_words(CORPUS, len(vectors), 64)
    taught = rows.fit(vectors, [beside])
    replace(taught, beside=exits).write(tmp_path)
    alone = replace(rows.fit(vectors), beside=exits)

    opened = WordTable.open(tmp_path)

    mixed = opened.mixed(vectors, CORPUS, 0.5)
    np.testing.assert_allclose(mixed, alone.mixed(vectors, CORPUS, 0.5), atol=1e-3)
    assert not np.allclose(opened.embed(CORPUS), alone.embed(CORPUS), atol=1e-2)
    assert opened.cut(0, 8).alone is None
    for table in (opened, opened.cut(1, W)):
        found, expected = np.zeros((2, 2, 4, W), np.float32)
        table.add(found, [1, 1], CORPUS)
        alone.add(expected, [1, 1], CORPUS)
        np.testing.assert_allclose(found, expected, atol=1e-3)
        parts = sum(table.parts(CORPUS[0], 1).values())
        np.testing.assert_allclose(parts, expected[0, 0], atol=1e-3)
