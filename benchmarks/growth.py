"""How the exits of an index fare as a corpus grows: queries of layer 0 beside the full model's.

    python benchmarks/growth.py --corpus DATA/msmarco/passage-pool \\
        --split dl19 --split dl20 --out RESULTS

Nested samples of the documents, each a corpus in BEIR layout with the queries that have a relevant
document in it, which `m2dr evaluate retrieval --exits index` indexes and measures. What is done is
not done again. Then the table: nDCG@10 x 100 of each size, and the share of the full model in the
mean over queries, with the 95 % interval of a paired bootstrap.
"""

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.data.loaders import open_dataset
from m2dr.evaluation.grid import SCORES, QueryScores, read_scores

LAYERS, DIMS, MEASURE = (0, 1, 3, 6), (32, 64, 128, 384), "nDCG@10"
SHOWN = ((0, 64), (0, 128), (0, 384), (1, 384), (3, 384), (6, 64), (6, 128), (6, 384))
SIZES = (1_000, 5_000, 20_000)  # and all
SEED, DRAWS = 13, 10_000

Floats = NDArray[np.float64]


def write_sample(corpus: str, splits: list[str], size: int, folder: Path) -> Path:
    """Write some documents of a corpus, and the queries of its splits that they answer."""
    dataset = open_dataset(corpus)
    rows = list(range(dataset.document_count))
    random.Random(SEED).shuffle(rows)
    documents = [dataset.document_at(row) for row in sorted(rows[:size])]
    kept = {document.id for document in documents}
    judged = [one for split in splits for one in dataset.judgements(split)]
    judged = [one for one in judged if one.document_id in kept]
    asked = {one.query_id for one in judged if one.relevance > 0}
    queries = {query.id: query for split in splits for query in dataset.queries(split)}
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    texts = [{"_id": one.id, "title": one.title, "text": one.text} for one in documents]
    _write(folder / "corpus.jsonl", map(json.dumps, texts))
    _write(
        folder / "queries.jsonl",
        (json.dumps({"_id": key, "text": queries[key].text}) for key in sorted(asked)),
    )
    lines = (
        f"{one.query_id}\t{one.document_id}\t{one.relevance}"
        for one in judged
        if one.query_id in asked
    )
    _write(folder / "qrels" / "test.tsv", ["query-id\tcorpus-id\tscore", *lines])
    return folder


def _write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def measure(model: str, folder: Path) -> QueryScores:
    """Index a sample and measure it, if that is not done, and return the scores of its queries."""
    results = folder / "results"
    cuts = ["--layers", ",".join(map(str, LAYERS)), "--dims", ",".join(map(str, DIMS))]
    places = ["--indexes", str(folder / "indexes"), "--out", str(results)]
    command = [
        "beir",
        "--corpus",
        str(folder),
        "--model",
        model,
        "--exits",
        "index",
        *cuts,
        *places,
    ]
    program = [sys.executable, "-m", "m2dr", "evaluate"]
    subprocess.run([*program, *command, "--measure", MEASURE], check=True)
    (path,) = results.rglob(SCORES)
    return read_scores(path)[MEASURE]


def share(shallow: Floats, full: Floats) -> tuple[float, float, float]:
    """Return the ratio of two means over the same queries, and its 95 % interval."""
    draw = np.random.default_rng(SEED).integers(0, len(full), (DRAWS, len(full)))
    low, high = np.percentile(shallow[draw].mean(axis=1) / full[draw].mean(axis=1), [2.5, 97.5])
    return float(shallow.mean() / full.mean()), float(low), float(high)


def main() -> None:
    """Read the command line, run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", required=True, help="Folder in BEIR layout.")
    parser.add_argument("--split", action="append", required=True, help="Repeatable.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="minilm")
    arguments = parser.parse_args()
    count = open_dataset(arguments.corpus).document_count
    rows = []
    for size in (*(one for one in SIZES if one < count), count):
        folder = arguments.out / f"{size}-documents"
        write_sample(arguments.corpus, arguments.split, size, folder)
        scores = measure(arguments.model, folder)
        by_cut = {(cut.layer, cut.dim): scores.values[n] for n, cut in enumerate(scores.cuts)}
        cells = [f"{100 * by_cut[cut].mean():.1f}" for cut in SHOWN]
        ratio, low, high = share(by_cut[0, 384], by_cut[6, 384])
        found = f"{100 * ratio:.0f} ({100 * low:.0f} to {100 * high:.0f})"
        rows.append([f"{size:,}", str(len(scores.query_ids)), *cells, found])
    names = [f"L{layer}D{dim}" for layer, dim in SHOWN]
    print("| documents | queries | " + " | ".join(names) + " | L0D384 of L6D384, % |")
    print("|---" * (len(names) + 3) + "|")
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))


if __name__ == "__main__":
    main()
