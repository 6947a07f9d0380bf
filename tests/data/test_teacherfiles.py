"""Files of a teacher's scores, in the forms that they are published in."""

import gzip
import json
import pickle
from math import isfinite
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import piped

from m2dr.core.errors import UserError
from m2dr.data.teachers import read_scores

Found = list[tuple[str, str, float, str]]  # query, document, score, and what it is relative to


def found_in(path: Path) -> Found:
    return [(s.query_id, s.docid, s.value, s.origin) for s in read_scores(path)]


PAIRS: Found = [("q1", "d1", 9.25, ""), ("q1", "d2", -1.5, ""), ("q2", "d1", 0.5, "")]
FORMS = {
    "a TREC run": ("q1 Q0 d1 1 9.25 ce", "q1 Q0 d2 2 -1.5 ce", "q2 Q0 d1 1 .5 ce"),
    "a run parted by tabs": ("q1\tQ0\td1\t1\t9.25\tce", "q1\t0\td2\t2\t-1.5\tce", "q2\t0\td1\t1\t5e-1\tce"),
    "columns": ("q1\td1\t9.25", "q1\td2\t-1.5", "q2\td1\t0.5"),
    "columns with a header": ("query-id\tcorpus-id\tscore", "q1\td1\t9.25", "q1\td2\t-1.5", "q2\td1\t.5"),
    "spaces and blank lines": ("q1 d1 9.25", "", "q1  d2  -1.5", "q2 d1 0.5", ""),
    "an object per query": ({"q1": {"d1": 9.25, "d2": -1.5}}, {"q2": {"d1": 0.5}}),
    "one object": ({"q1": {"d1": 9.25, "d2": -1.5}, "q2": {"d1": 0.5}},),
    "lists": (
        {"query_id": "q1", "document_ids": ["d1", "d2"], "scores": [9.25, -1.5]},
        {"qid": "q2", "pids": ["d1"], "scores": [0.5]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_the_same(form: str, suffix: str, write) -> None:
    assert found_in(write(f"scores{suffix}", *FORMS[form])) == PAIRS


def test_triples_with_two_scores_are_read_as_published_with_the_scores_first(write) -> None:
    path = write(
        "bert_cat_ensemble_msmarcopassage_train_scores_ids.tsv",
        "7.1\t-2.5\t400296\t1540783\t3518497",
        "7.1\t3\t400296\t1540783\t100008",
    )

    assert found_in(path) == [
        ("400296", "1540783", 7.1, ""),
        ("400296", "3518497", -2.5, ""),
        ("400296", "1540783", 7.1, ""),
        ("400296", "100008", 3.0, ""),
    ]


def test_a_margin_is_a_score_relative_to_its_positive(write) -> None:
    path = write("gpl-training-data.tsv", "genQ1\tp\tn\t6.5", "genQ1\tp\tm\t-0.25")

    assert found_in(path) == [
        ("genQ1", "p", 0.0, "p"),
        ("genQ1", "n", -6.5, "p"),
        ("genQ1", "p", 0.0, "p"),
        ("genQ1", "m", 0.25, "p"),
    ]


def test_ids_that_are_numbers_are_ids(write) -> None:
    row = {"query_id": 7, "document_ids": [1, 2], "scores": [3, 4]}

    assert found_in(write("s.jsonl", row)) == [("7", "1", 3.0, ""), ("7", "2", 4.0, "")]


@given(
    st.dictionaries(
        st.text("abc0", min_size=1, max_size=4),
        st.dictionaries(
            st.text("xyz1", min_size=1, max_size=4),
            st.floats(-1e6, 1e6, allow_nan=False),
            min_size=1,
        ),
        min_size=1,
    )
)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, scores) -> None:
    folder = tmp_path_factory.mktemp("scores")
    expected = [(q, d, v, "") for q, documents in scores.items() for d, v in documents.items()]
    (folder / "s.jsonl").write_text(json.dumps(scores) + "\n")
    (folder / "s.tsv").write_text("".join(f"{q}\t{d}\t{v!r}\n" for q, d, v, _ in expected))

    assert found_in(folder / "s.jsonl") == found_in(folder / "s.tsv") == expected


BAD = [
    (("q1 Q0 d1 1 nan ce",), "line 1: the score is 'nan', not a finite number"),
    (("q1\td1\tinf",), "line 1: the score is 'inf', not a finite number"),
    (("q1\td1\t1", "q1\td2\thigh"), "line 2: the score is 'high', not a finite number"),
    (("q1\td1\t1", "q1\td2"), "line 2: has 2 columns, and line 1 has 3"),
    (("q1\td1",), "line 1: has 2 columns; scores have 3 .query, document, score., 4 "),
    (("q1\td1\t\t\t\t\t",), "line 1: has 7 columns"),
    (("q1\tp\tn\tbig",), "line 1: the margin is 'big', not a finite number"),
    (("1\tx\tq\tp\tn",), "line 1: the score is 'x', not a finite number"),
    (("\td1\t1",), "line 1: the query id '' is empty"),
    (({"q1": 3},), "line 1: holds 3 under 'q1'; a line is {query: {document: score}}"),
    (({"q1": {"d1": True}},), "line 1: the score is True, not a finite number"),
    (({"q1": {"d1": None}},), "line 1: the score is None"),
    (('{"q1": {"d1": NaN}}',), "line 1: the score is nan"),
    (("{",), "line 1: is not JSON"),
    (({"q1": {"d1": 1}}, "[1]"), "line 2: is not a JSON object"),
    (({"qid": 1, "docids": ["a"], "scores": [1, 2]},), "line 1: has 2 scores for 1 document; give"),
    (({"qid": 1, "docids": "a", "scores": [1]},), "line 1: has document ids or scores that are no"),
    ((), "holds no line"),
]


@pytest.mark.parametrize(("lines", "sentence"), BAD)
def test_what_is_malformed_is_named_by_file_and_line(lines, sentence: str, write) -> None:
    with pytest.raises(UserError, match=rf"scores.tsv.*{sentence}"):
        found_in(write("scores.tsv", *lines))


ATOMS = st.sampled_from(
    ["q", "Q0", "d", "1", "-.5", "nan", "1e999", "9" * 400, '"', "{", "[", "\t", " ", "\n", "\0", "é", ":", "null"]
)  # fmt: skip


@given(st.lists(ATOMS, max_size=30).map("".join).map(str.encode) | st.binary(max_size=40))
def test_any_bytes_are_finite_scores_or_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "scores.tsv"
    path.write_bytes(data)

    found, refusal = [], None
    try:
        found = found_in(path)
    except UserError as error:
        refusal = str(error)

    assert refusal is None or "scores.tsv" in refusal
    assert all(isfinite(value) and query and docid for query, docid, value, _ in found)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["scores.pkl", "scores.pickle", "scores.bin"])
def test_a_pickle_is_refused_unread_whatever_it_is_called(
    name: str, packed: bool, tmp_path: Path
) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return exec, ("raise SystemExit('it was read')",)

    data = pickle.dumps({"q1": {"d1": Trap()}})
    path = tmp_path / f"{name}{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(data) if packed else data)

    with pytest.raises(
        UserError, match=r"is a pickle, and reading a pickle can run any code.*lines of JSON"
    ):
        found_in(path)


def test_a_pipe_and_a_file_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="pipe"):
        found_in(piped(b"q1\td1\t1\n"))
    with pytest.raises(UserError, match=r"none\.trec cannot be read: No such file"):
        found_in(tmp_path / "none.trec")
