"""What a full scan costs: all dims against one, and batches and single queries against FAISS flat.

    python benchmarks/exact.py --documents 1000000 --queries 1000 > benchmarks/search_exact_HOST.md
    python benchmarks/exact.py --store indexes/scifact/0123456789ab/layer-06 --documents 1000000

Each round runs every candidate once, in turn, and ratios are taken within a round: what else the
machine does then hits all of them. Vectors are those of the store, repeated with a little noise, or
random ones with a falling spectrum; never zeros, on which a processor is faster. They are written
to a store of float16 in a folder that is removed at the end, and FAISS holds them as float32: 4 ×
384 bytes each, 1.5 GB for a million. The rate is that of the multiply-adds of the whole width; the
bare product multiplies tiles of the same size that lie in a cache, and looks at no result.
"""

import argparse
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from m2dr.index.exact import ExactIndex, grid_top_k
from m2dr.index.library import load_faiss
from m2dr.index.manifest import Label, StorePlan
from m2dr.index.store import Store, begin_store, open_store
from m2dr.index.vectors import prefixes

Floats = NDArray[np.float32]
Candidates = dict[str, Callable[[], object]]

NOISE = 0.3  # of the standard deviation of a coordinate
BLOCK = 65_536  # rows, also of a shard
OURS, PEER, BARE = "m2dr", "faiss", "bare"


@dataclass(frozen=True)
class Material:
    """What is searched, by whom."""

    store: Store
    queries: Floats
    flats: dict[int, Any]  # per dim: a faiss.Index, which has no type stubs

    @property
    def dims(self) -> list[int]:
        """Powers of two from 8, and the width."""
        return usual(self.store.width)


def usual(width: int) -> list[int]:
    """Powers of two from 8 below the width, and the width."""
    return [8 * 2**i for i in range(12) if 8 * 2**i < width] + [width]


def sample(folder: Path | None, width: int) -> Floats:
    """Vectors to repeat: those of a store, or random ones with a falling spectrum."""
    if folder:
        store = open_store(folder)
        return store.rows(range(min(store.documents, BLOCK))).astype(np.float32)
    spectrum = np.arange(1, width + 1, dtype=np.float32) ** -0.3
    return np.random.default_rng(1).normal(size=(BLOCK, width)).astype(np.float32) * spectrum


def drawn(originals: Floats, rows: int, seed: int) -> Floats:
    """Vectors [rows, width] like the originals."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((rows, originals.shape[1]), np.float32)
    return originals[rng.integers(0, len(originals), rows)] + noise * originals.std() * NOISE


def written(folder: Path, originals: Floats, documents: int, similarity: str) -> Store:
    """A store of that many vectors."""
    label = Label("0" * 64, similarity, "mean", "", "", 64, 256, "same")
    plan = StorePlan("benchmark", 1, originals.shape[1], label, shard_rows=BLOCK)
    writer = begin_store(folder, plan)
    for number, start in enumerate(range(0, documents, BLOCK)):
        rows = min(BLOCK, documents - start)
        docids = [f"d{row:09}" for row in range(start, start + rows)]
        writer.write(number, docids, drawn(originals, rows, number), b"")
    writer.finish()
    return open_store(folder)


def flat(store: Store, dim: int) -> Any:
    """FAISS's full scan of a prefix."""
    index = load_faiss().IndexFlatIP(dim)
    for _, block in store.blocks():
        index.add(prefixes(block, dim, store.manifest.label.similarity))
    return index


def by_faiss(material: Material, dim: int, k: int, queries: Floats, threshold: int = 1) -> None:
    """Queries cut and normalised as the documents are, and searched."""
    load_faiss().cvar.distance_compute_blas_threshold = threshold
    similarity = material.store.manifest.label.similarity
    material.flats[dim].search(prefixes(queries, dim, similarity), k)


def by_scan(material: Material, dims: list[int], k: int) -> None:
    """Every dim in one pass, straight from the files."""
    store = material.store
    similarity = store.manifest.label.similarity
    grid_top_k([material.queries], store, dims, k, similarity)


def bare_product(material: Material) -> None:
    """The matrix products of a batch, of tiles of the same size."""
    queries = torch.from_numpy(material.queries)
    rows = 2048
    tile = torch.from_numpy(drawn(material.queries, rows, 0))
    for _ in range(0, material.store.documents, rows):
        for chunk in queries.split(512):
            torch.mm(chunk, tile.mT)


def timed(candidates: Candidates, rounds: int) -> dict[str, list[float]]:
    """Seconds of every candidate in every round; one round before, to warm up."""
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds + 1):
        for name, run in candidates.items():
            begun = time.perf_counter()
            run()
            if number:
                found[name].append(time.perf_counter() - begun)
    return found


def spread(values: list[float], digits: int = 2) -> str:
    """Median, with the least and the most."""
    low, middle, high = (f"{v:.{digits}f}" for v in (min(values), median(values), max(values)))
    return f"{middle} ({low}–{high})"


