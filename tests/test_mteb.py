"""MTEB drives a cut of a model through its own evaluation, on tasks made here."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from world import WORDS, make_model

from m2dr import Encoder
from m2dr.core.requests import (
    MtebRequest,
)
from m2dr.integrations import mteb as adapter
from m2dr.integrations.mteb import evaluate_mteb, run_task
from m2dr.model import checkpoint
from m2dr.model.embed import TextEncoder
from m2dr.tasks.evaluating.figures import read_results

pytest.importorskip("mteb")
pytestmark = pytest.mark.filterwarnings("default")  # mteb's and datasets' own are not ours to mend

MACHINE = {"device": "cpu", "dtype": "fp32"}


def texts(count: int, seed: int) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, size=6)) for _ in range(count)]


PAIRS = {"sentence1": texts(12, 1), "sentence2": texts(12, 2), "score": list(range(12))}


def task_of(kind: str, type_: str, main_score: str, dataset: object) -> object:
    """A task of MTEB whose data is at hand."""
    from mteb import abstasks
    from mteb.abstasks.task_metadata import TaskMetadata

    description = TaskMetadata(
        type=type_, name=f"Tiny{type_}", main_score=main_score, description="made for a test",
        reference=None, dataset={"path": "none", "revision": "none"}, category="t2t",
        eval_splits=["test"], eval_langs=["eng-Latn"], date=None, dialect=None, domains=None,
        task_subtypes=None, license=None, annotations_creators=None, modalities=["text"],
        sample_creation=None, bibtex_citation=None,
    )  # fmt: skip

    class Tiny(getattr(abstasks, kind)):
        metadata = description

        def load_data(self, *_: object, **__: object) -> None:
            self.dataset = dataset
            self.data_loaded = True

    return Tiny()


@pytest.fixture(scope="module")
def lively(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tiny_backbone, tmp_path_factory.mktemp("models") / "lively")


@pytest.fixture
def encoder(lively: Path) -> Encoder:
    return Encoder(str(lively), layer=2, dim=8, **MACHINE)


def retrieval_task(corpus: Path) -> object:
    """The test queries of a corpus, as a task of MTEB."""
    from datasets import Dataset

    rows = {
        name: [json.loads(line) for line in (corpus / f"{name}.jsonl").read_text().splitlines()]
        for name in ("corpus", "queries")
    }
    judged = [
        line.split("\t") for line in (corpus / "qrels" / "test.tsv").read_text().splitlines()[1:]
    ]
    asked = {query for query, _, _ in judged}
    split = {
        "corpus": Dataset.from_list([{"id": r["_id"], "title": r["title"], "text": r["text"]} for r in rows["corpus"]]),
        "queries": Dataset.from_list([{"id": r["_id"], "text": r["text"]} for r in rows["queries"] if r["_id"] in asked]),
        "relevant_docs": {query: {docid: int(level)} for query, docid, level in judged},
        "top_ranked": None,
    }  # fmt: skip
    return task_of("AbsTaskRetrieval", "Retrieval", "ndcg_at_10", {"default": {"test": split}})


def test_documents_of_a_model_trained_for_it_come_from_its_last_layer(
    lively: Path, tmp_path: Path
) -> None:
    whole, tokenizer = checkpoint.load(lively)
    checkpoint.save(whole, tokenizer, replace(whole.card, documents="last"), tmp_path / "fixed")
    encoder, last = (Encoder(str(tmp_path / "fixed"), layer, 8, **MACHINE) for layer in (2, 4))
    batch = [{"text": ["read", "open a file"]}]

    found = encoder.encode(batch, prompt_type="document")

    np.testing.assert_allclose(found, last.encode(batch, prompt_type="query"), atol=1e-6)
    pairs = encoder.encode(batch, task_metadata=sts_task().metadata)  # at the layer of queries
    assert not np.allclose(pairs, found, atol=1e-3)


def test_mteb_takes_it_for_an_encoder_and_knows_the_cut(encoder: Encoder) -> None:
    from mteb.models.models_protocols import EncoderProtocol

    assert isinstance(encoder, EncoderProtocol)
    meta = encoder.mteb_model_meta
    assert meta.name == "m2dr/lively-L2D8"
    assert (meta.embed_dim, meta.similarity_fn_name.value) == (8, encoder.card.similarity)
    assert meta.revision == encoder.card.fingerprint


def sts_task() -> object:
    from datasets import Dataset, DatasetDict

    data = DatasetDict(test=Dataset.from_dict(PAIRS))
    return task_of("AbsTaskSTS", "STS", "cosine_spearman", data)


@pytest.mark.parametrize(("kind", "documents"), [("STS", "same"), ("Retrieval", "last")])
def test_a_grid_has_the_scores_of_its_cuts_and_encodes_each_text_once(
    kind: str, documents: str, lively: Path, tiny_corpus: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    whole, tokenizer = checkpoint.load(lively)
    card = replace(whole.card, documents=documents, query_prefix="open ")
    model = tmp_path / "model"
    checkpoint.save(whole, tokenizer, card, model)
    task = sts_task() if kind == "STS" else retrieval_task(tiny_corpus)
    monkeypatch.setattr(adapter, "_task", lambda _: task)
    encoded: list[int] = []
    embed = TextEncoder.of_tokens

    def counting(encoder: object, rows: list[list[int]], *rest: object) -> np.ndarray:
        encoded.append(len(rows))
        return embed(encoder, rows, *rest)

    monkeypatch.setattr(TextEncoder, "of_tokens", counting)
    asked = MtebRequest(("Tiny",), str(model), (2, 4), (8, 32), out=tmp_path / "out", **MACHINE)

    report = evaluate_mteb(asked)

    assert sum(encoded) == (24 if kind == "STS" else 40 + 8)
    (grid,) = report.grids
    assert [str(cut) for cut in grid.cuts] == ["L2D8", "L2D32", "L4D8", "L4D32"]
    (read,) = read_results([tmp_path / "out"])
    assert read.grid == grid
    for cut, (score,) in report.scores.items():
        single = Encoder(str(model), cut.layer, cut.dim, **MACHINE)
        (alone,) = run_task(single, task, tmp_path / "alone")
        assert score == replace(alone, value=pytest.approx(alone.value, abs=1e-5))
        assert grid.cells[cut] == {score.measure: score.value}
        mine, theirs = (
            json.loads((folder / f"Tiny{kind}.json").read_text())["scores"]["test"][0]
            for folder in (report.folder / str(cut), tmp_path / "alone")
        )
        assert mine["main_score"] == pytest.approx(theirs["main_score"], abs=1e-5)
        assert mine.keys() == theirs.keys()
    assert len({score.value for (score,) in report.scores.values()}) > 1


@pytest.fixture(scope="module")
def prompted(lively: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with prompts for a task, a type of tasks, and a side of a type."""
    folder = tmp_path_factory.mktemp("prompted") / "model"
    whole, tokenizer = checkpoint.load(lively)
    card = replace(whole.card, query_prefix="the ", document_prefix="a ", query_length=32)
    checkpoint.save(whole, tokenizer, replace(card, document_length=32), folder)
    path = folder / "config_sentence_transformers.json"
    settings = json.loads(path.read_text())
    settings["prompts"] |= {
        "STS12": "open ", "Retrieval-query": "read ", "Classification": "class ",
    }  # fmt: skip
    path.write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("side", ["query", "document"])
