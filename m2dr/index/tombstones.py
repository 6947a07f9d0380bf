"""Rows of a store that were deleted and are still in its files, and what numbers the others have.

Outside of these files a row is the number of a document among those that are left.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from m2dr.core.errors import UserError
from m2dr.core.files import read_regular, write_bytes
from m2dr.index.manifest import DeletedRows

# Shapes in this file: N rows in the files, D of them deleted, n any number.

Longs = NDArray[np.int64]

_NOTHING: Longs = np.empty(0, np.int64)


@dataclass(frozen=True)
class Tombstones:
    """Deleted rows.

    >>> gone = Tombstones(np.array([1, 4]))
    >>> gone.stored([0, 1, 2, 3]).tolist(), gone.left([0, 2, 3, 5, -1]).tolist()
    ([0, 2, 3, 5], [0, 1, 2, 3, -1])

    Attributes:
        rows: [D] of the files, increasing.
    """

    rows: Longs = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.rows)

    def stored(self, rows: ArrayLike) -> Longs:
        """Return the rows of the files [n] of rows among what is left [n]."""
        wanted = np.asarray(rows, np.int64)
        return wanted + np.searchsorted(self._before, wanted, side="right")

    def left(self, rows: ArrayLike) -> Longs:
        """Return the rows among what is left of rows of the files, any shape; -1 stays -1."""
        found = np.asarray(rows, np.int64)
        return found - np.searchsorted(self.rows, found)

    def kept(self, start: int, stop: int) -> Longs | None:
        """Return which rows from `start` to below `stop` are left, from 0; None for all."""
        first, last = np.searchsorted(self.rows, (start, stop))
        if first == last:
            return None
        return np.delete(np.arange(stop - start), self.rows[first:last] - start)

    def remaining(self, rows: range) -> list[int]:
        """Return those rows of the files, out of some, that are left."""
        kept = self.kept(rows.start, rows.stop)
        return list(rows) if kept is None else [rows.start + int(row) for row in kept]

    def bitmap(self, rows: int) -> NDArray[np.uint8]:
        """Return a bit per row of the files, lowest first; 1 for those that are left."""
        bits = np.ones(rows, np.uint8)
        bits[self.rows] = 0
        return np.packbits(bits, bitorder="little")

    def union(self, rows: Iterable[int]) -> "Tombstones":
        """Return these and more rows of the files."""
        return Tombstones(np.union1d(self.rows, np.fromiter(rows, np.int64)))

    @cached_property
    def _before(self) -> Longs:
        """Rows that are left in front of each deleted one, [D]."""
        return self.rows - np.arange(len(self.rows))

    def write(self, folder: Path, name: str) -> DeletedRows:
        """Write the file, and return its record."""
        data = self.rows.astype("<i8").tobytes()
        write_bytes(folder / name, data)
        return DeletedRows(name, len(self.rows), sha256(data).hexdigest())


def read_tombstones(
    folder: Path, record: DeletedRows | None, rows: int, remedy: Callable[[], str]
) -> Tombstones:
    """Read the deleted rows that a manifest names; none where it names none.

    Args:
        folder: of the store or index.
        record: from the manifest.
        rows: of the files.
        remedy: returns "with: " and the command that makes the folder again.

    Raises:
        UserError: the file is missing or is not the one that was written.
    """
    if record is None:
        return Tombstones()
    path = folder / record.name
    try:
        data = read_regular(path)
    except OSError as error:
        problem = f"{path} cannot be read ({error.strerror})"
    else:
        found = np.frombuffer(data, "<i8") if len(data) == 8 * record.rows else _NOTHING
        if sha256(data).hexdigest() == record.sha256 and _fits(found, rows):
            return Tombstones(found.astype(np.int64))
        problem = f"{path} is not the file of deleted documents that was written"
    raise UserError(f"{problem}. Restore the file, or make it again {remedy()}")


def _fits(found: NDArray[np.int64], rows: int) -> bool:
    """Whether rows increase, and are below `rows`."""
    bounds = np.concatenate([[-1], found, [rows]])
    return bool((np.diff(bounds) > 0).all())
