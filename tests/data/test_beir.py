from pathlib import Path

import pytest

from m2dr.core.errors import UserError
from m2dr.core.records import Document, Judgement, Query
from m2dr.data.loaders import open_dataset


def test_documents_come_in_file_order_with_their_titles(beir: Path) -> None:
    dataset = open_dataset(str(beir))

    assert list(dataset.documents()) == [
        Document("d1", "They sleep.", title="Cats"),
        Document("d2", "A line separator \u2028 inside."),
        Document("d3", "No title."),
        Document("d4", ""),
    ]
    assert list(dataset.document_ids()) == ["d1", "d2", "d3", "d4"]
    assert dataset.document_count == 4
    assert dataset.name == "tiny"


@pytest.mark.parametrize(
    "lines",
    [
        ("q1\td1\t2", "q2\td2\t0"),
        ("q1 0 d1 2 ", "", "q2\tQ0  d2 0\t"),
        ("# comment", "q1\t0\td1\t2", "q2\t0\td2\t0"),
    ],
)
def test_judgements_may_lack_a_header_or_have_the_columns_of_trec(beir, write, lines) -> None:
    write("tiny/qrels/test.tsv", *lines)

    judgements = open_dataset(str(beir)).judgements("test")

    assert judgements == [Judgement("q1", "d1", 2), Judgement("q2", "d2", 0)]


def test_judgements_of_what_is_absent_stay_and_levels_may_be_written_as_floats(beir, write) -> None:
    write("tiny/qrels/test.tsv", "q1\td1\t2.0", "q1\td9\t1", "q9\td1\t1", "q1\td3\t-1.0")

    dataset = open_dataset(str(beir))

    assert dataset.queries("test") == [Query("q1", "first")]
    assert dataset.judgements("test") == [
        Judgement("q1", "d1", 2),
        Judgement("q1", "d9", 1),
        Judgement("q9", "d1", 1),
        Judgement("q1", "d3", -1),
    ]
    assert (dataset.holds("d1"), dataset.holds("d9")) == (True, False)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["q1\td8\t1", "q1\td9\t1"], "judges no documents of this data set"),
        (["q8\td1\t1", "q9\td1\t1"], "judges no queries of this data set"),
        (["q1\td1\tx"], "row 1: the relevance is 'x', not a finite number"),
        (["q1\td1\t1", "q1\td1\t0"], r"judges \('q1', 'd1'\) twice: 1 and 0"),
    ],
)
def test_a_wrong_judgement_is_named(beir: Path, write, lines: list[str], reason: str) -> None:
    write("tiny/qrels/test.tsv", *lines)

    with pytest.raises(UserError, match=f"test.tsv.*{reason}"):
        open_dataset(str(beir)).judgements("test")


def test_repeated_or_absent_queries_are_refused_when_they_are_wanted(beir: Path, write) -> None:
    write("tiny/queries.jsonl", {"_id": "q1", "text": "a"}, {"_id": "q1", "text": "b"})

    with pytest.raises(UserError, match=r"queries\.jsonl holds two queries of the id 'q1'"):
        open_dataset(str(beir)).queries("test")
    (beir / "queries.jsonl").unlink()
    with pytest.raises(UserError, match=r"queries\.jsonl cannot be read"):
        open_dataset(str(beir)).queries("test")


@pytest.mark.parametrize(
    ("name", "drops"), [("arguana", True), ("quora", True), ("scifact", False)]
)
def test_where_queries_are_documents_their_own_is_dropped(write, name: str, drops: bool) -> None:
    path = write(f"{name}/corpus.jsonl", {"_id": "1", "text": "x"})

    assert open_dataset(str(path.parent)).drops_own_document is drops


@pytest.mark.parametrize("place", ["shared/beir", "data", "datasets"])
def test_a_bare_name_is_looked_for_where_data_usually_lies(
    write, here: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    write(f"{place}/scifact/corpus.jsonl", {"_id": "1", "text": "x"})
    monkeypatch.setenv("M2DR_DATA", str(here / "shared"))

    assert open_dataset("scifact").name == "scifact"
    with pytest.raises(UserError, match=r"no data set 'scifcat'\. Did you mean scifact\?"):
        open_dataset("scifcat")


def test_a_part_of_cqadupstack_is_named_after_it_and_the_whole_is_no_data_set(
    write, tmp_path: Path
) -> None:
    write("cqadupstack/gis/corpus.jsonl", {"_id": "1", "text": "x"})
    write("elsewhere/gis/corpus.jsonl", {"_id": "1", "text": "x"})

    assert open_dataset(str(tmp_path / "cqadupstack" / "gis")).name == "cqadupstack-gis"
    assert open_dataset(str(tmp_path / "elsewhere" / "gis")).name == "gis"
    with pytest.raises(UserError, match=r"is several data sets; give one of them, such as .*gis\."):
        open_dataset(str(tmp_path / "cqadupstack"))
