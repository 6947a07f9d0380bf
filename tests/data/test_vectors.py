import base64
import gzip
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import parquet

from m2dr.core.errors import UserError
from m2dr.data.vectors import open_vectors

Floats = NDArray[np.float32]
IDS = [f"d{row}" for row in range(7)]


@pytest.fixture
def matrix() -> Floats:
    return np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)


def _jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def _packed(vector: Floats) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _batch(docid: str, embedding: object) -> dict[str, Any]:
    """A line of the output of OpenAI's batches, in which `id` is that of the request."""
    body = {"object": "list", "data": [{"index": 0, "embedding": embedding}], "model": "m"}
    return {"id": f"batch_{docid}", "custom_id": docid, "error": None, "response": {"body": body}}


def _npz(folder: Path, matrix: Floats) -> Path:
    np.savez(folder / "v.npz", vectors=matrix, ids=np.array(IDS))
    return folder / "v.npz"


def _parquet(folder: Path, matrix: Floats) -> Path:
    column = pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), 3)
    parquet.write_table(pa.table({"_id": IDS, "emb": column, "text": IDS}), folder / "v.parquet")
    return folder / "v.parquet"


def _gzipped(folder: Path, matrix: Floats) -> Path:
    rows = [{"id": i, "vector": row.tolist()} for i, row in zip(IDS, matrix, strict=True)]
    with gzip.open(folder / "v.jsonl.gz", "wt") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in rows)
    return folder / "v.jsonl.gz"


def _rows(make: Callable[[str, Floats], dict[str, Any]]) -> Callable[[Path, Floats], Path]:
    return lambda folder, matrix: _jsonl(folder / "v.jsonl", list(map(make, IDS, matrix)))


def _npz_of_bytes(folder: Path, matrix: Floats) -> Path:
    np.savez(folder / "v.npz", vectors=matrix, ids=np.array([docid.encode() for docid in IDS]))
    return folder / "v.npz"


def _whole(
    make: Callable[[list[str], list[list[float]]], object],
) -> Callable[[Path, Floats], Path]:
    def write(folder: Path, matrix: Floats) -> Path:
        (folder / "v.json").write_text(json.dumps(make(IDS, matrix.tolist())))
        return folder / "v.json"

    return write


