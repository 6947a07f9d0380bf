"""m2dr.Index.build: documents of Python code are indexed as a corpus, and searched."""

import json
import os
import shutil
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from commands import done
from world import TEXT, WORDS, make_model

import m2dr
from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.tasks import indexing

FP32 = {"device": "cpu", "dtype": "fp32"}
CUTS = (Cut(4, 8), Cut(4, 32))  # trained, so that their use is no warning
DOCUMENTS = [
    {"id": f"d{n}", "title": WORDS[n], "text": " ".join(WORDS[n : n + 5])} for n in range(9)
]


@pytest.fixture(scope="module")
def model(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> m2dr.Encoder:
    folder = tmp_path_factory.mktemp("models") / "m"
    return m2dr.Encoder(
        make_model(tiny_backbone, folder, similarity="cosine", query_prefix="open ", cuts=CUTS),
        **FP32,
    )


def test_search_ranks_by_the_vectors(model: m2dr.Encoder, tmp_path: Path) -> None:
    scores = model.cut(dim=8).similarity(
        model.cut(dim=8).encode_queries(TEXT), model.cut(dim=8).encode_documents(DOCUMENTS)
    )[0]

    index = m2dr.Index.build(model, DOCUMENTS, dims=[8], folder=tmp_path)
    hits = index.search(TEXT, k=9).hits

    assert [hit.docid for hit in hits] == [f"d{n}" for n in np.argsort(-scores)]
    answer = index.search(TEXT, k=2)
    assert ([*answer], answer[0], len(answer)) == ([*answer.hits], hits[0], 2)
    assert hits[1].docid in repr(answer)
    np.testing.assert_allclose([hit.score for hit in hits], np.sort(scores)[::-1], atol=1e-3)
    assert hits[0].text == "{title} {text}".format(**DOCUMENTS[int(hits[0].docid[1:])])


@pytest.mark.filterwarnings("ignore:Cut L2D8 was not trained")
def test_cut_of_the_encoder_is_the_default(model: m2dr.Encoder, tmp_path: Path) -> None:
    cut = model.cut(2, 8)

    index = m2dr.Index.build(
        cut, DOCUMENTS, dims=[8, 32], layers=[2, 4], folder=tmp_path, exits=False
    )

    assert index.searcher().cut == Cut(2, 8)
    scores = cut.similarity(cut.encode_queries(TEXT), cut.encode_documents(DOCUMENTS))[0]
    assert index.search(TEXT, k=1).hits[0].docid == f"d{scores.argmax()}"


def test_changes_are_of_documents_as_they_were_built(model: m2dr.Encoder, tmp_path: Path) -> None:
    """Of the columns that were named, and of all passages of a document."""
    long, other = " ".join(WORDS[:9]), " ".join(WORDS[9:14])
    index = m2dr.Index.build(
        model, [{"Key": "a", "Body": long}, {"Key": "b", "Body": "open"}], dims=[8],
        columns={"id": "Key", "text": "Body"}, passages=(4, 1), folder=tmp_path, exits=False,
    )  # fmt: skip
    built = {"a#1", "a#2", "a#3", "b"}

    def docids() -> set[str]:
        return {hit.docid for hit in index.search("open", k=99)}

    assert docids() == built
    with pytest.raises(UserError, match="holds 'a' already, with another content"):
        index.add([{"Key": "a", "Body": other}])
    assert docids() == built
    report = index.add([{"Key": "a", "Body": other}, {"Key": "c", "Body": "shut"}], replace=True)
    assert docids() == {"a#1", "a#2", "b", "c"}
    assert (report.documents, report.added, report.deleted) == (4, 3, 3)
    assert [index.get(f"a#{n}")["text"] for n in (1, 2)] == [
        " ".join(WORDS[9:13]), " ".join(WORDS[12:14])
    ]  # fmt: skip
    index.delete("a")
    assert docids() == {"b", "c"}


def test_a_query_that_is_cut_is_said(model: m2dr.Encoder, tmp_path: Path) -> None:
    index = m2dr.Index.build(model, DOCUMENTS, dims=[8], folder=tmp_path, exits=False)
    short = "open " * (index.searcher().encoder.card.query_length - 3)  # prompt, [CLS], [SEP]
    read = len(index.searcher().encoder.tokenize([short])[0])
    assert read == index.searcher().encoder.card.query_length

    index.search(short)  # a warning would be an error

    with pytest.warns(UserWarning, match=rf"of more than {read} tokens were cut: 1 of 1\."):
        index.search(f"{short} file")


def test_built_again(
    model: m2dr.Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"folder": tmp_path, "exits": False, "name": "documents"}
    m2dr.Index.build(model, DOCUMENTS, **given)
    capsys.readouterr()

    m2dr.Index.build(model, DOCUMENTS, **given)
    assert "Encoding" not in capsys.readouterr().err
    with pytest.raises(UserError, match="holds other documents"):
        m2dr.Index.build(model, DOCUMENTS[:3], **given)
    index = m2dr.Index.build(model, DOCUMENTS[:3], overwrite=True, **given)

    assert len(index.search("open", k=3).hits) == 3
    rows = (tmp_path / "documents" / "corpus.jsonl").read_text().splitlines()
    assert [json.loads(row)["_id"] for row in rows] == ["d0", "d1", "d2"]


@pytest.mark.parametrize("wrong", [{"documents": []}, {"passages": "40:10"}, {"names": "mine"}])
def test_what_is_refused_writes_nothing(
    wrong: dict[str, object], model: m2dr.Encoder, tmp_path: Path
) -> None:
    with pytest.raises(UserError):
        m2dr.Index.build(model, **{"documents": DOCUMENTS, "folder": tmp_path} | wrong)

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [{"dims": [99]}, {"engines": ["fast"]}, {"model": "no"}])
def test_a_mistake_replaces_nothing(
    wrong: dict[str, object], model: m2dr.Encoder, tmp_path: Path
) -> None:
    given = {"model": model, "folder": tmp_path, "exits": False, "name": "mine"}
    m2dr.Index.build(documents=DOCUMENTS, **given)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    with pytest.raises(UserError):
        m2dr.Index.build(documents=["another"], overwrite=True, **given | wrong)

    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_numbers_are_ids_as_build_gave_them(model: m2dr.Encoder, tmp_path: Path) -> None:
    index = m2dr.Index.build(model, ["a file", "a list", "a path"], folder=tmp_path, exits=False)

    index.add(["a socket"])
    index.delete(1)
    index.add([{"text": "a thread"}])
    index.delete([np.int64(0), "2"])

    assert sorted(hit.docid for hit in index.search("a", k=9)) == ["3", "4"]
    assert index.get("4")["text"] == "a thread"
    with pytest.raises(UserError, match="the id 3.0 is empty"):
        index.delete([3.0])


