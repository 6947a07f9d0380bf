"""The exact engine: full scans that compare every document, at several prefixes in one pass.

A longer prefix only adds dims: its products are those of the shorter one plus those of the dims
between, and its squared lengths likewise. A document that may be among the best becomes a key, an
int64 whose upper half sorts as its score does and whose lower half by the rule for ties, so the
largest k keys are the right k documents however many of them share a score.
"""

# Shapes in this file: Q queries, N documents, n of a tile, H dims of a vector, D prefixes.

import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache, cached_property, partial
from importlib.util import find_spec
from itertools import pairwise
from queue import SimpleQueue
from threading import Barrier, Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from m2dr.core.arrays import Float32, Floats, Int64
from m2dr.core.errors import UserError
from m2dr.core.files import HASHED_BYTES
from m2dr.core.records import F32, Run, Similarity
from m2dr.index.docids import Docids
from m2dr.index.filters import Filter
from m2dr.index.hits import Hits
from m2dr.index.library import load_faiss
from m2dr.index.searchable import Rows, Scores, Searchable
from m2dr.index.store import Store
from m2dr.index.vectors import answerable, check_depth, check_queries, prefixes

if TYPE_CHECKING:
    from torch import Tensor
Blocks = Iterable[tuple[int, Any]]  # the row at which it begins, and vectors: an array or a tensor
Decode = Callable[[Floats], Float32]  # what a code leaves of vectors

CACHED_BYTES = 2**27  # prefixes that take no more, as float32, stay in memory between queries
FEW_QUERIES = 64  # queries whose product with a tile is too short to be one matrix product
COMPILED_SCORES = 2**25  # of a process, after which compiled code selects: it loads in .4 s
_COMPARED = Counter[str]()  # of all scans so far, by kind of device
TILE_SCORES = {"cpu": 2**20, "cuda": 2**26}  # products held at once, about
TILE_ROWS = {"cpu": range(1024, 2048), "cuda": range(2**14, 2**20)}
CHUNK = {"cpu": 512, "cuda": 2**12}  # queries that are multiplied together, at most
STRIDE = 64  # consecutive scores, of which most often none reaches the bar
LOW = 0xFFFFFFFF  # the half of a key that holds the place among ties
NOTHING = np.iinfo(np.int64).min  # below every key; its score is not a number
# Squares below lose digits in float32, and above they overflow: such sums are made in float64.
_SMALL, _LARGE = 1e-24, 1e36
_NO_CODES: Mapping[tuple[int, str], Decode] = {}


