import inspect
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from trec import Judged, World, run_of, trec_eval, worlds

from m2dr.core.errors import UserError
from m2dr.core.records import Judgement, Ranking, Run
from m2dr.evaluation.measures import (
    DEFAULT,
    Evaluator,
    RowEvaluator,
    default_measures,
    measure,
    parse,
)

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


def test_a_judged_query_without_a_ranking_counts_as_0_in_the_mean() -> None:
    run = Run({"q1": Ranking.of(["d"], [1.0]), "q2": Ranking.of([], [])})

    scores = measure(run, [Judgement(q, "d", 1) for q in ("q1", "q2", "q3", "q4")])

    assert scores.per_query["RR@10"] == {"q1": 1.0, "q2": 0.0, "q3": 0.0, "q4": 0.0}
    assert scores.mean == dict.fromkeys(DEFAULT, 0.25)


@pytest.mark.parametrize("level", [-1, -100])
def test_levels_below_0_are_never_relevant_and_never_fatal(level: int) -> None:
    # pytrec_eval itself ends the process when a query has nothing but -2, and may hang at -1.
    run = run_of({"q1": {"a": 2.0, "b": 1.0}, "q2": {"a": 1.0}})
    judged = [Judgement("q1", "a", level), Judgement("q1", "b", 2), Judgement("q2", "a", level)]

    scores = measure(run, judged, ["RR@10", "R@10", "nDCG@1"])

    assert scores.mean == {"RR@10": 0.25, "R@10": 0.5, "nDCG@1": 0.0}


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
        ("R", "its cutoff is missing"),
        ("nDCG@0", "its cutoff is 0 and must be a whole number from 1"),  # would end the process
        ("AP(rel=0)", "its rel is 0 and must be a whole number from 1"),
        ("nDCG(depth=3)@10", "it has no parameter depth; it has cutoff"),
        ("alpha_nDCG@10", "none of pytrec_eval, .* computes it"),
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
        ("msmarco", "dev.small", "MS MARCO dev"),
        ("msmarco/passage-pool", "dev_in_pool", "MS MARCO dev"),
        ("msmarco/passage-pool", "dl19", "TREC deep learning"),
        ("msmarco", "2019-pass", "TREC deep learning"),
        ("irds:msmarco-passage/trec-dl-2020/judged msmarco-passage", "trec-dl-2020-judged",
         "TREC deep learning"),
        ("msmarco-passage", "trec-dl-2019", "TREC deep learning"),
        ("irds:msmarco-passage/dev/small msmarco-passage", "dev-small", "MS MARCO dev"),
        ("msmarco", "train", "other data"),
        ("beir/nfcorpus", "dev", "BEIR"),
        ("irds:beir/nq beir-nq", "test", "BEIR"),
        ("cqadupstack/android", "test", "BEIR"),
        ("nq-mine", "test", "other data"),
        ("pydocs", "test", "other data"),
    ],
)  # fmt: skip
def test_names_decide_the_default_measures(corpus: str, split: str, name: str) -> None:
    assert default_measures(corpus, split).name == name
