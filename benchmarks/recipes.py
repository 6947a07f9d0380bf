"""Train every recipe on the same real data for the same budget, and measure all its cuts.

    python benchmarks/recipes.py retrieval --data DATA --out RESULTS --seeds 3
    python benchmarks/recipes.py sentences --data DATA --out RESULTS --seeds 3
    python benchmarks/recipes.py alignment --data DATA --out RESULTS --seeds 3
    python benchmarks/recipes.py mipic --data DATA --out RESULTS --seeds 3
    python benchmarks/recipes.py budgets --data DATA --out RESULTS --seeds 2 --steps 300

DATA holds beir/, msmarco/, pairs/ and sts/. One JSON per trained model goes to RESULTS, so that a
run that was stopped goes on where it was; `recipes_table.py` makes the tables and figures.
"""

import argparse
import gzip
import json
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from m2dr.core.records import Document, Judgement, ModelCard, Query, default_dims
from m2dr.core.settings import TrainSettings, read_settings
from m2dr.data.loaders import open_dataset
from m2dr.data.sentences import open_sentences
from m2dr.evaluation.measures import Evaluator
from m2dr.evaluation.sentence_tasks import correlations, distinct_sentences, gold_scores
from m2dr.index.docids import Docids, encode_docids
from m2dr.index.exact import prefix_runs
from m2dr.maps.fit import fit_maps
from m2dr.model import checkpoint
from m2dr.model.checkpoint import read_card
from m2dr.tasks.models import fitted_cuts
from m2dr.tasks.query import document_layer
from m2dr.tasks.training.fit import fit_texts
from m2dr.tasks.training.train import train

Settings = dict[str, Any]
LAYERS = (1, 2, 3, 4, 5, 6)
DIAGONAL = ("L1D16", "L2D32", "L3D64", "L4D128", "L5D256")  # and the whole, which `plain` trains
MEASURE = "nDCG@10"
ACL_ROWS = 20_000
MOST = 6_000  # texts of a fit
POSITIVES = 8  # per training query at most; NFCorpus has 43
ANSWERS, DISTRACTORS = 800, 700  # documents of a task: judged relevant, and others
PAIRS = 1_000  # of a sentence task, drawn once

RETRIEVAL: dict[str, Settings] = {
    "plain": {"refit": False},
    "mrl": {},
    "2dmse": {},
    "2dmse, alignment over the batch": {"variant": "2dmse", "align_reduction": "batch"},
    "2dmse, no alignment": {"variant": "2dmse", "align": "none"},
    "full-dim": {},
    "dims": {},
    "score": {},
    "fixed-doc": {},
    "starbucks": {},
    "elastic": {},
    "full-dim + heads": {"variant": "full-dim", "exit_head": "linear"},
}
SENTENCES: dict[str, Settings] = {
    "plain": {"refit": False},
    "mrl": {},
    "2dmse-v1": {},
    "2dmse-v1, no alignment": {"variant": "2dmse-v1", "align": "none"},
    "2dmse-v1, no last layer": {"variant": "2dmse-v1", "whole": False},
    "ese": {},
    "ese, PCA of embeddings": {"variant": "ese", "compress": "embeddings"},
    "ese, max-k": {"variant": "ese", "compress": "max-k"},
    "ese, no compression": {"variant": "ese", "compress": "none"},
    "ese, uniform weights": {"variant": "ese", "weights": "uniform"},
    "ese, learned weights": {"variant": "ese", "weights": "dynamic"},
    "mipic": {},
    "mipic, no SIA": {"variant": "mipic", "sia": False},
    "mipic, no PIC": {"variant": "mipic", "pic": False},
    "mipic, full checkpoints": {"variant": "mipic", "full_checkpoints": True},
}
ALIGNMENT: dict[str, Settings] = {  # full-dim as its paper sets it: dot, temperature 1, CLS
    "undivided": {"align_reduction": "mean"},
    "divided by the batch": {"align_reduction": "batch"},
    "none": {"align": "none"},
}
MIPIC: dict[str, Settings] = {  # CLS pooling; the temperature of the token relations
    "mrl": {"variant": "mrl"},
    "mipic, τ .05": {"variant": "mipic", "relations_temperature": 0.05},
    "mipic, τ 1": {"variant": "mipic", "relations_temperature": 1.0},
    "mipic, τ .05, [CLS] out": {
        "variant": "mipic", "relations_temperature": 0.05, "relations_self": False,
    },
    "mipic, τ 1, [CLS] out": {"variant": "mipic", "relations_self": False},
}  # fmt: skip
BUDGETS = (  # each as it is, and with a fit at its end
    "plain", "mrl", "elastic", "full-dim", "2dmse", "dims", "score", "fixed-doc", "starbucks",
    "2dmse-st", "ml-embed", "ese", "mipic",
)  # fmt: skip
TITLES, ABSTRACTS = 400, 2_000  # of ACL, held out of the training
BUDGET: Settings = {
    "batch_size": 32,
    "learning_rate": 1e-4,
    "dropout": 0.0,
    "query_length": 24,
    "document_length": 48,
    "evaluate_steps": 0,
    "save_steps": 100_000,
}


