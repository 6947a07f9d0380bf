import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st

from m2dr.core.errors import UserError
from m2dr.core.files import write_record
from m2dr.core.records import Cut, ModelCard, Ranking
from m2dr.model.checkpoint import read_card_file

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


# Cuts


def test_cuts_sort_by_layer_and_then_by_dim() -> None:
    cuts = [Cut(2, 8), Cut(1, 128), Cut(10, 8), Cut(0, 384), Cut(1, 16)]

    assert sorted(cuts) == [Cut(0, 384), Cut(1, 16), Cut(1, 128), Cut(2, 8), Cut(10, 8)]


@pytest.mark.parametrize("cut", [Cut(0, 64), Cut(12, 768)])
def test_a_printed_cut_is_read_back_as_the_same(cut: Cut) -> None:
    assert Cut.parse(str(cut)) == cut


@pytest.mark.parametrize("word", ["L-1D64", "L0D0", "L4", "l4d8", "D8L4", ""])
def test_a_word_that_names_no_cut_is_refused(word: str) -> None:
    with pytest.raises(UserError, match=r"is no cut|A cut has"):
        Cut.parse(word)


# Cards


CARD = ModelCard(
    backbone="some backbone", variant="plain", layers=6, width=384, cuts=(Cut(6, 384),),
    documents="last", pooling="mean", similarity="cosine", temperature=0.05, fingerprint="0" * 64,
)  # fmt: skip
FITTED = replace(CARD, exit_head="fitted", cuts=(Cut(0, 64), Cut(6, 384)))


@pytest.mark.parametrize("cut", [Cut(0, 1), Cut(0, 384), Cut(6, 384)])
def test_a_fitted_model_has_layer_0_at_every_dim(cut: Cut) -> None:
    assert FITTED.lowest_layer == 0
    assert FITTED.check(cut) == cut


def test_a_fitted_card_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    write_record(tmp_path / "m2dr.json", FITTED)

    assert read_card_file(tmp_path / "m2dr.json") == FITTED


def test_a_card_with_layer_0_among_its_cuts_is_of_a_fitted_model(tmp_path: Path) -> None:
    path = tmp_path / "m2dr.json"
    write_record(path, FITTED)
    path.write_text(json.dumps({**json.loads(path.read_text()), "exit_head": "linear"}))

    with pytest.raises(UserError, match="holds sizes or cuts that no model has"):
        read_card_file(path)
