"""Document ids in row order, as a file with one per line."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import overload

import numpy as np

from m2dr.errors import UserError, counted
from m2dr.io import read_regular

_NEWLINE = 10
_WORDS = 8  # of eight bytes: longer docids are sorted as strings, which takes less memory


def encode(docids: Iterable[str]) -> bytes:
    r"""Return the docids as a file holds them.

    Raises:
        UserError: a docid is empty or holds a line break, which one line cannot hold.

    >>> encode(["d1", "d2"])
    b'd1\nd2\n'
    """
    lines = bytearray()
    for row, docid in enumerate(docids):
        if not docid or "\n" in docid or "\r" in docid:
            raise UserError(
                f"Document {row} has the id {docid!r}: an id is one line, and not empty. "
                f"Change it in the corpus."
            )
        lines += f"{docid}\n".encode()
    return bytes(lines)


def digest(docids: Iterable[str]) -> str:
    """Return the sha256 of the docids as a file holds them, in hex."""
    return hashlib.sha256(encode(docids)).hexdigest()


class Docids(Sequence[str]):
    r"""Docids that stay bytes until asked for: 8 bytes each beside the file's own.

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

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return self.take(range(*row.indices(len(self))))
        if not -len(self) <= row < len(self):
            raise IndexError(f"Row {row} was asked for; there are {counted(len(self), 'docids')}.")
        row = row % len(self)
        return self.data[self._starts[row] : self._starts[row + 1] - 1].decode()

    def take(self, rows: Iterable[int]) -> list[str]:
        """Return the docids of `rows`, in that order."""
        return [self[int(row)] for row in rows]

    def ranks(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return, per row, the place of its docid when they are sorted; [documents].

        Among documents of equal score the higher place comes first.
        """
        order = self._order()
        ranks = np.empty(len(self), np.int64)
        ranks[order] = np.arange(len(self))
        return ranks

    def _order(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return rows by docid: UTF-8 sorts as the code points of strings do."""
        lengths = np.diff(self._starts) - 1
        words = -(-int(lengths.max(initial=0)) // 8)
        if words > _WORDS:
            return np.array(sorted(range(len(self)), key=self.__getitem__), np.int64)
        # Each docid as big-endian words of eight bytes, zeros behind it; and its length, which
        # tells it from one that ends in zeros.
        wide = np.zeros((len(self), 8 * words), np.uint8)
        wide[np.arange(8 * words) < lengths[:, None]] = self._letters()
        columns = wide.view(">u8").astype(np.uint64)
        return np.lexsort((lengths, *columns.T[::-1]))

    def _letters(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Return the bytes of all docids, without line breaks."""
        letters = np.frombuffer(self.data, np.uint8)
        kept: np.ndarray[tuple[int], np.dtype[np.uint8]] = letters[letters != _NEWLINE]
        return kept


def read_docids(path: Path, documents: int, sha256: str, remedy: Callable[[], str]) -> Docids:
    """Read the docids that a manifest promises.

    Args:
        path: the file.
        documents: how many there are.
        sha256: of the file.
        remedy: gives how to make the file again, such as "with: " and a command.

    Raises:
        UserError: the file is missing, holds another number of lines, is not UTF-8, or is not
            the one that was written.
    """
    try:
        data = read_regular(path)
        data.decode()
    except OSError as error:
        problem = f"{path} cannot be read ({error.strerror})"
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"{path}, line {line}: is not UTF-8"
    else:
        lines = data.count(b"\n")
        if lines == documents and hashlib.sha256(data).hexdigest() == sha256:
            return Docids(data)
        problem = f"{path} has {counted(lines, 'docids')} for {counted(documents, 'documents')}"
        if lines == documents:
            problem = f"{path} is not the file that was written: {counted(lines, 'other docids')}"
    raise UserError(f"{problem}. Restore the file, or make it again {remedy()}")