@pytest.mark.parametrize(
    ("type_", "name"),
    [
        ("STS", "STS12"),
        ("STS", "STS13"),
        ("Retrieval", "NFCorpus"),
        ("Classification", "Banking77Classification"),
    ],
)
def test_prompts_of_the_model_are_those_that_mteb_chooses(
    type_: str, name: str, side: str, prompted: Path
) -> None:
    from datasets import Dataset
    from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
    from mteb.types import PromptType
    from torch.utils.data import DataLoader

    task = sts_task().metadata.model_copy(update={"type": type_, "name": name})
    told = {"task_metadata": task, "prompt_type": PromptType(side)}
    inputs = DataLoader(Dataset.from_dict({"text": ["line of text", "file"]}), batch_size=2)
    referee = SentenceTransformerEncoderWrapper(str(prompted), device="cpu")

    mine = Encoder(str(prompted), **MACHINE).encode(inputs, **told)
    theirs = referee.encode(inputs, hf_split="test", hf_subset="default", **told)

    np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_scores_of_the_sentence_transformer_it_came_from(
    prompted: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    import mteb
    from sentence_transformers import SentenceTransformer

    task, referee = retrieval_task(tiny_corpus), SentenceTransformer(str(prompted), device="cpu")
    expected = mteb.evaluate(referee, task, cache=None, co2_tracker=False).task_results[0]

    (score,) = run_task(Encoder.from_pretrained(referee, **MACHINE), task, tmp_path)

    (subset,) = expected.scores["test"]
    assert score.value == pytest.approx(subset["main_score"], abs=1e-4)
