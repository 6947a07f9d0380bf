"""Each block of docs/export.md runs, from top to bottom, on a tiny model in place of minilm."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from world import WORDS, make_backbone, make_corpus

from m2dr.cli import main
from m2dr.model import hub

PAGE = (Path(__file__).parents[1] / "docs" / "export.md").read_text()
BLOCKS = re.findall(r"^```(bash|python)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the page calls the reader's own files."""
    sizes = {"num_hidden_layers": 6, "hidden_size": 128}
    minilm = make_backbone(tmp_path / "minilm", **sizes)
    monkeypatch.setattr(hub, "_built_in", lambda: minilm)
    monkeypatch.setenv("M2DR_DTYPE", "fp32")
    monkeypatch.chdir(tmp_path)
    make_corpus(tmp_path / "data" / "scifact")
    lines = [f"{' '.join(WORDS[i % 9 : i % 9 + 5])} {WORDS[i % 14]}" for i in range(99)]
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    return tmp_path


def test_the_page_runs(place: Path) -> None:
    names: dict[str, object] = {}
    for kind, block in BLOCKS:
        if kind == "python":
            exec(compile(block, f"<{block[:60]!r}>", "exec"), names)  # that is the test
            continue
        for line in block.splitlines():
            words = shlex.split(line)
            assert words.pop(0) == "m2dr"
            done = CliRunner().invoke(main, words)
            assert done.exit_code == 0, (line, done.output)
    assert (place / "models" / "small-int8" / "model.xml").exists()
    assert {kind for kind, _ in BLOCKS} == {"bash", "python"}
