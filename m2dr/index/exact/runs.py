"""All dims of a layer ranked by the exact engine, in one pass over its vectors."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from m2dr.errors import UserError
from m2dr.index.docids import Docids
from m2dr.index.exact.keys import Places
from m2dr.index.exact.scan import Asked
from m2dr.index.exact.search import search
from m2dr.index.exact.source import ArraySource, Source, StoreSource
from m2dr.index.ranked import as_run
from m2dr.index.store import Store
from m2dr.index.vectors import Floats, check_depth, check_queries
from m2dr.records.card import Similarity
from m2dr.records.run import Run

Found = tuple[NDArray[np.float32], NDArray[np.int64]]  # scores and rows, both [Q, k]


def prefix_top_k(
    queries: Tensor | Floats,
    documents: Store | Floats,
    dims: Iterable[int],
    k: int,
    similarity: Similarity,
    device: str = "cpu",
    places: NDArray[np.int64] | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[int, Found]:
    """Search for the best `k` documents of each query, by each prefix.

    All dims together cost little more than the longest alone: benchmarks/exact.py.

    Args:
        queries: [Q, H], not normalised.
        documents: a store, or vectors [N, H], not normalised.
        dims: the prefixes, none above H.
        k: how many documents for each.
        similarity: cosine normalises after cutting; a vector of length zero then scores 0.
        device: of the products, as torch names it.
        places: [N], no two the same and all from 0 to N - 1; of documents with equal scores
            the one with the higher place comes first. The lower row, when None.
        progress: told how many documents were scanned, again and again.

    Returns:
        Per dim, scores and rows, [Q, min(k, N)], best first.

    Raises:
        UserError: a dim does not fit the vectors, a query or a score is not finite, or k is
            below 1.
    """
    check_depth(k)
    wanted = _increasing(dims)
    source: Source
    if isinstance(documents, Store):
        source = StoreSource(documents, similarity, device)
    else:
        source = ArraySource(documents, similarity, device)
    asked = Asked(wanted, k, similarity, Places.of(places, device))
    best = search(on(queries, device, wanted[-1]), source, asked, progress)
    return {dim: arrays(*best[dim]) for dim in wanted}


def prefix_runs(
    query_ids: Sequence[str],
    queries: Tensor | Floats,
    documents: Store | Floats,
    docids: Docids,
    dims: Iterable[int],
    k: int,
    similarity: Similarity,
    device: str = "cpu",
    drop: Mapping[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[int, Run]:
    """Rank as `prefix_top_k` does, ties by docid descending: one run per dim.

    Args:
        query_ids: Q of them.
        queries: [Q, H], not normalised.
        documents: as `prefix_top_k` takes them.
        docids: N of them.
        dims: the prefixes.
        k: how many documents for each query.
        similarity: as `prefix_top_k` takes it.
        device: as `prefix_top_k` takes it.
        drop: per query id, a docid to leave out, such as the query's own document.
        progress: as `prefix_top_k` takes it.

    Raises:
        UserError: a dim does not fit the vectors, a query or a score is not finite, or k is
            below 1.
    """
    check_depth(k)
    drop = drop or {}
    by_dim = prefix_top_k(
        queries, documents, dims, k + bool(drop), similarity, device, docids.ranks(), progress
    )
    return {dim: as_run(query_ids, found, docids, k, drop) for dim, found in by_dim.items()}


def on(queries: Tensor | Floats, device: str, dim: int) -> Tensor:
    """Queries [Q, at least dim] on the device, float32.

    Raises:
        UserError: they are too short, or not finite.
    """
    tensor = queries if isinstance(queries, Tensor) else torch.from_numpy(np.array(queries))
    tensor = tensor.detach().to(device, torch.float32)
    check_queries(tensor.cpu().numpy(), dim)
    return tensor


def arrays(scores: Tensor, rows: Tensor) -> Found:
    """What a search found, off the device."""
    return scores.cpu().numpy(), rows.cpu().numpy()


def _increasing(dims: Iterable[int]) -> tuple[int, ...]:
    found = tuple(sorted(set(dims)))
    if not found or found[0] < 1:
        raise UserError(f"Dims {list(found)} were asked for. Name at least one, none below 1.")
    return found
