"""The built-in backbone as it comes has the scores that were published for it."""

from pathlib import Path

import pytest

from m2dr.verbs.evaluating.classification import ClassificationRequest, evaluate_classification
from m2dr.verbs.evaluating.evaluate import EvaluateRequest, evaluate
from m2dr.verbs.evaluating.sts import StsRequest, evaluate_sts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]


@pytest.mark.parametrize(("corpus", "published"), [("scifact", 0.645), ("nfcorpus", 0.316)])
def test_the_untrained_backbone_scores_as_published(
    corpus: str, published: float, data: Path, tmp_path: Path
) -> None:
    report = evaluate(
        EvaluateRequest(
            (str(data / "beir" / corpus),),
            ("minilm",),
            layers=(6,),
            dims=(384,),
            measures=("nDCG@10",),
            root=tmp_path / "indexes",
            out=tmp_path / "results",
        )
    )

    (cell,) = report.grids[0].cells.values()
    assert cell["nDCG@10"] == pytest.approx(published, abs=0.005)


@pytest.mark.parametrize(
    ("task", "published"),
    [
        ("stsb-test", 0.820),
        ("sick-test", 0.771),
        ("sick-train,sick-dev,sick-test", 0.776),
        ("sts12-test", 0.724),
        ("sts13-test", 0.806),
        ("sts14-test", 0.756),
    ],
)
def test_the_untrained_backbone_orders_sentence_pairs_as_published(
    task: str, published: float, data: Path, tmp_path: Path
) -> None:
    files = ",".join(str(data / "sts" / f"{name}.tsv") for name in task.split(","))

    report = evaluate_sts(
        StsRequest((files,), ("minilm",), layers=(6,), dims=(384,), out=tmp_path / "results")
    )

    (cell,) = report.tasks[0][0].cells.values()
    assert cell["Spearman"] == pytest.approx(published, abs=0.003)


def test_the_untrained_backbone_tells_classes_apart_as_published(
    data: Path, tmp_path: Path
) -> None:
    task = str(data / "classification" / "banking77")

    report = evaluate_classification(
        ClassificationRequest(
            (task,), ("minilm",), layers=(6,), dims=(384,), out=tmp_path / "results"
        )
    )

    (cell,) = report.tasks[0][0].cells.values()
    assert cell["Accuracy"] == pytest.approx(0.80, abs=0.01)
