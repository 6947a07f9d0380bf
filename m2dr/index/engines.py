"""Engines as rows: one prefix of a store becomes an index that FAISS searches."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError, nearest
from m2dr.index.docids import Docids, read_docids
from m2dr.index.files import ASIDE, aside, remove, sha256, write_whole, writing
from m2dr.index.layout import (
    INDEX,
    INDEX_DOCIDS,
    MANIFEST,
    STORE,
    index_command,
    index_folder,
)
from m2dr.index.manifest import IndexManifest, StoreManifest
from m2dr.index.store import Store
from m2dr.index.vectors import Floats, check_depth, check_queries, prefixes

# Above this the digest of an index is not computed each time it is opened; its size always is.
HASHED_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Engine:
    """One way to search. A new one is a row of ENGINES, and the tests run over all rows."""

    name: str
    recipe: str  # of faiss.index_factory
    exact: bool  # agrees with a full scan, score for score


ENGINES = {engine.name: engine for engine in (Engine("flat", "Flat", exact=True),)}


@dataclass(frozen=True)
class Index:
    """An index of one prefix, open for search."""

    manifest: IndexManifest
    docids: Docids
    engine: Engine
    faiss: Any  # faiss.Index, which has no type stubs

    def prepare(self, queries: Floats) -> NDArray[np.float32]:
        """Queries [Q, at least dim], not normalised, as the engine compares them: [Q, dim].

        Raises:
            UserError: they are too short, or not finite.
        """
        check_queries(queries, self.manifest.dim)
        return prefixes(queries, self.manifest.dim, self.manifest.similarity)

    def search(self, queries: Floats, k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Search for the best `k` documents, or for all when there are fewer.

        Args:
            queries: [Q, at least dim], not normalised.
            k: how many documents for each.

        Returns:
            Scores and rows, [Q, min(k, documents)], best first, ties in any order. An engine that
            is not exact may find fewer: the row is then -1, which is no document.

        Raises:
            UserError: the queries are too short or not finite, or k is below 1.
        """
        return self.scan(self.prepare(queries), k)

    def scan(
        self, prepared: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Search as `search` does, with what `prepare` returned."""
        check_depth(k)
        k = min(k, self.manifest.documents)
        scores, rows = self.faiss.search(prepared, k)
        return scores, rows

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the documents' vectors as the engine holds them, [n, dim]."""
        found: NDArray[np.float32] = self.faiss.reconstruct_batch(rows)
        return found


def build_index(
    store: Store,
    dim: int,
    engine: str = "flat",
    folder: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Index the first `dim` coordinates of a store; at once when that is already done.

    Args:
        store: whose vectors are cut, then normalised if the similarity is cosine.
        dim: coordinates to keep.
        engine: a name in ENGINES.
        folder: holds the index as `dim-<dim>`; the store's own when None.
        progress: told how many documents were added, again and again.

    Returns:
        The folder of the index.

    Raises:
        UserError: the store has no such dim, there is no such engine, or the disk refuses.
    """
    row = _engine(engine)
    if not 1 <= dim <= store.width:
        raise UserError(
            f"An index of dimension {dim} was asked for, and {store.folder} holds vectors of "
            f"{store.width}. Choose a dim from 1 to {store.width}."
        )
    target = index_folder(folder or store.folder, dim)
    if _is_built(target, store.manifest.digest, engine):
        return target
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
    # Without a manifest nobody takes the files below for an index while they are replaced.
    remove(target, MANIFEST, f"*{ASIDE}")
    write_whole(target / INDEX_DOCIDS, store.docids.data)
    _write(_filled(store, dim, row, progress), target / INDEX)
    _manifest(store, dim, engine, target / INDEX).write(target)
    return target


def open_index(folder: Path) -> Index:
    """Open the index in `folder`, once its files are known to be those that were written.

    Raises:
        UserError: there is no index, a file is missing or has changed, or the vectors that it was
            cut from have been encoded anew since.
    """
    if not (folder / MANIFEST).exists():
        raise _absent(folder)
    manifest = IndexManifest.read(folder)
    engine = _engine(manifest.engine)
    _refuse_stale(folder, manifest)
    _refuse_changed(folder / INDEX, manifest)
    docids = read_docids(folder / INDEX_DOCIDS, manifest.documents, manifest.docids)
    try:
        index = _faiss().read_index(str(folder / INDEX))
    except RuntimeError as error:
        raise _damaged(folder / INDEX, "cannot be read by FAISS") from error
    if (index.ntotal, index.d) != (manifest.documents, manifest.dim):
        raise _damaged(folder / INDEX, f"holds {index.ntotal} vectors of {index.d} coordinates")
    return Index(manifest, docids, engine, index)


def _faiss() -> Any:  # noqa: ANN401 - faiss has no type stubs
    """Import FAISS where it is used: --help must not wait for it."""
    try:
        import faiss
    except ImportError as error:
        raise UserError(
            "Searching an index needs FAISS, and it is not installed. "
            "Install it with: pip install 'm2dr[cpu]', or 'm2dr[gpu]' for an NVIDIA card"
        ) from error
    # FAISS scores small batches one vector at a time; BLAS takes 100 queries 13 times as fast.
    faiss.cvar.distance_compute_blas_threshold = 1
    return faiss


def _engine(name: str) -> Engine:
    if name not in ENGINES:
        raise UserError(f"There is no engine {name!r}. {nearest(name, ENGINES)}")
    return ENGINES[name]


def _is_built(folder: Path, store: str, engine: str) -> bool:
    """Whether `folder` holds an index by `engine` of the store with that digest."""
    try:
        manifest = IndexManifest.read(folder)
        _refuse_changed(folder / INDEX, manifest)
        read_docids(folder / INDEX_DOCIDS, manifest.documents, manifest.docids)
    except UserError:
        return False
    return (manifest.store, manifest.engine) == (store, engine)


def _filled(store: Store, dim: int, engine: Engine, progress: Callable[[int], None] | None) -> Any:  # noqa: ANN401 - faiss has no type stubs
    """A faiss.Index of the store's prefixes; at most one block is held beside it."""
    faiss = _faiss()
    index = faiss.index_factory(dim, engine.recipe, faiss.METRIC_INNER_PRODUCT)
    _reserve(index, store.documents)
    for _, block in store.blocks():
        index.add(prefixes(block, dim, store.manifest.label.similarity))
        if progress:
            progress(len(block))
    return index


def _reserve(index: Any, documents: int) -> None:  # noqa: ANN401 - faiss has no type stubs
    """Take the memory of a flat index at once; growing, it would hold its vectors twice."""
    if hasattr(index, "codes"):
        index.codes.resize(documents * index.code_size)
        index.codes.resize(0)


def _write(index: Any, path: Path) -> None:  # noqa: ANN401 - faiss has no type stubs
    faiss = _faiss()
    with aside(path) as temporary, temporary.open("wb") as file:
        # Through Python's own file: a full disk is then an OSError, not words in a RuntimeError.
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))


