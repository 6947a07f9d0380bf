"""`m2dr index push`, `index import`, `bm25` and `fuse` as a person uses them."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import done, refused
from world import stop_milvus

from m2dr.core.records import Query
from m2dr.core.requests import IndexRequest, SearchRequest
from m2dr.evaluation.runs import read_run
from m2dr.index.store import Store, open_store
from m2dr.tasks.indexing.index import index_corpus
from m2dr.tasks.searching.search import open_searcher

QUERIES = [Query(f"q{n}", text) for n, text in enumerate(["read the file", "close list", "path"])]


@pytest.fixture(scope="module")
def indexes(
    tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path, tiny_corpus: Path
) -> Path:
    """Layers 2 and 4 of the tiny corpus by the tiny backbone, at dims 8 and 32."""
    root = tmp_path_factory.mktemp("indexes")
    index_corpus(
        IndexRequest(
            str(tiny_corpus), str(tiny_backbone), dims=(8, 32), layers=(2, 4), root=root,
            store="f32", exits=False, device="cpu", dtype="fp32",
        )
    )  # fmt: skip
    return root


@pytest.fixture(scope="module")
def store(indexes: Path) -> Store:
    return open_store(next(indexes.glob("*/*/layer-04")))


@pytest.fixture
def theirs(store: Store, tmp_path: Path) -> tuple[str | Path, ...]:
    """The vectors of layer 4 as another tool would write them, and the options that name them."""
    np.save(tmp_path / "X.npy", store.rows(range(store.documents)))
    (tmp_path / "ids.txt").write_text("".join(f"{docid}\n" for docid in store.docids))
    return (tmp_path / "X.npy", "--ids", tmp_path / "ids.txt")


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = str(tmp_path_factory.mktemp("milvus") / "local.db")
    yield path
    stop_milvus(path)


@pytest.mark.parametrize("hybrid", [0.0, 0.4])
def test_what_is_pushed_ranks_as_the_index_on_disk(
    uri: str, indexes: Path, tiny_backbone: Path, tiny_corpus: Path, hybrid: float
) -> None:
    words = (
        "index", "push", "--uri", uri, "--corpus", tiny_corpus,
        "--model", tiny_backbone, "--indexes", indexes,
    )  # fmt: skip
    first, again = done(*words, "--overwrite"), done(*words)

    assert first.count("40 documents, 40 of them written now") == 4
    assert again.count("40 documents, 0 of them written now") == 4
    request = SearchRequest(
        corpus=str(tiny_corpus), model=str(tiny_backbone), dim=8, document_layer=4, root=indexes,
        hybrid=hybrid,
    )  # fmt: skip
    on_disk = open_searcher(request).run(QUERIES, 40)
    pushed = open_searcher(replace(request, index=f"milvus:{uri}")).run(QUERIES, 40)
    for query in QUERIES:
        assert pushed.rankings[query.id].docids == on_disk.rankings[query.id].docids
        scores = pytest.approx(
            on_disk.rankings[query.id].scores, abs=1e-4
        )  # a hybrid stretches them
        assert pushed.rankings[query.id].scores == scores


@pytest.mark.parametrize("layer", [0, 2])
def test_exits_of_an_index_lead_to_what_was_pushed_of_it(
    layer: int, uri: str, indexes: Path, tiny_backbone: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    own = shutil.copytree(indexes, tmp_path / "own")
    words = ("--corpus", tiny_corpus, "--model", tiny_backbone, "--indexes", own)
    done("index", "push", "--uri", uri, *words, "--overwrite")
    done("index", "fit", *words)
    request = SearchRequest(str(tiny_corpus), str(tiny_backbone), layer=layer, dim=8, root=own)

    on_disk, pushed = open_searcher(request), open_searcher(replace(request, index=f"milvus:{uri}"))

    assert "by exits of the index" in pushed.describe
    expected, found = (each.run(QUERIES, 40).rankings for each in (on_disk, pushed))
    for name, ranking in expected.items():
        assert found[name].docids == ranking.docids
        assert found[name].scores == pytest.approx(ranking.scores, abs=1e-5)


@pytest.mark.parametrize("way", ["npy", "pyserini"])
def test_imported_vectors_search_as_those_encoded_here(
    way: str, tmp_path: Path, store: Store, theirs, tiny_backbone: Path, tiny_corpus: Path,
    indexes: Path, dtype: str,  # noqa: ARG001  # of the queries; the vectors came from elsewhere
) -> None:  # fmt: skip
    files = theirs if way == "npy" else (store.folder / "dim-32",)

    told = done(
        "index", "import", *files, "--corpus", tiny_corpus, "--model", tiny_backbone,
        "--indexes", tmp_path / "own", "--dim", "8", "--store", "f32",
    )  # fmt: skip

    assert "40 documents of width 32, 16 encoded again" in told
    asked = SearchRequest(
        str(tiny_corpus), str(tiny_backbone), dim=8, document_layer=4, root=indexes
    )
    own = SearchRequest(str(tiny_corpus), str(tiny_backbone), dim=8, root=tmp_path / "own")
    mine, imported = open_searcher(asked).run(QUERIES, 40), open_searcher(own).run(QUERIES, 40)
    for query in QUERIES:
        found, expected = imported.rankings[query.id], mine.rankings[query.id]
        assert sorted(found.docids) == sorted(expected.docids)
        assert found.scores == pytest.approx(expected.scores, abs=1e-5)


@pytest.mark.usefixtures("here")
def test_imported_vectors_are_measured_until_their_corpus_changes(
    theirs, tiny_backbone: Path, tiny_corpus: Path
) -> None:
    shutil.copytree(tiny_corpus, "own")
    words = ("--corpus", "own", "--model", tiny_backbone)
    done("index", "import", *theirs, *words)

    told = done("evaluate", "retrieval", *words, "--layers", "4", "--dims", "8", "--exits", "model")
    assert "8 queries" in told
    done("index", "corpus", *words, "--dim", "16", "--no-exits")
    path = Path("own", "corpus.jsonl")
    path.write_text(path.read_text().replace("read", "write"))
    again = refused("index", "corpus", *words)
    assert "holds imported vectors, and none of other documents; m2dr index import VECTORS" in again
    assert not list(Path("indexes").glob("*/*.new"))


def test_vectors_of_another_layer_or_model_are_refused(
    tmp_path: Path, store: Store, theirs, backbone, tiny_backbone: Path, tiny_corpus: Path
) -> None:
    words = ("index", "import", "--corpus", tiny_corpus, "--indexes", tmp_path / "own")

    layer = refused(*words, *theirs, "--model", tiny_backbone, "--layer", "2")
    model = refused(*words, *theirs, "--model", backbone("roberta"))
    rows = store.rows(range(40))
    np.save(tmp_path / "X.npy", np.roll(rows, 1, axis=0))
    order = refused(*words, *theirs, "--model", tiny_backbone)

    for told in (layer, model, order):
        assert "times as far as other rows" in told
        assert "--sample 0" in told
    assert not (tmp_path / "own").exists()
    done(*words, *theirs, "--model", tiny_backbone, "--sample", "0")


def test_words_and_vectors_fuse_into_one_run(tmp_path: Path, tiny_corpus: Path) -> None:
    topics, words, dense = (tmp_path / name for name in ("topics.tsv", "bm25.trec", "dense.trec"))
    topics.write_text("".join(f"{query.id}\t{query.text}\n" for query in QUERIES))
    dense.write_text("q0 Q0 d1 1 .9 x\nq0 Q0 d2 2 .8 x\nq9 Q0 d3 1 .7 x\n")

    told = done("bm25", "--corpus", tiny_corpus, "--topics", topics, "--run", words, "-k", "5")
    assert "3 queries over 40 documents" in told
    done("fuse", words, dense, "--out", tmp_path / "fused.trec", "--top-k", "3")

    fused = read_run(tmp_path / "fused.trec")
    assert list(fused.rankings) == ["q0", "q1", "q2", "q9"]
    assert fused.rankings["q9"].scores == (pytest.approx(1 / 61),)
    assert all(len(ranking.docids) <= 3 for ranking in fused.rankings.values())


def test_a_run_is_not_written_over_what_it_is_made_from(tmp_path: Path, tiny_corpus: Path) -> None:
    topics, one, other = (tmp_path / name for name in ("topics.tsv", "one.trec", "other.trec"))
    topics.write_text("q\tread a file\n")
    one.write_text("q Q0 d 1 1 x\n")
    other.symlink_to(one)
    before = one.read_text(), topics.read_text()
    words = ("--corpus", tiny_corpus, "--topics", topics, "--run", tmp_path / "." / "topics.tsv")

    told = [
        refused("fuse", one, tmp_path / "absent", "--out", other),
        refused("bm25", *words),
        refused("search", *words),
    ]

    for name, sentence in zip(("RUNS", "--topics", "--topics"), told, strict=True):
        assert f"would overwrite the file that {name} names" in sentence
    assert (one.read_text(), topics.read_text()) == before
