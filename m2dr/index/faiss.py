"""FAISS: the table of engines; build, open and search an index of one prefix, also on a gpu."""

import hashlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import isqrt, log2
from pathlib import Path
from typing import Any, Literal

import numpy as np

from m2dr.core import files
from m2dr.core.arrays import Float32, Floats, Int64
from m2dr.core.errors import UserError, counted, missing, nearest
from m2dr.core.records import Similarity
from m2dr.index.filters import Filter
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
from m2dr.index.searchable import Docids, Rows, Scores, Searchable, read_docids
from m2dr.index.store import HASHED_BYTES, Store, open_store
from m2dr.index.vectors import check_depth, check_queries, prefixes

SearchParams = tuple[tuple[str, int], ...]  # name and value of what is chosen at search time

# FAISS asks for 39 documents to learn one centroid of an inverted list from; it warns below.
PER_LIST = 39
TRAIN_ROWS = 65536  # documents to learn from, at most; more only where lists ask for them
PER_CENTROID = 64  # documents to learn one list from, at most


@dataclass(frozen=True)
class FaissRecipe:
    """What to build for one corpus and dim."""

    factory: str  # as faiss.index_factory reads it; for binary engines index_binary_factory
    train_rows: int = 0  # documents to learn from, at most; 0: nothing is learnt
    search_params: SearchParams = ()  # the defaults of a search
    notes: tuple[str, ...] = ()  # what differs from the engine's default, and why


@dataclass(frozen=True)
class Engine:
    """A way to search. A new one is a row of ENGINES, and the tests run over all rows."""

    name: str
    summary: str
    recipe: Callable[[int, int], FaissRecipe]  # of (documents, dim)
    exact: bool = False  # agrees with a full scan, score for score
    kind: Literal["vectors", "binary", "panorama"] = "vectors"  # binary: one bit per dim
    l2: bool = False  # scores are squared distances, negated so that higher is better


def engine_of(name: str, factory: str = "") -> Engine:
    """Return the engine called `name`, or one for a factory string of the user's.

    Raises:
        UserError: there is no such engine.
    """
    if factory:
        lists = re.search(r"IVF(\d+)", factory)
        recipe = _constant(factory, _train_rows(int(lists[1]) if lists else 0))
        return Engine(factory_name(factory), f"FAISS {factory}", recipe)
    if name not in ENGINES:
        hint = f"{nearest(name, ENGINES)} Others have a factory string, for --factory."
        raise UserError(f"There is no engine {name!r}. {hint}")
    return ENGINES[name]


def factory_name(factory: str) -> str:
    """Return a name for the index that a factory string makes, fit for a folder.

    >>> factory_name("OPQ32_128,IVF1024,PQ32")
    'opq32-128-ivf1024-pq32-11407fd9'
    """
    readable = re.sub(r"[^a-z0-9]+", "-", factory.lower()).strip("-")[:40]
    return f"{readable}-{hashlib.sha256(factory.encode()).hexdigest()[:8]}".lstrip("-")


def _constant(
    factory: str, train_rows: int = 0, search_params: SearchParams = ()
) -> Callable[[int, int], FaissRecipe]:
    """Return a recipe that is the same for every corpus and dim."""
    return lambda _documents, _dim: FaissRecipe(factory, train_rows, search_params)


def _ivf(documents: int, dim: int) -> FaissRecipe:
    del dim
    lists, notes = _lists(documents)
    params = (("nprobe", _probes(lists)),)
    return FaissRecipe(f"IVF{lists},Flat", _train_rows(lists), params, notes)


def _pq(documents: int, dim: int) -> FaissRecipe:
    """`np`: not polysemous, which costs minutes of annealing for a filter that is not used."""
    code, notes = _code(documents, dim)
    return FaissRecipe(f"PQ{code}np", TRAIN_ROWS, notes=notes)


def _opq(documents: int, dim: int) -> FaissRecipe:
    code, notes = _code(documents, dim)
    return FaissRecipe(f"OPQ{code.split('x')[0]},PQ{code}np", TRAIN_ROWS, notes=notes)


