import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st

from m2dr.core.errors import UserError
from m2dr.core.records import Ranking

# Few distinct values, so that ties are common; 1 + 1e-9 ties with 1 only as float32.
SCORES = st.sampled_from([-1.5, -0.0, 0.0, 1.0, 1.0 + 1e-9, 1.0 + 1e-6, 3.25, 1e-42])
FOUND = st.dictionaries(st.text(min_size=1, max_size=3), SCORES, max_size=12)
# pytrec_eval takes C strings, which end at a zero byte.
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
FOUND_IN_C = st.dictionaries(WORDS, SCORES, min_size=1, max_size=12)


@given(found=FOUND)
def test_a_ranking_is_by_score_then_by_docid_both_descending(found: dict[str, float]) -> None:
    ranking = Ranking.of(list(found), found.values())

    expected = sorted(found, key=lambda docid: (np.float32(found[docid]), docid), reverse=True)
    assert list(ranking.docids) == expected
    assert list(ranking.scores) == [float(np.float32(found[docid])) for docid in expected]


@given(found=FOUND_IN_C)
def test_each_document_has_the_rank_that_trec_eval_gives_it(found: dict[str, float]) -> None:
    ranking = Ranking.of(list(found), found.values())

    # One query per document, for which it alone is relevant: its reciprocal rank tells its rank.
    evaluator = pytrec_eval.RelevanceEvaluator({d: {d: 1} for d in found}, {"recip_rank"})
    measured = evaluator.evaluate(dict.fromkeys(found, found))
    ranks = {docid: round(1 / measured[docid]["recip_rank"]) for docid in found}
    assert ranks == {docid: rank for rank, docid in enumerate(ranking.docids, start=1)}


@given(found=FOUND, k=st.integers(0, 15))
def test_the_best_k_are_the_first_k_of_all(found: dict[str, float], k: int) -> None:
    best = Ranking.of(list(found), found.values(), k=k)

    everything = Ranking.of(list(found), found.values())
    assert best == Ranking(everything.docids[:k], everything.scores[:k])


@given(found=FOUND.filter(bool), k=st.integers(1, 15))
def test_a_dropped_document_leaves_its_place_to_the_next(found: dict[str, float], k: int) -> None:
    own, *others = found

    ranking = Ranking.of(list(found), found.values(), k=k, drop=own)

    assert ranking == Ranking.of(others, [found[docid] for docid in others], k=k)


def test_a_score_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(UserError, match="not a number"):
        Ranking.of(["a", "b"], [1.0, float("nan")])


def test_a_document_that_comes_twice_is_refused() -> None:
    with pytest.raises(UserError, match="Document 'd1' comes twice in one ranking"):
        Ranking.of(["d1", "d2", "d1"], [3.0, 2.0, 1.0])
