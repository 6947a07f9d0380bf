"""What layer 0 costs: one query by step, a batch, and a cold start, against the full model.

    export OMP_WAIT_POLICY=PASSIVE
    python benchmarks/layer_zero.py --work WORK > benchmarks/layer_zero_HOST.md

WORK keeps the fitted model and the index between runs. The corpus is NFCorpus of $M2DR_DATA, the
backbone the built-in MiniLM. Everyone answers the same queries: layer 0 and the full model search
the same index, BM25 the same documents. The candidates take turns query by query, round by round
or start by start, so that what else the machine does meanwhile hits all of them; of single queries
the full model has rounds of its own, because it leaves the others nothing in the caches. Figures
are medians, with the 5th and 95th percentile, or with the least and the greatest of few. Needs the
extras cpu and quickstart. `--texts 500 --rounds 40 --batch 500 --repeats 2` tries it out.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import torch

from m2dr.core.records import Query, Run
from m2dr.core.requests import IndexRequest, SearchRequest
from m2dr.core.settings import FitSettings
from m2dr.data.dataset import Dataset
from m2dr.data.loaders import open_dataset
from m2dr.evaluation.measures import Evaluator
from m2dr.index.bm25 import Bm25
from m2dr.model.checkpoint import load
from m2dr.model.words import WordTable
from m2dr.tasks.encoder import embed_texts
from m2dr.tasks.indexing.index import index_corpus
from m2dr.tasks.searching.search import Searcher
from m2dr.tasks.training.fit import fit

Work = Callable[[], object]
Chain = Sequence[tuple[str, Callable[[Any], Any]]]
MEASURE = "nDCG@10"
WARM_UP = 5  # rounds that are not counted
PIECE = 64  # queries that the slow ones are asked at a time


@dataclass(frozen=True)
class Place:
    """A fitted model, an index that it made, and what is asked."""

    work: Path
    corpus: str
    model: Path
    dataset: Dataset
    queries: Sequence[Query]
    k: int

    def searcher(self, layer: int | None, engine: str) -> Searcher:
        """The documents of the last layer, searched by queries of a layer."""
        return Searcher(
            SearchRequest(
                self.corpus, str(self.model), layer, root=self.work / "indexes", engine=engine,
                exits="model", device="cpu",
            )
        )  # fmt: skip


def prepare(asked: argparse.Namespace) -> Place:
    """Fit the built-in backbone on the documents and index them, unless both are there."""
    model, dataset = asked.work / "models" / "fitted", open_dataset(asked.corpus)
    if not (model / "m2dr.json").exists():
        fit(FitSettings(corpus=asked.corpus, texts=asked.texts, device="cpu"), model)
    root = asked.work / "indexes"
    index_corpus(IndexRequest(asked.corpus, str(model), root=root, device="cpu", exits=False))
    return Place(asked.work, asked.corpus, model, dataset, dataset.queries("test"), asked.k)


def machine() -> str:
    """What the figures were measured on."""
    flags = [name for name, has in torch.cpu.get_capabilities().items() if has is True]
    units = ", ".join(flag for flag in flags if flag.startswith(("avx", "amx")))
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "torch"))
    load = f"load average {os.getloadavg()[0]:.1f} at the start"
    return f"{platform.machine()}, {torch.get_num_threads()} threads, {units}; {versions}; {load}"


def in_turn(ways: Mapping[str, Work], rounds: int, warm_up: int) -> dict[str, list[float]]:
    """Seconds of each way in each round, the first rounds left out."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + warm_up):
        for name, way in ways.items():
            begun = time.perf_counter()
            way()
            if number >= warm_up:
                found[name].append(time.perf_counter() - begun)
    return found


def spread(seconds: Sequence[float], scale: float, digits: int = 1) -> str:
    """The median and two ends of figures as cells of a table."""
    low, high = (min(seconds), max(seconds))
    if len(seconds) >= 20:
        low, *_, high = quantiles(seconds, n=20)
    return " | ".join(f"{scale * value:,.{digits}f}" for value in (median(seconds), low, high))


# One query


def steps(place: Place, rounds: int) -> None:
    """Print the microseconds of each step of one query."""
    print("## One query by step\n\nMicroseconds.\n")
    print("| way | step | p50 | p5 | p95 |\n|---|---|---|---|---|")
    texts = [query.text for query in place.queries]
    for ways in (light(place), {"full model": full(place)}):
        for (way, step), seconds in timed(ways, texts, rounds).items():
            print(f"| {way} | {step} | {spread(seconds, 1e6)} |")


def timed(
    ways: Mapping[str, Chain], texts: Sequence[str], rounds: int
) -> dict[tuple[str, str], list[float]]:
    """Seconds of each step of each way."""
    times: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds + WARM_UP):
        for way, chain in ways.items():
            value: Any = texts[number % len(texts)]
            for step, run in chain:
                begun = time.perf_counter()
                value = run(value)
                if number >= WARM_UP:
                    spent = time.perf_counter() - begun
                    times.setdefault((way, step), []).append(spent)
    return times


