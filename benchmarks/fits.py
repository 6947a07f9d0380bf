"""Fitted exits of one encoder on whole collections: every fit from states that are encoded once.

    python benchmarks/fits.py states --data DATA --cache CACHE [--model minilm]
    python benchmarks/fits.py cells --data DATA --cache CACHE --out fits.jsonl
    python benchmarks/fits.py table --out fits.jsonl

DATA holds beir/, msmarco/ and pairs/. `states` runs each text once through all layers and keeps the
pooled states in float16; `cells` fits exits on them and measures all cuts, a line of JSON per fit
and collection, and goes on where it was stopped. No query or judgement of a test set is in a fit.
"""

import argparse
import gzip
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from m2dr.core.progress import progress
from m2dr.core.records import FitInputs, Rotation
from m2dr.data.loaders import open_dataset
from m2dr.data.tokens import Ragged, buckets
from m2dr.evaluate.measures import Evaluator
from m2dr.index.exact import prefix_runs
from m2dr.index.searchable import Docids, encode_docids
from m2dr.model import checkpoint
from m2dr.model.encoder import Encoder
from m2dr.model.exits import TokenFeatures, token_features
from m2dr.tasks.encoder import default_dims, embed_tokens, tokens_per_batch
from m2dr.tasks.fit import as_sample, token_parts
from m2dr.train.linear_fit import (
    RIDGES,
    RIDGES_OF_SIGNS,
    FittedHead,
    Moments,
    Sample,
    fit_head,
    fit_rotation,
)

Floats = NDArray[np.float32]
MEASURE = "nDCG@10"
LENGTHS = {"query": 64, "document": 128}  # tokens
DRAWN = 20_000  # texts of a source to fit on, at most
PASSAGES = 6_000  # of the pool, to fit on
DEV = 600  # queries of MS MARCO dev that are measured; the others may be fitted on


@dataclass(frozen=True)
class Collection:
    """Documents and the queries of one split or more."""

    corpus: str
    splits: tuple[str, ...]


COLLECTIONS = {
    "nfcorpus": Collection("beir/nfcorpus", ("test",)),
    "scifact": Collection("beir/scifact", ("test",)),
    "pydocs": Collection("pydocs:stdlib", ("test",)),
    "pool": Collection("msmarco/passage-pool", ("dl19", "dl20", "dev_in_pool")),
}
OTHER = ("passages", "acl", "medquad", "dev-queries")  # to fit on, and of no collection


@dataclass(frozen=True)
class Fit:
    """One fit: on which texts, and how."""

    name: str
    own: bool = False  # on the documents of the collection that is searched
    sources: tuple[str, ...] = ()  # on these besides, or on these alone
    texts: int = 0  # 0: all that there are
    rotation: Rotation = "learned"
    inputs: FitInputs = "tokens+layer"
    identity: int = 0
    ridge: float = 0.0
    documents: str = "last"


MIXED = OTHER
FITS = (
    *(Fit(f"other, {n:,} texts", sources=MIXED, texts=n) for n in (500, 2000, 8000, 32000)),
    *(Fit(f"other, {r} rotation", sources=MIXED, texts=8000, rotation=r) for r in ("none", "pca")),
    Fit("other, layer", sources=MIXED, texts=8000, inputs="layer"),
    Fit("other, all layers", sources=MIXED, texts=8000, inputs="all-layers"),
    Fit("other, documents same", sources=MIXED, texts=8000, documents="same"),
    Fit("other, layer, same", sources=MIXED, texts=8000, inputs="layer", documents="same"),
    Fit("other, 1,024 signs", sources=MIXED, texts=8000, identity=1024),
    Fit("own", own=True),
    *(Fit(f"own, {n:,} signs", own=True, identity=n) for n in (1024, 3072)),
    Fit("own, no rotation, 3,072 signs", own=True, identity=3072, rotation="none"),
    Fit("own and queries, 3,072 signs", own=True, sources=("dev-queries",), identity=3072),
)


