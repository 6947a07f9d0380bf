import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray
from world import piped

from m2dr.core.errors import UserError
from m2dr.index.faiss_build import build_index, open_index
from m2dr.index.import_vectors import ImportedVectors, import_store, open_npy, open_pyserini
from m2dr.index.manifest import StorePlan
from m2dr.index.store import open_store

Floats = NDArray[np.float32]
Files = tuple[Path, Path]  # vectors and ids


@pytest.fixture
def files(tmp_path: Path, vectors: Floats) -> Files:
    np.save(tmp_path / "X.npy", vectors)
    (tmp_path / "ids.txt").write_text("".join(f"d{row}\n" for row in range(len(vectors))))
    return tmp_path / "X.npy", tmp_path / "ids.txt"


@pytest.fixture
def plan32(plan: StorePlan) -> StorePlan:
    return replace(plan, dtype="f32")


def pyserini(folder: Path, vectors: Floats, recipe: str = "Flat") -> Path:
    """A folder as Pyserini's encoder writes it."""
    index = faiss.index_factory(vectors.shape[1], recipe, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    folder.mkdir()
    faiss.write_index(index, str(folder / "index"))
    (folder / "docid").write_text("".join(f"d{row}\n" for row in range(len(vectors))))
    return folder


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_store_of_an_array_holds_its_vectors(
    tmp_path: Path, files: Files, vectors: Floats, plan32: StorePlan, dtype: str, order: str
) -> None:
    np.save(files[0], np.asarray(vectors, dtype, order=order))  # type: ignore[call-overload]  # two literals

    store = import_store(open_npy(*files), tmp_path / "store", plan32)

    assert list(store.docids) == [f"d{row}" for row in range(35)]
    np.testing.assert_array_equal(store.rows(range(35)), vectors.astype(dtype).astype("f4"))
    assert store.manifest.label == plan32.label


@pytest.mark.parametrize("recipe", ["Flat", "HNSW8", "IVF4,Flat"])
def test_a_store_of_a_pyserini_folder_holds_its_vectors(
    tmp_path: Path, vectors: Floats, plan32: StorePlan, recipe: str
) -> None:
    folder = pyserini(tmp_path / "theirs", vectors, recipe)

    store = import_store(open_pyserini(folder), tmp_path / "store", plan32)

    assert list(store.docids) == [f"d{row}" for row in range(35)]
    np.testing.assert_array_equal(store.rows(range(35)), vectors)


def test_an_index_of_m2dr_imports_as_what_it_was_cut_from(tmp_path: Path, store, plan32) -> None:
    folder = build_index(store, 8)

    again = import_store(open_pyserini(folder), tmp_path / "again", replace(plan32, width=8))

    query = np.random.default_rng(7).normal(size=(1, 16)).astype(np.float32)
    scores, rows = open_index(folder).search(query, 35)
    theirs = open_index(build_index(again, 8)).search(query, 35)
    np.testing.assert_array_equal(theirs[1], rows)
    np.testing.assert_allclose(theirs[0], scores, atol=1e-6)


def test_importing_again_writes_nothing(tmp_path: Path, files: Files, plan: StorePlan) -> None:
    folder = tmp_path / "store"
    import_store(open_npy(*files), folder, plan)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}

    told: list[int] = []
    import_store(open_npy(*files), folder, plan, progress=told.append)

    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert told == [10, 10, 10, 5]


def test_an_import_goes_on_where_it_was_stopped(
    tmp_path: Path, files: Files, vectors: Floats, plan32: StorePlan
) -> None:
    whole, folder = open_npy(*files), tmp_path / "store"

    def read(start: int, stop: int) -> Floats:
        if start == 20:
            raise KeyboardInterrupt
        return whole.read(start, stop)

    with pytest.raises(KeyboardInterrupt):
        import_store(replace(whole, read=read), folder, plan32)
    with pytest.raises(UserError, match="is half-written: 2 shards with 20 documents"):
        open_store(folder)
    first = (folder / "vectors-00000.f32").stat().st_mtime_ns

    store = import_store(whole, folder, plan32)

    assert (folder / "vectors-00000.f32").stat().st_mtime_ns == first
    np.testing.assert_array_equal(store.rows(range(35)), vectors)