FORMS: dict[str, Callable[[Path, Floats], Path]] = {
    "npz": _npz,
    "npz of bytes": _npz_of_bytes,
    "Pinecone": _whole(lambda ids, vectors: {"vectors": [
        {"id": i, "values": vector, "metadata": {}} for i, vector in zip(ids, vectors, strict=True)
    ]}),
    "Chroma": _whole(lambda ids, vectors: {"ids": ids, "embeddings": vectors, "documents": None}),
    "texts too": _whole(lambda ids, vectors: {"ids": ids, "embeddings": vectors, "texts": ids}),
    "Milvus": _rows(lambda docid, vector: {"pk": docid, "vector": vector.tolist()}),
    "parquet": _parquet,
    "gzip": _gzipped,
    "OpenAI": _rows(lambda docid, vector: _batch(docid, vector.tolist())),
    "OpenAI in base64": _rows(lambda docid, vector: _batch(docid, _packed(vector))),
    "Google": _rows(
        lambda docid, vector: {"key": docid, "response": {"embedding": {"values": vector.tolist()}}}
    ),
    "Cohere": _rows(lambda docid, v: {"id": docid, "embeddings": {"float": [v.tolist()]}}),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_files_give_vectors_by_id(tmp_path: Path, matrix: Floats, form: str) -> None:
    vectors = open_vectors(FORMS[form](tmp_path, matrix))

    assert (vectors.count, vectors.width, list(vectors.ids or ())) == (7, 3, IDS)
    rows = vectors.of(["d4", "d1"], "queries")
    np.testing.assert_array_equal(vectors.finite(rows), matrix[[4, 1]])


@pytest.mark.parametrize("dtype", ["<f2", "<f8", ">f4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_gives_its_rows(tmp_path: Path, matrix: Floats, dtype: str, order: str) -> None:
    array = np.asarray(matrix, dtype, order=order)  # type: ignore[call-overload]  # two literals
    np.save(tmp_path / "X.npy", array)
    (tmp_path / "ids.txt").write_bytes("\r\n".join(IDS).encode("utf-8-sig"))

    named = open_vectors(tmp_path / "X.npy", tmp_path / "ids.txt")
    plain = open_vectors(tmp_path / "X.npy")

    np.testing.assert_array_equal(named.finite(named.of(["d6"], "queries")), array[[6]])
    np.testing.assert_array_equal(plain.finite(plain.of(IDS, "documents")), array)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["a", "b"], r"X\.npy has 3 vectors for 2 documents"),
        (["a", "b", "c", "d"], r"has no vector of 'd', and lacks 1 of 4 documents"),
    ],
)
def test_documents_and_vectors_are_as_many(
    tmp_path: Path, matrix: Floats, names: list[str], reason: str
) -> None:
    np.save(tmp_path / "X.npy", matrix[:3])
    (tmp_path / "ids.txt").write_text("a\nb\nc\n")
    ids = tmp_path / "ids.txt" if len(names) > 3 else None

    with pytest.raises(UserError, match=reason):
        open_vectors(tmp_path / "X.npy", ids).of(names, "documents", exactly=True)
    by_id = open_vectors(tmp_path / "X.npy", tmp_path / "ids.txt")
    with pytest.raises(UserError, match="a vector of 'c', which is none of the documents"):
        by_id.of(["b", "a"], "documents", exactly=True)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("a\nb\n", r"X\.npy has 3 vectors for 2 ids"),
        ("a\nb\na\n", r"has the id 'a' in rows 0 and 2"),
        ("a\n  \nc\n", r"ids\.txt, line 2: the id '  ' is empty, holds"),
    ],
)
def test_ids_that_are_not_one_per_vector_are_refused(
    tmp_path: Path, matrix: Floats, lines: str, reason: str
) -> None:
    np.save(tmp_path / "X.npy", matrix[:3])
    (tmp_path / "ids.txt").write_text(lines)

    with pytest.raises(UserError, match=reason):
        open_vectors(tmp_path / "X.npy", tmp_path / "ids.txt").of(["a"], "documents")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_is_named(tmp_path: Path, matrix: Floats, bad: float) -> None:
    matrix[5, 2] = bad
    vectors = open_vectors(_npz(tmp_path, matrix))

    with pytest.raises(UserError, match=r"v\.npz: the vector in row 5, of 'd5', is not finite"):
        vectors.finite(vectors.of(IDS, "documents"))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{"id": "a", "vector": [1, 2]}, {"id": "b", "vector": [1]}], "row 2: .* 1 dims, .* one 2"),
        ([{"id": "a", "vector": [1]}, {"vector": [1]}], "row 2: some rows have an id, and some"),
        ([{"id": "a", "vector": "AACA"}], "row 1: its vector is not one of numbers"),
        ([{"id": "a", "data": [{"embedding": [1]}, {"embedding": [2]}]}], "holds 2 vectors"),
        ([{"ids": ["a", "b", "c"], "data": [[1], [2]]}], "holds 2 vectors, and has 3 ids"),
        ([{"embedding": [1], "vector": [2]}], "row 1: it has vectors under embedding and vector"),
        (
            [{"index": 0, "vector": [1]}, {"index": 0, "vector": [2]}],
            "row 2: its index is 0, which",
        ),
        ([{"index": 0, "vector": [1]}, {"index": 2, "vector": [2]}], "2 with an index up to 2"),
        ([{"index": 0, "vector": [1]}, {"vector": [2]}], "has 2 vectors, and 1 with an index"),
        ([{"index": "a", "vector": [1]}], "row 1: its index is 'a'"),
        ([{"index": 0, "embedding": [[1], [2]]}], "it holds 2 vectors, and has one index"),
        ([{"custom_id": "d2", "response": {"status_code": 400, "body": {"error": {"message": "too long"}}}}], "row 1: 'd2' has no vector; the API says 'too long'"),
        ([{"custom_id": "d2", "response": None, "error": {"code": "expired"}}], "row 1: 'd2' .* 'expired'"),
        ([{"error": "no such model"}], "row 1: it has no vector; the API says 'no such model'"),
        ([], "holds float32 of shape"),
    ],
)  # fmt: skip
def test_a_malformed_row_is_named(tmp_path: Path, rows: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        open_vectors(_jsonl(tmp_path / "v.jsonl", rows))


def _answer(*indexes: int) -> dict[str, Any]:
    """An answer of an API, whose embeddings are unit vectors by their index."""
    rows = [
        {"object": "embedding", "index": n, "embedding": np.eye(4)[n].tolist()} for n in indexes
    ]
    return {"object": "list", "id": "embd-1", "data": rows, "model": "m"}


def _within(answer: dict[str, Any]) -> dict[str, Any]:
    return {"response": {"body": answer}}


ANSWERS: dict[str, tuple[str, str]] = {
    "answers": ("v.jsonl", "\n".join(map(json.dumps, (_answer(2, 0, 1), _answer(1, 0))))),
    "a list of answers": ("v.json", json.dumps([_answer(2, 0, 1), _answer(1, 0)])),
    "batches": (
        "v.jsonl", "\n".join(json.dumps(_within(_answer(*each))) for each in ((2, 0, 1), (1, 0)))
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", ANSWERS)
def test_vectors_of_an_answer_belong_to_the_texts_of_their_index(tmp_path: Path, form: str) -> None:
    name, text = ANSWERS[form]
    (tmp_path / name).write_text(text)

    vectors = open_vectors(tmp_path / name)

    np.testing.assert_array_equal(vectors.finite(np.arange(5)), np.eye(4)[[0, 1, 2, 0, 1]])


IN_ORDER: dict[str, Callable[[Any], Any]] = {
    "Ollama": lambda vectors: {"model": "m", "embeddings": vectors},
    "Gemini": lambda vectors: {"embeddings": [{"values": vector} for vector in vectors]},
    "Cohere v1": lambda vectors: {"id": "x", "texts": ["t"] * len(vectors), "embeddings": vectors},
    "Cohere v2": lambda vectors: {
        "id": "x", "embeddings": {"float": vectors}, "texts": ["t"] * len(vectors)
    },
    "TEI": list,
}  # fmt: skip


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("form", IN_ORDER)
def test_vectors_of_answers_without_an_index_are_taken_in_order(
    tmp_path: Path, form: str, indent: int | None
) -> None:
    make = IN_ORDER[form]
    several = [make(np.eye(4)[rows].tolist()) for rows in ([2, 0, 1], [3])]
    (tmp_path / "one.json").write_text(json.dumps(several[0], indent=indent))
    (tmp_path / "list.json").write_text(json.dumps(several, indent=indent))

    for path in (_jsonl(tmp_path / "v.jsonl", several), tmp_path / "list.json"):
        vectors = open_vectors(path)
        assert vectors.ids is None
        np.testing.assert_array_equal(vectors.finite(np.arange(4)), np.eye(4)[[2, 0, 1, 3]])
    one = open_vectors(tmp_path / "one.json")
    np.testing.assert_array_equal(one.finite(np.arange(3)), np.eye(4)[[2, 0, 1]])


def test_what_could_be_ids_is_named_where_the_order_counts(
    tmp_path: Path, matrix: Floats, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "v.npz", vectors=matrix, years=np.arange(7.0))
    rows = [{"primary": docid, "vector": [1.0]} for docid in IDS]
    (tmp_path / "v.json").write_text(json.dumps({"data": rows, "model": "m"}))

    for name, unread in (("v.npz", "years"), ("v.json", "primary")):
        assert open_vectors(tmp_path / name).ids is None
        said = capsys.readouterr().err
        assert f"{name}: its vectors are taken in order; not read are {unread}." in said


@pytest.mark.parametrize("indent", [None, 1])
def test_rows_alone_and_one_answer_go_by_their_index(tmp_path: Path, indent: int | None) -> None:
    rows = _answer(2, 0, 1)["data"]
    (tmp_path / "answer.json").write_text(json.dumps(_answer(2, 0, 1), indent=indent))

    for path in (_jsonl(tmp_path / "v.jsonl", rows), tmp_path / "answer.json"):
        np.testing.assert_array_equal(open_vectors(path).finite(np.arange(3)), np.eye(4)[:3])
    named = [{"id": f"d{number}", **row} for number, row in enumerate(rows)]
    by_id = open_vectors(_jsonl(tmp_path / "n.jsonl", named))
    np.testing.assert_array_equal(by_id.finite(by_id.of(["d0"], "documents")), np.eye(4)[[2]])


def test_arrays_that_could_both_be_the_vectors_are_refused(tmp_path: Path, matrix: Floats) -> None:
    np.savez(tmp_path / "v.npz", queries=matrix, documents=matrix)

    with pytest.raises(UserError, match="2 arrays of vectors"):
        open_vectors(tmp_path / "v.npz")


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
def test_a_file_that_is_no_array_is_refused_and_not_run(
    tmp_path: Path, matrix: Floats, harm: str
) -> None:
    np.save(tmp_path / "X.npy", matrix)
    (tmp_path / "X.npy").write_bytes(HARMS[harm]((tmp_path / "X.npy").read_bytes()))

    with pytest.raises(UserError, match=r"X\.npy cannot be read"):
        open_vectors(tmp_path / "X.npy")
