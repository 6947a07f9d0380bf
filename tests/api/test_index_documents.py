"""m2dr.Index.build: documents of Python code are indexed as a corpus, and searched."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from shell import m2dr as run
from world import TEXT, WORDS, make_model

import m2dr
from m2dr.core.errors import UserError
from m2dr.core.records import Cut
from m2dr.tasks import fit_texts

FP32 = {"device": "cpu", "dtype": "fp32"}
CUTS = (Cut(4, 8), Cut(4, 32))  # trained, so that their use is no warning
DOCUMENTS = [
    {"id": f"d{n}", "title": WORDS[n], "text": " ".join(WORDS[n : n + 5])} for n in range(9)
]


@pytest.fixture(scope="module")
def model(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> m2dr.Encoder:
    folder = tmp_path_factory.mktemp("models") / "m"
    return m2dr.Encoder.from_pretrained(
        make_model(tiny_backbone, folder, similarity="cosine", query_prefix="open ", cuts=CUTS),
        **FP32,
    )


def test_a_search_ranks_as_the_vectors_of_the_encoder_do(
    model: m2dr.Encoder, tmp_path: Path
) -> None:
    scores = model.cut(dim=8).similarity(
        model.cut(dim=8).encode_queries(TEXT), model.cut(dim=8).encode_documents(DOCUMENTS)
    )[0]

    index = m2dr.Index.build(model, DOCUMENTS, dims=[8], folder=tmp_path)
    hits = index.search(TEXT, k=9).hits

    assert [hit.docid for hit in hits] == [f"d{n}" for n in np.argsort(-scores)]
    np.testing.assert_allclose([hit.score for hit in hits], np.sort(scores)[::-1], atol=1e-3)
    assert hits[0].text == "{title} {text}".format(**DOCUMENTS[int(hits[0].docid[1:])])


def test_every_layer_searches_through_exits_of_the_documents(
    model: m2dr.Encoder, tmp_path: Path
) -> None:
    index = m2dr.Index.build(model, DOCUMENTS, dims=[8, 32], folder=tmp_path)

    for layer in range(5):
        answers = index.search([TEXT, "open a file"], layer=layer, dim=8, k=3)
        assert [len(answer.hits) for answer in answers] == [3, 3]


@pytest.mark.filterwarnings("ignore:Cut L2D8 was not trained")
def test_the_cut_of_the_encoder_is_that_of_a_search(model: m2dr.Encoder, tmp_path: Path) -> None:
    cut = model.cut(2, 8)

    index = m2dr.Index.build(
        cut, DOCUMENTS, dims=[8, 32], layers=[2, 4], folder=tmp_path, exits=False
    )

    assert index.searcher().cut == Cut(2, 8)
    scores = cut.similarity(cut.encode_queries(TEXT), cut.encode_documents(DOCUMENTS))[0]
    assert index.search(TEXT, k=1).hits[0].docid == f"d{scores.argmax()}"


def test_strings_are_numbered_and_the_command_line_searches_them(
    model: m2dr.Encoder, tmp_path: Path
) -> None:
    texts = [one["text"] for one in DOCUMENTS]

    index = m2dr.Index.build(model.name, iter(texts), name="mine", folder=tmp_path / "indexes")

    best = index.search(texts[3], k=1).hits[0]
    done = run(
        "search", texts[3], "--corpus", "indexes/mine", "--model", model.name, "-k", "1",
        cwd=tmp_path,
    )  # fmt: skip
    assert best.docid in {str(number) for number in range(9)}
    assert f"  {best.docid}\n" in done.stdout, done.stderr


def test_ids_and_texts_have_the_names_that_files_of_documents_have(
    model: m2dr.Encoder, tmp_path: Path
) -> None:
    rows = [{"document_id": "d1", "contents": TEXT}, {"docid": "d2", "text": "open"}]

    hits = m2dr.Index.build(model, rows, exits=False, folder=tmp_path).search(TEXT, k=2).hits

    assert [(hit.docid, hit.text) for hit in hits] == [("d1", TEXT), ("d2", "open")]


def test_a_corpus_is_named(model: m2dr.Encoder, tiny_corpus: Path, tmp_path: Path) -> None:
    index = m2dr.Index.build(model, tiny_corpus, folder=tmp_path, exits=False)

    assert index.search("open a file", k=3).hits[0].docid.startswith("d")
    assert not (tmp_path / "tiny" / "corpus.jsonl").exists()


def test_what_is_built_is_used_again_and_other_documents_replace_it_when_told(
    model: m2dr.Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"folder": tmp_path, "exits": False}
    m2dr.Index.build(model, DOCUMENTS, **given)
    capsys.readouterr()

    m2dr.Index.build(model, DOCUMENTS, **given)
    assert "Encoding" not in capsys.readouterr().err
    with pytest.raises(UserError, match="holds other documents than those given"):
        m2dr.Index.build(model, DOCUMENTS[:3], **given)
    index = m2dr.Index.build(model, DOCUMENTS[:3], overwrite=True, **given)

    assert len(index.search("open", k=3).hits) == 3
    rows = (tmp_path / "documents" / "corpus.jsonl").read_text().splitlines()
    assert [json.loads(row)["_id"] for row in rows] == ["d0", "d1", "d2"]


@pytest.mark.parametrize(
    ("documents", "options", "sentence"),
    [
        ([], {}, "No documents were given"),
        ([3], {}, "Number 0 of the documents is of type int"),
        ({"text": "a"}, {}, "The documents are of type dict"),
        ([{"id": "a", "text": "x"}, {"id": "a", "text": "y"}], {}, "the id 'a' is already used"),
        ([{"id": "a b", "text": "x"}], {}, "the id 'a b' holds whitespace"),
        (["a\ud800"], {}, "half a surrogate pair"),
        ([{"id": 1.5, "text": "x"}], {}, "has id = 1.5"),
        (pandas.DataFrame({"text": ["a", "b"]}), {}, r"of type DataFrame, a table.*'records'"),
        (["a"], {"name": "a/b"}, "Give the name of a folder"),
        (["a"], {"name": ".."}, "Give the name of a folder"),
        (["a"], {"name": ""}, "Give the name of a folder"),
        (["a"], {"name": "é" * 101}, "Give the name of a folder"),
        (["a"], {"dims": [0]}, "dims = 0 was asked for"),
        (["a"], {"dims": 99}, "Dim 99 was asked for"),
        (["a"], {"engines": ["fast"]}, "no engine 'fast'"),
        (["a"], {"store": "f23"}, "store = 'f23' was asked for. Did you mean f32"),
        ("./nothing", {}, "There is no data set './nothing'"),
    ],
)
def test_a_mistake_is_a_sentence(
    documents: object,
    options: dict[str, object],
    sentence: str,
    model: m2dr.Encoder,
    tmp_path: Path,
) -> None:
    with pytest.raises(UserError, match=sentence):
        m2dr.Index.build(model, documents, folder=tmp_path, **options)

    assert not [path for path in tmp_path.rglob("*") if path.suffix == ".tmp"]


def test_the_index_of_a_corpus_is_not_mixed_with_documents(
    model: m2dr.Encoder, tiny_corpus: Path, tmp_path: Path
) -> None:
    m2dr.Index.build(model, tiny_corpus, folder=tmp_path, exits=False)

    with pytest.raises(UserError, match="holds the index of a corpus that is elsewhere"):
        m2dr.Index.build(model, DOCUMENTS, name="tiny", folder=tmp_path)


def test_the_vocabulary_is_embedded_once_for_all_indexes_of_a_model(
    model: m2dr.Encoder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("M2DR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fit_texts, "KEPT_BYTES", range(1, 2**20))
    asked, embed = [], fit_texts.embed_tokens
    monkeypatch.setattr(fit_texts, "embed_tokens", lambda *a: asked.append(1) or embed(*a))

    def exits(name: str) -> bytes:
        m2dr.Index.build(model, DOCUMENTS, name=name, folder=tmp_path)
        (path,) = (tmp_path / name).rglob("layer_0.safetensors")
        return path.read_bytes()

    first = exits("first")
    assert exits("second") == first
    assert len(asked) == 1
    (kept,) = (tmp_path / "cache").rglob("*.npy")
    kept.write_bytes(b"damaged")
    assert exits("third") == first
    assert len(asked) == 2


def test_models_of_two_widths_share_no_vocabulary(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("M2DR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fit_texts, "KEPT_BYTES", range(1, 2**20))
    stack = [Transformer(str(tiny_backbone)), Pooling(32, "mean")]
    SentenceTransformer(modules=stack, device="cpu").save(str(tmp_path / "whole"))
    shutil.copytree(tmp_path / "whole", tmp_path / "narrow")
    settings = tmp_path / "narrow" / "config_sentence_transformers.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"truncate_dim": 16}))

    for name in ("whole", "narrow"):
        encoder = m2dr.Encoder.from_pretrained(tmp_path / name, **FP32)
        m2dr.Index.build(encoder, DOCUMENTS, name=name, folder=tmp_path / "indexes")

    kept = [np.load(path) for path in (tmp_path / "cache").rglob("*.npy")]
    assert sorted(one.shape[1] for one in kept) == [16, 32]


def test_a_build_that_fails_leaves_nothing(model: m2dr.Encoder, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    for documents, options in ((["a"], {"dims": 99}), ([], {}), ([3], {})):
        for folder in (tmp_path / "new", tmp_path / "kept"):
            with pytest.raises(UserError):
                m2dr.Index.build(model, documents, folder=folder, **options)
    assert [path.name for path in tmp_path.rglob("*")] == ["kept"]

    given = {"folder": tmp_path / "kept", "exits": False}
    m2dr.Index.build(model, DOCUMENTS, **given)
    with pytest.raises(UserError):
        m2dr.Index.build(model, DOCUMENTS, dims=99, **given)
    assert len(m2dr.Index.build(model, DOCUMENTS, **given).search("read", k=9).hits) == 9


@pytest.mark.parametrize(
    "wrong", [{"dims": 99}, {"layers": 9}, {"engines": "fast"}, {"store": "f23"}, {"model": "no"}]
)
def test_a_mistake_replaces_nothing(
    wrong: dict[str, object], model: m2dr.Encoder, tmp_path: Path
) -> None:
    given = {"model": model, "folder": tmp_path, "exits": False}
    m2dr.Index.build(documents=DOCUMENTS, **given)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    with pytest.raises(UserError):
        m2dr.Index.build(documents=["another"], overwrite=True, **given | wrong)

    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.filterwarnings("ignore:9 documents per query")
def test_only_indexes_are_replaced(model: m2dr.Encoder, tmp_path: Path) -> None:
    given = {"folder": tmp_path, "exits": False}
    m2dr.Index.build(model, DOCUMENTS, **given)
    judged = tmp_path / "documents" / "qrels" / "test.tsv"
    judged.parent.mkdir()
    judged.write_text("query-id\tcorpus-id\tscore\n")
    other = tmp_path / "documents" / "0123456789ab" / "layer-04"  # of another model, not finished
    other.mkdir(parents=True)

    index = m2dr.Index.build(model, ["a list"], overwrite=True, **given)

    assert index.search("list", k=9).hits[0].docid == "0"
    assert judged.exists()
    assert not other.exists()


def test_documents_are_added_replaced_and_deleted(model: m2dr.Encoder, tmp_path: Path) -> None:
    index = m2dr.Index.build(model, DOCUMENTS, dims=[8], exits=False, folder=tmp_path)
    index.search(TEXT, k=9)  # what is open now must not answer later
    more = [{"id": "new", "title": "", "text": TEXT}, {"id": "d3", "text": "run list"}]

    with pytest.raises(UserError, match=r"holds d3 already"):
        index.add(more)
    for wrong, sentence in (
        ({"id": "u", "text": "a\ud800"}, "documents, line 2: the text holds half a surrogate pair"),
        ({"id": "a b", "text": "x"}, "documents, line 2: the id 'a b' holds whitespace"),
    ):
        with pytest.raises(UserError, match=sentence):
            index.add([{"id": "x", "text": "y"}, wrong])
    for nameless in ("a text", {"text": "a text"}):
        with pytest.raises(UserError, match="Number 1 of the documents has no id"):
            index.add([more[0], nameless], replace=True)
    added = index.add(more, replace=True)
    deleted = index.delete(["d0"])

    assert (added.added, added.deleted, added.documents) == (2, 1, 10)
    assert (deleted.deleted, deleted.documents) == (1, 9)
    assert repr(index) == f"Index('documents', model={model.name!r})"
    kept = [row for row in DOCUMENTS if row["id"] not in ("d0", "d3")] + more
    fresh = m2dr.Index.build(model, kept, dims=[8], exits=False, folder=tmp_path / "fresh")
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
    with pytest.raises(UserError, match="has no d0"):
        index.delete(["d0"])
