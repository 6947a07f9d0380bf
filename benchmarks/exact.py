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
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from common import SHARD_ROWS as BLOCK
from common import Floats, machine, write_store
from timing import Rivals, in_turn, ratios, spread, table_head, table_row

from m2dr.index.exact import ExactIndex, grid_top_k
from m2dr.index.library import load_faiss
from m2dr.index.store import Store, open_store
from m2dr.index.vectors import prefixes

NOISE = 0.3  # of the standard deviation of a coordinate
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
        return np.asarray(store.rows(range(min(store.documents, BLOCK))), np.float32)
    spectrum = np.arange(1, width + 1, dtype=np.float32) ** -0.3
    return np.random.default_rng(1).normal(size=(BLOCK, width)).astype(np.float32) * spectrum


def drawn(originals: Floats, rows: int, seed: int) -> Floats:
    """Vectors [rows, width] like the originals."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((rows, originals.shape[1]), np.float32)
    found: Floats = originals[rng.integers(0, len(originals), rows)]
    found += noise * originals.std() * NOISE
    return found


def written(folder: Path, originals: Floats, documents: int) -> Store:
    """A store of that many vectors."""
    starts = enumerate(range(0, documents, BLOCK))
    shards = (drawn(originals, min(BLOCK, documents - start), i) for i, start in starts)
    return write_store(folder, shards, originals.shape[1])


def flat(store: Store, dim: int) -> Any:
    """FAISS's full scan of a prefix."""
    index = load_faiss().IndexFlatIP(dim)
    for _, block in store.blocks():
        index.add(prefixes(block, dim, "cosine"))
    return index


def by_faiss(material: Material, dim: int, k: int, queries: Floats, *, threshold: int = 1) -> None:
    """Queries cut and normalised as the documents are, and searched."""
    load_faiss().cvar.distance_compute_blas_threshold = threshold
    material.flats[dim].search(prefixes(queries, dim, "cosine"), k)


def by_scan(material: Material, dims: list[int], k: int) -> None:
    """Every dim in one pass, straight from the files."""
    grid_top_k([material.queries], material.store, dims, k, "cosine")


def bare_product(material: Material) -> None:
    """The matrix products of a batch, of tiles of the same size."""
    queries = torch.from_numpy(material.queries)
    rows = 2048
    tile = torch.from_numpy(drawn(material.queries, rows, 0))
    for _ in range(0, material.store.documents, rows):
        for chunk in torch.split(queries, 512):
            torch.mm(chunk, tile.mT)


def batch_rows(material: Material, ks: list[int], rounds: int) -> Iterator[str]:
    """All queries at once at the whole width."""
    yield table_head(
        "k", "m2dr, s", "FAISS flat, s", "FAISS / m2dr", "bare product, s", "of its rate"
    )
    width = material.store.width
    index = ExactIndex(material.store, width)
    for k in ks:
        candidates: Rivals = {
            OURS: partial(index.search, material.queries, k),
            PEER: partial(by_faiss, material, width, k, material.queries),
            BARE: partial(bare_product, material),
        }
        found = in_turn(candidates, rounds, warm_up=1)
        times = (ratios(found[PEER], found[OURS]), found[BARE], ratios(found[BARE], found[OURS]))
        yield table_row(k, *map(spread, (found[OURS], found[PEER], *times)))


def single_rows(material: Material, ks: list[int], rounds: int) -> Iterator[str]:
    """One query after the other; a round is ten of them."""
    names = ("m2dr", "FAISS (BLAS)", "FAISS (default)")
    yield table_head("k", *(f"{name}, ms" for name in names), "faster FAISS / m2dr")
    width = material.store.width
    index = ExactIndex(material.store, width)
    asked = [material.queries[i : i + 1] for i in range(min(10, len(material.queries)))]

    def each(search: Callable[[Floats], object]) -> None:
        for query in asked:
            search(query)

    for k in ks:
        ways: tuple[Callable[[Floats], object], ...] = (
            partial(index.search, k=k),
            partial(by_faiss, material, width, k),
            partial(by_faiss, material, width, k, threshold=20),
        )
        candidates = {name: partial(each, way) for name, way in zip(names, ways, strict=True)}
        found = in_turn(candidates, rounds, warm_up=1)
        better = min((found[name] for name in names[1:]), key=median)
        cells = [spread(1000 * s / len(asked) for s in found[name]) for name in names]
        yield table_row(k, *cells, spread(ratios(better, found[names[0]])))


def dims_rows(material: Material, ks: list[int], rounds: int) -> Iterator[str]:
    """All dims in one pass, against the whole width alone and against FAISS dim by dim."""
    titles = ("whole width, s", "all dims, s", "all / whole", "FAISS, each dim, s", "all / FAISS")
    yield table_head("k", *titles)
    dims = material.dims
    material.flats.update({dim: flat(material.store, dim) for dim in dims[:-1]})

    def by_dims(k: int) -> None:
        for dim in dims:
            by_faiss(material, dim, k, material.queries)

    for k in ks:
        candidates = {
            OURS: partial(by_scan, material, dims[-1:], k),
            "all": partial(by_scan, material, dims, k),
            PEER: partial(by_dims, k),
        }
        whole, every, peer = in_turn(candidates, rounds, warm_up=1).values()
        times = (whole, every, ratios(every, whole), peer, ratios(every, peer))
        yield table_row(k, *map(spread, times))


def title(arguments: argparse.Namespace, material: Material) -> str:
    """What was measured, on what."""
    source = arguments.store or "random vectors"
    return (
        f"# A full scan of {material.store.documents:,} × {material.store.width}\n\n"
        f"{machine()}, faiss {load_faiss().__version__}; {len(material.queries)} queries, "
        f"cosine, vectors from {source}. Medians of {arguments.rounds} rounds, "
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
        store = written(Path(folder), originals, arguments.documents)
        queries = drawn(originals, arguments.queries, seed=10**6)
        material = Material(store, queries, {store.width: flat(store, store.width)})
        print(title(arguments, material))
        for name in arguments.only or parts:
            heading, rows = parts[name]
            print(f"## {heading}\n")
            for line in rows(material, arguments.k, arguments.rounds):
                print(line, flush=True)
            print()


if __name__ == "__main__":
    main()
