"""A prefix of a store becomes an index that FAISS searches: built once, opened many times."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from m2dr.errors import UserError
from m2dr.index.docids import read_docids
from m2dr.index.inventory import built_indexes
from m2dr.index.layout import (
    INDEX,
    INDEX_DOCIDS,
    MANIFEST,
    STORE,
    index_folder,
)
from m2dr.index.library import load_faiss
from m2dr.index.making import Handle, empty_index, filled_index
from m2dr.index.manifest import IndexManifest, StoreManifest
from m2dr.index.opened import Index
from m2dr.index.recipes import ENGINES, Engine, Recipe, engine_of, factory_name
from m2dr.index.remedies import index_remedy
from m2dr.index.signs import Signs
from m2dr.index.store import HASHED_BYTES, Store, open_store
from m2dr.io import ASIDE, aside, locked, remove, sha256, write_whole
from m2dr.records.card import Similarity

__all__ = [
    "ENGINES",
    "Engine",
    "Index",
    "build_index",
    "check_engine",
    "factory_name",
    "open_index",
]


def check_engine(engine: str, factory: str, dim: int, similarity: Similarity) -> None:
    """Refuse an engine that cannot be made, before anything is encoded for it.

    Raises:
        UserError: there is no such engine, FAISS cannot make it at that dim, or it ranks
            otherwise than the similarity asks.
    """
    row = engine_of(engine, factory)
    if row.l2 and similarity != "cosine":
        raise UserError(
            f"Engine {row.name} ranks by distance, which agrees with cosine alone, and the "
            f"similarity of this model is {similarity}. Choose flat."
        )
    empty_index(row, row.recipe(10**6, dim), dim)


def build_index(
    store: Store,
    dim: int,
    engine: str = "flat",
    folder: Path | None = None,
    progress: Callable[[int], None] | None = None,
    factory: str = "",
    workers: int = 1,
) -> Path:
    """Index the first `dim` coordinates of a store; at once when that is already done.

    The same store, dim and engine give the same bytes each time.

    Args:
        store: whose vectors are cut, then normalised if the similarity is cosine.
        dim: coordinates to keep.
        engine: a name in ENGINES.
        folder: holds the index as `dim-<dim>`, with `-<engine>` for all but flat; the store's own
            when None.
        progress: told how many documents were added, again and again.
        factory: a string that FAISS's index factory reads, instead of an engine.
        workers: threads that build a graph, 0 for all; with more than one, its bytes differ from
            build to build.

    Returns:
        The folder of the index.

    Raises:
        UserError: the store has no such dim, there is no such engine, FAISS refuses the recipe,
            another process builds the same index, or the disk refuses.
    """
    if not 1 <= dim <= store.width:
        raise UserError(
            f"An index of dimension {dim} was asked for, and {store.folder} holds vectors of "
            f"{store.width}. Choose a dim from 1 to {store.width}."
        )
    check_engine(engine, factory, dim, store.manifest.label.similarity)
    row = engine_of(engine, factory)
    target = index_folder(folder or store.folder, dim, row.name)
    if _is_built(target, store.manifest.digest, row.name):
        return target
    recipe = row.recipe(store.documents, dim)
    with locked(target, "choose another dim or engine"):
        if _is_built(target, store.manifest.digest, row.name):
            return target  # by another process, in the meantime
        # Without a manifest nobody takes the files below for an index while they are replaced.
        remove(target, MANIFEST, f"*{ASIDE}")
        write_whole(target / INDEX_DOCIDS, store.docids.data)
        _write(filled_index(store, dim, row, recipe, workers, progress), target / INDEX)
        _manifest(store, dim, row, recipe, target / INDEX).write(target)
    return target


def open_index(
    folder: Path, store: Store | None = None, knobs: Mapping[str, int] | None = None
) -> Index:
    """Open the index in `folder`, once its files are known to be those that were written.

    Args:
        folder: of the index.
        store: that it was cut from, to rescore candidates with; the one beside it when None.
        knobs: `nprobe`, `efSearch` or `rescore`, instead of those in the manifest.

    Raises:
        UserError: there is no index, a file is missing or has changed, the vectors that it was
            cut from have been encoded anew since, or the store to rescore with has gone.
    """
    if not (folder / MANIFEST).exists():
        raise _absent(folder)
    manifest = IndexManifest.read(folder)
    row = _row_of(manifest)
    _refuse_stale(folder, manifest)
    _refuse_changed(folder / INDEX, manifest)
    docids = read_docids(
        folder / INDEX_DOCIDS,
        manifest.documents,
        manifest.docids,
        partial(index_remedy, folder),
    )
    try:
        handle = _read(folder / INDEX, row, manifest.dim)
    except RuntimeError as error:
        raise _damaged(folder / INDEX, "cannot be read by FAISS") from error
    if (handle.ntotal, handle.d) != (manifest.documents, manifest.dim):
        raise _damaged(folder / INDEX, f"holds {handle.ntotal} vectors of {handle.d} coordinates")
    chosen = {**dict(manifest.knobs), **(knobs or {})}
    if store is None and chosen.get("rescore", 0) > 0 and not row.exact:
        store = _beside(folder, manifest)
    elif store is not None and store.manifest.digest != manifest.store:
        raise UserError(f"{folder} was not cut from the vectors in {store.folder}. Give its own.")
    opened = Index(manifest, docids, row, handle, beside=folder.parent)
    return opened.with_knobs(chosen, store)


def _row_of(manifest: IndexManifest) -> Engine:
    """The row that made an index: one of ENGINES, or the user's factory string."""
    if manifest.factory and manifest.engine == factory_name(manifest.factory):
        return engine_of("", manifest.factory)
    return engine_of(manifest.engine)


