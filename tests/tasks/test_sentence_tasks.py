"""Similarity of sentences, pairs of two classes and classification, at every cut."""

from dataclasses import replace
from itertools import combinations
from math import fsum, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from world import WORDS, make_model

from m2dr.core.records import Cut
from m2dr.core.requests import ClassificationRequest, PairsRequest, StsRequest
from m2dr.model import checkpoint
from m2dr.model.checkpoint import read_card
from m2dr.tasks.encoder import Encoder
from m2dr.tasks.evaluating.sentence_tasks import (
    evaluate_classification,
    evaluate_pairs,
    evaluate_sts,
)

stats = pytest.importorskip("scipy.stats")


ROWS = [
    ("5", "read the file", "open a file"),
    ("1.5", "the list of numbers", "read the file"),
    ("3", "close the path", "write text"),
    ("3", "class module", "read a line string"),
    ("0.5", "open a file", "close the path"),
    ("4.5", "number string", "number string"),
]


def write_task(path: Path, rows: list[tuple[str, str, str]] = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["score\tsentence1\tsentence2", *map("\t".join, rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_task(tmp_path / "tiny-test.tsv")


def request(kind: type, model: Path, out: Path, *tasks: Path | str, **rest: object) -> Any:
    asked = {"layers": (2, 4), "dims": (8, 32), "dtype": "fp32", "device": "cpu", **rest}
    return kind(tuple(map(str, tasks)), (str(model),), out=out, **asked)


def naive_cosines(model: Path, layer: int, dim: int) -> list[float]:
    """Each sentence alone through transformers, its mean or first state cut and then normalised."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, encoder = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model)
    pooling = read_card(model).pooling

    def vector(text: str) -> list[float]:
        with torch.no_grad():
            out = encoder(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)
        states = out.hidden_states[layer][0]
        return (states[0] if pooling == "cls" else states.mean(dim=0))[:dim].tolist()

    found = []
    for _, first, second in ROWS:
        left, right = vector(first), vector(second)
        dot = fsum(a * b for a, b in zip(left, right, strict=True))
        found.append(dot / sqrt(fsum(a * a for a in left) * fsum(b * b for b in right)))
    return found


def test_each_cut_correlates_as_its_own_cosines_do(
    tiny_backbone: Path, task: Path, tmp_path: Path
) -> None:
    report = evaluate_sts(request(StsRequest, tiny_backbone, tmp_path / "r", task))

    (grid,) = report.tasks[0]
    assert grid.cuts == (Cut(2, 8), Cut(2, 32), Cut(4, 8), Cut(4, 32))
    assert grid.heading("Spearman") == "Spearman on tiny-test, 6 pairs"
    gold = [float(row[0]) for row in ROWS]
    for cut, values in grid.cells.items():
        cosines = naive_cosines(tiny_backbone, cut.layer, cut.dim)
        assert values["Spearman"] == pytest.approx(stats.spearmanr(cosines, gold).statistic)
        assert values["Pearson"] == pytest.approx(stats.pearsonr(cosines, gold).statistic, abs=1e-5)


def test_several_tasks_end_in_their_mean(tiny_backbone: Path, task: Path, tmp_path: Path) -> None:
    other = write_task(tmp_path / "other.tsv", ROWS[:4])

    report = evaluate_sts(request(StsRequest, tiny_backbone, tmp_path / "r", task, other))

    first, second, mean = (grids[0] for grids in report.tasks)
    assert mean.corpus == "mean-of-tiny-test+other"
    for cut in mean.cuts:
        for name in mean.measures:
            both = first.cells[cut][name] + second.cells[cut][name]
            assert mean.cells[cut][name] == pytest.approx(both / 2)
    assert (tmp_path / "r" / "mean-of-tiny-test+other" / "tiny-bert" / "grid.json").exists()
    assert "the mean over tiny-test, other, each counted alike" in str(report)
    assert len(report.files) == 3


SPLITS = """split\tscore\tsentence1\tsentence2
train\t1\ta file\ta list
test\t5\tread text\topen text
TEST\t2\tclose\tnumber
test\t3\tfile\tpath
"""


def test_of_a_file_of_several_splits_the_asked_one_is_measured(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    (tmp_path / "mixed.tsv").write_text(SPLITS)
    rows = [row.split("\t")[1:] for row in SPLITS.splitlines()[2:]]
    alone = write_task(tmp_path / "alone.tsv", rows)

    mixed = evaluate_sts(
        request(StsRequest, tiny_backbone, tmp_path / "r", tmp_path / "mixed.tsv", split="test")
    )

    grid = mixed.tasks[0][0]
    assert grid.heading("Spearman") == "Spearman on mixed test, 3 pairs"
    assert (
        grid.cells
        == evaluate_sts(request(StsRequest, tiny_backbone, tmp_path, alone)).tasks[0][0].cells
    )
    assert (tmp_path / "r" / "mixed" / "test" / "tiny-bert" / "grid.json").exists()


def test_files_joined_by_commas_are_ranked_together(tiny_backbone: Path, tmp_path: Path) -> None:
    whole = write_task(tmp_path / "whole.tsv")
    parts = (write_task(tmp_path / "a.tsv", ROWS[:2]), write_task(tmp_path / "b.tsv", ROWS[2:]))

    joined = evaluate_sts(
        request(StsRequest, tiny_backbone, tmp_path / "r", ",".join(map(str, parts)))
    )

    assert joined.tasks[0][0].corpus == "a+b"
    same = evaluate_sts(request(StsRequest, tiny_backbone, tmp_path / "s", whole))
    assert joined.tasks[0][0].cells == same.tasks[0][0].cells


# Pairs of two classes


def write(path: Path, seed: int = 3) -> list[tuple[str, str, int]]:
    generator = np.random.default_rng(seed)
    texts = [" ".join(generator.choice(WORDS, size=5)) for _ in range(12)]
    # No pair twice and no text with itself: m2dr ties these exactly, float32 elsewhere may not.
    couples = generator.permutation(list(combinations(range(12), 2)))[:40]
    rows = [(texts[a], texts[b], int(generator.integers(0, 2))) for a, b in couples]
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{label}\t{first}\t{second}" for first, second, label in rows]
    path.write_text("\n".join(["label\tsentence1\tsentence2", *lines]) + "\n")
    return rows


def test_the_whole_cut_scores_as_sentence_transformers_finds(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import BinaryClassificationEvaluator

    model = make_model(tiny_backbone, tmp_path / "lively")
    rows = write(tmp_path / "pairs.tsv")

    (grid,) = evaluate_pairs(
        request(PairsRequest, model, tmp_path / "r", str(tmp_path / "pairs.tsv"))
    ).tasks[0]

    assert grid.heading("cosine-AP") == "cosine-AP on pairs, 40 pairs"
    assert len(grid.measures) == 6
    referee = BinaryClassificationEvaluator(
        *zip(*rows, strict=True), similarity_fn_names=["cosine", "dot"], write_csv=False
    )
    theirs = referee(SentenceTransformer(str(model), device="cpu"))
    for name, value in grid.cells[Cut(4, 32)].items():
        assert value == pytest.approx(theirs[name.lower().replace("-", "_")], abs=1e-5)


def test_a_folder_means_the_file_of_the_split(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "pair-classification" / "mrpc" / "msr_train.txt")
    write(tmp_path / "pair-classification" / "mrpc" / "msr_test.txt", seed=4)
    monkeypatch.setenv("M2DR_DATA", str(tmp_path))

    named = {
        split: evaluate_pairs(
            request(PairsRequest, tiny_backbone, tmp_path / "r", "mrpc", split=split)
        ).tasks[0][0]
        for split in ("", "train")
    }

    assert {split: grid.corpus for split, grid in named.items()} == {
        "": "msr_test",
        "train": "msr_train",
    }


# Classification


pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts whose class is their first word's; one text is in both splits."""
    folder = tmp_path_factory.mktemp("tasks") / "words"
    folder.mkdir()
    generator = np.random.default_rng(3)
    for split, count in (("train", 40), ("test", 20)):
        rows = [[str(word) for word in generator.choice(WORDS, size=5)] for _ in range(count)]
        lines = [f"{' '.join(row)}\t{'low' if row[0] < 'n' else 'high'}" for row in rows]
        text = "\n".join(["text\tlabel", "read the file\thigh", *lines]) + "\n"
        (folder / f"{split}.tsv").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("similarity", "raw"), [("cosine", False), ("dot", False), ("cosine", True)]
)
def test_every_cut_is_learnt_from_its_own_vectors(
    similarity: str, raw: bool, tiny_backbone: Path, classes: Path, tmp_path: Path
) -> None:
    from sklearn.linear_model import LogisticRegression

    whole, tokenizer = checkpoint.load(tiny_backbone)
    for weights in whole.transformer.parameters():  # vectors that differ, and are long
        weights.data *= 8 if weights.dim() > 1 else 3
    model = tmp_path / "model"
    checkpoint.save(whole, tokenizer, replace(whole.card, similarity=similarity), model)

    report = evaluate_classification(
        request(ClassificationRequest, model, tmp_path / "r", classes, protocol="full", raw=raw)
    )

    (grid,) = report.tasks[0]
    assert grid.heading("Accuracy") == "Accuracy on words test, 21 texts"
    if raw:  # vectors of a model that compares by dot product are not of length one
        model = tmp_path / "dot"
        checkpoint.save(whole, tokenizer, replace(whole.card, similarity="dot"), model)
    rows = {
        split: [
            line.split("\t") for line in (classes / f"{split}.tsv").read_text().splitlines()[1:]
        ]
        for split in ("train", "test")
    }
    for cut, values in grid.cells.items():
        encoder = Encoder(str(model), cut.layer, cut.dim, device="cpu", dtype="fp32")
        vectors = {
            split: encoder.encode([text for text, _ in found], layer=encoder.layer)
            for split, found in rows.items()
        }
        classifier = LogisticRegression().fit(
            vectors["train"], [label for _, label in rows["train"]]
        )
        right = classifier.predict(vectors["test"]) == [label for _, label in rows["test"]]
        assert values["Accuracy"] == pytest.approx(np.mean(right))


def test_fits_that_did_not_converge_are_told_once_with_their_cuts(
    tiny_backbone: Path, classes: Path, tmp_path: Path
) -> None:
    def notes(iterations: int) -> tuple[str, ...]:
        asked = request(
            ClassificationRequest, tiny_backbone, tmp_path / "r", classes, protocol="full",
            layers=(1, 4), dims=(8,), iterations=iterations,
        )  # fmt: skip
        ((grid,),) = evaluate_classification(asked).tasks
        return grid.notes

    told = [note for note in notes(1) if "converge" in note]
    assert told == [
        "2 of 2 fits of words did not converge in 1 iteration, at L1D8, L4D8; "
        "--iterations raises the limit"
    ]
    assert not any("converge" in note for note in notes(10_000))