Found = dict[str, dict[str, dict[str, Any]]]  # by kind, cut and task
Measure = Callable[[Path | str, ModelCard], Found]


@dataclass(frozen=True)
class Task:
    """What a model is measured on: some queries and the documents they are searched in."""

    name: str
    queries: list[Query]
    documents: list[Document]
    judgements: list[Judgement]


def retrieval_tasks(data: Path) -> Iterator[Task]:
    """NFCorpus, SciFact and the two TREC deep learning tracks, each a sample of its documents."""
    for name, split in (("nfcorpus", "test"), ("scifact", "test")):
        yield _task(name, str(data / "beir" / name), split)
    for split in ("dl19", "dl20"):
        yield _task(split, str(data / "msmarco" / "passage-pool"), split)


def _task(name: str, corpus: str, split: str) -> Task:
    dataset = open_dataset(corpus)
    judgements = dataset.judgements(split)
    relevant = sorted({j.document_id for j in judgements if j.relevance > 0})
    others = [docid for docid in dataset.document_ids() if docid not in set(relevant)]
    drawn = random.Random(13).sample(others, min(DISTRACTORS, len(others)))
    relevant = random.Random(13).sample(relevant, min(ANSWERS, len(relevant)))
    kept = {*relevant, *drawn}
    judged = [j for j in judgements if j.document_id in kept]
    asked = {j.query_id for j in judged if j.relevance > 0}
    queries = [query for query in dataset.queries(split) if query.id in asked]
    judged = [j for j in judged if j.query_id in asked]
    documents = [dataset.document(docid) for docid in sorted(kept)]
    return Task(name, queries, documents, judged)


