"""Data in memory is what the same data in a file is."""

import os
from collections import namedtuple
from dataclasses import make_dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import UUID

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import defstruct
from world import write_beir

from m2dr.core.errors import UserError
from m2dr.core.records import Asked, Document, Judgement, Query
from m2dr.data.dataset import Dataset, MemoryCorpus, as_documents, row_of_document
from m2dr.data.loaders import open_dataset
from m2dr.data.memory import name_of_data, passages_of
from m2dr.data.tables import rows_of
from m2dr.tasks.corpus import CorpusDigest, as_indexed

ROWS = [{"id": "a", "text": "open", "year": 1999}, {"id": "b", "text": "close", "year": 2001}]
DOCUMENTS = [
    Document("a", "open", fields=(("year", 1999),)),
    Document("b", "close", fields=(("year", 2001),)),
]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("M2DR_CACHE", str(tmp_path / "cache"))


def test_a_file_that_changed_is_read_again_whatever_its_time_and_size(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text('{"id": "a", "body": "open"}\n')
    named = {"columns": {"text": "body"}}
    plain = tmp_path / "plain.jsonl"
    plain.write_text(path.read_text().replace("body", "text"))
    first = documents(path, **named)
    digest = CorpusDigest.of(open_dataset(str(plain)))
    times = {file: (file.stat().st_atime_ns, file.stat().st_mtime_ns) for file in (path, plain)}

    path.write_text('{"id": "a", "body": "shut"}\n')
    plain.write_text(path.read_text().replace("body", "text"))
    os.utime(path, ns=times[path])
    os.utime(plain, ns=times[plain])

    assert [first[0].text, documents(path, **named)[0].text] == ["open", "shut"]
    assert CorpusDigest.of(open_dataset(str(plain))).texts != digest.texts


def documents(data: Any, **options: Any) -> list[Document]:
    return list(open_dataset(name_of_data(data, **options)).documents())


COLUMNS = [("id", str), ("text", str), ("year", int)]
NamedDocument = NamedTuple("NamedDocument", COLUMNS)
SlottedDocument = make_dataclass("SlottedDocument", COLUMNS, slots=True)
StructDocument = defstruct("StructDocument", COLUMNS)
Haystack = make_dataclass("Haystack", ["id", "content", "meta"])

FORMS = {
    "list": ROWS,
    "generator": (row for row in ROWS),
    "dict of dicts": {row["id"]: row for row in ROWS},
    "dict of columns": {name: [row[name] for row in ROWS] for name in ROWS[0]},
    "pandas": pd.DataFrame(ROWS),
    "pandas with an index": pd.DataFrame(ROWS).set_index("id"),
    "datasets": datasets.Dataset.from_list(ROWS).select([0, 1]),
    "datasets, a stream": datasets.Dataset.from_list(ROWS).to_iterable_dataset(),
    "arrow": pa.Table.from_pylist(ROWS),
    "numpy": [{**row, "year": np.int64(row["year"]), "title": float("nan")} for row in ROWS],
    "langchain": [
        SimpleNamespace(id=row["id"], page_content=row["text"], metadata={"year": row["year"]})
        for row in ROWS
    ],
    "llamaindex": [
        SimpleNamespace(
            id_=row["id"], text_resource=SimpleNamespace(text=row["text"]), embedding=None,
            metadata={"year": row["year"]},
        )
        for row in ROWS
    ],
    "named tuples": [NamedDocument(**row) for row in ROWS],
    "slots": [SlottedDocument(**row) for row in ROWS],
    "structs": [StructDocument(**row) for row in ROWS],
    "columns of arrays": {name: np.array([row[name] for row in ROWS]) for name in ROWS[0]},
    "pandas with an index beside its column": pd.DataFrame(ROWS).set_index("id", drop=False),
    "pandas with two levels": pd.DataFrame(ROWS).set_index(["id", "year"]),
    "pandas of categories": pd.DataFrame(ROWS).astype("category"),
    "haystack": [Haystack(row["id"], row["text"], {"year": row["year"]}) for row in ROWS],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_documents_in_memory(form: str) -> None:
    found = documents(FORMS[form])

    assert found == DOCUMENTS
    assert [each.fields for each in found] == [each.fields for each in DOCUMENTS]


@pytest.mark.parametrize(
    "texts",
    [
        ["open", "close"],
        ("open", "close"),
        pd.concat([pd.Series(["open"]), pd.Series(["close"])]),
        pd.Series({"x": "open", "y": "close"}, dtype="category"),
        pd.Index(["open", "close"]),
        pa.array(["open", "close"]),
    ],
)
def test_texts_without_an_id_are_numbered(texts: Any) -> None:
    assert documents(texts) == [Document("0", "open"), Document("1", "close")]


@pytest.mark.parametrize("texts", [{"x": "open"}, {np.str_("x"): "open"}])
def test_dict_of_id_to_text(texts: Any) -> None:
    assert documents(texts) == [Document("x", "open")]


@given(st.lists(st.text(alphabet="ab \n\"',;\t\u2028é", min_size=1).filter(str.strip), min_size=1))
def test_same_content_has_the_same_name_and_other_content_another(texts: list[str]) -> None:
    name = name_of_data(texts)

    assert name == name_of_data(iter(texts)) == name_of_data([{"text": text} for text in texts])
    assert name != name_of_data([*texts, "another"])
    assert [each.text for each in open_dataset(name).documents()] == texts


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ""])
def test_columns_are_told(suffix: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"Key": ["k"], "Body": ["a"], "Head": ["T"], "text": ["other"]})
    path: Any = tmp_path / f"own{suffix}"
    if suffix == ".csv":
        frame.to_csv(path, index=False)
    elif suffix:
        frame.to_json(path, orient="records", lines=True)
    else:
        path = frame
    columns = {"_id": "Key", "text": "Body", "title": "Head"}

    dataset = open_dataset(name_of_data(path, columns))

    (document,) = dataset.documents()
    assert document == Document("k", "a", "T", (("text", "other"),))
    assert document.fields == (("text", "other"),)
    assert dataset.name.startswith("own" if suffix else "data-")
    with pytest.raises(UserError, match="There is no column 'Bdy'"):
        name_of_data(path, {"text": "Bdy"})


