import gzip
from pathlib import Path

import pytest
import pytrec_eval
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from m2dr.core.errors import UserError
from m2dr.core.records import Judgement, Ranking, Run
from m2dr.data.qrels import read_judgements
from m2dr.evaluation.runs import read_run, reciprocal_ranks, write_qrels, write_run

# Neighbours as float32, and one number in eight digits.
NEIGHBOURS = [1073741760.0, 1073741696.0]
FLOAT32_EXTREMES = [3.4028234663852886e38, -3.4028234663852886e38, 1.401298464324817e-45, -0.0]
SCORES = st.one_of(
    st.floats(width=32, allow_nan=False),
    st.sampled_from([0.0, 1.0, 1.0000001192092896, float("inf"), *NEIGHBOURS, *FLOAT32_EXTREMES]),
)
WORDS = st.text(
    st.characters(exclude_categories=["Cs", "Zs", "Zl", "Zp", "Cc"]), min_size=1, max_size=4
)
RUNS = st.builds(
    Run,
    st.dictionaries(
        WORDS,
        st.dictionaries(WORDS, SCORES, min_size=1, max_size=8).map(
            lambda found: Ranking.of(list(found), found.values())
        ),
        max_size=4,
    ),
)
# Each example overwrites the file of the one before, so one folder serves them all.
one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@one_folder
@given(run=RUNS)
@pytest.mark.parametrize("name", ["run.txt", "run.txt.gz"])
def test_reading_what_was_written_gives_the_same_run(name: str, run: Run, tmp_path: Path) -> None:
    write_run(run, tmp_path / name)

    assert read_run(tmp_path / name) == run


@one_folder
@given(run=RUNS)
def test_trec_eval_ranks_the_file_as_the_run_does(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    write_run(run, path)

    with path.open(encoding="utf-8", newline="\n") as file:
        found = pytrec_eval.parse_run(file)
    relevant = {f"{q} {d}": {d: 1} for q in found for d in found[q]}
    evaluator = pytrec_eval.RelevanceEvaluator(relevant, {"recip_rank"})
    measured = evaluator.evaluate({f"{q} {d}": found[q] for q in found for d in found[q]})
    ranks = {pair: round(1 / measured[pair]["recip_rank"]) for pair in measured}
    assert ranks == {
        f"{query} {docid}": rank
        for query, ranking in run.rankings.items()
        for rank, docid in enumerate(ranking.docids, start=1)
    }


def test_a_compressed_run_has_the_same_bytes_every_time(tmp_path: Path) -> None:
    run = Run({"q": Ranking.of(["d"], [1.0])})

    write_run(run, tmp_path / "run.gz")

    packed = (tmp_path / "run.gz").read_bytes()
    assert packed[3:8] == bytes(5)  # no file name and no time
    assert gzip.decompress(packed) == b"q Q0 d 1 1 m2dr\n"


def test_the_order_of_lines_and_the_rank_column_decide_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    mark = "\ufeff"  # as Windows has it
    path.write_text(
        f"{mark}q Q0 a 1 0.5 x\np Q0 a 1 2 x\nq\tQ0\tb\t2\t0.5\tx\r\nq Q0 c 3.0 7e-1 x y"
    )

    run = read_run(path)

    assert run.rankings["q"] == Ranking.of(["c", "b", "a"], [0.7, 0.5, 0.5])
    assert run.rankings["p"].docids == ("a",)


GOOD = "q Q0 d1 1 2.5 x\n"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("q Q0 d2 2 1.5", "5 columns"),
        ("q Q0 d2 2 nan x", "score"),
        ("q Q0 d1 2 1.5 x", "d1 .* twice"),
        (b"q Q0 \xff 2 1.5 x", "can't decode byte 0xff"),
    ],
)
def test_a_malformed_line_is_refused_with_its_place_and_reason(
    bad: str | bytes, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.txt"
    path.write_bytes(GOOD.encode() + (bad.encode() if isinstance(bad, str) else bad))

    with pytest.raises(UserError, match=rf"run\.txt, line 2: .*{reason}"):
        read_run(path)


@pytest.mark.parametrize("word", ["", "two words", "half\ud800", "\0", "a\u000bb"])
@pytest.mark.parametrize("place", ["query id", "document id", "tag"])
def test_what_no_column_can_hold_is_refused_before_a_file_appears(
    place: str, word: str, tmp_path: Path
) -> None:
    words = {"query id": "q", "document id": "d", "tag": "m2dr"} | {place: word}
    run = Run({words["query id"]: Ranking((words["document id"],), (1.0,))})

    with pytest.raises(UserError, match=f"The {place} .* cannot be written to a run"):
        write_run(run, tmp_path / "run.txt", tag=words["tag"])
    assert list(tmp_path.iterdir()) == []


def test_judgements_are_written_as_trec_eval_reads_them(tmp_path: Path) -> None:
    judged = [Judgement("q1", "d1", 2), Judgement("q1", "d2", -1), Judgement("q\u00a02", "d1", 0)]

    write_qrels(judged, tmp_path / "qrels.tsv")

    text = (tmp_path / "qrels.tsv").read_text()
    assert text == "q1\t0\td1\t2\nq1\t0\td2\t-1\nq\u00a02\t0\td1\t0\n"
    assert list(read_judgements(tmp_path / "qrels.tsv")) == judged


@pytest.mark.parametrize(
    "lines", ["q\ta\t2.5\nq\tb\t9\nr\ta\t1\n", "q\tb\t1\nq\ta\t2\nr\ta\t1\n", "q\ta\t2\nr\ta\t1\nq\tb\t1\n", "q Q0 a 1 1 x\nq Q0 b 2 2 x\nr Q0 a 1 1 x"]
)  # fmt: skip
def test_three_columns_are_scores_of_tevatron_or_ranks_of_ms_marco(
    lines: str, tmp_path: Path
) -> None:
    (tmp_path / "run.txt").write_text(lines)

    rankings = read_run(tmp_path / "run.txt").rankings

    assert {query: list(ranking.docids) for query, ranking in rankings.items()} == {
        "q": ["b", "a"], "r": ["a"]
    }  # fmt: skip


# Fusion


ALIKE = st.builds(
    Run,
    st.dictionaries(
        st.sampled_from(["q1", "q2", "q3"]),
        st.dictionaries(st.sampled_from("abcdefgh"), st.integers(-3, 3), max_size=8).map(
            lambda found: Ranking.of(list(found), found.values())
        ),
        max_size=3,
    ),
)
MANY = st.lists(ALIKE, min_size=2, max_size=4)


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
