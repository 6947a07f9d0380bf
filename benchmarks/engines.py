"""Engines on the same vectors: what they find, hold, cost to build and answer.

    python benchmarks/engines.py indexes/pydocs/0123456789ab/layer-06 --dim 32 128

VECTORS is a store's folder or an .npy of [N, H]. Queries are documents that were held out of the
index. Each (engine, setting) is built in a fresh folder and
timed in this process, one thread per core unless OMP_NUM_THREADS says otherwise; latencies are of
single queries, one after another. Prints Markdown.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from common import Floats, machine, write_store
from numpy.typing import NDArray
from timing import table_head, table_row, timed

from m2dr.index.engines import ENGINES
from m2dr.index.faiss import FaissIndex, build_index, open_faiss
from m2dr.index.library import load_faiss
from m2dr.index.store import Store, open_store

Row = dict[str, object]
DEPTHS = (10, 100)
SEED = 13

# What each engine is searched with beside its defaults.
SETTINGS: dict[str, tuple[dict[str, int], ...]] = {
    "int8": ({"rescore": 2},),
    "ivf": ({"nprobe": 8}, {"nprobe": 64}),
    "hnsw": ({"efSearch": 16}, {"efSearch": 256}),
    **{name: ({"rescore": 0},) for name in ("bits4", "bits2", "bits1")},
    "pq": ({"rescore": 10},),
    "ivf-pq": ({"rescore": 10},),
}


def read_vectors(source: Path) -> Floats:
    """Vectors of a store or an .npy, not normalised."""
    if source.suffix == ".npy":
        vectors: Floats = np.load(source, allow_pickle=False).astype(np.float32)
        return vectors
    store = open_store(source)
    return np.concatenate([np.asarray(block, np.float32) for _, block in store.blocks()])


def measured(index: FaissIndex, queries: Floats, truth: NDArray[np.int64], singles: int) -> Row:
    """Recall, queries per second in one batch, and latency of single queries in ms."""
    found: Row = {}
    for depth in DEPTHS:
        rows = index.search(queries, depth)[1]
        shared = [len(np.intersect1d(a, b)) for a, b in zip(rows, truth[:, :depth], strict=True)]
        found[f"recall@{depth}"] = float(np.mean(shared)) / min(depth, truth.shape[1])
    found["queries/s"] = len(queries) / timed(partial(index.search, queries, DEPTHS[0]))
    ways = [
        partial(index.search, queries[i % len(queries)][None], DEPTHS[0]) for i in range(singles)
    ]
    spans = [1000 * timed(way) for way in ways]
    return found | {"p50 ms": statistics.median(spans), "p95 ms": float(np.quantile(spans, 0.95))}


def built(store: Store, dim: int, engine: str, folder: Path) -> tuple[FaissIndex, Row]:
    """An index and what it cost."""
    begun = time.perf_counter()
    path = build_index(store, dim, engine, folder)
    seconds = time.perf_counter() - begun
    index = open_faiss(path, store)
    size = index.manifest.bytes / index.documents
    return index, {"build s": seconds, "bytes/document": size, "factory": index.manifest.factory}


def compare_dim(
    store: Store, dim: int, engines: Sequence[str], queries: Floats, singles: int
) -> list[Row]:
    """One row per engine and setting."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=store.folder) as name:
        exact = open_faiss(build_index(store, dim, "flat", Path(name) / "truth"))
        truth = exact.search(queries, max(DEPTHS))[1]
        for engine in engines:
            index, cost = built(store, dim, engine, Path(name))
            shown_before: set[str] = set()
            for setting in ({}, *SETTINGS.get(engine, ())):
                tuned = index.with_search_params(setting, store) if setting else index
                shown = ", ".join(f"{key} {value}" for key, value in tuned.search_params.items())
                if shown in shown_before:  # a default, which depends on the number of documents
                    continue
                shown_before.add(shown)
                head: Row = {"engine": engine, "setting": shown, **cost}
                rows.append({**head, **measured(tuned, queries, truth, singles)})
                print(f"dim {dim}: {rows[-1]}", file=sys.stderr)
    return rows


def split(vectors: Floats, count: int) -> tuple[Floats, Floats]:
    """Documents, and queries for which documents held out stand in."""
    count = min(count, len(vectors) // 10)
    drawn = np.random.default_rng(SEED).permutation(len(vectors))
    return vectors[np.sort(drawn[count:])], vectors[drawn[:count]]


def main() -> None:
    """Print a table per dim."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vectors", type=Path, help="a store's folder, or an .npy")
    parser.add_argument("--dim", type=int, nargs="+", default=[128])
    parser.add_argument("--engine", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--count", type=int, default=1000, help="queries")
    parser.add_argument("--singles", type=int, default=500, help="queries that are timed alone")
    asked = parser.parse_args()
    documents, queries = split(read_vectors(asked.vectors), asked.count)
    faiss = load_faiss()
    print(f"{machine()}, faiss {faiss.__version__} ({faiss.get_compile_options().strip()})")
    with tempfile.TemporaryDirectory() as folder:
        store = write_store(Path(folder) / "layer-01", [documents], documents.shape[1])
        for dim in asked.dim:
            rows = compare_dim(store, dim, asked.engine, queries, asked.singles)
            print(f"\n## {len(documents):,} documents, dim {dim}\n\n{table_head(*rows[0])}")
            for each in rows:
                cells = each.values()
                print(table_row(*(f"{v:.3f}" if isinstance(v, float) else v for v in cells)))


if __name__ == "__main__":
    main()