TrecQrel = namedtuple("TrecQrel", ["query_id", "doc_id", "relevance", "iteration"])
GenericQuery = namedtuple("GenericQuery", ["query_id", "text"])
JUDGED: dict[str, Any] = {
    "as in BEIR": {"q": {"a": 1, "b": 0}},
    "docids": {"q": ["a"]},
    "rows": [{"query-id": "q", "corpus-id": "a", "score": 1}],
    "tuples": [("q", "a", 1)],
    "one docid": {"q": "a"},
    "a set of docids": {"q": {"a"}},
    "named tuples": [TrecQrel("q", "a", 1, "0")],
    "records": [Judgement("q", "a", 1)],
    "pandas by an index": pd.DataFrame({"qid": ["q"], "docno": ["a"], "label": [1]}).set_index(
        ["qid", "docno"]
    ),
    "trec": [("q", 0, "a", 1)],
    "pandas": pd.DataFrame({"qid": ["q"], "docno": ["a"], "label": [1]}),
}


@pytest.mark.parametrize("form", JUDGED)
@pytest.mark.parametrize(
    "queries",
    [
        {"q": "what"},
        [{"_id": "q", "text": "what"}],
        [GenericQuery("q", "what")],
        [Query("q", "what")],
        [("q", "what")],
    ],
)
def test_queries_and_judgements_in_memory(queries: Any, form: str) -> None:
    dataset = open_dataset(name_of_data(ROWS, queries=queries, qrels=JUDGED[form], split="dev"))

    assert dataset.splits == ("dev",)
    assert dataset.queries("dev") == [Query("q", "what")]
    assert dataset.judgements("dev")[0] == Judgement("q", "a", 1)
    assert list(dataset.documents()) == DOCUMENTS


@pytest.mark.parametrize(
    "rows",
    [
        [{"anchor": "q", "positive": "p", "negative": "n"}],
        [("q", "p", "n")],
        [SimpleNamespace(guid="", texts=["q", "p", "n"], label=0)],
        [{"query": "q", "pos": ["p"], "neg": ["n"]}],
        datasets.DatasetDict(
            train=datasets.Dataset.from_dict(
                {"anchor": ["q"], "positive": ["p"], "negative": ["n"]}
            )
        ),
    ],
)
def test_training_rows_in_memory(rows: Any) -> None:
    dataset = open_dataset(name_of_data(rows))

    assert dataset.splits == ("train",)
    assert [each.text for each in dataset.documents()] == ["p", "n"]
    assert dataset.negatives("train") == {"q0": ("d1",)}


def test_documents_of_ir_datasets_without_a_text_have_their_default_text() -> None:
    class Article(NamedTuple):
        doc_id: str
        title: str
        abstract: str

        def default_text(self) -> str:
            return f"{self.title} {self.abstract}"

    assert documents([Article("a", "T", "open")]) == [Document("a", "T open")]