def test_add_and_delete(model: m2dr.Encoder, tmp_path: Path) -> None:
    given = {"dims": [8], "exits": False, "name": "documents"}
    index = m2dr.Index.build(model, DOCUMENTS, folder=tmp_path, **given)
    index.search(TEXT, k=9)  # what is open now must not answer later
    more = [{"id": "new", "title": "", "text": TEXT}, {"id": "d3", "text": "run list"}]

    with pytest.raises(UserError, match=r"holds .d3. already"):
        index.add(more)
    with pytest.raises(UserError, match="Two documents have the id 'new'"):
        index.add([more[0], more[0]], replace=True)
    with pytest.raises(UserError, match="Row 1: "):
        index.add([more[0], "a text"], replace=True)
    added = index.add(more, replace=True)
    deleted = index.delete(["d0"])

    assert (added.added, added.deleted, added.documents) == (2, 1, 10)
    assert (deleted.deleted, deleted.documents) == (1, 9)
    assert repr(index) == f"Index('documents', model={model.name!r})"
    kept = [row for row in DOCUMENTS if row["id"] not in ("d0", "d3")] + more
    fresh = m2dr.Index.build(model, kept, folder=tmp_path / "fresh", **given)
    for one in (
        index,
        m2dr.open_index(
            tmp_path / "documents", model=model.name, root=tmp_path, device=None, dtype="fp32"
        ),
    ):
        found, expected = (which.search(TEXT, k=9).hits for which in (one, fresh))
        assert [(hit.docid, hit.text) for hit in found] == [
            (hit.docid, hit.text) for hit in expected
        ]
        np.testing.assert_allclose(
            [hit.score for hit in found], [hit.score for hit in expected], atol=1e-5
        )
    with pytest.raises(UserError, match="d0"):
        index.delete(["d0"])


