"""What a rotation of the embedding is worth at each dim, and how long it takes to find.

    python benchmarks/rotation.py --data DATA --cache CACHE > benchmarks/rotation_HOST.md

DATA holds beir/ and msmarco/passage-pool/. Rotations are found on passages of the pool, and then
on the documents of each corpus alone; queries have no part in either. Vectors are of the last
layer of the built-in backbone and are kept in CACHE, one .npy each. `exponentials` is the rotation
as it was first learned: 300 steps of 1,024 passages against 1,024 others, one temperature for all
dims, and a matrix exponential per step. `--only pca learned` leaves it out.
"""

import argparse
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from m2dr.data.loaders import open_dataset
from m2dr.evaluation.measures import Evaluator
from m2dr.index.docids import Docids, encode_docids
from m2dr.index.exact import prefix_runs
from m2dr.model import checkpoint
from m2dr.tasks.encoder import Side, default_dims, embed_texts
from m2dr.training.linear_fit import fit_rotation
from m2dr.training.scores import prefix_scores

Floats = NDArray[np.float32]
CORPORA = ("nfcorpus", "scifact")
PASSAGES = 8192  # of the pool, to learn on
MEASURE = "nDCG@10"
LENGTHS = {"query_length": 64, "document_length": 128}
DIMS = default_dims(384)


def exponentials(vectors: Floats, steps: int = 300, batch: int = 1024) -> Floats:
    """R = exp(A - Aᵀ) R0 by Adam on A, and the gradient of an exponential at each step."""
    start = torch.from_numpy(fit_rotation(vectors, "pca", "cosine", DIMS))
    points = torch.nn.functional.normalize(torch.from_numpy(vectors)) @ start.mT
    free = torch.zeros(start.shape, requires_grad=True)
    adam = torch.optim.Adam([free], lr=2e-3)
    falling = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.0, steps)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        chosen = points[torch.randperm(len(points), generator=generator)[: 2 * batch]]
        turned = (chosen @ torch.linalg.matrix_exp(free - free.mT).mT)[None]
        queries, documents = turned.split([batch, len(chosen) - batch], dim=1)
        found = prefix_scores(queries, documents, [*DIMS[:-2], 192, 384], "cosine")[0] / 0.05
        whole, prefixes = found[-1].detach().log_softmax(-1), found[:-1].log_softmax(-1)
        loss = (whole.exp() * (whole - prefixes)).sum(-1).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        falling.step()
    turn: Floats = (torch.linalg.matrix_exp(free - free.mT).detach() @ start).numpy()
    return turn


WAYS: dict[str, Callable[[Floats], Floats]] = {
    "none": lambda vectors: fit_rotation(vectors, "none", "cosine", DIMS),
    "pca": lambda vectors: fit_rotation(vectors, "pca", "cosine", DIMS),
    "exponentials": exponentials,
    "learned": lambda vectors: fit_rotation(vectors, "learned", "cosine", DIMS),
}


class Vectors:
    """Vectors of texts, encoded once."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._encoder, self._tokenizer = checkpoint.load("minilm")
        self._encoder.card = replace(self._encoder.card, **LENGTHS)

    def of(self, name: str, texts: Sequence[str], side: Side) -> Floats:
        path = self._cache / f"{name}-{len(texts)}.npy"
        if not path.exists():
            layers = [self._encoder.layers]
            np.save(path, embed_texts(self._encoder, self._tokenizer, texts, side, layers)[0])
        found: Floats = np.load(path)
        return found


class Corpus:
    """What rotations are measured on."""

    def __init__(self, folder: Path, vectors: Vectors) -> None:
        dataset = open_dataset(str(folder))
        queries, documents = list(dataset.queries("test")), list(dataset.documents())
        self._evaluator = Evaluator(dataset.judgements("test"), [MEASURE])
        self._ids = [query.id for query in queries]
        self._docids = Docids(encode_docids(document.id for document in documents))
        texts = [query.text for query in queries]
        self._queries = vectors.of(f"{folder.name}-queries", texts, "query")
        contents = [document.content for document in documents]
        self.documents = vectors.of(folder.name, contents, "document")

    def measure(self, turn: Floats) -> list[float]:
        """nDCG@10 × 100 of each dim, both sides rotated."""
        queries, documents = self._queries @ turn.T, self.documents @ turn.T
        runs = prefix_runs(self._ids, queries, documents, self._docids, DIMS, 10, "cosine")
        return [100 * self._evaluator.scores(runs[dim]).mean[MEASURE] for dim in DIMS]


def timed(find: Callable[[Floats], Floats], vectors: Floats) -> tuple[Floats, str]:
    """A rotation, and its seconds: on the clock, and of all cores together."""
    clock, cores = time.perf_counter(), time.process_time()
    turn = find(vectors)
    clock, cores = time.perf_counter() - clock, time.process_time() - cores
    return turn, f"{clock:.1f} ({cores:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--only", choices=WAYS, nargs="+", default=list(WAYS))
    asked = parser.parse_args()
    asked.cache.mkdir(parents=True, exist_ok=True)
    vectors = Vectors(asked.cache)
    pool = [d.content for d in open_dataset(str(asked.data / "msmarco/passage-pool")).documents()]
    passages = vectors.of("passages", random.Random(0).sample(pool, PASSAGES), "document")
    corpora = {name: Corpus(asked.data / "beir" / name, vectors) for name in CORPORA}
    print(f"# Rotations of the last layer, {MEASURE} × 100 by dim\n")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads.\n")
    print(f"Load of the machine at the start: {os.getloadavg()[0]:.1f}.\n")
    head = f"| measured on | rotation | seconds (of all cores) | {' | '.join(map(str, DIMS))} |"
    print(f"{head}\n|{'---|' * (len(DIMS) + 3)}")
    sources = {"passages": (passages, corpora)}
    sources |= {f"{name}'s own": (one.documents, {name: one}) for name, one in corpora.items()}
    for source, (found_on, targets) in sources.items():
        for way in asked.only:
            turn, seconds = timed(WAYS[way], found_on)
            for name, corpus in targets.items():
                values = " | ".join(f"{value:.1f}" for value in corpus.measure(turn))
                print(f"| {name} | {way}, {source} | {seconds} | {values} |", flush=True)


if __name__ == "__main__":
    main()
