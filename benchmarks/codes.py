"""Vectors of few bits: bytes and nDCG@10 of engines by dim, and the time of a scan.

    python benchmarks/codes.py --work WORK CORPUS[@SPLIT] … > benchmarks/codes_HOST.md
    python benchmarks/codes.py --work WORK --rows 1000000 >> benchmarks/codes_HOST.md

CORPUS and WORK are as in benchmarks/words.py, whose vectors are read where they are there already.
Every engine is built at each dim, from the vectors as they are and rotated to principal axes, and
searched with 10 candidates per hit rescored from the store and with none. Scans are of made rows,
one thread, one query at a time.
"""

import argparse
import platform
import statistics
import sys
import tempfile
from collections import defaultdict
from functools import partial
from pathlib import Path

import faiss
import numpy as np
from common import machine, write_store
from timing import table_head, table_row, timed
from words import as_folder, encode

from m2dr.data.loaders import open_dataset
from m2dr.evaluation.measures import Evaluator
from m2dr.index.codes import CODES
from m2dr.index.engines import ENGINES, empty_index, train_index
from m2dr.index.faiss import build_index, open_faiss
from m2dr.index.vectors import prefixes
from m2dr.maps.exits import fit_rotation

MEASURE = "nDCG@10"
DIMS = (384, 256, 128, 64)
ROWS = (*(CODES[name] for name in CODES if name != "f16"), "pq")
BUDGETS = (16, 32, 64)
Key = tuple[bool, str, int]  # rotated, engine, dim


def size(engine: str, dim: int) -> int:
    """Return the bytes of a document."""
    return int(empty_index(ENGINES[engine](10**6, dim).factory, dim).sa_code_size())


def quality(
    corpus: str, split: str, args: argparse.Namespace
) -> tuple[str, dict[Key, list[float]]]:
    """Return a sentence, and losses with and without rescoring."""
    dataset = open_dataset(corpus)
    home = args.work / f"{Path(corpus).name.replace(':', '-')}-{Path(args.model).name}"
    documents, queries = (np.load(file) for file in encode(corpus, split, args.model, home))
    docids = [document.id for document in dataset.documents()]
    names = [query.id for query in dataset.queries(split)]
    evaluator = Evaluator(dataset.judgements(split), [MEASURE])
    own = {name: drop for name in names if (drop := dataset.own_document(name))}
    turn = fit_rotation(documents.astype(np.float32), "pca", "cosine", ())
    losses: dict[Key, list[float]] = {}
    full = 0.0
    for rotated, by in ((False, np.eye(len(turn), dtype=np.float32)), (True, turn)):
        with tempfile.TemporaryDirectory() as folder:
            place, turned = Path(folder) / "layer-01", documents @ by.T
            store = write_store(place, [turned], len(turn), docids, shard_rows=len(docids))
            for dim in dict.fromkeys((len(turn), *DIMS)):  # losses are to the full vectors
                for engine in ROWS:
                    index = open_faiss(build_index(store, dim, engine))
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
    queries = prefixes(generator.standard_normal((repeats, dim), np.float32), dim, "cosine")
    times = [timed(partial(index.search, query[None], 100)) for query in queries]
    return 1000 * statistics.median(times)


def print_quality(args: argparse.Namespace) -> None:
    """Print the losses of all collections."""
    told = []
    found: dict[Key, list[list[float]]] = defaultdict(list)
    for name in args.corpora:
        corpus, _, split = name.partition("@")
        sentence, losses = quality(as_folder(corpus, args.work, args.every), split or "test", args)
        told.append(sentence)
        for key, values in losses.items():
            found[key].append(values)
        print(sentence, file=sys.stderr)
    worst = {key: np.min(values, axis=0) for key, values in found.items()}
    mean = {key: np.mean(values, axis=0) for key, values in found.items()}
    print(f"# Vectors of few bits: {MEASURE} × 100 lost and bytes, {Path(args.model).name}\n")
    print(
        f"{platform.machine()}, faiss {faiss.__version__} ({faiss.get_compile_options().strip()})."
    )
    print(f"Collections, with {MEASURE} of full float32 vectors: {'; '.join(told)}.\n")
    print("Losses are the mean of the collections against the full vectors: with 10 candidates per")
    print("hit rescored from the store at the same dim / without. Bytes are those of a document.")
    for rotated, title in ((False, "As they are"), (True, "Rotated to principal axes")):
        print(f"\n## {title}\n")
        print(table_head("engine", *(each for dim in DIMS for each in (f"{dim} dims", "bytes"))))
        for engine in ROWS:
            cells = []
            for dim in DIMS:
                again, alone = mean[rotated, engine, dim]
                cells += [f"{again:+.1f} / {alone:+.1f}", str(size(engine, dim))]
            print(table_row(engine, *cells))
    print("\n## Best prefix and bits by bytes\n\nIn brackets the worst collection.\n")
    print(table_head("bytes at most", "vectors", "with rescoring", "without"))
    for budget in BUDGETS:
        for rotated in (False, True):
            cells = []
            for way in (0, 1):
                fitting = (key for key in mean if key[0] == rotated and size(*key[1:]) <= budget)
                value, key = max((mean[key][way], key) for key in fitting)
                cells.append(f"{key[1]} at {key[2]} dims: {value:+.2f} ({worst[key][way]:+.2f})")
            print(table_row(budget, "rotated" if rotated else "as they are", *cells))


def main() -> None:
    """Print a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpora", nargs="*")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--rows", type=int, default=0)
    args = parser.parse_args()
    if args.corpora:
        print_quality(args)
    if args.rows:
        faiss.omp_set_num_threads(1)
        print(f"\n## One scan of {args.rows:,} made rows, ms, before rescoring\n")
        print(f"Medians of 21 queries, one thread of FAISS. {machine()}.\n")
        print(table_head("engine", "256 dims", "128 dims"))
        for engine in ROWS:
            times = [f"{scan(engine, dim, args.rows):.1f}" for dim in (256, 128)]
            print(table_row(engine, *times), flush=True)
    print(f"\n`python {' '.join(sys.argv)}`")


if __name__ == "__main__":
    main()
