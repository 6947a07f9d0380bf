"""A search among documents whose fields fit, from files of all kinds to the command line."""

import json
import shlex
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
from m2dr.core.records import Cut, Query
from m2dr.core.requests import (
    AddRequest,
    CompactRequest,
    DeleteRequest,
    ImportRequest,
    IndexRequest,
    SearchRequest,
    VerifyRequest,
)
from m2dr.index.layout import STORE
from m2dr.tasks.change_index import add, compact, delete_documents
from m2dr.tasks.import_vectors import import_vectors
from m2dr.tasks.index import index_corpus
from m2dr.tasks.search import Searcher, compare_with_scan
from m2dr.tasks.verify import verify

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
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c" / "qrels").mkdir(parents=True)
    lines(tmp_path / "c" / "corpus.jsonl", DOCUMENTS)
    return "c"


def index(corpus: str, model: Path, **more: object) -> None:
    index_corpus(IndexRequest(corpus, str(model), **{"exits": False, "dims": (8,), **FP32, **more}))


def found(corpus: str, model: Path, wanted: str = RECENT, **more: object) -> set[str]:
    asked = SearchRequest(corpus, str(model), filter=wanted, **FP32, **more)
    return {hit.docid for hit in Searcher(asked).search("read a list", 20).hits}


def fields_of_hits(corpus: str, model: Path, wanted: str = "") -> dict[str, dict[str, object]]:
    asked = SearchRequest(corpus, str(model), filter=wanted, **FP32)
    return {hit.docid: hit.fields for hit in Searcher(asked).search("read a list", 20).hits}


def fields(home: Path) -> list[str]:
    return sorted(path.name for path in home.rglob("fields-*"))


def test_every_way_to_search_filters_also_after_changes(corpus: str, model: Path) -> None:
    index(corpus, model, engines=("flat", "hnsw"), layers=(2, 4), shard_rows=8)
    ways: list[dict[str, object]] = [
        {}, {"engine": "hnsw"}, {"engine": "exact"}, {"funnel": "4:20,8"}, {"document_layer": 2},
    ]  # fmt: skip
    new = [
        {"_id": "n1", "text": "a list", "year": 2030, "lang": "de"},
        {"_id": "d11", "text": "read", "metadata": {"year": 1990, "lang": "de"}},
        {"_id": "d1", "text": "close", "year": 2031, "lang": "de", "pages": 3},
    ]
    lines(Path("new.jsonl"), new)

    assert all(found(corpus, model, **way) == FOUND for way in ways)
    add(AddRequest("new.jsonl", corpus, str(model), replace=True, **FP32))
    now = FOUND - {"d11"} | {"n1", "d1"}
    assert all(found(corpus, model, **way) == now for way in ways)
    delete_documents(["d13", "n1"], DeleteRequest(corpus=corpus, model=str(model)))
    now -= {"d13", "n1"}
    assert all(found(corpus, model, **way) == now for way in ways)
    assert fields(Path("indexes")) == ["fields-00000.parquet"] * 2 + ["fields-00001.parquet"] * 2
    compact(CompactRequest(corpus, str(model)))
    assert all(found(corpus, model, **way) == now for way in ways)
    assert fields(Path("indexes")) == ["fields-00003.parquet"] * 2
    assert found(corpus, model, "pages = 3") == {"d1"}
    assert fields_of_hits(corpus, model, "pages = 3") == {
        "d1": {"year": 2031, "lang": "de", "pages": 3}
    }
    assert all(one.is_well for one in verify(VerifyRequest(sample=0)))
    for path in Path("indexes").rglob("fields-*"):
        path.write_bytes(path.read_bytes()[::-1])
    assert not any(one.is_well for one in verify(VerifyRequest(sample=0)))


def test_odd_values_that_make_a_field_text_are_told_of(
    corpus: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*DOCUMENTS, {"_id": "odd", "text": "read", "lang": "en", "year": "unknown"}]
    lines(Path(corpus) / "corpus.jsonl", rows)
    index(corpus, model, root=Path("odd"))
    told = "'year' is compared as text: 19 of its 20 values are whole numbers, and 'unknown' is"
    assert told in capsys.readouterr().err

    lines(Path(corpus) / "corpus.jsonl", DOCUMENTS)
    index(corpus, model)
    assert "compared as text" not in capsys.readouterr().err
    add(AddRequest(str(lines(Path("new.jsonl"), rows[-1:])), corpus, str(model), **FP32))
    assert "'year' is compared as text from now on: it held" in capsys.readouterr().err


