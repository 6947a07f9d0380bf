"""Engines on the same vectors: what they find, hold, cost to build and answer; and how cost grows.

    python benchmarks/engines.py compare indexes/pydocs/0123456789ab/layer-06 --dim 32 --dim 128
    python benchmarks/engines.py compare vectors.npy --queries queries.npy --dim 128
    python benchmarks/engines.py growth indexes/pydocs/0123456789ab/layer-06 --dim 128 \
        --engine flat --engine hnsw

VECTORS is a store's folder or an .npy of [N, H]. Queries are an .npy of [Q, H]; without one they
are documents that were held out of the index. Writes engines.json, engines.md and growth.png into
--out. Each (engine, setting) is built in a fresh folder and timed in this process, one thread
per core unless OMP_NUM_THREADS says otherwise; latencies are of single queries, one after another.
"""

import json
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from m2dr.index.engines import ENGINES
from m2dr.index.faiss import FaissIndex, build_index, open_index
from m2dr.index.library import load_faiss
from m2dr.index.manifest import Label, StorePlan
from m2dr.index.store import Store, begin_store, open_store

Floats = NDArray[np.float32]
Row = dict[str, object]
DEPTHS = (10, 100)
SHARD_ROWS = 65536
SEED = 13
NOISE = 0.05  # of a repeated vector's length: copies would tie, and a graph of copies is no graph

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
        return np.load(source, allow_pickle=False).astype(np.float32)
    store = open_store(source)
    return np.concatenate([np.asarray(block, np.float32) for _, block in store.blocks()])


def grown(vectors: Floats, rows: int) -> Iterator[Floats]:
    """Shards of `rows` vectors: the real ones, then the same again a little moved."""
    rng = np.random.default_rng(SEED)
    for start in range(0, rows, SHARD_ROWS):
        numbers = np.arange(start, min(start + SHARD_ROWS, rows))
        shard = vectors[numbers % len(vectors)]
        copies = numbers >= len(vectors)
        if copies.any():
            spread = NOISE * np.linalg.norm(shard, axis=1, keepdims=True) / shard.shape[1] ** 0.5
            moved = shard + rng.normal(size=shard.shape).astype(np.float32) * spread
            shard = np.where(copies[:, None], moved, shard)
        yield shard


def write_store(folder: Path, vectors: Floats, rows: int) -> Store:
    """A store of `rows` vectors made from real ones."""
    label = Label("0" * 64, "cosine", "mean", "", "", 64, 256, "same")
    plan = StorePlan("benchmark", 1, vectors.shape[1], label, shard_rows=SHARD_ROWS)
    writer = begin_store(folder, plan)
    done = 0
    for number, shard in enumerate(grown(vectors, rows)):
        docids = [f"d{row}" for row in range(done, done + len(shard))]
        writer.write(number, docids, shard, b"")
        done += len(shard)
    writer.finish()
    return open_store(folder)


def measured(index: FaissIndex, queries: Floats, truth: NDArray[np.int64], singles: int) -> Row:
    """Recall, queries per second in one batch, and latency of single queries in ms."""
    row: Row = {}
    for depth in DEPTHS:
        found = index.search(queries, depth)[1]
        shared = [len(np.intersect1d(a, b)) for a, b in zip(found, truth[:, :depth], strict=True)]
        row[f"recall@{depth}"] = float(np.mean(shared)) / min(depth, truth.shape[1])
    begun = time.perf_counter()
    index.search(queries, DEPTHS[0])
    row["queries/s"] = len(queries) / (time.perf_counter() - begun)
    spans = []
    for number in range(singles):
        query = queries[number % len(queries)][None]
        begun = time.perf_counter()
        index.search(query, DEPTHS[0])
        spans.append(1000 * (time.perf_counter() - begun))
    row["p50 ms"] = statistics.median(spans)
    row["p95 ms"] = float(np.quantile(spans, 0.95))
    return row


def built(store: Store, dim: int, engine: str, folder: Path) -> tuple[FaissIndex, Row]:
    """An index and what it cost."""
    begun = time.perf_counter()
    path = build_index(store, dim, engine, folder)
    seconds = time.perf_counter() - begun
    index = open_index(path, store)
    size = index.manifest.bytes / index.documents
    return index, {"build s": seconds, "bytes/document": size, "factory": index.manifest.factory}


