import re
from dataclasses import replace

from m2dr.core.records import Cut, FitRecord, ModelCard
from m2dr.evaluation.checks import (
    model_checks,
    query_checks,
    ranking_checks,
)

CARD = ModelCard(
    "minilm", "full-dim", 6, 384, (Cut(6, 384), Cut(2, 128)), 0.05, documents="same",
    pooling="mean", similarity="cosine",
)  # fmt: skip


def test_what_the_judgements_lack_is_counted() -> None:
    found = query_checks(50, unanswered=2, unanswerable=3, unknown_documents=4)

    assert [re.search(r"\d", check)[0] for check in found] == ["2", "3", "4"]
    assert "counted as 0" in found[0]
    assert "without a relevant document" in found[1]
    assert "corpus does not hold" in found[2]
    assert query_checks(50) == []


def test_rankings_that_say_nothing_are_counted_at_the_worst_cut() -> None:
    found = ranking_checks({Cut(1, 8): 3, Cut(2, 8): 5, Cut(3, 8): 0}, {Cut(1, 8): 1}, 9)

    assert found[0].startswith("5 of 9 queries give one score to all documents of a ranking at L2D8 and"
                               " others")  # fmt: skip
    assert found[1].startswith("1 of 9 queries find no document at L1D8")
    assert ranking_checks({Cut(1, 8): 0}, {Cut(1, 8): 0}, 9) == []


def test_untrained_cuts_that_are_near_random_and_other_prefixes_are_told() -> None:
    values = {Cut(6, 384): 0.5, Cut(1, 8): 0.04, Cut(1, 64): 0.2}

    found = model_checks(CARD, values, "RR@10", {"query_prefix": ("query: ", "")})

    assert found[0].startswith("The documents were encoded with query_prefix 'query: ' and")
    assert found[1].startswith("L1D8: not trained, and below a tenth of the best RR@10")
    assert model_checks(CARD, {Cut(6, 384): 0.5, Cut(1, 64): 0.2}, "RR@10", {}) == []
    fitted = replace(
        CARD, cuts=(*CARD.cuts, Cut(1, 8)), fit=FitRecord((), 9, 9, "pca", 9, "none", (), ())
    )
    assert model_checks(fitted, values, "RR@10", {})[0].startswith("L1D8: not trained"), (
        "but fitted"
    )