IDS = {
    "a float": 1.0,
    "a float of numpy": np.float64(1),
    "bytes": b"7",
    "a bool": True,
    "a bool of numpy": np.bool_(True),
    "a date": pd.Timestamp("2020-01-01"),
    "19 digits made a float": pd.Series([1234567890123456789, np.nan])[0],
}


@pytest.mark.parametrize("form", IDS)
def test_an_id_is_exact_or_refused_wherever_it_stands(form: str) -> None:
    odd = IDS[form]
    ask, judge = {"q": "what"}, {"q": ["a"]}

    for tried in (
        lambda: documents([{"id": odd, "text": "open"}]),
        lambda: documents({odd: "open"}),
        lambda: documents(pd.DataFrame({"id": [odd], "text": ["open"]})),
        lambda: documents([{"id": odd, "text": "one two three"}], passages=(2, 0)),
        lambda: documents([{"query": "q", "positives": [{"docid": odd, "text": "open"}]}]),
        lambda: list(as_documents([{"id": odd, "text": "open"}])),
        lambda: judged(ROWS, {odd: "what"}, judge),
        lambda: judged(ROWS, ask, {"q": [odd]}),
        lambda: judged(ROWS, ask, [(odd, "a", 1)]),
    ):
        with pytest.raises(UserError, match="id"):
            tried()


def judged(data: Any, queries: Any, qrels: Any) -> list[Judgement]:
    return open_dataset(name_of_data(data, queries=queries, qrels=qrels)).judgements("test")


def test_bytes_of_arrow_are_no_id_and_no_field() -> None:
    with pytest.raises(UserError, match="the id b'7'"):
        documents(pa.table({"id": [b"7"], "text": ["open"]}))

    found = documents(pa.table({"id": ["7"], "text": ["open"], "image": [b"x"]}))
    assert (found, found[0].fields) == ([Document("7", "open")], ())


LOST = [{"id": "c", "document_id": "d", "docid": "c", "text": "open", "content": "it", "body": 1}]


@pytest.mark.parametrize("form", [list, pd.DataFrame, pa.Table.from_pylist])
def test_a_column_that_lost_its_role_is_a_field(form: Any) -> None:
    found = documents(form(LOST)), list(as_documents(rows_of(form(LOST))))

    for (document,) in found:
        assert document == Document("c", "open")
        assert dict(document.fields) == {"document_id": "d", "content": "it", "body": 1}
        assert list(as_documents([row_of_document(document)]))[0].fields == document.fields


class Color(Enum):
    RED = "red"


def test_a_field_is_what_json_holds_or_named(capsys: pytest.CaptureFixture[str]) -> None:
    own = {
        "of": UUID(int=7),
        "kind": Color.RED,
        "ttl": timedelta(days=1),
        "scan of a": b"x",
        "n": None,
    }
    rows = [{"id": "a", "text": "open", **own}]

    for (found,) in (documents(rows), list(as_documents(rows))):
        assert dict(found.fields) == {
            "of": str(UUID(int=7)),
            "kind": "red",
            "ttl": "1 day, 0:00:00",
        }
    assert "The field 'scan of a' is left out: JSON holds no bytes." in capsys.readouterr().err


def test_columns_that_were_told_are_of_the_documents_and_go_before_any_other() -> None:
    rows = [{"_id": 1, "docid": "a", "text": "open"}]
    qrels = [{"qid": "q", "docid": "a", "label": 1}]
    name = name_of_data(rows, {"id": "docid"}, queries={"q": "what"}, qrels=qrels)

    dataset = open_dataset(name)

    assert [each.id for each in dataset.documents()] == ["a"]
    assert dict(dataset.document("a").fields) == {"_id": 1}
    assert dataset.judgements("test") == [Judgement("q", "a", 1)]


def test_half_a_surrogate_pair_is_replaced_wherever_it_stands() -> None:
    rows = {"a\ud83d": {"text": "cut \ud83d", "tags": ["\ud83d"], "metadata": {"k": "\ud83d"}}}

    for found in (documents(rows), list(as_documents(rows_of(rows)))):
        assert found == [Document("a\ufffd", "cut \ufffd")]
        assert dict(found[0].fields) == {"tags": ["\ufffd"], "k": "\ufffd"}


def test_whole_numbers_are_ids() -> None:
    large = 1234567890123456789
    rows = [{"id": np.int64(large), "text": "open"}]
    nullable = pd.DataFrame({"id": pd.array([large], "Int64"), "text": ["open"]})

    assert documents(rows) == documents(nullable) == [Document(str(large), "open")]
    assert list(as_documents(rows)) == [Document(str(large), "open")]