def test_a_corpus_that_m2dr_did_not_write_is_never_changed(
    model: m2dr.Encoder, tmp_path: Path
) -> None:
    corpus = tmp_path / "data" / "own" / "corpus.jsonl"
    corpus.parent.mkdir(parents=True)
    corpus.write_text("".join(json.dumps(row) + "\n" for row in DOCUMENTS))
    before = corpus.read_bytes()
    index = m2dr.Index.build(model, corpus.parent, folder=corpus.parents[1], exits=False)

    for change in (
        lambda: index.add(["another"]),
        lambda: index.delete(["d0"]),
        lambda: m2dr.Index.build(
            model, ["another"], folder=corpus.parents[1], name="own", overwrite=True, exits=False
        ),
    ):
        with pytest.raises(UserError, match="corpus.jsonl was not written by m2dr and is kept"):
            change()

    assert corpus.read_bytes() == before
    assert len(m2dr.open_index(corpus.parent, **FP32)) == len(DOCUMENTS)


def test_documents_change_however_their_index_was_opened(
    model: m2dr.Encoder, tmp_path: Path
) -> None:
    index = m2dr.Index.build(model, DOCUMENTS, name="c", folder=tmp_path / "a", exits=False)
    home, saved = index.resolved.index.path, index.save(tmp_path / "saved")
    here = tmp_path / "a" / "c" / "corpus.jsonl"
    before = here.read_bytes()
    copied = shutil.copytree(home, tmp_path / "copied")

    for path in (saved, *saved.glob("c/*/layer-*")):
        opened = m2dr.open_index(path, **FP32)
        opened.add([{"id": "new", "text": TEXT}])
        assert opened.search(TEXT, k=1)[0].docid == "new"
        assert opened.get("new")["text"] == TEXT
        opened.delete("new")
        assert len(m2dr.open_index(path, **FP32)) == len(DOCUMENTS)

    with pytest.raises(UserError, match="copied is no folder where m2dr indexes"):
        m2dr.open_index(copied, **FP32).add([{"id": "new", "text": TEXT}])
    assert here.read_bytes() == before  # of which the others are copies


def test_columns_of_a_corpus_may_be_named_again(model: m2dr.Encoder, tmp_path: Path) -> None:
    file, columns = tmp_path / "c.csv", {"id": "Key", "text": "Body"}
    file.write_text("Key,Body\nx1,one text\nx2,another\n")
    m2dr.Index.build(model, file, folder=tmp_path, columns=columns, exits=False)

    for named in ({"columns": columns}, {}):
        opened = m2dr.open_index(file, root=tmp_path, **FP32, **named)
        assert [opened.get(docid)["text"] for docid in ("x1", "x2")] == ["one text", "another"]


@pytest.mark.parametrize("engine", ["flat", "bits1"])
def test_damage_is_neither_copied_to_a_changed_index_nor_searched(
    engine: str, model: m2dr.Encoder, tmp_path: Path
) -> None:
    given = {"folder": tmp_path, "name": "c", "exits": False, "dims": [8], "engines": [engine]}
    index = m2dr.Index.build(model, DOCUMENTS, **given)
    (shard,) = tmp_path.rglob("vectors-*")
    held = bytearray(shard.read_bytes())
    held[5] ^= 64
    shard.write_bytes(held)
    refused = pytest.raises(UserError, match="vectors-.* is missing or not the file")

    with refused:
        index.add([{"id": "new", "text": TEXT}])
    with refused:
        index.delete("d8")
    with refused:
        m2dr.open_index(tmp_path / "c", engine=engine, dim=8, **FP32).search(TEXT, explain=True)


