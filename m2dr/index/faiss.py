"""FAISS: an index of one prefix, open for search, on a processor or a gpu."""

# Shapes in this file: Q queries, n rows or documents found.

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from m2dr.core.errors import UserError, missing, nearest
from m2dr.index.engines import Engine
from m2dr.index.filters import Filter
from m2dr.index.manifest import IndexManifest
from m2dr.index.searchable import Docids, Rows, Scores, Searchable
from m2dr.index.store import Store, open_store
from m2dr.index.vectors import Floats, check_depth, check_queries, prefixes

Handle = Any  # a faiss.Index, which has no type stubs, or BinaryIndex

FEW = 5_000  # documents that a filter leaves, at most, which are all scored exactly
GPU_DEPTH = 2048  # documents per query that FAISS on a gpu can find, or lists read, at most
LEAST = {"nprobe": 1, "efSearch": 1, "rescore": 0}  # of the parameters chosen at search time
_PATIENCE = 120  # seconds for a gpu to answer: the first CUDA call on a machine can take 20
_WORKS = "the gpu works"


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
    store_folder: Path | None = None  # the folder that holds the index, and its store if kept
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
        names = available(self.faiss, self.exact)
        for name, value in search_params.items():
            if name not in names:
                hint = nearest(name, names) if names else "It has none."
                raise UserError(
                    f"Engine {self.engine.name} has no search-time setting {name!r}. {hint}"
                )
            if value < LEAST[name]:
                raise UserError(f"{name} is {LEAST[name]} at least, and {value} was given.")
        merged, store = {**self.search_params, **search_params}, store or self.store
        if merged.get("rescore") and store is None:
            raise UserError(
                f"Engine {self.engine.name} rescores candidates with the store of {self.corpus}, "
                "and none was given. Open it too, or set rescore to 0."
            )
        return replace(self, search_params=merged, store=store)

    def where(self, wanted: Filter) -> "FaissIndex":
        """See Searchable; the store beside the index has the fields."""
        if self.store is None and self.store_folder is None:
            raise UserError(f"The fields of the documents of {self.corpus} are not known.")
        store = self.store or open_store(self.store_folder or Path())
        # FAISS selects no rows on a gpu.
        return replace(self, rows=store.matching(wanted), store=store, gpu=None)

    def prepare(self, queries: Floats) -> Scores:
        """Return queries [Q, at least dim], not normalised, as the engine compares them: [Q, dim].

        Raises:
            UserError: they are too short, or not finite.
        """
        check_queries(queries, self.dim)
        return prefixes(queries, self.dim, self.manifest.similarity)

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
        index = self.with_search_params(search_params) if search_params else self
        prepared, k = index.prepare(queries), min(k, self.documents)
        if not len(prepared) or not k:
            return np.empty((len(prepared), k), np.float32), np.empty((len(prepared), k), np.int64)
        if self.rows is not None and not self.exact:
            return index._filtered(queries, prepared, k)
        return index._searched(prepared, k)

    def _filtered(self, queries: Floats, prepared: Scores, k: int) -> tuple[Scores, Rows]:
        """Search few documents, and queries for which fewer than k are found, by a full scan.

        A graph, or a few lists, may miss the documents that a filter lets through.
        """
        from m2dr.index.exact import ExactIndex

        scan = ExactIndex(self.store, self.dim, rows=self.rows) if self.store else None
        if scan is not None and self.documents <= FEW:
            return scan.search(queries, k)
        scores, rows = self._searched(prepared, k)
        missing = (rows < 0).any(axis=1)
        if scan is not None and missing.any():
            scores[missing], rows[missing] = scan.search(queries[missing], k)
        return scores, rows

    def _searched(self, prepared: Scores, k: int) -> tuple[Scores, Rows]:
        if not self.rescore:
            return self._by_engine(prepared, k)
        _, candidates = self._by_engine(prepared, min(k * self.rescore, self.documents))
        scores = np.full((len(prepared), k), np.finfo(np.float32).min, np.float32)
        rows = np.full((len(prepared), k), -1, np.int64)
        for number, query in enumerate(prepared):
            own = np.sort(candidates[number][candidates[number] >= 0])
            again = self._score(query, own)
            best = np.argsort(-again, kind="stable")[:k]
            scores[number, : len(best)], rows[number, : len(best)] = again[best], own[best]
        return scores, rows

    def _score(self, query: Scores, rows: Rows) -> Scores:
        """Return exact scores [n] of some rows for one prepared query [dim]."""
        assert self.store is not None  # `with_search_params` refuses to rescore without it
        vectors = prefixes(self.store.rows(rows), self.dim, self.manifest.similarity)
        # einsum rounds a vector alike wherever it lies, so copies of a document tie.
        scores: Scores = np.einsum("nd,d->n", vectors, query, dtype=np.float64).astype(np.float32)
        return scores

    def _by_engine(self, prepared: Scores, k: int) -> tuple[Scores, Rows]:
        """Search with the engine alone; where it heeds no selector, among all rows."""
        deepest = max(k, self.search_params.get("nprobe", 1))
        index = self.gpu if self.gpu is not None and deepest <= GPU_DEPTH else self.faiss
        params = faiss_parameters(self.faiss, self.search_params, self._selector)
        try:
            scores, rows = index.search(prepared, k, **({"params": params} if params else {}))
        except RuntimeError:
            if self.rows is None:
                raise
            every = replace(self, rows=None)._by_engine(prepared, self.manifest.documents)
            out = (every[1] < 0) | ~np.isin(every[1], self.rows)
            order = np.argsort(out, axis=1, kind="stable")[:, :k]
            rows = np.take_along_axis(np.where(out, -1, every[1]), order, axis=1)
            return np.take_along_axis(every[0], order, axis=1), rows
        return (-scores if self.engine.l2 else scores), rows

    @cached_property
    def _selector(self) -> Handle:
        """A faiss.IDSelector of the rows that the filter lets through; None for all."""
        if self.rows is None:
            return None
        mask = np.zeros(self.manifest.documents, np.bool_)
        mask[self.rows] = True
        return load_faiss().IDSelectorBitmap(np.packbits(mask, bitorder="little"))


