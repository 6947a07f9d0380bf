"""The shards of one store, each with a record of its own: any process may write any of them."""

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from m2dr.errors import UserError
from m2dr.index.docids import encode
from m2dr.index.formats import FORMATS
from m2dr.index.layout import PARTIAL, shard_name
from m2dr.index.manifest import PartialStore, Shard, StorePlan
from m2dr.index.remedies import store_remedy
from m2dr.index.vectors import Floats
from m2dr.io import ASIDE, remove, sha256, write_whole
from m2dr.jsontext import read_json, write_json

RECORDS = ("vectors-*.json", "docids-*.txt")  # what a finished store no longer needs


class Shards:
    """Shards of a half-written store; nothing is shared but the files.

    A shard is three files, each whole or absent, written in this order: its docids, its vectors,
    its record. One with a record is there; whatever else was begun is written again, and ends with
    the same bytes.
    """

    def __init__(self, folder: Path, plan: StorePlan) -> None:
        self.folder = folder
        self.plan = plan
        self._format = FORMATS[plan.dtype]

    def has(self, number: int) -> bool:
        """Whether a shard is recorded, and its files are there, whole."""
        if not (self._record(number).exists() and self._docids(number).exists()):
            return False
        return has_size(self.folder, self.read(number), self.plan)

    def numbers(self) -> list[int]:
        """Shards that are there, increasing."""
        names = (path.name for path in self.folder.glob(RECORDS[0]))
        found = (re.fullmatch(r"vectors-(\d+)\.json", name) for name in names)
        return sorted(n for n in (int(match[1]) for match in found if match) if self.has(n))

    def read(self, number: int) -> Shard:
        """What is recorded of a shard.

        Raises:
            UserError: there is no record, or it is damaged.
        """

        def remedy() -> str:
            return f"Remove this file and go on {store_remedy(self.folder, resume=True)}"

        path, name = self._record(number), shard_name(number, self.plan.dtype)
        shard = read_json(path, Shard, remedy)
        if shard.name != name or not 1 <= shard.rows <= self.plan.shard_rows:
            raise UserError(
                f"{path} speaks of {shard.rows} rows in {shard.name!r}, where {name!r} with 1 to "
                f"{self.plan.shard_rows} belongs. {remedy()}"
            )
        return shard

    def write(self, number: int, docids: Sequence[str], vectors: Floats, texts: str) -> int:
        """Write a shard, and then that it is written.

        Args:
            number: of the shard, in the order of the corpus.
            docids: n of them, `plan.shard_rows` in every shard but the last.
            vectors: [n, plan.width] float32, not normalised.
            texts: a digest of what was encoded, to be compared by `check`.

        Returns:
            Bytes of vectors.

        Raises:
            UserError: a value is not finite or too large for the dtype, or the disk refuses.
        """
        self._expect(len(docids), vectors)
        data, lines = self._packed(vectors, docids), encode(docids)
        name = shard_name(number, self.plan.dtype)
        vectors_sha, docids_sha = (hashlib.sha256(part).hexdigest() for part in (data, lines))
        write_whole(self._docids(number), lines)
        write_whole(self.folder / name, data)
        write_json(self._record(number), Shard(name, len(docids), vectors_sha, docids_sha, texts))
        return len(data)

    def docids(self, number: int) -> bytes:
        """The docids of a shard, one per line.

        Raises:
            UserError: they are not those that were written.
        """
        path = self._docids(number)
        if sha256(path) != self.read(number).docids:
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
        """Raise ValueError, which is the caller's mistake, when a shard has another shape."""
        if vectors.shape != (rows, self.plan.width):
            raise ValueError(f"{rows} documents of {self.plan.width} floats, not {vectors.shape}.")
        if not 0 < rows <= self.plan.shard_rows:
            raise ValueError(f"Every shard but the last has {self.plan.shard_rows} rows.")

    def _packed(self, vectors: Floats, docids: Sequence[str]) -> bytes:
        """Vectors [n, width] as the file holds them, all of them finite."""
        with np.errstate(over="ignore"):
            largest = np.abs(vectors).max(axis=1).astype(self._format.read_as)
        bad = np.flatnonzero(~np.isfinite(largest))
        if bad.size:
            raise _unfit(docids[int(bad[0])], vectors[int(bad[0])])
        return self._format.pack(vectors)


def has_size(folder: Path, shard: Shard, plan: StorePlan) -> bool:
    """Whether the file of `shard` is there, whole."""
    path = folder / shard.name
    return path.is_file() and path.stat().st_size == FORMATS[plan.dtype].bytes_of(
        shard.rows, plan.width
    )


def forget(folder: Path, named: Sequence[Shard]) -> None:
    """Remove the records, what killed workers left, and shards that are not `named`."""
    names = {shard.name for shard in named}
    stray = [path.name for path in folder.glob("vectors-*") if path.name not in names]
    remove(folder, *RECORDS, *stray, f"*{ASIDE}")


def _unfit(docid: str, vector: Floats) -> UserError:
    if np.isfinite(vector).all():
        told = f"reaches {np.abs(vector).max():.3g}, too large for f16"
        return UserError(f"The vector of document {docid!r} {told}. Encode with --store f32.")
    return UserError(
        f"The vector of document {docid!r} is not finite. Look at the model's weights and dtype."
    )


def read_partial(folder: Path, remedy: Callable[[], str] | None = None) -> PartialStore:
    """Read what a store that is not finished is to hold.

    Args:
        folder: of the store.
        remedy: gives what to do when the file cannot be used; None: what its records say.

    Raises:
        UserError: the file is missing or malformed.
    """

    def afresh() -> str:
        return f"Start afresh {store_remedy(folder, overwrite=True)}"

    return read_json(folder / PARTIAL, PartialStore, remedy or afresh)
