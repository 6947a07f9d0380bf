"""FAISS indexes of one prefix: build, open and search them, also on a gpu."""

# Shapes in this file: Q queries, n rows or documents found.

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from pathlib import Path

import numpy as np

from m2dr.core import files
from m2dr.core.arrays import Floats
from m2dr.core.errors import UserError, nearest
from m2dr.core.progress import say
from m2dr.index.docids import Docids, read_docids
from m2dr.index.engines import (
    FLAT,
    FaissRecipe,
    empty_index,
    engine_of,
    factory_name,
    sample_rows,
    train_index,
)
from m2dr.index.exact import ExactIndex
from m2dr.index.filters import Filter
from m2dr.index.library import Handle, gpu_refusal, load_faiss, reason_of, refusing, threads
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
from m2dr.index.searchable import LISTED, Rows, Scores, Searchable
from m2dr.index.store import Store, open_store
from m2dr.index.vectors import check_depth, check_queries, prefixes

SCANNED = 5_000  # documents that a filter leaves, at most, which are all scored exactly
GPU_DEPTH = 2048  # documents per query that FAISS on a gpu can find, or lists read, at most
LEAST = {"nprobe": 1, "efSearch": 1, "rescore": 0}  # of the parameters chosen at search time
SEARCHED = 500  # documents that are looked up in a new graph by their own vectors
REACHED = 0.98  # of these, that are found where equal vectors are few
_ROUNDING = 1e-6  # by which two float32 products of the same vectors may differ, and more


