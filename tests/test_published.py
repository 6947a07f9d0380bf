"""The built-in backbone as it comes has the scores that were published for it."""

from pathlib import Path

import pytest

from m2dr.verbs.evaluate import EvaluateRequest, evaluate


@pytest.mark.slow
@pytest.mark.parametrize(("corpus", "published"), [("scifact", 0.645), ("nfcorpus", 0.316)])
def test_the_untrained_backbone_scores_as_published(
    corpus: str, published: float, data: Path, tmp_path: Path
) -> None:
    report = evaluate(
        EvaluateRequest(
            str(data / "beir" / corpus),
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