def _ivf_pq(documents: int, dim: int) -> FaissRecipe:
    lists, few = _lists(documents)
    code, notes = _code(documents, dim)
    params = (("nprobe", _probes(lists)),)
    return FaissRecipe(f"IVF{lists},PQ{code}np", _train_rows(lists), params, few + notes)


def _bits(bits: int) -> Callable[[int, int], FaissRecipe]:
    """Return a recipe of `bits` per dim: 16 centroids for 4 / bits dims, scanned in registers.

    A random rotation spreads what principal axes gather in the first dims, and fills whole bytes.
    """

    def recipe(documents: int, dim: int) -> FaissRecipe:
        width = -(-dim // 8) * 8
        # Registers hold 32 documents, and of very few the scan misses the lowest score.
        scan = "fs" if documents >= 32 else "np"
        return FaissRecipe(f"RR{width},PQ{width * bits // 4}x4{scan}", TRAIN_ROWS, _RESCORE)

    return recipe


def _panorama(documents: int, dim: int) -> FaissRecipe:
    """Use levels of 32 dims: after each, documents that cannot win any more are dropped."""
    del documents
    return FaissRecipe(f"FlatIPPanorama{max(1, dim // 32)}")


def _lists(documents: int) -> tuple[int, tuple[str, ...]]:
    """Return the number of inverted lists, about 4 √documents as a power of two, and notes."""
    default = 2 ** round(log2(4 * max(1, isqrt(documents))))
    most = max(1, documents // PER_LIST)
    if default <= most:
        return default, ()
    return most, (
        f"{most} inverted lists instead of {default}: each learns from {PER_LIST} documents at "
        f"least, and there are {documents}.",
    )


def _probes(lists: int) -> int:
    """Return 2 √lists, 8 at least: 32 of 256, 128 of 4,096."""
    return min(lists, max(8, 2 * isqrt(lists)))


def _train_rows(lists: int) -> int:
    return max(TRAIN_ROWS, PER_CENTROID * lists)


def _code(documents: int, dim: int) -> tuple[str, tuple[str, ...]]:
    """Return parts and bits of a product quantizer, `8` or, with fewer than 8 bits, `8x5`.

    A part is one byte for four dims; where four does not divide dim, there are as many parts as
    the next number that does.
    """
    wanted = -(-dim // 4)
    parts = next(parts for parts in range(wanted, dim + 1) if dim % parts == 0)
    notes = []
    if parts * 4 != dim:
        notes.append(f"Codes of {parts} parts: dim {dim} is not divisible by 4.")
    bits = min(8, max(1, documents.bit_length() - 1))
    if bits == 8:
        return str(parts), tuple(notes)
    notes.append(
        f"{2**bits} centroids per part instead of 256, for {counted(documents, 'documents')} to "
        f"learn them from."
    )
    return f"{parts}x{bits}", tuple(notes)


_EF = (("efSearch", 64),)
_RESCORE = (("rescore", 10),)

ENGINES = {
    engine.name: engine
    for engine in (
        Engine("flat", "Full scan.", _constant("Flat"), exact=True),
        Engine("flat-f16", "Full scan in half precision.", _constant("SQfp16")),
        Engine(
            "flat-l2", "Full scan by distance, for cosine.", _constant("Flat"), exact=True, l2=True
        ),
        Engine("int8", "One byte per dim.", _constant("SQ8", TRAIN_ROWS)),
        Engine("ivf", "The nearest of some inverted lists.", _ivf),
        Engine("hnsw", "A graph of near neighbours.", _constant("HNSW32", 0, _EF)),
        Engine("bits4", "Four bits per dim, then rescoring.", _bits(4)),
        Engine("bits2", "Two bits per dim, then rescoring.", _bits(2)),
        Engine("bits1", "One bit per dim, learned, then rescoring.", _bits(1)),
        Engine("pq", "One byte for four dims.", _pq),
        Engine("opq", "pq after a rotation that suits it.", _opq),
        Engine("ivf-pq", "Inverted lists of pq codes.", _ivf_pq),
        Engine(
            "binary",
            "One bit per dim, then rescoring.",
            _constant("BFlat", 0, _RESCORE),
            kind="binary",
        ),
        Engine(
            "binary-hnsw",
            "A graph over one bit per dim, then rescoring.",
            _constant("BHNSW32", 0, (*_EF, *_RESCORE)),
            kind="binary",
        ),
        Engine(
            "panorama",
            "Full scan that stops early, prefix by prefix.",
            _panorama,
            exact=True,
            kind="panorama",
        ),
    )
}


# Shapes in this file: Q queries, n rows or documents found.


Handle = Any  # a faiss.Index, which has no type stubs, or BinaryIndex

FEW = 5_000  # documents that a filter leaves, at most, which are all scored exactly
GPU_DEPTH = 2048  # documents per query that FAISS on a gpu can find, or lists read, at most
LEAST = {"nprobe": 1, "efSearch": 1, "rescore": 0}  # of the parameters chosen at search time
SEED = 13
ROUNDS = 10  # of k-means for codes of few bits; FAISS's own 25 take twice as long and rank alike
ROTATIONS = 10  # rounds of OPQ; FAISS's own 50 take five times as long for 1 % of the error
LINKS = 80  # efConstruction of a graph; FAISS's own 40 loses recall at a thousand documents
_ROUNDING = 1e-6  # by which two float32 products of the same vectors may differ, and more
_PATIENCE = 120  # seconds for a gpu to answer: the first CUDA call on a machine can take 20
# Ends with an error unless the gpu finds what was added.
_GPU_CHECK = """
import faiss, numpy
index = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), {}, faiss.IndexFlatIP(8))
index.add(numpy.eye(8, dtype="float32"))
rows = index.search(numpy.eye(8, dtype="float32"), 1)[1][:, 0]
assert (rows == numpy.arange(8)).all(), "it finds other vectors than those that were added"
"""


@dataclass(frozen=True)
class FaissIndex(Searchable):
    """A FAISS index of one prefix, open for search."""

    manifest: IndexManifest
    docids: Docids
    engine: Engine
    faiss: Handle
    search_params: Mapping[str, int] = field(default_factory=dict)
    store: Store | None = None  # what candidates are rescored with
    gpu: Handle = None  # the same index on a gpu
    store_folder: Path = Path()  # the folder that holds the index, and its store if kept
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
        return self.engine.exact

    @property
    def rescore(self) -> int:
        """Candidates per wanted document that are scored again with the store; 0: none."""
        return self.search_params.get("rescore", 0)

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
                raise UserError(f"Engine {self.engine.name} has no setting {name!r}. {hint}")
            if value < LEAST[name]:
                raise UserError(f"{name} is {LEAST[name]} at least, and {value} was given.")
        merged, store = {**self.search_params, **search_params}, store or self.store
        if merged.get("rescore") and store is None:
            name = self.engine.name
            raise UserError(f"Engine {name} rescores with a store; open it, or set rescore to 0.")
        return replace(self, search_params=merged, store=store)

    def where(self, wanted: Filter) -> "FaissIndex":
        """See Searchable; the store beside the index has the fields."""
        store = self.store or open_store(self.store_folder)
        # FAISS selects no rows on a gpu.
        return replace(self, rows=store.matching(wanted), store=store, gpu=None)

    def search(
        self, queries: Floats, k: int, search_params: Mapping[str, int] | None = None
    ) -> tuple[Scores, Rows]:
        """See Searchable.

        Args:
            queries: [Q, at least dim], not normalised.
            k: documents per query.
            search_params: as `with_search_params` takes them, for this search.
        """
        check_depth(k)
        check_queries(queries, self.dim)
        index = self.with_search_params(search_params) if search_params else self
        prepared, k = prefixes(queries, self.dim, self.manifest.similarity), min(k, self.documents)
        if not len(prepared) or not k:
            return np.empty((len(prepared), k), np.float32), np.empty((len(prepared), k), np.int64)
        if self.rows is None or self.exact:
            return index._searched(prepared, k)
        # A graph, or a few lists, may miss the documents that a filter lets through, and some
        # engines heed no selector.
        from m2dr.index.exact import ExactIndex

        scan = ExactIndex(self.store or open_store(self.store_folder), self.dim, rows=self.rows)
        if self.documents <= FEW:
            return scan.search(queries, k)
        try:
            scores, rows = index._searched(prepared, k)
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
            own = np.sort(candidates[number][candidates[number] >= 0])
            vectors = prefixes(self.store.rows(own), self.dim, self.manifest.similarity)
            again = _products(vectors, query)
            best = np.argsort(-again, kind="stable")[:k]
            scores[number, : len(best)], rows[number, : len(best)] = again[best], own[best]
        return scores, rows

    def _by_engine(self, prepared: Scores, k: int) -> tuple[Scores, Rows]:
        deepest = max(k, self.search_params.get("nprobe", 1))
        index = self.gpu if self.gpu is not None and deepest <= GPU_DEPTH else self.faiss
        # Given with each search and not set on the index, so that two searchers may share one.
        params = {name: self.search_params[name] for name in ("nprobe", "efSearch")
                  if name in self.search_params}  # fmt: skip
        more = {}
        if params or self.rows is not None:
            more["params"] = _parameters(self.faiss, params, self._selector)
        scores, rows = index.search(prepared, k, **more)
        scores = -scores if self.engine.l2 else scores
        if self.exact and self.engine.kind == "vectors" and len(prepared) > 1:
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
            own = np.flatnonzero(np.r_[False, near[number]] | np.r_[near[number], False])
            vectors, query = self.faiss.reconstruct_batch(rows[number, own]), prepared[number]
            if self.engine.l2:
                scores[number, own] = -np.square(vectors - query, dtype=np.float64).sum(axis=1)
            else:
                scores[number, own] = _products(vectors, query)
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
    if isinstance(index, BinaryIndex):
        return faiss.downcast_IndexBinary(index.binary)
    return faiss.downcast_index(index) if isinstance(index, faiss.Index) else index


# The library


def load_faiss() -> Any:
    """Import FAISS where it is used: --help must not wait for it.

    Raises:
        UserError: it is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise missing("FAISS", "cpu") from error
    # FAISS scores small batches one vector at a time; BLAS takes 100 queries 13 times as fast. One
    # query alone is a product of a matrix and a vector: there BLAS only adds the threads' waiting.
    faiss.cvar.distance_compute_blas_threshold = 2
    return faiss


def reason_of(error: Exception) -> str:
    """Return what FAISS says is wrong, without the place in its source.

    >>> reason_of(RuntimeError("Error in f() at /project/faiss/factory.cpp:12: no such index"))
    'no such index'
    """
    reason = re.split(r"\.(?:cpp|cu|cuh|h):\d+: ", str(error))[-1]
    return re.sub(r"^Error: '.*?' failed: ", "", reason).strip().rstrip(".")


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Turn a RuntimeError of FAISS into the UserError "FAISS cannot `what`"."""
    try:
        yield
    except RuntimeError as error:
        raise UserError(f"FAISS cannot {what}: {reason_of(error)}.") from error


class BinaryIndex:
    """A faiss.IndexBinary that takes float vectors and returns scores, as other indexes do.

    Attributes:
        binary: the faiss.IndexBinary, over `dim` bits rounded up to whole bytes.
        d: dims of a vector.
    """

    is_trained = True  # there is nothing to learn

    def __init__(self, binary: Any, dim: int) -> None:
        self.binary = binary
        self.d = dim

    @property
    def ntotal(self) -> int:
        """Number of documents."""
        return int(self.binary.ntotal)

    def add(self, vectors: Float32) -> None:
        """Add documents [n, dim]."""
        self.binary.add(np.packbits(vectors > 0, axis=1))

    def search(self, queries: Float32, k: int, params: Any = None) -> tuple[Float32, Int64]:
        """Search for the best k; a score is the share of equal bits less that of the others.

        Returns:
            Scores from -1 to 1 and rows, [Q, k], best first; row -1 is no document.
        """
        differ, rows = self.binary.search(np.packbits(queries > 0, axis=1), k, params=params)
        # The bits that fill up the last byte agree in all vectors, so they count nowhere.
        scores = 1 - 2 * np.asarray(differ, np.float64) / self.d
        return scores.astype(np.float32), rows


# Building


def check_engine(engine: str, factory: str, dim: int, similarity: Similarity) -> None:
    """Refuse an engine that cannot be made, before anything is encoded for it.

    Raises:
        UserError: there is no such engine, FAISS cannot make it at that dim, or it ranks
            otherwise than the similarity asks.
    """
    row = engine_of(engine, factory)
    if row.l2 and similarity != "cosine":
        raise UserError(f"Engine {row.name} needs the cosine, not {similarity}; choose flat.")
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

    The same store, dim and engine give the same bytes each time on one machine; gpus, where FAISS
    has some, place centroids of ivf. Only the index, a block of vectors and the sample to learn
    from are held in memory.

    Args:
        store: whose vectors are cut, then normalised if the similarity is cosine.
        dim: dims to keep.
        engine: a name in ENGINES.
        folder: holds the index as `dim-<dim>`, with `-<engine>` for all but flat; the store's own
            when None.
        progress: told how many documents were added, again and again.
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
    check_engine(engine, factory, dim, store.manifest.label.similarity)
    row = engine_of(engine, factory)
    target = index_folder(folder or store.folder, dim, row.name)
    try:
        manifest, _ = _checked(target)
        if (manifest.store, manifest.engine) == (store.manifest.digest, row.name):
            files.remove_stale_lock(target)
            return target
    except UserError:
        pass  # it is built below
    with files.lock_folder(target):
        # Without a manifest nobody takes the files below for an index while they are replaced.
        files.remove_files(target, MANIFEST, f"*{files.TEMPORARY_SUFFIX}")
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
    recipe, path = row.recipe(store.documents, dim), target / INDEX
    files.write_bytes(target / INDEX_DOCIDS, store.docids.data)
    index, faiss = _filled(store, dim, row, recipe, workers, progress), load_faiss()
    with files.atomic_path(path) as temporary, temporary.open("wb") as file:
        # Through Python's own file: a full disk is then an OSError, not a RuntimeError.
        writer = faiss.PyCallbackIOWriter(file.write)
        if isinstance(index, BinaryIndex):
            faiss.write_index_binary(index.binary, writer)
        else:
            faiss.write_index(index, writer)
    IndexManifest(
        corpus=store.manifest.corpus,
        documents=store.documents,
        layer=store.layer,
        dim=dim,
        engine=row.name,
        similarity=store.manifest.label.similarity,
        label=store.manifest.label,
        bytes=path.stat().st_size,
        sha256=files.sha256_of(path),
        docids=store.manifest.docids,
        store=store.manifest.digest,
        factory=recipe.factory,
        search_params=recipe.search_params,
        reader="read_index_binary" if row.kind == "binary" else "read_index",
        notes=recipe.notes,
    ).write(target)


def rebuild_indexes(before: Path, store: Store) -> None:
    """Build the indexes that lie in a store's folder from another store, in that one's folder."""
    for built in built_indexes(before):
        manifest = IndexManifest.read(built.folder)
        own = manifest.factory if built.engine == factory_name(manifest.factory) else ""
        build_index(store, manifest.dim, "" if own else built.engine, factory=own)


def empty_index(engine: Engine, recipe: FaissRecipe, dim: int) -> Handle:
    """Return an index of vectors [n, dim] that holds none yet, with what no factory string says."""
    faiss = load_faiss()
    if engine.kind == "panorama" and not hasattr(faiss, "IndexFlatIPPanorama"):
        raise UserError(f"Engine {engine.name} needs FAISS 1.14 or later, not {faiss.__version__}.")
    with _refusing(f"make {recipe.factory!r} at dim {dim}"):
        if engine.kind == "binary":
            binary = faiss.index_binary_factory(-(-dim // 8) * 8, recipe.factory)
            index, inner = BinaryIndex(binary, dim), faiss.downcast_IndexBinary(binary)
        elif engine.kind == "panorama":
            return faiss.IndexFlatIPPanorama(dim, int(recipe.factory[14:]))
        else:
            metric = faiss.METRIC_L2 if engine.l2 else faiss.METRIC_INNER_PRODUCT
            index = inner = faiss.index_factory(dim, recipe.factory, metric)
    if isinstance(index, faiss.IndexPreTransform):
        inner = faiss.downcast_index(index.index)
    parts: list[Handle] = [inner, getattr(inner, "pq", None)]
    for part in parts:
        if hasattr(part, "cp"):
            # We know how few documents there are; FAISS would warn of it on the terminal.
            part.cp.min_points_per_centroid = 1
    if hasattr(inner, "hnsw"):
        inner.hnsw.efConstruction = LINKS
    return index


def _filled(
    store: Store,
    dim: int,
    engine: Engine,
    recipe: FaissRecipe,
    workers: int,
    progress: Callable[[int], None] | None,
) -> Handle:
    faiss, similarity = load_faiss(), store.manifest.label.similarity
    index = empty_index(engine, recipe, dim)
    if not index.is_trained:
        with _centroids_on_gpus(index):
            train_index(index, _sample(store, dim, recipe.train_rows), recipe)
    storage = getattr(index, "storage", None)  # of a graph over flat codes
    flat = index if storage is None else faiss.downcast_index(storage)
    if hasattr(flat, "codes"):  # allocated at once; growing, they would be held twice
        flat.codes.resize(store.documents * flat.code_size)
        flat.codes.resize(0)
    graph = any(word in recipe.factory for word in ("HNSW", "NSG"))
    with _threads(workers if graph else 0), _centroids_on_gpus(index):
        for _, block in store.blocks(compare=True):
            with _refusing(f"add documents to {recipe.factory!r}"):
                index.add(prefixes(block, dim, similarity))
            if progress:
                progress(len(block))
    return index


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Let FAISS use so many threads, where it is called from this one; 0 changes nothing."""
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count or before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


@contextmanager
def _centroids_on_gpus(index: Handle) -> Iterator[None]:
    """Within the block all gpus find nearest centroids: in k-means, and of added documents."""
    faiss = load_faiss()
    gpus = not isinstance(index, BinaryIndex) and not gpu_refusal()
    ivf: Handle = faiss.try_extract_index_ivf(index) if gpus else None
    own = None if ivf is None else faiss.downcast_index(ivf.quantizer)
    # Residuals are taken from centroids, which copies on several gpus do not give back.
    if not isinstance(own, faiss.IndexFlat) or (index.is_trained and ivf.by_residual):
        yield
        return
    name, before = ("quantizer", own) if index.is_trained else ("clustering_index", None)
    copies = faiss.index_cpu_to_all_gpus(own)
    setattr(ivf, name, copies)
    try:
        yield
    finally:
        setattr(ivf, name, before)


def training_rows(documents: int, most: int = TRAIN_ROWS) -> Rows:
    """Return the rows of the documents that an index learns from, drawn at random, increasing."""
    generator = np.random.default_rng(SEED)
    return np.sort(generator.choice(documents, min(most, documents), replace=False))


def _sample(store: Store, dim: int, rows: int) -> Scores:
    """Return `rows` documents at most, prepared to learn from."""
    drawn = training_rows(store.documents, rows)
    sample = np.empty((len(drawn), dim), np.float32)
    for start, block in store.blocks():
        first, last = np.searchsorted(drawn, (start, start + len(block)))
        picked = block[drawn[first:last] - start, :dim]
        sample[first:last] = prefixes(picked, dim, store.manifest.label.similarity)
    return sample


def train_index(index: Handle, sample: Scores, recipe: FaissRecipe) -> None:
    """Let an index learn from documents [n, dim], prepared as `prefixes` does."""
    if index.is_trained:
        return
    faiss, (count, dim) = load_faiss(), sample.shape
    rotations = []
    if isinstance(index, faiss.IndexPreTransform):
        chain = [index.chain.at(number) for number in range(index.chain.size())]
        rotations = [faiss.downcast_VectorTransform(transform) for transform in chain]
        rotations = [each for each in rotations if isinstance(each, faiss.OPQMatrix)]
    inner: Handle = faiss.downcast_index(getattr(index, "index", index))
    few_bits = isinstance(inner, faiss.IndexPQFastScan)
    if few_bits:  # hundreds of small k-means, and to divide each costs more than it saves
        inner.pq.cp.niter = ROUNDS
    # OPQ learns in fewer rounds, without warnings, with as many centroids as the codes have.
    bits = inner.pq.nbits if hasattr(inner, "pq") else 8
    quantizers = [faiss.ProductQuantizer(each.d_out, each.M, bits) for each in rotations]
    for rotation, quantizer in zip(rotations, quantizers, strict=True):
        quantizer.cp.min_points_per_centroid = 1
        rotation.niter, rotation.pq = ROTATIONS, quantizer
    refusing = _refusing(f"train {recipe.factory!r} on {counted(count, 'documents')}")
    try:
        with refusing, _threads(int(few_bits)):
            # Repeated where there are few: OPQ writes beyond its memory below `dim` rows, and no
            # more centroids than documents are learned.
            index.train(np.resize(sample, (max(16, dim, count), dim)))
    finally:
        for rotation in rotations:
            rotation.pq = None  # FAISS neither owns nor copies it


# Opening


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
        names = ", ".join(index.folder.name for index in built_indexes(folder.parent))
        there = f"; there are {names}" if names else ""
        raise UserError(f"{folder} holds no finished index{there}.")
    manifest, docids = _checked(folder)
    _refuse_stale(folder, manifest)
    own = manifest.factory and manifest.engine == factory_name(manifest.factory)
    engine = engine_of("", manifest.factory) if own else engine_of(manifest.engine)
    path, faiss = folder / INDEX, load_faiss()
    handle: Handle
    try:
        if engine.kind == "binary":
            handle = BinaryIndex(faiss.read_index_binary(str(path)), manifest.dim)
        else:
            handle = faiss.read_index(str(path))
    except RuntimeError as error:
        raise _damaged(path, "cannot be read by FAISS") from error
    if (handle.ntotal, handle.d) != (manifest.documents, manifest.dim):
        raise _damaged(path, f"holds {handle.ntotal} vectors of {handle.d} dims")
    chosen = {**dict(manifest.search_params), **(search_params or {})}
    if store is None and chosen.get("rescore", 0) > 0 and not engine.exact:
        try:
            store = open_store(folder.parent)
        except UserError as error:
            raise UserError(f"{error} Or search {engine.name} with rescore set to 0.") from error
    elif store is not None and store.manifest.digest != manifest.store:
        raise UserError(f"{folder} was not cut from the vectors in {store.folder}. Give its own.")
    opened = FaissIndex(manifest, docids, engine, handle, store_folder=folder.parent)
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
    if size < HASHED_BYTES and files.sha256_of(path) != manifest.sha256:
        raise _damaged(path, "is not the file that was written: its sha256 differs")
    return manifest, read_docids(folder / INDEX_DOCIDS, manifest.documents, manifest.docids)


def _refuse_stale(folder: Path, manifest: IndexManifest) -> None:
    """Refuse an index whose store, when it is in the parent folder, has been written anew."""
    beside = folder.parent
    if (beside / STORE).exists() and StoreManifest.read(beside).digest != manifest.store:
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
        if isinstance(index.faiss, BinaryIndex):
            moved = faiss.index_binary_cpu_to_gpu(resources, number, index.faiss.binary)
            copy: Handle = BinaryIndex(moved, index.dim)
        else:
            copy = faiss.index_cpu_to_gpu(resources, number, index.faiss)
        copy.resources = resources  # FAISS keeps no reference of its own
    # FAISS refuses; a wrapper has no such index; no function takes an index of this kind.
    except (RuntimeError, AttributeError, TypeError) as error:
        name = index.engine.name
        return None, f"FAISS cannot move the {name} index to gpu {number}: {reason_of(error)}."
    return replace(index, gpu=copy), f"FAISS searches on gpu {number}."


@cache
def gpu_refusal(number: int = 0) -> str:
    """Return why FAISS cannot use a gpu; empty when it can.

    The device count is not enough: a build for other gpus counts this one too. And FAISS aborts
    the process when CUDA refuses, so the check runs in another process.
    """
    if not hasattr(load_faiss(), "StandardGpuResources"):
        return "the installed one is for processors, and the extra gpu brings one"
    command = [sys.executable, "-c", _GPU_CHECK.format(number)]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the check did not end ({type(error).__name__})"
    if not ended.returncode:
        return ""
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    return reason_of(RuntimeError(lines[-1])) if lines else f"it ended with {ended.returncode}"