@dataclass(frozen=True)
class FaissIndex(Searchable):
    """A FAISS index of one prefix, open for search."""

    manifest: IndexManifest
    docids: Docids
    faiss: Handle
    search_params: Mapping[str, int] = field(default_factory=dict)
    store: Store | None = None  # what candidates are rescored with
    gpu: Handle = None  # the same index on a gpu
    folder: Path = Path()  # of the index, in that of its store if that was kept
    rows: Rows | None = None  # that a filter lets through, increasing; None: all

    @property
    def documents(self) -> int:
        """Number of documents, of those that the filter lets through."""
        return self.manifest.documents if self.rows is None else len(self.rows)

    @property
    def dim(self) -> int:
        """Dims of a query that are compared."""
        return self.manifest.dim

    @property
    def exact(self) -> bool:
        """Whether no better document can be missing."""
        return self.manifest.engine == FLAT

    @property
    def rescore(self) -> int:
        """Candidates per wanted document that are scored again with the store; 0: none."""
        return self.search_params.get("rescore", 0)

    @cached_property
    def _stored(self) -> Store:
        """The store that the index was cut from."""
        return self.store or open_store(self.folder.parent)

    def with_search_params(
        self, search_params: Mapping[str, int], store: Store | None = None
    ) -> "FaissIndex":
        """Return the same index with other search parameters; the two share their memory.

        Args:
            search_params: `nprobe`, `efSearch` or `rescore`, as far as the engine has them.
            store: that the index was cut from; needed to rescore.

        Raises:
            UserError: the engine has no such parameter, a value is too small, or there is no store.
        """
        names = _parameter_names(self.faiss, self.exact)
        for name, value in search_params.items():
            if name not in names:
                hint = nearest(name, names) if names else "It has none."
                raise UserError(f"Engine {self.manifest.engine} has no setting {name!r}. {hint}")
            if value < LEAST[name]:
                raise UserError(f"{name} is {LEAST[name]} at least, and {value} was given.")
        merged, store = {**self.search_params, **search_params}, store or self.store
        if merged.get("rescore") and store is None:
            name = self.manifest.engine
            raise UserError(f"Engine {name} rescores with a store; open it, or set rescore to 0.")
        return replace(self, search_params=merged, store=store)

    def deeper(self, k: int) -> "FaissIndex":
        """See Searchable; nprobe grows until its lists hold LISTED documents for each of `k`."""
        lists = self._lists
        if lists is None or not self.documents:
            return self
        least = min(lists.nlist, ceil(LISTED * k * lists.nlist / self.manifest.documents))
        if self.search_params.get("nprobe", lists.nprobe) >= least:
            return self
        return replace(self, search_params={**self.search_params, "nprobe": least})

    @cached_property
    def _lists(self) -> Handle:
        """The inverted lists inside, a faiss.IndexIVF; None without any."""
        return load_faiss().try_extract_index_ivf(self.faiss)

    def where(self, wanted: Filter) -> "FaissIndex":
        """See Searchable; the store beside the index has the fields."""
        store = self._stored
        # FAISS selects no rows on a gpu.
        return replace(self, rows=store.matching(wanted), store=store, gpu=None)

    def search(self, queries: Floats, k: int) -> tuple[Scores, Rows]:
        """See Searchable."""
        check_depth(k)
        check_queries(queries, self.dim)
        prepared, k = prefixes(queries, self.dim, self.manifest.similarity), min(k, self.documents)
        if not len(prepared) or not k:
            return np.empty((len(prepared), k), np.float32), np.empty((len(prepared), k), np.int64)
        if self.rows is None or self.exact:
            return self._searched(prepared, k)
        # A graph, or a few lists, may miss the documents that a filter lets through, and some
        # engines heed no selector.
        scan = ExactIndex(self._stored, self.dim, rows=self.rows)
        if self.documents <= SCANNED:
            return scan.search(queries, k)
        try:
            scores, rows = self._searched(prepared, k)
        except RuntimeError:
            return scan.search(queries, k)
        short = (rows < 0).any(axis=1)
        if short.any():
            scores[short], rows[short] = scan.search(queries[short], k)
        return scores, rows

    def _searched(self, prepared: Scores, k: int) -> tuple[Scores, Rows]:
        """Search for prepared queries [Q, dim], and rescore what is found where that is asked."""
        if not self.rescore:
            return self._by_engine(prepared, k)
        assert self.store is not None  # `with_search_params` refuses to rescore without it
        _, candidates = self._by_engine(prepared, min(k * self.rescore, self.documents))
        scores = np.full((len(prepared), k), np.finfo(np.float32).min, np.float32)
        rows = np.full((len(prepared), k), -1, np.int64)
        for number, query in enumerate(prepared):
            shortlist = np.sort(candidates[number][candidates[number] >= 0])
            vectors = prefixes(self.store.rows(shortlist), self.dim, self.manifest.similarity)
            exact = _products(vectors, query)
            best = np.argsort(-exact, kind="stable")[:k]
            scores[number, : len(best)], rows[number, : len(best)] = exact[best], shortlist[best]
        return scores, rows

    def _by_engine(self, prepared: Scores, k: int) -> tuple[Scores, Rows]:
        deepest = max(k, self.search_params.get("nprobe", 1))
        index = self.gpu if self.gpu is not None and deepest <= GPU_DEPTH else self.faiss
        # Given with each search and not set on the index, so that two searchers may share one.
        params = {name: self.search_params[name] for name in ("nprobe", "efSearch")
                  if name in self.search_params}  # fmt: skip
        if "efSearch" in params and self._lists is None:
            params["efSearch"] = max(params["efSearch"], k)  # of fewer it finds a part
        keywords = {}
        if params or self.rows is not None:
            keywords["params"] = _parameters(self.faiss, params, self._selector)
        scores, rows = index.search(prepared, k, **keywords)
        if self.exact and len(prepared) > 1:
            self._settle_ties(prepared, scores, rows)
        return scores, rows

    def _settle_ties(self, prepared: Scores, scores: Scores, rows: Rows) -> None:
        """Score hits again that lie within rounding of each other, and sort them.

        A product of matrices rounds copies of a document differently at different rows.
        """
        cosine = self.manifest.similarity == "cosine"
        scale = 1 if cosine else np.abs(scores).max(axis=1, keepdims=True)
        near = np.abs(np.diff(scores)) <= _ROUNDING * scale
        for number in np.flatnonzero(near.any(axis=1)):
            tied = np.flatnonzero(np.r_[False, near[number]] | np.r_[near[number], False])
            vectors, query = self.faiss.reconstruct_batch(rows[number, tied]), prepared[number]
            scores[number, tied] = _products(vectors, query)
            order = np.argsort(-scores[number], kind="stable")
            scores[number], rows[number] = scores[number, order], rows[number, order]

    @cached_property
    def _selector(self) -> Handle:
        """A faiss.IDSelector of the rows that the filter lets through; None for all."""
        if self.rows is None:
            return None
        mask = np.zeros(self.manifest.documents, np.bool_)
        mask[self.rows] = True
        return load_faiss().IDSelectorBitmap(np.packbits(mask, bitorder="little"))