class ExactIndex(Searchable):
    """A store searched without an index file: the first dims of each vector, by a full scan.

    The vectors stay in their files, which the system maps and caches; where their prefixes take
    little memory, they are kept as float32. Opening costs nothing.

    Attributes:
        store: the store of the vectors.
        manifest: the manifest of the store.
        device: where the products are computed, as torch names it.
    """

    def __init__(
        self, store: Store, dim: int, device: str = "cpu", rows: Rows | None = None
    ) -> None:
        """Open a store for search.

        Args:
            store: of the vectors.
            dim: dims that are compared.
            device: where the products are computed, as torch names it.
            rows: that are searched, increasing; None: all.

        Raises:
            UserError: its vectors are shorter than `dim`.
        """
        if not 1 <= dim <= store.width:
            raise UserError(f"Dim {dim} was asked for; {store.folder} has {store.width}.")
        self.store, self.manifest, self.device = store, store.manifest, device
        self.docids, self._rows = store.docids, rows
        self._dim, self._similarity = dim, store.manifest.label.similarity

    @property
    def dim(self) -> int:
        """Dims of a query that are compared."""
        return self._dim

    @property
    def documents(self) -> int:
        """Number of documents."""
        return self.store.documents if self._rows is None else len(self._rows)

    def where(self, wanted: Filter) -> "ExactIndex":
        """See Searchable."""
        return ExactIndex(self.store, self.dim, self.device, self.store.matching(wanted))

    def search(self, queries: Floats, k: int) -> tuple[Scores, Rows]:
        """See Searchable; FAISS compares few queries with cached prefixes; any, without torch."""
        check_depth(k)
        scores, rows = self._search(_queries(queries, self.dim), min(k, self.documents))
        rows = rows if self._rows is None else self._rows[rows]
        if np.isinf(scores).any():  # refused, if a vector is not finite
            prefixes(self.store.rows(rows[np.isinf(scores)]), self.dim, "dot")
        return scores, rows

    def _search(self, queries: Float32, k: int) -> tuple[Scores, Rows]:
        """Return scores and rows, [Q, k], among those that are searched."""
        scan = partial(_scan, documents=self.documents, dims=(self.dim,), k=k, device=self.device)
        if not _has_torch():
            return self._without_torch(prefixes(queries, self.dim, self._similarity), k)
        if self._cached is None:
            widened = self.store.manifest.dtype == "int8" or self._rows is not None
            blocks = self._blocks if widened else lambda: self._views
            scan = partial(scan, similarity=self._similarity, inverse=self._inverse)
            return scan([queries], blocks)[0][self.dim, F32]
        prepared, cached = prefixes(queries, self.dim, self._similarity), self._cached
        if self.device != "cpu" or len(prepared) > FEW_QUERIES or not k or not len(prepared):
            return scan([prepared], lambda: [(0, cached)], similarity="dot")[0][self.dim, F32]
        faiss = load_faiss()
        scores, rows = faiss.knn(prepared, cached, k, faiss.METRIC_INNER_PRODUCT)
        return scores, rows

    def _without_torch(self, queries: Float32, k: int) -> tuple[Scores, Rows]:
        """Return scores and rows, [Q, k], of prepared queries, by FAISS a block at a time."""
        faiss = load_faiss()
        best = faiss.ResultHeap(len(queries), k, keep_max=True)
        whole = self._cached
        for start, block in self._blocks() if whole is None else [(0, whole)]:
            prepared = prefixes(block, self.dim, self._similarity) if whole is None else whole
            most = min(k, len(prepared))
            scores, rows = faiss.knn(queries, prepared, most, faiss.METRIC_INNER_PRODUCT)
            best.add_result(scores, rows + start)
        best.finalize()
        return best.D, best.I

    @cached_property
    def _cached(self) -> Any:
        """Prefixes [N, dim], normalised, on the device; None where they take too much memory."""
        limit = CACHED_BYTES
        if self.device != "cpu":
            import torch

            limit = torch.cuda.mem_get_info(self.device)[0] // 2
        if 4 * self.dim * self.documents > limit:
            return None
        cached = np.empty((self.documents, self.dim), np.float32)
        for start, block in self._blocks():
            cached[start : start + len(block)] = prefixes(block, self.dim, self._similarity)
        return cached if self.device == "cpu" else torch.from_numpy(cached).to(self.device)

    @cached_property
    def _views(self) -> Blocks:
        """Cached views of the files: mapping them again costs as much as reading them."""
        return list(self._blocks())

    @cached_property
    def _inverse(self) -> Float32 | None:
        """One over the length of each prefix [N]; None for dot."""
        if self._similarity == "dot":
            return None
        tiles = (tile.float() for _, tile in _tiles(self._blocks(), 8192, self.dim))
        return np.concatenate([_inverse_lengths(tile, (self.dim,))[0].numpy() for tile in tiles])

    def _blocks(self) -> Blocks:
        """Yield blocks of the documents that are searched."""
        first = 0
        # Digests of large files take longer than a query.
        for start, block in _blocks(self.store, compare=self.store.bytes <= HASHED_BYTES):
            if self._rows is not None:
                first_last = np.searchsorted(self._rows, (start, start + len(block)))
                block = block[self._rows[slice(*first_last)] - start]
            if len(block):
                yield first, block
            first += len(block)


def _blocks(documents: Store | Floats, compare: bool = True) -> Blocks:
    """Return blocks of documents; int8 is widened while it is read, a few rows at a time."""
    if isinstance(documents, Store):
        rows = 8192 if documents.manifest.dtype == "int8" else 2**16
        return documents.blocks(rows, compare=compare)
    return [(start, documents[start : start + 2**16]) for start in range(0, len(documents), 2**16)]


