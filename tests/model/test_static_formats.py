"""Layer 0 in other tools: their cosines are those of m2dr."""

import json
import shutil
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from click.testing import CliRunner
from huggingface_hub import ModelCard
from numpy.typing import NDArray
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from world import TEXT, make_fitted, make_model

from m2dr.cli import main
from m2dr.core.errors import UserError
from m2dr.model.hub import ASIDE, STATIC
from m2dr.model.static import Dtype, open_static, read_static, write_static
from m2dr.model.static_formats import FORMATS, export_static

TEXTS = [
    "Read a FILE",
    "close the module",
    "a text of numbers [SEP] list",
    TEXT,
    "open",
    "path " * 50,
]
DTYPES = get_args(Dtype)
ACCURACY = {"fp32": 1e-6, "fp16": 1e-5, "int8": 1e-3}  # of a cosine
PREFIX = 'Ask: "'

Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    folder = tmp_path_factory.mktemp("models")
    asked = {"query_length": 9, "document_length": 20, "similarity": "cosine"}
    return make_fitted(make_model(tiny_backbone, folder / "model", **asked), folder / "fitted")


@pytest.fixture
def prefixed(tmp_path: Path, tiny_backbone: Path) -> Path:
    """A model that puts something before each query and compares by dot products."""
    asked = {"query_prefix": PREFIX, "query_length": 12, "similarity": "dot"}
    model = make_model(tiny_backbone, tmp_path / "model", **asked)
    return make_fitted(model, tmp_path / "prefixed")


def cosines(ours: NDArray[np.float32], theirs: NDArray[np.generic]) -> Floats:
    left, right = ours.astype(np.float64), theirs.astype(np.float64)
    return (left * right).sum(axis=1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)


def by_model2vec(folder: Path, texts: list[str]) -> Floats:
    """What StaticModel.encode of model2vec 0.10 gives, read from the folder as it reads it."""
    held, config = (
        load_file(folder / "model.safetensors"),
        json.loads((folder / "config.json").read_text()),
    )
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    assert "mapping" in held or len(held["embeddings"]) == len(tokens)  # else it refuses
    assert str(held["embeddings"].dtype) == config["embedding_dtype"]
    tokenizer.no_padding()
    tokenizer.enable_truncation(config["max_length"])
    unknown = tokenizer.token_to_id(tokenizer.model.unk_token)
    characters = config["max_length"] * int(np.median([len(token) for token, _ in tokens]))
    cut = [text[:characters] for text in texts]
    found = []
    for encoding in tokenizer.encode_batch_fast(cut, add_special_tokens=False):
        ids = [number for number in encoding.ids if number != unknown]
        rows = held["embeddings"][held["mapping"][ids] if "mapping" in held else ids]
        weights = held["weights"][ids][:, None] if "weights" in held else 1
        found.append((rows.astype(np.float64) * weights).mean(axis=0))
    vectors = np.stack(found)
    return (
        vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if config["normalize"] else vectors
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORMATS)
def test_sentence_transformers_gives_the_cosines_of_m2dr(
    name: str, dtype: str, fitted: Path, tmp_path: Path
) -> None:
    written = export_static(fitted, tmp_path / "out", name, 8, dtype)

    model = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    ours = open_static(fitted).embed(TEXTS, dim=8)
    found = cosines(ours, model.encode(TEXTS))
    np.testing.assert_allclose(found, 1, rtol=0, atol=ACCURACY[dtype])
    assert (written.tokens, written.dim, written.dtype, written.notes) == (64, 8, dtype, ())
    assert model.similarity_fn_name == "cosine"
    assert model.get_embedding_dimension() == 8