def training_file(data: Path, out: Path) -> Path:
    """NFCorpus train, SciFact train and a slice of ACL titles and abstracts, as one file."""
    path = out / "train.jsonl"
    if path.exists():
        return path
    draw, rows = random.Random(13), []
    for name in ("nfcorpus", "scifact"):
        dataset = open_dataset(str(data / "beir" / name))
        found: dict[str, list[str]] = {}
        for judgement in dataset.judgements("train"):
            if judgement.relevance > 0:
                found.setdefault(judgement.query_id, []).append(judgement.document_id)
        for query in dataset.queries("train"):
            chosen = found.get(query.id, [])
            chosen = draw.sample(chosen, min(POSITIVES, len(chosen)))
            positives = [dataset.document(docid) for docid in chosen]
            texts = [
                {"docid": f"{name}-{d.id}", "title": d.title, "text": d.text} for d in positives
            ]
            if texts:
                row = {"query_id": f"{name}-{query.id}", "query": query.text}
                rows.append({**row, "positive_passages": texts, "negative_passages": []})
    with gzip.open(data / "pairs" / "acl-title-abstract.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = draw.sample(file.readlines(), ACL_ROWS)
    for line in map(json.loads, lines):
        text = {"docid": f"acl-{line['document_id']}", "title": "", "text": line["document"]}
        row = {"query_id": f"acl-{line['query_id']}", "query": line["query"]}
        rows.append({**row, "positive_passages": [text], "negative_passages": []})
    aside = path.with_suffix(".partial")
    aside.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return aside.replace(path)


def measure_retrieval(
    tasks: Sequence[Task], model: Path | str, card: ModelCard, dims: Sequence[int] = ()
) -> Found:
    """nDCG@10 of every layer and dim on every task, in the mean and by query."""
    encoder = checkpoint.load(model, device="auto")
    encoder.runtime.card = card
    dims = dims or default_dims(card.width)
    found: dict[str, dict[str, float]] = {}
    by_query: dict[str, dict[str, Any]] = {}
    layers = [layer for layer in (0, *LAYERS) if card.lowest_layer <= layer <= card.layers]
    for task in tasks:
        sources = sorted({document_layer(card, layer) for layer in layers})
        contents = [document.content for document in task.documents]
        documents = encoder.vectors(contents, "document", sources)
        texts = [query.text for query in task.queries]
        queries = encoder.vectors(texts, "query", layers)
        docids = Docids(encode_docids(document.id for document in task.documents))
        evaluator = Evaluator(task.judgements, [MEASURE])
        ids = [query.id for query in task.queries]
        for layer, vectors in zip(layers, queries, strict=True):
            block = documents[sources.index(document_layer(card, layer))]
            runs = prefix_runs(ids, vectors, block, docids, dims, 10, card.similarity)
            for dim, run in runs.items():
                cut, scores = f"L{layer}D{dim}", evaluator.scores(run)
                found.setdefault(cut, {})[task.name] = scores.mean[MEASURE]
                by_query.setdefault(cut, {})[task.name] = scores.per_query[MEASURE]
    return {"cells": found, "queries": by_query}


def measure_sentences(files: Sequence[Path], model: Path | str, card: ModelCard) -> Found:
    """Spearman's correlation of every layer and dim on every file."""
    encoder = checkpoint.load(model, device="auto")
    encoder.runtime.card = card
    found: dict[str, dict[str, float]] = {}
    for file in files:
        sentences = open_sentences(str(file))
        count = min(PAIRS, len(sentences.pairs))
        pairs = random.Random(13).sample(sentences.pairs, count)
        gold = gold_scores(pairs, sentences.name)
        texts, first, second = distinct_sentences(pairs)
        layers = [layer for layer in (0, *LAYERS) if card.lowest_layer <= layer <= card.layers]
        blocks = encoder.vectors(texts, "document", layers)
        for layer, block in zip(layers, blocks, strict=True):
            by_dim = correlations(block, first, second, gold, default_dims(card.width))
            for dim, values in by_dim.items():
                found.setdefault(f"L{layer}D{dim}", {})[file.stem] = values["Spearman"]
    return {"cells": found}


def documents_of(task: Task, out: Path) -> str:
    """Write the documents of a task as lines of text; return the file."""
    path = out / f"{task.name}.txt"
    lines = (" ".join(document.content.split()) for document in task.documents)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def result_file(out: Path, name: str, seed: int) -> Path:
    """Return where the numbers of a model are kept."""
    return out / f"{name.replace(' ', '_').replace(',', '')}-{seed}.json"


def write(path: Path, table: Settings) -> None:
    """Write a JSON file, whole."""
    aside = path.with_suffix(".partial")
    aside.write_text(json.dumps(table, indent=1), encoding="utf-8")
    aside.replace(path)


def run_one(
    out: Path,
    name: str,
    seed: int,
    settings: Settings,
    measure: Measure,
) -> None:
    """Train one model, measure it, keep the numbers and drop the weights; nothing if it is done."""
    path = result_file(out, name, seed)
    if path.exists():
        return
    table = {"variant": name, **BUDGET, "backbone": "minilm", **settings, "seed": seed}
    chosen: TrainSettings = read_settings(TrainSettings, None, (), table)
    folder, begun = path.with_suffix(".model"), time.monotonic()
    report = train(chosen, folder, overwrite=True)
    trained = time.monotonic() - begun
    found = measure(folder, report.card)
    shutil.rmtree(folder)
    table |= {"name": name, "seed": seed, "train_seconds": trained, "last_loss": report.last_loss}
    write(path, {"settings": table, **found})
    print(
        f"{name} seed {seed}: {trained:.0f} s, {time.monotonic() - begun:.0f} s in all", flush=True
    )


def run_all(
    out: Path,
    arguments: argparse.Namespace,
    common: Settings,
    rows: Mapping[str, Settings],
    measure: Measure,
) -> None:
    """Train and measure every row that was asked for, seed by seed."""
    for seed in range(13, 13 + arguments.seeds):
        for name, changes in rows.items():
            if wanted(name, arguments):
                run_one(out, name, seed, common | changes, measure)


def untrained(out: Path, card: ModelCard, measure: Measure) -> None:
    """Measure the backbone as it is; nothing if it is done."""
    path = result_file(out, "untrained", 0)
    if not path.exists():
        write(path, {"settings": {"name": "untrained", "seed": 0}, **measure("minilm", card)})


def retrieval(arguments: argparse.Namespace, out: Path) -> None:
    """All recipes, then separate models on the diagonal, seed by seed."""
    corpus = training_file(arguments.data, out)
    common: Settings = {
        "corpus": str(corpus), "steps": arguments.steps, "align_reduction": "mean",
    }  # fmt: skip
    measured = partial(measure_retrieval, list(retrieval_tasks(arguments.data)))
    untrained(out, _as_budgeted(read_card("minilm")), measured)
    run_all(out, arguments, common, {**RETRIEVAL, **_separate()}, measured)


def budgets(arguments: argparse.Namespace, out: Path) -> None:
    """What each recipe gives at every cut after a training on ACL, itself and with fits."""
    corpus, held_out = acl(arguments.data, out)
    beir = arguments.data / "beir"
    tasks = [held_out, *(_task(name, str(beir / name), "test") for name in ("scifact", "nfcorpus"))]
    common: Settings = {
        "corpus": str(corpus), "steps": arguments.steps, "query_length": 64, "document_length": 64,
        "dtype": "bf16", "refit": False,
    }  # fmt: skip

    def measured(folder: Path | str, card: ModelCard, tasks: Sequence[Task] = tasks) -> Found:
        card = replace(card, query_length=64, document_length=128)
        return measure_retrieval(tasks, folder, card, arguments.dims)

    fits: dict[str, list[tuple[str, Sequence[Task]]]] = {
        " + fit": [(str(corpus), tasks)],
        " + index": [(documents_of(task, out), [task]) for task in tasks],
    }

    def fitted(name: str, seed: int, model: str, trained: ModelCard | None) -> None:
        """Fit a model on the training's texts, then on what is searched, and measure it each time.

        An index fits exits on its own documents; a model without an index has those of its fit.
        """
        for kind, parts in fits.items():
            if (path := result_file(out, name + kind, seed)).exists():
                continue
            found: Found = {}
            seconds = 0.0
            for texts, searched in parts:
                encoder = checkpoint.load(model, device="auto")
                begun, chosen = time.monotonic(), fit_texts(texts, MOST, seed)
                record = fit_maps(encoder, chosen, seed, "learned")
                seconds += time.monotonic() - begun
                card = trained or encoder.card
                cuts = fitted_cuts(encoder.card)
                card = replace(card, cuts=cuts, documents="last", fit=record)
                folder = path.with_suffix(".fit")
                shutil.rmtree(folder, ignore_errors=True)
                checkpoint.save(*encoder, card, folder)
                of_part = measured(folder, read_card(str(folder)), searched)
                for part, cells in of_part.items():
                    for cut, by_task in cells.items():
                        found.setdefault(part, {}).setdefault(cut, {}).update(by_task)
                shutil.rmtree(folder)
            settings = {"name": name + kind, "seed": seed, "fit_seconds": seconds}
            write(path, {"settings": settings, **found})

    if wanted("untrained", arguments):
        untrained(out, read_card("minilm"), measured)
    for seed in range(13, 13 + arguments.seeds):
        if wanted("untrained", arguments):
            fitted("untrained", seed, "minilm", None)
        for name in BUDGETS:
            if not wanted(name, arguments):
                continue

            def both(
                folder: Path | str, card: ModelCard, name: str = name, seed: int = seed
            ) -> Found:
                fitted(name, seed, str(folder), card)
                return measured(folder, card)

            run_one(out, name, seed, common, both)


def acl(data: Path, out: Path) -> tuple[Path, Task]:
    """ACL titles and abstracts: a file to train on, and a task of others."""
    with gzip.open(data / "pairs" / "acl-title-abstract.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = file.readlines()
    random.Random(13).shuffle(lines)
    path, rows = out / "acl.jsonl", [json.loads(line) for line in lines[:ABSTRACTS]]
    if not path.exists():
        aside = path.with_suffix(".partial")
        aside.write_text("".join(lines[ABSTRACTS : ABSTRACTS + ACL_ROWS]), encoding="utf-8")
        aside.replace(path)
    return path, Task(
        "acl",
        [Query(row["query_id"], row["query"]) for row in rows[:TITLES]],
        [Document(row["document_id"], row["document"]) for row in rows],
        [Judgement(row["query_id"], row["document_id"], 1) for row in rows[:TITLES]],
    )


def _separate() -> dict[str, Settings]:
    found: dict[str, Settings] = {}
    for cut in DIAGONAL:
        layer, dim = (int(number) for number in cut[1:].split("D"))
        found[f"separate {cut}"] = {"variant": "separate", "layers": [layer], "dims": [dim]}
    return found


def wanted(name: str, arguments: argparse.Namespace) -> bool:
    """Whether a recipe is among those that were asked for."""
    return not arguments.only or any(word in name for word in arguments.only)


def _as_budgeted(card: ModelCard) -> ModelCard:
    lengths = (BUDGET["query_length"], BUDGET["document_length"])
    return replace(card, query_length=lengths[0], document_length=lengths[1])


def sentences(arguments: argparse.Namespace, out: Path) -> None:
    """All recipes for pairs of sentences, with their ablations, seed by seed."""
    corpus, measured = _sentence_pairs(arguments)
    untrained(out, _as_budgeted(read_card("minilm")), measured)
    common: Settings = {"corpus": corpus, "steps": arguments.steps}
    run_all(out, arguments, common, SENTENCES, measured)


def _sentence_pairs(arguments: argparse.Namespace) -> tuple[str, Measure]:
    """The pairs to train on, and a measurement on five test files."""
    folder = arguments.data / "sts"
    files = [folder / f"{name}-test.tsv" for name in ("stsb", "sick", "sts12", "sts13", "sts14")]
    corpus = f"{folder / 'stsb-train.tsv'},{folder / 'sick-train.tsv'}"
    return corpus, partial(measure_sentences, files)


def alignment(arguments: argparse.Namespace, out: Path) -> None:
    """full-dim with its alignment undivided, divided and left out, on NFCorpus."""
    folder = str(arguments.data / "beir" / "nfcorpus")
    common: Settings = {
        "variant": "full-dim", "corpus": folder, "steps": arguments.steps, "batch_size": 16,
        "pooling": "cls", "similarity": "dot", "temperature": 1.0, "weight_decay": 0.0,
        "query_length": 32, "document_length": 96, "dropout": None,
    }  # fmt: skip
    measured = partial(measure_retrieval, [_task("nfcorpus", folder, "test")])
    run_all(out, arguments, common, ALIGNMENT, measured)


def mipic(arguments: argparse.Namespace, out: Path) -> None:
    """MRL and MIPIC with CLS pooling on single sentences, by the temperature of its relations."""
    corpus, measured = _sentence_pairs(arguments)
    common: Settings = {
        "corpus": corpus, "loss": "simcse",
        "steps": arguments.steps, "batch_size": 16, "pooling": "cls", "dropout": 0.1,
        "learning_rate": 2e-5, "head_learning_rate": 2e-5, "schedule": "cosine", "warmup": 0.0,
    }  # fmt: skip
    run_all(out, arguments, common, MIPIC, measured)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=list(RUNS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--dims", type=int, nargs="+", default=(), help="Of budgets.")
    parser.add_argument("--only", action="append", help="Part of a recipe's name; repeatable.")
    arguments = parser.parse_args()
    out = arguments.out / arguments.what
    out.mkdir(parents=True, exist_ok=True)
    RUNS[arguments.what](arguments, out)


RUNS = {
    "retrieval": retrieval, "sentences": sentences, "alignment": alignment, "mipic": mipic,
    "budgets": budgets,
}  # fmt: skip


if __name__ == "__main__":
    main()
