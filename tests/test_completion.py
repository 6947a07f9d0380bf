"""A shell completes the values of options from what is on disk, at once and in silence."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete, shell_complete
from world import make_corpus

from m2dr.cli import main
from m2dr.cli.completion import use_whole_lines
from m2dr.core.variants import VARIANTS
from m2dr.model.folder import read_card

ROOT = Path(__file__).parents[1]


@pytest.fixture
def place(
    tmp_path: Path, tiny_fitted: Path, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A working folder with two models, two corpora, an index and results."""
    shutil.copytree(tiny_fitted, tmp_path / "models" / "fitted")
    shutil.copytree(tiny_backbone, tmp_path / "models" / "no-model")
    shutil.copytree(tiny_fitted, tmp_path / "models" / "separate" / "L4D32")
    make_corpus(tmp_path / "data" / "tiny")
    (tmp_path / "data" / "marco").mkdir()
    (tmp_path / "data" / "marco" / "collection.tsv").write_text("0\ta text\n")
    (tmp_path / "data" / "empty").mkdir()
    store = tmp_path / "indexes" / "tiny" / "0123" / "layer-04"
    (store / "dim-8").mkdir(parents=True)
    (store / "store.json").write_text("{}")
    (store / "dim-8" / "manifest.json").write_text("{}")
    results = tmp_path / "results" / "tiny" / "test" / "fitted"
    results.mkdir(parents=True)
    cells = [{"layer": layer, "dim": 8} for layer in (1, 4)]
    (results / "grid.json").write_text(json.dumps({"cells": cells}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("M2DR_DATA", raising=False)
    return tmp_path


def completed(*words: str) -> list[str]:
    """What the last word may become; a word of another type is its type."""
    *before, last = words
    found = ShellComplete(main, {}, "m2dr", "_M2DR_COMPLETE").get_completions(list(before), last)
    return [item.value if item.type == "plain" else f"({item.type})" for item in found]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("train --variant star", ["starbucks", "starbucks-sts"]),
        ("train --variant nothing", []),
        ("train --report-to tensorboard,wa", ["tensorboard,wandb"]),
        ("train --corpus py", ["pydocs", "pydocs:stdlib"]),
        ("train --corpus ", ["pydocs", "pydocs:stdlib", "data/marco", "tiny"]),
        ("train --corpus pydocs,t", ["pydocs,tiny"]),
        ("train --corpus groups", ["(file)"]),
        ("index corpus --corpus ti", ["tiny"]),
        ("evaluate beir --corpus ti", ["tiny"]),
        ("search --model ", ["models/fitted", "models/separate/L4D32"]),
        ("evaluate beir --models models/f", ["models/fitted"]),
        ("train --backbone m", ["minilm", "models/fitted", "models/separate/L4D32"]),
        ("search --index in", ["indexes/tiny/0123/layer-04/dim-8"]),
        ("search --index mil", ["milvus:"]),
        ("search --indexes elsewhere --index in", ["(file)"]),
        ("index verify ", ["indexes/tiny/0123/layer-04"]),
        ("search --query-layer ", ["0", "1", "2", "3", "4"]),
        ("search --model models/fitted --document-layer ", ["0", "1", "2", "3", "4"]),
        ("search --model models/absent --query-layer ", []),
        ("evaluate beir --layers 1,", ["1,0", "1,1", "1,2", "1,3", "1,4"]),
        ("evaluate beir --against r", ["results/tiny/test/fitted"]),
        (
            "evaluate beir --against results/tiny/test/fitted@L",
            ["results/tiny/test/fitted@L1D8", "results/tiny/test/fitted@L4D8"],
        ),
        ("evaluate beir --against results/tiny@L", ["(file)"]),
        ("pick ", ["(dir)"]),
        ("pretra", ["pretrain"]),
        ("doctor --model models/f", ["models/fitted"]),
        ("doctor --corpus ti", ["tiny"]),
        ("doctor --index in", ["indexes/tiny/0123/layer-04/dim-8"]),
        ("init --variant star", ["starbucks", "starbucks-sts"]),
        ("init --for ", ["train", "fit", "pretrain"]),
        ("init set", ["(file)"]),
    ],
)
@pytest.mark.usefixtures("place")
def test_a_word_becomes_what_is_there(line: str, values: list[str]) -> None:
    assert sorted(completed(*line.split(" "))) == sorted(values)


