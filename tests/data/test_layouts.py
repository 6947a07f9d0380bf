import gzip
import json
from pathlib import Path

import ir_datasets
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


# MS MARCO


@pytest.fixture
def official(tmp_path: Path, write) -> Path:
    """Five passages, queries in two files, judgements of three splits, id triples."""
    folder = "passage"
    write(f"{folder}/collection.tsv", *(f"{pid}\tpassage {pid}" for pid in range(5)))
    write(f"{folder}/queries.train.tsv", "11\ttrain one", "12\ttrain two", "13\tnever judged")
    write(f"{folder}/queries.dev.small.tsv", "21\t dev one", "22\tdev two")
    write(f"{folder}/qrels.train.tsv", "12\t0\t1\t1", "11\t0\t0\t1")
    write(f"{folder}/qrels.dev.small.tsv", "21\t0\t2\t1")
    write(f"{folder}/qrels.dl19-passage.txt", "22 Q0 3 3", "22 Q0 4 0")
    write(
        f"{folder}/qidpidtriples.train.full.2.tsv", "11\t0\t3", "11\t0\t4", "11\t0\t3", "12\t1\t0"
    )
    return tmp_path / folder


def test_passages_and_splits_are_read_under_their_published_names(official: Path) -> None:
    dataset = open_dataset(str(official))

    assert dataset.name == "passage"
    assert dataset.document_count == 5
    assert list(dataset.documents())[2] == dataset.document("2") == Document("2", "passage 2")
    assert dataset.splits == ("dev.small", "dl19-passage", "train")
    assert dataset.judgements("dl19-passage") == [Judgement("22", "3", 3), Judgement("22", "4", 0)]


def test_the_queries_of_a_split_come_from_whichever_file_holds_them(official: Path) -> None:
    dataset = open_dataset(str(official))

    assert dataset.queries("train") == [Query("11", "train one"), Query("12", "train two")]
    assert dataset.queries("dev.small") == [Query("21", " dev one")]
    assert dataset.queries("dl19-passage") == [Query("22", "dev two")]


def test_groups_beside_the_collection_give_the_negatives(official: Path) -> None:
    (official / "qidpidtriples.train.full.2.tsv").unlink()
    row = {
        "query_id": "11", "query": "train one",
        "positive_passages": [{"docid": "0", "title": "t", "text": "passage 0"}],
        "negative_passages": [{"docid": "4", "title": "t", "text": "passage 4"}],
    }  # fmt: skip
    with gzip.open(official / "train.jsonl.gz", "wt") as file:
        file.write(json.dumps(row) + "\n")

    dataset = open_dataset(str(official))

    assert dataset.negatives("train") == {"11": ("4",)}
    assert dataset.negatives("dev.small") == {}


def test_id_triples_give_the_negatives_of_their_split_alone(official: Path) -> None:
    dataset = open_dataset(str(official))

    assert dataset.negatives("train") == {"11": ("3", "4"), "12": ("0",)}
    assert dataset.negatives("dev.small") == {}


def test_a_negative_that_the_collection_lacks_is_refused(official: Path, write) -> None:
    write("passage/qidpidtriples.train.full.2.tsv", "11\t0\t9")

    with pytest.raises(UserError, match="negative of train is '9', which the corpus"):
        open_dataset(str(official)).negatives("train")


TRIPLES = ("what is a\ttext a\ttext b", "what is a\ttext a\ttext c", "what is b\ttext b\ttext a")


def test_text_triples_are_a_data_set_of_the_documents_seen_in_them(write) -> None:
    path = write("texts/own.tsv", *TRIPLES)

    dataset = open_dataset(str(path))

    assert dataset.name == "own"
    assert [document.text for document in dataset.documents()] == ["text a", "text b", "text c"]
    assert dataset.queries("train") == [Query("q0", "what is a"), Query("q1", "what is b")]
    assert dataset.judgements("train") == [Judgement("q0", "d0", 1), Judgement("q1", "d1", 1)]
    assert dataset.negatives("train") == {"q0": ("d1", "d2"), "q1": ("d0",)}


# ir_datasets


@pytest.fixture
def local(write, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two data sets over one corpus in the catalogue, made of local files."""
    docs = ir_datasets.create_dataset(docs_tsv=str(write("docs.tsv", "d1\tone", "d2\ttwo")))
    monkeypatch.setattr(ir_datasets.registry, "_registered", dict(ir_datasets.registry._registered))
    ir_datasets.registry.register("tiny", docs)
    for split, qrel in (("train", "q1 0 d1 1"), ("test", "q2 0 d2 2")):
        judged = ir_datasets.create_dataset(
            queries_tsv=str(write(f"{split}.tsv", "q1\tfirst", "q2\tsecond")),
            qrels_trec=str(write(f"{split}.qrels", qrel)),
        )
        both = ir_datasets.Dataset(docs, judged)
        ir_datasets.registry.register(f"tiny/{split}", both)
    return "irds:tiny"


def test_documents_queries_and_judgements_come_through(local: str) -> None:
    dataset = open_dataset(f"{local}/test")

    assert list(dataset.documents()) == [Document("d1", "one"), Document("d2", "two")]
    assert dataset.document("d2") == dataset.document_at(1) == Document("d2", "two")
    assert dataset.document_count == 2
    assert dataset.queries("test") == [Query("q2", "second")]
    assert dataset.judgements("test") == [Judgement("q2", "d2", 2)]
    assert dataset.negatives("test") == {}
    with pytest.raises(UserError, match="tiny holds no document 'd9'"):
        dataset.document("d9")


def test_an_id_without_judgements_has_the_splits_below_it(local: str) -> None:
    dataset = open_dataset(local)

    assert dataset.splits == ("train", "test")
    assert dataset.queries("train") == [Query("q1", "first")]


@pytest.mark.parametrize(
    ("name", "corpus", "split"),
    [
        ("irds:msmarco-passage/trec-dl-2019/judged", "msmarco-passage", "trec-dl-2019-judged"),
        ("irds:beir/scifact/test", "beir-scifact", "test"),
        ("irds:mr-tydi/ar", "mr-tydi-ar", "all"),
    ],
)
def test_a_catalogued_id_names_its_corpus_and_its_split(name: str, corpus: str, split: str) -> None:
    dataset = open_dataset(name)

    assert (dataset.name, dataset.splits) == (corpus, (split,))
