"""Stores: vectors on disk at full width, not normalised; written shard by shard, opened as views.

A half-written store has a plan, store.partial.json, and for each of its shards four files: docids,
digests of the texts, vectors, and a record that is written last. A shard without a record is
written again, with the same bytes; several processes may write shards of a store at once.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from m2dr.core.arrays import Array, Floats, Int64
from m2dr.core.errors import UserError
from m2dr.core.files import (
    HASHED_BYTES,
    TEMPORARY_SUFFIX,
    read_record,
    remove_files,
    sha256_of,
    write_bytes,
    write_record,
)
from m2dr.index.docids import Docids, encode_docids, read_docids
from m2dr.index.filters import FIELDS, Filter, matching
from m2dr.index.manifest import (
    DIGESTS,
    DOCIDS,
    PARTIAL,
    STORE,
    Shard,
    StoreManifest,
    StorePlan,
)
from m2dr.index.vectors import FORMATS

# Shapes in this file: n rows.

DIGEST_BYTES = 16  # of a text
RECORDS = ("vectors-*.json", "docids-*.txt", "digests-*.bin")  # of a half-written store alone

Digests = NDArray[np.bytes_]  # [n] of DIGEST_BYTES each


def text_digests(texts: Iterable[str | bytes]) -> bytes:
    """Return the digests of texts, one after the other."""
    made = bytearray()
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        made += hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
    return bytes(made)


# Finished stores


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

    @property
    def layer(self) -> int:
        """Transformer layers that encoded the documents."""
        return self.manifest.layer

    @property
    def width(self) -> int:
        """Dims of a vector."""
        return self.manifest.width

    def matching(self, wanted: Filter) -> Int64:
        """Return the rows of the documents that fit a filter, increasing.

        Raises:
            UserError: the documents have no fields, or the filter does not fit them; or the file
                of the fields is missing or has changed.
        """
        if not self.manifest.fields:
            raise UserError(f"The documents of {self.manifest.corpus} have no fields to filter by.")
        for problem in self._fields_problem(whole=False):
            raise UserError(problem)
        return matching(self.folder / FIELDS, wanted)

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
        vectors_of = FORMATS[self.manifest.dtype].vectors
        start = 0
        for shard in self.manifest.shards:
            parts = self._parts(shard)
            with self._comparing(shard) if compare else nullcontext():
                for first in range(0, shard.rows, rows):
                    part = slice(first, min(first + rows, shard.rows))
                    yield start + first, vectors_of([each[part] for each in parts])
            start += shard.rows

    def rows(self, ids: ArrayLike) -> Floats:
        """Return the vectors of some rows, [n, width], in the order asked."""
        wanted = np.asarray(ids, np.int64)
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < self.documents:
            raise IndexError(f"Rows {wanted} were asked for; there are {self.documents}.")
        return FORMATS[self.manifest.dtype].vectors(self.packed(wanted))

    def packed(self, rows: Int64, *, compare: bool = False) -> list[Array]:
        """Return stored rows [n] as the files hold them: parts [n, any] of `VectorFormat.pack`.

        Raises:
            UserError: a shard with one of them is missing or has another size; or has changed,
                which is looked at once for a store, and in a large one only if `compare`.
        """
        compare = compare or self.bytes <= HASHED_BYTES
        empty = FORMATS[self.manifest.dtype].pack(np.empty((0, self.width), np.float32))
        packed = [np.empty((len(rows), part.shape[1]), part.dtype) for part in empty]
        start = 0
        for shard in self.manifest.shards:
            here = np.flatnonzero((start <= rows) & (rows < start + shard.rows))
            if here.size:
                parts = self._parts(shard)
                with self._comparing(shard) if compare else nullcontext():
                    for target, part in zip(packed, parts, strict=True):
                        target[here] = part[rows[here] - start]
            start += shard.rows
        return packed

    def digests(self) -> Digests:
        """Return the digests of the texts that were encoded, [documents].

        Raises:
            UserError: the file is missing or has changed.
        """
        path = self.folder / DIGESTS
        data = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(data).hexdigest() != self.manifest.texts:
            raise UserError(_changed(path))
        return np.frombuffer(data, f"S{DIGEST_BYTES}")

    def problems(self, progress: Callable[[int], None] | None = None) -> Iterator[str]:
        """Read every file; yield a sentence for each that was changed.

        Args:
            progress: receives the rows of each shard that is as it was written.
        """
        for shard in self.manifest.shards:
            if problem := self._problem(shard):
                yield problem
            elif progress:
                progress(shard.rows)
        try:
            self.digests()
        except UserError as error:
            yield str(error)
        yield from self._fields_problem(whole=True)

    def _fields_problem(self, whole: bool) -> Iterator[str]:
        """Yield a sentence if the file of fields has changed; a large one is read if `whole`."""
        path, digest = self.folder / FIELDS, self.manifest.fields
        if not digest or FIELDS in self._compared:
            return
        small = path.is_file() and path.stat().st_size <= HASHED_BYTES
        if not path.is_file() or ((whole or small) and sha256_of(path) != digest):
            yield _changed(path)
        else:
            self._compared.add(FIELDS)

    def _parts(self, shard: Shard) -> list[Array]:
        """Return views of the parts of a shard."""
        path = self.folder / shard.name
        manifest = self.manifest
        if not _has_size(path, shard, manifest) or self._stamps.get(shard.name) != stamp_of(path):
            raise UserError(_changed(path))
        return FORMATS[manifest.dtype].parts(path, shard.rows, manifest.width)

    @contextmanager
    def _comparing(self, shard: Shard) -> Iterator[None]:
        """Compare a shard with its digest in another thread, unless that was done before."""
        if shard.name in self._compared:
            yield
            return
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(self._problem, shard)  # hashing releases the interpreter lock
            yield
            if problem := future.result():
                raise UserError(problem)
        self._compared.add(shard.name)

    def _problem(self, shard: Shard) -> str:
        """Return a sentence if a shard is not what was written; else nothing."""
        path = self.folder / shard.name
        if path.is_file() and sha256_of(path) == shard.sha256:
            return ""
        return _changed(path)


def open_store(folder: Path) -> Store:
    """Open a finished store.

    Raises:
        UserError: there is none, it is half-written, or a file of it is missing or has changed.
    """
    if not (folder / STORE).exists():
        what = "a half-written store" if (folder / PARTIAL).exists() else "no store of documents"
        raise UserError(f"{folder} holds {what}; m2dr index corpus makes a whole one.")
    manifest = StoreManifest.read(folder)
    for shard in manifest.shards:
        if not _has_size(folder / shard.name, shard, manifest):
            raise UserError(_changed(folder / shard.name))
    stamps = {shard.name: stamp_of(folder / shard.name) for shard in manifest.shards}
    docids = read_docids(folder / DOCIDS, manifest.documents, manifest.docids)
    return Store(folder, manifest, docids, _stamps=stamps)


def _has_size(path: Path, shard: Shard, plan: StorePlan) -> bool:
    size = FORMATS[plan.dtype].bytes_of(shard.rows, plan.width)
    return path.is_file() and path.stat().st_size == size


def _changed(path: Path) -> str:
    return f"{path} is missing or not the file that was written; --overwrite encodes all anew."


def stamp_of(path: Path) -> tuple[int, ...]:
    """Return inode, time and size, which differ if a file is replaced; () for no file."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


