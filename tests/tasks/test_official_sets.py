"""Every published set of BEIR in its layout and with its flaws, against BEIR and pytrec_eval."""

import csv
import io
import json
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from world import WORDS

from m2dr.core.records import Cut
from m2dr.core.requests import EvaluateRequest, MineRequest
from m2dr.core.settings import TrainSettings
from m2dr.data.loaders import open_dataset
from m2dr.data.training_rows import Groups
from m2dr.evaluation.grid import read_grid, read_query_scores
from m2dr.evaluation.runs import read_run
from m2dr.model import checkpoint
from m2dr.tasks.evaluating.evaluate import EvaluateReport, evaluate
from m2dr.tasks.training.mine import mine
from m2dr.tasks.training.training_data import open_training_data

TREC = {
    "nDCG@10": "ndcg_cut_10",
    "nDCG@3": "ndcg_cut_3",
    "R@5": "recall_5",
    "AP": "map",
    "RR": "recip_rank",
    "P@5": "P_5",
    "Bpref": "bpref",
}
CUTS = (Cut(2, 8), Cut(2, 32), Cut(4, 8), Cut(4, 32))
PARTS = (
    "android", "english", "gaming", "gis", "mathematica", "physics", "programmers", "stats",
    "tex", "unix", "webmasters", "wordpress",
)  # fmt: skip


@dataclass(frozen=True)
class Published:
    """How the files of a set look: its ids, levels, splits and habits."""

    name: str
    docid: str = "{}"
    query_id: str = "q{}"
    levels: Sequence[int] = (1,)
    splits: Sequence[str] = ("test",)
    title: str | None = "the {}"  # of a document; None: no such key
    metadata: Mapping[str, str] | None = None
    newline: str = "\n"


# Ids, levels and splits as in the published files.
SETS = (
    Published("msmarco", splits=("train", "dev", "test"), title=""),
    Published("trec-covid", "ug{}v5q", "{}", (2, 1, 0, -1), metadata={"url": "", "pubmed_id": ""}),
    Published("nfcorpus", "MED-{}", "PLAIN-{}", (2, 1), ("train", "dev", "test")),
    Published("bioasq", "{}", "55031181e9bde6963400{}", splits=("train", "test")),
    Published("nq", "doc{}", "test{}"),
    Published("hotpotqa", "{}", "5a8b57f25542995d1e6f{}", splits=("train", "dev", "test")),
    Published("fiqa", "{}", "{}", splits=("train", "dev", "test"), title=""),
    Published("signal1m", "{}", "q{}", (2, 1, 0), title=None),
    Published("trec-news", "b2e89334-33f9-11e1-825f-{}", "{}", (16, 8, 4, 2, 0)),
    Published("robust04", "FBIS3-{}", "{}", (2, 1, 0), title=None),
    Published("arguana", "test-environment-{}-pro01a", "test-environment-{}-pro01a"),
    Published("webis-touche2020", "c67482ba-2019-04-18T13:32:05Z-{}", "{}", (2, 1, 0, -2)),
    Published("quora", "{}", "{}", splits=("dev", "test"), title=None, metadata={}),
    Published("dbpedia-entity", '<dbpedia:"No_{}"_(Fé)>', "INEX_LD-{}", (2, 1, 0), ("dev", "test")),
    Published("scidocs", "4cf296b9d4ef79b838dc565e6e84ab9b089613{}", "78495383450e02c5fe817e{}",
              (1, 0), metadata={"authors": "", "cited_by": ""}),
    Published("fever", "No_{}_-LRB-Beyoncé-RRB-", "{}", splits=("train", "dev", "test")),
    Published("climate-fever", "The_{}!", "{}", newline="\r\n"),
    Published("scifact", "{}", "{}", splits=("train", "test"), metadata={}),
)  # fmt: skip