def test_dims_are_those_of_the_model(place: Path) -> None:
    card = read_card(place / "models" / "fitted")

    assert completed("search", "--dim", "") == [str(d) for d in sorted({c.dim for c in card.cuts})]


def test_variants_have_a_sentence_each() -> None:
    found = ShellComplete(main, {}, "m2dr", "").get_completions(["train", "--variant"], "")

    assert {item.value: item.help for item in found} == {
        row.name: row.summary for row in VARIANTS.values()
    }


def test_a_damaged_model_and_an_old_spelling_are_passed_over_in_silence(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "models" / "fitted" / "m2dr.json").write_text("{")

    assert completed("search", "--layer", "2", "--query-layer", "") == []

    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(not shutil.which("bash"), reason="There is no bash.")
def test_bash_completes_by_the_line_of_the_page(place: Path) -> None:
    (line,) = {
        word for word in (ROOT / "docs" / "shell-completion.md").read_text().split("`")
        if "bash_source" in word
    }  # fmt: skip
    script = f"""
        {line}
        complete -p m2dr
        COMP_WORDS=(m2dr train --variant starbucks-) COMP_CWORD=3
        _m2dr_completion m2dr; echo "${{COMPREPLY[*]}}"
        COMPREPLY=() COMP_WORDS=(m2dr search --model '') COMP_CWORD=3
        _m2dr_completion m2dr; echo "${{COMPREPLY[*]}}"
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    done = subprocess.run(
        ["bash", "--norc", "-c", script], cwd=place,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    registered, variants, models = done.stdout.splitlines()
    assert "_m2dr_completion m2dr" in registered
    assert variants == "starbucks-sts"
    assert models == "models/fitted models/separate/L4D32"


def test_a_command_is_listed_with_its_whole_summary() -> None:
    found = ShellComplete(main, {}, "m2dr", "").get_completions([], "")

    assert {item.value for item in found} == set(main.commands)
    assert all(item.help and item.help[-1] == "." and item.help[-2] != "." for item in found)


@pytest.mark.skipif(not shutil.which("fish"), reason="There is no fish.")
def test_fish_completes_values_and_sentences_with_commas(place: Path) -> None:
    page = (ROOT / "docs" / "shell-completion.md").read_text().replace("\\|", "|")
    (line,) = {word for word in page.split("`") if "fish_source" in word}
    script = f"""
        {line}
        complete -C "m2dr train --report-to tensorboard,wa"
        complete -C "m2dr doct"
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    done = subprocess.run(
        ["fish", "--no-config", "-c", script], cwd=place,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.stdout.splitlines() == [
        "tensorboard,wandb", "doctor\tFind what is wrong with an install, a model or an index."
    ]  # fmt: skip


def test_the_script_of_fish_splits_a_line_once(capsys: pytest.CaptureFixture[str]) -> None:
    use_whole_lines()

    assert shell_complete(main, {}, "m2dr", "_M2DR_COMPLETE", "fish_source") == 0

    assert 'string split --max 1 "," $completion' in capsys.readouterr().out


@pytest.mark.parametrize("words", ["train --variant ", "search --query-layer ", "train --corpus "])
def test_a_completion_loads_no_model_library_and_takes_a_moment(place: Path, words: str) -> None:
    asked = f"m2dr {words}"
    environment = {
        **os.environ, "_M2DR_COMPLETE": "bash_complete", "COMP_WORDS": asked,
        "COMP_CWORD": str(len(asked.split())),
    }  # fmt: skip
    code = (
        "import atexit, sys; "
        "atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr)); "
        "from m2dr.cli import main; main(prog_name='m2dr')"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place, env=environment, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip

    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    heavy = {"torch", "transformers", "scipy", "faiss", "rich", "huggingface_hub"}
    assert done.stdout.startswith("plain,"), done.stderr
    assert not heavy & set(done.stderr.split())
    assert after.ru_utime - before.ru_utime < 0.6  # .1 to .25 s on the machine it was written on