def light(place: Place) -> dict[str, Chain]:
    """Per way its steps, each of which takes what the one before gave; the first takes a text."""
    words, bm25 = WordTable.open(place.model), Bm25.of(place.dataset.documents())
    embed = ("split into words and add up", lambda text: words.embed([text]))
    return {
        "layer 0": [embed, ("search flat", search(place, 0, "flat"))],
        "layer 0, exact": [embed, ("search exact", search(place, 0, "exact"))],
        "BM25": [("tokenise, score, rank", lambda text: bm25.rank(bm25.scores(text), place.k))],
    }


def full(place: Place) -> Chain:
    """The steps of the full model, in torch."""
    encoder, tokenizer = load(place.model)
    card = encoder.card

    def embed(rows: list[list[int]]) -> object:
        ids = np.array(rows, np.int64)
        return encoder.embed(ids, np.ones_like(ids), [card.layers])[0]

    return [
        ("tokenise", lambda text: tokenizer([card.query_prefix + text], card.query_length)),
        ("encode", embed),
        ("search flat", search(place, None, "flat")),
    ]


def search(place: Place, layer: int | None, engine: str) -> Callable[[Any], object]:
    """The last step: vectors [1, H] to the best documents."""
    documents = place.searcher(layer, engine).documents
    return lambda vectors: documents.ranked(["q"], vectors, place.k)


# Many


def batches(place: Place, count: int, repeats: int) -> None:
    """Print queries per second of a batch."""
    print(
        f"\n## {count:,} queries at once\n\nQueries per second; least and greatest of {repeats}.\n"
    )
    print("| way | median | least | greatest |\n|---|---|---|---|")
    queries = place.queries
    texts = [queries[number % len(queries)].text for number in range(count)]
    words, (encoder, tokenizer) = WordTable.open(place.model), load(place.model)
    layers, few = [encoder.card.layers], texts[: min(count, 16 * PIECE)]
    bm25 = Bm25.of(place.dataset.documents())
    many: dict[str, tuple[int, Work]] = {
        "layer 0": (count, lambda: words.embed(texts)),
        "layer 0, 64 dims": (count, lambda: words.embed(texts, 64)),
        "full model, tokenise and encode": (
            len(few),
            lambda: embed_texts(encoder, tokenizer, few, "query", layers),
        ),
        "BM25, tokenise, score and rank": (
            len(few),
            lambda: [bm25.rank(bm25.scores(text), place.k) for text in few],
        ),
    }
    times = in_turn({name: work for name, (_, work) in many.items()}, repeats, 1)
    for name, (number, _) in many.items():
        print(f"| {name} | {spread([number / second for second in times[name]], 1, 0)} |")


# From the start


def cold_starts(place: Place, repeats: int) -> None:
    """Print the seconds of commands, from the shell's start to their end."""
    print(f"\n## Cold start\n\nSeconds; least and greatest of {repeats}.\n")
    print("| command | median | least | greatest |\n|---|---|---|---|")
    search = ["search", place.queries[0].text, "--corpus", place.corpus]
    search += ["--model", str(place.model), "--indexes", str(place.work / "indexes")]
    commands = {
        "m2dr --help": ["--help"],
        "m2dr search --query-layer 0": [*search, "--query-layer", "0", "--exits", "model"],
        "m2dr search": search,
    }
    times = in_turn({name: started(words) for name, words in commands.items()}, repeats, 1)
    for name, seconds in times.items():
        print(f"| {name} | {spread(seconds, 1, 2)} |")


def started(words: Sequence[str]) -> Work:
    """Run a command in a new interpreter, which keeps the bytecode of what it loads."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "m2dr", *words]
    return lambda: subprocess.run(command, env=kept, capture_output=True, check=True)


def quality(place: Place) -> None:
    """Print what each way finds, so that speed is not all that is compared."""
    print(f"\n## {MEASURE}\n\n| way | {MEASURE} x 100 |\n|---|---|")
    evaluator = Evaluator(place.dataset.judgements("test"), [MEASURE])
    bm25 = Bm25.of(place.dataset.documents())
    words = {query.id: bm25.rank(bm25.scores(query.text), 100) for query in place.queries}
    runs = {
        "layer 0": place.searcher(0, "flat").run(place.queries, 100),
        "full model": place.searcher(None, "flat").run(place.queries, 100),
        "BM25": Run(words),
    }
    for name, run in runs.items():
        print(f"| {name} | {100 * evaluator.scores(run).mean[MEASURE]:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--corpus", default="nfcorpus")
    parser.add_argument("--texts", type=int, default=0, help="of the fit; 0: 20,000")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("-k", type=int, default=10)
    asked = parser.parse_args()
    told = machine()  # before anything runs
    place = prepare(asked)
    documents = place.dataset.document_count
    print(f"# Layer 0: {documents:,} documents of {asked.corpus}, k = {asked.k}\n\n{told}.\n")
    steps(place, asked.rounds)
    batches(place, asked.batch, asked.repeats)
    cold_starts(place, asked.repeats)
    quality(place)


if __name__ == "__main__":
    main()
