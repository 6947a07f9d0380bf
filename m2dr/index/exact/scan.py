"""A full scan: queries compared with every document, at several prefixes in one pass."""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from queue import SimpleQueue
from threading import Barrier, Lock
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from m2dr.index.exact.tiles import GPU, RUN, Tile, VectorSource, inverse_lengths, on_gpu, rounded_up
from m2dr.index.exact.topk import TieOrder, TopK

# Shapes in this file: Q queries, C of them in a chunk, H dims of a vector, D prefixes, N documents.

Item = TypeVar("Item")
Found = tuple[NDArray[np.float32], NDArray[np.int64]]  # scores and rows, both [Q, k]

COMPILED_SCORES = 2**25  # of a process, after which compiled code selects: it loads in .4 s
_SCORES = Counter[str]()  # of all scans so far, by device
FEW = 64  # queries whose product with a tile is too short for a thread of ours


@torch.inference_mode()
def scan(
    queries: Tensor,
    source: VectorSource,
    dims: Sequence[int],
    k: int,
    ties: TieOrder,
    progress: Callable[[int], None] | None = None,
) -> dict[int, Found]:
    """Compare queries [Q, H] with all documents.

    Args:
        queries: float32 on the device of the source, not normalised.
        source: of the documents.
        dims: the prefixes, increasing.
        k: documents per query.
        ties: the order of documents of equal score.
        progress: called with the number of documents of each tile that was compared.

    Returns:
        Per dim, scores and rows [Q, min(k, N)], best first.

    Raises:
        UserError: a dim does not fit the vectors, or a score is not a number.
    """
    k = min(k, source.documents)
    if not k or not len(queries):
        nothing = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        return dict.fromkeys(dims, nothing)
    chunks: list[_Chunk] = []
    *some, last = torch.split(queries, _at_once(queries, dims, k))
    for part in (*some, last):
        one = _Scan(part, source, dims, k, ties)
        with _full_precision():
            for tile in in_threads(one.compare, source.tiles(one.size, dims[-1]), one.threads):
                if progress and part is last:
                    progress(tile.rows)
        chunks += one.chunks
    found = {}
    for number, dim in enumerate(dims):
        scores, rows = zip(*(chunk.best.found(number) for chunk in chunks), strict=True)
        found[dim] = torch.cat(scores).cpu().numpy(), torch.cat(rows).cpu().numpy()
    return found


