"""Vectors to disk, once per layer: shard by shard, so that encoding resumes where it stopped."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from m2dr.errors import UserError
from m2dr.index.docids import digest, encode
from m2dr.index.files import ASIDE, remove, write_whole, writing
from m2dr.index.jsonfile import read_json, write_json
from m2dr.index.layout import DOCIDS, PARTIAL, STORE, store_command
from m2dr.index.manifest import PartialStore, Shard, StoreManifest, StorePlan
from m2dr.index.store import DTYPES, Floats, has_size


class StoreWriter:
    """Writes a store shard by shard; after an interruption, another writer goes on.

    The folder holds `store.partial.json` until `finish`, and `store.json` from then on.

    Attributes:
        plan: what the folder holds; the `shard_rows` of a finished store are its own.
        finished: nothing is left to write.
    """

    def __init__(self, folder: Path, plan: StorePlan, *, overwrite: bool = False) -> None:
        """Open `folder`, which need not exist, to write or to go on writing.

        Args:
            folder: of one layer.
            plan: what the store is to hold.
            overwrite: forget what the folder holds and start afresh.

        Raises:
            UserError: the folder holds another store, or cannot be written to.
        """
        self.folder = folder
        self.plan = plan
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        if overwrite:
            # store.json first: from then on the folder is no finished store.
            remove(folder, STORE)
            remove(folder, PARTIAL, DOCIDS, "vectors-*")
        remove(folder, f"*{ASIDE}")
        self.finished = (folder / STORE).exists()
        self._shards = self._finished_shards() if self.finished else self._partial_shards()

    @property
    def written(self) -> int:
        """How many shards are complete on disk: the number of the next one."""
        return len(self._shards)

    def write(self, number: int, docids: Sequence[str], vectors: Floats, texts: str) -> None:
        """Write the next shard, and then that it is written.

        Args:
            number: of the shard; `written`, as shards are written in order.
            docids: n of them, `plan.shard_rows` in every shard but the last.
            vectors: [n, plan.width] float32, not normalised.
            texts: a digest of what was encoded, to be compared by `check`.

        Raises:
            UserError: a value is not finite or too large for the dtype, or the disk refuses.
        """
        self._expect(number, len(docids), vectors)
        name = f"vectors-{number:05d}.{self.plan.dtype}"
        data = self._converted(vectors, docids).reshape(-1).view(np.uint8).data
        sha256 = hashlib.sha256(data).hexdigest()
        shard = Shard(name, len(docids), sha256, digest(docids), texts)
        write_whole(self.folder / name, data)
        self._shards = (*self._shards, shard)
        write_json(self.folder / PARTIAL, PartialStore(self.plan, self._shards))

    def check(self, number: int, docids: Sequence[str], texts: str) -> None:
        """Refuse to go on when shard `number` on disk was encoded from other documents.

        Raises:
            UserError: the corpus has changed since.
        """
        if number >= self.written:
            raise self._changed(f"{self.written} shards were encoded and the corpus has more")
        shard = self._shards[number]
        if (shard.docids, shard.texts) != (digest(docids), texts):
            raise self._changed(f"{shard.name} was encoded from other documents")

    def finish(self, docids: Sequence[str]) -> None:
        """Write docids.txt and then store.json: the store is finished.

        Args:
            docids: of all documents, in the order in which they were written.

        Raises:
            UserError: they are not those of the shards, one comes twice, or the disk refuses.
        """
        if not self._shards:
            raise UserError(f"The corpus {self.plan.corpus} has no documents to search.")
        self._match(docids)
        _refuse_repeats(docids)
        lines = encode(docids)
        write_whole(self.folder / DOCIDS, lines)
        self._manifest(len(docids), hashlib.sha256(lines).hexdigest()).write(self.folder)
        self.finished = True
        self._tidy()

    def _finished_shards(self) -> tuple[Shard, ...]:
        manifest = StoreManifest.read(self.folder)
        self._same(manifest.plan, ignore="shard_rows")
        self.plan = manifest.plan
        remove(self.folder, PARTIAL)  # when the last writer was stopped just before doing so
        return manifest.shards

    def _partial_shards(self) -> tuple[Shard, ...]:
        """Return the leading shards that are recorded and whole; what follows is written again."""
        if not (self.folder / PARTIAL).exists():
            return ()
        remedy = f"Start afresh with: {store_command(self.folder)} --overwrite"
        partial = read_json(self.folder / PARTIAL, PartialStore, remedy)
        self._same(partial.plan)
        self.plan = partial.plan
        whole = [has_size(self.folder, shard, self.plan) for shard in partial.shards]
        return partial.shards[: [*whole, False].index(False)]

    def _same(self, found: StorePlan, ignore: str = "") -> None:
        differences = found.differences(self.plan)
        differences.pop(ignore, None)
        if differences:
            told = ", ".join(
                f"{name} {on_disk!r}, not {asked!r}"
                for name, (on_disk, asked) in differences.items()
            )
            raise UserError(
                f"{self.folder} holds a store with {told}. Repeat the settings it was made with, "
                f"or start afresh with: {store_command(self.folder)} --overwrite"
            )

    def _expect(self, number: int, rows: int, vectors: Floats) -> None:
        """Raise ValueError, which is the caller's mistake, when a shard is out of turn."""
        if self.finished or number != self.written:
            raise ValueError(f"Shard {number} is out of turn: {self.written} are written.")
        if vectors.shape != (rows, self.plan.width):
            raise ValueError(f"{rows} documents of {self.plan.width} floats, not {vectors.shape}.")
        last = self._shards[-1].rows if self._shards else self.plan.shard_rows
        if last != self.plan.shard_rows or not 0 < rows <= self.plan.shard_rows:
            raise ValueError(f"Every shard but the last has {self.plan.shard_rows} rows.")

    def _converted(self, vectors: Floats, docids: Sequence[str]) -> Floats:
        """Vectors [n, width] in the dtype of the store."""
        with np.errstate(over="ignore"):
            data = np.ascontiguousarray(vectors, DTYPES[self.plan.dtype])
        bad = np.flatnonzero(~np.isfinite(data).all(axis=1))
        if bad.size:
            row = int(bad[0])
            overflow = np.isfinite(vectors[row]).all()
            largest = np.abs(vectors[row]).max()
            told = f"reaches {largest:.3g}, too large for f16" if overflow else "is not finite"
            remedy = (
                "Encode with --store f32" if overflow else "Look at the model's weights and dtype"
            )
            raise UserError(f"The vector of document {docids[row]!r} {told}. {remedy}.")
        return data

    def _match(self, docids: Sequence[str]) -> None:
        """Refuse docids that are not those of the shards, row by row."""
        rows = sum(shard.rows for shard in self._shards)
        if rows != len(docids):
            raise self._changed(f"{rows} documents were encoded and the corpus has {len(docids)}")
        start = 0
        for shard in self._shards:
            if digest(docids[start : start + shard.rows]) != shard.docids:
                raise self._changed(f"{shard.name} was encoded from other documents")
            start += shard.rows

    def _changed(self, what: str) -> UserError:
        return UserError(
            f"{self.folder}: {what}, so {self.plan.corpus} has changed since encoding began. "
            "Encode it again: the same m2dr index corpus with --overwrite."
        )

    def _manifest(self, documents: int, docids: str) -> StoreManifest:
        texts = "".join(shard.texts for shard in self._shards)
        return StoreManifest(
            corpus=self.plan.corpus,
            documents=documents,
            layer=self.plan.layer,
            width=self.plan.width,
            dtype=self.plan.dtype,
            shard_rows=self.plan.shard_rows,
            label=self.plan.label,
            shards=self._shards,
            docids=docids,
            texts=hashlib.sha256(texts.encode()).hexdigest(),
        )

    def _tidy(self) -> None:
        """Remove the partial record, and shards of an earlier attempt that are in no record."""
        named = {shard.name for shard in self._shards}
        stray = [path.name for path in self.folder.glob("vectors-*") if path.name not in named]
        remove(self.folder, PARTIAL, *stray)


def _refuse_repeats(docids: Iterable[str]) -> None:
    """Refuse a docid that comes twice; by hashes first, which are 8 bytes each."""
    hashes = np.fromiter(map(hash, docids), np.int64)
    unique, counts = np.unique(hashes, return_counts=True)
    suspects = set(unique[counts > 1].tolist())
    seen = set()
    for docid in docids if suspects else ():
        if docid in seen:
            raise UserError(f"The docid {docid!r} comes twice. Give each document its own id.")
        if hash(docid) in suspects:
            seen.add(docid)
