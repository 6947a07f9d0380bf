"""Models of the papers are measured as the papers measure them; referees are other libraries."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import done, refused
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer
from world import WORDS, make_model, write_beir

from m2dr import Encoder

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
    """At L2D16, as the retrieval paper's loop: queries and documents of layer 2, dot products.

    The states of all texts have so much in common that float16 would exchange documents.
    """
    plain = shutil.copytree(tiny_backbone, here / "plain")
    weights = load_file(plain / "model.safetensors")
    weights["encoder.layer.1.output.LayerNorm.bias"] += 40
    save_file(weights, plain / "model.safetensors", {"format": "pt"})
    backbone = make_model(plain, here / "backbone")
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

    rounded = queries @ documents.half().float().T
    assert (rounded.argsort(dim=1) != (queries @ documents.T).argsort(dim=1)).any()
    assert measured() == pytest.approx(expected, abs=1e-6)
    assert measured("--exits", "index") != pytest.approx(expected, abs=0.005)
    assert json.loads((here / "model" / "m2dr.json").read_text())["exits"] == "model"


def referee(folder: Path, form: str, texts: list[str], layer: int = 4) -> np.ndarray:
    """Vectors as the card of each form computes them: transformers, or sentence-transformers."""
    if form == "sentence-transformers":
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(str(folder), device="cpu").encode(texts)
    tokens = AutoTokenizer.from_pretrained(folder)(
        texts, padding=True, truncation=True, max_length=16, return_tensors="pt"
    )
    mask = tokens["attention_mask"]
    with torch.no_grad():
        encoder = AutoModel.from_pretrained(folder).eval()
        found = encoder(tokens["input_ids"], mask, output_hidden_states=True)
    states = found.hidden_states[layer]
    mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    first = states[:, 0]
    return {"cls": first, "mean": mean, "cls_avg": (first + mean) / 2}[form].numpy()


@pytest.mark.parametrize("form", ["cls", "mean", "cls_avg", "sentence-transformers"])
def test_a_checkpoint_of_each_form_gives_the_vectors_of_its_card(
    form: str, tiny_backbone: Path, here: Path
) -> None:
    """AnglE's plain folders by cls_avg, those of Starbucks by cls, UAE-Large's with modules."""
    from sentence_transformers import SentenceTransformer

    texts = [" ".join(WORDS[i : i + 2 + i % 4]) for i in range(12)]
    model, card = tiny_backbone, {}
    if form == "sentence-transformers":
        model = here / "theirs"
        SentenceTransformer(str(tiny_backbone), device="cpu").save(str(model))
    else:
        asked = ("--pooling", form, "--similarity", "cosine", "--document-length", "16")
        done("export", "--model", tiny_backbone, "--query-length", "16", *asked, "--out", "adopted")
        card = json.loads((here / "adopted" / "m2dr.json").read_text())
    expected = referee(model, form, texts)
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    opened = Encoder("adopted" if card else str(model), device="cpu", dtype="fp32")

    np.testing.assert_allclose(
        opened.encode_documents(texts, normalize_embeddings=True), unit, atol=1e-5
    )
    if card:
        np.testing.assert_allclose(
            SentenceTransformer("adopted", device="cpu").encode(texts), unit, atol=1e-5
        )
        shallow = referee(model, form, texts, 2)[:, :8]
        shallow /= np.linalg.norm(shallow, axis=1, keepdims=True)
        options = {"layer": 2, "truncate_dim": 8, "normalize_embeddings": True}
        np.testing.assert_allclose(opened.encode_documents(texts, **options), shallow, atol=1e-5)
        assert card["similarity"] == "cosine"
        told = refused("export", "--model", "adopted", "--pooling", "mean", "--out", "again")
        assert "has an m2dr.json" in told