def test_ids_and_what_get_gives_are_taken_back(model: m2dr.Encoder, tmp_path: Path) -> None:
    own = {"text": "of a field", "year": 1999}  # the first has the name of a column
    rows = [{"id": n, "text": TEXT, "metadata": own} for n in range(4)]
    index = m2dr.Index.build(model, rows, folder=tmp_path, name="c", exits=False)

    assert index.get(1) == index.get(np.int64(1)) == index.get("1")
    index.add([index.get(1)])  # year before text, and no other content
    index.delete(0)
    index.delete(np.array([2]))

    assert sorted(hit.docid for hit in index.search(TEXT, k=9).hits) == ["1", "3"]
    with pytest.raises(UserError, match=r"the id 1.0 is"):
        index.delete([1.0])


@pytest.mark.parametrize("end", ["before", "after"])
def test_a_killed_change_leaves_an_index_in_its_state_of_before_or_after(
    end: str, model: m2dr.Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = m2dr.Index.build(model, DOCUMENTS, folder=tmp_path, name="mine", exits=False)
    corpus = tmp_path / "mine" / "corpus.jsonl"

    def killed(*arguments: object, **options: object) -> None:
        if end == "after":
            whole(*arguments, **options)
        raise KeyboardInterrupt

    place = "encode.IndexFolder.swap_in" if end == "before" else "index.encode_stores"
    whole = attrgetter(place)(indexing)
    with monkeypatch.context() as patch:
        patch.setattr(f"m2dr.tasks.indexing.{place}", killed)
        with pytest.raises(KeyboardInterrupt):
            index.delete(["d0", "d1"])

    found = m2dr.open_index(tmp_path / "mine", **FP32)
    left = DOCUMENTS if end == "before" else DOCUMENTS[2:]
    hits = found.search(TEXT, k=9).hits
    assert {hit.docid: hit.text for hit in hits} == {
        row["id"]: "{title} {text}".format(**row) for row in left
    }
    assert corpus.read_text().count("\n") == len(found) == len(left)
    found.delete(["d2"])
    assert len(found) == len(left) - 1
    assert not list(tmp_path.rglob("changed-corpus.jsonl"))


@pytest.mark.parametrize("linked", ["mine", "mine/*"])
def test_an_index_that_lies_elsewhere_by_a_link_is_changed_there(
    linked: str, model: m2dr.Encoder, tmp_path: Path
) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "disk"
    m2dr.Index.build(model, DOCUMENTS, folder=root, name="mine", exits=False, dims=[8])
    (place,) = (path for path in root.glob(linked) if path.is_dir())
    place.rename(elsewhere)
    place.symlink_to(Path(os.path.relpath(elsewhere, place.parent)))
    (elsewhere / "note.txt").touch()

    for number in range(3):
        index = m2dr.open_index(root / "mine", **FP32)
        index.add([{"id": f"new-{number}", "text": TEXT}])
        index.delete([f"d{number}"])
    corpus = ("--corpus", root / "mine", "--model", model.name, "--indexes", root)
    done("index", "corpus", *corpus, "--dims", "8,16", "--device", "cpu", "--dtype", "fp32")

    assert place.is_symlink()
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".new", ".old")]
    assert (elsewhere / "note.txt").exists()
    assert {hit.docid for hit in m2dr.open_index(root / "mine", **FP32).search(TEXT, k=9).hits} == {
        *(f"d{n}" for n in range(3, 9)), *(f"new-{n}" for n in range(3)),
    }  # fmt: skip
    (listed,) = m2dr.index_list(root=root).stores
    assert (listed["documents"], listed["indexes"]) == (9, ["8", "16"])
    (verdict,) = m2dr.index_verify(root=root, device="cpu", sample=1).verdicts
    assert (verdict.problems, verdict.notes) == ((), ())


