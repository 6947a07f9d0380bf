"""What funnels find and save: recall of the exact result against multiply-adds, as a table.

    python benchmarks/funnel.py --store indexes/pool/0123456789ab/layer-06 --model models/dims \
        --corpus DATA/msmarco/passage-pool --split dl19 32:1000,128:100,384 64:200,384

STORE holds the documents of a corpus encoded by MODEL (`m2dr index corpus`), whose queries are
encoded at the layer of the store. Recall is of the exact result at full width.
"""

import argparse
from pathlib import Path

import numpy as np
from common import Floats
from timing import table_head, table_row, timed

from m2dr.data.loaders import open_dataset
from m2dr.index.exact import ExactIndex
from m2dr.index.funnel import Funnel, FunnelIndex
from m2dr.index.store import Store, open_store
from m2dr.model import checkpoint

USUAL = (
    "32:1000,384",
    "64:200,384",
    "64:1000,384",
    "128:100,384",
    "32:1000,128:100,384",
    "64:500,128:100,384",
    "16:2000,64:500,384",
)


def encoded(arguments: argparse.Namespace, store: Store) -> Floats:
    """The queries of a split, [Q, H]."""
    encoder = checkpoint.load(arguments.model, store.layer)
    queries = open_dataset(arguments.corpus).queries(arguments.split)[: arguments.queries]
    texts = [query.text for query in queries]
    return np.asarray(encoder.vectors(texts, "query", [store.layer])[0])


def milliseconds(index: ExactIndex | FunnelIndex, queries: Floats, k: int) -> float:
    """Of one query, searched alone; the first is not counted."""
    index.search(queries[:1], k)
    asked = queries[: min(50, len(queries))]
    return 1000 * timed(lambda: [index.search(query[None], k) for query in asked]) / len(asked)


def main() -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("funnels", nargs="*", default=USUAL)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--queries", type=int, default=1000, help="At most.")
    arguments = parser.parse_args()
    store, k = open_store(arguments.store), 10
    queries = encoded(arguments, store)
    exact = ExactIndex(store, store.width)
    scan = milliseconds(exact, queries, k)
    print(
        f"{store.documents:,} documents of {store.manifest.corpus}, layer {store.layer}, "
        f"{len(queries)} queries; a full scan takes {scan:.2f} ms per query.\n"
    )
    print(table_head("funnel", f"recall@{k}", "multiply-adds", "times fewer", "ms per query"))
    for word in arguments.funnels:
        index = FunnelIndex(store, Funnel.parse(word))
        best, found = (way.search(queries, k)[1].tolist() for way in (exact, index))
        shared = [len(set(a) & set(b)) / k for a, b in zip(best, found, strict=True)]
        taken, work = milliseconds(index, queries, k), multiply_adds(index)
        fewer = f"{store.documents * index.dim / work:.1f}"
        print(
            table_row(word, f"{np.mean(shared):.4f}", f"{work:,}", fewer, f"{taken:.2f}"),
            flush=True,
        )


def multiply_adds(index: FunnelIndex) -> int:
    """Of one query at all stages."""
    keeps = (min(stage.keep, index.documents) for stage in index.funnel.stages)
    # The second stage begins anew, as the first may be an engine that only approximates.
    begun = (0, 0, *index.funnel.dims[1:-1])
    rows = zip((index.documents, *keeps), index.funnel.dims, begun, strict=True)
    return sum(count * (dim - before) for count, dim, before in rows)


if __name__ == "__main__":
    main()
