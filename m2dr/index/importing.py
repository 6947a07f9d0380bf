"""Vectors that another tool made: `.npy` with ids, or a folder of Pyserini."""

import re
from codecs import BOM_UTF8
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from m2dr.core.errors import UserError, counted
from m2dr.index.faiss import load_faiss, reason_of
from m2dr.index.manifest import INDEX, INDEX_DOCIDS
from m2dr.index.searchable import Docids
from m2dr.index.vectors import Floats

_ARRAY_START = b"\x93NUMPY"


@dataclass(frozen=True)
class ImportedVectors:
    """Documents with vectors of another tool, read a block at a time.

    Attributes:
        path: of the vectors, for messages.
        docids: in row order; none comes twice.
        width: dims of a vector.
        read: returns vectors [stop - start, width] of the rows from start to stop.
    """

    path: Path
    docids: Docids
    width: int
    read: Callable[[int, int], Floats]

    def checked(self, rows: range) -> Floats:
        """Return the vectors of a block of rows.

        Raises:
            UserError: a value is not a finite number.
        """
        vectors = self.read(rows.start, rows.stop)
        for row in np.flatnonzero(~np.isfinite(vectors).all(axis=1))[:1]:
            docid = self.docids[rows.start + int(row)]
            raise UserError(
                f"{self.path}, row {rows.start + row}: the vector of document {docid!r} is not "
                "finite."
            )
        return vectors


def open_npy(vectors: Path, ids: Path) -> ImportedVectors:
    """Open an array that numpy saved, and the ids of its rows, one per line.

    Args:
        vectors: [documents, width] of floats; read through the file, not loaded.
        ids: UTF-8.

    Raises:
        UserError: the file is not an array of [documents, width] floats, or there are not as many
            ids, or one is empty or comes twice.
    """
    with vectors.open("rb") as file:
        start = file.read(len(_ARRAY_START))
    if start != _ARRAY_START:  # a pickle, as Tevatron and BEIR write: opening it would run its code
        raise UserError(f"{vectors} is no array that numpy.save wrote.")
    try:
        matrix: Floats = np.load(vectors, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy raises a dozen kinds for a damaged header
        raise UserError(f"{vectors} cannot be read: {' '.join(str(error).split())}.") from error
    if matrix.ndim != 2 or matrix.dtype.kind != "f" or 0 in matrix.shape:
        raise UserError(
            f"{vectors} holds {matrix.dtype} of shape {list(matrix.shape)}, and vectors are floats "
            "of shape [documents, width]."
        )
    docids = _docids(ids, len(matrix), vectors)
    return ImportedVectors(vectors, docids, matrix.shape[1], lambda start, stop: matrix[start:stop])


def open_pyserini(folder: Path) -> ImportedVectors:
    """Open a folder with a FAISS `index` and its `docid`, as Pyserini and m2dr write them.

    An index that holds codes instead of vectors gives back approximations.

    Raises:
        UserError: a file is missing or is not what it should be, or the two do not fit.
    """
    path = folder / INDEX
    if not path.is_file():
        raise UserError(f"{folder} is no Pyserini folder: it has no file {INDEX}.")
    faiss = load_faiss()
    try:
        index = faiss.read_index(str(path))
        if hasattr(index, "make_direct_map"):
            index.make_direct_map()  # inverted lists know no rows without it
        if index.ntotal:
            index.reconstruct(0)  # asked for many at once, an index that cannot ends the process
    except RuntimeError as error:
        raise UserError(
            f"{path} cannot be read, or does not give its vectors back ({reason_of(error)})."
        ) from error
    if not index.ntotal:
        raise UserError(f"{path} holds no vectors.")
    docids = _docids(folder / INDEX_DOCIDS, index.ntotal, path)
    return ImportedVectors(
        path, docids, int(index.d), lambda start, stop: index.reconstruct_n(start, stop - start)
    )


def _docids(path: Path, documents: int, vectors: Path) -> Docids:
    """Read the ids of the rows; refuse any that is empty, repeated or unfit for run files."""
    data = path.read_bytes().removeprefix(BOM_UTF8).replace(b"\r\n", b"\n")
    docids = Docids(data if data.endswith(b"\n") or not data else data + b"\n")
    if len(docids) != documents:
        raise UserError(
            f"{path} has {counted(len(docids), 'ids', ',')} for the "
            f"{counted(documents, 'vectors', ',')} of {vectors}."
        )
    for row, docid in enumerate(docids):
        if not docid or re.search(r"\s|\0", docid, re.ASCII):
            raise UserError(
                f"{path}, line {row + 1}: the id {docid!r} is empty or holds whitespace or a zero "
                "byte, which run files cannot carry."
            )
    if rows := docids.repeated():
        first, second = rows
        raise UserError(
            f"{path}, line {second + 1}: the id {docids[second]!r} was on line {first + 1} too."
        )
    return docids