def _manifest(store: Store, dim: int, engine: str, path: Path) -> IndexManifest:
    return IndexManifest(
        corpus=store.manifest.corpus,
        documents=store.documents,
        layer=store.layer,
        dim=dim,
        engine=engine,
        similarity=store.manifest.label.similarity,
        label=store.manifest.label,
        bytes=path.stat().st_size,
        sha256=sha256(path),
        docids=store.manifest.docids,
        store=store.manifest.digest,
    )


def _refuse_stale(folder: Path, manifest: IndexManifest) -> None:
    """Refuse an index whose store, when it lies beside it, has been written anew."""
    beside = folder.parent
    if (beside / STORE).exists() and StoreManifest.read(beside).digest != manifest.store:
        raise UserError(
            f"{folder} was cut from vectors that have been encoded anew since. "
            f"Build it again with: {index_command(folder)}"
        )


def _refuse_changed(path: Path, manifest: IndexManifest) -> None:
    """Refuse an index file that is not the one the manifest speaks of."""
    if not path.is_file():
        raise _damaged(path, "is missing")
    found = path.stat().st_size
    if found != manifest.bytes:
        raise _damaged(path, f"has {found} bytes, and {manifest.bytes} were written")
    if found < HASHED_BYTES and sha256(path) != manifest.sha256:
        raise _damaged(path, "is not the file that was written: its sha256 differs")


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path} {what}. Build it again with: {index_command(path.parent)}")


def _absent(folder: Path) -> UserError:
    """Say which dims are there instead."""
    names = (path.parent.name for path in folder.parent.glob(f"dim-*/{MANIFEST}"))
    dims = sorted(int(name[4:]) for name in names if re.fullmatch(r"dim-\d+", name))
    there = f"; there are dims {', '.join(map(str, dims))}" if dims else ""
    return UserError(
        f"{folder} holds no finished index{there}. Build it with: {index_command(folder)}"
    )
