"""What one query costs: by layer and runtime, against sentence-transformers with FAISS.

    python benchmarks/latency.py > benchmarks/latency_HOST.md

Everyone encodes the same queries at the same layer and searches the same vectors: the document
vectors of that layer, normalised, in one FAISS IndexFlatIP. The candidates take turns query by
query, so that what else the machine does meanwhile hits all of them; figures are medians, ratios
are medians of the ratios within a turn. Needs the extras quickstart, onnx, openvino and compare;
`--documents 2000 --rounds 20` tries it out.
"""

import argparse
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from m2dr.data.loaders import open_dataset
from m2dr.model.checkpoint import export_cut, load, read_card
from m2dr.model.graphs import RUNTIMES
from m2dr.tasks.encoder import QueryEncoder, embed_texts

Vectors = NDArray[np.float32]
Way = Callable[[str], object]
PEER = "sentence-transformers + FAISS"
WARM_UP = 5


def machine() -> str:
    """What the figures were measured on."""
    flags = [name for name, has in torch.cpu.get_capabilities().items() if has is True]
    units = ", ".join(flag for flag in flags if flag.startswith(("avx", "amx")))
    threads = torch.get_num_threads()
    return f"{platform.machine()}, {threads} threads, torch {torch.__version__}, {units}, fp32"


def flat_index(vectors: Vectors) -> "faiss.IndexFlatIP":
    """The documents as both sides search them."""
    faiss.cvar.distance_compute_blas_threshold = 1
    found = faiss.IndexFlatIP(vectors.shape[1])
    found.add(normalised(vectors))
    return found


def normalised(vectors: Vectors) -> Vectors:
    return np.ascontiguousarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def ours(encoder: QueryEncoder, index: "faiss.IndexFlatIP", k: int) -> Way:
    def search(text: str) -> object:
        rows = encoder.tokenize([text], lambda _: None)
        return index.search(normalised(encoder.embed(rows)), k)

    return search


def theirs(model: SentenceTransformer, index: "faiss.IndexFlatIP", k: int) -> Way:
    def search(text: str) -> object:
        vectors = model.encode([text], normalize_embeddings=True, show_progress_bar=False)
        return index.search(vectors, k)

    return search


def in_turn(
    ways: dict[str, Callable[[str], object]], texts: Sequence[str], rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of each way in each round, the first rounds left out."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + WARM_UP):
        text = texts[number % len(texts)]
        for name, way in ways.items():
            begun = time.perf_counter()
            way(text)
            if number >= WARM_UP:
                found[name].append(1000 * (time.perf_counter() - begun))
    return found


def agree(ways: dict[str, Way], text: str) -> float:
    """The greatest difference of a score from the peer's."""
    scores = {name: way(text)[0] for name, way in ways.items()}  # type: ignore[index]  # scores, rows
    return max(float(np.abs(found - scores[PEER]).max()) for found in scores.values())


def table(layer: int, times: dict[str, list[float]]) -> list[str]:
    lines = []
    for name, found in times.items():
        ratio = median(peer / own for peer, own in zip(times[PEER], found, strict=True))
        p95 = quantiles(found, n=20)[-1]
        lines.append(f"| {layer} | {name} | {median(found):.2f} | {p95:.2f} | {ratio:.2f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--layers", default="1,2,4,6")
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("-k", type=int, default=10)
    asked = parser.parse_args()
    layers = [int(word) for word in asked.layers.split(",")]
    dataset = open_dataset("pydocs:stdlib")
    texts = [query.text for query in dataset.queries("test")]
    documents = [one.content for one in dataset.documents()]
    encoders = {
        layer: {
            name: QueryEncoder(asked.model, layer, name, "cpu", "fp32")
            for name in ("torch", *(kind.name for kind in RUNTIMES.values() if kind.installed))
        }
        for layer in layers
    }
    vectors = embed_texts(*load(asked.model, max(layers)), documents, "document", layers)
    repeated = np.arange(asked.documents) % len(documents)
    print(f"# One query, {asked.documents:,} documents, k = {asked.k}\n\n{machine()}.\n")
    print(f"{asked.rounds} rounds of {len(texts)} queries of pydocs:stdlib; milliseconds.\n")
    print(f"| layer | way | p50 | p95 | times as fast as {PEER} |\n|---|---|---|---|---|")
    differences = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, layer in enumerate(layers):
            index = flat_index(vectors[number][repeated])
            folder = Path(scratch) / str(layer)
            export_cut(asked.model, layer, folder)
            peer = SentenceTransformer(str(folder), device="cpu")
            ways = {PEER: theirs(peer, index, asked.k)}
            ways |= {n: ours(one, index, asked.k) for n, one in encoders[layer].items()}
            differences.append(agree(ways, texts[0]))
            print("\n".join(table(layer, in_turn(ways, texts, asked.rounds))), flush=True)
    print(f"\nScores differ by {max(differences):.1e} at most.\n")
    shares(encoders, texts, asked.rounds, read_card(asked.model).layers)


def shares(
    encoders: dict[int, dict[str, QueryEncoder]], texts: Sequence[str], rounds: int, blocks: int
) -> None:
    """The model alone: what a layer costs beyond its share of the blocks."""
    print(
        "## The model alone\n\nA layer's p50 less n/L of the deepest one's, in the same rounds.\n"
    )
    print("| runtime | layer | p50 | beyond n/L, p50 |\n|---|---|---|---|")
    deepest = max(encoders)
    for name in encoders[deepest]:
        ways = {str(layer): embedding(encoders[layer][name], texts) for layer in encoders}
        times = in_turn(ways, texts, rounds)
        for layer in encoders:
            own, last = times[str(layer)], times[str(deepest)]
            beyond = median(a - b * layer / deepest for a, b in zip(own, last, strict=True))
            print(f"| {name} | {layer} of {blocks} | {median(own):.2f} | {beyond:+.2f} |")


def embedding(encoder: QueryEncoder, texts: Sequence[str]) -> Way:
    """Encoding alone: the token ids are made before."""
    rows = {text: encoder.tokenize([text], lambda _: None) for text in texts}
    return lambda text: encoder.embed(rows[text])


if __name__ == "__main__":
    main()
