"""What scripts/on_a_gpu measures: training steps, encoding, search; each case yields its rows.

A case is a function that yields one row, a dict, per thing it measured. Backbones have random
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

import encoding
import exact
import numpy as np
import torch
import training_steps
from common import Floats, built_in, cosines
from numpy.typing import NDArray
from timing import in_turn, peak_memory, timed

from m2dr.core.errors import UserError
from m2dr.data.loaders import open_dataset
from m2dr.index.exact import ExactIndex, grid_top_k
from m2dr.index.faiss import GPU_DEPTH, build_index, on_gpu, open_index
from m2dr.index.store import Store, open_store
from m2dr.index.vectors import prefixes
from m2dr.model import checkpoint
from m2dr.model.embed import embed_tokens, tokens_per_batch
from m2dr.model.tokenizer import tokenize
from m2dr.model.tokens import Ragged, buckets
from m2dr.training.losses import compressed_all

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
    documents: int  # that are encoded
    product: int  # rows and columns of the product that tells the matrix rate
    decomposed: tuple[int, int]  # matrices and their size
    corpora: tuple[tuple[int, int], ...]  # documents and width
    dims: Mapping[int, tuple[int, ...]]  # per width
    queries: int
    ks: tuple[int, ...]


FULL = Sizes(
    corpus=training_steps.CORPUS, backbones={MINILM: (6, 384, 12), BERT: (12, 768, 12)}, words=8000,
    batch=256, lengths=(64, 256), steps=10, rounds=5, documents=20_000, product=8192,
    decomposed=(24, 768), corpora=((1_000_000, 384), (8_800_000, 128)),
    dims={384: (64, 128, 384), 128: (32, 128)},
    queries=1000, ks=(10, 1000, 5000),
)  # fmt: skip
TINY = Sizes(
    corpus="pairs.jsonl", backbones={"tiny, 2 × 32": (2, 32, 4)}, words=300, batch=8,
    lengths=(16, 32), steps=1, rounds=2, documents=40, product=128, decomposed=(2, 32),
    corpora=((3000, 16),), dims={16: (8, 16)}, queries=20, ks=(10, 100, 2100),
)  # fmt: skip


def cases(part: str, device: str, tiny: bool, work: Path) -> dict[str, Case]:
    """The cases of a part by name, in the order in which they should run."""
    sizes = TINY if tiny else FULL
    made = {"training": training_cases, "encoding": encoding_cases, "search": search_cases}
    return made[part](sizes, device, work)


def needs(module: str) -> None:
    """Raise MissingError unless a module can be imported."""
    try:
        __import__(module)
    except ImportError as error:
        raise MissingError(f"{module} is not installed ({error})") from error


def settled(device: str) -> None:
    """Wait until the device has done what it was sent."""
    encoding.wait(torch.device(device))


def seconds_of(run: Callable[[], object], rounds: int, device: str) -> list[float]:
    """Seconds of each round, after one to warm up."""

    def settling() -> None:
        run()
        settled(device)

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
        make_backbone(folder, texts_of(sizes, work), sizes.words, *sizes.backbones[name])
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


def texts_of(sizes: Sizes, work: Path, count: int = 0) -> list[str]:
    """The documents of the corpus, over and over; each once when no number is given."""
    texts = [document.content for document in open_dataset(corpus_of(sizes, work)).documents()]
    return [texts[number % len(texts)] for number in range(count or len(texts))]


# Training


PEERS = {
    "plain": training_steps.PLAIN_PEER,
    "full-dim": training_steps.LAYERS_PEER,
    "dims": training_steps.EVERY_PEER,
    "elastic": training_steps.EVERY_PEER,
}


def training_cases(sizes: Sizes, device: str, work: Path) -> dict[str, Case]:
    """Steps of each recipe and its peer in bf16, and what full-dim decomposes."""
    found: dict[str, Case] = {}
    for shape in sizes.backbones:
        names = [name for recipe, peer in PEERS.items() for name in (recipe, peer)]
        for name in dict.fromkeys(names):
            found[f"{shape}: {name}"] = functools.partial(
                step_rows, sizes, device, work, shape, name
            )
    found["decomposition"] = functools.partial(decomposition_rows, sizes, device)
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
    if name in PEERS:
        step = training_steps.m2dr_step(training_steps.STEPS[name], setting)
    else:
        step = training_steps.peer_steps(setting)[name]()
    ready, loss = step.make(), torch.zeros(())

    def steps() -> None:
        nonlocal loss
        for _ in range(sizes.steps):
            loss = step.run(ready)

    def whole() -> None:
        for _ in range(sizes.steps):
            step()

    alone, with_texts = (seconds_of(run, sizes.rounds, device) for run in (steps, whole))
    peak = torch.cuda.max_memory_allocated() if on_gpu else peak_memory()
    yield {
        "table": "training", "shape": shape, "step": name, "peer": PEERS.get(name),
        "tokens/s": [step.tokens * sizes.steps / s for s in alone],
        "tokens/s with tokenising": [step.tokens * sizes.steps / s for s in with_texts],
        "ms": [1000 * s / sizes.steps for s in alone], "peak GB": peak / 1e9, "loss": float(loss),
        "told": f"{sizes.batch} pairs of {sizes.corpus}, queries of up to {sizes.lengths[0]} "
        f"and documents of up to {sizes.lengths[1]} tokens, bf16 autocast, AdamW, no dropout; "
        f"tokens are counted without padding. A round is {sizes.steps} steps.",
    }  # fmt: skip


def decomposition_rows(sizes: Sizes, device: str) -> Iterator[Row]:
    """Ways to the targets of full-dim, whose matrices every step decomposes."""
    count, width = sizes.decomposed
    generator = torch.Generator().manual_seed(SEED)
    spectrum = torch.arange(1, width + 1) ** -0.5
    made = [torch.randn(sizes.batch, width, generator=generator) * spectrum for _ in range(count)]
    batches = [batch.to(device) for batch in made]
    dim = max(1, width // 6)
    truth = compressed_all([batch.double() for batch in made], dim)

    def by_svd() -> list[torch.Tensor]:
        found = []
        for x in batches:
            relations = torch.softmax(x.mT @ x / x.shape[1] ** 0.5, dim=-1)
            components, strengths, _ = torch.linalg.svd(relations)
            kept = components[:, :dim]
            largest = kept.gather(0, kept.abs().argmax(dim=0, keepdim=True))
            found.append(x @ (kept * largest.sign() * strengths[:dim]))
        return found

    ways = {
        "m2dr": lambda: compressed_all(batches, dim),
        "m2dr, on the processor": lambda: compressed_all([batch.cpu() for batch in batches], dim),
        "torch.linalg.svd": by_svd,
    }
    for way, run in ways.items():
        pairs = zip(run(), truth, strict=True)
        error = max(float((a.cpu().double() - b).norm() / b.norm()) for a, b in pairs)
        yield {
            "table": "decomposition", "of": f"{count} of {width} × {width}", "way": way,
            "ms": [1000 * s for s in seconds_of(run, sizes.rounds, device)], "error": error,
        }  # fmt: skip


# Encoding


def encoding_cases(sizes: Sizes, device: str, work: Path) -> dict[str, Case]:
    """The matrix rate, and each backbone's encoding beside it."""
    rate = functools.partial(rate_rows, sizes, device)
    found: dict[str, Case] = {"matrix rate": rate}
    for shape in sizes.backbones:
        found[f"{shape}: texts"] = functools.partial(text_rows, sizes, device, work, shape)
        found[f"{shape}: rate"] = functools.partial(token_rows, sizes, device, work, shape)
    return found


