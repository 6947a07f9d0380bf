from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.evaluate.grid import (
    SCORES,
    LayerScores,
    LayerScoresFile,
    Provenance,
    QueryScores,
    join_layers,
    read_scores,
    write_provenance,
    write_scores,
)

CUTS = (Cut(1, 8), Cut(2, 16))
one_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30
)


def scores(name: str = "RR@10", ids: tuple[str, ...] = ("q1", "q2")) -> QueryScores:
    return QueryScores(name, CUTS, ids, np.arange(2.0 * len(ids)).reshape(2, -1))


@one_folder
@given(
    ids=st.lists(st.text(), min_size=1, max_size=4, unique=True),
    names=st.lists(st.text(min_size=1), min_size=1, max_size=3, unique=True),
    data=st.data(),
)
def test_reading_what_was_written_gives_the_same_scores(
    ids: list[str], names: list[str], data: st.DataObject, tmp_path: Path
) -> None:
    finite = arrays(np.float64, (2, len(ids)), elements=st.floats(-9, 9))
    some = [QueryScores(name, CUTS, tuple(ids), data.draw(finite)) for name in names]

    write_scores(some, tmp_path)

    found = read_scores(tmp_path)
    assert list(found) == names
    for one in some:
        again = found[one.measure]
        assert (again.cuts, again.query_ids) == (CUTS, tuple(ids))
        np.testing.assert_array_equal(again.values, one.values)


def test_the_values_of_a_cut_are_found_by_the_cut() -> None:
    assert scores().at(Cut(2, 16)).tolist() == [2.0, 3.0]
    with pytest.raises(UserError, match=r"no RR@10 scores of L2D8\. Did you mean"):
        scores().at(Cut(2, 8))


def test_a_value_that_is_not_a_number_is_named() -> None:
    with pytest.raises(UserError, match="RR of query b at L2D16 is not a number"):
        QueryScores("RR", CUTS, ("a", "b"), np.array([[0.0, 1.0], [0.0, np.nan]]))


def test_values_of_another_shape_are_refused() -> None:
    with pytest.raises(UserError, match=r"shape \(1, 2\) where 2 cuts of 2 queries belong"):
        QueryScores("RR", CUTS, ("a", "b"), np.zeros((1, 2)))


def test_scores_that_are_not_there_name_the_command_that_makes_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="make them by evaluating that model again"):
        read_scores(tmp_path)

    write_provenance(
        Provenance("m2dr evaluate beir --corpus 'my data'", "m", "my data", "test", "f"), tmp_path
    )
    with pytest.raises(UserError, match="make them with: m2dr evaluate beir --corpus 'my data'$"):
        read_scores(tmp_path)


@pytest.mark.parametrize("cut", [0, 10, 200, -30])
def test_a_damaged_file_is_a_sentence(cut: int, tmp_path: Path) -> None:
    write_scores([scores()], tmp_path)
    whole = (tmp_path / SCORES).read_bytes()
    (tmp_path / SCORES).write_bytes(whole[:cut])

    with pytest.raises(UserError, match=r"that m2dr wrote: it is not a zip file\. Make it again "):
        read_scores(tmp_path)


def test_a_file_of_another_kind_or_format_is_a_sentence(tmp_path: Path) -> None:
    np.savez(tmp_path / SCORES, vectors=np.zeros(3))
    with pytest.raises(UserError, match="is not a file of scores that m2dr wrote: no 'format"):
        read_scores(tmp_path)
    np.savez(tmp_path / SCORES, format=np.frombuffer(b"9", np.uint8))
    with pytest.raises(UserError, match="its format is 9 and this m2dr reads 1"):
        read_scores(tmp_path)


def part(layer: int) -> LayerScores:
    cuts = [Cut(layer, 8), Cut(layer, 16)]
    values = {cut: {"RR": np.array([cut.dim / 100, 0.5])} for cut in cuts}
    counts = dict.fromkeys(cuts, layer)
    return LayerScores.of(("q1", "q2"), values, counts, dict.fromkeys(cuts, 0), {"unanswered": 1})


def test_a_part_is_found_by_its_own_question_alone(tmp_path: Path) -> None:
    file = LayerScoresFile(tmp_path, 2, 6, {"measures": ["RR"]})
    file.write(part(2))

    again = LayerScoresFile(tmp_path, 2, 6, {"measures": ["RR"]}).read()
    assert again is not None
    assert (again.tied, again.facts) == ({Cut(2, 8): 2, Cut(2, 16): 2}, {"unanswered": 1})
    np.testing.assert_array_equal(again.scores["RR"].values, [[0.08, 0.5], [0.16, 0.5]])
    assert LayerScoresFile(tmp_path, 2, 6, {"measures": ["AP"]}).read() is None
    assert LayerScoresFile(tmp_path, 2, 5, {"measures": ["RR"]}).read() is None


def test_a_damaged_part_is_measured_again(tmp_path: Path) -> None:
    file = LayerScoresFile(tmp_path, 2, 6, {})
    file.write(part(2))
    file.path.write_bytes(file.path.read_bytes()[:100])

    assert file.read() is None


def test_what_a_layer_answered_to_any_question_is_forgotten_together(tmp_path: Path) -> None:
    old, other = (
        LayerScoresFile(tmp_path, 2, 6, {"was": 1}),
        LayerScoresFile(tmp_path, 3, 6, {"was": 1}),
    )
    old.write(part(2))
    other.write(part(3))

    LayerScoresFile(tmp_path, 2, 6, {"is": 1}).forget()

    assert (old.read(), other.read() is None) == (None, False)


def test_parts_join_with_the_smallest_cut_first() -> None:
    found = join_layers([part(3), part(1)])["RR"]

    assert found.cuts == (Cut(1, 8), Cut(1, 16), Cut(3, 8), Cut(3, 16))
    assert found.values[:, 0].tolist() == [0.08, 0.16, 0.08, 0.16]