@dataclass(frozen=True)
class States:
    """Texts as the encoder gives them: token rows, states [N, S P + W] and what they are called."""

    rows: Ragged
    states: NDArray[np.float16]

    @classmethod
    def read(cls, path: Path) -> "States":
        """Read what `write` wrote."""
        with np.load(path) as file:
            return cls(Ragged(file["tokens"], file["lengths"]), file["states"])

    def write(self, path: Path) -> None:
        """Write a file, whole."""
        aside = path.with_suffix(".partial.npz")
        np.savez(aside, tokens=self.rows.tokens, lengths=self.rows.lengths, states=self.states)
        aside.replace(path)

    def some(self, chosen: NDArray[np.int64]) -> "States":
        """Return some of the texts."""
        return States(self.rows.some(chosen), self.states[chosen])


def texts_of(name: str, data: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield what is encoded of a source: a name for its file, the side, and the texts."""
    if name in COLLECTIONS:
        collection = COLLECTIONS[name]
        dataset = open_dataset(_path(collection.corpus, data))
        yield "documents", "document", [document.content for document in dataset.documents()]
        for split in collection.splits:
            yield split, "query", [query.text for query in dataset.queries(split)]
    elif name == "passages":
        dataset = open_dataset(_path(COLLECTIONS["pool"].corpus, data))
        chosen = np.random.default_rng(13).choice(dataset.document_count, PASSAGES, replace=False)
        yield "texts", "document", [dataset.document_at(int(row)).content for row in chosen]
    elif name == "dev-queries":
        lines = (
            (data / "msmarco" / "queries.dev.small.tsv").read_text(encoding="utf-8").splitlines()
        )
        dataset = open_dataset(_path(COLLECTIONS["pool"].corpus, data))
        measured = {query.id for query in dataset.queries("dev_in_pool")[:DEV]}
        pairs = [line.split("\t", 1) for line in lines]
        yield "texts", "query", [text for number, text in pairs if number not in measured]
    else:
        file = {"acl": "acl-title-abstract", "medquad": "medquad"}[name]
        with gzip.open(data / "pairs" / f"{file}.jsonl.gz", "rt", encoding="utf-8") as lines_:
            rows = [json.loads(line) for line in lines_]
        chosen = np.random.default_rng(13).choice(len(rows), 4000, replace=False)
        yield "texts", "document", [rows[i]["document"] for i in chosen]
        yield "titles", "query", [rows[i]["query"] for i in chosen]


def _path(corpus: str, data: Path) -> str:
    return corpus if corpus.startswith("pydocs") else str(data / corpus)


def encode_states(arguments: argparse.Namespace) -> None:
    """Run every text through all layers, source by source."""
    encoder, tokenizer = checkpoint.load(arguments.model)
    arguments.cache.mkdir(parents=True, exist_ok=True)
    for source in (*OTHER, *COLLECTIONS):
        for part, side, texts in texts_of(source, arguments.data):
            path = arguments.cache / f"{source}-{part}.npz"
            if path.exists():
                continue
            rows = Ragged.of(tokenizer(texts, LENGTHS[side]))
            with progress(f"{source} {part}", len(rows), "texts") as advance:
                States(rows, _run(encoder, rows, tokenizer.pad_id, advance)).write(path)
    path = arguments.cache / "vocabulary.npz"
    if not path.exists():
        ids = tokenizer.ordinary_ids()
        rows = Ragged.of(tokenizer.alone(ids))
        found = embed_tokens(encoder, rows, tokenizer.pad_id, (encoder.layers,))[0]
        single = np.zeros((len(encoder.words), found.shape[1]), np.float32)
        single[ids] = found
        np.savez(path, single=single, ids=np.array(ids))


def _run(
    encoder: Encoder, rows: Ragged, pad_id: int, advance: Callable[[int], None]
) -> NDArray[np.float16]:
    batches = buckets(rows.lengths, tokens_per_batch(encoder.device.type), longest_first=True)
    padded = (rows.pad(chosen, pad_id) for chosen in batches)
    found = np.empty((0, 0), np.float16)
    for chosen, states in zip(batches, encoder.states_many(padded), strict=True):
        if not found.size:
            found = np.empty((len(rows), states.shape[1]), np.float16)
        found[chosen] = states
        advance(len(chosen))
    return found


class Bench:
    """Fits of one encoder, from the states in a cache."""

    def __init__(self, model: str, data: Path, cache: Path) -> None:
        self.encoder, self.tokenizer = checkpoint.load(model)
        self.data, self.cache = data, cache
        with np.load(cache / "vocabulary.npz") as file:
            self._single, self._ids = file["single"], file["ids"]
        self._special = sorted({*range(len(self._single))} - {*self._ids.tolist()})
        self.dims = default_dims(self.encoder.card.width)

    def texts(self, fit: Fit, collection: str) -> States:
        """Return the texts of a fit, in an order drawn from a seed."""
        names = ["documents"] if fit.own else []
        paths = [self.cache / f"{collection}-{name}.npz" for name in names]
        for source in fit.sources:
            paths += sorted(self.cache.glob(f"{source}-*.npz"))
        read = [States.read(path) for path in dict.fromkeys(paths)]
        draw = np.random.default_rng(13)
        share = -(-fit.texts // len(read)) if fit.texts else DRAWN
        read = [
            one.some(draw.permutation(len(one.rows))[: min(share, len(one.rows))]) for one in read
        ]
        together = States(
            Ragged(
                np.concatenate([one.rows.tokens for one in read]),
                np.concatenate([one.rows.lengths for one in read]),
            ),
            np.concatenate([one.states for one in read]),
        )
        return together.some(draw.permutation(len(together.rows)))

    def features(self, texts: States, identity: int) -> TokenFeatures:
        """Return the features of tokens, counted on the texts of a fit."""
        counts = np.bincount(texts.rows.tokens, minlength=len(self._single))
        words = self.encoder.words
        return token_features(words, self._single, counts, self._special, identity)

    def sample(self, texts: States, features: TokenFeatures) -> Sample:
        """Return the inputs and targets of some texts."""
        tokens = token_parts(self.encoder, features, texts.rows, self.tokenizer.pad_id)
        return as_sample(texts.states.astype(np.float32), tokens, self.encoder)

    def heads(
        self, fit: Fit, texts: States, features: TokenFeatures
    ) -> tuple[list[FittedHead], Floats]:
        """Fit all exits, and the rotation."""
        held = min(1024, len(texts.rows) // 8)
        order = np.arange(len(texts.rows))
        held_out = self.sample(texts.some(order[:held]), features)
        moments = Moments(self.encoder.layers - 1, fit.inputs == "all-layers")
        vectors = []
        for chosen in np.array_split(order[held:], max(1, len(order) // 1024)):
            part = self.sample(texts.some(chosen), features)
            moments.add(part)
            vectors.append(part.targets)
        targets = np.concatenate(vectors)[:8192]
        card = self.encoder.card
        rotation = fit_rotation(targets, fit.rotation, card.similarity, self.dims, 13)
        layers = range(self.encoder.layers)
        ridges = (fit.ridge,) if fit.ridge else RIDGES_OF_SIGNS if fit.identity else RIDGES
        heads = [fit_head(moments, held_out, layer, fit.inputs, ridges) for layer in layers]
        return [head.rotated(rotation) for head in heads], rotation

    def cells(self, fit: Fit, collection: str) -> dict[str, object]:
        """Fit exits and return the measure of every cut and split."""
        begun = time.monotonic()
        texts = self.texts(fit, collection)
        features = self.features(texts, fit.identity)
        heads, rotation = self.heads(fit, texts, features)
        seconds = time.monotonic() - begun
        last = self.encoder.layers

        def embed(states: States) -> list[Floats]:
            read = self.sample(states, features)
            full = [*(head(read.read(parts_of(n, fit))) for n, head in enumerate(heads))]
            return [*full, read.targets @ rotation.T]

        same = fit.documents == "same"
        documents = embed_parts(embed, self.file(collection, "documents"), None if same else last)
        dataset = open_dataset(_path(COLLECTIONS[collection].corpus, self.data))
        docids = Docids(encode_docids(dataset.document_ids()))
        found: dict[str, object] = {}
        for split in COLLECTIONS[collection].splits:
            queries = dataset.queries(split)
            judgements = dataset.judgements(split)
            vectors = embed(self.file(collection, split))
            if split == "dev_in_pool":
                queries, vectors = queries[:DEV], [block[:DEV] for block in vectors]
                kept = {query.id for query in queries}
                judgements = [one for one in judgements if one.query_id in kept]
            evaluator = Evaluator(judgements, [MEASURE])
            ids = [query.id for query in queries]
            cells = {}
            for layer, block in enumerate(vectors):
                answers = documents[layer if same else 0]
                runs = prefix_runs(
                    ids, block, answers, docids, self.dims, 10, self.encoder.card.similarity
                )
                for dim, run in runs.items():
                    cells[f"L{layer}D{dim}"] = round(evaluator.scores(run).mean[MEASURE], 5)
            found[split] = cells
        about = [{"ridge": head.ridge, "cosine": head.cosine} for head in heads]
        return {
            "fit": asdict(fit),
            "collection": collection,
            "texts": len(texts.rows),
            "seconds": round(seconds, 1),
            "heads": about,
            "cells": found,
        }

    def file(self, collection: str, part: str) -> States:
        """Return the states of a part of a collection."""
        return States.read(self.cache / f"{collection}-{part}.npz")


def parts_of(layer: int, fit: Fit) -> tuple[int, ...]:
    """Return what an exit of a fit reads."""
    from m2dr.core.records import inputs_of

    return inputs_of(layer, fit.inputs)


def embed_parts(
    embed: Callable[[States], list[Floats]], states: States, layer: int | None
) -> list[Floats]:
    """Embed many texts some thousands at a time, at one layer or at all."""
    found = []
    for chosen in np.array_split(np.arange(len(states.rows)), -(-len(states.rows) // 4096)):
        blocks = embed(states.some(chosen))
        found.append(blocks if layer is None else [blocks[layer]])
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]


def measure(arguments: argparse.Namespace) -> None:
    """Measure every fit on every collection that is encoded."""
    bench = Bench(arguments.model, arguments.data, arguments.cache)
    done = set()
    if arguments.out.exists():
        rows = map(json.loads, arguments.out.read_text().splitlines())
        done = {(row["fit"]["name"], row["collection"]) for row in rows}
    for fit in FITS:
        if arguments.only and not any(word in fit.name for word in arguments.only):
            continue
        for collection in arguments.collections or COLLECTIONS:
            if (fit.name, collection) in done:
                continue
            row = bench.cells(fit, collection)
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(summary(row), flush=True)


def summary(row: dict) -> str:
    """Return a line for people: mean of all cuts of layers 1 to L, layer 0, and the full model."""
    parts = []
    for split, cells in row["cells"].items():
        upper = [value for name, value in cells.items() if not name.startswith("L0")]
        *_, full = cells.values()
        zero = " ".join(f"{100 * cells[f'L0D{dim}']:.1f}" for dim in (64, 128, 384))
        mean = 100 * sum(upper) / len(upper)
        parts.append(f"{split}: cuts {mean:.1f}, layer 0 {zero}, full {100 * full:.1f}")
    where = f"{row['fit']['name']} | {row['collection']}"
    return f"{where} | {row['texts']} texts, {row['seconds']} s | {'; '.join(parts)}"


def table(arguments: argparse.Namespace) -> None:
    """Print what there is."""
    for line in arguments.out.read_text().splitlines():
        print(summary(json.loads(line)))


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["states", "cells", "table"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--only", action="append", help="Part of a fit's name; repeatable.")
    parser.add_argument("--collections", action="append", choices=[*COLLECTIONS])
    arguments = parser.parse_args()
    {"states": encode_states, "cells": measure, "table": table}[arguments.what](arguments)


if __name__ == "__main__":
    main()
