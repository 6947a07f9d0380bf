"""Build FAISS indexes of the prefixes of a store, and open them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError, counted
from m2dr.core.files import (
    TEMPORARY_SUFFIX,
    atomic_path,
    lock_folder,
    remove_files,
    remove_stale_lock,
    sha256_of,
    write_bytes,
)
from m2dr.core.records import Similarity
from m2dr.index.engines import Engine, FaissRecipe, engine_of, factory_name
from m2dr.index.faiss import BinaryIndex, FaissIndex, load_faiss, refusing, threads
from m2dr.index.manifest import (
    INDEX,
    INDEX_DOCIDS,
    MANIFEST,
    STORE,
    IndexManifest,
    StoreManifest,
    built_indexes,
    index_folder,
)
from m2dr.index.searchable import Docids, read_docids
from m2dr.index.store import HASHED_BYTES, Store, open_store
from m2dr.index.vectors import prefixes

Handle = Any  # a faiss.Index, which has no type stubs, or BinaryIndex

SEED = 13
ROTATIONS = 10  # rounds of OPQ; FAISS's own 50 take five times as long for 1 % of the error
LINKS = 80  # efConstruction of a graph; FAISS's own 40 loses recall at a thousand documents


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
    """Index the first `dim` dims of a store; return at once when that is already done.

    The same store, dim and engine give the same bytes each time.

    Args:
        store: whose vectors are cut, then normalised if the similarity is cosine.
        dim: dims to keep.
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
    if _is_built(target, store.manifest, row.name):
        remove_stale_lock(target)
        return target
    with lock_folder(target):
        if _is_built(target, store.manifest, row.name):
            return target  # by another process, in the meantime
        # Without a manifest nobody takes the files below for an index while they are replaced.
        remove_files(target, MANIFEST, f"*{TEMPORARY_SUFFIX}")
        write_index(store, dim, row, target, workers, progress)
    return target