def grid_top_k(
    queries: Sequence[Floats],
    documents: Store | Floats,
    dims: Iterable[int],
    k: int,
    similarity: Similarity,
    device: str = "cpu",
    places: Int64 | None = None,
    codes: Mapping[tuple[int, str], Decode] = _NO_CODES,
) -> list[dict[tuple[int, str], tuple[Scores, Rows]]]:
    """Search for several sets of queries by each prefix and code, in one pass over the documents.

    All dims together cost little more than the longest alone: benchmarks/exact.py.

    Args:
        queries: sets [Q, H], such as those of several layers, all of one Q; not normalised.
        documents: a store, or vectors [N, H], not normalised.
        dims: of the documents as they are, none above H; none where `codes` has some.
        k: documents per query.
        similarity: cosine normalises after cutting; a vector of length zero then scores 0.
        device: where the products are computed, as torch names it.
        places: [N], no two the same and all from 0 to N - 1; of documents with equal scores
            the one with the higher place comes first. The lower row, when None.
        codes: dim and name -> decoder from vectors [n, H] to [n, dim], normalised where the
            similarity is cosine.

    Returns:
        Per set, dim and code scores and rows, [Q, min(k, N)], best first; without a code, `f32`.

    Raises:
        UserError: a dim does not fit the vectors, a query or a score is not finite, or k is
            below 1.
    """
    check_depth(k)
    wanted = tuple(sorted(set(dims)))
    widths = sorted({*wanted, *(dim for dim, _ in codes)})
    if not widths or widths[0] < 1:
        raise UserError(f"Dims {widths} were asked for. Name at least one, none below 1.")
    count = documents.documents if isinstance(documents, Store) else len(documents)
    sets, blocks = [_queries(each, widths[-1]) for each in queries], partial(_blocks, documents)
    return _scan(sets, blocks, count, wanted, k, similarity, device, places, codes=codes)


def scores_of(
    queries: Sequence[Floats],
    rows: Sequence[Rows],
    documents: Store,
    dim: int,
    similarity: Similarity,
) -> list[Scores]:
    """Score given documents for each query; their vectors are read once for all sets.

    Args:
        queries: sets [Q, H].
        rows: of each set, the documents of its queries, [Q, n].
        documents: the store.
        dim: of the prefix.
        similarity: as `grid_top_k` takes it.
    """
    prepared = [prefixes(each, dim, similarity) for each in queries]
    scores = np.empty((len(rows), *rows[0].shape), np.float32)
    for start in range(0, len(prepared[0]), FEW_QUERIES):
        part = slice(start, start + FEW_QUERIES)
        unique, at = np.unique(np.stack([each[part] for each in rows]), return_inverse=True)
        vectors = prefixes(documents.rows(unique), dim, similarity)
        for chosen, vectors_of_queries, out in zip(at, prepared, scores, strict=True):
            # einsum rounds a vector alike wherever it lies, so copies of a document tie.
            rows_of_queries = vectors_of_queries[part]
            out[part] = np.einsum("qnd,qd->qn", vectors[chosen], rows_of_queries, dtype=np.float64)
    return list(scores)


def prefix_runs(
    query_ids: Sequence[str],
    queries: Floats,
    documents: Store | Floats,
    docids: Docids,
    dims: Iterable[int],
    k: int,
    similarity: Similarity,
    drop: Mapping[str, str] | None = None,
) -> dict[int, Run]:
    """Rank as `grid_top_k` does, with ties by docid descending: one run per dim.

    Args:
        query_ids: Q of them.
        queries: [Q, H], not normalised.
        documents: as `grid_top_k` takes them.
        docids: N of them.
        dims: lengths of the prefixes.
        k: documents per query.
        similarity: as `grid_top_k` takes it.
        drop: per query id, a docid to leave out, such as the query's own document.

    A query whose prefix is all zeros finds nothing, as everywhere.

    Raises:
        UserError: as `grid_top_k` raises.
    """
    check_depth(k)
    drop = drop or {}
    k_read = k + bool(drop)
    [ranked] = grid_top_k([queries], documents, dims, k_read, similarity, places=docids.ranks)
    runs = {}
    for (dim, _), (scores, rows) in ranked.items():
        rows[~answerable(queries, dim)] = -1
        runs[dim] = Hits(scores, rows).run(query_ids, docids, k, drop)
    return runs


