"""A store's prefixes become an index in memory: a sample to learn from, then block by block."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from m2dr.errors import UserError, counted
from m2dr.index.library import load_faiss, refusing, threads
from m2dr.index.recipes import Engine, Recipe
from m2dr.index.signs import Signs
from m2dr.index.store import Store
from m2dr.index.vectors import prefixes

Handle = Any  # a faiss.Index, which has no type stubs, or Signs
SEED = 13
ROTATIONS = 10  # rounds of OPQ; FAISS's own 50 take five times as long for 1 % of the error
LINKS = 80  # efConstruction of a graph; FAISS's own 40 loses recall at a thousand documents


def empty_index(engine: Engine, recipe: Recipe, dim: int) -> Handle:
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
        if engine.kind == "signs":
            bits = -(-dim // 8) * 8
            return _careful(Signs(faiss.index_binary_factory(bits, recipe.factory), dim))
        if engine.kind == "panorama":
            return faiss.IndexFlatIPPanorama(dim, int(recipe.factory[14:]))
        metric = faiss.METRIC_L2 if engine.l2 else faiss.METRIC_INNER_PRODUCT
        return _careful(faiss.index_factory(dim, recipe.factory, metric))


def filled_index(
    store: Store,
    dim: int,
    engine: Engine,
    recipe: Recipe,
    workers: int,
    progress: Callable[[int], None] | None,
) -> Handle:
    """An index of the store's prefixes; beside it, a block and the sample are held at most.

    Args:
        store: whose vectors are cut, then normalised if the similarity is cosine.
        dim: coordinates to keep.
        engine: which way to search.
        recipe: the engine's, for this store.
        workers: threads that build a graph. Its links depend on who comes first, so only one
            thread gives the same bytes each time.
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


def _train(index: Handle, store: Store, dim: int, recipe: Recipe) -> None:
    sample = _sampled(store, dim, recipe.train_rows)
    held = counted(store.documents, "documents")
    remedy = f"The store holds {held}; choose an engine that learns less, or flat."
    asked = f"train {recipe.factory!r} on {counted(len(sample), 'documents')}"
    with refusing(asked, remedy), _eased(index):
        # Repeated where there are few: OPQ writes beyond its memory below `dim` rows, and one
        # document alone teaches no two centroids.
        index.train(np.resize(sample, (max(2, dim, len(sample)), dim)))


def _sampled(store: Store, dim: int, rows: int) -> NDArray[np.float32]:
    """Prefixes of documents drawn by a seed, in corpus order: [min(rows, documents), dim]."""
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
    """Take the memory of flat codes at once; growing, they would be held twice."""
    faiss = load_faiss()
    storage = getattr(index, "storage", None)  # of a graph over flat codes
    index = faiss.downcast_index(storage) if storage is not None else index
    if hasattr(index, "codes"):
        index.codes.resize(documents * index.code_size)
        index.codes.resize(0)


def _careful(index: Handle) -> Handle:
    """Set what a factory string cannot say, in an index and those within it."""
    faiss = load_faiss()
    inner = index
    if isinstance(index, Signs):
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
def _eased(index: Handle) -> Iterator[None]:
    """Have OPQ learn in fewer rounds, without warnings, and as many centroids as there will be."""
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
