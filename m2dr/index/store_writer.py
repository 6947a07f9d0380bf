"""Write a store shard by shard; an interruption costs only the shards that were begun."""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from m2dr.core.errors import UserError
from m2dr.core.files import (
    TEMPORARY_SUFFIX,
    read_record,
    remove_files,
    sha256_of,
    write_bytes,
    write_record,
)
from m2dr.index.layout import DOCIDS, PARTIAL, STORE, shard_name, store_remedy
from m2dr.index.manifest import PartialStore, Shard, StoreManifest, StorePlan, texts_digest
from m2dr.index.searchable import Docids, encode_docids
from m2dr.index.vectors import FORMATS, Floats

RECORDS = ("vectors-*.json", "docids-*.txt")  # what a finished store no longer needs


class Shards:
    """The shards of a half-written store, which several processes may write at once.

    A shard is three files, each complete or absent, written in this order: its docids, its vectors,
    its record. A shard with a record is there; others are written again, with the same bytes.
    """

    def __init__(self, folder: Path, plan: StorePlan) -> None:
        self.folder = folder
        self.plan = plan
        self._format = FORMATS[plan.dtype]

    def has(self, number: int) -> bool:
        """Whether a shard is recorded, and its files are there and complete."""
        if not (self._record(number).exists() and self._docids(number).exists()):
            return False
        return has_size(self.folder, self.read(number), self.plan)

    def numbers(self) -> list[int]:
        """Return the numbers of the shards that are there, increasing."""
        names = (path.name for path in self.folder.glob(RECORDS[0]))
        found = (re.fullmatch(r"vectors-(\d+)\.json", name) for name in names)
        return sorted(n for n in (int(match[1]) for match in found if match) if self.has(n))

    def read(self, number: int) -> Shard:
        """Read the record of a shard.

        Raises:
            UserError: there is no record, or it is damaged.
        """

        def remedy() -> str:
            return f"Remove this file and go on {store_remedy(self.folder, resume=True)}"

        path, name = self._record(number), shard_name(number, self.plan.dtype)
        shard = read_record(path, Shard)
        if shard.name != name or not 1 <= shard.rows <= self.plan.shard_rows:
            raise UserError(
                f"{path} records {shard.rows} rows in {shard.name!r}, where {name!r} with 1 to "
                f"{self.plan.shard_rows} belongs. {remedy()}"
            )
        return shard

    def read_all(self) -> list[Shard]:
        """Read the records of the shards that are there, in corpus order."""
        return [self.read(number) for number in self.numbers()]

    def write(self, number: int, docids: Sequence[str], vectors: Floats, texts: str) -> int:
        """Write a shard, and then its record.

        Args:
            number: of the shard, in the order of the corpus.
            docids: n of them, `plan.shard_rows` in every shard but the last.
            vectors: [n, plan.width] float32, not normalised.
            texts: a digest of what was encoded, which `StoreWriter.check` compares.

        Returns:
            The size of the vectors in bytes.

        Raises:
            UserError: a value is not finite or too large for the dtype, or the disk refuses.
        """
        self._expect(len(docids), vectors)
        data, lines = self._packed(vectors, docids), encode_docids(docids)
        name = shard_name(number, self.plan.dtype)
        vectors_sha, docids_sha = (hashlib.sha256(part).hexdigest() for part in (data, lines))
        write_bytes(self._docids(number), lines)
        write_bytes(self.folder / name, data)
        write_record(self._record(number), Shard(name, len(docids), vectors_sha, docids_sha, texts))
        return len(data)

    def docids(self, number: int) -> bytes:
        """Read the docids of a shard, one per line.

        Raises:
            UserError: they are not those that were written.
        """
        path = self._docids(number)
        if sha256_of(path) != self.read(number).docids:
            raise UserError(
                f"{path} is not the file that was written. Remove it and go on "
                f"{store_remedy(self.folder, resume=True)}"
            )
        return path.read_bytes()

    def _record(self, number: int) -> Path:
        return self.folder / shard_name(number, "json")

    def _docids(self, number: int) -> Path:
        return self.folder / f"docids-{number:05d}.txt"

    def _expect(self, rows: int, vectors: Floats) -> None:
        """Raise ValueError where the caller gives a shard of another shape."""
        if vectors.shape != (rows, self.plan.width):
            raise ValueError(f"{rows} documents of {self.plan.width} floats, not {vectors.shape}.")
        if not 0 < rows <= self.plan.shard_rows:
            raise ValueError(f"Every shard but the last has {self.plan.shard_rows} rows.")

    def _packed(self, vectors: Floats, docids: Sequence[str]) -> bytes:
        """Return vectors [n, width] as the file holds them; refuse those that are not finite."""
        with np.errstate(over="ignore"):
            largest = np.abs(vectors).max(axis=1).astype(self._format.read_as)
        bad = np.flatnonzero(~np.isfinite(largest))
        if bad.size:
            raise _unfit(docids[int(bad[0])], vectors[int(bad[0])])
        return self._format.pack(vectors)


