import inspect
import subprocess
import sys
from pathlib import Path

import ir_measures
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from trec import Judged, World, run_of, trec_eval, worlds

from m2dr.core.errors import UserError
from m2dr.core.records import Judgement, Ranking, Run
from m2dr.evaluation.measures import (
    Evaluator,
    RowEvaluator,
    default_measures,
    has_formula,
    measure,
    overall,
    parse,
)
from m2dr.evaluation.runs import write_run

# Ours -> what trec_eval calls it. RR@10 has no name there: recip_rank of the ten best documents.
TREC = {"nDCG@10": "ndcg_cut_10", "R@100": "recall_100", "R@1000": "recall_1000"}


def judgements(judged: Judged) -> list[Judgement]:
    return [
        Judgement(q, d, relevance) for q, docs in judged.items() for d, relevance in docs.items()
    ]


@given(world=worlds())
def test_measures_are_those_of_pytrec_eval_on_the_raw_scores(
    world: World,
) -> None:
    found, judged = world

    scores = measure(run_of(found), judgements(judged), tuple(TREC))

    expected = trec_eval(found, judged, list(TREC.values()))
    for ours, theirs in TREC.items():
        values = {query: expected[query][theirs] for query in judged}
        assert scores.per_query[ours] == pytest.approx(values, abs=1e-9)
        assert scores.mean[ours] == pytest.approx(sum(values.values()) / len(judged), abs=1e-9)


@given(world=worlds())
def test_measured_together_or_alone_a_measure_is_the_same(
    world: World,
) -> None:
    found, judged = world
    names = ("AP", "nDCG@3", "P(rel=2)@5", "R(judged_only=True)@5", "RR", "RR@2", "Judged@4")

    together = measure(run_of(found), judgements(judged), names).per_query

    alone = [measure(run_of(found), judgements(judged), [name]).per_query for name in names]
    assert together == {name: values for one in alone for name, values in one.items()}


def test_the_order_of_the_run_decides_and_not_the_scores_it_came_with() -> None:
    run = Run({"q": Ranking(("a", "b"), (1.0, 1.0))})  # a before b, although b would win a tie

    scores = measure(run, [Judgement("q", "b", 1)], ["RR@10", "RR", "nDCG@1"])

    assert scores.mean == {"RR@10": 0.5, "RR": 0.5, "nDCG@1": 0.0}


def test_judgements_that_are_all_negative_are_measured_and_not_waited_for() -> None:
    program = """
        from m2dr.evaluation.measures import measure
        from m2dr.core.records import Ranking, Run
        from m2dr.core.records import Judgement

        for documents in [*range(1, 30)] * 70:
            docids = [f"d{number}" for number in range(documents)]
            run = Run(dict.fromkeys("qr", Ranking.of(docids, range(documents))))
            judged = [Judgement("q", docid, -1) for docid in docids]
            judged += [Judgement("r", docid, len(docid)) for docid in docids]
            assert measure(run, judged, ["nDCG@10", "nDCG"]).per_query["nDCG"]["q"] == 0
    """

    # In a process of its own: nothing in Python interrupts pytrec_eval.
    subprocess.run([sys.executable, "-c", inspect.cleandoc(program)], timeout=60, check=True)


@pytest.mark.parametrize("odd", ["half\ud800", "zero\0byte", "", "日本"])
def test_any_text_may_be_an_id(odd: str) -> None:
    run = Run({odd: Ranking((odd + "b", odd + "a"), (2.0, 1.0))})

    scores = measure(run, [Judgement(odd, odd + "a", 1)], ["RR", "RR@10"])

    assert scores.per_query == {"RR": {odd: 0.5}, "RR@10": {odd: 0.5}}


def test_counts_are_summed_and_not_averaged() -> None:
    run = run_of({"q1": {"a": 2.0, "b": 1.0}, "q2": {"a": 1.0}})

    scores = measure(run, [Judgement("q1", "a", 1), Judgement("q2", "a", 1)], ["NumRet"])

    assert scores.mean == {"NumRet": 3.0}


@pytest.mark.parametrize(
    ("names", "depth"),
    [
        (["RR@10"], 10),
        (["nDCG@10", "RR@20", "R@5"], 20),
        (["nDCG@10", "AP"], None),
        (["P(judged_only=True)@5"], None),
    ],
)
def test_an_evaluator_says_how_deep_a_ranking_must_go(names: list[str], depth: int | None) -> None:
    assert Evaluator([Judgement("q", "d", 1)], names).depth == depth