def test_without_a_name_documents_are_named_by_their_content(
    model: m2dr.Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"folder": tmp_path, "exits": False}
    first = m2dr.Index.build(model, DOCUMENTS, **given)
    second = m2dr.Index.build(model, DOCUMENTS[:3], **given)
    capsys.readouterr()
    again = m2dr.Index.build(model, DOCUMENTS, **given)

    assert "Encoding" not in capsys.readouterr().err
    assert (len(first), len(second), len(again)) == (9, 3, 9)
    first.delete(["d0"])
    assert len(m2dr.Index.build(model, DOCUMENTS, **given)) == 9


def test_saved_and_loaded(model: m2dr.Encoder, tmp_path: Path) -> None:
    rows = [row | {"year": n} for n, row in enumerate(DOCUMENTS)]
    index = m2dr.Index.build(model, rows, dims=[8, 32], folder=tmp_path / "here")
    expected = index.search(TEXT, dim=8, k=9).hits

    index.save(tmp_path / "saved" / "index")
    shutil.rmtree(tmp_path / "here")
    loaded = m2dr.Index.load(tmp_path / "saved" / "index", **FP32)

    found = loaded.search(TEXT, dim=8, k=9).hits
    assert [(hit.docid, hit.text) for hit in found] == [
        (row["id"], "{title} {text}".format(**row))
        for row in (rows[int(hit.docid[1:])] for hit in expected)
    ]
    assert loaded.get("d4") == rows[4]
    loaded.add([loaded.get("d4") | {"id": "new"}])
    assert len(loaded) == 10
    with pytest.raises(UserError, match="holds no document 'd99'"):
        loaded.get("d99")
    with pytest.raises(UserError, match="is not empty"):
        loaded.save(tmp_path / "saved")


@pytest.mark.filterwarnings("ignore:Queries of more than 5 tokens")
def test_lengths_of_the_encoder(model: m2dr.Encoder, tmp_path: Path) -> None:
    short = m2dr.Encoder(model.name, query_length=5, document_length=4, **FP32)
    expected = short.similarity(short.encode_queries(TEXT), short.encode_documents(DOCUMENTS))[0]
    whole = model.similarity(model.encode_queries(TEXT), model.encode_documents(DOCUMENTS))[0]

    index = m2dr.Index.build(short, DOCUMENTS, folder=tmp_path, name="short")
    index.add([DOCUMENTS[0] | {"id": "same"}])
    opened = m2dr.open_index(tmp_path / "short", model=model.name, root=tmp_path, **FP32)

    for each in (index, opened):  # what is recorded holds where nothing is asked for
        scores = {hit.docid: hit.score for hit in each.search(TEXT, k=10).hits}
        assert scores.pop("same") == pytest.approx(scores["d0"], abs=1e-6)
        found = [scores[f"d{n}"] for n in range(9)]
        np.testing.assert_allclose(found, expected, atol=1e-3)
        assert np.abs(np.array(found) - whole).max() > 1e-2
    with pytest.raises(UserError, match="document_length 4 against 5"):
        m2dr.open_index(tmp_path / "short", model=model.name, root=tmp_path, document_length=5)


