from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from world import WORDS

from m2dr.core.requests import ClassificationRequest
from m2dr.model import checkpoint
from m2dr.tasks.encoder import Encoder
from m2dr.tasks.evaluating.sentence_tasks import evaluate_classification

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def request(model: Path, out: Path, task: Path, **rest: object) -> ClassificationRequest:
    asked = {"layers": (2, 4), "dims": (8, 32), "dtype": "fp32", "device": "cpu", **rest}
    return ClassificationRequest((str(task),), (str(model),), out=out, **asked)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_every_cut_is_learnt_from_its_own_vectors(
    similarity: str, tiny_backbone: Path, task: Path, tmp_path: Path
) -> None:
    from sklearn.linear_model import LogisticRegression

    whole, tokenizer = checkpoint.load(tiny_backbone)
    model = tmp_path / "model"
    checkpoint.save(whole, tokenizer, replace(whole.card, similarity=similarity), model)

    report = evaluate_classification(request(model, tmp_path / "r", task, protocol="full"))

    (grid,) = report.tasks[0]
    assert grid.heading("Accuracy") == "Accuracy on words test, 21 texts"
    rows = {
        split: [line.split("\t") for line in (task / f"{split}.tsv").read_text().splitlines()[1:]]
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
