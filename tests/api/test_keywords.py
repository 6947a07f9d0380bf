"""Names of arguments that other libraries use are understood, and unknown ones refused by name."""

import inspect
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from world import WORDS, make_model

import m2dr
from m2dr.api.text_encoder import TextEncoder
from m2dr.core.errors import UserError
from m2dr.core.trainings import read_train_settings

TEXTS = [" ".join(WORDS[start : start + 3]) for start in range(5)]
CLOSE = {"atol": 1e-5, "rtol": 0}


@pytest.fixture(scope="module", params=["cosine", "dot"])
def folder(
    request: pytest.FixtureRequest, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return make_model(
        tiny_backbone, tmp_path_factory.mktemp("keywords") / request.param,
        similarity=request.param, query_prefix="open ", document_prefix="text ",
    )  # fmt: skip


@pytest.fixture(scope="module")
def model(folder: Path) -> TextEncoder:
    return m2dr.Encoder.from_pretrained(folder, dtype="fp32")


@pytest.mark.parametrize(
    "how",
    [
        {"normalize_embeddings": True},
        {"normalize_embeddings": True, "truncate_dim": 8},
        {"batch_size": 2, "show_progress_bar": None, "convert_to_numpy": True},
        {"prompt_name": "document", "output_value": "sentence_embedding", "device": None},
    ],
    ids=lambda how: " ".join(how),
)
def test_arguments_mean_what_they_mean_in_sentence_transformers(
    how: dict[str, object], folder: Path, model: TextEncoder
) -> None:
    referee = SentenceTransformer(str(folder), device="cpu")

    for name in ("encode_query", "encode_document"):
        if how.get("prompt_name") and name == "encode_query":
            continue
        found = getattr(model, name)(TEXTS, **how)
        np.testing.assert_allclose(found, getattr(referee, name)(TEXTS, **how), **CLOSE)


def test_a_prompt_is_named_as_in_sentence_transformers(folder: Path, model: TextEncoder) -> None:
    referee = SentenceTransformer(str(folder), device="cpu")

    for name in ("query", "document"):
        found = model.encode(sentences=TEXTS, prompt_name=name)
        np.testing.assert_allclose(found, referee.encode(TEXTS, prompt_name=name), **CLOSE)


def test_tensors_hold_what_arrays_hold(model: TextEncoder) -> None:
    vectors = model.encode(TEXTS, layer=[2, 4])
    tensors = model.encode(TEXTS, layer=[2, 4], convert_to_tensor=True)

    for layer, tensor in tensors.items():
        torch.testing.assert_close(tensor, torch.from_numpy(vectors[layer]), atol=0, rtol=0)
    assert isinstance(model.encode_query("a list", convert_to_tensor=True), torch.Tensor)


def test_a_model_is_opened_by_the_names_of_sentence_transformers(folder: Path) -> None:
    opened = m2dr.Encoder.from_pretrained(
        model_name_or_path=folder, truncate_dim=8, backend="torch", torch_dtype=torch.float32,
        device=torch.device("cpu"), trust_remote_code=False, revision=None, token=None,
    )  # fmt: skip

    assert (opened.dim, opened.dtype, opened.device) == (8, "fp32", "cpu")


REFUSED: list[tuple[Callable[[TextEncoder], object], str]] = [
    (lambda m: m.encode(TEXTS, batchsize=2), "encode has no argument batchsize. Did you mean"),
    (lambda m: m.encode(TEXTS, prompt="x "), "a document of this model has the prompt 'text '"),
    (lambda m: m.encode_queries(TEXTS, prompt_name="passage"), "Call encode_documents for that"),
    (lambda m: m.encode(TEXTS, prompt_name="STS"), "has prompts of queries and of documents alone"),
    (lambda m: m.encode(TEXTS, truncate_dim=64), "truncate_dim = 64 was asked for; this encoder"),
    (lambda m: m.encode(TEXTS, precision="int8"), r"m2dr\.Index\.build\(\.\.\., engines="),
    (lambda m: m.encode(TEXTS, convert_to_numpy=False), "convert_to_tensor=True for a tensor"),
    (lambda m: m.encode(TEXTS, output_value="token_embeddings"), "one vector per text"),
    (lambda m: m.encode(TEXTS, device="cuda"), r"Give device= to m2dr\.Encoder\.from_pretrained"),
    (lambda m: m.encode(TEXTS, batch_size=2, tokens_per_batch=2), "both say how large a batch"),
    (lambda m: m.encode(), "encode needs texts. It takes texts"),
    (lambda m: m.encode(TEXTS, 4), "encode takes texts without a name, and 2 were given"),
    (lambda m: m.encode(TEXTS, texts=TEXTS), "encode was given texts twice"),
    (lambda m: m.encode(texts=TEXTS, sentences=TEXTS), "which mean the same. Give one of them"),
    (lambda _: m2dr.Encoder("minilm"), r"Open a model by m2dr\.Encoder\.from_pretrained\('minilm"),
    (
        lambda _: m2dr.Encoder.from_pretrained("minilm", trust_remote_code=True),
        "trust_remote_code = True was asked for. m2dr never runs the code of a model",
    ),
    (lambda _: m2dr.train("pydocs"), r"m2dr\.train takes named arguments alone, and 1 was given"),
    (lambda _: m2dr.train(batch_sice=2), "unknown setting 'batch_sice'"),
    (lambda _: m2dr.train(batch_size=2, batch_queries=3), "is given twice"),
    (lambda _: m2dr.evaluate("minilm"), r"m2dr\.evaluate needs corpus"),
    (lambda m: m2dr.Index.build(m, TEXTS, nam="x"), r"has no argument nam\. Did you mean name"),
]


@pytest.mark.parametrize(("call", "sentence"), REFUSED, ids=[one for _, one in REFUSED])
def test_an_argument_that_cannot_be_meant_is_refused_by_name(
    call: Callable[[TextEncoder], object], sentence: str, model: TextEncoder
) -> None:
    with pytest.raises(UserError, match=sentence):
        call(model)


PUBLIC = [
    m2dr.Encoder.from_pretrained, TextEncoder.encode, TextEncoder.encode_queries,
    TextEncoder.encode_documents, TextEncoder.similarity, TextEncoder.cut,
    TextEncoder.save_pretrained, TextEncoder.push_to_hub, m2dr.Index.build, m2dr.OpenIndex.search,
    m2dr.OpenIndex.add, m2dr.OpenIndex.delete, m2dr.open_index, m2dr.evaluate,
]  # fmt: skip


@given(name=st.from_regex(r"[a-z][a-z_]{0,14}", fullmatch=True), function=st.sampled_from(PUBLIC))
def test_no_unknown_name_is_answered_with_a_type_error(
    name: str, function: Callable[..., object]
) -> None:
    if name in inspect.signature(function).parameters:
        return
    with pytest.raises(UserError):  # also of names that are understood: other arguments are lacking
        function(**{name: object()})


@pytest.mark.parametrize("words", [["batch_size=8"], ["batch_queries=8"]])
def test_a_setting_is_also_known_as_the_command_line_spells_it(
    words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "t.toml").write_text(words[0].replace("=", " = "))

    for asked in (
        read_train_settings(None, words),
        read_train_settings(tmp_path / "t.toml"),
        read_train_settings(None, (), {words[0].partition("=")[0]: 8}),
    ):
        assert asked.batch_queries == 8
