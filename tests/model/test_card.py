"""What a model folder tells people and other tools of itself."""

import io
import json
import logging
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import transformers
from commands import run
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from sentence_transformers import SentenceTransformer
from world import load_plain, make_fitted

from m2dr.core.records import Cut
from m2dr.model.backbones import BACKBONES
from m2dr.model.checkpoint import export_cut, load, open_model, read_card, save

HOSTILE = "a|b ```\n---\nlicense: mine\n# not a title <script>x</script>"


@pytest.fixture
def saved(backbone: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """A model folder with fields of its card."""

    def made(model_type: str = "bert", **card: object) -> Path:
        encoder, tokenizer = load(backbone(model_type))
        encoder.card = replace(encoder.card, **card)
        save(encoder, tokenizer, encoder.card, tmp_path / "model")
        return tmp_path / "model"

    return made


def test_a_card_has_the_licence_that_the_card_of_its_backbone_names(
    backbone: Callable[[str], Path], tmp_path: Path
) -> None:
    theirs = Path(shutil.copytree(backbone("bert"), tmp_path / "theirs"))
    encoder, tokenizer = load(theirs)
    save(encoder, tokenizer, encoder.card, tmp_path / "unnamed")
    (theirs / "README.md").write_text("---\nlicense: other\nlicense_name: gemma\n---\n# Theirs\n")
    save(encoder, tokenizer, encoder.card, tmp_path / "named")

    unnamed, named = (tmp_path / name / "README.md" for name in ("unnamed", "named"))
    assert "| licence | none is named by the card of" in unnamed.read_text()
    assert ModelCard.load(unnamed).data.license is None
    data = ModelCard.load(named).data
    assert (data.license, data.license_name) == ("other", "gemma")
    assert "| licence | gemma |" in named.read_text()


@pytest.mark.parametrize("model_type", BACKBONES)
def test_no_tool_reports_a_weight_that_is_missing_or_not_its_own(
    model_type: str, saved: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = saved(model_type)
    export_cut(open_model(folder), 2, tmp_path / "cut")
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_info()
    heard = io.StringIO()  # its own handler writes to the standard error of when it was imported
    handler = logging.StreamHandler(heard)
    transformers.logging.add_handler(handler)
    monkeypatch.setattr(transformers.logging.get_logger("transformers"), "propagate", True)
    try:
        for each in (folder, tmp_path / "cut"):
            _, report = load_plain(each, output_loading_info=True)
            assert not any(report.values()), report
            SentenceTransformer(str(each), device="cpu")
    finally:
        transformers.logging.remove_handler(handler)
        transformers.logging.set_verbosity(before)
    told = capfd.readouterr().err + caplog.text + heard.getvalue()
    assert "model.safetensors" in told or "loading" in told.lower()  # the logs were heard at all
    assert "MISSING" not in told
    assert "LOAD REPORT" not in told.upper()
    assert read_card(folder).fingerprint != read_card(tmp_path / "cut").fingerprint


def test_texts_of_users_cannot_break_the_card(saved: Callable[..., Path]) -> None:
    folder = saved(
        backbone=HOSTILE, query_prefix=HOSTILE, document_prefix="| `x` ", variant=HOSTILE
    )
    card = ModelCard.load(folder / "README.md")
    html = MarkdownIt("commonmark").enable("table").render(card.text)
    assert set(card.data.to_dict()) == {"library_name", "pipeline_tag", "tags"}
    assert html.count("<h1>") == 1
    assert "<script" not in html
    (made,) = re.findall(r"```json\n(.*?)\n```", card.text, re.DOTALL)
    assert json.loads(made)["query_prefix"] == HOSTILE


@pytest.mark.parametrize("kind", ["same", "last", "fitted"])
def test_the_commands_of_the_card_run(
    kind: str, saved: Callable[..., Path], tiny_backbone: Path, tiny_corpus: Path, here: Path
) -> None:  # fmt: skip
    if kind == "fitted":
        folder = make_fitted(tiny_backbone, here / "fitted")
    else:
        folder = saved(cuts=(Cut(2, 8), Cut(4, 8), Cut(4, 32)), documents=kind)
    text = (folder / "README.md").read_text()
    lines = re.findall(r"^m2dr .*", text, re.MULTILINE)
    assert len(lines) == 2
    assert ("| 0 | 8, 16, 32 |" in text) == ("--query-layer 0" in text) == (kind == "fitted")
    for line in lines:
        words = line.replace("CORPUS", str(tiny_corpus)).replace("FOLDER", str(folder))
        told = run(*shlex.split(words)[1:])
        assert told.exit_code == 0, told.output
        assert "was not trained" not in told.output


def run_python(folder: Path) -> list[dict[str, object]]:
    """The names that each block of Python in a card leaves."""
    found: list[dict[str, object]] = []
    text = (folder / "README.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        found.append({})
        exec(block.replace("FOLDER", str(folder)), found[-1])  # it is what is tested
    return found


@pytest.mark.parametrize(
    ("model_type", "pooling", "similarity"),
    [
        ("t5", "mean", "dot"),
        ("bert", "cls", "cosine"),
        ("qwen3", "last", "cosine"),
    ],
)
def test_the_python_of_the_card_gives_one_cut_in_every_tool(
    model_type: str, pooling: str, similarity: str, saved: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("M2DR_DTYPE", "fp32")
    own = {"pooling": pooling, "similarity": similarity, "query_length": 40}
    prefix = "read 'a\n\"```\n{path}: \U0001f600 "
    cuts = (Cut(2, 8), Cut(4, 8), Cut(4, 32))
    folder = saved(model_type, cuts=cuts, query_prefix=prefix, document_prefix="text: ", **own)
    ours, theirs = run_python(folder)
    assert np.shape(ours["scores"]) == np.shape(theirs["scores"]) == (1, 1)
    assert np.shape(ours["queries"]) == (1, 8)
    assert theirs["queries"].shape == (1, 8)