# Writing


class StoreWriter:
    """A half-written store. Whoever begins or finishes it holds the `lock` of its home."""

    def __init__(self, folder: Path, plan: StorePlan) -> None:
        self.folder, self.plan = folder, plan
        self._format = FORMATS[plan.dtype]

    def has(self, number: int) -> bool:
        """Return whether a shard has a record and complete files."""
        files = [self._path(kind, number) for kind in RECORDS]
        if not all(path.exists() for path in files):
            return False
        shard = read_record(files[0], Shard)
        return _has_size(self.folder / shard.name, shard, self.plan)

    def shards(self) -> list[Shard]:
        """Return the records of written shards, in corpus order."""
        return [read_record(self._path(RECORDS[0], n), Shard) for n in self.numbers()]

    def numbers(self) -> list[int]:
        """Return the numbers of written shards, increasing."""
        found = (re.findall(r"\d+", path.name) for path in self.folder.glob(RECORDS[0]))
        return [number for number in sorted(int(word[0]) for word in found) if self.has(number)]

    def drop_other(self, docids: Docids, digests: Digests) -> None:
        """Remove the records of shards that were not made from these documents."""
        rows = self.plan.shard_rows
        for number, shard in zip(self.numbers(), self.shards(), strict=True):
            part = slice(number * rows, (number + 1) * rows)
            parts = encode_docids(docids[part]), digests[part].tobytes()
            if (shard.docids, shard.texts) != tuple(hashlib.sha256(p).hexdigest() for p in parts):
                self._path(RECORDS[0], number).unlink()

    def write(
        self,
        number: int,
        docids: Sequence[str],
        vectors: Floats,
        digests: bytes,
        copied: tuple[Int64, list[Array]] | None = None,
    ) -> int:
        """Write a shard, and then its record.

        Args:
            number: of the shard, in the order of the corpus.
            docids: n of them, `plan.shard_rows` in every shard but the last.
            vectors: [n, plan.width] float32, not normalised; without those that are copied.
            digests: of the n texts.
            copied: rows of this shard, and what `Store.packed` gave for them.

        Returns:
            The size of the vectors in bytes.

        Raises:
            UserError: a value is not finite or too large for the dtype.
        """
        fresh_rows: Int64 = np.arange(len(docids))
        if copied is not None:
            fresh_rows = np.delete(fresh_rows, copied[0])
        if vectors.shape != (len(fresh_rows), self.plan.width):
            raise ValueError(f"{len(fresh_rows)} rows of {self.plan.width}, not {vectors.shape}.")
        with np.errstate(over="ignore"):
            largest = np.abs(vectors).max(axis=1).astype(self._format.read_as)
        for row in np.flatnonzero(~np.isfinite(largest))[:1]:
            fault = "is not finite, or too large for f16; use --store f32"
            raise UserError(f"The vector of document {docids[fresh_rows[row]]!r} {fault}.")
        parts = self._format.pack(vectors)
        if copied is not None:
            for part_number, (fresh, old) in enumerate(zip(parts, copied[1], strict=True)):
                joined = np.empty((len(docids), old.shape[1]), old.dtype)
                joined[fresh_rows], joined[copied[0]] = fresh, old
                parts[part_number] = joined
        data, lines = b"".join(part.tobytes() for part in parts), encode_docids(docids)
        name = f"vectors-{number:05d}.{self.plan.dtype}"
        self._path(RECORDS[0], number).unlink(missing_ok=True)
        write_bytes(self._path(RECORDS[1], number), lines)
        write_bytes(self._path(RECORDS[2], number), digests)
        write_bytes(self.folder / name, data)
        sums = (hashlib.sha256(part).hexdigest() for part in (data, lines, digests))
        write_record(self._path(RECORDS[0], number), Shard(name, len(docids), *sums))
        return len(data)

    def finish(self, fields: str = "", field_texts: str = "") -> None:
        """Write the docids, the digests and then store.json, which marks the store as finished.

        Args:
            fields: sha256 of the file of fields that lies there; empty where there is none.
            field_texts: digest of the fields.

        Raises:
            UserError: there are no documents, or a docid comes twice.
            ValueError: a shard is missing.
        """
        shards = self.shards()
        if not shards:
            raise UserError(f"The corpus {self.plan.corpus} has no documents to search.")
        if self.numbers() != list(range(len(shards))) or any(
            shard.rows != self.plan.shard_rows for shard in shards[:-1]
        ):
            raise ValueError(f"Shards of {self.folder} are missing.")
        whole = []
        for kind, sums in (
            (RECORDS[1], [shard.docids for shard in shards]),
            (RECORDS[2], [shard.texts for shard in shards]),
        ):
            files = [self._path(kind, number) for number in range(len(shards))]
            for path, digest in zip(files, sums, strict=True):
                if sha256_of(path) != digest:
                    raise UserError(_changed(path))
            whole.append(b"".join(path.read_bytes() for path in files))
        docids = Docids(whole[0])
        if rows := docids.repeated():
            raise UserError(f"The docid {docids[rows[0]]!r} comes twice in {self.plan.corpus}.")
        write_bytes(self.folder / DOCIDS, whole[0])
        write_bytes(self.folder / DIGESTS, whole[1])
        StoreManifest(
            **vars(self.plan),
            documents=len(docids),
            shards=tuple(shards),
            docids=hashlib.sha256(whole[0]).hexdigest(),
            texts=hashlib.sha256(whole[1]).hexdigest(),
            fields=fields,
            field_texts=field_texts,
        ).write(self.folder)
        remove_leftovers(self.folder)

    def _path(self, kind: str, number: int) -> Path:
        return self.folder / kind.replace("*", f"{number:05d}")


