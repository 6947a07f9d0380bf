"""A store from its first shard to its last record; an interruption costs only what was begun."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from m2dr.errors import UserError
from m2dr.index.docids import Docids, digest
from m2dr.index.layout import DOCIDS, PARTIAL, STORE
from m2dr.index.manifest import PartialStore, Shard, StoreManifest, StorePlan, texts_digest
from m2dr.index.remedies import store_remedy
from m2dr.index.shards import RECORDS, Shards, forget, read_partial
from m2dr.index.vectors import Floats
from m2dr.io import ASIDE, make_folder, remove, write_whole
from m2dr.jsontext import write_json


class StoreWriter:
    """Opens a store to be written, and finishes it; its shards may be written by others.

    The folder holds `store.partial.json` until `finish`, and `store.json` from then on. Of several
    processes that write shards, one alone has a writer: it holds the folder's `lock`.

    Attributes:
        plan: what the folder holds; the `shard_rows` of a finished store are its own.
        shards: those of a store that is not finished.
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
        make_folder(folder)
        if overwrite:
            # store.json first: from then on the folder is no finished store.
            remove(folder, STORE)
            remove(folder, PARTIAL, DOCIDS, *RECORDS, "vectors-*")
        remove(folder, f"*{ASIDE}")
        self.finished = is_finished(folder)
        self._manifest = self._finished_manifest() if self.finished else None
        if not self.finished:
            self._open_partial()
        self.shards = Shards(folder, self.plan)

    def has(self, number: int) -> bool:
        """Whether a shard is there, whole."""
        if self._manifest:
            return number < len(self._manifest.shards)
        return self.shards.has(number)

    def numbers(self) -> list[int]:
        """The shards that are there, increasing."""
        return list(range(len(self._manifest.shards))) if self._manifest else self.shards.numbers()

    @property
    def written(self) -> int:
        """How many shards are there from the first one on, without a gap."""
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
        if (shard.docids, shard.texts) != (digest(docids), texts):
            raise self._changed(f"{shard.name} was encoded from other documents")

    def expect(self, documents: int) -> int:
        """Refuse to go on when more was written than `documents` make; how many shards they make.

        Raises:
            UserError: the corpus has changed since.
        """
        shards = -(-documents // self.plan.shard_rows)
        found = self._manifest.documents if self._manifest else documents
        there = self.numbers()
        if found != documents or (there and there[-1] >= shards):
            rows = found if self._manifest else (there[-1]) * self.plan.shard_rows + 1
            more = "" if self._manifest else "at least "
            raise self._changed(
                f"{more}{rows} documents were encoded and the corpus has {documents}"
            )
        return shards

    def finish(self, documents: int) -> None:
        """Write docids.txt and then store.json: the store is finished.

        Args:
            documents: how many the corpus has.

        Raises:
            UserError: there are none, a docid comes twice, or the disk refuses.
            ValueError: the caller's mistake, shards are missing.
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
        _refuse_repeats(Docids(lines))
        write_whole(self.folder / DOCIDS, lines)
        self._made(shards, documents, hashlib.sha256(lines).hexdigest()).write(self.folder)
        self.finished = True
        forget(self.folder, shards)
        remove(self.folder, PARTIAL)

    def _finished_manifest(self) -> StoreManifest:
        manifest = StoreManifest.read(self.folder)
        self._same(manifest.plan, ignore="shard_rows")
        self.plan = manifest.plan
        # What is left when the last writer was stopped just before it had tidied up.
        remove(self.folder, PARTIAL, *RECORDS)
        return manifest

    def _open_partial(self) -> None:
        """Take the plan that is there, or write this one down; without a plan, no record counts."""
        if not (self.folder / PARTIAL).exists():
            remove(self.folder, *RECORDS)
            write_json(self.folder / PARTIAL, PartialStore(self.plan))
            return
        plan = read_partial(self.folder, lambda: f"Start afresh {self._afresh()}").plan
        self._same(plan)
        self.plan = plan

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
                f"or start afresh {self._afresh()}"
            )

    def _changed(self, what: str) -> UserError:
        return UserError(
            f"{self.folder}: {what}, so {self.plan.corpus} has changed since encoding began. "
            f"Encode it again {self._afresh()}"
        )

    def _afresh(self) -> str:
        return store_remedy(self.folder, asdict(self.plan), overwrite=True)

    def _made(self, shards: tuple[Shard, ...], documents: int, docids: str) -> StoreManifest:
        return StoreManifest(
            corpus=self.plan.corpus,
            documents=documents,
            layer=self.plan.layer,
            width=self.plan.width,
            dtype=self.plan.dtype,
            shard_rows=self.plan.shard_rows,
            label=self.plan.label,
            shards=shards,
            docids=docids,
            texts=texts_digest(shards),
        )


def is_finished(folder: Path) -> bool:
    """Whether a folder says that it holds a whole store."""
    return (folder / STORE).exists()


def _refuse_repeats(docids: Docids) -> None:
    """Refuse a docid that comes twice; by hashes first, which are 8 bytes each."""
    hashes = np.fromiter(map(hash, _each(docids)), np.int64, len(docids))
    hashes.sort()
    suspects = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    seen = set()
    for docid in _each(docids) if suspects else ():
        if docid in seen:
            raise UserError(f"The docid {docid!r} comes twice. Give each document its own id.")
        if hash(docid) in suspects:
            seen.add(docid)


def _each(docids: Docids) -> Iterator[str]:
    return (docids[row] for row in range(len(docids)))
