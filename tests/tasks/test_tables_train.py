"""The same data gives the same model, index and measures, whatever files it lies in."""

import json
from collections.abc import Callable
from pathlib import Path

import datasets
import pytest
from click.testing import CliRunner, Result
from tabular import Rows, write_rows

from m2dr.cli import main
from m2dr.model.checkpoint import read_card

SETTINGS = (
    "query_length=16 document_length=16 batch_size=4 negatives=2 evaluate_steps=0 dropout=0.1"
)


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    monkeypatch.chdir(tmp_path)


def run(*words: object) -> Result:
    found = CliRunner().invoke(main, [*map(str, words), "--device", "cpu"])
    assert found.exit_code == 0, found.output
    return found


def weights(corpus: str, backbone: Path, out: str) -> str:
    """The fingerprint of the model that three steps on a corpus give."""
    sets = [word for each in SETTINGS.split() for word in ("--set", each)]
    run(
        "train", "--variant", "full-dim", "--backbone", backbone, "--corpus", corpus, "--out", out,
        "--steps", 3, *sets,
    )  # fmt: skip
    return read_card(out).fingerprint


@pytest.mark.usefixtures("dtype")
def test_a_corpus_in_any_layout_trains_the_same_model(
    tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    parts = parts_of(tiny_corpus)
    for name, rows in parts.items():
        where = name if name in ("corpus", "queries") else f"qrels/{name}"
        write_rows(tmp_path / f"parquet/{where}.parquet", rows)

    expected = weights(str(tiny_corpus), tiny_backbone, "plain")

    assert weights("parquet", tiny_backbone, "1") == expected


@pytest.mark.usefixtures("dtype")
def test_groups_in_any_file_train_the_same_model(
    tiny_corpus: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    parts = parts_of(tiny_corpus)
    texts = [row["text"] for row in parts["corpus"]]
    rows = [
        {"anchor": query["text"], "positive": texts[n], "negative_1": texts[n - 1], "negative_2": texts[n - 2]}
        for n, query in enumerate(parts["queries"][:12])
    ]  # fmt: skip
    for name in ("groups.jsonl", "groups.csv", "saved"):
        write_rows(tmp_path / name, rows)
    write_rows(tmp_path / "files/train-00000-of-00002.parquet", rows[:5])
    write_rows(tmp_path / "files/train-00001-of-00002.parquet", rows[5:])

    expected = weights("groups.jsonl", tiny_backbone, "plain")

    names = ("groups.csv", "hf:saved", "files")
    found = {name: weights(name, tiny_backbone, f"m{n}") for n, name in enumerate(names)}
    assert found == dict.fromkeys(names, expected)


def parts_of(folder: Path) -> dict[str, Rows]:
    """The rows of a BEIR folder, by part and split."""
    read: Callable[[str], Rows] = lambda name: [  # noqa: E731
        json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()
    ]
    found = {"corpus": read("corpus"), "queries": read("queries")}
    for path in sorted((folder / "qrels").glob("*.tsv")):
        rows = [line.split("\t") for line in path.read_text().splitlines()[1:]]
        found[path.stem] = [
            {"query-id": query, "corpus-id": docid, "score": int(score)}
            for query, docid, score in rows
        ]
    return found
