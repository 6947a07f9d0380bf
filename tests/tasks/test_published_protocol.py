"""Models of the papers are measured as the papers measure them; referees are other libraries."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import done
from transformers import AutoModel, AutoTokenizer
from world import WORDS, make_model, write_beir

QUERY, DOCUMENT = 6, 12  # tokens


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BEIR folder with enough documents for exits of its index."""
    draw = np.random.default_rng(13)
    texts = [" ".join(draw.choice(WORDS, 8)) for _ in range(80)]
    queries = {f"q{i}": " ".join(text.split()[:3]) for i, text in enumerate(texts[:40])}
    judged = [(name, f"d{name[1:]}", 1) for name in queries]
    documents = [{"_id": f"d{i}", "text": text} for i, text in enumerate(texts)]
    folder = tmp_path_factory.mktemp("published") / "corpus"
    return write_beir(folder, documents, queries, train=judged[:20], test=judged[20:])


def raw_states(model: Path, texts: list[str], length: int, layer: int) -> torch.Tensor:
    """[CLS] of the hidden states of a layer, [N, H], by transformers alone."""
    tokens = AutoTokenizer.from_pretrained(model)(
        texts, padding=True, truncation=True, max_length=length, return_tensors="pt"
    )
    encoder = AutoModel.from_pretrained(model).eval()
    with torch.no_grad():
        inputs = {name: tokens[name] for name in ("input_ids", "attention_mask")}
        states = encoder(**inputs, output_hidden_states=True).hidden_states
    return states[layer][:, 0]


def rows_of(path: Path) -> dict[str, str]:
    rows = map(json.loads, path.read_text().splitlines())
    return {row["_id"]: row["text"] for row in rows}


@pytest.mark.parametrize("config", ["retrieval-paper-plain", "retrieval-paper-mrl"])
def test_shallow_cuts_of_a_plain_model_are_raw_states_of_their_layer(
    config: str, corpus: Path, tiny_backbone: Path, here: Path
) -> None:
    """At L2D16, as the retrieval paper's loop: queries and documents of layer 2, dot products."""
    backbone = make_model(tiny_backbone, here / "backbone")
    settings = (
        f"backbone={backbone}", f"corpus={corpus}", "batch_size=4", "negatives=0", "dtype=fp32",
        f"query_length={QUERY}", f"document_length={DOCUMENT}", "device=cpu", "dims=[]",
        "gradient_checkpointing=false",
    )  # fmt: skip
    words = [word for setting in settings for word in ("--set", setting)]
    done("train", "--config", config, "--out", "model", "--steps", 2, *words)
    judged = (corpus / "qrels" / "test.tsv").read_text().splitlines()[1:]
    names = [line.split("\t")[0] for line in judged]
    texts, asked = rows_of(corpus / "corpus.jsonl"), rows_of(corpus / "queries.jsonl")
    sides = ([asked[name] for name in names], QUERY), (list(texts.values()), DOCUMENT)
    queries, documents = (raw_states(here / "model", *side, 2)[:, :16] for side in sides)
    scores = (queries @ documents.T).numpy()
    ranks = [(row > row[int(name[1:])]).sum() + 1 for name, row in zip(names, scores, strict=True)]
    expected = np.mean([1 / rank if rank <= 10 else 0 for rank in ranks])

    def measured(*words: str) -> float:
        ask = ("--layers", "2", "--dims", "16", "--measure", "RR@10", "--dtype", "fp32", "--json")
        told = done("evaluate", "retrieval", "--corpus", corpus, "--model", "model", *ask, *words)
        return float(json.loads(told)["grids"][0]["cells"]["L2D16"]["RR@10"])

    assert measured() == pytest.approx(expected, abs=1e-6)
    assert measured("--exits", "index") != pytest.approx(expected, abs=0.005)
    assert json.loads((here / "model" / "m2dr.json").read_text())["exits"] == "model"
