"""What one query costs: by layer and runtime, against sentence-transformers with FAISS.

    python benchmarks/latency.py > benchmarks/latency_HOST.md

Everyone encodes the same queries at the same layer and searches the same vectors: the document
vectors of that layer, normalised, in one FAISS IndexFlatIP. The candidates take turns query by
query, so that what else the machine does meanwhile hits all of them; figures are medians, ratios
are medians of the ratios within a turn. Needs the extras quickstart, onnx, openvino and compare;
`--documents 2000 --rounds 20` tries it out.
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch, as the command m2dr does

import faiss
import numpy as np
from common import Floats, machine
from sentence_transformers import SentenceTransformer
from timing import ratios, table_head, table_row, timed

from m2dr.data.loaders import open_dataset
from m2dr.model.checkpoint import export_cut, load, open_model, read_card
from m2dr.model.graphs import RUNTIMES
from m2dr.tasks.query import QueryEncoder, open_queries, plan_of_model

Way = Callable[[str], Any]  # a query to scores and rows, or to its vector
PEER = "sentence-transformers + FAISS"
WARM_UP = 5


def flat_index(vectors: Floats) -> "faiss.IndexFlatIP":
    """The documents as both sides search them."""
    faiss.cvar.distance_compute_blas_threshold = 1
    found = faiss.IndexFlatIP(vectors.shape[1])
    found.add(normalised(vectors))
    return found


def normalised(vectors: Floats) -> Floats:
    return np.ascontiguousarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def ours(encoder: QueryEncoder, index: "faiss.IndexFlatIP", k: int) -> Way:
    def search(text: str) -> object:
        vectors = encoder.embed(encoder.tokenize([text]), [text])
        return index.search(normalised(vectors), k)

    return search


def theirs(model: SentenceTransformer, index: "faiss.IndexFlatIP", k: int) -> Way:
    def search(text: str) -> object:
        vectors = model.encode([text], normalize_embeddings=True, show_progress_bar=False)
        return index.search(vectors, k)

    return search


def query_by_query(
    ways: Mapping[str, Way], texts: Sequence[str], rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of each way in each round, a query each, the first rounds left out."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-WARM_UP, rounds):
        for name, way in ways.items():
            spent = timed(partial(way, texts[number % len(texts)]))
            if number >= 0:
                found[name].append(1000 * spent)
    return found


def agree(ways: dict[str, Way], text: str) -> float:
    """The greatest difference of a score from the peer's."""
    scores = {name: way(text)[0] for name, way in ways.items()}
    return max(float(np.abs(found - scores[PEER]).max()) for found in scores.values())


def table(layer: int, times: dict[str, list[float]]) -> list[str]:
    lines = []
    for name, found in times.items():
        figures = (median(found), quantiles(found, n=20)[-1], median(ratios(times[PEER], found)))
        lines.append(table_row(layer, name, *(f"{figure:.2f}" for figure in figures)))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=300)
    asked = parser.parse_args()
    layers, k = (1, 2, 4, 6), 10
    dataset = open_dataset("pydocs:stdlib")
    texts = [query.text for query in dataset.queries("test")]
    documents = [one.content for one in dataset.documents()]
    encoders = {
        layer: {
            name: open_queries(plan_of_model(open_model(asked.model), layer), name, "cpu", "fp32")
            for name in ("torch", *(kind.name for kind in RUNTIMES.values() if kind.installed))
        }
        for layer in layers
    }
    vectors = load(asked.model, max(layers)).vectors(documents, "document", layers)
    repeated = np.arange(asked.documents) % len(documents)
    print(f"# One query, {asked.documents:,} documents, k = {k}\n\n{machine()}, fp32.\n")
    print(f"{asked.rounds} rounds of {len(texts)} queries of pydocs:stdlib; milliseconds.\n")
    print(table_head("layer", "way", "p50", "p95", f"times as fast as {PEER}"))
    differences = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, layer in enumerate(layers):
            index = flat_index(vectors[number][repeated])
            folder = Path(scratch) / str(layer)
            export_cut(open_model(asked.model), layer, folder)
            peer = SentenceTransformer(str(folder), device="cpu")
            ways = {PEER: theirs(peer, index, k)}
            ways |= {n: ours(one, index, k) for n, one in encoders[layer].items()}
            differences.append(agree(ways, texts[0]))
            print("\n".join(table(layer, query_by_query(ways, texts, asked.rounds))), flush=True)
    print(f"\nScores differ by {max(differences):.1e} at most.\n")
    shares(encoders, texts, asked.rounds, read_card(asked.model).layers)


def shares(
    encoders: dict[int, dict[str, QueryEncoder]], texts: Sequence[str], rounds: int, blocks: int
) -> None:
    """The model alone: what a layer costs beyond its share of the blocks."""
    print(
        "## The model alone\n\nA layer's p50 less n/L of the deepest one's, in the same rounds.\n"
    )
    print(table_head("runtime", "layer", "p50", "beyond n/L, p50"))
    deepest = max(encoders)
    for name in encoders[deepest]:
        ways = {str(layer): embedding(encoders[layer][name], texts) for layer in encoders}
        times = query_by_query(ways, texts, rounds)
        for layer in encoders:
            own, last = times[str(layer)], times[str(deepest)]
            beyond = median(a - b * layer / deepest for a, b in zip(own, last, strict=True))
            print(table_row(name, f"{layer} of {blocks}", f"{median(own):.2f}", f"{beyond:+.2f}"))


def embedding(encoder: QueryEncoder, texts: Sequence[str]) -> Way:
    """Encoding alone: the token ids are made before."""
    rows = {text: encoder.tokenize([text]) for text in texts}
    return lambda text: encoder.embed(rows[text], [text])


if __name__ == "__main__":
    main()