def test_few_documents_get_no_exits(
    tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("M2DR_PROGRESS", "0")
    model = m2dr.Encoder(make_model(tiny_backbone, tmp_path / "m", similarity="cosine"), **FP32)

    index = m2dr.Index.build(model, DOCUMENTS, folder=tmp_path)

    told = capsys.readouterr().err
    assert "Too few documents to fit exits (9 < 50)" in told
    assert "9 documents in" not in told  # no progress
    with pytest.raises(UserError, match="no exits for layer 0"):
        index.search("open", layer=0)


def test_half_a_surrogate_pair_is_replaced_wherever_a_text_comes_from(
    model: m2dr.Encoder, tmp_path: Path
) -> None:
    half, whole = "open \ud83d", "open \ufffd"
    rows = [{"id": "a", "text": half, "of": {half: half}}, {"id": "b\ud83d", "text": "file"}]

    index = m2dr.Index.build(model, rows, exits=False, folder=tmp_path)
    grid = m2dr.evaluate(
        model.name, rows, queries={"q\ud83d": half}, qrels={"q\ud83d": {"a": 1}},
        layers=[4], dims=[32], root=tmp_path / "r", out=tmp_path / "out", **FP32,
    )  # fmt: skip

    assert index.get("a") == {"id": "a", "title": "", "text": whole, f"of.{whole}": whole}
    assert index.get("b\ufffd")["text"] == "file"
    found = [[(hit.docid, hit.score) for hit in index.search(text).hits] for text in (half, whole)]
    assert found[0] == found[1]
    np.testing.assert_array_equal(model.encode(half), model.encode(whole))
    assert grid


@pytest.mark.usefixtures("exits_of_few")
def test_words_of_documents_that_came_are_found_without_a_model(
    tmp_path: Path, model: m2dr.Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: dict[str, Any] = {"folder": tmp_path, "name": "c"}
    index = m2dr.Index.build(
        model, {f"d{n}": f"{word} file" for n, word in enumerate(WORDS)}, **opened
    )
    assert not index.search("quagga", layer=0, k=1).hits

    index.add([{"id": "new", "text": "a quagga"}])

    assert index.search("quagga", layer=0, k=1).hits[0].docid == "new"
    with pytest.warns(UserWarning, match="The exits of .* were fitted before .* --overwrite"):
        index.search("quagga", layer=2)
    stopped = Mock(side_effect=KeyboardInterrupt)
    with monkeypatch.context() as patch:
        patch.setattr("m2dr.tasks.indexing.steps.words_towards", stopped)
        with pytest.raises(KeyboardInterrupt):
            index.add([{"id": "last", "text": "an okapi"}])
    again = m2dr.Index.open(tmp_path / "c", model=model.name, root=tmp_path)
    with pytest.warns(UserWarning, match="fitted before its documents changed"):
        again.search("okapi", layer=0)
    with monkeypatch.context() as patch:  # between the words and their record
        patch.setattr("m2dr.tasks.indexing.steps._write_record", stopped)
        with pytest.raises(KeyboardInterrupt):
            again.delete("d0")
    with pytest.warns(UserWarning, match="fitted before its documents changed"):  # whole
        m2dr.Index.open(tmp_path / "c", model=model.name, root=tmp_path).search("okapi", layer=0)
    again.delete("d1")
    assert again.search("okapi", layer=0, k=1).hits[0].docid == "last"


@pytest.mark.usefixtures("exits_of_few")
def test_a_query_without_a_known_word_finds_nothing(tmp_path: Path, model: m2dr.Encoder) -> None:
    documents = {f"d{n}": f"{word} file" for n, word in enumerate(WORDS)}
    index = m2dr.Index.build(model, documents, folder=tmp_path, name="c")

    unknown, known = index.search(["zzzz qqqq", "file"], layer=0, k=3)
    assert (unknown.hits, len(known.hits)) == ((), 3)
    assert not index.search("щека", layer=0, hybrid=True).hits
    assert index.search("zzzz qqqq", layer=4, k=3).hits
    assert not index.search("zzzz qqqq", layer=4, hybrid=1).hits  # BM25 alone
    with pytest.raises(UserError, match="no vector"):
        index.embed_query("zzzz", layer=0)


def test_a_query_without_a_known_word_has_no_vector(tiny_fitted: Path) -> None:
    words = m2dr.Encoder(tiny_fitted, layer=0, device="cpu", dtype="fp32")

    assert any(words.embed_query("read"))
    with pytest.raises(UserError, match="No word of 'zzzz' is known at layer 0"):
        words.embed_query("zzzz")


def test_a_name_leads_to_no_other_folder() -> None:
    for name in ("..", "a/b"):
        with pytest.raises(UserError, match="not that of a folder"):
            m2dr.Index.build("minilm", ["a text"], name=name)