def write_index(
    store: Store,
    dim: int,
    row: Engine,
    target: Path,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Build an index and write its files, the manifest last."""
    recipe = row.recipe(store.documents, dim)
    write_bytes(target / INDEX_DOCIDS, store.docids.data)
    _write(filled_index(store, dim, row, recipe, workers, progress), target / INDEX)
    _manifest(store, dim, row, recipe, target / INDEX).write(target)


def rebuild_indexes(before: Path, store: Store) -> None:
    """Build the indexes that lie in a store's folder from another store, in that one's folder."""
    for built in built_indexes(before):
        manifest = IndexManifest.read(built.folder)
        own = manifest.factory if built.engine == factory_name(manifest.factory) else ""
        build_index(store, manifest.dim, "" if own else built.engine, factory=own)


def index_problems(folder: Path) -> Iterator[str]:
    """Yield a sentence for each fault in the files of an index, without opening it in FAISS."""
    try:
        manifest, _ = _checked(folder)
        if sha256_of(folder / INDEX) != manifest.sha256:
            yield f"{folder / INDEX} is not the file that was written."
        refuse_stale(folder, manifest)
    except UserError as error:
        yield str(error)


def open_index(
    folder: Path, store: Store | None = None, search_params: Mapping[str, int] | None = None
) -> FaissIndex:
    """Open the index in `folder`, after checking that its files are those that were written.

    Args:
        folder: of the index.
        store: that it was cut from, to rescore candidates; the one in the parent folder when None.
        search_params: `nprobe`, `efSearch` or `rescore`, instead of those in the manifest.

    Raises:
        UserError: there is no index, a file is missing or has changed, the vectors that it was
            cut from have been encoded anew since, or the store to rescore with has gone.
    """
    if not (folder / MANIFEST).exists():
        raise _absent(folder)
    manifest = IndexManifest.read(folder)
    try:
        return _opened(folder, store, search_params)
    except UserError:
        if IndexManifest.read(folder) == manifest:
            raise
        return open_index(folder, store, search_params)  # another process changed it meanwhile


def _opened(
    folder: Path, store: Store | None, search_params: Mapping[str, int] | None
) -> FaissIndex:
    """Open an index whose manifest is there, as `open_index` does."""
    manifest, docids = _checked(folder)
    refuse_stale(folder, manifest)
    engine = _engine_of(manifest)
    try:
        handle = _read(folder / INDEX, engine, manifest.dim)
    except RuntimeError as error:
        raise _damaged(folder / INDEX, "cannot be read by FAISS") from error
    if (handle.ntotal, handle.d) != (manifest.documents, manifest.dim):
        raise _damaged(folder / INDEX, f"holds {handle.ntotal} vectors of {handle.d} dims")
    chosen = {**dict(manifest.search_params), **(search_params or {})}
    if store is None and chosen.get("rescore", 0) > 0 and not engine.exact:
        store = _store_beside(folder, manifest)
    elif store is not None and not _is_of(store.manifest, manifest):
        raise UserError(f"{folder} was not cut from the vectors in {store.folder}. Give its own.")
    opened = FaissIndex(
        manifest,
        docids,
        engine,
        handle,
        store_folder=folder.parent,
    )
    return opened.with_search_params(chosen, store)


def empty_index(engine: Engine, recipe: FaissRecipe, dim: int) -> Handle:
    """Return an index of vectors [n, dim] that holds none yet.

    Raises:
        UserError: FAISS does not know the recipe, or cannot make it at this dim.
    """
    faiss = load_faiss()
    if engine.kind == "panorama" and not hasattr(faiss, "IndexFlatIPPanorama"):
        raise UserError(
            f"Engine {engine.name} needs a FAISS that has IndexFlatIPPanorama, and "
            f"{faiss.__version__} has none. Install faiss-cpu 1.14 or later, or choose flat."
        )
    remedy = "See the FAISS wiki for what its index factory reads, or choose another engine."
    with refusing(f"make {recipe.factory!r} at dim {dim}", remedy):
        if engine.kind == "binary":
            bits = -(-dim // 8) * 8
            return _configured(BinaryIndex(faiss.index_binary_factory(bits, recipe.factory), dim))
        if engine.kind == "panorama":
            return faiss.IndexFlatIPPanorama(dim, int(recipe.factory[14:]))
        metric = faiss.METRIC_L2 if engine.l2 else faiss.METRIC_INNER_PRODUCT
        return _configured(faiss.index_factory(dim, recipe.factory, metric))


def filled_index(
    store: Store,
    dim: int,
    engine: Engine,
    recipe: FaissRecipe,
    workers: int,
    progress: Callable[[int], None] | None,
) -> Handle:
    """Build an index of the store's prefixes; only it, a block and the sample are held in memory.

    Args:
        store: whose vectors are cut, then normalised if the similarity is cosine.
        dim: dims to keep.
        engine: which way to search.
        recipe: of the engine, for this store.
        workers: threads that build a graph. Its links depend on their order, so only one thread
            gives the same bytes each time.
        progress: told how many documents were added, again and again.

    Raises:
        UserError: FAISS refuses the recipe, or cannot learn it from so few documents; or the
            store's vectors are not those that were written.
    """
    index = empty_index(engine, recipe, dim)
    if not index.is_trained:
        _train(index, store, dim, recipe)
    _reserve(index, store.documents)
    graph = any(word in recipe.factory for word in ("HNSW", "NSG"))
    with threads(workers if graph else 0):
        for _, block in store.blocks(compare=True):
            with refusing(f"add documents to {recipe.factory!r}", "Choose another engine."):
                index.add(prefixes(block, dim, store.manifest.label.similarity))
            if progress:
                progress(len(block))
    return index


def _train(index: Handle, store: Store, dim: int, recipe: FaissRecipe) -> None:
    sample = _sampled(store, dim, recipe.train_rows)
    held = counted(store.documents, "documents")
    remedy = f"The store holds {held}; choose an engine that learns less, or flat."
    asked = f"train {recipe.factory!r} on {counted(len(sample), 'documents')}"
    with refusing(asked, remedy), _faster_rotations(index):
        # Repeated where there are few: OPQ writes beyond its memory below `dim` rows, and one
        # document alone teaches no two centroids.
        index.train(np.resize(sample, (max(2, dim, len(sample)), dim)))


def _sampled(store: Store, dim: int, rows: int) -> NDArray[np.float32]:
    """Return prefixes of documents drawn at random, in corpus order, [at most rows, dim]."""
    count = min(rows, store.documents)
    drawn = np.random.default_rng(SEED).choice(store.documents, count, replace=False)
    wanted = np.sort(drawn)
    sample = np.empty((count, dim), np.float32)
    for start, block in store.blocks():
        first, last = np.searchsorted(wanted, (start, start + len(block)))
        picked = block[wanted[first:last] - start, :dim]
        sample[first:last] = prefixes(picked, dim, store.manifest.label.similarity)
    return sample


def _reserve(index: Handle, documents: int) -> None:
    """Allocate the memory of flat codes at once; growing, they would be held twice."""
    faiss = load_faiss()
    storage = getattr(index, "storage", None)  # of a graph over flat codes
    index = faiss.downcast_index(storage) if storage is not None else index
    if hasattr(index, "codes"):
        index.codes.resize(documents * index.code_size)
        index.codes.resize(0)


def _configured(index: Handle) -> Handle:
    """Set what a factory string cannot say, in an index and those within it; return the index."""
    faiss = load_faiss()
    inner = index
    if isinstance(index, BinaryIndex):
        inner = faiss.downcast_IndexBinary(index.binary)
    elif isinstance(index, faiss.IndexPreTransform):
        inner = faiss.downcast_index(index.index)
    parts: list[Handle] = [inner, getattr(inner, "pq", None)]
    for part in parts:
        if hasattr(part, "cp"):
            # We know how few documents there are; FAISS would warn of it on the terminal.
            part.cp.min_points_per_centroid = 1
    if hasattr(inner, "hnsw"):
        inner.hnsw.efConstruction = LINKS
    return index


@contextmanager
def _faster_rotations(index: Handle) -> Iterator[None]:
    """Let OPQ learn in fewer rounds, without warnings, with as many centroids as the codes have."""
    faiss = load_faiss()
    rotated = isinstance(index, faiss.IndexPreTransform)
    inner: Handle = faiss.downcast_index(index.index) if rotated else None
    chain = [index.chain.at(number) for number in range(index.chain.size() if rotated else 0)]
    rotations = [faiss.downcast_VectorTransform(transform) for transform in chain]
    rotations = [each for each in rotations if isinstance(each, faiss.OPQMatrix)]
    bits = inner.pq.nbits if hasattr(inner, "pq") else 8
    quantizers = [faiss.ProductQuantizer(each.d_out, each.M, bits) for each in rotations]
    for rotation, quantizer in zip(rotations, quantizers, strict=True):
        quantizer.cp.min_points_per_centroid = 1
        rotation.niter, rotation.pq = ROTATIONS, quantizer
    try:
        yield
    finally:
        for rotation in rotations:
            rotation.pq = None  # FAISS neither owns nor copies it


def _engine_of(manifest: IndexManifest) -> Engine:
    """Return the engine that built an index: a row of ENGINES, or the user's factory string."""
    if manifest.factory and manifest.engine == factory_name(manifest.factory):
        return engine_of("", manifest.factory)
    return engine_of(manifest.engine)


def _store_beside(folder: Path, manifest: IndexManifest) -> Store:
    """Open the store that an index was cut from, in the parent folder."""
    try:
        return open_store(folder.parent)
    except UserError as error:
        raise UserError(
            f"Engine {manifest.engine} rescores its candidates with the vectors beside it, and "
            f"they have gone: {error} Or search with rescore set to 0."
        ) from error


def _is_built(folder: Path, store: StoreManifest, engine: str) -> bool:
    """Whether `folder` holds an index by `engine` of the store with that manifest."""
    try:
        manifest, _ = _checked(folder)
    except UserError:
        return False
    return _is_of(store, manifest) and manifest.engine == engine


def _is_of(store: StoreManifest, index: IndexManifest) -> bool:
    """Whether an index was cut from a store."""
    return store.digest == index.store


def _checked(folder: Path) -> tuple[IndexManifest, Docids]:
    """Read the manifest and the docids, refusing files that are not those that were written."""
    manifest = IndexManifest.read(folder)
    _refuse_changed(folder / INDEX, manifest)
    return manifest, read_docids(folder / INDEX_DOCIDS, manifest.documents, manifest.docids)


def _read(path: Path, engine: Engine, dim: int) -> Handle:
    faiss = load_faiss()
    if engine.kind == "binary":
        return BinaryIndex(faiss.read_index_binary(str(path)), dim)
    return faiss.read_index(str(path))


def _write(index: Any, path: Path) -> None:
    faiss = load_faiss()
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        # Through Python's own file: a full disk is then an OSError, not a RuntimeError.
        writer = faiss.PyCallbackIOWriter(file.write)
        if isinstance(index, BinaryIndex):
            faiss.write_index_binary(index.binary, writer)
        else:
            faiss.write_index(index, writer)


def _manifest(
    store: Store, dim: int, engine: Engine, recipe: FaissRecipe, path: Path
) -> IndexManifest:
    return IndexManifest(
        corpus=store.manifest.corpus,
        documents=store.documents,
        layer=store.layer,
        dim=dim,
        engine=engine.name,
        similarity=store.manifest.label.similarity,
        label=store.manifest.label,
        bytes=path.stat().st_size,
        sha256=sha256_of(path),
        docids=store.manifest.docids,
        store=store.manifest.digest,
        factory=recipe.factory,
        search_params=recipe.search_params,
        reader="read_index_binary" if engine.kind == "binary" else "read_index",
        notes=recipe.notes,
    )


def refuse_stale(folder: Path, manifest: IndexManifest) -> None:
    """Refuse an index whose store, when it is in the parent folder, has been written anew."""
    if not (folder.parent / STORE).exists():
        return
    store = StoreManifest.read(folder.parent)
    held = (store.docids, store.documents)
    if not _is_of(store, manifest) or held != (manifest.docids, manifest.documents):
        raise UserError(
            f"{folder} was cut from vectors that have been encoded anew since, or changed. "
            f"Build it again."
        )


def _refuse_changed(path: Path, manifest: IndexManifest) -> None:
    """Refuse an index file that differs from the manifest."""
    if not path.is_file():
        raise _damaged(path, "is missing")
    found = path.stat().st_size
    if found != manifest.bytes:
        raise _damaged(path, f"has {found} bytes, and {manifest.bytes} were written")
    if found < HASHED_BYTES and sha256_of(path) != manifest.sha256:
        raise _damaged(path, "is not the file that was written: its sha256 differs")


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path} {what}. Build the index again.")


def _absent(folder: Path) -> UserError:
    """Return the error for a folder without an index, with those that are there instead."""
    built = built_indexes(folder.parent)
    dims = sorted({index.dim for index in built if index.engine == "flat"})
    there = f"; there are dims {', '.join(map(str, dims))}" if dims else ""
    others = [index.folder.name for index in built if index.engine != "flat"]
    there += f"; there are {', '.join(others)}" if others else ""
    return UserError(f"{folder} holds no finished index{there}.")
