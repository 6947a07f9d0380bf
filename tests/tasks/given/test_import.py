"""Imports of vectors without a model: once, whole, and never mixed with others."""

import json
import os
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import done, refused, run
from given import WIDTH, Given

import m2dr
from m2dr.core.errors import UserError
from m2dr.core.requests import ImportRequest
from m2dr.index.folder import IndexFolder
from m2dr.index.store import open_store
from m2dr.model.words import WordTable
from m2dr.tasks.indexing.importing import import_vectors, neighbours_kept


def test_prefixes_are_rotated_where_that_makes_them_search(world: Given) -> None:
    home = world.load()

    stored = open_store(home / "layer-01").rows(range(40))
    raw, rotated = (
        neighbours_kept(each, WIDTH // 4, "cosine") for each in (world.documents, stored)
    )
    assert raw < 0.9 * rotated
    expected = world.documents @ world.documents.T
    np.testing.assert_allclose(stored @ stored.T, expected, atol=1e-5 * np.abs(expected).max())
    np.save(world.vectors, stored)
    shutil.rmtree(home)
    again = open_store(world.load() / "layer-01").rows(range(40))
    np.testing.assert_array_equal(again, stored)  # their prefixes search as they are


def test_words_are_those_of_whole_texts(world: Given, here: Path) -> None:
    path = here / "corpus" / "corpus.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for number, row in enumerate(rows):
        row["text"] = f"{'filler ' * 600}{row['text']} word{number}"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    home = world.load(name="whole")
    cut = world.load(name="cut", document_length=64)
    again = world.load(name="cut", dims=(8,))

    words, few = WordTable.open(home / "exits"), WordTable.open(cut / "exits")
    assert again == cut
    assert "word7" in words.rows
    assert "word7" not in few.rows
    assert few.limit == 96


def test_a_further_dim_is_of_the_vectors_where_a_corpus_has_no_others(world: Given) -> None:
    home = world.load()

    told = run("index", "corpus", world.corpus, "--dim", "4", "--indexes", world.root)

    assert told.exit_code == 0, told.stderr
    assert [*home.parent.glob("*/layer-*/dim-4")] == [home / "layer-01" / "dim-4"]


def test_the_newest_of_several_imports_is_searched(world: Given) -> None:
    homes = {name: world.load(name=name) for name in ("b", "a")}
    for store in homes["b"].glob("layer-*/store.json"):
        os.utime(store, (1, 1))

    assert world.searcher().resolved.model.name == str(homes["a"])
    named = world.searcher(model=str(homes["b"]))
    assert named.resolved.index.path == homes["b"]


def test_an_import_again_adds_what_is_missing_and_is_not_mixed_with_another(world: Given) -> None:
    home = world.load(name="mine")
    files = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    shutil.rmtree(home / "exits")

    world.load(name="mine", dims=(8,))

    assert (home / "layer-01" / "dim-8" / "manifest.json").exists()
    assert files == {path: path.read_bytes() for path in files}
    np.save(world.vectors, world.documents[::-1])
    with pytest.raises(UserError, match="holds vectors already"):
        world.load(name="mine")
    world.load(name="mine", overwrite=True)
    (words,) = (home / "exits").glob("*.safetensors")
    assert words.read_bytes() != files[words]


def test_more_documents_replace_the_vectors_of_fewer_by_the_command_that_is_told(
    world: Given, tmp_path: Path
) -> None:
    corpus = Path(shutil.copytree(world.corpus, tmp_path / "own"), "corpus.jsonl")
    lines, first = corpus.read_text().splitlines(True), tmp_path / "few.npy"
    corpus.write_text("".join(lines[:30]))
    np.save(first, world.documents[:30])
    home = world.load(vectors=first, corpus=str(corpus.parent))
    index = m2dr.open_index(corpus.parent, root=world.root)
    corpus.write_text("".join(lines))

    with pytest.raises(UserError, match="--name few --overwrite replaces them, --name v keeps"):
        world.load(corpus=str(corpus.parent))
    for change in (lambda: index.add(["new"]), lambda: index.delete("d1")):
        with pytest.raises(UserError, match="m2dr index import VECTORS --corpus") as told:
            change()
    words = shlex.split(str(told.value).split("m2dr ")[1].split(" replaces")[0])
    done(*[str(world.vectors) if word == "VECTORS" else word for word in words])

    assert IndexFolder.found(world.root) == [IndexFolder(home)]
    assert IndexFolder(home).record().documents == len(lines)


def test_an_import_again_is_as_before_where_nothing_is_named(world: Given) -> None:
    home = world.load(name="mine", similarity="dot", rotate="no")
    words = ("--corpus", world.corpus, "--indexes", world.root)

    for again in ({}, {"overwrite": True}, {"name": "mine"}, {"similarity": "dot", "dims": (8,)}):
        assert world.load(store=None, **again) == home
    done("index", "corpus", *words, "--dim", "4")
    done("index", "fit", *words, "--overwrite")

    assert open_store(home / "layer-01").manifest.dtype == "f32"
    assert "has dtype 'f32', not 'f16'" in refused("index", "corpus", *words, "--store", "f16")
    assert [*home.parent.iterdir()] == [home]
    assert world.load(similarity="cosine") != home


@pytest.mark.parametrize("wrong", ["row 7 is not finite", "39 vectors for 40", "without --queries"])
def test_what_is_wrong_leaves_no_index(world: Given, wrong: str) -> None:
    if "finite" in wrong:
        world.documents[7, 3] = np.nan
    np.save(world.vectors, world.documents[:39] if "39" in wrong else world.documents)

    with pytest.raises(UserError, match=wrong):
        world.load(query_weight=0.3 if "queries" in wrong else None)

    assert not world.root.exists()


def test_one_document_is_an_index(world: Given) -> None:
    Path("one.jsonl").write_text('{"_id": "d", "text": "read the file"}\n')
    np.save(world.vectors, world.documents[:1])
    request = ImportRequest(world.vectors, "one.jsonl", root=world.root)
    import_vectors(request)

    index = m2dr.Index.open("one.jsonl", root=world.root)
    hits = index.search("read").hits
    assert [hit.docid for hit in hits] == ["d"]
    assert np.isfinite(hits[0].score)
    assert not index.search("of no word that is known").hits


def test_without_a_model_nothing_is_encoded_and_nothing_changes(world: Given) -> None:
    home = world.load()
    index = m2dr.Index.open(world.corpus, root=world.root)
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    words = ("--corpus", world.corpus, "--indexes", world.root, "--model", home)

    for asked in (
        ("search", "read", "--query-layer", "1", *words),
        ("index", "corpus", "--overwrite", *words),
        ("encode", world.corpus, "--out", "x.npy", "--model", home),
        ("export", "--model", home, "--cut", "L1D8", "--out", "small"),
    ):
        assert "no model" in refused(*asked)
    for change in (lambda: index.add([{"id": "new", "text": "read"}]), lambda: index.delete("d1")):
        with pytest.raises(UserError, match="holds imported vectors"):
            change()
    assert before == {path: path.read_bytes() for path in before}
    assert "ok" in run("index", "verify", home).stdout
