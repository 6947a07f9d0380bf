"""Vectors that another tool made become a store: `.npy` with ids, or a folder of Pyserini."""

import hashlib
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from m2dr.errors import UserError, counted
from m2dr.index.docids import Docids
from m2dr.index.layout import INDEX, INDEX_DOCIDS
from m2dr.index.library import load_faiss, words
from m2dr.index.manifest import StorePlan
from m2dr.index.store import Store, open_store
from m2dr.index.vectors import Floats
from m2dr.index.writer import StoreWriter
from m2dr.io import locked, refuse_pipe

_PICKLES = (".pkl", ".pickle", ".pt", ".pth")
_NO_ID = re.compile(r"[^\S\n]|\0")
_PICKLE_START = b"\x80"  # of protocol 2 and later; no array of numpy begins so
_ARCHIVE_START = b"PK"  # of numpy.savez
_ARRAY_START = b"\x93NUMPY"


@dataclass(frozen=True)
class Foreign:
    """Documents with vectors of unknown making, read a stretch at a time.

    Attributes:
        path: where the vectors lie, for sentences.
        docids: in row order; none comes twice.
        width: coordinates per vector.
        read: vectors [stop - start, width] of the rows from start to stop.
    """

    path: Path
    docids: Docids
    width: int
    read: Callable[[int, int], Floats]

    def rows(self, size: int) -> Iterator[range]:
        """Stretches of at most `size` rows, one after the other."""
        for start in range(0, len(self.docids), size):
            yield range(start, min(start + size, len(self.docids)))

    def checked(self, rows: range) -> Floats:
        """Vectors of a stretch of rows.

        Raises:
            UserError: a coordinate is not a finite number, or the file cannot be read there.
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


def open_npy(vectors: Path, ids: Path) -> Foreign:
    """Open an array that numpy saved, and the ids of its rows, one per line.

    Args:
        vectors: [documents, width] of floats; looked at through the file, not loaded.
        ids: UTF-8.

    Raises:
        UserError: the array is none of [documents, width] finite floats, is a pickle, or the ids
            are not as many, or one is empty or comes twice.
    """
    matrix = _matrix(vectors)
    docids = _docids(ids, len(matrix), vectors)
    return Foreign(vectors, docids, matrix.shape[1], lambda start, stop: matrix[start:stop])


def open_pyserini(folder: Path) -> Foreign:
    """Open a folder with a FAISS `index` and its `docid`, as Pyserini and m2dr write them.

    An index that holds codes instead of vectors gives back what the codes say: an approximation.

    Raises:
        UserError: a file is missing or is not what it should be, or the two do not fit.
    """
    path = folder / INDEX
    if not path.is_file():
        raise UserError(
            f"{folder} is no Pyserini folder: it has no file {INDEX}. Correct the path."
        )
    library = load_faiss()
    try:
        index = library.read_index(str(path))
        if hasattr(index, "make_direct_map"):
            index.make_direct_map()  # inverted lists know no rows without it
    except RuntimeError as error:
        raise UserError(
            f"{path} is no index that FAISS reads ({words(error)}). Build it again in Pyserini."
        ) from error
    if not index.ntotal:
        raise UserError(f"{path} holds no vectors. Build it again in Pyserini.")
    docids = _docids(folder / INDEX_DOCIDS, index.ntotal, path)
    try:
        index.reconstruct(0)  # asked for many at once, an index that cannot ends the process
    except RuntimeError as error:
        raise UserError(
            f"{path} does not give its vectors back ({words(error)}). Import the vectors "
            f"themselves: --vectors X.npy --ids ids.txt"
        ) from error
    return Foreign(
        path, docids, int(index.d), lambda start, stop: index.reconstruct_n(start, stop - start)
    )


def import_store(
    foreign: Foreign,
    folder: Path,
    plan: StorePlan,
    *,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Store:
    """Write vectors of another tool as a store; goes on where an earlier import stopped.

    Args:
        foreign: what to write; all of it is read, also where it is there already.
        folder: of the store.
        plan: what the store is; its label is believed, since vectors do not say who made them.
        overwrite: forget what the folder holds.
        progress: told how many documents are there, again and again.

    Raises:
        UserError: the folder holds other vectors, a coordinate is not finite, or the disk refuses.
    """
    with locked(folder, "give another --indexes"):
        writer = StoreWriter(folder, plan, overwrite=overwrite)
        with _refusing(folder):
            writer.expect(len(foreign.docids))
        for number, rows in enumerate(foreign.rows(writer.plan.shard_rows)):
            _shard(foreign, rows, writer, number)
            progress(len(rows))
        if not writer.finished:
            writer.finish(len(foreign.docids))
    return open_store(folder)


def _shard(foreign: Foreign, rows: range, writer: StoreWriter, number: int) -> None:
    """Write one shard, or see that it holds what it would be written from."""
    vectors = foreign.checked(rows)
    docids = foreign.docids[rows.start : rows.stop]
    digest = hashlib.sha256(np.ascontiguousarray(vectors).view(np.uint8).data).hexdigest()
    if not writer.has(number):
        writer.write(number, docids, np.asarray(vectors, np.float32), digest)
        return
    with _refusing(writer.folder):
        writer.check(number, docids, digest)


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    """Say of a store with other documents what that means here."""
    try:
        yield
    except UserError as error:
        raise UserError(
            f"{folder} holds other vectors than these: of an earlier import, or of m2dr index "
            f"corpus. Replace them with --overwrite."
        ) from error


def _matrix(path: Path) -> Floats:
    """The array of a file, as a view of it."""
    _refuse_others(path)
    try:
        found: Floats = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # of a header that lies numpy raises a dozen kinds
        raise UserError(_unread(path, " ".join(str(error).split()).rstrip(".")[:160])) from error
    if found.ndim != 2 or found.dtype.kind != "f" or 0 in found.shape:
        raise UserError(
            f"{path} holds {found.dtype} of shape {list(found.shape)}, and vectors are floats of "
            f"shape [documents, width]. Save them so."
        )
    return found


def _refuse_others(path: Path) -> None:
    """Refuse what does not begin as an array that numpy saved, before numpy opens it."""
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
    """The ids of the rows, none of them empty or repeated, or one that no run file can hold."""
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
    _refuse_repeats(path, docids)
    return docids


def _refuse_repeats(path: Path, docids: Docids) -> None:
    """By hashes first, which are 8 bytes each where a table of lines would be a hundred."""
    hashes = np.fromiter(map(hash, docids), np.int64, len(docids))
    unique, counts = np.unique(hashes, return_counts=True)
    suspects = set(unique[counts > 1].tolist())
    seen: dict[str, int] = {}
    for line, docid in enumerate(docids if suspects else (), start=1):
        if docid in seen:
            raise UserError(
                f"{path}, line {line}: the id {docid!r} was on line {seen[docid]} too. Give every "
                f"vector an id of its own."
            )
        if hash(docid) in suspects:
            seen[docid] = line
