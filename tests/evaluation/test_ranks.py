"""Measures of many queries at once, against pytrec_eval on the run file."""

from pathlib import Path

import ir_measures
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trec import Judged, World, run_of, trec_eval, worlds

from m2dr.core.records import Judgement, Ranking, Run
from m2dr.evaluation.measures import (
    FORMULAS,
    Evaluator,
    JudgedRanks,
    RowEvaluator,
    drop_own,
    has_formula,
    overall,
)
from m2dr.evaluation.runs import write_run

# Ours -> relevance level and name of trec_eval.
TREC = {
    "nDCG@10": (1, "ndcg_cut_10"),
    "nDCG@3": (1, "ndcg_cut_3"),
    "nDCG": (1, "ndcg"),
    "AP": (1, "map"),
    "AP(rel=2)": (2, "map"),
    "AP@5": (1, "map_cut_5"),
    "AP(rel=2)@7": (2, "map_cut_7"),
    "RR": (1, "recip_rank"),
    "RR(rel=2)": (2, "recip_rank"),
    "R@100": (1, "recall_100"),
    "R(rel=2)@100": (2, "recall_100"),
    "R@1000": (1, "recall_1000"),
    "P@5": (1, "P_5"),
    "P(rel=2)@5": (2, "P_5"),
    "Success@1": (1, "success_1"),
    "Bpref": (1, "bpref"),  # has no formula here: a provider computes it
}
one_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50
)


def by_rows(run: Run, judged: Judged, names: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Measure -> query -> value, by row numbers."""
    docids = sorted({d for ranking in run.rankings.values() for d in ranking.docids}) or ["d0"]
    rows = {docid: row for row, docid in enumerate(docids)}
    deepest = max((len(ranking.docids) for ranking in run.rankings.values()), default=0)
    found = np.full((len(run), deepest), -1, np.int64)
    for line, ranking in zip(found, run.rankings.values(), strict=True):
        line[: len(ranking.docids)] = [rows[docid] for docid in ranking.docids]
    evaluator = RowEvaluator(
        [Judgement(q, d, level) for q, docs in judged.items() for d, level in docs.items()],
        names,
        list(run.rankings),
        lambda wanted: {docid: rows[docid] for docid in wanted if docid in rows},
    )
    values = evaluator.per_query(found, lambda: run)
    return {
        name: dict(zip(evaluator.query_ids, one.tolist(), strict=True))
        for name, one in values.items()
    }


@one_folder
@given(world=worlds())
def test_every_measure_is_that_of_pytrec_eval_on_the_written_run(
    world: World, tmp_path: Path
) -> None:
    found, judged = world
    run = run_of(found)
    write_run(run, tmp_path / "run.trec")
    lines = [line.split() for line in (tmp_path / "run.trec").read_text().splitlines()]
    raw: dict[str, dict[str, float]] = {}
    for query, _, docid, _, score, _ in lines:
        raw.setdefault(query, {})[docid] = float(score)

    values = by_rows(run, judged, (*TREC, "RR@10"))

    names = [theirs for _, theirs in TREC.values()]
    trec = {level: trec_eval(raw, judged, names, level) for level in (1, 2)}
    for ours, (level, theirs) in TREC.items():
        expected = {query: trec[level][query][theirs] for query in judged}
        assert values[ours] == pytest.approx(expected, abs=1e-9), ours
        mean = sum(expected.values()) / len(judged)
        assert overall(ours, list(values[ours].values())) == pytest.approx(mean, abs=1e-9)
    ranks = {query: trec[1][query]["recip_rank"] for query in judged}
    assert values["RR@10"] == pytest.approx(
        {q: one if one >= 0.1 else 0 for q, one in ranks.items()}
    )


@pytest.mark.parametrize("name", ["Bpref", "nDCG(dcg='exp-log2')@10", "P(judged_only=True)@5"])
def test_what_has_no_formula_is_left_to_a_provider(name: str) -> None:
    assert not has_formula(ir_measures.parse_measure(name))
    assert all(has_formula(ir_measures.parse_measure(one)) for one in TREC if one != "Bpref")


@given(seed=st.integers(0, 999), k=st.integers(1, 6))
def test_leaving_out_the_own_document_is_what_a_ranking_does(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    scores = -np.sort(-rng.integers(0, 4, (5, k + 1))).astype(np.float32)
    rows = np.stack([rng.permutation(k + 1) for _ in range(5)])
    # Equal scores: the higher id first.
    rows = np.stack([line[np.lexsort((-line, -s))] for line, s in zip(rows, scores, strict=True)])
    own = rng.integers(-1, k + 3, 5).tolist()

    kept, values = drop_own(rows, scores, own, k)

    for line in range(5):
        docids = [f"{row:03d}" for row in rows[line]]
        expected = Ranking.of(docids, scores[line], k, drop=f"{own[line]:03d}")
        held = kept[line] >= 0
        assert tuple(f"{row:03d}" for row in kept[line][held]) == expected.docids
        assert tuple(values[line][held]) == expected.scores


def test_a_measure_of_ones_own_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(ranks: JudgedRanks, rel: int, cutoff: int | None) -> np.ndarray:
        return ranks.count(ranks.found(rel, cutoff)).astype(np.float64)

    monkeypatch.setitem(FORMULAS, "Found", found)
    judged = {"q1": {"a": 2, "b": 1, "c": 0}, "q2": {"a": 1}, "q3": {"z": 1}}
    run = Run({"q1": Ranking.of(["c", "a", "b"], [3, 2, 1]), "q2": Ranking.of(["b"], [1])})
    names = ("Found@3", "Found(rel=2)@3", "RR@10")

    rows = [Judgement(q, d, level) for q, levels in judged.items() for d, level in levels.items()]
    scores = Evaluator(rows, names).scores(run).per_query

    assert scores["Found@3"] == {"q1": 2, "q2": 0, "q3": 0}
    assert scores["Found(rel=2)@3"] == {"q1": 1, "q2": 0, "q3": 0}
    assert by_rows(run, judged, names) == scores
