"""What scripts/on_a_gpu measures: training steps and search; each case yields its rows.

A case is a function that yields a row per thing it measured: a title of a table and its cells, or a
sentence. Backbones have random
weights where the built-in one is not installed: speed does not depend on them.
"""

import functools
import gc
import json
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import exact
import numpy as np
import torch
import training_steps
from common import Floats, built_in
from numpy.typing import NDArray
from timing import peak_memory, spread, timed

from m2dr.core.errors import UserError
from m2dr.data.loaders import open_dataset
from m2dr.index.exact import ExactIndex, grid_top_k
from m2dr.index.faiss import GPU_DEPTH, build_index, on_gpu, open_faiss
from m2dr.index.store import Store, open_store
from m2dr.index.vectors import prefixes
from m2dr.model import checkpoint

Row = dict[str, Any]
Case = Callable[[], Iterator[Row]]
SEED = 13
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MINILM, BERT = "MiniLM, 6 × 384", "BERT-base, 12 × 768"


class MissingError(Exception):
    """Something is not installed here."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    corpus: str  # of texts
    backbones: Mapping[str, tuple[int, int, int]]  # layers, width, heads of random ones
    words: int  # of their tokenizers
    batch: int  # pairs of a training step
    lengths: tuple[int, int]  # tokens of a query and a document, at most
    steps: int  # of a round of training
    rounds: int
    corpora: tuple[tuple[int, int], ...]  # documents and width
    dims: Mapping[int, tuple[int, ...]]  # per width
    queries: int
    ks: tuple[int, ...]


FULL = Sizes(
    corpus=training_steps.CORPUS, backbones={MINILM: (6, 384, 12), BERT: (12, 768, 12)}, words=8000,
    batch=256, lengths=(64, 256), steps=10, rounds=5, corpora=((1_000_000, 384), (8_800_000, 128)),
    dims={384: (64, 128, 384), 128: (32, 128)},
    queries=1000, ks=(10, 1000, 5000),
)  # fmt: skip
TINY = Sizes(
    corpus="pairs.jsonl", backbones={"tiny, 2 × 32": (2, 32, 4)}, words=300, batch=8,
    lengths=(16, 32), steps=1, rounds=2,
    corpora=((3000, 16),), dims={16: (8, 16)}, queries=20, ks=(10, 100, 2100),
)  # fmt: skip


def cases(part: str, device: str, tiny: bool, work: Path) -> dict[str, Case]:
    """The cases of a part by name, in the order in which they should run."""
    sizes = TINY if tiny else FULL
    made = {"training": training_cases, "search": search_cases}
    return made[part](sizes, device, work)


def row(title: str, cells: dict[str, object]) -> Row:
    """A row of a table."""
    return {"table": title, "cells": {name: str(cell) for name, cell in cells.items()}}


def told(sentence: str) -> Row:
    """A sentence above the tables."""
    return {"table": "told", "told": sentence}


def needs(module: str) -> None:
    """Raise MissingError unless a module can be imported."""
    try:
        __import__(module)
    except ImportError as error:
        raise MissingError(f"{module} is not installed ({error})") from error


def seconds_of(run: Callable[[], object], rounds: int, device: str) -> list[float]:
    """Seconds of each round, after one to warm up."""

    def settling() -> None:
        run()
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    settling()
    return [timed(settling) for _ in range(rounds)]


def backbone(name: str, sizes: Sizes, work: Path) -> str:
    """The built-in backbone where it is asked for and installed, else one with random weights."""
    if name == MINILM:
        try:
            return built_in()
        except ImportError:
            pass
    folder = work / f"bert-{name.replace(' ', '')}"
    if not folder.exists():
        documents = open_dataset(corpus_of(sizes, work)).documents()
        texts = [document.content for document in documents]
        make_backbone(folder, texts, sizes.words, *sizes.backbones[name])
    return str(folder)


def make_backbone(
    folder: Path, texts: list[str], words: int, layers: int, width: int, heads: int
) -> None:
    """Write a BERT with random weights, and a tokenizer that learnt its words from some texts."""
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertModel, BertTokenizer

    learnt = BertWordPieceTokenizer()
    learnt.train_from_iterator(
        texts[:3000], vocab_size=words, special_tokens=SPECIAL, show_progress=False
    )
    aside = folder.with_suffix(".aside")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    learnt.save_model(str(aside))
    BertTokenizer.from_pretrained(aside, model_max_length=512).save_pretrained(aside)
    torch.manual_seed(SEED)
    shape = BertConfig(
        vocab_size=learnt.get_vocab_size(), hidden_size=width, num_hidden_layers=layers,
        num_attention_heads=heads, intermediate_size=4 * width,
    )  # fmt: skip
    BertModel(shape, add_pooling_layer=False).save_pretrained(aside)
    encoder, tokenizer = checkpoint.load(aside)
    # Pooled as sentence-transformers pools what does not say how.
    card = replace(encoder.card, pooling="mean", similarity="cosine")
    checkpoint.save(encoder, tokenizer, card, folder)
    shutil.rmtree(aside)


def corpus_of(sizes: Sizes, work: Path) -> str:
    """The corpus of texts; the tiny one is written here."""
    if sizes.corpus == training_steps.CORPUS:
        return sizes.corpus
    path = work / sizes.corpus
    if not path.exists():
        names = ("read", "write", "list", "number", "file", "string", "class", "open", "line", "a")
        draw = random.Random(SEED)
        texts = [" ".join(draw.choices(names, k=draw.randint(3, 24))) for _ in range(60)]
        rows = [{"query": text[:30], "document": f"{text} {i}"} for i, text in enumerate(texts)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


STEPS: dict[tuple[str, str], tuple[float, float]] = {}  # tokens/s and peak GB of what ran here
PEERS = {
    "plain": training_steps.PLAIN_PEER,
    "full-dim": training_steps.LAYERS_PEER,
    "dims": training_steps.EVERY_PEER,
    "elastic": training_steps.EVERY_PEER,
}


def training_cases(sizes: Sizes, device: str, work: Path) -> dict[str, Case]:
    """Steps of each recipe and its peer in bf16; peers first, to which recipes are compared."""
    found: dict[str, Case] = {}
    for shape in sizes.backbones:
        names = [name for recipe, peer in PEERS.items() for name in (peer, recipe)]
        for name in dict.fromkeys(names):
            found[f"{shape}: {name}"] = functools.partial(
                step_rows, sizes, device, work, shape, name
            )
    return found


def step_rows(sizes: Sizes, device: str, work: Path, shape: str, name: str) -> Iterator[Row]:
    """One candidate's steps: their rate with batches that are ready, and with tokenising."""
    if name not in PEERS:
        needs("sentence_transformers")
    setting = training_steps.Setting(
        sizes.batch, sizes.lengths, backbone(shape, sizes, work), corpus_of(sizes, work), device,
        bf16=True,
    )  # fmt: skip
    on_gpu = device.startswith("cuda")
    if on_gpu:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    step = training_steps.candidate(name, setting)
    ready, loss = step.make(), torch.zeros(())

    def steps() -> None:
        nonlocal loss
        for _ in range(sizes.steps):
            loss = step.run(ready)

    def whole() -> None:
        for _ in range(sizes.steps):
            step()

    alone, with_texts = (seconds_of(run, sizes.rounds, device) for run in (steps, whole))
    peak = (torch.cuda.max_memory_allocated() if on_gpu else peak_memory()) / 1e9
    tokens = step.tokens * sizes.steps
    if not STEPS:
        yield told(
            f"{sizes.batch} pairs of {sizes.corpus}, queries of up to {sizes.lengths[0]} and "
            f"documents of up to {sizes.lengths[1]} tokens, bf16 autocast, AdamW, no dropout; "
            f"tokens are counted without padding. A round is {sizes.steps} steps."
        )
    STEPS[shape, name] = tokens / median(alone), peak
    yield row("Each step", {
        "model": shape, "step": name,
        "tokens/s": spread((tokens / s for s in alone), 0),
        "with tokenising": spread((tokens / s for s in with_texts), 0),
        "ms": spread((1000 * s / sizes.steps for s in alone), 1),
        "peak GB": f"{peak:.2f}", "loss": f"{float(loss):.3f}",
    })  # fmt: skip
    if (shape, PEERS.get(name)) in STEPS:
        rate, memory = STEPS[shape, PEERS[name]]
        times, less = STEPS[shape, name][0] / rate, peak / memory
        yield row("Against sentence-transformers", {
            "model": shape, "m2dr": name, "sentence-transformers": PEERS[name],
            "times its tokens/s": f"{times:.2f}", "times its memory": f"{less:.2f}",
        })  # fmt: skip


