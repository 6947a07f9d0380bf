"""Layer 0 is a weighted mean of rows, of the same token ids as all other layers."""

import json
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from world import TEXT, make_fitted, make_model

from m2dr.core.errors import UserError
from m2dr.core.records import Side
from m2dr.model.checkpoint import load_tokenizer
from m2dr.model.hub import STATIC
from m2dr.model.static import StaticTable, open_static, read_static, write_static

V, P = 40, 24
ROWS = st.lists(st.lists(st.integers(0, V - 1), max_size=9), max_size=6)
TEXTS = [
    "Read a FILE",
    "close the module",
    "naïve Σίσυφος 中文 12345",
    "",
    "a " * 500,
    f"{TEXT} [SEP] z",
]


def numbers(seed: int = 13) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A table [V, P] and weights [V], of which some are 0."""
    generator = np.random.default_rng(seed)
    weights = generator.random(V, np.float32)
    weights[[0, 3, V - 1]] = 0
    return generator.standard_normal((V, P), np.float32), weights


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> StaticTable:
    folder = tmp_path_factory.mktemp("table")
    write_static(folder, *numbers())
    return read_static(folder)


def mean(table: StaticTable, row: Sequence[int]) -> NDArray[np.float64]:
    """The formula, in float64, from the file as safetensors reads it."""
    held = {name: tensor.astype(np.float64) for name, tensor in load_file(table.path).items()}
    weights = held["weights"][row]
    if not weights.sum():
        return np.zeros(P)
    return (weights[:, None] * held["table"][row]).sum(axis=0) / weights.sum()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, dim=st.integers(1, P))
@example(rows=[[0, 3], [], [V - 1]], dim=P)
def test_a_text_is_the_weighted_mean_of_its_rows(
    table: StaticTable, rows: list[list[int]], dim: int
) -> None:
    vectors = table.embed(rows)

    assert (vectors.shape, vectors.dtype) == ((len(rows), P), np.float32)
    for vector, row in zip(vectors, rows, strict=True):
        np.testing.assert_allclose(vector, mean(table, row), rtol=0, atol=2e-6)
        np.testing.assert_allclose(table.embed([row])[0], vector, rtol=0, atol=1e-6)
    np.testing.assert_allclose(table.embed(rows, dim), vectors[:, :dim], rtol=0, atol=1e-6)


def test_rows_that_are_not_used_are_not_read(tmp_path: Path) -> None:
    write_static(tmp_path, *numbers())
    path = tmp_path / STATIC
    held = load_file(path)
    held["table"][5, 2] = np.nan
    save_file(held, path)

    table = read_static(tmp_path)

    assert np.isfinite(table.embed([[4, 6]])).all()
    assert table.embed([[5]], dim=2).any()
    with pytest.raises(UserError, match=r"layer_0.safetensors holds a number that is not finite"):
        table.embed([[4, 5, 6]])


def tensors(path: Path, **changed: NDArray[np.generic]) -> None:
    """Write the file again with other tensors."""
    save_file({**load_file(path), **changed}, path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "no json": lambda path: path.write_bytes(b"\x04" + bytes(7) + b"{{{{"),
    "a pickle": lambda path: path.write_bytes(b"\x80\x04\x95" + b"x" * 90),
    "no weights": lambda path: save_file({"table": np.ones((V, P), np.float16)}, path),
    "float64": lambda path: tensors(path, table=np.ones((V, P))),
    "one dim": lambda path: tensors(path, table=np.ones(V, np.float16)),
    "fewer weights": lambda path: tensors(path, weights=np.ones(V - 1, np.float32)),
    "half weights": lambda path: tensors(path, weights=np.ones(V, np.float16)),
    "nan": lambda path: tensors(path, weights=np.full(V, np.nan, np.float32)),
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_file_that_is_no_table_is_refused(name: str, tmp_path: Path) -> None:
    write_static(tmp_path, *numbers())
    DAMAGE[name](tmp_path / STATIC)
    with pytest.raises((UserError, OSError)):
        read_static(tmp_path)


# Of a model


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    folder = tmp_path_factory.mktemp("models")
    asked = {"query_prefix": "Read: ", "query_length": 9, "document_length": 20}
    asked |= {"document_prefix": "the text "}
    return make_fitted(make_model(tiny_backbone, folder / "model", **asked), folder / "fitted")


@pytest.mark.parametrize(
    ("side", "prefix", "length"), [("query", "Read: ", 9), ("document", "the text ", 20)]
)
def test_texts_become_the_ids_that_all_layers_read(
    side: Side, prefix: str, length: int, fitted: Path
) -> None:
    encoder = open_static(fitted)

    vectors = encoder.embed(TEXTS, side)

    ids = load_tokenizer(fitted)([prefix + text for text in TEXTS], length)
    assert max(map(len, ids)) == length
    np.testing.assert_array_equal(vectors, encoder.table.embed(ids))
    np.testing.assert_allclose(encoder.embed(TEXTS, side, 8), vectors[:, :8], atol=1e-6)


def test_threads_that_cut_at_different_lengths_do_not_disturb_each_other(fitted: Path) -> None:
    encoder = open_static(fitted)
    sides = get_args(Side) * 40
    expected = {side: encoder.embed([TEXT * 4], side) for side in get_args(Side)}

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda side: encoder.embed([TEXT * 4], side), sides))

    for side, vectors in zip(sides, found, strict=True):
        np.testing.assert_array_equal(vectors, expected[side])


def test_a_table_beside_an_index_serves_a_model_without_one(fitted: Path, tmp_path: Path) -> None:
    plain, exits = fitted.parent / "model", tmp_path / "exits"
    exits.mkdir()
    shutil.copy(fitted / STATIC, exits)

    vectors = open_static(plain, exits).embed(TEXTS)

    np.testing.assert_array_equal(vectors, open_static(fitted).embed(TEXTS))
    tokenizer = json.loads((plain / "tokenizer.json").read_text())
    (exits / "tokenizer.json").write_text(json.dumps(tokenizer | {"normalizer": None}))
    beside = open_static(plain, exits)  # its own tokenizer: capitals are unknown to it
    assert beside.tokenizer(["Read"], 9) != load_tokenizer(plain)(["Read"], 9)
    assert beside.tokenizer(["read"], 9) == load_tokenizer(plain)(["read"], 9)