@functools.cache
def matrix_rates(size: int, rounds: int, device: str) -> tuple[float, ...]:
    """TFLOP/s of bf16 products of random matrices, which no cache holds up."""
    generator = torch.Generator().manual_seed(SEED)
    square = torch.randn(size, size, generator=generator).to(device, torch.bfloat16)
    times = 10

    def products() -> None:
        for _ in range(times):
            square @ square

    return tuple(2e-12 * times * size**3 / s for s in seconds_of(products, rounds, device))


def rate_rows(sizes: Sizes, device: str) -> Iterator[Row]:
    """The rate of a large product."""
    rates = matrix_rates(sizes.product, sizes.rounds, device)
    yield {"table": "matrix rate", "size": sizes.product, "TFLOP/s": rates}


def text_rows(sizes: Sizes, device: str, work: Path, shape: str) -> Iterator[Row]:
    """Texts to vectors in bf16, in rounds of all ways."""
    absent: MissingError | None = None
    try:
        needs("sentence_transformers")
    except MissingError as error:
        absent = error
    kept: encoding.Vectors = {}
    texts = texts_of(sizes, work, sizes.documents)
    model = backbone(shape, sizes, work)
    place = torch.device(device)
    rivals = encoding.rivals_of(model, texts, place, torch.bfloat16, kept, peers=absent is None)
    seconds = in_turn(rivals, max(2, sizes.rounds - 2), warm_up=1)
    ours = median(seconds[encoding.OURS])
    for way, values in seconds.items():
        yield {
            "table": "encoding", "shape": shape, "way": way,
            "documents/s": [len(texts) / value for value in values], "times": median(values) / ours,
        }  # fmt: skip
    if absent is not None:
        raise absent
    same = cosines(kept[encoding.OURS], kept[encoding.PEER])
    yield {"table": "agreement", "shape": shape, "least": float(same.min())}


