import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m2dr.core.errors import UserError
from m2dr.core.records import Ranking, Run
from m2dr.evaluation.runs import interpolated, reciprocal_ranks

Pairs = list[tuple[str, float]]
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


def run(**queries: dict[str, float]) -> Run:
    return Run({query: Ranking.of(list(d), d.values()) for query, d in queries.items()})


def pairs(fused: Run, query: str = "q") -> Pairs:
    ranking = fused.rankings[query]
    return list(zip(ranking.docids, ranking.scores, strict=True))


def naive_ranks(runs: list[Run], weights: list[float], offset: float, query: str) -> Pairs:
    """Cormack et al. 2009, for every document looking it up in every run."""
    found = []
    for docid in {d for one in runs if query in one.rankings for d in one.rankings[query].docids}:
        score = 0.0
        for one, weight in zip(runs, weights, strict=True):
            docids = one.rankings[query].docids if query in one.rankings else ()
            for place in range(len(docids)):
                if docids[place] == docid:
                    score += weight / (offset + place + 1)
        found.append((docid, score))
    return found


def naive_scaled(scale: str, scores: list[float], score: float | None) -> float:
    """One document's share; None: the ranking does not hold it."""
    if not scores:
        return 0.0
    worst = min(scores)
    if scale == "none":
        return worst if score is None else score
    if scale == "min-max":
        if score is None:
            return 0.0
        return 1.0 if max(scores) == worst else (score - worst) / (max(scores) - worst)
    mean = math.fsum(scores) / len(scores)
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in scores) / len(scores))
    return ((worst if score is None else score) - mean) / deviation if deviation else 0.0


def naive_interpolated(runs: list[Run], weights: list[float], scale: str, query: str) -> Pairs:
    found = []
    for docid in {d for one in runs if query in one.rankings for d in one.rankings[query].docids}:
        total = 0.0
        for one, weight in zip(runs, weights, strict=True):
            ranking = one.rankings.get(query, Ranking((), ()))
            known = dict(zip(ranking.docids, ranking.scores, strict=True))
            total += weight * naive_scaled(scale, list(known.values()), known.get(docid))
        found.append((docid, total))
    return found


def same(fused: Run, query: str, expected: Pairs) -> None:
    found = dict(pairs(fused, query))
    assert found.keys() == dict(expected).keys()
    for docid, score in expected:
        assert found[docid] == pytest.approx(score, rel=1e-5, abs=1e-4)


@given(runs=MANY, offset=st.sampled_from([0.0, 1.0, 60.0, 100.5]), data=st.data())
def test_ranks_fuse_as_the_formula_says(runs: list[Run], offset: float, data) -> None:
    weights = data.draw(st.lists(st.floats(0.1, 5), min_size=len(runs), max_size=len(runs)))

    fused = reciprocal_ranks(runs, weights, offset=offset)

    for query in fused.rankings:
        same(fused, query, naive_ranks(runs, weights, offset, query))


@given(runs=MANY, data=st.data())
@pytest.mark.parametrize("scale", ["min-max", "z", "none"])
def test_scores_fuse_as_the_formula_says(scale: str, runs: list[Run], data) -> None:
    weights = data.draw(st.lists(st.floats(0.1, 1), min_size=len(runs), max_size=len(runs)))

    fused = interpolated(runs, weights, scale=scale)

    for query in fused.rankings:
        same(fused, query, naive_interpolated(runs, weights, scale, query))


@given(runs=MANY, k=st.integers(1, 9))
@pytest.mark.parametrize("fuse", [reciprocal_ranks, interpolated])
def test_a_fused_run_keeps_the_one_rule_for_ties(fuse, runs: list[Run], k: int) -> None:
    whole, cut = fuse(runs), fuse(runs, k=k)

    for query, ranking in whole.rankings.items():
        ordered = sorted(zip(ranking.scores, ranking.docids, strict=True), reverse=True)
        assert list(ranking.docids) == [docid for _, docid in ordered]
        assert cut.rankings[query].docids == ranking.docids[:k]


def test_an_infinite_score_has_no_scale() -> None:
    endless = run(q={"a": math.inf, "b": 1.0})

    with pytest.raises(UserError, match="A score of query q is infinite"):
        interpolated([endless, endless])
    assert reciprocal_ranks([endless, endless]).rankings["q"].docids == ("a", "b")
