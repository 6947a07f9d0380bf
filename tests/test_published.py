"""The built-in backbone as it comes has the scores that were published for it, and fitted more."""

from pathlib import Path
from statistics import fmean

import pytest

from m2dr import Encoder
from m2dr.core.records import Cut
from m2dr.core.requests import ClassificationRequest, EvaluateRequest, StsRequest
from m2dr.core.settings import FitSettings
from m2dr.evaluation.grid import Grid
from m2dr.tasks.evaluating.evaluate import evaluate
from m2dr.tasks.evaluating.sentence_tasks import evaluate_classification, evaluate_sts
from m2dr.tasks.training.fit import fit

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


@pytest.mark.filterwarnings("default")  # beir's loader leaves files open
def test_a_fit_lifts_the_cuts_leaves_the_full_model_and_beir_sees_the_same(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 texts of other collections, on all of NFCorpus and of SciFact."""
    monkeypatch.setenv("M2DR_DTYPE", "fp32")  # bf16 rounds a rotated embedding otherwise: to 2e-4
    from beir.datasets.data_loader import GenericDataLoader
    from beir.retrieval.evaluation import EvaluateRetrieval
    from beir.retrieval.search.dense import DenseRetrievalExactSearch

    corpus, model = str(data / "beir" / "nfcorpus"), tmp_path / "fitted"
    both = (corpus, str(data / "beir" / "scifact"))
    pairs = [str(data / "pairs" / f"{name}.jsonl.gz") for name in ("acl-title-abstract", "medquad")]
    sources = ",".join([str(data / "msmarco" / "passage-pool"), *pairs])
    fit(FitSettings("minilm", sources, texts=2000), model)

    asked = EvaluateRequest(
        both, ("minilm", str(model)), measures=("nDCG@10",), root=tmp_path / "indexes",
        out=tmp_path / "results",
    )  # fmt: skip
    (untrained, fitted), scifact = (place.grids for place in evaluate(asked).places)

    def mean(grid: Grid) -> float:
        return fmean(cell["nDCG@10"] for cut, cell in grid.cells.items() if cut.layer)

    full = Cut(6, 384)
    assert fitted.cells[full]["nDCG@10"] == pytest.approx(
        untrained.cells[full]["nDCG@10"], abs=1e-4
    )
    assert mean(untrained) < 0.08
    assert mean(fitted) > 0.17
    assert mean(scifact[0]) < 0.18
    assert mean(scifact[1]) > 0.33
    assert fitted.cells[Cut(0, 384)]["nDCG@10"] > 0.25
    texts, queries, judgements = GenericDataLoader(corpus).load(split="test")
    for layer, dim in ((0, 384), (0, 64), (3, 128), (6, 384)):
        exact = DenseRetrievalExactSearch(Encoder(str(model), layer, dim), show_progress_bar=False)
        evaluation = EvaluateRetrieval(exact, k_values=[10], score_function="cos_sim")
        found = evaluation.evaluate(judgements, evaluation.retrieve(texts, queries), [10])[0]
        assert found["NDCG@10"] == pytest.approx(fitted.cells[Cut(layer, dim)]["nDCG@10"], abs=1e-4)
