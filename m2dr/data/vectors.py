"""Vectors that another tool made: .npy, .npz, JSONL as APIs answer, parquet, or `hf:ID`.

Shapes: N vectors of D dims, n of them.
"""

from array import array
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from m2dr.core.arrays import Array, Float32, Floats, Int64
from m2dr.core.errors import UserError, counted
from m2dr.data.dataset import DOCUMENT_IDS
from m2dr.data.qrels import QUERY_IDS
from m2dr.data.tables import Row, column, id_of, is_table, optional, parsed, read_lines, suffix_of

IDS = ("custom_id", "key", *DOCUMENT_IDS, *QUERY_IDS)
# Keys of a vector, and those above it in the answers of OpenAI, Google, Cohere and others.
VECTORS = ("embedding", "embeddings", "vector", "vectors", "emb", "values", "float") + (
    ("response", "body", "data")
)


@dataclass(frozen=True)
class Vectors:
    """Vectors of another tool, read some rows at a time.

    Attributes:
        path: for messages.
        count: N.
        width: D.
        read: returns the vectors of rows [n], [n, D].
        ids: of the rows; None where they have none.
    """

    path: Path
    count: int
    width: int
    read: Callable[[Int64], Floats]
    ids: Sequence[str] | None

    def __post_init__(self) -> None:
        if self.ids is not None and len(self.ids) != self.count:
            raise self._miscounted(len(self.ids), "ids")

    def of(self, names: Sequence[str], what: str, exactly: bool = False) -> Int64:
        """Return the rows of names, [n]: by their ids, or else in order.

        Args:
            names: n of them.
            what: they are names of, in the plural.
            exactly: whether every vector must have one of the names.

        Raises:
            UserError: a name has no vector or two, or there is a vector too many.
        """
        if self.ids is None:
            if len(names) != self.count:
                raise self._miscounted(len(names), what)
            return np.arange(self.count)
        rows = {name: row for row, name in enumerate(self.ids)}
        if len(rows) < self.count:
            row = next(row for row, name in enumerate(self.ids) if rows[name] != row)
            name = self.ids[row]
            raise UserError(f"{self.path} has the id {name!r} in rows {row} and {rows[name]}.")
        if lacking := [name for name in names if name not in rows]:
            share = f"{len(lacking):,} of {counted(len(names), what, ',')}"
            raise UserError(f"{self.path} has no vector of {lacking[0]!r}, and lacks {share}.")
        if exactly and self.count > len(names):
            other = min(rows.keys() - set(names))
            raise UserError(f"{self.path} has a vector of {other!r}, which is none of the {what}.")
        return np.fromiter((rows[name] for name in names), np.int64, len(names))

    def finite(self, rows: Int64) -> Float32:
        """Return the vectors of rows [n], [n, D].

        Raises:
            UserError: a value is not a finite number.
        """
        vectors = np.asarray(self.read(rows), np.float32)
        for row in rows[~np.isfinite(vectors).all(axis=1)][:1]:
            name = f", of {self.ids[row]!r}," if self.ids else ""
            raise UserError(f"{self.path}: the vector in row {row}{name} is not finite.")
        return vectors

    def _miscounted(self, number: int, what: str) -> UserError:
        vectors, others = counted(self.count, "vectors", ","), counted(number, what, ",")
        return UserError(f"{self.path} has {vectors} for {others}.")


def open_vectors(path: Path, ids: Path | None = None) -> Vectors:
    """Open a file of vectors; an array of .npy is read through the file, others into memory.

    Args:
        path: .npy of shape [N, D]; .npz with such an array and perhaps one of ids; or a table of
            rows with a vector, in decimals or in base64, and perhaps an id.
        ids: of the rows, one per line, in place of those of the file.

    Raises:
        UserError: it cannot be read, or there are not as many ids as vectors.
    """
    names: Sequence[str] | None
    if suffix_of(path) in (".npy", ".npz"):
        matrix, names = _arrays(path)
    elif is_table(path):
        matrix, names = _table(path)
    else:
        raise UserError(f"{path} is no .npy, .npz, .jsonl or .parquet file of vectors.")
    if matrix.ndim != 2 or matrix.dtype.kind != "f" or 0 in matrix.shape:
        shape = f"{matrix.dtype} of shape {list(matrix.shape)}"
        raise UserError(f"{path} holds {shape}, not floats of shape [vectors, dims].")
    count, width = matrix.shape
    return Vectors(path, count, width, matrix.__getitem__, read_ids(ids) if ids else names)


def read_ids(path: Path) -> list[str]:
    """Read the ids of rows, one per line.

    Raises:
        UserError: an id is empty or holds white space, which run files cannot carry.
    """
    ids = []
    for number, line in enumerate(read_lines(path, blank=True), 1):
        try:
            ids.append(id_of(line))
        except ValueError as error:
            raise UserError(f"{path}, line {number}: {error}.") from None
    return ids


def _arrays(path: Path) -> tuple[Array, Sequence[str] | None]:
    try:  # no pickle is read: opening one would run its code
        if suffix_of(path) == ".npy":
            return np.lib.format.open_memmap(path, mode="r"), None
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = list(archive.values())
        matrix = next((each for each in arrays if each.ndim == 2), arrays[0])
        ids = [each for each in arrays if each.ndim == 1 and each.dtype.kind in "Uiu"]
        return matrix, [id_of(each) for each in ids[0].tolist()] if ids else None
    except Exception as error:  # numpy raises a dozen kinds for a damaged file
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}.") from error


def _table(path: Path) -> tuple[Floats, Sequence[str] | None]:
    flat, names, width = array("f"), list[str](), 0

    def add(row: Row) -> None:
        nonlocal width
        vector, name = vector_of(row), optional(row, IDS)
        width = width or len(vector)
        if len(vector) != width:
            raise ValueError(f"its vector has {len(vector)} dims, and the first one {width}")
        if (name is None) == bool(names) and flat:
            raise ValueError("some rows have an id, and some have none")
        flat.frombytes(vector.tobytes())
        if name is not None:
            names.append(id_of(name))

    for _ in parsed(path, add):
        pass
    return np.frombuffer(flat, np.float32).reshape(-1, width or 1), names or None


def vector_of(row: Row) -> Float32:
    """Return the vector of a row, [D], as files and the answers of APIs hold it.

    Raises:
        ValueError: there is none or several, or it is not of numbers.

    >>> vector_of({"response": {"body": {"data": [{"embedding": "AACAPwAAAEA="}]}}}).tolist()
    [1.0, 2.0]
    """
    value: Any = row
    while isinstance(value, Mapping) or (value and isinstance(value, list) and _nests(value[0])):
        if isinstance(value, list) and len(value) > 1:
            raise ValueError(f"it holds {len(value)} vectors, and a row has one")
        value = value[0] if isinstance(value, list) else value[column(dict(value), VECTORS)]
    try:
        packed = isinstance(value, str)
        values = np.frombuffer(b64decode(value, validate=True), "<f4") if packed else value
        vector = np.asarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(f"its vector is not one of numbers: {error}") from None
    if vector.ndim != 1 or not vector.size:
        raise ValueError(f"its vector is {value!r:.100}")
    return vector


def _nests(value: object) -> bool:
    return isinstance(value, Mapping | list)