def _products(vectors: Scores, query: Scores) -> Scores:
    # einsum rounds a vector alike wherever it lies, so copies of a document tie.
    scores: Scores = np.einsum("nd,d->n", vectors, query, dtype=np.float64).astype(np.float32)
    return scores


def _parameter_names(index: Handle, exact: bool) -> list[str]:
    """Return the names of the search-time parameters that have an effect in `index`, sorted."""
    names, index = [] if exact else ["rescore"], _downcast(index)
    while hasattr(index, "chain") or hasattr(index, "base_index"):  # a rotation or a refinement
        index = _downcast(index.index if hasattr(index, "chain") else index.base_index)
    if hasattr(index, "nprobe"):
        names.append("nprobe")
        index = _downcast(index.quantizer)
    return sorted([*names, "efSearch"] if hasattr(index, "hnsw") else names)


def _parameters(index: Handle, params: Mapping[str, int], selector: Handle) -> Handle:
    """Return FAISS's SearchParameters of an index, for params by name and rows by a selector."""
    faiss = load_faiss()
    index = _downcast(index)
    chosen = {} if selector is None else {"sel": selector}
    if isinstance(index, faiss.IndexPreTransform):
        inner = _parameters(index.index, params, selector)
        return faiss.SearchParametersPreTransform(index_params=inner)
    if isinstance(index, faiss.IndexRefine):
        inner = _parameters(index.base_index, params, selector)
        return faiss.IndexRefineSearchParameters(k_factor=index.k_factor, base_index_params=inner)
    if hasattr(index, "nprobe"):
        graph = _parameters(index.quantizer, params, None) if "efSearch" in params else None
        return faiss.SearchParametersIVF(
            nprobe=params.get("nprobe", index.nprobe), quantizer_params=graph, **chosen
        )
    if hasattr(index, "hnsw"):
        ef = params.get("efSearch", index.hnsw.efSearch)
        return faiss.SearchParametersHNSW(efSearch=ef, **chosen)
    return faiss.SearchParameters(**chosen)


def _downcast(index: Handle) -> Handle:
    faiss = load_faiss()
    return faiss.downcast_index(index) if isinstance(index, faiss.Index) else index


