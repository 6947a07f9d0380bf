from pathlib import Path

import pytest

from m2dr.core.errors import UserError
from m2dr.core.records import Judgement
from m2dr.data.qrels import read_judgements
from m2dr.evaluate.runs import write_qrels


def test_judgements_are_written_as_trec_eval_reads_them(tmp_path: Path) -> None:
    judged = [Judgement("q1", "d1", 2), Judgement("q1", "d2", -1), Judgement("q2", "d1", 0)]

    write_qrels(judged, tmp_path / "qrels.tsv")

    text = (tmp_path / "qrels.tsv").read_text()
    assert text == "q1\t0\td1\t2\nq1\t0\td2\t-1\nq2\t0\td1\t0\n"
    assert [one for _, one in read_judgements(tmp_path / "qrels.tsv")] == judged


@pytest.mark.parametrize("odd", ["", "two words"])
def test_an_id_that_no_column_can_hold_is_refused(odd: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"query id .* cannot be written to a run or qrels file"):
        write_qrels([Judgement(odd, "d", 1)], tmp_path / "qrels.tsv")
