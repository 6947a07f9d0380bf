"""The commands of the sentence tasks as a person uses them."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from shell import m2dr

from m2dr.cli import main

MACHINE = ("--device", "cpu", "--dtype", "fp32", "--layers", "2,4", "--dims", "8")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "bank").mkdir()
    for split in ("train", "test"):
        (tmp_path / "bank" / f"{split}.csv").write_text("text,category\nread,a\nopen,b\nlist,a\n")
    rows = "1\tread\topen\n0\tlist\ttext\n1\tfile\tpath\n"
    (tmp_path / "pairs.tsv").write_text(f"label\ttext1\ttext2\n{rows}")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "heading", "last"),
    [
        (("classification", "--task", "bank", "--measure", "f1"), "F1 on bank test, 3 texts", "r/bank/test/tiny-bert_F1.png"),
        (("pairs", "--task", "pairs.tsv"), "cosine-AP on pairs, 3 pairs", "r/pairs/tiny-bert_cosine-AP.png"),
        (("pairs", "--task", "pairs.tsv", "--measure", "DOT-accuracy"), "dot-Accuracy on pairs, 3 pairs", "r/pairs/tiny-bert_dot-Accuracy.png"),
    ],
)  # fmt: skip
def test_a_table_is_printed_and_where_the_figure_lies(
    words: tuple[str, ...], heading: str, last: str, data: Path, tiny_backbone: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(data)
    asked = ["evaluate", *words, "--model", str(tiny_backbone), "--out", "r", *MACHINE]

    done = CliRunner().invoke(main, asked, catch_exceptions=False)

    lines = done.stdout.splitlines()
    assert lines[0] == f"tiny-bert: {heading}, * best"
    assert lines[-1] == last
    assert Path(last).exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("classification", "--task", "bnk"), "There is no task 'bnk'"),
        (("classification", "--task", "bank", "--split", "dev"), "no file of the split 'dev'"),
        (("classification", "--task", "pairs.tsv"), "pairs.tsv, line 2: has none of the columns text"),
        (("classification", "--task", "bank", "--samples", "0"), "0 is not in the range"),
        (("pairs", "--task", "bank"), "test.csv has no scores; give a file"),
        (("pairs", "--task", "pairs.tsv", "--split", "x"), "no column that names a split"),
        (("pairs", "--task", "pairs.tsv", "--measure", "ap"), "is not one of"),
        (("pairs",), "Missing option '--task'"),
        (("sts", "--task", "pairs.tsv,none.tsv"), "There is no task 'none.tsv'"),
        (("sts", "--task", ""), "There is no task ''"),
        (("pear", "--task", "x"), "No such command 'pear'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(
    words: tuple[str, ...], sentence: str, data: Path, tiny_backbone: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(data)

    done = CliRunner().invoke(
        main, ["evaluate", *words, "--model", str(tiny_backbone)], catch_exceptions=False
    )

    assert done.exit_code == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_of_garbage_is_one_sentence_in_a_process_of_its_own(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    (tmp_path / "garbage.tsv").write_bytes(bytes(range(256)))

    done = m2dr(
        "evaluate", "pairs", "--task", "garbage.tsv", "--model", tiny_backbone, cwd=tmp_path
    )

    assert done.returncode == 2
    assert done.stderr.startswith("Error: garbage.tsv, line 1: names neither a pair of sentences")
    assert len(done.stderr.splitlines()) == 1
