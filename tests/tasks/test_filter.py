"""A search among documents whose fields fit, from files of all kinds to the command line."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shell import m2dr as run
from world import WORDS, make_model

import m2dr
from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.core.requests import (
    ImportRequest,
    IndexRequest,
    SearchRequest,
)
from m2dr.tasks.indexing.importing import import_vectors
from m2dr.tasks.indexing.index import index_corpus
from m2dr.tasks.searching.search import open_searcher

FP32 = {"device": "cpu", "dtype": "fp32"}
DOCUMENTS = [
    {
        "_id": f"d{n}",
        "title": WORDS[n % 14],
        "text": " ".join(WORDS[n % 9 : n % 9 + 5]),
        "metadata": {"year": 2000 + n, "lang": ("en", "de")[n % 2]} if n else {},
    }
    for n in range(20)
]
RECENT = "year >= 2010 and lang = de"
FOUND = {"d11", "d13", "d15", "d17", "d19"}


@pytest.fixture(scope="module")
def model(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "m"
    cuts = (Cut(4, 8), Cut(4, 32))
    return make_model(tiny_backbone, folder, similarity="cosine", cuts=cuts)


def lines(path: Path, rows: Iterable[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture
def corpus(here: Path) -> str:
    (here / "c" / "qrels").mkdir(parents=True)
    lines(here / "c" / "corpus.jsonl", DOCUMENTS)
    return "c"


def index(corpus: str, model: Path, **more: object) -> None:
    index_corpus(IndexRequest(corpus, str(model), **{"exits": False, "dims": (8,), **FP32, **more}))


def found(corpus: str, model: Path, wanted: str = RECENT, **more: object) -> set[str]:
    asked = SearchRequest(corpus, str(model), filter=wanted, **FP32, **more)
    return {hit.docid for hit in open_searcher(asked).search("read a list", 20).hits}


def fields_of_hits(corpus: str, model: Path, wanted: str = "") -> dict[str, dict[str, object]]:
    asked = SearchRequest(corpus, str(model), filter=wanted, **FP32)
    return {hit.docid: hit.fields for hit in open_searcher(asked).search("read a list", 20).hits}


def fields(home: Path) -> list[str]:
    return sorted(path.name for path in home.rglob("fields*"))


@pytest.mark.usefixtures("here")
def test_columns_of_tables_are_fields(model: Path) -> None:
    rows = [
        {key: row[key] for key in ("_id", "title", "text")} | {"year": n, "vector": [0.5, 1.0]}
        for n, row in enumerate(DOCUMENTS)
    ]
    table = pa.Table.from_pylist(rows)
    days = pa.array([1000 * n for n in range(20)], pa.date32())
    pq.write_table(table.append_column("day", days), "t.parquet")
    cells = ["_id,text,Year,note"] + [f"{r['_id']},{r['text']},{r['year']}," for r in rows]
    Path("u.csv").write_text("\n".join(cells))

    for name, wanted in (("t.parquet", "year > 16 and day < '2022-01-09'"), ("u.csv", "year > 16")):
        index(name, model)
        assert found(name, model, wanted) == {"d17", "d18", "d19"}
        years = {docid: one["year"] for docid, one in fields_of_hits(name, model).items()}
        assert (years["d0"], years["d18"]) == ((0, 18) if name == "t.parquet" else ("0", "18"))
        with pytest.raises(UserError, match="no field|none of that name"):
            found(name, model, "vector = 1")
    assert fields_of_hits("t.parquet", model)["d18"] == {"year": 18, "day": "2019-04-14"}


def test_the_command_line_filters_answers_and_runs(corpus: str, model: Path) -> None:
    index(corpus, model)
    search = ("search", "--corpus", corpus, "--model", model, "--dtype", "fp32", "--filter")

    told = run(*search, "year = 2011", "read a list", "--json", cwd=Path.cwd())
    (hit,) = json.loads(told.stdout)["hits"]
    assert (hit["docid"], hit["fields"]) == ("d11", {"year": 2011, "lang": "de"})
    lines(Path("t.jsonl"), [{"_id": "q", "text": "read a list"}])
    ran = run(*search, RECENT, "--topics", "t.jsonl", "--run", "r.trec", cwd=Path.cwd())
    assert ran.returncode == 0, ran.stderr
    assert {line.split()[2] for line in Path("r.trec").read_text().splitlines()} == FOUND
    empty = run(*search, "year = 1999", "read a list", cwd=Path.cwd())
    assert "none fits the filter" in empty.stdout + empty.stderr
    wrong = run(*search, "yaer > 3", "read", cwd=Path.cwd())
    assert wrong.returncode == 2
    assert "Did you mean year? There are: year, lang." in wrong.stderr


def test_an_index_filters_from_python(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = m2dr.Encoder.from_pretrained(model, dim=32, **FP32)
    rows = [{"id": row["_id"], "text": row["text"], **row["metadata"]} for row in DOCUMENTS[:5]]
    built = m2dr.Index.build(encoder, rows, exits=False, folder=tmp_path, name="documents")

    assert len(built.search("read").hits) == 5
    answers = built.search(["read", "close"], filter="year > 2001 and lang = en")
    assert [{hit.docid for hit in answer.hits} for answer in answers] == [{"d2", "d4"}] * 2
    assert built.search("read", filter="year > 3000").hits == ()
    assert answers[0].hits[0].fields["lang"] == "en"
    built.add([{"id": "new", "text": "read", "year": 2040, "tags": ["u", "v"], "at": [0.5, 1]}])
    assert "The field 'at' is left out" in capsys.readouterr().err
    assert [hit.fields["tags"] for hit in built.search("read", filter="tags = v").hits] == [
        ["u", "v"]
    ]
    assert built.get("new")["tags"] == ["u", "v"]
    assert [hit.docid for hit in built.search("read", filter="year > 2030").hits] == ["new"]
    own = {"id": "chunk", "title": "T", "text": "x", "type": "pdf", "version": "1.10", "n": 0x1F}
    built.add([{"id": "own", "text": "read", "n": 7, "metadata": own}])
    got = built.get("own")
    assert {got["id"], got["text"], got["title"]} == {"own", "read", ""}
    for _ in range(2):
        assert dict(built.search("read", filter="id == 'chunk'").hits[0].fields) == {
            "n": 7, "metadata.n": 31, **{key: own[key] for key in own if key != "n"},
        }  # fmt: skip
        built.delete(["own"])
        built.add([got])
    again = m2dr.open_index(tmp_path / "documents", model=str(model), root=tmp_path, **FP32)
    assert [hit.docid for hit in again.search("read", filter="year > 2030").hits] == ["new"]


def test_imported_vectors_have_the_fields_of_their_documents(corpus: str, model: Path) -> None:
    order = DOCUMENTS[::-1]
    encoder = m2dr.Encoder.from_pretrained(model, **FP32)
    np.save("v.npy", encoder.encode_documents(order))
    Path("ids.txt").write_text("".join(f"{row['_id']}\n" for row in order))
    files = {"vectors": Path("v.npy"), "ids": Path("ids.txt")}
    asked = ImportRequest(**files, corpus=corpus, model=str(model), sample=2, **FP32)
    import_vectors(asked)

    assert found(corpus, model) == FOUND