# Parameters that are chosen at search time


def available(index: Handle, exact: bool) -> tuple[str, ...]:
    """Return the names of the parameters that have an effect in `index`, sorted."""
    names = [] if exact else ["rescore"]
    inner = _core(index)
    if hasattr(inner, "nprobe"):
        names.append("nprobe")
        inner = _downcast(inner.quantizer)
    if hasattr(inner, "hnsw"):
        names.append("efSearch")
    return tuple(sorted(names))


def faiss_parameters(index: Handle, params: Mapping[str, int], selector: Handle = None) -> Handle:
    """Return FAISS's SearchParameters for the params, or None where there is nothing to set.

    They are given with each search and not set on the index, so that two searchers may share one.

    Args:
        index: that is searched.
        params: by name; others than nprobe and efSearch are left out.
        selector: of the rows that may be found, a faiss.IDSelector; None for all.
    """
    wanted = {name: params[name] for name in ("nprobe", "efSearch") if name in params}
    return _parameters(index, wanted, selector) if wanted or selector is not None else None


def _parameters(index: Handle, params: Mapping[str, int], selector: Handle) -> Handle:
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


def _core(index: Handle) -> Handle:
    """Return the index behind rotations and refinements."""
    faiss = load_faiss()
    index = _downcast(index)
    if isinstance(index, faiss.IndexPreTransform):
        return _core(index.index)
    return _core(index.base_index) if isinstance(index, faiss.IndexRefine) else index


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


