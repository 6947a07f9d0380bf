"""Material of the small scale: samples of real collections, and what a few steps can train on."""

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path

from m2dr.errors import UserError
from m2dr.text.collection import Dataset
from m2dr.text.datasets import open_dataset

SEED = 13
COLLECTIONS = {  # name -> folder below DATA, split, and how many documents that do not answer
    "msmarco": ("msmarco/passage-pool", "dev_in_pool", 1_000),  # fewer are no work for MiniLM
    "nfcorpus": ("beir/nfcorpus", "test", 400),
    "scifact": ("beir/scifact", "test", 400),
}
QUERIES = 200  # of a sample
ANSWERS = 4  # per query at most; a query of NFCorpus has 38 on average
SUPERVISED = ("beir/nfcorpus", "beir/scifact")  # whose train splits are trained on
PAIRS, ROWS, POSITIVES = "pairs/acl-title-abstract.jsonl.gz", 8_000, 4
SCORED = ("sts/stsb-train.tsv", "sts/sick-train.tsv")
SENTENCES = 6_000
STS_PAIRS = 400  # of a task


def need(data: Path, *names: str) -> None:
    """Refuse when something is not there.

    Raises:
        UserError: with all that is missing.
    """
    missing = [name for name in names if not (data / name).exists()]
    if missing:
        raise UserError(
            f"The small scale reads {', '.join(missing)}, not found in {data}; name the folder "
            "that holds them with --data."
        )


def retrieval_corpus(data: Path, out: Path) -> str:
    """Training groups: NFCorpus train, SciFact train and titles of papers with their abstracts."""
    path = out / "train.jsonl"
    if not path.exists():
        need(data, *SUPERVISED, PAIRS)
        draw = random.Random(SEED)
        rows = [row for name in SUPERVISED for row in _judged(data / name, draw)]
        _write(path, [*rows, *_titled(data / PAIRS, draw)])
    return str(path)


def _judged(folder: Path, draw: random.Random) -> Iterator[dict[str, object]]:
    dataset = open_dataset(str(folder))
    found: dict[str, list[str]] = {}
    for judgement in dataset.judgements("train"):
        if judgement.relevance > 0:
            found.setdefault(judgement.query_id, []).append(judgement.document_id)
    for query in dataset.queries("train"):
        answers = found.get(query.id, [])
        answers = draw.sample(answers, min(POSITIVES, len(answers)))
        documents = [dataset.document(docid) for docid in answers]
        texts = [{"docid": d.id, "title": d.title, "text": d.text} for d in documents]
        if texts:
            yield _group(f"{folder.name}-{query.id}", query.text, texts)


def _titled(path: Path, draw: random.Random) -> Iterator[dict[str, object]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = file.readlines()
    for line in map(json.loads, draw.sample(lines, min(ROWS, len(lines)))):
        text = {"docid": f"acl-{line['document_id']}", "title": "", "text": line["document"]}
        yield _group(f"acl-{line['query_id']}", line["query"], [text])


def _group(query_id: str, query: str, positives: list[dict[str, str]]) -> dict[str, object]:
    row = {"query_id": query_id, "query": query, "positive_passages": positives}
    return {**row, "negative_passages": []}


def collection(name: str, data: Path, out: Path) -> str:
    """A sample of a collection as a folder in the layout of BEIR, split `test`."""
    folder = out / name
    if (folder / "qrels" / "test.tsv").exists():  # written last
        return str(folder)
    place, split, distractors = COLLECTIONS[name]
    need(data, place)
    dataset, draw = open_dataset(str(data / place)), random.Random(SEED)
    answers = _answers(dataset, split, draw)
    queries = [query for query in dataset.queries(split) if query.id in answers]
    kept = {docid for docids in answers.values() for docid in docids}
    judged = {j.document_id for j in dataset.judgements(split)}
    others = [docid for docid in dataset.document_ids() if docid not in judged]
    kept |= set(draw.sample(others, min(distractors, len(others))))
    documents = [dataset.document(docid) for docid in sorted(kept)]
    _write(
        folder / "corpus.jsonl",
        [{"_id": d.id, "title": d.title, "text": d.text} for d in documents],
    )
    _write(folder / "queries.jsonl", [{"_id": q.id, "text": q.text} for q in queries])
    lines = [f"{query}\t{d}\t1\n" for query, docids in answers.items() for d in docids]
    _replace(folder / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore\n" + "".join(lines))
    return str(folder)


def _answers(dataset: Dataset, split: str, draw: random.Random) -> dict[str, list[str]]:
    """Some queries, and of each some of the documents that answer it."""
    found: dict[str, list[str]] = {}
    for judgement in dataset.judgements(split):
        if judgement.relevance > 0:
            found.setdefault(judgement.query_id, []).append(judgement.document_id)
    queries = draw.sample(sorted(found), min(QUERIES, len(found)))
    return {q: draw.sample(found[q], min(ANSWERS, len(found[q]))) for q in queries}


def scored_corpus(data: Path) -> str:
    """Pairs of sentences with a score, to train on."""
    need(data, *SCORED)
    return ",".join(str(data / name) for name in SCORED)


def sentences_corpus(data: Path, out: Path) -> str:
    """The sentences of these pairs, one per line."""
    path = out / "sentences.txt"
    if not path.exists():
        need(data, *SCORED)
        lines: dict[str, None] = {}
        for name in SCORED:
            for row in _rows(data / name)[1:]:
                lines |= dict.fromkeys(row.split("\t")[1:3])
        drawn = random.Random(SEED).sample(sorted(lines), min(SENTENCES, len(lines)))
        _replace(path, "".join(f"{line}\n" for line in drawn))
    return str(path)


def sts_task(name: str, data: Path, out: Path) -> str:
    """A sample of a task's pairs."""
    path = out / f"{name}.tsv"
    if not path.exists():
        need(data, f"sts/{name}.tsv")
        head, *rows = _rows(data / "sts" / f"{name}.tsv")
        drawn = random.Random(SEED).sample(rows, min(STS_PAIRS, len(rows)))
        _replace(path, "".join(f"{row}\n" for row in [head, *drawn]))
    return str(path)


def _rows(path: Path) -> list[str]:
    return [row for row in path.read_text(encoding="utf-8").split("\n") if row]


def _write(path: Path, rows: list[dict[str, object]] | list[dict[str, str]]) -> None:
    _replace(path, "".join(json.dumps(row) + "\n" for row in rows))


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".partial")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)