ODD: dict[str, Any] = {
    "a set": {"open", "close"},
    "columns of unequal length": {"id": ["a", "b"], "text": ["open"]},
    "a table of text": np.array([["a", "open"]]),
    "a missing text": pd.Series(["open", None]),
    "bytes": [b"open"],
    "a text of bytes": [{"id": "a", "text": b"open"}],
    "one row": {"query": "q", "positive": "p"},
    "columns of one name": pd.DataFrame([["a", "open", "close"]], columns=["id", "text", "text"]),
    "an index and another column": pd.DataFrame(ROWS).set_index(pd.Index(["b", "a"], name="id")),
    "columns without names": pd.DataFrame([["a", "open"]]),
    "some ids": [{"id": 1, "text": "open"}, {"text": "close"}],
    "ids from the second on": [{"text": "open"}, {"id": 0, "text": "close"}],
    "nothing": None,
    "no row": [],
    "numbers": [1, 2],
}


@pytest.mark.parametrize("form", ODD)
def test_data_of_odd_shapes_is_refused_in_a_sentence(form: str) -> None:
    with pytest.raises(UserError):
        documents(ODD[form])


ODD_JUDGEMENTS: dict[str, Any] = {
    "two values": [("q", "a")],
    "a number": {"q": 1},
    "no id": {"q": b"a"},
    "a missing relevance": {"q": {"a": float("nan")}},
    "labels of a series": {"q": pd.Series({"a": 1})},
    "none": [],
}


@pytest.mark.parametrize("form", ODD_JUDGEMENTS)
def test_odd_judgements_are_refused_in_a_sentence(form: str) -> None:
    with pytest.raises(UserError):
        judged(ROWS, {"q": "what"}, ODD_JUDGEMENTS[form])


def test_a_series_whose_labels_may_be_ids_is_no_list_of_judged_queries() -> None:
    with pytest.raises(UserError, match="series"):
        judged(ROWS, pd.Series(["what", "who"], index=[1, 0]), {"0": ["a"]})

    assert judged(ROWS, pd.Series(["what", "who"]), {"0": ["a"]}) == [Judgement("0", "a", 1)]


def answers_of(rows: Any) -> dict[str, tuple[list[str], list[str]]]:
    """By query the texts that answer it, and those that do not."""
    dataset = open_dataset(name_of_data(rows))
    texts = {document.id: document.text for document in dataset.documents()}
    return {
        query.text: (
            [texts[j.document_id] for j in dataset.judgements("train") if j.query_id == query.id],
            [texts[docid] for docid in dataset.negatives("train").get(query.id, ())],
        )
        for query in dataset.queries("train")
    }


LABELLED: dict[str, Any] = {
    "pandas": pd.DataFrame({"query": "q", "answer": ["p", "n"], "label": [1, 0]}),
    "pandas, bool": pd.DataFrame({"query": "q", "answer": ["p", "n"], "label": [True, False]}),
    "pandas, nullable": pd.DataFrame(
        {"query": "q", "answer": ["p", "n"], "label": pd.array([1, 0], "Int64")}
    ),
    "pandas, categories": pd.DataFrame(
        {"query": "q", "answer": ["p", "n"], "label": ["1", "0"]}
    ).astype("category"),
    "numpy": [
        {"query": "q", "positive": "p", "relevance": np.float32(1)},
        {"query": "q", "positive": "n", "relevance": np.bool_(False)},
    ],
    "lists of datasets": datasets.Dataset.from_list(
        [{"query": "q", "answer": ["n", "p"], "labels": [0.0, 1.0]}]
    ),
    "InputExample": [
        SimpleNamespace(guid="", texts=["q", "n"], label=0.0),
        SimpleNamespace(guid="", texts=["q", "p"], label=1.0),
    ],
    "lists of answers and negatives": [["q", ["p"], ["n"]]],
}


@pytest.mark.parametrize("form", LABELLED)
def test_a_label_of_0_is_that_of_a_negative(form: str) -> None:
    assert answers_of(LABELLED[form]) == {"q": (["p"], ["n"])}


def test_a_list_of_a_query_and_several_answers() -> None:
    rows = [["q", ["p", "r"]], ("s", "t")]

    dataset = open_dataset(name_of_data(rows))

    judged = {(j.query_id, j.document_id) for s in dataset.splits for j in dataset.judgements(s)}
    assert {("q0", "d0"), ("q0", "d1"), ("q1", "d2")} == judged


