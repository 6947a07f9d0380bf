"""A finished store: vectors on disk at full width, not normalised, opened as views of files."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from m2dr.errors import UserError
from m2dr.index.docids import Docids, read_docids
from m2dr.index.files import sha256
from m2dr.index.formats import FORMATS
from m2dr.index.layout import DOCIDS, PARTIAL, STORE
from m2dr.index.manifest import Shard, StoreManifest
from m2dr.index.remedies import store_remedy
from m2dr.index.shards import Shards, has_size, read_partial
from m2dr.index.vectors import Floats


@dataclass(frozen=True)
class Store:
    """The vectors of one layer: [documents, width], not normalised."""

    folder: Path
    manifest: StoreManifest
    docids: Docids

    @property
    def documents(self) -> int:
        """How many documents there are."""
        return self.manifest.documents

    @property
    def layer(self) -> int:
        """How many transformer blocks encoded them."""
        return self.manifest.layer

    @property
    def width(self) -> int:
        """How many coordinates a vector has."""
        return self.manifest.width

    def blocks(self, rows: int = 8192) -> Iterator[tuple[int, Floats]]:
        """Yield each stretch of at most `rows` documents with the row it starts at.

        A block [n, width] is a read-only view of a file, or float32 where the store holds int8;
        none crosses a shard's end.
        """
        start = 0
        for shard in self.manifest.shards:
            vectors = self._open(shard)
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

    def verify(self, progress: Callable[[int], None] | None = None) -> None:
        """Read every shard and compare it with the digest taken when it was written.

        Args:
            progress: told the rows of each shard once it is read.

        Raises:
            UserError: a shard has changed.
        """
        for problem in self.problems(progress):
            raise UserError(problem)

    def problems(self, progress: Callable[[int], None] | None = None) -> Iterator[str]:
        """The same, with a sentence for each shard that has changed."""
        for shard in self.manifest.shards:
            path = self.folder / shard.name
            if sha256(path) != shard.sha256:
                yield (
                    f"{path} is not the file that was written. Restore it, or start afresh "
                    f"{store_remedy(self.folder, overwrite=True)}"
                )
            elif progress:
                progress(shard.rows)

    def _open(self, shard: Shard) -> Callable[[Any], Floats]:
        path = self.folder / shard.name
        return FORMATS[self.manifest.dtype].reader(path, shard.rows, self.width)


def open_store(folder: Path) -> Store:
    """Open a finished store.

    Raises:
        UserError: there is none, it is half-written, or a file of it is missing or has changed.
    """
    if not (folder / STORE).exists():
        raise _unfinished(folder)
    manifest = StoreManifest.read(folder)
    for shard in manifest.shards:
        if not has_size(folder, shard, manifest.plan):
            raise UserError(
                f"{folder / shard.name} is missing or has another size than it was written with. "
                f"Restore it, or start afresh {store_remedy(folder, overwrite=True)}"
            )
    remedy = partial(store_remedy, folder, overwrite=True)
    docids = read_docids(folder / DOCIDS, manifest.documents, manifest.docids, remedy)
    return Store(folder, manifest, docids)


def _unfinished(folder: Path) -> UserError:
    if not (folder / PARTIAL).exists():
        return UserError(f"{folder} holds no store of documents. Make one {store_remedy(folder)}")
    plan = read_partial(folder).plan
    shards = Shards(folder, plan)
    written = [shards.read(number) for number in shards.numbers()]
    rows = sum(shard.rows for shard in written)
    return UserError(
        f"{folder} is half-written: {len(written)} shards with {rows} documents of "
        f"{plan.corpus}. Go on from there {store_remedy(folder, resume=True)}"
    )
