"""Two commands that would write to one place: the second is told who holds it, and ends."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from shell import held
from world import make_backbone

from m2dr import cli
from m2dr.core.files import LOCK_NAME

SHORT = ("--steps", "2", "--device", "cpu", "--set", "evaluate_steps=0")
CASES = {
    "train": ("train", "--variant", "plain", "--batch-size", "4", *SHORT),
    "export": ("export", "--layers", "2"),
    "mine": ("mine", "--retriever", "bm25", "--depth", "5", "--negatives", "2"),
    "evaluate": ("evaluate", "retrieval", "--layers", "4", "--dims", "8", "--device", "cpu"),
}  # fmt: skip


def run(*words: str | Path) -> int:
    """The exit code of a command in this process."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_backbone(tmp_path_factory.mktemp("backbone") / "masks", masks=True)


@pytest.mark.parametrize("case", CASES)
def test_the_second_is_told_and_runs_when_the_first_has_ended(
    case: str,
    backbone: Path,
    tiny_corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / ("out.jsonl" if case == "mine" else "out")
    inputs: dict[str, Sequence[str | Path]] = {
        "export": ("--model", backbone),
        "mine": ("--corpus", tiny_corpus),
        "evaluate": (
            "--corpus", tiny_corpus, "--model", backbone, "--indexes", tmp_path / "indexes"
        ),
    }  # fmt: skip
    usual = ("--corpus", tiny_corpus, "--backbone", backbone)
    words = (*CASES[case], *inputs.get(case, usual), "--out", out)
    path = out / "tiny" / "test" / "masks" if case == "evaluate" else out

    with held(path):
        code = run(*words)
        there = {file for file in tmp_path.rglob("*") if file.is_file()}

    told = capsys.readouterr().err
    assert code == 2, told
    assert f"Another process is writing to {path}." in told
    assert there == {
        path.with_name(f".{path.name}{LOCK_NAME}") if case == "mine" else path / LOCK_NAME
    }
    assert run(*words) == 0, capsys.readouterr().err
    assert not list(tmp_path.rglob(f"*{LOCK_NAME}"))


def test_one_index_is_built_once_at_a_time_and_another_dim_meanwhile(
    backbone: Path, tiny_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "index", "corpus", "--corpus", tiny_corpus, "--model", backbone, "--layer", "4",
        "--indexes", tmp_path, "--device", "cpu", "--dim",
    )  # fmt: skip
    assert run(*words, "8") == 0
    manifest = next(tmp_path.rglob("dim-8/manifest.json"))
    built = manifest.read_bytes()

    with held(manifest.parent):
        finished = run(*words, "8")
        manifest.unlink()
        refused = run(*words, "8")
        other = run(*words, "16")

    told = capsys.readouterr().err
    assert (finished, refused, other) == (0, 2, 0), told
    assert "Another process is writing to" in told
    assert not manifest.exists()
    assert run(*words, "8") == 0
    assert manifest.read_bytes() == built
    assert not list(tmp_path.rglob(LOCK_NAME))