def ratios(above: list[float], below: list[float]) -> str:
    """Quotients within a round."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def batch_rows(material: Material, ks: list[int], rounds: int) -> Iterator[str]:
    """All queries at once at the whole width."""
    yield "| k | m2dr, s | FAISS flat, s | FAISS / m2dr | bare product, s | of its rate |"
    yield "|---|---|---|---|---|---|"
    width = material.store.width
    index = ExactIndex(material.store, width)
    for k in ks:
        candidates: Candidates = {
            OURS: lambda k=k: index.search(material.queries, k),
            PEER: lambda k=k: by_faiss(material, width, k, material.queries),
            BARE: lambda: bare_product(material),
        }
        found = timed(candidates, rounds)
        quotient, rate = ratios(found[PEER], found[OURS]), ratios(found[BARE], found[OURS])
        seconds = " | ".join(spread(found[name]) for name in (OURS, PEER))
        yield f"| {k} | {seconds} | {quotient} | {spread(found[BARE])} | {rate} |"


def single_rows(material: Material, ks: list[int], rounds: int) -> Iterator[str]:
    """One query after the other; a round is ten of them."""
    yield "| k | m2dr, ms | FAISS (BLAS), ms | FAISS (default), ms | faster FAISS / m2dr |"
    yield "|---|---|---|---|---|"
    width = material.store.width
    index = ExactIndex(material.store, width)
    asked = [material.queries[i : i + 1] for i in range(min(10, len(material.queries)))]
    for k in ks:
        candidates: Candidates = {
            OURS: lambda k=k: [index.search(query, k) for query in asked],
            PEER: lambda k=k: [by_faiss(material, width, k, query) for query in asked],
            BARE: lambda k=k: [by_faiss(material, width, k, query, 20) for query in asked],
        }
        found = timed(candidates, rounds)
        better = min(found[PEER], found[BARE], key=median)
        per = {name: [1000 * s / len(asked) for s in values] for name, values in found.items()}
        cells = " | ".join(spread(per[name]) for name in (OURS, PEER, BARE))
        yield f"| {k} | {cells} | {ratios(better, found[OURS])} |"


def dims_rows(material: Material, ks: list[int], rounds: int) -> Iterator[str]:
    """All dims in one pass, against the whole width alone and against FAISS dim by dim."""
    yield "| k | whole width, s | all dims, s | all / whole | FAISS, each dim, s | all / FAISS |"
    yield "|---|---|---|---|---|---|"
    dims = material.dims
    material.flats.update({dim: flat(material.store, dim) for dim in dims[:-1]})
    for k in ks:
        candidates: Candidates = {
            OURS: lambda k=k: by_scan(material, dims[-1:], k),
            "all": lambda k=k: by_scan(material, dims, k),
            PEER: lambda k=k: [by_faiss(material, dim, k, material.queries) for dim in dims],
        }
        found = timed(candidates, rounds)
        whole, every, peer = (found[name] for name in (OURS, "all", PEER))
        times = f"{ratios(every, whole)} | {spread(peer)} | {ratios(every, peer)}"
        yield f"| {k} | {spread(whole)} | {spread(every)} | {times} |"


def header(arguments: argparse.Namespace, material: Material) -> str:
    """What was measured, on what."""
    source = arguments.store or "random vectors"
    return (
        f"# A full scan of {material.store.documents:,} × {material.store.width}\n\n"
        f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, "
        f"faiss {load_faiss().__version__}; {len(material.queries)} queries, "
        f"{arguments.similarity}, vectors from {source}. Medians of {arguments.rounds} rounds, "
        f"with the least and the most; ratios within a round. "
        f"`python benchmarks/exact.py` says how.\n"
    )


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--width", type=int, default=384, help="Where no store is given.")
    parser.add_argument("--store", type=Path, help="Real vectors to repeat with noise.")
    parser.add_argument("--similarity", choices=["dot", "cosine"], default="cosine")
    parser.add_argument("--k", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", choices=["batch", "single", "dims"], nargs="+")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    load_faiss().omp_set_num_threads(arguments.threads)
    parts = {
        "batch": ("All queries at once", batch_rows),
        "single": ("One query at a time", single_rows),
        "dims": ("Every dim in one pass", dims_rows),
    }
    with tempfile.TemporaryDirectory() as folder:
        originals = sample(arguments.store, arguments.width)
        store = written(Path(folder), originals, arguments.documents, arguments.similarity)
        queries = drawn(originals, arguments.queries, seed=10**6)
        material = Material(store, queries, {store.width: flat(store, store.width)})
        print(header(arguments, material))
        for name in arguments.only or parts:
            title, rows = parts[name]
            print(f"## {title}\n")
            for row in rows(material, arguments.k, arguments.rounds):
                print(row, flush=True)
            print()


if __name__ == "__main__":
    main()