@pytest.mark.parametrize("rows", [35, 20, 40])
def test_other_vectors_do_not_mix_with_those_of_the_folder(
    tmp_path: Path, files: Files, vectors: Floats, plan: StorePlan, rows: int
) -> None:
    import_store(open_npy(*files), tmp_path / "store", plan)
    np.save(files[0], np.resize(vectors + 1, (rows, 16)))
    files[1].write_text("".join(f"d{row}\n" for row in range(rows)))

    with pytest.raises(UserError, match="holds other vectors than these: .* --overwrite"):
        import_store(open_npy(*files), tmp_path / "store", plan)
    store = import_store(open_npy(*files), tmp_path / "store", plan, overwrite=True)
    assert store.documents == rows


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_is_named(
    tmp_path: Path, files: Files, vectors: Floats, plan: StorePlan, bad: float
) -> None:
    vectors[23, 5] = bad
    np.save(files[0], vectors)

    with pytest.raises(UserError, match=r"X\.npy, row 23: the vector of document 'd23' is not fin"):
        import_store(open_npy(*files), tmp_path / "store", plan)
    with pytest.raises(UserError, match="is half-written"):
        open_store(tmp_path / "store")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("a\nb\n", r"ids\.txt has 2 ids for the 3 vectors of .*X\.npy"),
        ("a\nb\nc\nd\n", r"has 4 ids for the 3 vectors"),
        ("", r"has 0 ids for the 3 vectors"),
        ("a\nb\na\n", r"ids\.txt, line 3: the id 'a' was on line 1 too"),
        ("a\n\nc\n", r"ids\.txt, line 2: the id is empty"),
        ("a\n  \nc\n", r"ids\.txt, line 2: the id is empty"),
        (b"a\n\xff\nc\n", r"ids\.txt, line 2: is not UTF-8"),
        ("a\nb\0\nc\n", r"ids\.txt, line 2: the id holds '\\x00', and run files can carry neither"),
        ("a\nb\nc\tc\n", r"ids\.txt, line 3: the id holds '\\t'"),
        ("a\nb b\nc\n", r"ids\.txt, line 2: the id holds ' '"),
        ("a\nb\u00a0\nc\n", r"ids\.txt, line 2: the id holds '\\xa0'"),
        ("a\rb\n\nc\nd\n", r"has 4 ids for the 3 vectors"),
        ("a\rb\nc\nd\n", r"ids\.txt, line 1: the id holds '\\r'"),
    ],
)
def test_ids_that_are_not_one_per_vector_are_refused(
    files: Files, vectors: Floats, lines: str | bytes, reason: str
) -> None:
    np.save(files[0], vectors[:3])
    files[1].write_bytes(lines.encode() if isinstance(lines, str) else lines)

    with pytest.raises(UserError, match=reason):
        open_npy(*files)


@pytest.mark.parametrize("lines", ["a\nb\nc", "a\r\nb\r\nc\r\n", "\ufeffa\r\nb\nc\n"])
def test_ids_may_end_as_other_systems_end_lines(files: Files, vectors: Floats, lines: str) -> None:
    np.save(files[0], vectors[:3])
    files[1].write_bytes(lines.encode())

    assert list(open_npy(*files).docids) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros(5, "f4"), r"holds float32 of shape \[5\], and vectors are floats of shape"),
        (np.zeros((2, 3, 4), "f4"), r"of shape \[2, 3, 4\]"),
        (np.zeros((0, 4), "f4"), r"of shape \[0, 4\]"),
        (np.zeros((4, 0), "f4"), r"of shape \[4, 0\]"),
        (np.zeros((4, 4), "i1"), r"holds int8 of shape"),
        (np.zeros((4, 4), "c8"), r"holds complex64"),
        (np.zeros((4, 4), "U3"), r"holds <U3"),
        (np.array([[1.0], "a", None], dtype=object), "cannot be read as an array"),
    ],
)
def test_an_array_that_is_no_matrix_of_floats_is_refused(
    files: Files, array: NDArray[np.generic], reason: str
) -> None:
    np.save(files[0], array)

    with pytest.raises(UserError, match=reason):
        open_npy(*files)


