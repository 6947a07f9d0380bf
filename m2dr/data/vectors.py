"""Vectors that another tool made: .npy, .npz, JSONL as APIs answer, parquet, or `hf:ID`.

Shapes: N vectors of D dims, n of them.
"""

from array import array
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from m2dr.core.arrays import Array, Float32, Floats, Int64
from m2dr.core.errors import UserError, counted
from m2dr.core.progress import say_once
from m2dr.data.roles import VECTOR
from m2dr.data.tables import Row, id_of, is_table, parsed, read_lines, suffix_of


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
        matrix, names, unread = _arrays(path)
    elif is_table(path):
        matrix, names, unread = _table(path)
    else:
        raise UserError(f"{path} is no .npy, .npz, .jsonl or .parquet file of vectors.")
    if matrix.ndim != 2 or matrix.dtype.kind != "f" or 0 in matrix.shape:
        shape = f"{matrix.dtype} of shape {list(matrix.shape)}"
        raise UserError(f"{path} holds {shape}, not floats of shape [vectors, dims].")
    if unread and not (ids or names):
        say_once(f"{path}: its vectors are taken in order; not read are {', '.join(unread)}.")
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


def _arrays(path: Path) -> tuple[Array, Sequence[str] | None, Iterable[str]]:
    try:  # no pickle is read: opening one would run its code
        if suffix_of(path) == ".npy":
            return np.lib.format.open_memmap(path, mode="r"), None, ()
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = dict(archive)
        matrices = [name for name, each in arrays.items() if each.ndim == 2]
        ids = [n for n, each in arrays.items() if each.ndim == 1 and each.dtype.kind in "USiu"]
        if len(matrices) > 1 or len(ids) > 1:
            raise ValueError(f"it has {len(matrices)} arrays of vectors and {len(ids)} of ids")
        matrix = arrays.pop((matrices or list(arrays))[0])
        if not ids:
            return matrix, None, arrays
        names = arrays.pop(ids[0]).tolist()
        return matrix, [id_of(n.decode() if isinstance(n, bytes) else n) for n in names], arrays
    except Exception as error:  # numpy raises a dozen kinds for a damaged file
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}.") from error


def _table(path: Path) -> tuple[Floats, Sequence[str] | None, Iterable[str]]:
    flat, names, width = array("f"), list[str](), 0
    unread = dict[str, None]()
    places: dict[int, int] = {}  # of vectors, by what the rows or answers say of their order

    def add(row: Row) -> None:
        nonlocal width
        try:
            found, count = vectors_of_row(row, unread), len(flat) // (width or 1)
        except ValueError:
            if not (told := _refusal(row)):
                raise
            whose = "it" if (name := _ids_beside(row)) is None else repr(name)
            raise ValueError(f"{whose} has no vector; the API says {told!r:.300}") from None
        # Of an answer the numbers begin at its first vector, of rows at that of the file.
        first = 0 if "index" in row else count
        for number, (name, index, vector) in enumerate(found):
            if (name is None) == bool(names) and flat:
                raise ValueError("some rows have an id, and some have none")
            width = width or len(vector)
            if len(vector) != width:
                raise ValueError(f"its vector has {len(vector)} dims, and the first one {width}")
            flat.frombytes(vector.tobytes())
            if name is None and index is not None:
                if first + index in places:
                    raise ValueError(f"its index is {index}, which came before")
                places[first + index] = count + number
            if name is not None:
                names.append(id_of(name))

    for _ in parsed(path, add):
        pass
    matrix = np.frombuffer(flat, np.float32).reshape(-1, width or 1)
    if not places:
        return matrix, names or None, unread
    if sorted(places) != list(range(len(matrix))):
        count, last = counted(len(matrix), "vectors", ","), max(places)
        raise UserError(f"{path} has {count}, and {len(places):,} with an index up to {last:,}.")
    return matrix[[places[place] for place in range(len(matrix))]], None, ()


def vectors_of_row(row: Row, unread: dict[str, None]) -> list[tuple[object, int | None, Float32]]:
    """Return the vectors [D] of a row, as files and the answers of APIs hold them.

    Each stands behind its id, and its number among the texts that were asked for, where the row
    has such. Columns without a role are added to `unread`.

    Raises:
        ValueError: there is none, or there are several side by side or of one such number or id;
            or one is not of numbers.

    >>> vectors_of_row({"response": {"body": {"data": [{"embedding": "AACAPwAAAEA="}]}}}, {})
    [(None, None, array([1., 2.], dtype=float32))]
    """
    value: Any = row
    index = name = None
    while isinstance(value, Mapping) or (value and isinstance(value, list) and _nests(value[0])):
        if isinstance(value, Mapping):
            index = value.get("index", index)
            name = _ids_beside(value) if name is None else name
            unread.update(dict.fromkeys(VECTOR.of(value)[1]))
            value = value[_vector_column(dict(value))]
        elif len(value) == 1:
            value = value[0]
        elif index is not None:
            raise ValueError(f"it holds {len(value)} vectors, and has one index")
        else:
            within = [{VECTOR["vector"][0]: each} for each in value]
            found = [one for each in within for one in vectors_of_row(each, unread)]
            break
    else:
        if index is not None and (not isinstance(index, int) or index < 0):
            raise ValueError(f"its index is {index!r:.100}, and not a number from 0")
        found = [(None, index, _vector(value))]
    if name is None:
        return found
    names = name if isinstance(name, list) else [name]
    if len(names) != len(found):
        raise ValueError(f"it holds {len(found)} vectors, and has {counted(len(names), 'ids')}")
    return [(each, *one[1:]) for each, one in zip(names, found, strict=True)]


def _ids_beside(row: Mapping[str, Any]) -> Any:
    """Return the id of a row, or a list of those of its vectors; None where it has none."""
    found = VECTOR.of(row)[0].get("id")
    # An answer of an API may have an id of its own.
    is_answer = row.get("object") == "list" or isinstance(row.get("texts"), list)
    return None if is_answer and not isinstance(found, list) else found


def _refusal(row: Row) -> str:
    """Return what an API says in place of a vector, as a line of a batch holds it; or nothing."""
    value: Any = row
    for name in ("response", "body", ""):
        error = value.get("error") if isinstance(value, Mapping) else None
        if error:
            return str(error.get("message", error) if isinstance(error, Mapping) else error)
        value = value.get(name) if isinstance(value, Mapping) else None
    return ""


def _vector_column(row: Row) -> str:
    """Return the column of the vector, which no other column may be too."""
    given = [name for name in VECTOR["vector"] if row.get(name) is not None]
    if len(given) > 1:
        given = [name for name in given if _holds_vector(row[name])] or given
        if len(given) > 1:
            raise ValueError(f"it has vectors under {' and '.join(given)}; leave one of them")
    VECTOR.of(row, "vector")
    return given[0]


def _holds_vector(value: object) -> bool:
    try:
        return bool(vectors_of_row({VECTOR["vector"][0]: value}, {}))
    except ValueError:
        return False


def _vector(value: object) -> Float32:
    """Return a vector in decimals or in base64."""
    try:
        if isinstance(value, str):
            vector = np.frombuffer(b64decode(value, validate=True), "<f4")
        else:
            vector = np.array(value, np.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(f"its vector is not one of numbers: {error}") from None
    if vector.ndim != 1 or not vector.size:
        raise ValueError(f"its vector is {value!r:.100}")
    return vector


def _nests(value: object) -> bool:
    return isinstance(value, Mapping | list)