def write(published: Published, folder: Path, documents: int = 30) -> Path:
    """Write a small set: every fifth judgement is of an absent document, some texts are empty."""
    texts = [f"{WORDS[i % len(WORDS)]} {WORDS[(3 * i) % len(WORDS)]} {i}" for i in range(documents)]
    texts[7] = ""
    docids = [published.docid.format(i) for i in range(documents)]
    extra = {} if published.metadata is None else {"metadata": published.metadata}
    queries, judged = [], {split: [] for split in published.splits}
    for i in range(24):
        name, split = published.query_id.format(i), published.splits[i % len(published.splits)]
        queries.append({"_id": name, "text": texts[i] or "the", **extra})
        for turn, level in enumerate((*published.levels, published.levels[0])):
            row = (i + 1 + 2 * turn) % documents
            absent = (i + turn) % 5 == 0
            judged[split].append((name, f"{docids[row]}gone" if absent else docids[row], level))
    corpus = [
        {
            "_id": docid,
            **({} if published.title is None else {"title": published.title.format(i)}),
            "text": text,
            **extra,
        }
        for i, (docid, text) in enumerate(zip(docids, texts, strict=True))
    ]
    (folder / "qrels").mkdir(parents=True)
    for file, rows in (("corpus", corpus), ("queries", queries)):
        lines = [json.dumps(row, ensure_ascii=i % 2 == 0) for i, row in enumerate(rows)]
        (folder / f"{file}.jsonl").write_bytes(_ended(lines, published.newline))
    for split, rows in judged.items():
        text = io.StringIO()  # as BEIR's own scripts write them
        writer = csv.writer(text, delimiter="\t", lineterminator="\n")
        writer.writerows([("query-id", "corpus-id", "score"), *rows, rows[0]])
        lines = text.getvalue().splitlines()
        (folder / "qrels" / f"{split}.tsv").write_bytes(_ended(lines, published.newline))
    return folder


def _ended(lines: Sequence[str], newline: str) -> bytes:
    return "".join(f"{line}{newline}" for line in lines).encode()


def by_beir(folder: Path, split: str) -> tuple[dict, dict, dict]:
    """Corpus, queries and judgements as BEIR's own loader reads them."""
    loader = pytest.importorskip("beir.datasets.data_loader").GenericDataLoader
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it leaves a file open
        return loader(str(folder)).load(split=split)


def measured(*corpora: object, **fields: object) -> EvaluateReport:
    asked = {"layers": (2, 4), "dims": (8, 32), "runs": "all", "measures": tuple(TREC)} | fields
    return evaluate(EvaluateRequest(tuple(map(str, corpora)), ("model",), **asked))