def has_size(folder: Path, shard: Shard, plan: StorePlan) -> bool:
    """Whether the file of `shard` is there and complete."""
    path = folder / shard.name
    return path.is_file() and path.stat().st_size == FORMATS[plan.dtype].bytes_of(
        shard.rows, plan.width
    )


def _tidy(folder: Path, shards: Sequence[Shard]) -> None:
    """Remove the records, what killed workers left, and all but the given shards."""
    names = {shard.name for shard in shards}
    stray = [path.name for path in folder.glob("vectors-*") if path.name not in names]
    remove_files(folder, *RECORDS, *stray, f"*{TEMPORARY_SUFFIX}")


def _unfit(docid: str, vector: Floats) -> UserError:
    if np.isfinite(vector).all():
        told = f"reaches {np.abs(vector).max():.3g}, too large for f16"
        return UserError(f"The vector of document {docid!r} {told}. Encode with --store f32.")
    return UserError(
        f"The vector of document {docid!r} is not finite. Look at the model's weights and dtype."
    )


def read_partial(folder: Path, remedy: Callable[[], str] | None = None) -> PartialStore:
    """Read store.partial.json, the plan of an unfinished store.

    Args:
        folder: of the store.
        remedy: gives what to do when the file cannot be used; None: as the records beside it say.

    Raises:
        UserError: the file is missing or malformed.
    """
    remedy = remedy or (lambda: f"Start afresh {store_remedy(folder, overwrite=True)}")
    return read_record(folder / PARTIAL, PartialStore)