# Search


@dataclass(frozen=True)
class Corpus:
    """One corpus of vectors, and what all engines are asked."""

    documents: int
    width: int
    sizes: Sizes
    device: str
    folder: Path

    @property
    def name(self) -> str:
        """As tables have it."""
        return f"{self.documents:,} × {self.width}"

    @functools.cached_property
    def originals(self) -> Floats:
        """The centres of its clusters."""
        return exact.sample(None, self.width)

    @functools.cached_property
    def queries(self) -> Floats:
        """Not documents, but drawn as they are."""
        return exact.drawn(self.originals, self.sizes.queries, seed=10**6)

    @functools.cached_property
    def store(self) -> Store:
        """Written once, also where a case took the process down."""
        try:
            return open_store(self.folder)
        except UserError:
            shutil.rmtree(self.folder, ignore_errors=True)
            return exact.written(self.folder, self.originals, self.documents)

    def ks(self) -> list[int]:
        """No more than there are documents."""
        return [k for k in self.sizes.ks if k <= self.documents]


def search_cases(sizes: Sizes, device: str, work: Path) -> dict[str, Case]:
    """Each corpus: written; then, per dim, the exact engine and FAISS; then all dims at once."""
    found: dict[str, Case] = {}
    for documents_, width in sizes.corpora:
        corpus = Corpus(documents_, width, sizes, device, work / f"store-{documents_}-{width}")
        found[f"{corpus.name}: written"] = functools.partial(store_rows, corpus)
        for dim in sizes.dims[width]:
            found[f"{corpus.name}, dim {dim}: exact"] = functools.partial(exact_rows, corpus, dim)
            found[f"{corpus.name}, dim {dim}: FAISS"] = functools.partial(faiss_rows, corpus, dim)
        found[f"{corpus.name}: all dims"] = functools.partial(dims_rows, corpus)
    return found


