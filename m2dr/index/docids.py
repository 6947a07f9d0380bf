"""The docids of a store or index: one a line, in the order of the rows."""

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import overload

import numpy as np

from m2dr.core.arrays import Int64
from m2dr.core.errors import UserError, counted

_NEWLINE = 10
_WORDS = 8  # of eight bytes: longer docids are sorted as strings, which takes less memory


class Docids(Sequence[str]):
    r"""The docids of a file, which stay bytes until asked for: 8 bytes each beside the file's own.

    >>> docids = Docids(b"d1\nd2\n")
    >>> len(docids), docids[1], docids.take([1, 0])
    (2, 'd2', ['d2', 'd1'])

    Attributes:
        data: as the file holds them.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        breaks = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
        self._starts = np.concatenate([[0], breaks + 1])  # one more than there are docids
        self._start = self._starts.data  # whose items are ints, four times as fast

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return self.take(range(*row.indices(len(self))))
        size = len(self)
        if not -size <= row < size:
            raise IndexError(f"Row {row} was asked for; there are {counted(size, 'docids')}.")
        row %= size
        return self.data[self._start[row] : self._start[row + 1] - 1].decode()

    def take(self, rows: Iterable[int]) -> list[str]:
        """Return the docids of `rows`, in that order."""
        data, start, size = self.data, self._start, len(self)
        listed = rows.tolist() if isinstance(rows, np.ndarray) else map(int, rows)
        # Without a call per row: every query takes some dozens.
        return [
            data[start[row] : start[row + 1] - 1].decode() if 0 <= row < size else self[row]
            for row in listed
        ]

    def find(self, docids: Iterable[str]) -> dict[str, int]:
        """Return the rows of docids, without missing ones, in one pass."""
        wanted = {docid.encode(errors="surrogatepass"): docid for docid in docids}
        lines = enumerate(self.data.split(b"\n"))
        return {wanted[line]: row for row, line in lines if line and line in wanted}

    @cached_property
    def ranks(self) -> Int64:
        """The rank of each row's docid among the sorted docids, [documents].

        Among documents of equal score the higher rank comes first.
        """
        order = self._order()
        ranks = np.empty(len(self), np.int64)
        ranks[order] = np.arange(len(self))
        return ranks

    def places(self, rows: Int64) -> Int64:
        """Return numbers that sort rows [n] as their docids sort."""
        if "ranks" in self.__dict__:  # else those of a few rows cost less
            return self.ranks[rows]
        names = np.array(self.take(rows), object)
        places: Int64 = np.unique(names, return_inverse=True)[1]
        return places

    def repeated(self) -> tuple[int, int] | None:
        """Return two rows with the same docid; None where every docid comes once."""
        # By hashes first, which take 8 bytes each where a table of strings would take a hundred.
        hashes = np.fromiter(map(hash, self), np.int64, len(self))
        hashes.sort()
        suspects = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
        seen: dict[str, int] = {}
        for row, docid in enumerate(self if suspects else ()):
            if docid in seen:
                return seen[docid], row
            if hash(docid) in suspects:
                seen[docid] = row
        return None

    def _order(self) -> Int64:
        """Return the rows sorted by docid: UTF-8 sorts as the code points of strings do."""
        lengths = np.diff(self._starts) - 1
        words = -(-int(lengths.max(initial=0)) // 8)
        if words > _WORDS:
            return np.array(sorted(range(len(self)), key=self.__getitem__), np.int64)
        # Each docid as big-endian words of eight bytes, zeros behind it; and its length, which
        # tells it from one that ends in zeros.
        wide = np.zeros((len(self), 8 * words), np.uint8)
        letters = np.frombuffer(self.data, np.uint8)
        wide[np.arange(8 * words) < lengths[:, None]] = letters[letters != _NEWLINE]
        columns = wide.view(">u8").astype(np.uint64)
        return np.lexsort((lengths, *columns.T[::-1]))


def encode_docids(docids: Iterable[str]) -> bytes:
    r"""Return the docids as a file holds them.

    Raises:
        UserError: a docid is empty or holds a line break, which one line cannot hold.

    >>> encode_docids(["d1", "d2"])
    b'd1\nd2\n'
    """
    lines = bytearray()
    for row, docid in enumerate(docids):
        if not docid or "\n" in docid or "\r" in docid:
            raise UserError(f"Document {row} has the id {docid!r}: an id is one line, not empty.")
        lines += f"{docid}\n".encode()
    return bytes(lines)


def read_docids(path: Path, documents: int, sha256: str) -> Docids:
    """Read the docids of a store or index, and compare them with its manifest.

    Args:
        path: the file.
        documents: number of docids.
        sha256: of the file.

    Raises:
        UserError: the file is missing, or is not the one that was written.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    if hashlib.sha256(data).hexdigest() != sha256 or data.count(b"\n") != documents:
        raise UserError(f"{path} does not hold the docids that were written.")
    return Docids(data)
