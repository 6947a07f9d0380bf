"""Material of the small scale: samples of real collections, and what a few steps can train on."""

import csv
import gzip
import io
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from claims import Kind

from m2dr.core.errors import UserError
from m2dr.data.dataset import Dataset
from m2dr.data.loaders import open_dataset
from m2dr.data.sentences import LabelledText, open_binary_pairs, open_labelled_texts, split_file
from m2dr.model.hub import CARD

SEED = 13
COLLECTIONS = {  # name -> folder below DATA, split, and how many documents that do not answer
    "msmarco": ("msmarco/passage-pool", "dev_in_pool", 1_000),  # fewer are no work for MiniLM
    "nfcorpus": ("beir/nfcorpus", "test", 400),
    "scifact": ("beir/scifact", "test", 400),
    "scidocs": ("beir/scidocs", "test", 400),
}
QUERIES = 200  # of a sample
ANSWERS = 4  # per query at most; a query of NFCorpus has 38 on average
SUPERVISED = ("beir/nfcorpus", "beir/scifact")  # whose train splits are trained on
PAIRS, ROWS, POSITIVES = "pairs/acl-title-abstract.jsonl.gz", 8_000, 4
SCORED = ("sts/stsb-train.tsv", "sts/sick-train.tsv")
SENTENCES = 6_000
STS_PAIRS = 400  # of a task
CLASS_PAIRS = 600  # of a task of two classes
LABELLED, TESTED = 40, 500  # texts of each class to learn from, and texts to be tested on
SUFFIXES = ("", ".tsv", ".csv")
DRAWN_ANEW, SPREAD = 2, 0.02  # layers, and the deviation of their weights, that of BERT


class MissingError(UserError):
    """Some of the data is not there."""

    def __init__(self, names: Sequence[str], data: Path) -> None:
        """Say which, and where they belong."""
        self.names = [str(data / name) for name in names]
        super().__init__(
            f"The small scale reads {', '.join(names)}, not found in {data}; put it there, or name "
            "the folder that holds it with --data, and run again: what is done stays done."
        )


def need(data: Path, *names: str) -> None:
    """Refuse when something is not there.

    Raises:
        MissingError: with all of it.
    """
    missing = [name for name in names if not (data / name).exists()]
    if missing:
        raise MissingError(missing, data)


def path_of(folder: Path, task: str, kind: Kind) -> str:
    """Where a task lies below the folder of such tasks; files joined by + are one task."""
    if kind != "sts":
        found = (folder / f"{task}{suffix}" for suffix in SUFFIXES)
        return str(next((path for path in found if path.exists()), folder / task))
    return ",".join(str(folder / f"{part}.tsv") for part in task.split("+"))


def backbone_to_improve(out: Path) -> str:
    """Return the folder of a backbone that a short training improves; made once.

    It is the built-in one with its last two layers drawn anew, always the same ones. As it comes,
    the built-in backbone is tuned so well that some dozen steps of any recipe make it worse.
    """
    folder = out / "backbone"
    if not (folder / CARD).exists():  # written last
        import torch

        from m2dr.model import checkpoint
        from m2dr.model.backbones import backbone_of

        encoder, tokenizer = checkpoint.load("minilm")
        generator = torch.Generator().manual_seed(SEED)
        layers = backbone_of(encoder.transformer.config).layers_of(encoder.transformer)
        with torch.no_grad():
            for layer in layers[-DRAWN_ANEW:]:
                for name, weights in layer.named_parameters():
                    if "LayerNorm" in name or name.endswith("bias"):
                        weights.fill_(float("LayerNorm.weight" in name))
                    else:
                        weights.normal_(0.0, SPREAD, generator=generator)
        checkpoint.save(encoder, tokenizer, encoder.card, folder)
    return str(folder)


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


def classes_task(name: str, data: Path, out: Path) -> str:
    """A sample of a task of classification, as a folder of train.csv and test.csv."""
    folder = out / name
    if not (folder / "test.csv").exists():  # written last
        need(data, f"classification/{name}")
        held = open_labelled_texts(data / "classification" / name)
        draw, by_label = random.Random(SEED), dict[str, list[LabelledText]]()
        for row in draw.sample(held.train, len(held.train)):
            by_label.setdefault(row.label, []).append(row)
        kept = [row for label in sorted(by_label) for row in by_label[label][:LABELLED]]
        _write_csv(folder / "train.csv", kept)
        _write_csv(folder / "test.csv", draw.sample(held.test, min(TESTED, len(held.test))))
    return str(folder)


def _write_csv(path: Path, rows: Sequence[LabelledText]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("text", "label"), *rows])
    _replace(path, text.getvalue())


def pairs_task(name: str, data: Path, out: Path) -> str:
    """A sample of a task of pairs of two classes, as a table."""
    path = out / f"{name}-pairs.tsv"
    if not path.exists():
        found = Path(path_of(data / "pair-classification", name, "pairs"))
        need(data, str(found.relative_to(data)))
        file = split_file(found, "test") if found.is_dir() else found
        pairs = open_binary_pairs(str(file)).pairs
        drawn = random.Random(SEED).sample(pairs, min(CLASS_PAIRS, len(pairs)))
        rows = (
            f"{p.score:g}\t{' '.join(p.first.split())}\t{' '.join(p.second.split())}\n"
            for p in drawn
        )
        _replace(path, "score\tsentence1\tsentence2\n" + "".join(rows))
    return str(path)


MAKERS: Mapping[Kind, Callable[[str, Path, Path], str]] = {
    "retrieval": collection,
    "sts": sts_task,
    "classification": classes_task,
    "pairs": pairs_task,
}


def _rows(path: Path) -> list[str]:
    return [row for row in path.read_text(encoding="utf-8").split("\n") if row]


def _write(path: Path, rows: list[dict[str, object]] | list[dict[str, str]]) -> None:
    _replace(path, "".join(json.dumps(row) + "\n" for row in rows))


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".partial")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)
