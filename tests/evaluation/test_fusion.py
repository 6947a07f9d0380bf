import pytest
from hypothesis import given
from hypothesis import strategies as st

from m2dr.core.records import Ranking, Run
from m2dr.evaluation.runs import reciprocal_ranks

SCORES = st.one_of(st.floats(-1000, 1000, width=32), st.sampled_from([0.0, 1.0, 0.5, -3.0]))
RUNS = st.builds(
    Run,
    st.dictionaries(
        st.sampled_from(["q1", "q2", "q3"]),
        st.dictionaries(st.sampled_from("abcdefgh"), SCORES, max_size=8).map(
            lambda found: Ranking.of(list(found), found.values())
        ),
        max_size=3,
    ),
)
MANY = st.lists(RUNS, min_size=2, max_size=4)


def naive_ranks(runs: list[Run], offset: float, query: str) -> dict[str, float]:
    """Cormack et al. 2009, for every document looking it up in every run."""
    ranked = [one.rankings[query].docids for one in runs if query in one.rankings]
    return {
        docid: sum(1 / (offset + 1 + docids.index(docid)) for docids in ranked if docid in docids)
        for docid in set().union(*ranked)
    }


@given(runs=MANY, offset=st.sampled_from([0.0, 1.0, 60.0, 100.5]))
def test_ranks_fuse_as_the_formula_says(runs: list[Run], offset: float) -> None:
    fused = reciprocal_ranks(runs, offset=offset)

    assert fused.rankings.keys() == {query for one in runs for query in one.rankings}
    for query, ranking in fused.rankings.items():
        found = dict(zip(ranking.docids, ranking.scores, strict=True))
        assert found == pytest.approx(naive_ranks(runs, offset, query))


@given(runs=MANY, k=st.integers(1, 9))
def test_a_fused_run_keeps_the_one_rule_for_ties(runs: list[Run], k: int) -> None:
    whole, cut = reciprocal_ranks(runs), reciprocal_ranks(runs, k)

    for query, ranking in whole.rankings.items():
        ordered = sorted(zip(ranking.scores, ranking.docids, strict=True), reverse=True)
        assert list(ranking.docids) == [docid for _, docid in ordered]
        assert cut.rankings[query].docids == ranking.docids[:k]