def _at_once(queries: Tensor, dims: Sequence[int], k: int) -> int:
    """Return how many queries are compared in one pass: on a gpu, as its free memory allows."""
    if queries.device.type != "cuda":
        return len(queries)
    # Of each query and prefix: keys and their sorting, what is returned, and scores.
    held = len(dims) * 4 * (24 * k + GPU.rows.start)
    free, _ = torch.cuda.mem_get_info(queries.device)
    return max(int(free) // 2 // held, 1)


@dataclass(frozen=True)
class _Chunk:
    """Queries [C, H] that are multiplied together, and their best documents."""

    queries: Tensor
    best: TopK
    lock: Lock = field(default_factory=Lock)  # of the best


class _Scan:
    """Queries [Q, H] that are compared with all documents, one tile per call.

    A longer prefix only adds dims: its products are those of the shorter one plus those of the
    dims between, and its squared lengths likewise. Scores are divided by lengths of documents
    when they are selected, and by those of queries if they may be among the best.
    """

    def __init__(
        self, queries: Tensor, source: VectorSource, dims: Sequence[int], k: int, ties: TieOrder
    ) -> None:
        self._source, self._dims = source, dims
        self._in_runs = not on_gpu(source.device) and len(queries) <= FEW
        alone = on_gpu(source.device) or self._in_runs
        self.threads = 1 if alone else torch.get_num_threads()
        selection = _selection(len(queries) * source.documents * len(dims), source.device)
        self.chunks = []
        for part in queries.tensor_split(-(-len(queries) // source.sizes.queries)):
            ones = part.new_ones(len(dims), len(part))
            scales = inverse_lengths(part, dims) if source.cosine else ones
            self.chunks.append(_Chunk(part, selection(k, scales, ties)))
        largest = len(self.chunks[0].queries)
        even = rounded_up(-(-source.documents // self.threads))
        self.size = source.sizes.of_tile(largest, min(source.largest_tile, even))
        # Of each thread: room for a tile and for its products with a chunk.
        self._rooms: SimpleQueue[tuple[Tensor, Tensor]] = SimpleQueue()
        for _ in range(self.threads):
            room = queries.new_empty(self.size, dims[-1]), queries.new_empty(largest, self.size)
            self._rooms.put(room)

    @torch.inference_mode()  # each thread has its own
    def compare(self, tile: Tile) -> None:
        """Compare all queries with a tile."""
        room = self._rooms.get()
        try:
            vectors = tile.widened(room[0])
            inverse = self._source.inverse_lengths(tile.start, vectors, self._dims)
            begin = tile.start // self.size % len(self.chunks)
            for chunk in self.chunks[begin:] + self.chunks[:begin]:  # so that few wait for a lock
                products = room[1][: len(chunk.queries)]
                for number, (start, stop) in enumerate(pairwise((0, *self._dims))):
                    left, right = chunk.queries[:, start:stop], vectors[:, start:stop]
                    if self._in_runs:
                        more = _products_in_runs(left, right)
                        products = products + more if start else more
                    else:
                        torch.addmm(products, left, right.mT, beta=int(start > 0), out=products)
                    factors = None if inverse is None else inverse[number, : tile.rows]
                    with chunk.lock:
                        chunk.best.add(number, products[:, : tile.rows], factors, tile.start)
        finally:
            self._rooms.put(room)


def _products_in_runs(queries: Tensor, vectors: Tensor) -> Tensor:
    """Return the products of queries [C, h] and vectors [n, h], [C, n], run by run.

    Torch divides runs among its threads. It would divide one matrix product anywhere, and round
    copies of a document differently at the edges.
    """
    runs = vectors.view(-1, RUN, vectors.shape[1])
    left = queries.expand(len(runs), *queries.shape)
    return torch.bmm(left, runs.mT).transpose(0, 1).flatten(1)


def _selection(scores: int, device: str) -> type[TopK]:
    """Return what selects the best: on a processor compiled code, once there was enough to do."""
    _SCORES[device] += scores
    if on_gpu(device) or _SCORES[device] < COMPILED_SCORES:
        return TopK
    try:
        from m2dr.index.exact.topk_numba import NumbaTopK
    except ImportError:  # numba is not there, or does not go with this numpy
        return TopK
    return NumbaTopK


@contextmanager
def _full_precision() -> Iterator[None]:
    """Multiply float32 as float32: training may have allowed TF32 or bf16, off by 1e-3."""
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


def in_threads(work: Callable[[Item], None], items: Iterable[Item], threads: int) -> Iterator[Item]:
    """Call `work` with each item, and yield the items in order, each when its work is done.

    Torch would divide every call among its threads, which then wait for one another. These divide
    the items, and torch uses one thread for each. One alone is the calling thread.

    Raises:
        Exception: what `items` or `work` raised.
    """
    if threads == 1:
        for item in items:
            work(item)
            yield item
        return
    pool, running = _pool(threads), deque[tuple[Item, Future[None]]]()
    try:
        for item in items:
            running.append((item, pool.submit(work, item)))
            if len(running) > 2 * threads:  # the next are ready when a thread is
                running[0][1].result()
                yield running.popleft()[0]
        for item, future in running:
            future.result()
            yield item
    finally:
        for _, future in running:
            future.cancel()
        wait(future for _, future in running)


@cache
def _pool(count: int) -> ThreadPoolExecutor:
    """Return threads for which torch divides no call."""
    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(count, thread_name_prefix="m2dr-scan")
    ready = Barrier(count)

    def alone() -> None:
        torch.get_num_threads()  # or the first call begins with what all threads begin with
        torch.set_num_threads(1)
        ready.wait()

    for future in [pool.submit(alone) for _ in range(count)]:
        future.result()
    torch.set_num_threads(before)  # also what threads that start later begin with
    return pool


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