def begin_store(folder: Path, plan: StorePlan) -> StoreWriter:
    """Begin a store in a folder without a finished one, or go on with what is half-written.

    Raises:
        UserError: it was begun with other settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_files(folder, f"*{TEMPORARY_SUFFIX}")
    if (folder / PARTIAL).exists():
        begun = read_record(folder / PARTIAL, StorePlan)
        begun.refuse_other(plan, folder)
        return StoreWriter(folder, begun)
    remove_files(folder, *RECORDS)  # without a plan, no record counts
    write_record(folder / PARTIAL, plan)
    return StoreWriter(folder, plan)


def clear_store(folder: Path) -> None:
    """Remove a store, but not the indexes beside it; from the first file on, none is finished."""
    if folder.is_dir():
        remove_files(folder, STORE)
        remove_files(folder, PARTIAL, DOCIDS, DIGESTS, *RECORDS, "vectors-*", FIELDS)


def remove_leftovers(folder: Path) -> None:
    """Remove what a finished store no longer needs, as far as its last writer left it."""
    if any(next(folder.glob(kind), None) for kind in (PARTIAL, *RECORDS, f"*{TEMPORARY_SUFFIX}")):
        names = {shard.name for shard in StoreManifest.read(folder).shards}
        stray = [path.name for path in folder.glob("vectors-*") if path.name not in names]
        remove_files(folder, *RECORDS, *stray, f"*{TEMPORARY_SUFFIX}", PARTIAL)
