"""What a model folder tells people and other tools of itself."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from huggingface_hub import ModelCard, constants
from sentence_transformers import SentenceTransformer
from transformers import AutoModel
from world import load_plain, make_fitted

from m2dr.cli import main
from m2dr.core.records import Cut
from m2dr.core.trainings import read_train_settings
from m2dr.model.backbones import BACKBONES
from m2dr.model.checkpoint import export_cut, load, save
from m2dr.model.folder import read_card
from m2dr.tasks.encode_texts import embed_texts
from m2dr.tasks.encoder import Encoder
from m2dr.tasks.train import train

TEXTS = ["open the file", "a list of numbers and a class of text and a line of words"]
HOSTILE = "a/b\n---\nlicense: mine\n```\n# not a title | x"


@pytest.fixture
def saved(backbone: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """A model folder with fields of its card."""

    def made(model_type: str = "bert", **card: object) -> Path:
        encoder, tokenizer = load(backbone(model_type))
        encoder.card = replace(encoder.card, **card)
        save(encoder, tokenizer, encoder.card, tmp_path / "model")
        return tmp_path / "model"

    return made


@pytest.mark.parametrize("model_type", BACKBONES)
def test_no_tool_reports_a_weight_that_is_missing_or_not_its_own(
    model_type: str, saved: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = saved(model_type)
    export_cut(folder, 2, tmp_path / "cut")
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_info()
    monkeypatch.setattr(transformers.logging.get_logger("transformers"), "propagate", True)
    try:
        for each in (folder, tmp_path / "cut"):
            _, report = load_plain(each, output_loading_info=True)
            assert not any(report.values()), report
            SentenceTransformer(str(each), device="cpu")
    finally:
        transformers.logging.set_verbosity(before)

    told = capfd.readouterr().err + caplog.text
    assert "model.safetensors" in told or "loading" in told.lower()  # the logs were heard at all
    assert "MISSING" not in told
    assert "LOAD REPORT" not in told.upper()
    assert read_card(folder).fingerprint != read_card(tmp_path / "cut").fingerprint


def test_the_pooler_that_transformers_wants_says_what_the_first_token_says(
    saved: Callable[..., Path],
) -> None:
    ids = torch.tensor([[2, 7, 9, 3]])

    found = AutoModel.from_pretrained(saved())(input_ids=ids)

    expected = torch.tanh(found.last_hidden_state[:, 0])
    torch.testing.assert_close(found.pooler_output, expected)


def test_the_card_of_a_folder_is_read_by_the_hub(
    saved: Callable[..., Path], tmp_path: Path
) -> None:
    cuts = (Cut(2, 8), Cut(2, 32), Cut(4, 8), Cut(4, 32))
    folder = saved(backbone="minilm", variant="full-dim", cuts=cuts, query_length=9)
    export_cut(folder, 2, tmp_path / "cut")

    for each in (folder, tmp_path / "cut"):
        card = ModelCard.load(each / "README.md")
        assert card.data.library_name == "sentence-transformers"
        assert card.data.base_model == "sentence-transformers/all-MiniLM-L6-v2"
        assert {"m2dr", "sentence-transformers"} <= set(card.data.tags)
        assert "| 2 | 8, 32 |" in card.text
        assert "cuts a query at 256 tokens" in card.text
        assert "where m2dr cuts it at 9" in card.text
        assert "truncate_dim=8" in card.text
    assert "| 4 | 8, 32 |" in ModelCard.load(folder / "README.md").text
    assert "| 4 | 8, 32 |" not in ModelCard.load(tmp_path / "cut" / "README.md").text


def test_a_length_for_both_sides_needs_no_word(saved: Callable[..., Path]) -> None:
    folder = saved(query_length=64, document_length=64)

    assert "cuts a query" not in (folder / "README.md").read_text()


def test_what_people_wrote_cannot_break_the_card(saved: Callable[..., Path]) -> None:
    folder = saved(backbone=HOSTILE, query_prefix=HOSTILE, document_prefix="| `x` ")

    card = ModelCard.load(folder / "README.md")

    assert set(card.data.to_dict()) == {"library_name", "pipeline_tag", "tags"}
    assert card.text.count("```") % 2 == 0
    assert not re.search("^# not a title|^license", card.text, re.MULTILINE)
    (told,) = re.findall(r"```json\n(.*?)\n```", card.text, re.DOTALL)
    assert json.loads(told)["query_prefix"] == HOSTILE


def test_a_backbone_of_the_hub_is_named_and_a_folder_is_not(
    saved: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    fetched = tmp_path / "hub" / "models--someone--model"
    (fetched / "snapshots" / "abc").mkdir(parents=True)
    (fetched / "snapshots" / "abc" / "config.json").write_text("{}")
    (fetched / "refs").mkdir()
    (fetched / "refs" / "main").write_text("abc")

    for name, expected in (("someone/model", "someone/model"), ("models/full-dim", None)):
        card = ModelCard.load(saved(backbone=name) / "README.md")
        assert card.data.base_model == expected


@pytest.mark.parametrize("documents", ["same", "last"])
def test_the_commands_of_the_card_run(
    documents: str, saved: Callable[..., Path], tiny_corpus: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = saved(cuts=(Cut(2, 8), Cut(4, 8), Cut(4, 32)), documents=documents)
    monkeypatch.chdir(tmp_path)
    text = (folder / "README.md").read_text()

    lines = re.findall(r"(m2dr (?:index corpus|search|export) .*?)(?=$|`)", text, re.MULTILINE)

    assert len(lines) == (3 if documents == "same" else 2)  # its documents need all layers
    for line in lines:
        words = line.replace("CORPUS", str(tiny_corpus)).replace("FOLDER", str(folder))
        told = CliRunner().invoke(main, shlex.split(words)[1:])
        assert told.exit_code == 0, told.output
        assert "was not trained" not in told.output


@pytest.mark.parametrize("documents", ["same", "last"])
def test_the_card_of_a_fitted_model_shows_layer_0_and_runs(
    documents: str, tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = make_fitted(tiny_backbone, tmp_path / "fitted", documents=documents)
    monkeypatch.chdir(tmp_path)
    text = (folder / "README.md").read_text()

    assert "the cuts below were fitted" in text
    assert "| 0 | 8, 16, 32 |" in text
    assert "`--query-layer 0` runs no transformer layer" in text
    lines = re.findall(r"^(m2dr .*)$", text, re.MULTILINE)
    assert len(lines) == 2
    for line in [*lines, lines[1].replace("--query-layer 2", "--query-layer 0")]:
        words = line.replace("CORPUS", str(tiny_corpus)).replace("FOLDER", str(folder))
        told = CliRunner().invoke(main, shlex.split(words)[1:])
        assert told.exit_code == 0, told.output
        assert "Warning" not in told.output
    assert "queries at L0D16" in told.output


def test_the_card_of_a_fitted_cut_claims_nothing_of_sentence_transformers(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    folder = make_fitted(tiny_backbone, tmp_path / "fitted", documents="same")

    export_cut(folder, 2, tmp_path / "cut")

    text = (tmp_path / "cut" / "README.md").read_text()
    assert "from sentence_transformers" in (folder / "README.md").read_text()
    assert "from sentence_transformers" not in text
    assert "| 0 | 8, 16, 32 |" in text
    assert "| 3 |" not in text


def run_python(folder: Path) -> list[dict[str, object]]:
    """The names that each block of Python in a card leaves."""
    blocks = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    found = []
    for block in blocks:
        found.append({})
        exec(block.replace("FOLDER", str(folder)), found[-1])  # it is what is tested
    return found


@pytest.mark.parametrize(
    ("model_type", "pooling", "similarity"),
    [
        *((model_type, "mean", "dot") for model_type in BACKBONES),
        ("bert", "cls", "cosine"),
        ("qwen3", "last", "cosine"),
    ],
)
def test_the_python_of_the_card_gives_one_cut_in_every_tool(
    model_type: str, pooling: str, similarity: str, saved: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("M2DR_DTYPE", "fp32")
    cuts = (Cut(2, 8), Cut(4, 8), Cut(4, 32))
    prefix = "read 'a\n\"```\n{path}: \U0001f600 "
    own = {"pooling": pooling, "similarity": similarity, "query_length": 40}
    folder = saved(model_type, cuts=cuts, query_prefix=prefix, document_prefix="text: ", **own)

    ours, theirs, states = run_python(folder)

    assert np.shape(ours["scores"]) == np.shape(theirs["scores"]) == (1, 1)
    np.testing.assert_allclose(ours["queries"], states["vectors"], atol=1e-5)
    whole = Encoder(str(folder), dim=8, device="cpu").encode_queries(["a question"])
    np.testing.assert_allclose(whole, unit(theirs["queries"], similarity), atol=1e-5)
    assert not np.allclose(whole, ours["queries"], atol=1e-3)  # it is another layer


def unit(vectors: np.ndarray, similarity: str) -> np.ndarray:
    """Vectors that sentence-transformers cut, and does not normalise."""
    return vectors / np.linalg.norm(vectors) if similarity == "cosine" else vectors


@pytest.mark.parametrize(
    "card", [{"pooling": "max"}, {"pooling": "cls+mean"}, {"pooling": "weightedmean"}]
)
def test_python_for_transformers_gives_states_where_the_pooling_is_another(
    card: dict[str, str], saved: Callable[..., Path]
) -> None:
    text = (saved(**card) / "README.md").read_text()

    assert "transformers gives the states of the tokens" in text
    assert "vectors =" not in text


@pytest.mark.parametrize("way", ["file", "word"])
def test_a_prefix_is_the_same_everywhere_byte_for_byte(
    way: str, tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    prefixes = {"query_prefix": "read ", "document_prefix": "\tline: "}
    words = [
        f'backbone="{tiny_backbone}"', f'corpus="{tiny_corpus}"', "variant=plain", "steps=1",
        "batch_queries=4", "evaluate_steps=0", "device=cpu", "pooling=mean", "refit=false",
    ]  # fmt: skip
    path = tmp_path / "run.toml"
    path.write_text("".join(f"{k} = {json.dumps(p)}\n" for k, p in prefixes.items()))
    given = [f"{key}={prefix}" for key, prefix in prefixes.items()]
    asked = (path, words) if way == "file" else (None, [*words, *given])

    train(read_train_settings(*asked), tmp_path / "model")
    export_cut(tmp_path / "model", 2, tmp_path / "cut")

    for folder in (tmp_path / "model", tmp_path / "cut"):
        model = SentenceTransformer(str(folder), device="cpu")
        assert model.prompts == {"query": "read ", "document": "\tline: "}
        card = read_card(folder)
        assert (card.query_prefix, card.document_prefix) == tuple(prefixes.values())
        encoder, tokenizer = load(folder)
        last = [encoder.layers]
        ours = [embed_texts(encoder, tokenizer, TEXTS, side, last)[0] for side in model.prompts]
        np.testing.assert_allclose(model.encode_query(TEXTS), ours[0], atol=1e-5)
        np.testing.assert_allclose(model.encode_document(TEXTS), ours[1], atol=1e-5)