def reason_of(error: RuntimeError) -> str:
    """Return what FAISS says is wrong, without the place in its source.

    >>> reason_of(RuntimeError("Error in f() at /project/faiss/factory.cpp:12: no such index"))
    'no such index'
    """
    reason = re.split(r"\.(?:cpp|cu|cuh|h):\d+: ", str(error))[-1]
    return re.sub(r"^Error: '.*?' failed: ", "", reason).strip().rstrip(".")


@contextmanager
def refusing(what: str, remedy: str) -> Iterator[None]:
    """Turn a RuntimeError of FAISS into a UserError.

    Args:
        what: FAISS was asked to do; follows "FAISS cannot".
        remedy: what to do instead.

    Raises:
        UserError: FAISS refused.
    """
    try:
        yield
    except RuntimeError as error:
        raise UserError(f"FAISS cannot {what}: {reason_of(error)}. {remedy}") from error


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Let FAISS use that many threads; as many as it likes when 0."""
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(number or before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


class BinaryIndex:
    """A faiss.IndexBinary that takes float vectors and returns scores, as other indexes do.

    Attributes:
        binary: the faiss.IndexBinary, over `dim` bits rounded up to whole bytes.
        d: dims of a vector.
    """

    def __init__(self, binary: Any, dim: int) -> None:
        self.binary = binary
        self.d = dim
        self.is_trained = True  # there is nothing to learn

    @property
    def ntotal(self) -> int:
        """Number of documents."""
        return int(self.binary.ntotal)

    def add(self, vectors: NDArray[np.float32]) -> None:
        """Add documents [n, dim]."""
        self.binary.add(packed(vectors))

    def search(
        self, queries: NDArray[np.float32], k: int, params: Any = None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Search for the best k; a score is the share of equal bits less that of the others.

        Returns:
            Scores from -1 to 1 and rows, [Q, k], best first; row -1 is no document.
        """
        differ, rows = self.binary.search(packed(queries), k, params=params)
        # The bits that fill up the last byte agree in all vectors, so they count nowhere.
        scores = 1 - 2 * np.asarray(differ, np.float64) / self.d
        return scores.astype(np.float32), rows


def packed(vectors: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the signs of values [n, dim] as bits, [n, dim / 8 rounded up] bytes; 0 is negative.

    >>> packed(np.array([[1.0, -1.0, 0.0]], np.float32)).tolist()
    [[128]]
    """
    return np.packbits(vectors > 0, axis=1)


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
    reason = gpu_refusal(number)
    if reason:
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
        what = reason_of(error) if isinstance(error, RuntimeError) else str(error)
        return None, f"FAISS cannot move the {index.engine.name} index to gpu {number}: {what}."
    return replace(index, gpu=copy), f"FAISS searches on gpu {number}."


@cache
def gpu_refusal(number: int = 0) -> str:
    """Return why FAISS cannot use a gpu; empty when it can.

    The device count is not enough: a build for other gpus counts this one too. And FAISS aborts
    the process when CUDA refuses, so the check runs in another process.
    """
    if not hasattr(load_faiss(), "StandardGpuResources"):
        return "the installed one is for processors, and the extra gpu brings one"
    code = f"from m2dr.index.faiss import check_gpu; check_gpu({number})"
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the check did not end ({type(error).__name__})"
    if ended.returncode == 0 and _WORKS in ended.stdout:
        return ""
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    if not lines:
        return f"the check ended with {ended.returncode}"
    return reason_of(RuntimeError(lines[-1]))


def check_gpu(number: int) -> None:
    """Add and search a few vectors on a gpu, and write to stdout that it works.

    Raises:
        RuntimeError: it does not.
    """
    faiss = load_faiss()
    vectors = np.eye(8, dtype=np.float32)
    plain = faiss.IndexFlatIP(8)
    moved = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), number, plain)
    moved.add(vectors)
    scores, rows = moved.search(vectors, 1)
    if not (np.array_equal(rows[:, 0], np.arange(8)) and np.allclose(scores, 1)):
        raise RuntimeError("it finds other vectors than those that were added")
    sys.stdout.write(_WORKS)
