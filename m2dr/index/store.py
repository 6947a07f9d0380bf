"""A finished store: vectors on disk at full width, not normalised, opened as views of files."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from m2dr.core.errors import UserError, counted
from m2dr.core.files import sha256_of
from m2dr.index.fields import FIELDS, matching
from m2dr.index.filters import Filter
from m2dr.index.layout import DOCIDS, PARTIAL, STORE, store_remedy
from m2dr.index.manifest import Shard, StoreManifest, StorePlan
from m2dr.index.searchable import Docids, read_docids
from m2dr.index.store_writer import Shards, has_size, read_partial
from m2dr.index.vectors import FORMATS, Floats

# Of larger files the digest is not computed each time they are opened for search. Their size is
# always checked; building, evaluating and m2dr index verify compare the digest too.
HASHED_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Store:
    """The vectors of one layer: [documents, width], not normalised."""

    folder: Path
    manifest: StoreManifest
    docids: Docids
    _compared: set[str] = field(default_factory=set, repr=False, compare=False)  # names of shards
    # Of each shard at opening: a store that is encoded anew writes other files of the same names.
    _stamps: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def bytes(self) -> int:
        """Size of the files of vectors."""
        return FORMATS[self.manifest.dtype].bytes_of(self.manifest.documents, self.width)

    @property
    def documents(self) -> int:
        """Number of documents."""
        return self.manifest.documents

    def matching(self, wanted: Filter) -> NDArray[np.int64]:
        """Return the rows of the documents that fit a filter, increasing.

        Raises:
            UserError: the documents have no fields, or the filter does not fit them; or the file
                of the fields is missing or has changed.
        """
        if not self.manifest.fields:
            raise UserError(
                f"The documents of {self.manifest.corpus} have no fields besides id, title and "
                "text, so no filter fits them."
            )
        for problem in self._fields_problem(whole=False):
            raise UserError(problem)
        return matching(self.folder / FIELDS, wanted)

    def _fields_problem(self, whole: bool) -> Iterator[str]:
        """Yield a sentence if the file of fields has changed; a large one is read if `whole`."""
        path, digest = self.folder / FIELDS, self.manifest.fields
        if not digest or FIELDS in self._compared:
            return
        small = path.is_file() and path.stat().st_size <= HASHED_BYTES
        if not path.is_file() or ((whole or small) and sha256_of(path) != digest):
            yield f"{path} is missing or not the file of fields that was written."
        else:
            self._compared.add(FIELDS)

    @property
    def layer(self) -> int:
        """Transformer layers that encoded the documents."""
        return self.manifest.layer

    @property
    def width(self) -> int:
        """Dims of a vector."""
        return self.manifest.width

    def blocks(self, rows: int = 8192, *, compare: bool = False) -> Iterator[tuple[int, Floats]]:
        """Yield blocks of at most `rows` documents, each with the row it starts at.

        A block [n, width] is a read-only view of a file, or float32 where the store holds int8;
        none crosses a shard's end.

        Args:
            rows: of a block, at most.
            compare: compare each shard with the digest taken when it was written, once for this
                store. Another thread does it; the error is raised after the shard's last block.

        Raises:
            UserError: a shard is missing or has another size; with `compare`, it has changed.
        """
        start = 0
        for shard in self.manifest.shards:
            vectors = self._open(shard)
            with self._comparing(shard) if compare else nullcontext():
                for first in range(0, shard.rows, rows):
                    yield start + first, vectors(slice(first, min(first + rows, shard.rows)))
            start += shard.rows

    def rows(self, ids: ArrayLike) -> Floats:
        """Return the vectors of some rows, [n, width], in the order asked."""
        wanted = np.asarray(ids, np.int64)
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < self.documents:
            raise IndexError(f"Rows {wanted} were asked for; there are {self.documents}.")
        found = np.empty((len(wanted), self.width), FORMATS[self.manifest.dtype].read_as)
        start = 0
        for shard in self.manifest.shards:
            here = np.flatnonzero((start <= wanted) & (wanted < start + shard.rows))
            if here.size:
                found[here] = self._open(shard)(wanted[here] - start)
            start += shard.rows
        return found

    def problems(self, progress: Callable[[int], None] | None = None) -> Iterator[str]:
        """Read every shard, and files of fields; yield a sentence for each that was changed.

        Args:
            progress: told the rows of each shard that is as it was written.
        """
        for shard in self.manifest.shards:
            problem = self._problem(shard)
            if problem:
                yield problem
            elif progress:
                progress(shard.rows)
        yield from self._fields_problem(whole=True)

    def _open(self, shard: Shard) -> Callable[[Any], Floats]:
        _require(self.folder, shard, self.manifest.plan)
        path = self.folder / shard.name
        reader = FORMATS[self.manifest.dtype].reader(path, shard.rows, self.width)
        if self._stamps.get(shard.name, _stamp(path)) != _stamp(path):
            raise UserError(_was_replaced(self.folder))
        return reader

    @contextmanager
    def _comparing(self, shard: Shard) -> Iterator[None]:
        """Compare a shard with its digest in another thread, unless that was done before."""
        if shard.name in self._compared:
            yield
            return
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(self._problem, shard)  # hashing releases the interpreter lock
            yield
            if problem := found.result():
                raise UserError(problem)
        self._compared.add(shard.name)

    def _problem(self, shard: Shard) -> str:
        """Return a sentence if a shard is not what was written; else nothing."""
        path = self.folder / shard.name
        if path.is_file() and sha256_of(path) == shard.sha256:
            return ""
        return _gone(self.folder, shard) or (
            f"{path} is not the file that was written. Restore it, or start afresh "
            f"{store_remedy(self.folder, overwrite=True)}"
        )


def open_store(folder: Path) -> Store:
    """Open a finished store.

    Raises:
        UserError: there is none, it is half-written, or a file of it is missing or has changed.
    """
    if not (folder / STORE).exists():
        raise _unfinished(folder)
    manifest = StoreManifest.read(folder)
    try:
        return store_of_manifest(folder, manifest)
    except UserError:
        if StoreManifest.read(folder) == manifest:
            raise
        return open_store(folder)  # another process changed it meanwhile


def store_of_manifest(folder: Path, manifest: StoreManifest) -> Store:
    """Open the store that a manifest tells of, whether or not its folder has it already.

    Raises:
        UserError: a file is missing or has changed.
    """
    stamps = {}
    for shard in manifest.shards:
        _require(folder, shard, manifest.plan)
        stamps[shard.name] = _stamp(folder / shard.name)
    remedy = partial(store_remedy, folder, overwrite=True)
    docids = read_docids(folder / DOCIDS, manifest.documents, manifest.docids, remedy)
    return Store(folder, manifest, docids, _stamps=stamps)


def _require(folder: Path, shard: Shard, plan: StorePlan) -> None:
    if not has_size(folder, shard, plan):
        raise UserError(
            _gone(folder, shard)
            or f"{folder / shard.name} is missing or has another size than it was written with. "
            f"Restore it, or start afresh {store_remedy(folder, overwrite=True)}"
        )


def _gone(folder: Path, shard: Shard) -> str:
    """Return a sentence if a store has a shard no longer; else nothing."""
    if (folder / STORE).exists() and shard in StoreManifest.read(folder).shards:
        return ""
    return _was_replaced(folder)


def _was_replaced(folder: Path) -> str:
    return f"{folder} was encoded anew after it was opened. Open it again."


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what tells a file from one that takes its name later; nothing where there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _unfinished(folder: Path) -> UserError:
    if not (folder / PARTIAL).exists():
        return UserError(f"{folder} holds no store of documents. Make one {store_remedy(folder)}")
    plan = read_partial(folder).plan
    written = Shards(folder, plan).read_all()
    rows = sum(shard.rows for shard in written)
    return UserError(
        f"{folder} is half-written: {counted(len(written), 'shards')} with "
        f"{counted(rows, 'documents')} of {plan.corpus}. Go on from there "
        f"{store_remedy(folder, resume=True)}"
    )