# Building


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

    The same store, dim and engine give the same bytes each time on one machine; gpus, where FAISS
    has some, place centroids of ivf. Only the index, a block of vectors and the sample to learn
    from are held in memory.

    Args:
        store: whose vectors are cut, then normalised if the similarity is cosine.
        dim: dims to keep.
        engine: a name in ENGINES.
        folder: holds the index as `dim-<dim>`, with `-<engine>` for all but flat; the store's own
            when None.
        progress: receives the number of documents of each block that was added.
        factory: what FAISS's index factory reads, instead of an engine.
        workers: threads that build a graph, 0 for all; with more than one, its bytes differ from
            build to build.

    Returns:
        The folder of the index.

    Raises:
        UserError: the store has no such dim, there is no such engine, FAISS refuses the recipe or
            cannot learn it from so few documents, another process builds the same index, or the
            store's vectors are not those that were written.
    """
    if not 1 <= dim <= store.width:
        raise UserError(f"Dim {dim} was asked for; {store.folder} has 1 to {store.width}.")
    name, recipe_of = engine_of(engine, factory)
    recipe = recipe_of(store.documents, dim)
    target = index_folder(folder or store.folder, dim, name)
    try:
        manifest, _ = _checked(target)
        if (manifest.store, manifest.engine) == (store.manifest.digest, name):
            files.remove_stale_lock(target)
            return target
    except UserError:
        pass  # it is built below
    with files.lock_folder(target):
        # Without a manifest nobody takes the files below for an index while they are replaced.
        files.remove_files(target, MANIFEST, f"*{files.TEMPORARY_SUFFIX}")
        _write_index(store, dim, name, recipe, target, workers, progress)
    return target


def _write_index(
    store: Store,
    dim: int,
    engine: str,
    recipe: FaissRecipe,
    target: Path,
    workers: int,
    progress: Callable[[int], None] | None,
) -> None:
    """Build an index and write its files, the manifest last."""
    path, source = target / INDEX, store.manifest
    files.write_bytes(target / INDEX_DOCIDS, store.docids.data)
    index, faiss = _filled(store, dim, recipe, workers, progress), load_faiss()
    if hasattr(index, "hnsw"):
        _tell_unreached(index, store, recipe, target)
    with files.atomic_path(path) as temporary, temporary.open("wb") as file:
        # Through Python's own file: a full disk is then an OSError, not a RuntimeError.
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))
    IndexManifest(
        corpus=source.corpus,
        documents=store.documents,
        layer=store.layer,
        dim=dim,
        engine=engine,
        similarity=source.label.similarity,
        label=source.label,
        bytes=path.stat().st_size,
        sha256=files.sha256_of(path),
        docids=source.docids,
        store=source.digest,
        factory=recipe.factory,
        search_params=recipe.search_params,
        notes=recipe.notes,
    ).write(target)


def rebuild_indexes(before: Store, store: Store) -> None:
    """Build for a store the same indexes that the store `before` has beside it."""
    for built in built_indexes(before.folder):
        manifest = IndexManifest.read(built.folder)
        is_factory = built.engine == factory_name(manifest.factory)
        factory, engine = (manifest.factory, "") if is_factory else ("", built.engine)
        build_index(store, manifest.dim, engine, factory=factory)


def _filled(
    store: Store,
    dim: int,
    recipe: FaissRecipe,
    workers: int,
    progress: Callable[[int], None] | None,
) -> Handle:
    faiss, similarity = load_faiss(), store.manifest.label.similarity
    index = empty_index(recipe.factory, dim)
    if not index.is_trained:
        with _centroids_on_gpus(index):
            train_index(index, _sample(store, dim, recipe.train_rows), recipe.factory)
    storage = getattr(index, "storage", None)  # of a graph over flat codes
    flat = index if storage is None else faiss.downcast_index(storage)
    if hasattr(flat, "codes"):  # allocated at once; growing, they would be held twice
        flat.codes.resize(store.documents * flat.code_size)
        flat.codes.resize(0)
    graph = any(word in recipe.factory for word in ("HNSW", "NSG"))
    with threads(workers if graph else 0), _centroids_on_gpus(index):
        for _, block in store.blocks(compare=True):
            with refusing(f"add documents to {recipe.factory!r}"):
                index.add(prefixes(block, dim, similarity))
            if progress:
                progress(len(block))
    return index


def _tell_unreached(index: Handle, store: Store, recipe: FaissRecipe, target: Path) -> None:
    """Warn if a graph does not lead to its documents, as equal ones link only to each other.

    Of 3,000 random vectors of 32 dims, a fifth of them one, .94 are found by themselves and .88 of
    the ten nearest of others; with half of them one .75 and .67, with none equal all.
    """
    rows = np.linspace(0, store.documents - 1, min(SEARCHED, store.documents)).astype(np.int64)
    queries = prefixes(store.rows(rows), index.d, store.manifest.label.similarity)
    params = _parameters(index, dict(recipe.search_params), None)
    best = index.search(queries, 1, params=params)[0][:, 0]
    self_scores = np.einsum("nd,nd->n", queries, index.reconstruct_batch(rows))
    found = int((best >= self_scores - 1e-5 * np.abs(self_scores)).sum())
    if found < REACHED * len(rows):
        say(
            f"{target} finds {found} of {len(rows)} documents by their own vectors: the graph does "
            f"not reach the others, perhaps because many vectors are equal. Build flat or ivf."
        )


@contextmanager
def _centroids_on_gpus(index: Handle) -> Iterator[None]:
    """Let all gpus find nearest centroids within the block, in k-means and for added documents."""
    faiss = load_faiss()
    ivf: Handle = None if gpu_refusal() else faiss.try_extract_index_ivf(index)
    quantizer = None if ivf is None else faiss.downcast_index(ivf.quantizer)
    # Residuals are taken from centroids, which copies on several gpus do not give back.
    if not isinstance(quantizer, faiss.IndexFlat) or (index.is_trained and ivf.by_residual):
        yield
        return
    name, previous = ("quantizer", quantizer) if index.is_trained else ("clustering_index", None)
    copies = faiss.index_cpu_to_all_gpus(quantizer)
    setattr(ivf, name, copies)
    try:
        yield
    finally:
        setattr(ivf, name, previous)


def _sample(store: Store, dim: int, rows: int) -> Scores:
    """Return `rows` documents at most, prepared to learn from."""
    drawn = sample_rows(store.documents, rows)
    sample = np.empty((len(drawn), dim), np.float32)
    for start, block in store.blocks():
        first, last = np.searchsorted(drawn, (start, start + len(block)))
        picked = block[drawn[first:last] - start, :dim]
        sample[first:last] = prefixes(picked, dim, store.manifest.label.similarity)
    return sample


# Opening


def open_faiss(
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
        names = ", ".join(index.folder.name for index in built_indexes(folder.parent))
        there = f"; there are {names}" if names else ""
        raise UserError(f"{folder} holds no finished index{there}.")
    manifest, docids = _checked(folder)
    _refuse_stale(folder, manifest)
    path = folder / INDEX
    try:
        handle: Handle = load_faiss().read_index(str(path))
    except RuntimeError as error:
        raise _damaged(path, "cannot be read by FAISS") from error
    if (handle.ntotal, handle.d) != (manifest.documents, manifest.dim):
        raise _damaged(path, f"holds {handle.ntotal} vectors of {handle.d} dims")
    chosen = {**dict(manifest.search_params), **(search_params or {})}
    if store is None and chosen.get("rescore", 0) > 0 and manifest.engine != FLAT:
        try:
            store = open_store(folder.parent)
        except UserError as error:
            raise UserError(
                f"{error} Or search {manifest.engine} with rescore set to 0."
            ) from error
    elif store is not None and store.manifest.digest != manifest.store:
        raise UserError(f"{folder} was not cut from the vectors in {store.folder}. Give its own.")
    opened = FaissIndex(manifest, docids, handle, folder=folder)
    return opened.with_search_params(chosen, store)


def index_problems(folder: Path) -> Iterator[str]:
    """Yield a sentence for each fault in the files of an index, without opening it in FAISS."""
    try:
        manifest, _ = _checked(folder)
        if files.sha256_of(folder / INDEX) != manifest.sha256:
            yield f"{folder / INDEX} is not the file that was written."
        _refuse_stale(folder, manifest)
    except UserError as error:
        yield str(error)


def _checked(folder: Path) -> tuple[IndexManifest, Docids]:
    """Read the manifest and the docids, refusing files that are not those that were written."""
    manifest, path = IndexManifest.read(folder), folder / INDEX
    size = path.stat().st_size if path.is_file() else 0
    if size != manifest.bytes:
        raise _damaged(path, f"has {size} bytes, and {manifest.bytes} were written")
    if size <= files.HASHED_BYTES and files.sha256_of(path) != manifest.sha256:
        raise _damaged(path, "is not the file that was written: its sha256 differs")
    return manifest, read_docids(folder / INDEX_DOCIDS, manifest.documents, manifest.docids)


def _refuse_stale(folder: Path, manifest: IndexManifest) -> None:
    """Refuse an index whose store, when it is in the parent folder, has been written anew."""
    store = folder.parent
    if (store / STORE).exists() and StoreManifest.read(store).digest != manifest.store:
        raise UserError(f"{folder} was cut from vectors that were changed since; build it again.")


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path} {what}. Build the index again.")


# On an NVIDIA gpu, where it really works there


def on_gpu(index: FaissIndex, number: int = 0) -> tuple[FaissIndex | None, str]:
    """Copy an index to a gpu; what the gpu cannot do still runs on the processor.

    That is more than GPU_DEPTH documents per query, and rescoring. So the index stays in the
    processor's memory too.

    Args:
        index: open.
        number: of the gpu.

    Returns:
        The same index, searched on the gpu, or None where FAISS cannot; and a sentence that says
        which.
    """
    if reason := gpu_refusal(number):
        return None, f"FAISS cannot use gpu {number}: {reason}."
    faiss = load_faiss()
    try:
        resources = faiss.StandardGpuResources()
        copy: Handle = faiss.index_cpu_to_gpu(resources, number, index.faiss)
        copy.resources = resources  # FAISS keeps no reference of its own
    # FAISS refuses; a wrapper has no such index; no function takes an index of this kind.
    except (RuntimeError, AttributeError, TypeError) as error:
        name = index.manifest.engine
        return None, f"FAISS cannot move the {name} index to gpu {number}: {reason_of(error)}."
    return replace(index, gpu=copy), f"FAISS searches on gpu {number}."
