from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from world import WORDS, make_model

from m2dr.core.records import Cut
from m2dr.core.requests import PairsRequest
from m2dr.tasks.evaluating.sentence_tasks import evaluate_pairs


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


def request(model: Path, out: Path, task: str, **rest: object) -> PairsRequest:
    asked = {"layers": (2, 4), "dims": (8, 32), "dtype": "fp32", "device": "cpu", **rest}
    return PairsRequest((task,), (str(model),), out=out, **asked)


def test_the_whole_cut_scores_as_sentence_transformers_finds(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import BinaryClassificationEvaluator

    model = make_model(tiny_backbone, tmp_path / "lively")
    rows = write(tmp_path / "pairs.tsv")

    (grid,) = evaluate_pairs(request(model, tmp_path / "r", str(tmp_path / "pairs.tsv"))).tasks[0]

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
        split: evaluate_pairs(request(tiny_backbone, tmp_path / "r", "mrpc", split=split)).tasks[0][
            0
        ]
        for split in ("", "train")
    }

    assert {split: grid.corpus for split, grid in named.items()} == {
        "": "msr_test",
        "train": "msr_train",
    }
