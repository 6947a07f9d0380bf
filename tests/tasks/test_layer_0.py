"""Layer 0 of a fitted model, through every command that names a layer."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import done, run
from numpy.typing import NDArray

from m2dr.evaluation.runs import read_run
from m2dr.index.folder import IndexFolder
from m2dr.index.store import open_store
from m2dr.model.checkpoint import read_card
from m2dr.model.words import WordTable

TEXTS = ["read a file", "open the list of numbers", "close"]
Floats = NDArray[np.float64]


def cosines(queries: Floats, documents: NDArray[np.generic], dim: int) -> Floats:
    left, right = queries[:, :dim], documents.astype(np.float64)[:, :dim]
    left = left / np.linalg.norm(left, axis=1, keepdims=True)
    return left @ (right / np.linalg.norm(right, axis=1, keepdims=True)).T


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_fitted: Path, tiny_corpus: Path) -> Path:
    """A folder with a fitted model, a corpus, and documents of layers 0 and 4 at dims 8 and 32."""
    place = tmp_path_factory.mktemp("place")
    shutil.copytree(tiny_fitted, place / "model")
    shutil.copytree(tiny_corpus, place / "tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        done("index", "corpus", *ASKED, "--layer", "0,4", "--dim", "8", "--dim", "32")
    return place


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


ASKED = ("--corpus", "tiny", "--model", "model", "--dtype", "fp32")


def store_of(place: Path, layer: int) -> Path:
    fingerprint = read_card(place / "model").fingerprint
    return place / "indexes" / "tiny" / fingerprint[:12] / f"layer-{layer:02d}"


def test_documents_of_layer_0_are_sums_of_words(place: Path) -> None:
    store = open_store(store_of(place, 0))
    lines = map(json.loads, (place / "tiny" / "corpus.jsonl").read_text().splitlines())
    texts = [f"{line['title']} {line['text']}" for line in lines]

    expected = WordTable.open(place / "model").embed(texts)

    fingerprint = read_card("model").fingerprint
    assert IndexFolder.of(place / "indexes", "tiny", fingerprint).layers == (0, 4)
    np.testing.assert_allclose(store.rows(range(40)), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.usefixtures("dtype")
@pytest.mark.parametrize("documents", [0, 4])
@pytest.mark.parametrize("dim", [8, 32])
def test_queries_of_layer_0_rank_documents_of_any_layer_as_numpy_does(
    documents: int, dim: int, place: Path
) -> None:
    topics = place / "topics.tsv"
    topics.write_text("".join(f"{n}\t{text}\n" for n, text in enumerate(TEXTS)))
    store = open_store(store_of(place, documents))
    expected = cosines(
        WordTable.open(place / "model").embed(TEXTS).astype(float), store.rows(range(40)), dim
    )

    told = run(
        "search", *ASKED[:4], "--query-layer", "0", "--document-layer", documents, "--dim", dim,
        "--exits", "model", "--topics", topics, "--run", "found.trec", "-k", "40",
    ).output  # fmt: skip

    assert f"(layer {documents}), queries at L0D{dim} of model" in told
    assert ("Documents come from layer 0" in told) == (documents == 0)
    found = read_run(place / "found.trec").rankings
    for row, scores in enumerate(expected):
        ranking = found[str(row)]
        places = [store.docids.index(docid) for docid in ranking.docids]
        np.testing.assert_allclose(ranking.scores, scores[places], atol=2e-6)