def _beside(folder: Path, manifest: IndexManifest) -> Store:
    """The store that an index was cut from."""
    try:
        return open_store(folder.parent)
    except UserError as error:
        raise UserError(
            f"Engine {manifest.engine} rescores its candidates with the vectors beside it, and "
            f"they have gone: {error} Or search with rescore set to 0."
        ) from error


def _is_built(folder: Path, store: str, engine: str) -> bool:
    """Whether `folder` holds an index by `engine` of the store with that digest."""
    try:
        manifest = IndexManifest.read(folder)
        _refuse_changed(folder / INDEX, manifest)
        read_docids(
            folder / INDEX_DOCIDS,
            manifest.documents,
            manifest.docids,
            partial(index_remedy, folder),
        )
    except UserError:
        return False
    return (manifest.store, manifest.engine) == (store, engine)


def _read(path: Path, engine: Engine, dim: int) -> Handle:
    faiss = load_faiss()
    if engine.kind == "signs":
        return Signs(faiss.read_index_binary(str(path)), dim)
    return faiss.read_index(str(path))


def _write(index: Any, path: Path) -> None:  # noqa: ANN401 - faiss has no type stubs
    faiss = load_faiss()
    with aside(path) as temporary, temporary.open("wb") as file:
        # Through Python's own file: a full disk is then an OSError, not words in a RuntimeError.
        writer = faiss.PyCallbackIOWriter(file.write)
        if isinstance(index, Signs):
            faiss.write_index_binary(index.binary, writer)
        else:
            faiss.write_index(index, writer)


def _manifest(store: Store, dim: int, engine: Engine, recipe: Recipe, path: Path) -> IndexManifest:
    return IndexManifest(
        corpus=store.manifest.corpus,
        documents=store.documents,
        layer=store.layer,
        dim=dim,
        engine=engine.name,
        similarity=store.manifest.label.similarity,
        label=store.manifest.label,
        bytes=path.stat().st_size,
        sha256=sha256(path),
        docids=store.manifest.docids,
        store=store.manifest.digest,
        factory=recipe.factory,
        knobs=recipe.knobs,
        reader="read_index_binary" if engine.kind == "signs" else "read_index",
        notes=recipe.notes,
    )


def _refuse_stale(folder: Path, manifest: IndexManifest) -> None:
    """Refuse an index whose store, when it lies beside it, has been written anew."""
    beside = folder.parent
    if not (beside / STORE).exists():
        return
    store = StoreManifest.read(beside)
    held = (store.digest, store.docids, store.documents)
    if held != (manifest.store, manifest.docids, manifest.documents):
        raise UserError(
            f"{folder} was cut from vectors that have been encoded anew since. "
            f"Build it again {index_remedy(folder)}"
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
    return UserError(f"{path} {what}. Build it again {index_remedy(path.parent)}")


def _absent(folder: Path) -> UserError:
    """Say what is there instead."""
    built = built_indexes(folder.parent)
    dims = sorted({index.dim for index in built if index.engine == "flat"})
    there = f"; there are dims {', '.join(map(str, dims))}" if dims else ""
    others = [index.folder.name for index in built if index.engine != "flat"]
    there += f"; there are {', '.join(others)}" if others else ""
    return UserError(f"{folder} holds no finished index{there}. Build it {index_remedy(folder)}")