@pytest.mark.parametrize("dtype", DTYPES)
def test_model2vec_gives_the_cosines_of_m2dr(dtype: str, fitted: Path, tmp_path: Path) -> None:
    export_static(fitted, tmp_path / "out", "model2vec", dtype=dtype)

    # model2vec cuts characters before tokens: 21 of them here, which hold more than 7 tokens.
    texts = [*TEXTS[:3], "open", "a b c d e f g h i j k l m n o p"]

    theirs = by_model2vec(tmp_path / "out", texts)

    ours = open_static(fitted).embed(texts)
    np.testing.assert_allclose(cosines(ours, theirs), 1, rtol=0, atol=ACCURACY[dtype])
    np.testing.assert_allclose(np.linalg.norm(theirs, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
@pytest.mark.parametrize("name", FORMATS)
def test_special_tokens_count_nothing(name: str, dtype: str, fitted: Path, tmp_path: Path) -> None:
    export_static(fitted, tmp_path / "out", name, dtype=dtype)

    held = load_file(tmp_path / "out" / "model.safetensors")

    rows = held.get("embedding.weight", held.get("embeddings"))
    assert rows is not None
    assert not rows[:4].any()
    assert (np.abs(rows[4:]).max(axis=1) > 0).all()
    if "weights" in held:
        assert not held["weights"][:4].any()


def test_a_prompt_travels_where_there_are_prompts_and_is_told_elsewhere(
    prefixed: Path, tmp_path: Path
) -> None:
    ours = open_static(prefixed).embed(TEXTS)

    there = export_static(prefixed, tmp_path / "st", "sentence-transformers")
    told = export_static(prefixed, tmp_path / "m2v", "model2vec")

    model = SentenceTransformer(str(tmp_path / "st"), device="cpu")
    np.testing.assert_allclose(cosines(ours, model.encode_query(TEXTS)), 1, atol=1e-6)
    assert (there.notes, model.similarity_fn_name) == ((), "dot")
    by_hand = by_model2vec(tmp_path / "m2v", [PREFIX + text for text in TEXTS])
    np.testing.assert_allclose(cosines(ours, by_hand), 1, atol=1e-6)
    assert told.notes == (
        f"model2vec puts nothing before a text: put {PREFIX!r} before each query yourself.",
    )


def test_a_dot_product_ranks_as_that_of_m2dr(prefixed: Path, tmp_path: Path) -> None:
    export_static(prefixed, tmp_path / "out", "sentence-transformers")
    documents = np.random.default_rng(3).standard_normal((99, 32))
    model = SentenceTransformer(str(tmp_path / "out"), device="cpu")

    theirs = model.encode_query(TEXTS).astype(np.float64) @ documents.T

    ours = open_static(prefixed).embed(TEXTS).astype(np.float64) @ documents.T
    np.testing.assert_array_equal(np.argsort(theirs), np.argsort(ours))


def test_ids_that_no_token_has_are_left_a_row(fitted: Path, tmp_path: Path) -> None:
    """As the backbones have them whose vocabulary is rounded up, or has gaps."""
    exits = tmp_path / "exits"
    exits.mkdir()
    table = read_static(fitted)
    more = np.concatenate([table.rows(range(64)), np.ones((6, 32), np.float32)])
    write_static(exits, more, np.concatenate([table.weights, np.ones(6, np.float32)]))
    tokenizer = json.loads((fitted / "tokenizer.json").read_text())
    del tokenizer["model"]["vocab"]["z"]
    (exits / "tokenizer.json").write_text(json.dumps(tokenizer))
    texts = ["Read a FILE", "close the module"]

    for name in FORMATS:
        assert export_static(fitted, tmp_path / name, name, exits=exits).tokens == 64

    ours = open_static(fitted, exits).embed(texts)
    np.testing.assert_allclose(
        cosines(ours, by_model2vec(tmp_path / "model2vec", texts)), 1, atol=1e-6
    )
    for name in FORMATS:
        theirs = SentenceTransformer(str(tmp_path / name), device="cpu").encode(texts)
        np.testing.assert_allclose(cosines(ours, theirs), 1, atol=1e-6)


def run(*words: str | Path) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["export", *map(str, words)])
    return done.exit_code, done.stdout, done.stderr


def test_layer_0_is_written_for_sentence_transformers_unless_another_tool_is_named(
    fitted: Path, prefixed: Path, tmp_path: Path
) -> None:
    words = ("--model", fitted, "--layers", 0, "--out", tmp_path / "out")
    assert run(*words)[:2] == (
        0,
        f"Layer 0 for sentence-transformers: 64 tokens, 32 dims, fp32; {tmp_path / 'out'}\n",
    )
    code, told, beside = run(
        "--model", prefixed, "--layers", 0, "--out", tmp_path / "m2v", "--format", "model2vec",
        "--dim", 16, "--dtype", "int8",
    )  # fmt: skip
    assert (code, told) == (
        0,
        f"Layer 0 for model2vec: 64 tokens, 16 dims, int8; {tmp_path / 'm2v'}\n",
    )
    assert beside.startswith("model2vec puts nothing before a text")
    code, _, told = run(*words)
    assert (code, "is not empty; choose another --out." in told) == (2, True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--layers", 0, "--format", "model2vek"), "There is no format 'model2vek' for layer 0. Did you mean model2vec?"),
        (("--layers", 0, "--dtype", "fp8"), "There is no dtype 'fp8' for layer 0. Known: fp16, fp32, int8."),
        (("--layers", 0, "--dim", 33), "Dim 33 was asked for; layer 0 has 32"),
        (("--layers", 2, "--dtype", "fp16"), "--dtype fp16 of an export is for layer 0, and layer 2 was asked for"),
        (("--cut", "L4D8", "--format", "model2vec"), "--format model2vec of an export is for layer 0"),
        (("--cut", "L0D8", "--format", "onnx"), "Layer 0 is a table that runs no layer, so it needs no graph"),
        (("--cut", "L0D8", "--int8"), "and --int8 was asked for. Take --format sentence-transformers"),
        (("--cut", "L2D8", "--int8"), "--int8 was asked for and is of graphs"),
        (("--cut", "L2D8", "--layers", 2), "--cut L2D8 names a layer and a dim"),
        (("--dim", 8), "No cut was named, by --cut or by '--layers'"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported_is_refused(
    words: tuple[object, ...], sentence: str, fitted: Path, tmp_path: Path
) -> None:
    code, _, told = run("--model", fitted, "--out", tmp_path / "out", *map(str, words))

    assert (code, sentence in told) == (2, True), told
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_not_fitted_has_no_table_to_export(fitted: Path, tmp_path: Path) -> None:
    plain = fitted.parent / "model"

    with pytest.raises(UserError, match=f"has no {STATIC}.* Fit it with: m2dr fit"):
        export_static(plain, tmp_path / "out", "model2vec")


def test_an_export_that_was_stopped_is_begun_again(
    fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("m2dr.model.static_formats.write_static_readme", interrupt)
        with pytest.raises(KeyboardInterrupt):
            export_static(fitted, out, "model2vec")
    assert not list(out.glob("**/*"))
    shutil.copytree(fitted, out / ASIDE)  # as of a machine that lost its power

    export_static(fitted, out, "model2vec")

    names = {path.name for path in out.iterdir()}
    assert names == {
        "README.md",
        "config.json",
        "model.safetensors",
        "modules.json",
        "tokenizer.json",
    }


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", FORMATS)
def test_the_model_card_names_the_tool_and_the_full_model(
    name: str, prefixed: Path, tmp_path: Path
) -> None:
    export_static(prefixed, tmp_path / "out", name, 16)

    card = ModelCard.load(tmp_path / "out" / "README.md")

    assert card.data.library_name == name
    told = json.loads(card.text.split("```json")[1].split("```")[0])
    assert told["query_prefix"] == PREFIX
    assert open_static(prefixed).card.fingerprint in card.text