UNCLEAR: dict[str, Any] = {
    "a missing label": pd.DataFrame({"query": "q", "answer": ["p", "n"], "label": [1, np.nan]}),
    "graded": [SimpleNamespace(texts=["a plane", "an air plane"], label=0.8)],
    "scores of a model": datasets.Dataset.from_list(
        [{"query": "q", "answer": ["p", "n"], "scores": [0.9, 0.2]}]
    ),
    "0 alone": [SimpleNamespace(texts=["q", "p"], label=0)],
}


@pytest.mark.parametrize("form", UNCLEAR)
def test_what_no_label_says_is_refused(form: str) -> None:
    with pytest.raises(UserError, match="label"):
        answers_of(UNCLEAR[form])


@given(
    st.lists(st.text(alphabet="ab \n", max_size=60), min_size=1, max_size=4),
    st.integers(1, 9),
    st.data(),
)
def test_passages_hold_every_word_and_share_some(
    texts: list[str], length: int, data: st.DataObject
) -> None:
    shared = data.draw(st.integers(0, length - 1))

    documents = [Document(str(number), text) for number, text in enumerate(texts)]
    found = list(passages_of(documents, (length, shared)))

    for number, text in enumerate(texts):
        parts = [each.text for each in found if each.id.partition("#")[0] == str(number)]
        words = [part.split() for part in parts]
        assert all(len(part) <= length for part in words)
        assert all(
            a[len(a) - shared :] == b[:shared] for a, b in zip(words, words[1:], strict=False)
        )
        assert sum((part[shared * (n > 0) :] for n, part in enumerate(words)), []) == text.split()
        assert all(part in text for part in parts)


def test_passages_of_a_folder_of_notes(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("# T\n\none two three four")
    (tmp_path / "notes" / "b.txt").write_text("one")

    dataset = open_dataset(name_of_data(tmp_path / "notes", passages=(3, 1)))

    assert dataset.name == "notes"
    assert list(dataset.documents()) == [
        Document("a.md#1", "one two three", "T"), Document("a.md#2", "three four", "T"),
        Document("b.txt", "one"),
    ]  # fmt: skip


@pytest.mark.parametrize("layout", ["beir", "msmarco"])
def test_passages_of_a_folder_of_several_files(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "datasets" / "several"
    if layout == "beir":
        rows = [{"_id": "a", "title": "T", "text": "one two three four"}, {"_id": "b", "text": ""}]
        write_beir(folder, rows, {"q": "two"}, test=[("q", "a", 1)])
    else:
        folder.mkdir(parents=True)
        (folder / "collection.tsv").write_text("a\tone two three four\nb\t\n")
        (folder / "qrels.test.tsv").write_text("q\t0\ta\t1\n")
    name = "several" if layout == "beir" else "datasets/several"  # the first is a bare name

    made = name_of_data(name, passages=(3, 1))
    documents = list(open_dataset(made).documents())

    assert [each.id for each in documents] == ["a#1", "a#2", "b"]
    assert [each.title for each in documents] == (["T", "T", ""] if layout == "beir" else [""] * 3)
    assert as_indexed(name, Asked(passages=(3, 1)))[0] == made
    corpus = folder / ("corpus.jsonl" if layout == "beir" else "collection.tsv")
    corpus.write_text(corpus.read_text().replace("three", "3"))
    changed = list(open_dataset(name_of_data(name, passages=(3, 1))).documents())
    assert changed[0].text == "one two 3"


def test_passages_of_what_has_no_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Dataset("pydocs", MemoryCorpus([Document("a", "one two three four")]), {})
    monkeypatch.setattr("m2dr.data.memory.open_dataset", lambda _: found)

    with pytest.raises(UserError, match="Passages are made of documents in files, and pydocs"):
        name_of_data("pydocs", passages=(3, 1))


@pytest.mark.parametrize(
    ("name", "told", "reason"),
    [
        ("beir", {"columns": {"text": "Body"}}, "beir is none; give the file of its documents"),
        ("absent", {"passages": (3, 1)}, "There is no data set 'absent'"),
        ("absent", {"columns": {"text": "Body"}}, "There is no data set 'absent'"),
    ],
)
def test_columns_and_passages_of_what_is_no_table_are_refused(
    name: str, told: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_beir(tmp_path / "beir", [{"_id": "a", "text": "one"}], {"q": "one"}, test=[("q", "a", 1)])

    with pytest.raises(UserError, match=reason):
        name_of_data(name, **told)