def token_rows(sizes: Sizes, device: str, work: Path, shape: str) -> Iterator[Row]:
    """Token ids to vectors in bf16, and which share of the matrix rate that is."""
    place = torch.device(device)
    model = backbone(shape, sizes, work)
    encoder, tokenizer = checkpoint.load(model, device=place, dtype=torch.bfloat16)
    texts = texts_of(sizes, work, sizes.documents)
    rows = Ragged.of(tokenize(encoder.card, tokenizer, texts, "document"))
    layers = [encoder.layers]

    def run() -> None:
        embed_tokens(encoder, rows, tokenizer.pad_id, layers)

    seconds = seconds_of(run, sizes.rounds, device)
    real = [(1, int(length)) for length in rows.lengths]
    batches = buckets(rows.lengths, tokens_per_batch(place.type), longest_first=True)
    padded = sum(len(batch) * int(rows.lengths[batch].max()) for batch in batches)
    rates = [2e-12 * encoding.multiply_adds(encoder, real) / s for s in seconds]
    full = median(matrix_rates(sizes.product, sizes.rounds, device))
    tokens = int(rows.lengths.sum())
    yield {
        "table": "rate", "shape": shape, "tokens/s": [tokens / s for s in seconds],
        "TFLOP/s": rates, "of the matrix rate": [rate / full for rate in rates],
        "padding": padded / tokens - 1,
    }  # fmt: skip


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
            return exact.written(self.folder, self.originals, self.documents, "cosine")

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
    for case in list(found):  # inverted lists last: they take longest to learn
        if case.endswith(": all dims"):
            name = case.removesuffix(": all dims")
            corpus = found[case].args[0]  # type: ignore[attr-defined]  # a partial's
            found[f"{name}: FAISS ivf"] = functools.partial(
                faiss_rows, corpus, sizes.dims[corpus.width][0], "ivf"
            )
    return found


def store_rows(corpus: Corpus) -> Iterator[Row]:
    """Write the vectors."""
    begun = time.perf_counter()
    count = corpus.store.documents
    yield {
        "table": "corpus", "documents": count, "width": corpus.width,
        "seconds": time.perf_counter() - begun, "queries": len(corpus.queries),
    }  # fmt: skip


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


def faiss_rows(corpus: Corpus, dim: int, engine: str = "flat") -> Iterator[Row]:
    """FAISS at a dim, on the gpu where it works there."""
    needs("faiss")
    folder = corpus.folder.parent / "faiss"
    shutil.rmtree(folder, ignore_errors=True)
    begun = time.perf_counter()
    index = open_index(build_index(corpus.store, dim, engine, folder), corpus.store)
    built = time.perf_counter() - begun
    begun = time.perf_counter()
    moved, reason = index, "FAISS searches on the processor."
    if corpus.device.startswith("cuda"):
        copy, reason = on_gpu(index, torch.device(corpus.device).index or 0)
        moved = copy or index
    yield {
        "table": "built", "corpus": corpus.name, "dim": dim, "engine": f"FAISS {engine}",
        "seconds": built, "gpu seconds": time.perf_counter() - begun, "reason": reason,
    }  # fmt: skip
    truth = ExactIndex(corpus.store, dim, corpus.device)
    name = f"FAISS {engine}{'' if moved is index else ', gpu'}"
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
    return {
        "table": "batch", "corpus": corpus.name, "dim": dim, "k": k, "engine": engine,
        "seconds": seconds, "queries": len(corpus.queries), "recall": recall,
    }  # fmt: skip


def single_row(corpus: Corpus, dim: int, engine: str, search: Callable[[Floats], object]) -> Row:
    """Milliseconds of single queries, one after the other."""
    asked = [corpus.queries[i : i + 1] for i in range(min(20, len(corpus.queries)))]
    search(asked[0])
    times = [1000 * timed(functools.partial(search, query)) for query in asked]
    return {
        "table": "single", "corpus": corpus.name, "dim": dim, "k": 10, "engine": engine,
        "ms": times,
    }  # fmt: skip