def store_rows(corpus: Corpus) -> Iterator[Row]:
    """Write the vectors."""
    begun = time.perf_counter()
    count = corpus.store.documents
    yield told(
        f"{count:,} × {corpus.width}: clustered vectors, written as float16 in "
        f"{time.perf_counter() - begun:.1f} s; {len(corpus.queries):,} queries, cosine. Recall is "
        "against float64 for the exact engine, on a few queries, and against the exact engine for "
        "the others; equal scores count as found."
    )


def exact_rows(corpus: Corpus, dim: int) -> Iterator[Row]:
    """The exact engine at a dim: batches at each k, single queries, and what float64 finds."""
    index = ExactIndex(corpus.store, dim, corpus.device)
    some = corpus.queries[: min(16, len(corpus.queries))]
    best = by_float64(corpus, dim, some, max(corpus.ks()))
    for k in corpus.ks():
        recall = recall_of(index.search(some, k), best, k)
        run = functools.partial(index.search, corpus.queries, k)
        times = seconds_of(run, corpus.sizes.rounds, corpus.device)
        yield batch_row(corpus, dim, k, "m2dr exact", times, recall)
    yield single_row(corpus, dim, "m2dr exact", lambda query: index.search(query, 10))


def faiss_rows(corpus: Corpus, dim: int) -> Iterator[Row]:
    """FAISS at a dim, on the gpu where it works there."""
    needs("faiss")
    folder = corpus.folder.parent / "faiss"
    shutil.rmtree(folder, ignore_errors=True)
    begun = time.perf_counter()
    index = open_faiss(build_index(corpus.store, dim, "flat", folder), corpus.store)
    built = time.perf_counter() - begun
    begun = time.perf_counter()
    moved, reason = index, "FAISS searches on the processor."
    if corpus.device.startswith("cuda"):
        copy, reason = on_gpu(index, torch.device(corpus.device).index or 0)
        moved = copy or index
    yield row("Indexes", {
        "corpus": corpus.name, "dim": dim, "engine": "FAISS flat", "built, s": f"{built:.2f}",
        "to the gpu, s": f"{time.perf_counter() - begun:.2f}", "where": reason,
    })  # fmt: skip
    truth = ExactIndex(corpus.store, dim, corpus.device)
    name = f"FAISS flat{'' if moved is index else ', gpu'}"
    for k in corpus.ks():
        if moved is not index and k > GPU_DEPTH:
            continue  # the processor would be measured
        recall = recall_of(moved.search(corpus.queries, k), truth.search(corpus.queries, k), k)
        run = functools.partial(moved.search, corpus.queries, k)
        times = seconds_of(run, corpus.sizes.rounds, corpus.device)
        yield batch_row(corpus, dim, k, name, times, recall)
    yield single_row(corpus, dim, name, lambda query: moved.search(query, 10))
    shutil.rmtree(folder, ignore_errors=True)