def compare_dim(
    store: Store, dim: int, engines: Sequence[str], queries: Floats, singles: int
) -> list[Row]:
    """One row per engine and setting."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=store.folder) as name:
        exact = open_index(build_index(store, dim, "flat", Path(name) / "truth"))
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
                click.echo(f"dim {dim}: {rows[-1]}", err=True)
    return rows


def markdown(rows: Sequence[Row]) -> str:
    """A table with the columns of the first row."""
    names = list(rows[0])
    lines = [" | ".join(names), " | ".join("---" for _ in names)]
    for row in rows:
        cells = [f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()]
        lines.append(" | ".join(cells))
    return "".join(f"| {line} |\n" for line in lines)


def machine() -> Row:
    """Where this ran."""
    faiss = load_faiss()
    return {
        "processor": platform.processor() or platform.machine(),
        "threads": faiss.omp_get_max_threads(),
        "faiss": f"{faiss.__version__} ({faiss.get_compile_options().strip()})",
        "python": platform.python_version(),
    }


def split(vectors: Floats, queries: Path | None, count: int) -> tuple[Floats, Floats]:
    """Documents and queries; documents held out stand in for queries."""
    if queries is not None:
        return vectors, np.load(queries, allow_pickle=False).astype(np.float32)[:count]
    count = min(count, len(vectors) // 10)
    drawn = np.random.default_rng(SEED).permutation(len(vectors))
    return vectors[np.sort(drawn[count:])], vectors[drawn[:count]]


def report(out: Path, name: str, tables: dict[str, list[Row]]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    whole = {"machine": machine(), **tables}
    (out / f"{name}.json").write_text(json.dumps(whole, indent=2) + "\n")
    text = "".join(f"## {title}\n\n{markdown(rows)}\n" for title, rows in tables.items())
    (out / f"{name}.md").write_text(f"{json.dumps(machine())}\n\n{text}")


@click.group()
def main() -> None:
    """Measure engines."""


SOURCE = click.argument("source", type=click.Path(exists=True, path_type=Path))
DIMS = click.option("--dim", "dims", type=int, multiple=True, default=(128,), show_default=True)
QUERIES = click.option("--queries", type=click.Path(exists=True, path_type=Path))
COUNT = click.option("--count", type=int, default=1000, show_default=True, help="Queries.")
SINGLES = click.option("--singles", type=int, default=500, show_default=True)
OUT = click.option("--out", type=click.Path(path_type=Path), default=Path("results/engines"))
SCRATCH = click.option("--scratch", type=click.Path(path_type=Path), help="Where stores are made.")


def engines_option(default: Sequence[str]) -> object:
    return click.option(
        "--engine", "engines", type=click.Choice(list(ENGINES)), multiple=True, default=default
    )


@main.command()
@SOURCE
@DIMS
@engines_option(list(ENGINES))
@QUERIES
@COUNT
@SINGLES
@OUT
@SCRATCH
def compare(source, dims, engines, queries, count, singles, out, scratch) -> None:  # noqa: ANN001  # click's
    """One table per dim."""
    documents, asked = split(read_vectors(source), queries, count)
    folder = Path(tempfile.mkdtemp(dir=scratch))
    try:
        store = write_store(folder / "layer-01", documents, len(documents))
        title = f"{len(documents):,} documents, dim "
        tables = {f"{title}{dim}": compare_dim(store, dim, engines, asked, singles) for dim in dims}
    finally:
        shutil.rmtree(folder)
    report(out, "engines", tables)


@main.command()
@SOURCE
@click.option("--dim", type=int, default=128, show_default=True)
@engines_option(["flat", "int8", "ivf", "hnsw", "ivf-pq", "bits1"])
@click.option("--size", "sizes", type=int, multiple=True, default=(10_000, 100_000, 1_000_000))
@QUERIES
@COUNT
@SINGLES
@OUT
@SCRATCH
def growth(source, dim, engines, sizes, queries, count, singles, out, scratch) -> None:  # noqa: ANN001  # click's
    """Build time, bytes and latency as the corpus grows, with the straight line of the ideal."""
    documents, asked = split(read_vectors(source), queries, count)
    tables: dict[str, list[Row]] = {engine: [] for engine in engines}
    for size in sorted(sizes):
        folder = Path(tempfile.mkdtemp(dir=scratch))
        try:
            store = write_store(folder / "layer-01", documents, size)
            for row in compare_dim(store, dim, engines, asked, singles):
                tables[str(row["engine"])].append({"documents": size, **row})
        finally:
            shutil.rmtree(folder)
    report(out, "growth", tables)
    draw(tables, out / "growth.png")


def draw(tables: dict[str, list[Row]], path: Path) -> None:
    """Three panels on logarithmic axes; grey: what growing in proportion would cost."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for panel, name in zip(panels, ("build s", "bytes", "p50 ms"), strict=True):
        for engine, rows in tables.items():
            # The first setting of each size is the engine's own.
            firsts = {row["documents"]: row for row in reversed(rows)}
            sizes = sorted(firsts)
            values = [value_of(firsts[size], name) for size in sizes]
            (line,) = panel.plot(sizes, values, marker="o", label=engine)
            ideal = [values[0] * size / sizes[0] for size in sizes]
            panel.plot(sizes, ideal, color=line.get_color(), alpha=0.3, linestyle="--")
        panel.set(xscale="log", yscale="log", xlabel="documents", title=name)
    lines, names = panels[0].get_legend_handles_labels()
    figure.legend(lines, names, title="dashed: in\nproportion", loc="outside right upper")
    figure.savefig(path, dpi=150)


def value_of(row: Row, name: str) -> float:
    """A number of a row; `bytes` are those of the whole index."""
    if name == "bytes":
        return float(row["bytes/document"]) * int(row["documents"])
    return float(row[name])


if __name__ == "__main__":
    main()