def test_judgements_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UserError, match="contradicts another one, of relevance 1"):
        Evaluator([Judgement("q", "d", 1), Judgement("q", "d", 0)])


def test_measures_keep_their_order_and_each_comes_once() -> None:
    assert list(map(str, parse(["R@100", "NDCG@10", "nDCG@10", "MRR@10"]))) == [
        "R@100",
        "nDCG@10",
        "RR@10",
    ]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("R", "cutoff"),
        ("nDCG@0", "cutoff is 0"),  # would end the process
        ("nDCG(depth=3)@10", "depth"),
        ("alpha_nDCG@10", "pytrec_eval"),
    ],
)
def test_a_measure_that_cannot_be_computed_says_why(name: str, problem: str) -> None:
    with pytest.raises(UserError, match=f"cannot be measured: .*{problem}"):
        parse([name])


def test_fractions_are_gains_of_ndcg_and_rounded_for_trec_eval(
    capsys: pytest.CaptureFixture[str],
) -> None:
    judgements = [Judgement("q", "a", 1), Judgement("q", "b", 0.5), Judgement("q", "c", 0.4)]
    run = Run({"q": Ranking.of(["c", "b", "a"], [3, 2, 1])})
    names = ["nDCG@10", "R@2", "P@1", "Rprec"]
    of_rows = RowEvaluator(judgements, names, ["q"], lambda _: {"a": 0, "b": 1, "c": 2})

    mean = Evaluator(judgements, names).scores(run).mean
    rows = of_rows.per_query(np.array([[2, 1, 0]]), lambda: run)

    gains, places = np.array([[0.4, 0.5, 1.0], [1.0, 0.5, 0.4]]), np.log2([2, 3, 4])
    found, ideal = (gains / places).sum(axis=1)
    assert mean == pytest.approx({"nDCG@10": found / ideal, "R@2": 0.5, "P@1": 0, "Rprec": 0.5})
    assert mean == pytest.approx({name: values[0] for name, values in rows.items()})
    assert (
        "2 judgements are rounded to whole numbers for R@2, P@1, Rprec" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "name", ["map", "ndcg", "ndcg_cut_10", "recip_rank", "P_5", "recall_100", "success_1", "Rprec"]
)
def test_names_of_trec_eval(name: str) -> None:
    judged = {"q": {"a": 1, "b": 0, "c": 2, "d": 1}}
    run = Run({"q": Ranking.of(["b", "c", "x", "a"], [4.0, 3.0, 2.0, 1.0])})
    judgements = [Judgement("q", docid, level) for docid, level in judged["q"].items()]

    (value,) = measure(run, judgements, [name]).mean.values()

    family, _, cutoff = name.rpartition("_") if name[-1].isdigit() else (name, "", "")
    scored = {"q": {docid: float(-rank) for rank, docid in enumerate(["b", "c", "x", "a"])}}
    expected = trec_eval(scored, judged, [f"{family}.{cutoff}" if cutoff else name])
    assert value == pytest.approx(expected["q"][name])


# Defaults


@pytest.mark.parametrize(
    ("corpus", "split", "name"),
    [
        ("msmarco/passage-pool", "dev_in_pool", "MS MARCO dev"),
        ("msmarco/passage-pool", "dl19", "TREC deep learning"),
        ("msmarco", "2019-pass", "TREC deep learning"),
        ("irds:msmarco-passage/trec-dl-2020/judged msmarco-passage", "trec-dl-2020-judged",
         "TREC deep learning"),
        ("irds:msmarco-passage/dev/small msmarco-passage", "dev-small", "MS MARCO dev"),
        ("msmarco", "train", "other data"),
        ("irds:beir/nq beir-nq", "test", "BEIR"),
        ("cqadupstack/android", "test", "BEIR"),
        ("pydocs", "test", "other data"),
    ],
)  # fmt: skip
def test_names_decide_the_default_measures(corpus: str, split: str, name: str) -> None:
    assert default_measures(corpus, split).name == name


# Many queries at once, against pytrec_eval on the run file


# Ours -> relevance level and name of trec_eval.
LEVELS = {
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

    values = by_rows(run, judged, (*LEVELS, "RR@10"))

    names = [theirs for _, theirs in LEVELS.values()]
    trec = {level: trec_eval(raw, judged, names, level) for level in (1, 2)}
    for ours, (level, theirs) in LEVELS.items():
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
    assert all(has_formula(ir_measures.parse_measure(one)) for one in LEVELS if one != "Bpref")
