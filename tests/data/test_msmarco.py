import gzip
import json
from pathlib import Path

import pytest

from m2dr.core.errors import UserError
from m2dr.core.records import Document, Judgement, Query
from m2dr.data.loaders import open_dataset


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