def _queries(queries: Floats, dim: int) -> Float32:
    """Return queries [Q, at least dim] as float32, refusing those too short or not finite."""
    array = np.asarray(queries, np.float32)
    check_queries(array, dim)
    return array


def _scan(
    sets: Sequence[Float32],
    blocks: Callable[[], Blocks],
    documents: int,
    dims: Sequence[int],
    k: int,
    similarity: Similarity,
    device: str,
    places: Int64 | None = None,
    inverse: Float32 | None = None,
    codes: Mapping[tuple[int, str], Decode] = _NO_CODES,
) -> list[dict[tuple[int, str], tuple[Scores, Rows]]]:
    """Compare sets of queries [Q, H], not normalised, with N documents, as `grid_top_k` does.

    `inverse` [N] is one over the lengths of the prefix of a single dim, computed when None.
    """
    import torch

    k, kind = min(k, documents), "cpu" if device == "cpu" else "cuda"
    columns, queries = [*((dim, F32) for dim in dims), *codes], len(sets[0])
    keys = torch.full((len(sets), len(columns), queries, k), NOTHING, device=device)
    by_row = torch.from_numpy(np.array([] if places is None else places, np.int64)).to(device)
    inverse_lengths = None if inverse is None else torch.from_numpy(inverse)[None].to(device)
    _COMPARED[kind] += len(sets) * queries * documents * len(columns)
    enter = _compiled() if kind == "cpu" and _COMPARED[kind] >= COMPILED_SCORES else None
    # Each thread compares tiles of its own; torch divides the product of a few queries itself.
    threads = torch.get_num_threads() if kind == "cpu" and queries > FEW_QUERIES else 1

    plans: list[tuple[Decode | None, Sequence[int], Sequence[Scores], Similarity]] = [
        (decode, (dim,), [prefixes(each, dim, similarity) for each in sets], "dot")
        for (dim, _), decode in codes.items()
    ]
    if dims:
        plans.insert(0, (None, dims, sets, similarity))
    chunks, first = [], 0
    for _, dims_of_plan, vectors, by in plans:
        count = len(dims_of_plan)
        heaps, first = keys[:, first : first + count], first + count
        chunks.append(
            [
                _Chunk(part, best, dims_of_plan, by, by_row, enter)
                for each, heap in zip(vectors, heaps, strict=True)
                for part, best in zip(
                    torch.split(torch.from_numpy(each).to(device), CHUNK[kind]),
                    torch.split(heap, CHUNK[kind], 1),
                    strict=True,
                )
            ]
        )
    per_chunk = min(max(queries, 1), CHUNK[kind])  # queries
    size = max(TILE_SCORES[kind] // per_chunk // 128 * 128, TILE_ROWS[kind].start)
    size = min(size, TILE_ROWS[kind].stop, -(-documents // 128) * 128)
    width = max(dim for dim, _ in columns)
    buffers = SimpleQueue["tuple[Tensor, Tensor]"]()
    for _ in range(threads):  # every product has one shape: an edge may round copies otherwise
        buffer = torch.empty(size * width, device=device)
        buffers.put((buffer, torch.empty(per_chunk, size, device=device)))

    def compare(row: int, tile: "Tensor") -> None:
        n, (buffer, products) = len(tile), buffers.get()
        with torch.inference_mode():
            for (decode, dims_of_plan, _, by), parts in zip(plans, chunks, strict=True):
                width = dims_of_plan[-1]
                wide = buffer[: size * width].view(size, width)
                wide[:n] = torch.from_numpy(decode(tile.numpy())) if decode else tile[:, :width]
                wide[n:] = 0
                factors = wide.new_ones(len(dims_of_plan), n)
                if inverse_lengths is not None:
                    factors = inverse_lengths[:, row : row + n]
                elif by == "cosine":
                    factors = _inverse_lengths(wide[:n], dims_of_plan)
                for chunk in parts:
                    chunk.compare(row, wide, factors, products[: len(chunk.queries)])
        buffers.put((buffer, products))

    if k and queries:
        with _full_precision():
            _in_threads(threads, compare, _tiles(blocks(), size, width))
    row_of = None if places is None else np.argsort(places)
    results = []
    for keys_of_set in keys:
        best = keys_of_set.sort(dim=2, descending=True).values.cpu().numpy()
        low, bits = best & LOW, _flipped((best >> 32).astype(np.int32))
        rows = LOW - low if row_of is None else row_of[low]
        results.append(
            dict(zip(columns, zip(bits.view(np.float32), rows, strict=True), strict=True))
        )
    return results


def _tiles(blocks: Blocks, size: int, dim: int) -> "Iterator[tuple[int, Tensor]]":
    """Yield all documents as tiles [at most size, dim], each with the row at which it begins."""
    import torch

    for start, block in blocks:
        if block.shape[1] < dim:
            raise UserError(f"Dim {dim} was asked for; the documents have {block.shape[1]}.")
        with warnings.catch_warnings():  # a file is mapped for reading only
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            whole = block if torch.is_tensor(block) else torch.from_numpy(block)
        for first in range(0, len(block), size):
            yield start + first, whole[first : first + size, :dim]


class _Chunk:
    """Queries [Q, H] that are multiplied together, and their best documents: keys [D, Q, k]."""

    def __init__(
        self,
        queries: "Tensor",
        keys: "Tensor",
        dims: Sequence[int],
        similarity: Similarity,
        places: "Tensor",
        enter: Callable[..., bool] | None,
    ) -> None:
        self.queries, self.keys, self.dims = queries, keys, dims
        self.places, self.enter, self.lock = places, enter, Lock()
        self.scales = queries.new_ones(len(dims), len(queries))
        if similarity == "cosine":
            self.scales = _inverse_lengths(queries, dims)

    def compare(self, first: int, wide: "Tensor", factors: "Tensor", products: "Tensor") -> None:
        """Let the documents of a tile [n, H] from row `first` into the best of each prefix.

        Args:
            first: row of the first document.
            wide: the tile, with zeros behind it.
            factors: of the documents [D, n].
            products: buffer for the products of the queries with the tile.
        """
        import torch

        for number, (begin, end) in enumerate(pairwise((0, *self.dims))):
            left, right = self.queries[:, begin:end], wide[:, begin:end]
            if wide.device.type == "cpu" and len(left) <= FEW_QUERIES:  # each run by one thread
                runs = right.view(-1, 128, end - begin).mT
                more = torch.bmm(left.expand(len(runs), *left.shape), runs)
                more = more.transpose(0, 1).flatten(1)
                products = products + more if begin else more
            else:
                torch.addmm(products, left, right.mT, beta=int(begin > 0), out=products)
            with self.lock:
                self._select(number, products[:, : factors.shape[1]], factors[number], first)

    def _select(self, number: int, products: "Tensor", factors: "Tensor", first: int) -> None:
        """Let the documents with products [Q, n] into the best, by compiled code or by torch."""
        import torch

        keys, scales = self.keys[number], self.scales[number]
        if self.enter is not None:
            arrays = products.numpy(), factors.numpy(), scales.numpy(), first, self.places.numpy()
            if not self.enter(*arrays, keys.numpy()):
                raise _not_a_number()
            return
        scores = products * factors * scales[:, None]
        if scores.isnan().any():
            raise _not_a_number()
        rows = torch.arange(first, first + scores.shape[1], device=keys.device)
        low = self.places[rows] if len(self.places) else LOW - rows
        # Adding zero turns -0 into 0. The bits of a float sort as an integer once those of the
        # negatives are flipped.
        high = _flipped((scores + 0.0).view(torch.int32)).long() << 32
        keys.copy_(torch.cat([keys, high | low], 1).topk(keys.shape[1], sorted=False).values)


def _in_threads(count: int, work: Callable[..., None], items: Iterable[tuple[Any, ...]]) -> None:
    """Call `work` with each item, in threads for which torch divides no call."""
    import torch

    if count == 1:
        for item in items:
            work(*item)
        return
    threads, ready = torch.get_num_threads(), Barrier(count)

    def alone() -> None:
        torch.get_num_threads()  # or the first call begins with what all threads begin with
        torch.set_num_threads(1)
        ready.wait()

    with ThreadPoolExecutor(count) as pool:
        wait([pool.submit(alone) for _ in range(count)])
        torch.set_num_threads(threads)
        running = deque[Future[None]]()
        for item in items:
            running.append(pool.submit(work, *item))
            if len(running) > 2 * count:  # the next are ready when a thread is
                running.popleft().result()
        for future in running:
            future.result()


def _inverse_lengths(vectors: "Tensor", dims: Sequence[int]) -> "Tensor":
    """Return one over the length of each prefix of vectors [n, H], [D, n]; 0 for a length of 0."""
    import torch

    squares = vectors.new_empty(len(dims), len(vectors))
    for number, (start, stop) in enumerate(pairwise((0, *dims))):
        part = vectors[:, start:stop]
        torch.linalg.vecdot(part, part, out=squares[number])
    for shorter, longer in pairwise(squares):
        longer += shorter  # one by one: on a gpu the running sum of torch is another one each time
    inverse = squares.rsqrt()
    for number, row in ((squares < _SMALL) | (squares > _LARGE)).nonzero().tolist():
        length = torch.linalg.vector_norm(vectors[row, : dims[number]], dtype=torch.float64)
        # Below `tiny` one over the length would be infinite in float32.
        inverse[number, row] = 1 / length if length > torch.finfo(torch.float32).tiny else 0.0
    return inverse


def _flipped(bits: Any) -> Any:
    """Turn the order of negatives round, bits int32; twice is no change."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _not_a_number() -> UserError:
    return UserError("A score is not a number: a file of vectors is damaged, or beyond float32.")


@contextmanager
def _full_precision() -> Iterator[None]:
    """Multiply float32 as float32: training may have allowed TF32 or bf16, off by 1e-3."""
    import torch

    processor = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # made at import
    backends = (torch.backends.cuda.matmul, processor)
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "ieee"
        yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision


@cache
def _has_torch() -> bool:
    return find_spec("torch") is not None


@cache
def _compiled() -> Callable[..., bool] | None:
    """Return `_enter` compiled, which is kept on disk and holds no lock; None without numba."""
    try:
        from numba import njit
    except ImportError:  # numba is not there, or does not go with this numpy
        return None
    settings: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    compiled: Callable[..., bool]
    try:
        compiled = njit(_enter, cache=True, **settings)
    except RuntimeError:  # no folder may be written to
        compiled = njit(_enter, **settings)
    return compiled


def _enter(
    products: Scores, factors: Scores, scales: Scores, first: int, places: Int64, keys: Int64
) -> bool:
    """Let documents into heaps of keys, the least at the root; return whether scores are numbers.

    Args:
        products: [Q, n].
        factors: of documents, [n].
        scales: of queries, [Q].
        first: row of the first document.
        places: of all documents [N]; empty when the lower row comes first.
        keys: heaps [Q, k].
    """
    for query in range(len(products)):
        scale, heap = scales[query], keys[query]
        bits = np.int32(heap[0] >> 32)
        bar = np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(np.float32)
        for start in range(0, len(factors), STRIDE):
            run = products[query, start : start + STRIDE]
            lengths = factors[start : start + STRIDE]
            reaching = np.int32(0)
            for column in range(len(run)):
                # Of this type throughout, so that eight at a time are compared.
                below = run[column] * lengths[column] * scale < bar
                reaching = np.int32(reaching + np.int32(not below))
            if not reaching:
                continue
            for column in range(len(run)):
                score = run[column] * lengths[column] * scale
                if score < bar:
                    continue
                if np.isnan(score):
                    return False
                row = first + start + column
                place = places[row] if len(places) else LOW - row
                high = np.int64(np.float32(score + np.float32(0)).view(np.int32))
                key = ((high ^ ((high >> 31) & 0x7FFFFFFF)) << 32) | place
                if key <= heap[0]:
                    continue
                spot, child = 0, 1
                while child < len(heap):
                    if child + 1 < len(heap) and heap[child + 1] < heap[child]:
                        child += 1
                    if heap[child] >= key:
                        break
                    heap[spot] = heap[child]
                    spot, child = child, 2 * child + 1
                heap[spot] = key
                bits = np.int32(heap[0] >> 32)
                bar = np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(np.float32)
    return True