def test_an_index_of_before_gets_its_fields_by_the_command_that_is_named(
    corpus: str, model: Path
) -> None:
    index(corpus, model)
    (path,) = Path("indexes").rglob(STORE)

    def forget() -> None:
        record = json.loads(path.read_text())
        (held,) = record.pop("fields")
        path.write_text(json.dumps(record))
        (path.parent / held["name"]).unlink(missing_ok=True)

    forget()
    with pytest.raises(
        UserError, match="holds no fields of its documents.*Add them with: "
    ) as told:
        found(corpus, model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("m2dr.index.store.find_spec", lambda _: None)
        with pytest.raises(UserError, match=r"pip install 'm2dr\[filter\]'; then .*index corpus"):
            found(corpus, model)
    assert found(corpus, model, "").issuperset(FOUND)
    command = shlex.split(str(told.value).partition("with: ")[2])
    done = run(*command[1:], "--dtype", "fp32", cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    assert found(corpus, model) == FOUND

    lines(Path("new.jsonl"), [{"_id": "d2", "text": "a", "year": 2050, "lang": "de"}])
    delete_documents(["d13"], DeleteRequest(corpus=corpus, model=str(model)))
    forget()
    add(AddRequest("new.jsonl", corpus, str(model), replace=True, **FP32))
    with pytest.raises(UserError, match="holds no fields of its documents"):
        found(corpus, model)
    index(corpus, model)
    assert found(corpus, model) == FOUND - {"d13"} | {"d2"}


def test_columns_of_tables_are_fields(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        {key: row[key] for key in ("_id", "title", "text")} | {"year": n, "vector": [0.5, 1.0]}
        for n, row in enumerate(DOCUMENTS)
    ]
    table = pa.Table.from_pylist(rows)
    days = pa.array([1000 * n for n in range(20)], pa.date32())
    pq.write_table(table.append_column("day", days), "t.parquet")
    cells = ["_id,text,Year,note"] + [f"{r['_id']},{r['text']},{r['year']}," for r in rows]
    Path("u.csv").write_text("\n".join(cells))

    for name, wanted in (("t.parquet", "year > 16 and day < 2022-01-09"), ("u.csv", "year > 16")):
        index(name, model)
        assert found(name, model, wanted) == {"d17", "d18", "d19"}
        years = {docid: one["year"] for docid, one in fields_of_hits(name, model).items()}
        assert years["d0"] == rows[0]["year"]
        assert years["d18"] == rows[18]["year"]
        with pytest.raises(UserError, match="no field|none of that name"):
            found(name, model, "vector = 1")
    assert fields_of_hits("t.parquet", model)["d18"] == {"year": 18, "day": "2019-04-14"}


def test_documents_without_fields_have_no_file(
    tiny_corpus: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    index(str(tiny_corpus), model)

    assert fields(Path("indexes")) == []
    with pytest.raises(UserError, match="have no fields besides id, title and text"):
        found(str(tiny_corpus), model)


def test_the_command_line_filters_answers_and_runs(corpus: str, model: Path) -> None:
    index(corpus, model)
    search = ("search", "--corpus", corpus, "--model", model, "--dtype", "fp32", "--filter")

    done = run(*search, RECENT, "read a list", "--report", cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    assert {
        line.split()[2] for line in done.stdout.splitlines() if line[:3].strip()[:1].isdigit()
    } == FOUND
    assert "recall@5 1.0000" in done.stdout
    assert "were asked for" not in done.stderr
    told = run(*search, "year = 2011", "read a list", "--json", cwd=Path.cwd())
    (hit,) = json.loads(told.stdout)["hits"]
    assert (hit["docid"], hit["fields"]) == ("d11", {"year": 2011, "lang": "de"})
    lines(Path("t.jsonl"), [{"_id": "q", "text": "read a list"}])
    ran = run(*search, RECENT, "--topics", "t.jsonl", "--run", "r.trec", cwd=Path.cwd())
    assert ran.returncode == 0, ran.stderr
    assert {line.split()[2] for line in Path("r.trec").read_text().splitlines()} == FOUND
    wrong = run(*search, "yaer > 3", "read", cwd=Path.cwd())
    assert wrong.returncode == 2
    assert "Did you mean year? Their fields are: lang, year." in wrong.stderr


def test_an_index_filters_from_python_and_fewer_answers_are_no_warning(
    model: Path, tmp_path: Path
) -> None:
    encoder = m2dr.Encoder.from_pretrained(model, dim=32, **FP32)
    rows = [{"id": row["_id"], "text": row["text"], **row["metadata"]} for row in DOCUMENTS[:5]]
    built = m2dr.Index.build(encoder, rows, exits=False, folder=tmp_path)

    assert len(built.search("read").hits) == 5
    answers = built.search(["read", "close"], filter="year > 2001 and lang = en")
    assert [{hit.docid for hit in answer.hits} for answer in answers] == [{"d2", "d4"}] * 2
    assert built.search("read", filter="year > 3000").hits == ()
    assert answers[0].hits[0].fields["lang"] == "en"
    with pytest.warns(UserWarning, match="9 documents per query were asked for"):
        built.search("read", k=9)
    with pytest.raises(UserError, match="filter is of type int"):
        built.search("read", filter=3)
    built.add([{"id": "new", "text": "read", "year": 2040}])
    assert [hit.docid for hit in built.search("read", filter="year > 2030").hits] == ["new"]
    again = m2dr.open_index(tmp_path / "documents", model=str(model), root=tmp_path, **FP32)
    assert [hit.docid for hit in again.search("read", filter="year > 2030").hits] == ["new"]


def test_a_filter_needs_the_store_that_an_index_was_copied_from(
    corpus: str, model: Path, tmp_path: Path
) -> None:
    index(corpus, model)
    (folder,) = Path("indexes").rglob("dim-8")
    folder.rename(tmp_path / "moved")

    with pytest.raises(UserError, match="beside their store, which is not in"):
        found(corpus, model, index="moved")


def test_imported_vectors_have_the_fields_of_their_documents(corpus: str, model: Path) -> None:
    order = DOCUMENTS[::-1]
    encoder = m2dr.Encoder.from_pretrained(model, **FP32)
    np.save("v.npy", encoder.encode_documents(order))
    Path("ids.txt").write_text("".join(f"{row['_id']}\n" for row in order))
    asked = ImportRequest(corpus, str(model), Path("v.npy"), Path("ids.txt"), sample=2, **FP32)
    import_vectors(asked)

    assert found(corpus, model) == FOUND


def test_a_report_compares_with_what_fits(corpus: str, model: Path) -> None:
    index(corpus, model)
    searcher = Searcher(SearchRequest(corpus, str(model), filter="year = 1900", **FP32))

    assert compare_with_scan(searcher, [Query("q", "read")], 3).recall == 1.0
