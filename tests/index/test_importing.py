import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.index.importing import open_npy, open_pyserini

Floats = NDArray[np.float32]
Files = tuple[Path, Path]  # vectors and ids


@pytest.fixture
def files(tmp_path: Path, vectors: Floats) -> Files:
    np.save(tmp_path / "X.npy", vectors)
    (tmp_path / "ids.txt").write_text("".join(f"d{row}\n" for row in range(len(vectors))))
    return tmp_path / "X.npy", tmp_path / "ids.txt"


def pyserini(folder: Path, vectors: Floats, recipe: str = "Flat") -> Path:
    """A folder as Pyserini's encoder writes it."""
    index = faiss.index_factory(vectors.shape[1], recipe, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    folder.mkdir()
    faiss.write_index(index, str(folder / "index"))
    (folder / "docid").write_text("".join(f"d{row}\n" for row in range(len(vectors))))
    return folder


@pytest.mark.parametrize("dtype", ["<f2", "<f8", ">f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_gives_its_vectors(files: Files, vectors: Floats, dtype: str, order: str) -> None:
    np.save(files[0], np.asarray(vectors, dtype, order=order))  # type: ignore[call-overload]  # two literals

    found = open_npy(*files)

    assert list(found.docids) == [f"d{row}" for row in range(35)]
    np.testing.assert_array_equal(found.checked(range(3, 9)), vectors[3:9].astype(dtype))


@pytest.mark.parametrize("recipe", ["Flat", "HNSW8", "IVF4,Flat"])
def test_a_pyserini_folder_gives_its_vectors(tmp_path: Path, vectors: Floats, recipe: str) -> None:
    found = open_pyserini(pyserini(tmp_path / "theirs", vectors, recipe))

    assert list(found.docids) == [f"d{row}" for row in range(35)]
    np.testing.assert_array_equal(found.checked(range(35)), vectors)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_is_named(files: Files, vectors: Floats, bad: float) -> None:
    vectors[23, 5] = bad
    np.save(files[0], vectors)

    with pytest.raises(UserError, match=r"X\.npy, row 23: the vector of document 'd23' is not fin"):
        open_npy(*files).checked(range(20, 30))


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("a\nb\n", r"ids\.txt has 2 ids for the 3 vectors of .*X\.npy"),
        ("a\nb\na\n", r"ids\.txt, line 3: the id 'a' was on line 1 too"),
        ("a\n  \nc\n", r"ids\.txt, line 2: the id '  ' is empty or holds"),
        ("a\nb\0\nc\n", r"ids\.txt, line 2: the id 'b\\x00' is empty or holds"),
    ],
)
def test_ids_that_are_not_one_per_vector_are_refused(
    files: Files, vectors: Floats, lines: str | bytes, reason: str
) -> None:
    np.save(files[0], vectors[:3])
    files[1].write_bytes(lines.encode() if isinstance(lines, str) else lines)

    with pytest.raises(UserError, match=reason):
        open_npy(*files)


class _Trap:
    def __reduce__(self) -> tuple[object, ...]:
        return (sys.exit, ("a pickle was opened",))


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "text": lambda _: b"1 2 3",
    "cut short": lambda data: data[:-9],
    "cut in the header": lambda data: data[:40],
    "spoilt header": lambda data: data.replace(b"'shape'", b"'shape:"),
    "archive": lambda _: b"PK\x03\x04",
    "pickle": lambda _: pickle.dumps(_Trap(), protocol=5),
    "old pickle": lambda _: pickle.dumps(_Trap(), protocol=0),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_file_that_is_no_array_is_refused_and_not_run(files: Files, harm: str) -> None:
    files[0].write_bytes(HARMS[harm](files[0].read_bytes()))

    with pytest.raises(UserError, match=r"X\.npy (cannot be read|is no array that numpy)"):
        open_npy(*files)
