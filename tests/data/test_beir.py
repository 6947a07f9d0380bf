import gzip
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


def test_a_document_is_found_by_id_and_by_place_without_reading_those_before_it(beir: Path) -> None:
    dataset = open_dataset(str(beir))

    assert dataset.document("d3") == dataset.document_at(2) == Document("d3", "No title.")
    with pytest.raises(UserError, match="tiny holds no document 'd9'"):
        dataset.document("d9")


def test_a_split_holds_the_queries_it_judges_in_file_order(beir: Path) -> None:
    dataset = open_dataset(str(beir))

    assert dataset.splits == ("test", "train")
    assert dataset.queries("test") == [Query("q2", "second"), Query("q1", "first")]
    assert dataset.judgements("test") == [Judgement("q1", "d1", 2), Judgement("q2", "d2", 0)]
    assert dataset.queries("train") == [Query("q1", "first")]
    assert dataset.negatives("train") == {}


def test_an_unknown_split_is_refused_with_those_there_are(beir: Path) -> None:
    dataset = open_dataset(str(beir))

    with pytest.raises(UserError, match=r"tiny has no split 'tset'. Did you mean test\?"):
        dataset.queries("tset")
    with pytest.raises(UserError, match=r"no split 'dl19'. Known: test, train\."):
        dataset.judgements("dl19")


def test_a_corpus_without_judgements_can_be_read_and_has_no_split(write) -> None:
    dataset = open_dataset(str(write("bare/corpus.jsonl", {"_id": "1", "text": "x"}).parent))

    assert dataset.splits == ()
    with pytest.raises(
        UserError, match="bare has no judged queries, so no split 'test'. Give a file"
    ):
        dataset.queries("test")


def test_gzipped_files_read_the_same(beir: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    for path in beir.rglob("*.*"):
        target = packed / path.relative_to(beir).with_name(f"{path.name}.gz")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(gzip.compress(path.read_bytes()))

    plain, gzipped = open_dataset(str(beir)), open_dataset(str(packed))

    assert list(gzipped.documents()) == list(plain.documents())
    assert gzipped.document("d2") == gzipped.document_at(1) == plain.document("d2")
    assert gzipped.splits == plain.splits
    assert gzipped.queries("test") == plain.queries("test")
    assert gzipped.judgements("test") == plain.judgements("test")


@pytest.mark.parametrize(
    "lines",
    [("q1\td1\t2", "q2\td2\t0"), ("q1 0 d1 2", "q2 Q0 d2 0"), ("q1\t0\td1\t2", "q2\t0\td2\t0")],
    ids=["no header", "TREC, spaces", "TREC, tabs"],
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


def test_a_judgement_written_twice_counts_once(beir: Path, write) -> None:
    write("tiny/qrels/test.tsv", "q1\td1\t2", "q1\td1\t2")

    assert open_dataset(str(beir)).judgements("test") == [Judgement("q1", "d1", 2)]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            ["q1\td8\t1", "q1\td9\t1"],
            "test.tsv, line 1: judges document 'd8', and the corpus holds neither",
        ),
        (
            ["q8\td1\t1", "q9\td1\t1"],
            "test.tsv, line 1: judges query 'q8', and the queries file holds neither",
        ),
        (["q1\td1\t1.5"], "test.tsv, line 1: the score '1.5' is not a whole number"),
        (["q1\td1\t1", "q1\td1"], "test.tsv, line 2: has 2 columns"),
        (["q1\td1\t1", "q 1\td1\t1"], "test.tsv, line 2: the query id 'q 1' holds whitespace"),
        (
            ["q1\td1\t1", "q1\td1\t0"],
            "test.tsv, line 2: judges document 'd1' 0 for query 'q1', and a line above 1",
        ),
        (["query-id\tcorpus-id\tscore"], "test.tsv holds no judgement"),
    ],
)
def test_a_wrong_judgement_is_named_by_file_and_line(beir, write, lines, reason) -> None:
    write("tiny/qrels/test.tsv", *lines)

    with pytest.raises(UserError, match=reason):
        open_dataset(str(beir)).judgements("test")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "corpus.jsonl, line 2: is not JSON"),
        ({"_id": "d2"}, "corpus.jsonl, line 2: has no 'text'; its keys are '_id'"),
        ({"text": "x"}, "corpus.jsonl, line 2: has no '_id'; its keys are 'text'"),
        ({"_id": "d2", "text": 3}, "corpus.jsonl, line 2: 'text' is 3, not a string"),
        ({"_id": "d 2", "text": "x"}, "corpus.jsonl, line 2: '_id' 'd 2' holds whitespace"),
        ({"_id": "d1", "text": "x"}, "corpus.jsonl, line 2: the id 'd1' is already used in line 1"),
        ('{"_id": "d2", "text": "\\ud800"}', "line 2: 'text' holds half a surrogate pair"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_wrong_document_is_named_before_any_work_on_the_corpus(
    write, line: object, reason: str, suffix: str
) -> None:
    path = write(f"broken/corpus.jsonl{suffix}", {"_id": "d1", "text": "x"}, line)

    with pytest.raises(UserError, match=reason.replace("jsonl,", f"jsonl{suffix},")):
        _ = open_dataset(str(path.parent)).document_count


@pytest.mark.parametrize("lines", [(), ("", " ")])
def test_an_empty_corpus_is_refused(write, lines: tuple[str, ...]) -> None:
    path = write("empty/corpus.jsonl", *lines)

    with pytest.raises(UserError, match=r"corpus\.jsonl holds no document"):
        open_dataset(str(path.parent))


def test_a_repeated_query_is_refused(beir: Path, write) -> None:
    write("tiny/queries.jsonl", {"_id": "q1", "text": "a"}, {"_id": "q1", "text": "b"})

    with pytest.raises(
        UserError, match=r"queries\.jsonl, line 2: the id 'q1' is already used in line 1"
    ):
        open_dataset(str(beir)).queries("test")


def test_judgements_without_a_queries_file_are_refused_when_they_are_wanted(beir: Path) -> None:
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
    write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    write(f"{place}/scifact/corpus.jsonl", {"_id": "1", "text": "x"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("M2DR_DATA", str(tmp_path / "shared"))

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