def _npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.zeros((2, 2)))


HARMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "absent": (Path.unlink, r"X\.npy cannot be read \(No such file"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be read as an array .*empty|No data"),
    "text": (lambda path: path.write_text("1 2 3"), r"\(it does not begin as one\)"),
    "cut short": (lambda path: path.write_bytes(path.read_bytes()[:-9]), "cannot be read as an arr"),
    "cut in the header": (lambda path: path.write_bytes(path.read_bytes()[:40]), "cannot be read as"),
    "spoilt header": (
        lambda path: path.write_bytes(path.read_bytes().replace(b"'shape'", b"'shape:")),
        "cannot be read as an array",
    ),
    "an archive": (_npz, "is an archive of arrays"),
}  # fmt: skip


@pytest.mark.parametrize("harm", HARMS)
def test_a_file_that_is_no_array_is_a_sentence(files: Files, harm: str) -> None:
    spoil, reason = HARMS[harm]
    spoil(files[0])

    with pytest.raises(UserError, match=reason):
        open_npy(*files)


class _Trap:
    def __reduce__(self) -> tuple[object, ...]:
        return (sys.exit, ("a pickle was opened",))


@pytest.mark.parametrize("name", ["corpus.pkl", "embeddings.npy", "embeddings.pt"])
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_is_refused_by_name_and_never_opened(
    files: Files, tmp_path: Path, name: str, protocol: int
) -> None:
    path = tmp_path / name
    path.write_bytes(pickle.dumps(_Trap(), protocol=protocol))

    with pytest.raises(UserError, match=r"is a pickle, as Tevatron|does not begin as one") as told:
        open_npy(path, files[1])
    if path.suffix != ".npy" or protocol:
        assert "numpy.save('X.npy', vectors)" in str(told.value)


def test_a_folder_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no Pyserini folder: it has no file index"):
        open_pyserini(tmp_path)


def test_an_index_that_faiss_cannot_read_is_refused(tmp_path: Path, vectors: Floats) -> None:
    folder = pyserini(tmp_path / "theirs", vectors)
    for data in (b"garbage", b"", (folder / "index").read_bytes()[:-100]):
        (folder / "index").write_bytes(data)
        with pytest.raises(UserError, match="is no index that FAISS reads"):
            open_pyserini(folder)


def test_an_index_that_keeps_no_vectors_is_refused(tmp_path: Path, vectors: Floats) -> None:
    folder = pyserini(tmp_path / "theirs", vectors)
    index = faiss.IndexIDMap(faiss.IndexFlatIP(16))
    index.add_with_ids(vectors, np.arange(35)[::-1].copy())
    faiss.write_index(index, str(folder / "index"))

    with pytest.raises(UserError, match="does not give its vectors back .*--vectors X.npy"):
        open_pyserini(folder)


def test_an_empty_index_is_refused(tmp_path: Path) -> None:
    folder = pyserini(tmp_path / "theirs", np.empty((0, 16), np.float32))

    with pytest.raises(UserError, match="index holds no vectors"):
        open_pyserini(folder)


def test_rows_are_read_a_shard_at_a_time(tmp_path: Path, files: Files, plan: StorePlan) -> None:
    whole, asked = open_npy(*files), []

    def read(start: int, stop: int) -> Floats:
        asked.append(stop - start)
        return whole.read(start, stop)

    import_store(
        ImportedVectors(whole.path, whole.docids, whole.width, read), tmp_path / "store", plan
    )

    assert asked == [10, 10, 10, 5]


def test_vectors_from_a_pipe_are_refused_and_ids_from_one_are_read(files: Files) -> None:
    pipe = piped(files[1].read_bytes())

    assert list(open_npy(files[0], pipe).docids) == files[1].read_text().splitlines()
    with pytest.raises(UserError, match=r"is a pipe or a device, .* Write its content to a"):
        open_npy(pipe, files[1])