@pytest.fixture
def place(tiny_backbone: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("M2DR_DATA", raising=False)
    shutil.copytree(tiny_backbone, here / "model")
    return here


@pytest.mark.parametrize(
    ("published", "documents"),
    [*zip(SETS, cycle(("trained", "last", "2")), strict=False)],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_published_set_is_read_and_measured_as_by_beir_and_pytrec_eval(
    published: Published, documents: str, place: Path
) -> None:
    folder = write(published, place / "data" / published.name)
    split = "dev" if published.name == "msmarco" else "test"  # what BEIR reports
    corpus, queries, qrels = by_beir(folder, split)
    dataset = open_dataset(published.name)
    assert {document.id for document in dataset.documents()} == corpus.keys()
    assert {query.id: query.text for query in dataset.queries(split)} == queries
    assert dataset.splits == tuple(sorted(published.splits))

    report = measured(published.name, documents=documents)

    (grid,) = report.grids
    assert (grid.split, grid.queries) == (split, len(qrels))
    # pytrec_eval reads outside its memory where all levels of a query are below -1.
    bounded = {q: {d: max(level, -1) for d, level in known.items()} for q, known in qrels.items()}
    referee = pytrec_eval.RelevanceEvaluator(bounded, set(TREC.values()))
    folder = report.folder / grid.model
    scores = read_query_scores(folder)
    for cut in CUTS:
        run = read_run(folder / "runs" / f"{cut}.trec")
        ranked = {q: dict(zip(r.docids, r.scores, strict=True)) for q, r in run.rankings.items()}
        found = referee.evaluate(ranked)
        for ours, theirs in TREC.items():
            values = {query: held[theirs] for query, held in found.items()}
            mine = dict(zip(scores[ours].query_ids, scores[ours].at(cut), strict=True))
            assert mine == pytest.approx(values, abs=1e-9)
            assert grid.cells[cut][ours] == pytest.approx(np.mean([*values.values()]), abs=1e-9)
    absent = sum(docid not in corpus for known in qrels.values() for docid in known)
    assert f"does not hold the documents of {absent} judgements, which count" in str(report)
    assert published.name in ("arguana", "quora") or "own document" not in str(grid.notes)


def test_cqadupstack_is_the_mean_over_its_twelve_parts(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i, part in enumerate(PARTS):
        folder = place / "data" / "cqadupstack" / part
        write(Published(part, "{}", f"{i}{{}}", metadata={}), folder, documents=24 + i)
    write(SETS[-1], place / "data" / "scifact")

    one_cut = {"layers": (4,), "dims": (32,), "measures": ("nDCG@10",), "runs": "none"}
    report = measured("cqadupstack", "scifact", **one_cut)

    assert [one.grids[0].corpus for one in report.places] == [
        *(f"cqadupstack-{part}" for part in PARTS),
        "scifact",
    ]
    whole, both = report.means
    values = [one.grids[0].cells[Cut(4, 32)]["nDCG@10"] for one in report.places]
    assert whole.corpus == "cqadupstack"
    assert whole.cells[Cut(4, 32)]["nDCG@10"] == pytest.approx(np.mean(values[:12]))
    assert both.cells[Cut(4, 32)]["nDCG@10"] == pytest.approx(
        (np.mean(values[:12]) + values[12]) / 2
    )
    assert read_grid(place / "results" / "cqadupstack" / "model" / "grid.json") == whole
    assert str(report).count("nDCG@10 on cqadupstack,") == 1

    for part in PARTS[2:]:
        (place / "data" / "cqadupstack" / part / "corpus.jsonl").unlink()
        (place / "data" / "cqadupstack" / part / "queries.jsonl").unlink()
    capsys.readouterr()
    fewer = measured("data/cqadupstack", **one_cut)
    assert fewer.means[0].corpus == "cqadupstack-2-of-12"
    assert "2 of 12 parts of cqadupstack are here; absent: gaming, gis" in capsys.readouterr().err


def test_what_the_corpus_lacks_is_neither_trained_on_nor_mined_for(place: Path) -> None:
    folder = write(SETS[-1], place / "data" / "scifact")
    dataset = open_dataset(str(folder))
    lacking = [one for one in dataset.judgements("train") if not dataset.holds(one.document_id)]
    assert lacking

    groups = Groups(dataset, "train", 2, "random", seed=13)

    relevant = {(one.query_id, one.document_id) for one in dataset.judgements("train")}
    drawn = {(groups[i].query.id, groups[i].positive.id) for i in range(len(groups))}
    assert drawn <= relevant
    asked = {"dev": "test", "dev_queries": 20, "dev_documents": 20, "evaluate_steps": 1}
    data = open_training_data(TrainSettings(corpus=str(folder), **asked))
    assert data.quality is not None
    found = data.quality.of(checkpoint.load(place / "model"))
    assert all(0 <= value <= 1 for value in found.values())

    report = mine(MineRequest(place / "groups.jsonl", str(folder), retriever="bm25", negatives=2))

    groups = [json.loads(line) for line in (place / "groups.jsonl").read_text().splitlines()]
    assert report.queries == len(groups) == len(drawn)
    mined = {(one["query_id"], two["docid"]) for one in groups for two in one["positive_passages"]}
    assert mined <= relevant