def dims_rows(corpus: Corpus) -> Iterator[Row]:
    """All dims of a corpus in one pass of the exact engine, which reads the store each time."""
    dims = corpus.sizes.dims[corpus.width]
    for k in corpus.ks():

        def run(k: int = k) -> dict[int, Any]:
            queries, store = [corpus.queries], corpus.store
            hits = grid_top_k(queries, store, dims, k, "cosine", corpus.device)[0]
            return {dim: found for (dim, _), found in hits.items()}

        alone = ExactIndex(corpus.store, dims[-1], corpus.device)
        recall = recall_of(run()[dims[-1]], alone.search(corpus.queries, k), k)
        times = seconds_of(run, corpus.sizes.rounds, corpus.device)
        label = ", ".join(map(str, dims))
        yield batch_row(corpus, label, k, "m2dr exact, from files", times, recall)


def by_float64(
    corpus: Corpus, dim: int, queries: Floats, k: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Scores and rows [Q, k] of a product in float64, block by block."""
    asked = torch.from_numpy(prefixes(queries, dim, "cosine")).to(corpus.device).double()
    scores = torch.empty(len(queries), 0, dtype=torch.float64, device=corpus.device)
    rows = torch.empty(len(queries), 0, dtype=torch.int64, device=corpus.device)
    for start, block in corpus.store.blocks():
        wide = torch.from_numpy(np.array(block[:, :dim], np.float64)).to(corpus.device)
        lengths = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
        here = asked @ (wide / lengths).mT
        places = torch.arange(start, start + len(block), device=corpus.device)
        scores = torch.cat([scores, here], dim=1)
        rows = torch.cat([rows, places.expand(len(queries), -1)], dim=1)
        scores, kept = scores.topk(min(k, scores.shape[1]), dim=1)
        rows = rows.gather(1, kept)
    return scores.cpu().numpy(), rows.cpu().numpy()


def recall_of(found: tuple[Any, Any], truth: tuple[Any, Any], k: int) -> float:
    """Share of the best k that were found; what scores as the k-th does counts as found."""
    (scores, rows), (true_scores, true_rows) = found, truth
    shares = []
    for query in range(len(rows)):
        best = set(true_rows[query, :k].tolist())
        last = true_scores[query, min(k, true_scores.shape[1]) - 1]
        bar = last - 1e-5 * max(abs(last), 1e-3)
        kept = zip(rows[query, :k].tolist(), scores[query, :k].tolist(), strict=True)
        shares.append(sum(row in best or (row >= 0 and score >= bar) for row, score in kept) / k)
    return float(np.mean(shares))


def batch_row(
    corpus: Corpus, dim: int | str, k: int, engine: str, seconds: list[float], recall: float
) -> Row:
    """All queries at once."""
    rate = len(corpus.queries) / median(seconds)
    return row("All queries at once", {
        "corpus": corpus.name, "dim": dim, "k": f"{k:,}", "engine": engine,
        "s": spread(seconds, 4), "queries/s": f"{rate:,.0f}", "recall": f"{recall:.4f}",
    })  # fmt: skip


def single_row(corpus: Corpus, dim: int, engine: str, search: Callable[[Floats], object]) -> Row:
    """Milliseconds of single queries, one after the other."""
    asked = [corpus.queries[i : i + 1] for i in range(min(20, len(corpus.queries)))]
    search(asked[0])
    times = [1000 * timed(functools.partial(search, query)) for query in asked]
    return row("One query at a time", {
        "corpus": corpus.name, "dim": dim, "k": 10, "engine": engine, "ms": spread(times),
    })  # fmt: skip
