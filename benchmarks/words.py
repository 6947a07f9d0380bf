"""Queries that run no layer on several collections: words, BM25, both, and the full model.

    python benchmarks/words.py --work WORK [--model minilm] CORPUS[@SPLIT] … > benchmarks/words.md

A CORPUS is a data set's name or folder, or a file of pairs (JSONL with query, document and their
ids), of which --every K takes every K-th row: all of its documents, and 500 of its queries. The
model encodes documents and queries once, into WORK, where vectors that are there already stay. What
searches them then is `m2dr index import` and `m2dr evaluate retrieval --query-vectors`, without the
model. The interval is that of the difference of words and the full model, by a paired bootstrap
over queries.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.json
from timing import process

from m2dr.data.loaders import open_dataset
from m2dr.tasks.encoder import Encoder

WAYS = {"vectors": (), "with BM25": ("--hybrid",), "mixed": ("--query-mix",)}
SAMPLES = 10_000


def as_folder(name: str, work: Path, every: int) -> str:
    """Return a corpus that m2dr opens: of a file of pairs, a folder in BEIR's layout."""
    path = Path(name)
    if not path.is_file():
        return name
    folder = work / path.name.partition(".")[0]
    if not folder.exists():
        rows = pyarrow.json.read_json(path).to_pylist()[::every]
        asked = rows[:: max(1, len(rows) // 500)][:500]
        (folder / "qrels").mkdir(parents=True)
        documents = {row["document_id"]: row["document"] for row in rows}
        for file, texts in (
            ("corpus", documents),
            ("queries", {row["query_id"]: row["query"] for row in asked}),
        ):
            lines = (json.dumps({"_id": each, "text": text}) for each, text in texts.items())
            (folder / f"{file}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        judged = (f"{row['query_id']}\t{row['document_id']}\t1" for row in asked)
        header = "query-id\tcorpus-id\tscore"
        (folder / "qrels" / "test.tsv").write_text("\n".join([header, *judged]) + "\n")
    return str(folder)


def encode(corpus: str, split: str, model: str, folder: Path) -> tuple[Path, Path]:
    """Write the vectors of the documents and queries, unless they are there; return both files."""
    dataset = open_dataset(corpus)
    documents, queries = folder / "documents.npy", folder / f"queries-{split}.npy"
    folder.mkdir(parents=True, exist_ok=True)
    if not documents.exists():
        texts = [document.content for document in dataset.documents()]
        np.save(documents, Encoder(model).encode(texts, side="document", show_progress_bar=True))
    if not queries.exists():
        texts = [query.text for query in dataset.queries(split)]
        np.save(queries, Encoder(model).encode(texts, side="query"))
    return documents, queries


def scores(folder: Path, layer: int, width: int) -> np.ndarray:
    """Return nDCG@10 of every query by all dims of a layer."""
    with np.load(folder / "per_query.npz") as file:
        cuts = json.loads(bytes(file["head"]))["cuts"]
        return np.asarray(file["values"][0, cuts.index([layer, width])], np.float64)


def measured(corpus: str, split: str, args: argparse.Namespace, tag: str) -> Iterator[str]:
    """Yield the rows of a collection."""
    home = args.work / tag
    documents, queries = encode(corpus, split, args.model, home)
    dataset, root, out = open_dataset(corpus), home / "indexes", home / "results" / split
    width = np.load(documents, mmap_mode="r").shape[1]
    dims = ",".join(str(dim) for dim in (32, 64, 128, width))
    begun = time.monotonic()
    if not root.exists():
        process("-m", "m2dr", "index", "import", documents, "--corpus", corpus, "--indexes", root,
            "--rotate", "no", "--dims", dims, "--name", tag)  # fmt: skip
    seconds = time.monotonic() - begun
    size = next(root.rglob("words.safetensors")).stat().st_size / 1e6
    columns = [*dims.split(","), "with BM25", "mixed"]
    yield f"\n## {dataset.name}, {split}: {dataset.document_count:,} documents\n"
    yield f"Imported and fitted in {seconds:.0f} s; words.safetensors {size:.0f} MB.\n"
    yield f"| queries | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}"
    found = {}
    for way, options in WAYS.items():
        place = out / way.replace(" ", "-")
        process("-m", "m2dr", "evaluate", "retrieval", "--corpus", corpus, "--split", split,
            "--indexes", root, "--query-vectors", queries, "--dims", dims, "--measure", "nDCG@10",
            "--out", place, *options)  # fmt: skip
        folder = next(place.rglob("per_query.npz")).parent
        cells = json.loads((folder / "grid.json").read_text())["cells"]
        found[way] = {cut: 100 * row["nDCG@10"] for cut, row in cells.items()}, folder
    for name, layer in (("words", 0), ("full model", 1)):
        cells = [f"{found['vectors'][0][f'L{layer}D{dim}']:.1f}" for dim in dims.split(",")]
        cells.append(f"{found['with BM25'][0][f'L{layer}D{width}']:.1f}")
        cells.append(f"{found['mixed'][0][f'L{layer}D{width}']:.1f}" if layer else "")
        yield f"| {name} | {' | '.join(cells)} |"
    folder = found["vectors"][1]
    gap = scores(folder, 0, width) - scores(folder, 1, width)
    draws = np.random.default_rng(0).integers(len(gap), size=(SAMPLES, len(gap)))
    low, high = np.percentile(100 * gap[draws].mean(axis=1), (2.5, 97.5))
    yield f"\nWords less the full model: {100 * gap.mean():+.1f} (95 %: {low:+.1f} to {high:+.1f})."


def main() -> None:
    """Print a page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpora", nargs="+")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--every", type=int, default=1)
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(f"# Words: vectors of {Path(args.model).name}, nDCG@10 x 100\n")
    print(
        f"{platform.machine()}, {cores} threads. Columns are dims; the last two have all of them."
    )
    for name in args.corpora:
        corpus, _, split = name.partition("@")
        corpus = as_folder(corpus, args.work, args.every)
        tag = f"{Path(corpus).name.replace(':', '-')}-{Path(args.model).name}"
        for line in measured(corpus, split or "test", args, tag):
            print(line, flush=True)
    print(f"\n`python {' '.join(sys.argv)}`")


if __name__ == "__main__":
    main()
