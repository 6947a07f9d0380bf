"""Vectors of few bits: bytes and nDCG@10 of engines by dim, and the time of a scan.

    python benchmarks/codes.py --work WORK CORPUS[@SPLIT] … > benchmarks/codes_HOST.md
    python benchmarks/codes.py --work WORK --rows 1000000 >> benchmarks/codes_HOST.md

CORPUS and WORK are as in benchmarks/words.py, whose vectors are read where they are there already.
Every engine is built at each dim, from the vectors as they are and rotated to principal axes, and
searched with 10 candidates per hit rescored from the store and with none. Scans are of made rows,
one thread, one query at a time.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import faiss
import numpy as np
from words import as_folder, encode

from m2dr.data.loaders import open_dataset
from m2dr.evaluation.measures import Evaluator
from m2dr.index.codes import CODES
from m2dr.index.engines import ENGINES, empty_index, train_index
from m2dr.index.faiss import build_index, open_index
from m2dr.index.manifest import Label, StorePlan
from m2dr.index.store import Store, begin_store, open_store, text_digests
from m2dr.index.vectors import prefixes
from m2dr.training.linear_fit import fit_rotation

MEASURE = "nDCG@10"
DIMS = (384, 256, 128, 64)
ROWS = (*(CODES[name] for name in CODES if name != "f16"), "pq")
BUDGETS = (16, 32, 64)


def store_of(folder: Path, docids: list[str], vectors: np.ndarray) -> Store:
    """Write vectors as a store."""
    width = vectors.shape[1]
    label = Label("0" * 64, "cosine", "mean", "", "", 64, 128, "same", ((1, width),), "m", "s")
    writer = begin_store(folder, StorePlan("codes", 1, width, label, shard_rows=len(docids)))
    writer.write(0, docids, vectors, text_digests(docids))
    writer.finish()
    return open_store(folder)


def size(engine: str, dim: int) -> int:
    """Return the bytes of a document."""
    return empty_index(ENGINES[engine](10**6, dim).factory, dim).sa_code_size()


def quality(corpus: str, split: str, args: argparse.Namespace) -> tuple[str, dict]:
    """Return a sentence and losses by (rotated, engine, dim)."""
    dataset = open_dataset(corpus)
    home = args.work / f"{Path(corpus).name.replace(':', '-')}-{Path(args.model).name}"
    documents, queries = (np.load(file) for file in encode(corpus, split, args.model, home))
    docids = [document.id for document in dataset.documents()]
    names = [query.id for query in dataset.queries(split)]
    evaluator = Evaluator(dataset.judgements(split), [MEASURE])
    own = {name: drop for name in names if (drop := dataset.own_document(name))}
    turn = fit_rotation(documents.astype(np.float32), "pca", "cosine", ())
    losses, full = {}, 0.0
    for rotated, by in ((False, np.eye(len(turn), dtype=np.float32)), (True, turn)):
        with tempfile.TemporaryDirectory() as folder:
            store = store_of(Path(folder) / "layer-01", docids, documents @ by.T)
            for dim in args.dims:
                for engine in ROWS:
                    index = open_index(build_index(store, dim, engine))
                    values = []
                    for rescore in (10, 0):
                        if not index.exact:
                            index = index.with_search_params({"rescore": rescore}, store)
                        run = index.ranked(names, queries @ by.T, 10, own)
                        values.append(100 * evaluator.scores(run).mean[MEASURE])
                    full = full or values[0]
                    losses[rotated, engine, dim] = [value - full for value in values]
    return f"{dataset.name} {split} ({len(docids):,} documents, {full:.1f})", losses


def scan(engine: str, dim: int, rows: int, repeats: int = 21) -> float:
    """Return the median milliseconds of one query's 100 best of made rows."""
    factory, generator = ENGINES[engine](rows, dim).factory, np.random.default_rng(0)
    index = empty_index(factory, dim)
    train_index(
        index, prefixes(generator.standard_normal((16384, dim), np.float32), dim, "cosine"), factory
    )
    for _ in range(0, rows, 50_000):
        index.add(prefixes(generator.standard_normal((50_000, dim), np.float32), dim, "cosine"))
    queries, times = prefixes(generator.normal(size=(repeats, dim)), dim, "cosine"), []
    for query in queries:
        begun = time.perf_counter()
        index.search(query[None], 100)
        times.append(time.perf_counter() - begun)
    return 1000 * statistics.median(times)


def print_quality(args: argparse.Namespace) -> None:
    """Print the losses of all collections."""
    told, mean = [], defaultdict(list)
    for name in args.corpora:
        corpus, _, split = name.partition("@")
        sentence, losses = quality(as_folder(corpus, args.work, args.every), split or "test", args)
        told.append(sentence)
        for key, values in losses.items():
            mean[key].append(values)
        print(sentence, file=sys.stderr)
    worst = {key: np.min(values, axis=0) for key, values in mean.items()}
    mean = {key: np.mean(values, axis=0) for key, values in mean.items()}
    print(f"# Vectors of few bits: {MEASURE} × 100 lost and bytes, {Path(args.model).name}\n")
    print(
        f"{platform.machine()}, faiss {faiss.__version__} ({faiss.get_compile_options().strip()})."
    )
    print(f"Collections, with {MEASURE} of full float32 vectors: {'; '.join(told)}.\n")
    print("Losses are the mean of the collections against the full vectors: with 10 candidates per")
    print("hit rescored from the store at the same dim / without. Bytes are those of a document.")
    for rotated, title in ((False, "As they are"), (True, "Rotated to principal axes")):
        print(f"\n## {title}\n")
        print(f"| engine | {' | '.join(f'{dim} dims | bytes' for dim in args.dims)} |")
        print(f"|{'---|' * (1 + 2 * len(args.dims))}")
        for engine in ROWS:
            cells = []
            for dim in args.dims:
                again, alone = mean[rotated, engine, dim]
                cells.append(f"{again:+.1f} / {alone:+.1f} | {size(engine, dim)}")
            print(f"| {engine} | {' | '.join(cells)} |")
    print("\n## Best prefix and bits by bytes\n\nIn brackets the worst collection.\n")
    print("| bytes at most | vectors | with rescoring | without |\n|---|---|---|---|")
    for budget in BUDGETS:
        for rotated in (False, True):
            cells = []
            for way in (0, 1):
                key = max(
                    (key for key in mean if key[0] == rotated and size(*key[1:]) <= budget),
                    key=lambda key, way=way: mean[key][way],
                )
                cells.append(
                    f"{key[1]} at {key[2]} dims: {mean[key][way]:+.2f} ({worst[key][way]:+.2f})"
                )
            print(f"| {budget} | {'rotated' if rotated else 'as they are'} | {' | '.join(cells)} |")


def main() -> None:
    """Print a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpora", nargs="*")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--dims", type=int, nargs="+", default=DIMS)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--rows", type=int, default=0)
    args = parser.parse_args()
    if args.corpora:
        print_quality(args)
    if args.rows:
        faiss.omp_set_num_threads(1)
        load = os.getloadavg()[0]
        print(f"\n## One scan of {args.rows:,} made rows, ms, before rescoring\n")
        print(
            f"Medians of 21 queries, one thread; load of the {os.cpu_count()} cores {load:.1f}.\n"
        )
        print("| engine | 256 dims | 128 dims |\n|---|---|---|")
        for engine in ROWS:
            times = [f"{scan(engine, dim, args.rows):.1f}" for dim in (256, 128)]
            print(f"| {engine} | {' | '.join(times)} |", flush=True)
    print(f"\n`python {' '.join(sys.argv)}`")


if __name__ == "__main__":
    main()
