import csv
import json
from pathlib import Path

from m2dr.core.records import Cut
from m2dr.evaluation.comparison import Comparison, write_comparison
from m2dr.evaluation.significance import Paired


def cell(difference: float, corrected: float) -> Paired:
    return Paired(difference, -0.1, 0.1, None, 0.01, 0.02, 0.001, corrected, 5, 3, 1)


COMPARISON = Comparison(
    model="full-dim",
    place="pydocs test",
    measure="nDCG@10",
    queries=9,
    baseline="plain",
    against="the same cut of plain",
    alpha=0.05,
    values={Cut(2, 8): 0.25, Cut(2, 16): 1.0, Cut(12, 8): 0.5, Cut(12, 16): 0.125},
    cells={
        Cut(2, 8): cell(0.0625, 0.05), Cut(2, 16): cell(-0.5, 0.01), Cut(12, 8): cell(0.00001, 1.0)
    },
    notes=("plain was not measured at L12D16, which are not compared",),
)  # fmt: skip


def test_a_table_marks_every_cell_and_says_by_which_rule() -> None:
    assert str(COMPARISON).splitlines() == [
        "full-dim against the same cut of plain: nDCG@10 on pydocs test, 9 queries",
        "layer      8       16",
        "    2  .2500▲  1.0000▼",
        "   12  .5000=   .1250",
        "▲ better, ▼ worse, = not significantly different from the same cut of plain: paired "
        "randomisation test over 9 queries, two-sided, p <= .05 after Holm's correction over 3 cells",
        "1 ▲, 1 =, 1 ▼",
        "Note: plain was not measured at L12D16, which are not compared",
        "",
        "Difference of nDCG@10",
        "layer       8      16",
        "    2  +.0625  -.5000",
        "   12   .0000       -",
    ]


def test_the_files_hold_each_cell_with_all_its_numbers(tmp_path: Path) -> None:
    as_json, as_csv = write_comparison(COMPARISON, tmp_path / "new" / "nDCG@10-against-plain")

    held = json.loads(as_json.read_text())
    assert (held["model"], held["baseline"]) == ("full-dim", "plain")
    assert held["notes"] == list(COMPARISON.notes)
    assert held["cells"][0] == {
        "layer": 2, "dim": 8, "value": 0.25, "mark": "▲", "difference": 0.0625, "low": -0.1,
        "high": 0.1, "effect": None, "t_p": 0.01, "t_corrected": 0.02, "p": 0.001,
        "corrected": 0.05, "wins": 5, "ties": 3, "losses": 1,
    }  # fmt: skip
    rows = list(csv.DictReader(as_csv.read_text().splitlines()))
    assert [row["mark"] for row in rows] == ["▲", "▼", "="]
    assert list(rows[0]) == list(held["cells"][0])
    assert as_json.name == "nDCG@10-against-plain.json"
