"""The best documents of each query: a full scan, or two when the first was wrongly cut short."""

# Shapes in this file:
#   Q queries, D dims, N documents, S of them in a sample.

from collections.abc import Callable
from dataclasses import replace
from math import ceil, sqrt

import numpy as np
import torch
from torch import Tensor

from m2dr.index.exact.best import Best, TorchBest
from m2dr.index.exact.few import ScanForFew
from m2dr.index.exact.keys import Places
from m2dr.index.exact.many import ScanForMany
from m2dr.index.exact.scan import Asked, Scan
from m2dr.index.exact.sizes import sizes
from m2dr.index.exact.source import ArraySource, Rows, Source

_QUERIES = 128  # for fewer a sample is not worth reading
_SAMPLED = 16  # documents among the best k that a sample has of each query, about
_LEAST = 8  # of these: with fewer its bar would let in as much as the first documents' does
_SHARE = 32  # a sample is at most so small a part of all
# Scores, at least, that are looked through by compiled code: to load it takes most of a second.
_COMPILED = 2**29
_LARGEST = 2**18  # documents of a sample: it is held in memory


@torch.inference_mode()
def search(
    queries: Tensor,
    source: Source,
    asked: Asked,
    progress: Callable[[int], None] | None = None,
) -> dict[int, tuple[Tensor, Tensor]]:
    """Compare queries [Q, H] with all documents.

    Of many documents that are wanted, most of the time would go into those that are among the best
    so far and not in the end. So a sample tells which score the best k will reach, and
    a little more is let in. A query of which fewer than k documents reach it after all is compared
    with all of them again: the result is exact either way.

    Args:
        queries: float32 on the device, not normalised.
        source: of the documents.
        asked: what to find.
        progress: told how many documents were scanned, again and again.

    Returns:
        Per dim, scores and rows [Q, min(k, N)], best first.

    Raises:
        UserError: a dim does not fit the vectors, or a score is not a number.
    """
    *some, last = torch.split(queries, _at_once(queries, asked)) or (queries,)
    parts = [_searched(part, source, asked) for part in some]
    parts.append(_searched(last, source, asked, progress))
    if not some:
        return parts[0]
    found = {dim: list(zip(*(part[dim] for part in parts), strict=True)) for dim in asked.dims}
    return {dim: (torch.cat(scores), torch.cat(rows)) for dim, (scores, rows) in found.items()}


def _at_once(queries: Tensor, asked: Asked) -> int:
    """How many queries are compared in one pass: on a gpu, as many as its free memory holds."""
    if queries.device.type != "cuda":
        return max(len(queries), 1)
    # Of each query and dim: keys and their sorting, what is returned, and the first scores.
    held = len(asked.dims) * 4 * (24 * asked.k + sizes("cuda").tile.start)
    free, _ = torch.cuda.mem_get_info(queries.device)
    return max(int(free) // 2 // held, 1)


def _searched(
    queries: Tensor,
    source: Source,
    asked: Asked,
    progress: Callable[[int], None] | None = None,
) -> dict[int, tuple[Tensor, Tensor]]:
    """As `search`, all queries in one pass."""
    floor = _floor(queries, source, asked)
    first = _scanned(queries, source, asked, floor, progress)
    found = {dim: first.found(dim) for dim in asked.dims}
    short = first.short()
    if len(short):
        again = _scanned(queries[short], source, asked)
        for dim, (scores, rows) in found.items():
            scores[short], rows[short] = again.found(dim)
    return found


def _scanned(
    queries: Tensor,
    source: Source,
    asked: Asked,
    floor: Tensor | None = None,
    progress: Callable[[int], None] | None = None,
) -> Scan:
    threads = torch.get_num_threads() if queries.device.type == "cpu" else 1
    suited = sizes(queries.device.type).within(source.most)
    scan: Scan
    if suited.are_few(len(queries), threads):
        scan = ScanForFew(queries, asked, suited, floor)
    else:
        scan = ScanForMany(queries, asked, suited, threads, floor, _kind(queries, source, asked))
    scan.read(source.tiles(scan.tile, asked.dims), progress)
    return scan


def _kind(queries: Tensor, source: Source, asked: Asked) -> type[Best]:
    """Compiled code where it can be had, if there is enough for it to do."""
    scores = len(queries) * source.documents * len(asked.dims)
    if queries.device.type != "cpu" or scores < _COMPILED:
        return TorchBest
    try:
        from m2dr.index.exact.compiled import CompiledBest
    except ImportError:  # numba is not there, or does not go with this numpy
        return TorchBest
    return CompiledBest


def _floor(queries: Tensor, source: Source, asked: Asked) -> Tensor | None:
    """Scores that some more than k documents will reach, most probably, [D, Q]."""
    documents = source.documents
    if len(queries) < _QUERIES or documents < _SAMPLED * asked.k:
        return None
    size = min(_SAMPLED * documents // asked.k, documents // _SHARE, _LARGEST)
    expected = asked.k * size / documents
    if expected < _LEAST:
        return None
    # So many of the best k are expected in the sample, with the spread of a Poisson distribution.
    # Four times that spread further down is a score which, almost surely, more than k reach.
    rank = ceil(expected + 4 * sqrt(expected) + 4)
    vectors = source.rows(_sample(documents, size))
    sampled = ArraySource(vectors, asked.similarity, str(queries.device))
    best = _scanned(queries, sampled, replace(asked, k=rank, places=Places(None, None)))
    return torch.stack([best.found(dim)[0][:, -1] for dim in asked.dims])


def _sample(documents: int, size: int) -> Rows:
    """Rows, one from each of `size` equal stretches: neighbours are often alike."""
    begins = np.linspace(0, documents, size, endpoint=False)
    shift = np.random.default_rng(0).random(size) * (documents / size)
    return np.minimum(begins + shift, documents - 1).astype(np.int64)
