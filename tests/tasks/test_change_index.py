"""`m2dr index add`, `delete` and `compact` in a shell: what is told, searched, verified, evaluated."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from shell import ENVIRONMENT, m2dr
from world import make_corpus, make_model

from m2dr.core.records import Document
from m2dr.core.requests import AddRequest, DeleteRequest
from m2dr.tasks.change_index import add_documents, delete_documents

ENGINES = ("flat", "hnsw", "ivf")
NEW = [
    {"_id": "n1", "title": "", "text": "read a module line"},
    {"docid": "d3", "contents": "close the list"},
]


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def run(place: Path, *words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    ended = m2dr(*words, cwd=place)
    assert ended.returncode == code, ended.stderr
    return ended


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    """A place with a corpus, a model and its indexes."""
    place = tmp_path_factory.mktemp("begun")
    make_corpus(place / "tiny")
    make_model(tiny_backbone, place / "model", similarity="cosine")
    run(
        place, "index", "corpus", *BOTH, "--layer", "2", "--layer", "4", "--dim", "8", "--shard-rows",
        "16", *(word for engine in ENGINES for word in ("--engine", engine)),
    )  # fmt: skip
    lines(place / "new.jsonl", *NEW)
    return place


BOTH = ("--corpus", "tiny", "--model", "model")


@pytest.fixture
def place(begun: Path, tmp_path: Path) -> Path:
    """Its own indexes, of the same corpus and model."""
    (tmp_path / "indexes").mkdir()
    subprocess.run(["cp", "-r", begun / "indexes", tmp_path], check=True)
    for name in ("tiny", "model", "new.jsonl"):
        (tmp_path / name).symlink_to(begun / name)
    return tmp_path


def digests(place: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }


def found(place: Path, *words: str, k: int = 40) -> dict[str, float]:
    """Docids and scores for a query, best first."""
    text = run(place, "search", "read a module line", *BOTH, "-k", str(k), *words).stdout
    rows = [line.split() for line in text.splitlines() if line and line[:3].strip().isdigit()]
    return {docid: float(score) for _, score, docid in rows}


WAYS = [
    *(("--engine", engine, "--dim", "8") for engine in ENGINES),
    ("--engine", "exact"),
    ("--funnel", "4:40,8"),
]


def test_documents_are_added_replaced_deleted_and_compacted(place: Path) -> None:
    before = found(place, *WAYS[0])
    told = run(place, "index", "add", "new.jsonl", *BOTH, "--replace")
    assert "2 documents added, 1 deleted, 41 now" in told.stdout
    assert "layer-04/dim-8: appended" in told.stdout
    assert "layer-04/dim-8-hnsw: rebuilt" in told.stdout
    assert "exits stay as they were fitted" in told.stderr
    Path(place, "ids.txt").write_text("d1\nd2\n\n")
    told = run(place, "index", "delete", "--file", "ids.txt", "d7", *BOTH)
    assert "0 documents added, 3 deleted, 38 now" in told.stdout

    answer = run(place, "search", "read a module line", *BOTH, "-k", "1").stdout.split()
    assert answer[2:] == ["n1", "read", "a", "module", "line"]
    shallow = ("--query-layer", "1", "--exits", "index")
    for way in (*WAYS, shallow):
        hits = found(place, *way)
        assert set(hits) == {*before} - {"d1", "d2", "d7"} | {"n1"}, way
    assert "39" not in run(place, "index", "list").stdout
    assert "38         4" in run(place, "index", "list").stdout
    assert run(place, "index", "verify").stdout.count(": ok, 32 documents encoded again") == 2

    kept = [found(place, *way) for way in WAYS]
    told = run(place, "index", "compact", *BOTH)
    assert "4 deleted ones removed from the files, 38 now" in told.stdout
    assert [found(place, *way) for way in WAYS] == kept
    assert "38         0" in run(place, "index", "list").stdout
    assert run(place, "index", "verify").stdout.count(": ok, 32 documents encoded again") == 2
    (texts,) = place.glob("indexes/*/*/documents-*.jsonl")
    assert sorted(json.loads(line)["_id"] for line in texts.read_text().splitlines()) == [
        "d3",
        "n1",
    ]


def test_the_rankings_are_those_of_a_fresh_index(place: Path) -> None:
    run(place, "index", "add", "new.jsonl", *BOTH, "--replace")
    run(place, "index", "delete", "d1", *BOTH)
    changed = [found(place, *way) for way in WAYS]
    text = Path(place, "tiny/corpus.jsonl").read_text()
    old = [json.loads(line) for line in text.splitlines()]
    left = [row for row in old if row["_id"] not in ("d1", "d3")]
    (place / "other" / "qrels").mkdir(parents=True)
    lines(place / "other/corpus.jsonl", *left, NEW[0], {"_id": "d3", "text": "close the list"})
    words = (
        "--corpus",
        "other",
        "--model",
        "model",
        "--layer",
        "4",
        "--dim",
        "8",
        "--indexes",
        "i2",
    )
    run(place, "index", "corpus", *words, *(w for e in ENGINES for w in ("--engine", e)))

    for way, mine in zip(WAYS, changed, strict=True):
        theirs = found(place, *way, "--corpus", "other", "--indexes", "i2")
        assert mine.keys() == theirs.keys()
        assert all(abs(mine[docid] - theirs[docid]) < 0.02 for docid in mine)  # batches of bf16


def test_what_cannot_be_changed_is_one_sentence_and_changes_nothing(place: Path) -> None:
    before = digests(place / "indexes")
    lines(place / "twice.jsonl", {"_id": "n", "text": "a"}, {"_id": "n", "text": "b"})
    lines(place / "bad.jsonl", {"_id": "n", "text": 3})
    lines(place / "body.jsonl", {"_id": "n", "body": "read"})
    refused = {
        ("index", "add", "new.jsonl", *BOTH): "holds 'd3' already. Nothing was added; replace what "
        "is there with: m2dr index add new.jsonl --corpus tiny --model model --replace",
        ("index", "add", "twice.jsonl", *BOTH): "twice.jsonl have the docid 'n' twice",
        ("index", "add", "bad.jsonl", *BOTH): "bad.jsonl, line 1: 'text' is 3, not a string.",
        ("index", "add", "body.jsonl", *BOTH): "line 1: has no 'text' or 'contents'; its keys are",
        ("index", "add", "none.jsonl", *BOTH): "There is no data set 'none.jsonl'",
        ("index", "delete", "d1", "a", "b", "c", "e", *BOTH): "'a', 'b', 'c' and 1 other. Nothing "
        "was deleted; leave those out.",
        ("index", "delete", *BOTH): "No docid was given.",
        ("index", "delete", *(f"d{i}" for i in range(40)), *BOTH): "keeps one at least",
        ("index", "compact", "--model", "model", "--corpus", "new.jsonl"): "new.jsonl",
    }
    for words, sentence in refused.items():
        told = run(place, *words, code=2).stderr
        assert sentence in told, told
        assert told.count("Error: ") == 1
    told = run(place, "index", "compact", *BOTH).stdout
    assert "0 documents added, 0 deleted ones removed from the files, 40 now" in told
    assert digests(place / "indexes") == before


def test_an_index_of_a_changed_collection_can_be_built_and_a_layer_cannot(place: Path) -> None:
    run(place, "index", "delete", "d1", *BOTH)
    run(place, "index", "corpus", *BOTH, "--layer", "4", "--dim", "16")
    assert "d1" not in found(place, "--dim", "16", "--engine", "flat")
    told = run(place, "index", "corpus", *BOTH, "--layer", "1", code=2).stderr
    assert "Use layers 2, 4, or give up the changes" in told
    assert "--layer 2 --layer 4" in told
    told = run(place, "index", "corpus", *BOTH, "--layer", "4", "--store", "int8", code=2).stderr
    assert "holds a store with dtype 'f16', not 'int8'. Repeat the settings" in told
    assert "--store int8" in told
    run(
        place, "index", "corpus", *BOTH, "--layer", "2", "--layer", "4", "--dim", "8", "--overwrite"
    )
    assert "d1" in found(place, *WAYS[0])
    assert not list((place / "indexes").rglob("deleted-*/../store.json"))


def test_exits_are_fitted_on_the_documents_of_now_and_stay_after_later_changes(
    place: Path,
) -> None:
    shallow = ("--query-layer", "1", "--exits", "index")
    run(place, "index", "add", "new.jsonl", *BOTH, "--replace")
    told = run(place, "index", "fit", *BOTH, code=2).stderr
    assert "has exits of these documents. Replace them with: m2dr index fit" in told
    (record,) = place.glob("indexes/*/*/exits/exits.json")
    before = record.read_text()
    assert "36 documents: " in run(place, "index", "fit", *BOTH, "--overwrite").stdout
    assert record.read_text() != before
    run(place, "index", "delete", "d1", *BOTH)
    assert "n1" in found(place, *shallow)

    (texts,) = place.glob("indexes/*/*/documents-*.jsonl")
    lines(texts, {"_id": "n1", "text": "class"}, {"_id": "d3", "text": "string number"})
    told = run(place, "index", "fit", *BOTH, "--overwrite", code=2).stderr
    assert "are not those that" in told


def test_a_copied_index_shows_no_text_that_was_replaced(place: Path) -> None:
    (dim,) = place.glob("indexes/*/*/layer-04/dim-8")
    subprocess.run(["cp", "-r", dim, place / "before"], check=True)
    run(place, "index", "add", "new.jsonl", *BOTH, "--replace")
    subprocess.run(["cp", "-r", dim, place / "copy"], check=True)
    search = ("search", "close the list", "--corpus", "tiny", "--model", "model", "-k", "41")

    told = run(place, *search, "--index", "copy").stdout.splitlines()
    assert told[told.index(next(line for line in told if line.endswith(" d3"))) + 1].split() == [
        "close", "the", "list",
    ]  # fmt: skip
    run(place, "index", "delete", "d1", *BOTH)
    ended = run(place, *search, "--index", "copy")
    assert "was copied without its store after documents were added" in ended.stderr
    rows = ended.stdout.splitlines()
    assert len(rows) == 41
    assert rows[0].endswith("  d3")
    assert "d3\n     " in run(place, *search[:-1], "40", "--index", "before").stdout


def test_a_copy_of_a_store_is_searched_by_its_folder_and_not_changed(place: Path) -> None:
    (layer,) = place.glob("indexes/*/*/layer-04")
    for name in ("before", "layer-04.before"):
        subprocess.run(["cp", "-r", layer, layer.with_name(name)], check=True)
    before = digests(layer.with_name("layer-04.before"))
    run(place, "index", "delete", "d1", *BOTH)

    assert digests(layer.with_name("layer-04.before")) == before
    for name, there in (("before", True), ("layer-04.before", True), ("layer-04", False)):
        for way in (WAYS[0], WAYS[3]):
            assert ("d1" in found(place, "--index", str(layer.with_name(name)), *way)) is there
    run(place, "index", "corpus", *BOTH, "--layer", "4", "--dim", "16")


def test_a_damaged_list_of_deleted_documents_is_found(place: Path) -> None:
    run(place, "index", "delete", "d1", *BOTH)
    (path,) = place.glob("indexes/*/*/layer-04/deleted-*")
    path.write_bytes(b"12345678")
    assert "is not the file of deleted documents" in run(place, "index", "verify", code=2).stdout
    assert "is not the file of deleted documents" in (
        run(place, "search", "read", *BOTH, "--engine", "exact", code=2).stderr
    )


def test_measures_do_not_count_what_is_deleted(place: Path) -> None:
    evaluate = (
        "evaluate", "retrieval", *BOTH, "--split", "test", "--layer", "4", "--dim", "32",
        "--measure", "R@40", "--out", "out",
    )  # fmt: skip

    def queries_that_find_it() -> int:
        run(place, *evaluate)
        (path,) = place.glob("out/**/L4D32.trec")
        return path.read_text().count(" d32 ")

    assert queries_that_find_it() == 8
    run(place, "index", "delete", "d32", *BOTH)
    assert queries_that_find_it() == 0


def test_negatives_are_mined_among_the_documents_of_now(place: Path) -> None:
    run(place, "index", "add", "new.jsonl", *BOTH, "--replace")
    run(place, "index", "delete", "d39", *BOTH)
    run(
        place, "mine", "--out", "groups.jsonl", *BOTH, "--depth", "40", "--negatives", "30",
        "--margin", "0", "--queries", "3", "--dim", "8",
    )  # fmt: skip
    rows = [json.loads(line) for line in (place / "groups.jsonl").read_text().splitlines()]
    texts = {each["docid"]: each["text"] for row in rows for each in row["negative_passages"]}
    assert texts["n1"] == "read a module line"
    assert texts["d3"] == "close the list"
    assert "d39" not in texts


def test_a_collection_in_milvus_of_before_is_refused_until_it_is_pushed(place: Path) -> None:
    push = ("index", "push", "--to", "milvus", "--uri", "m.db", *BOTH, "--layer", "4")
    search = ("search", "read a module line", *BOTH, "--index", "milvus:m.db", "-k", "40")
    run(place, *push)
    run(place, "index", "delete", "d1", *BOTH)
    told = run(place, *search, code=2).stderr
    assert "whose documents have changed. Push them with: m2dr index push" in told
    assert "39 documents, 0 of them written now" in run(place, *push).stdout
    found = run(place, *search).stdout.split()
    assert "d1" not in found
    assert "d39" in found


def test_documents_from_python(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    report = add_documents([Document("p", "open a path")], AddRequest("", "tiny", "model"))
    assert (report.documents, report.added) == (41, 1)
    report = delete_documents(["p", "d1"], DeleteRequest(corpus="tiny", model="model"))
    assert (report.documents, report.deleted) == (39, 2)


def test_a_change_killed_at_any_moment_is_made_or_not_made(begun: Path, tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", begun / "indexes", tmp_path / "made"], check=True)
    for name in ("tiny", "model", "new.jsonl"):
        (tmp_path / name).symlink_to(begun / name)
    words = (*BOTH, "--indexes", "made")
    run(tmp_path, "index", "delete", "d1", "d2", *words)
    script = Path(__file__).parents[1] / "killing_changes.py"
    (tmp_path / "work").mkdir()
    ended = subprocess.run(
        [sys.executable, script, "tiny", "model", "made", "new.jsonl", "work"],
        cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    attempts = json.loads(ended.stdout)

    assert len(attempts) == 20
    documents = {"add": 39, "delete": 36, "compact": 38}
    for one in attempts:
        assert one["code"] == -9, one
        assert one["seen"] in ("before", "after"), one
        assert one["ended"], one
        assert one["kind"] != "compact" or one["compact"], one
        # Killed with nothing left to do, it has nothing to do again.
        done = one["seen"] == "after" and "Nothing was deleted" in str(one["again"])
        assert done or one["again"] == documents[one["kind"]], one
        assert not one["left"], one
    for kind in documents:
        assert {one["seen"] for one in attempts if one["kind"] == kind} == {"before", "after"}
