"""Import vectors that another tool made as a store: `.npy` with ids, or a folder of Pyserini."""

import hashlib
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from m2dr.core.errors import UserError, counted
from m2dr.core.files import lock_folder, refuse_pipe
from m2dr.index.faiss import load_faiss, reason_of
from m2dr.index.layout import INDEX, INDEX_DOCIDS
from m2dr.index.manifest import StorePlan
from m2dr.index.searchable import Docids
from m2dr.index.store import Store, open_store
from m2dr.index.store_writer import StoreWriter
from m2dr.index.vectors import Floats

_PICKLES = (".pkl", ".pickle", ".pt", ".pth")
_NO_ID = re.compile(r"[^\S\n]|\0")
_PICKLE_START = b"\x80"  # of protocol 2 and later; no array of numpy begins so
_ARCHIVE_START = b"PK"  # of numpy.savez
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

    def rows(self, size: int) -> Iterator[range]:
        """Yield blocks of at most `size` rows."""
        for start in range(0, len(self.docids), size):
            yield range(start, min(start + size, len(self.docids)))

    def checked(self, rows: range) -> Floats:
        """Return the vectors of a block of rows.

        Raises:
            UserError: a value is not a finite number, or the file cannot be read there.
        """
        vectors = self.read(rows.start, rows.stop)
        bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if bad.size:
            row = rows.start + int(bad[0])
            raise UserError(
                f"{self.path}, row {row}: the vector of document {self.docids[row]!r} is not "
                f"finite. Encode that document again."
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
    matrix = _matrix(vectors)
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
        raise UserError(
            f"{folder} is no Pyserini folder: it has no file {INDEX}. Correct the path."
        )
    faiss = load_faiss()
    try:
        index = faiss.read_index(str(path))
        if hasattr(index, "make_direct_map"):
            index.make_direct_map()  # inverted lists know no rows without it
    except RuntimeError as error:
        raise UserError(
            f"{path} is no index that FAISS reads ({reason_of(error)}). Build it again in Pyserini."
        ) from error
    if not index.ntotal:
        raise UserError(f"{path} holds no vectors. Build it again in Pyserini.")
    docids = _docids(folder / INDEX_DOCIDS, index.ntotal, path)
    try:
        index.reconstruct(0)  # asked for many at once, an index that cannot ends the process
    except RuntimeError as error:
        raise UserError(
            f"{path} does not give its vectors back ({reason_of(error)}). Import the vectors "
            f"themselves: --vectors X.npy --ids ids.txt"
        ) from error
    return ImportedVectors(
        path, docids, int(index.d), lambda start, stop: index.reconstruct_n(start, stop - start)
    )


def import_store(
    imported: ImportedVectors,
    folder: Path,
    plan: StorePlan,
    *,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Store:
    """Write vectors of another tool as a store, from where an earlier import stopped.

    Args:
        imported: what to write; all of it is read, also what the store already has.
        folder: of the store.
        plan: of the store; its label is not checked, since vectors do not say who made them.
        overwrite: remove what the folder holds.
        progress: told how many documents are there, again and again.

    Raises:
        UserError: the folder holds other vectors, a value is not finite, or the disk refuses.
    """
    with lock_folder(folder):
        writer = StoreWriter(folder, plan, overwrite=overwrite)
        with _refusing(folder):
            writer.expect(len(imported.docids))
        for number, rows in enumerate(imported.rows(writer.plan.shard_rows)):
            _shard(imported, rows, writer, number)
            progress(len(rows))
        if not writer.finished:
            writer.finish(len(imported.docids))
    return open_store(folder)


def _shard(imported: ImportedVectors, rows: range, writer: StoreWriter, number: int) -> None:
    """Write one shard, or check that it was written from the same vectors."""
    vectors = imported.checked(rows)
    docids = imported.docids[rows.start : rows.stop]
    digest = hashlib.sha256(np.ascontiguousarray(vectors).view(np.uint8).data).hexdigest()
    if not writer.has(number):
        writer.write(number, docids, np.asarray(vectors, np.float32), digest)
        return
    with _refusing(writer.folder):
        writer.check(number, docids, digest)


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    """Replace the error for a store of other documents by one that fits an import."""
    try:
        yield
    except UserError as error:
        raise UserError(
            f"{folder} holds other vectors than these: of an earlier import, or of m2dr index "
            f"corpus. Replace them with --overwrite."
        ) from error


def _matrix(path: Path) -> Floats:
    """Return the array of a file, as a view of it."""
    _refuse_others(path)
    try:
        found: Floats = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy raises a dozen kinds for a damaged header
        raise UserError(_unread(path, " ".join(str(error).split()).rstrip(".")[:160])) from error
    if found.ndim != 2 or found.dtype.kind != "f" or 0 in found.shape:
        raise UserError(
            f"{path} holds {found.dtype} of shape {list(found.shape)}, and vectors are floats of "
            f"shape [documents, width]. Save them so."
        )
    return found


def _refuse_others(path: Path) -> None:
    """Refuse a file that does not begin as an array that numpy saved, before numpy opens it."""
    refuse_pipe(path)
    try:
        with path.open("rb") as file:
            start = file.read(len(_ARRAY_START))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}). Correct the path.") from error
    if path.suffix in _PICKLES or start.startswith(_PICKLE_START):
        raise UserError(
            f"{path} is a pickle, as Tevatron and BEIR write embeddings. Opening one runs whatever "
            f"code it holds, so m2dr reads none: where it was made, save the vectors with "
            f"numpy.save('X.npy', vectors) and the ids one per line."
        )
    if start.startswith(_ARCHIVE_START):
        raise UserError(f"{path} is an archive of arrays. Save the vectors alone, with numpy.save.")
    if start != _ARRAY_START:
        raise UserError(_unread(path, "it does not begin as one" if start else "it is empty"))


def _unread(path: Path, reason: str) -> str:
    return (
        f"{path} cannot be read as an array that numpy saved ({reason}). Save the vectors with "
        f"numpy.save."
    )


def _docids(path: Path, documents: int, vectors: Path) -> Docids:
    """Read the ids of the rows; refuse any that is empty, repeated or unfit for run files."""
    try:
        data = path.read_bytes().removeprefix(BOM_UTF8).replace(b"\r\n", b"\n")
        text = data.decode()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}). Correct the path.") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: is not UTF-8. Save the ids as UTF-8.") from error
    docids = Docids(data if data.endswith(b"\n") or not data else data + b"\n")
    if len(docids) != documents:
        raise UserError(
            f"{path} has {counted(len(docids), 'ids', ',')} for the "
            f"{counted(documents, 'vectors', ',')} of {vectors}. Give one "
            f"id per vector, in the same order."
        )
    for row, docid in enumerate(docids):
        if not docid.strip():
            raise UserError(f"{path}, line {row + 1}: the id is empty. Give every vector an id.")
    if odd := _NO_ID.search(text):
        raise UserError(
            f"{path}, line {text.count(chr(10), 0, odd.start()) + 1}: the id holds {odd[0]!r}, and "
            f"run files can carry neither whitespace nor zero bytes. Give every vector an id "
            f"without them."
        )
    if rows := docids.repeated():
        first, second = rows
        raise UserError(
            f"{path}, line {second + 1}: the id {docids[second]!r} was on line {first + 1} too. "
            f"Give every vector an id of its own."
        )
    return docids
