"""Each block of docs/python.md and each cell of docs/first-steps.ipynb runs, from top to bottom."""

import ast
import json
import re
from collections.abc import Iterable
from pathlib import Path

import matplotlib
import pytest
from commands import parsed
from world import WORDS, make_backbone, make_corpus

import m2dr
from m2dr.model import hub

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "python.md").read_text()
NOTEBOOK = json.loads((DOCS / "first-steps.ipynb").read_text())


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the shape of minilm, with a vocabulary of 64 words: quick to fit."""
    import torch
    import transformers as hf

    folder = make_backbone(tmp_path_factory.mktemp("page") / "minilm")
    torch.manual_seed(13)
    shape = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12}
    config = hf.BertConfig(vocab_size=64, intermediate_size=64, **shape)
    hf.BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def place(minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the page calls the reader's own files."""
    matplotlib.use("agg")
    monkeypatch.setattr(hub, "_built_in", lambda: minilm)
    monkeypatch.chdir(tmp_path)
    make_corpus(tmp_path / "data" / "scifact")
    lines = [f"{' '.join(WORDS[i % 9 : i % 9 + 5])} {WORDS[i % 14]}" for i in range(99)]
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    pairs = [{"query": line.split()[0], "positive": line} for line in lines]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return tmp_path


def run(blocks: Iterable[str]) -> dict[str, object]:
    """Run blocks one after the other, and return their names."""
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, f"<{block[:60]!r}>", "exec"), names)  # that is the test
    return names


@pytest.mark.filterwarnings("ignore:Cut L6D")  # a random model was trained for nothing
def test_the_page_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run(re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL))

    told = capsys.readouterr().out
    assert "(2, 3)\n(384,) (3, 384) float16\ntorch.Size([2, 64])\n(64,)\n" in told
    assert "{2: (3, 384), 4: (3, 384), 6: (3, 384)}\n6\n" in told
    assert told.endswith("Layer 9 was asked for; this encoder has 6.\n")
    assert isinstance(names["trained"], m2dr.Encoder)
    assert (place / "grid.png").stat().st_size > 1000


@pytest.mark.filterwarnings("ignore:Cut L6D")
def test_the_notebook_runs(place: Path) -> None:
    cells = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]

    names = run("".join(cell["source"]) for cell in cells)

    assert len(names["scores"]) == 2
    assert (place / "models" / "four-layers" / "model.safetensors").exists()


def test_the_notebook_is_kept_without_outputs() -> None:
    for cell in NOTEBOOK["cells"]:
        assert cell["cell_type"] == "markdown" or (
            not cell["outputs"] and ast.parse("".join(cell["source"]))
        )
    assert NOTEBOOK["nbformat"] == 4


@pytest.mark.parametrize("line", re.findall(r"^m2dr .+$", PAGE, flags=re.MULTILINE))
def test_each_command_of_the_page_parses(line: str) -> None:
    parsed(line)


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)]+)\)", PAGE))
def test_each_link_of_the_page_leads_somewhere(link: str) -> None:
    assert (DOCS / link).exists()


def test_the_page_names_all_that_there_is() -> None:
    names = [name for name in m2dr.__all__ if name not in ("OpenIndex", "__version__")]

    assert [name for name in names if f"`m2dr.{name}`" not in PAGE] == []