class StoreWriter:
    """Open a store for writing, and finish it; other processes may write its shards.

    The folder holds `store.partial.json` until `finish`, and `store.json` from then on. Of several
    processes that write shards, one alone has a writer: it holds the folder's `lock`.

    Attributes:
        plan: what the folder holds; the `shard_rows` of a finished store are its own.
        shards: those of an unfinished store.
        finished: whether nothing is left to write.
    """

    def __init__(self, folder: Path, plan: StorePlan, *, overwrite: bool = False) -> None:
        """Open `folder`, which need not exist, to write or to go on writing.

        Args:
            folder: of one layer.
            plan: what the store is to hold.
            overwrite: remove what the folder holds and start afresh.

        Raises:
            UserError: the folder holds another store, or cannot be written to.
        """
        self.folder = folder
        self.plan = plan
        folder.mkdir(parents=True, exist_ok=True)
        if overwrite:
            # store.json first: from then on the folder is no finished store.
            remove_files(folder, STORE)
            remove_files(folder, PARTIAL, "docids*", *RECORDS, "vectors-*", "deleted-*", "fields-*")
        remove_files(folder, f"*{TEMPORARY_SUFFIX}")
        self.finished = is_finished(folder)
        self._manifest = self._finished_manifest() if self.finished else None
        if not self.finished:
            self._open_partial()
        self.shards = Shards(folder, self.plan)

    def has(self, number: int) -> bool:
        """Whether a shard is there and complete."""
        if self._manifest:
            return number < len(self._manifest.shards)
        return self.shards.has(number)

    def numbers(self) -> list[int]:
        """Return the numbers of the shards that are there, increasing."""
        return list(range(len(self._manifest.shards))) if self._manifest else self.shards.numbers()

    @property
    def written(self) -> int:
        """Number of shards that are there from the first one on, without a gap."""
        there = self.numbers()
        return next((n for n in range(len(there)) if there[n] != n), len(there))

    def write(self, number: int, docids: Sequence[str], vectors: Floats, texts: str) -> None:
        """Write one shard in this process, as `Shards.write` does."""
        if self.finished:
            raise ValueError(f"{self.folder} is finished.")
        self.shards.write(number, docids, vectors, texts)

    def check(self, number: int, docids: Sequence[str], texts: str) -> None:
        """Refuse to go on when shard `number` on disk was encoded from other documents.

        Args:
            number: of a shard that is there.
            docids: those that it would be encoded from now.
            texts: a digest of what it would be encoded from.

        Raises:
            UserError: the corpus has changed since.
        """
        shard = self._manifest.shards[number] if self._manifest else self.shards.read(number)
        digest = hashlib.sha256(encode_docids(docids)).hexdigest()
        if (shard.docids, shard.texts) != (digest, texts):
            raise self._changed(f"{shard.name} was encoded from other documents")

    def expect(self, documents: int) -> int:
        """Return the number of shards that `documents` make; refuse if there are more already.

        Raises:
            UserError: the corpus has changed since.
        """
        shards = -(-documents // self.plan.shard_rows)
        found = self._manifest.documents if self._manifest else documents
        there = self.numbers()
        if found != documents or (there and there[-1] >= shards):
            rows = found if self._manifest else there[-1] * self.plan.shard_rows + 1
            more = "" if self._manifest else "at least "
            raise self._changed(
                f"{more}{rows} documents were encoded and the corpus has {documents}"
            )
        return shards

    def finish(self, documents: int) -> None:
        """Write docids.txt and then store.json, which marks the store as finished.

        Args:
            documents: how many the corpus has.

        Raises:
            UserError: there are none, a docid comes twice, or the disk refuses.
            ValueError: shards are missing.
        """
        if not documents:
            raise UserError(f"The corpus {self.plan.corpus} has no documents to search.")
        numbers = range(self.expect(documents))
        missing = sorted(set(numbers) - set(self.numbers()))
        if missing:
            raise ValueError(f"Shards {missing} of {self.folder} are not written.")
        shards = tuple(self.shards.read(number) for number in numbers)
        if sum(shard.rows for shard in shards) != documents:
            raise ValueError(f"The shards of {self.folder} do not hold {documents} documents.")
        lines = b"".join(self.shards.docids(number) for number in numbers)
        docids = Docids(lines)
        if rows := docids.repeated():
            raise UserError(
                f"The docid {docids[rows[0]]!r} comes twice. Give each document its own id."
            )
        write_bytes(self.folder / DOCIDS, lines)
        StoreManifest(
            **vars(self.plan),
            documents=documents,
            shards=shards,
            docids=hashlib.sha256(lines).hexdigest(),
            texts=texts_digest(shards),
        ).write(self.folder)
        self.finished = True
        _tidy(self.folder, shards)
        remove_files(self.folder, PARTIAL)

    def _finished_manifest(self) -> StoreManifest:
        manifest = StoreManifest.read(self.folder)
        self._refuse_other(manifest.plan, ignore=("shard_rows", "runtime"))
        self.plan = manifest.plan
        # What is left when the last writer was stopped before `_tidy` ended.
        remove_files(self.folder, PARTIAL, *RECORDS)
        return manifest

    def _open_partial(self) -> None:
        """Take the plan that is there, or write this one; without a plan, no record counts."""
        if not (self.folder / PARTIAL).exists():
            remove_files(self.folder, *RECORDS)
            write_record(self.folder / PARTIAL, PartialStore(self.plan))
            return
        plan = read_partial(self.folder, lambda: f"Start afresh {self._afresh()}").plan
        self._refuse_other(plan)
        self.plan = plan

    def _refuse_other(self, found: StorePlan, ignore: Sequence[str] = ()) -> None:
        refuse_other_plan(self.folder, found, self.plan, ignore)

    def _changed(self, what: str) -> UserError:
        return UserError(
            f"{self.folder}: {what}, so {self.plan.corpus} has changed since encoding began. "
            f"Encode it again {self._afresh()}"
        )

    def _afresh(self) -> str:
        return store_remedy(self.folder, asdict(self.plan), overwrite=True)


def refuse_other_plan(
    folder: Path, found: StorePlan, asked: StorePlan, ignore: Sequence[str] = ()
) -> None:
    """Refuse to use a store that was made with other settings.

    Args:
        folder: of the store.
        found: its plan.
        asked: the plan of what was asked for.
        ignore: fields that may differ.

    Raises:
        UserError: another one does.
    """
    pairs = found.differences(asked).items()
    told = [f"{name} {a!r}, not {b!r}" for name, (a, b) in pairs if name not in ignore]
    if told:
        raise UserError(
            f"{folder} holds a store with {', '.join(told)}. Repeat the settings it was made with, "
            f"or start afresh {store_remedy(folder, asdict(asked), overwrite=True)}"
        )


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a finished store."""
    return (folder / STORE).exists()
