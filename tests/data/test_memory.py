"""Data in memory is what the same data in a file is."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from m2dr.core.errors import UserError
from m2dr.core.records import Document, Judgement, Query
from m2dr.data.loaders import open_dataset
from m2dr.data.memory import name_of_data, passages_of
from m2dr.data.tables import rows_of

ROWS = [{"id": "a", "text": "open", "year": 1999}, {"id": "b", "text": "close", "year": 2001}]
DOCUMENTS = [
    Document("a", "open", fields=(("year", "1999"),)),
    Document("b", "close", fields=(("year", "2001"),)),
]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("M2DR_CACHE", str(tmp_path / "cache"))


def documents(data: Any, **options: Any) -> list[Document]:
    return list(open_dataset(name_of_data(data, **options)).documents())


@dataclass
class Haystack:
    id: str
    content: str
    meta: dict[str, object] = field(default_factory=dict)


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
    "haystack": [Haystack(row["id"], row["text"], {"year": row["year"]}) for row in ROWS],
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_documents_in_memory(form: str) -> None:
    found = documents(FORMS[form])

    assert found == DOCUMENTS
    assert [each.fields for each in found] == [each.fields for each in DOCUMENTS]


@pytest.mark.parametrize(
    "texts", [["open", "close"], ("open", "close"), pd.Series(["open", "close"])]
)
def test_texts_without_an_id_are_numbered(texts: Any) -> None:
    assert documents(texts) == [Document("0", "open"), Document("1", "close")]


@pytest.mark.parametrize("texts", [{"x": "open"}, {np.str_("x"): "open"}, pd.Series({"x": "open"})])
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

    assert list(dataset.documents()) == [Document("k", "a", "T")]
    assert dataset.name.startswith("own" if suffix else "data-")
    with pytest.raises(UserError, match="There is no column 'Bdy'"):
        name_of_data(path, {"text": "Bdy"})


JUDGED = {
    "as in BEIR": {"q": {"a": 1, "b": 0}},
    "docids": {"q": ["a"]},
    "rows": [{"query-id": "q", "corpus-id": "a", "score": 1}],
    "tuples": [("q", "a", 1)],
    "trec": [("q", 0, "a", 1)],
    "pandas": pd.DataFrame({"qid": ["q"], "docno": ["a"], "label": [1]}),
}


@pytest.mark.parametrize("form", JUDGED)
@pytest.mark.parametrize("queries", [{"q": "what"}, [{"_id": "q", "text": "what"}]])
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


def test_rows_of_polars() -> None:
    polars = pytest.importorskip("polars")

    assert list(rows_of(polars.DataFrame(ROWS))) == ROWS


@given(
    st.lists(st.text(alphabet="ab \n", max_size=60), min_size=1, max_size=4),
    st.integers(1, 9),
    st.data(),
)
def test_passages_hold_every_word_and_share_some(
    texts: list[str], length: int, data: st.DataObject
) -> None:
    shared = data.draw(st.integers(0, length - 1))

    rows = list(
        passages_of([{"id": n, "text": text} for n, text in enumerate(texts)], (length, shared))
    )

    for number, text in enumerate(texts):
        parts = [row["text"] for row in rows if str(row["_id"]).partition("#")[0] == str(number)]
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
