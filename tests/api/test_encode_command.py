"""m2dr encode: files of texts become vectors, those of sentence-transformers and of m2dr.Encoder."""

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from shell import m2dr as run
from world import TEXT, make_model

import m2dr
from m2dr.core.errors import UserError
from m2dr.core.requests import EncodeRequest
from m2dr.data.text_files import open_texts
from m2dr.tasks import encode as verb

LINES = [" ".join(TEXT.split()[start : start + 5]) for start in range(9)]
FP32 = ("--device", "cpu", "--dtype", "fp32")


@pytest.fixture(scope="module")
def model(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(
        tiny_backbone, tmp_path_factory.mktemp("models") / "m", similarity="cosine",
        query_prefix="open ", document_prefix="text ",
    )  # fmt: skip


def encoded(request: EncodeRequest) -> np.ndarray:
    verb.encode(request)
    return np.load(request.out)


def request_of(model: Path, file: Path, out: Path, **more: object) -> EncodeRequest:
    return EncodeRequest(str(file), out, model=str(model), device="cpu", dtype="fp32", **more)


def test_lines_become_what_sentence_transformers_makes_of_them(model: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(LINES) + "\n")

    done = run("encode", "texts.txt", "--out", "v.npy", "--model", model, *FP32, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("9 texts, L4D32 of ")
    assert "Encoding: 9 texts in" in done.stderr
    referee = SentenceTransformer(str(model), device="cpu")
    expected = referee.encode_document(LINES, normalize_embeddings=True)
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt", "v.npy"]


@pytest.mark.parametrize("query", [True, False])
def test_a_cut_is_that_of_the_encoder(query: bool, model: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(LINES))
    same = m2dr.Encoder.from_pretrained(model, 2, 8, device="cpu", dtype="fp32")
    expected = same.encode_queries(LINES) if query else same.encode_documents(LINES)

    found = encoded(
        request_of(
            model, tmp_path / "texts.txt", tmp_path / "v.npy", layer=2, dim=8, query=query,
            precision="float16",
        )
    )  # fmt: skip

    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_layer_0_of_a_fitted_model_encodes_too(tiny_fitted: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(LINES))
    model = m2dr.Encoder.from_pretrained(tiny_fitted, layer=0, dim=8)

    found = encoded(
        request_of(
            tiny_fitted, tmp_path / "texts.txt", tmp_path / "v.npy", layer=0, dim=8, query=True
        )
    )

    np.testing.assert_array_equal(found, model.encode_queries(LINES))


def test_a_beir_corpus_and_its_queries_keep_their_ids(
    model: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [json.loads(line) for line in (tiny_corpus / "corpus.jsonl").read_text().splitlines()]
    same = m2dr.Encoder.from_pretrained(model, dim=8, device="cpu", dtype="fp32")
    expected = same.encode_documents(rows)

    verb.encode(request_of(model, tiny_corpus, tmp_path / "v.parquet", dim=8))
    ids = tmp_path / "ids.txt"
    queries = request_of(
        model, tiny_corpus / "queries.jsonl", tmp_path / "q.npy", ids=ids, query=True
    )

    table = parquet.read_table(tmp_path / "v.parquet")
    assert table["id"].to_pylist() == [row["_id"] for row in rows]
    np.testing.assert_allclose(np.array(table["vector"].to_pylist()), expected, atol=1e-6)
    assert len(encoded(queries)) == len(ids.read_text().splitlines()) == 40


def test_records_have_a_title_a_text_and_an_id_or_a_number(model: Path, tmp_path: Path) -> None:
    rows = [{"id": 7, "title": "open", "text": "a file"}, {"contents": "a list"}, {"text": "line"}]
    with gzip.open(tmp_path / "texts.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "texts.tsv").write_text("7\topen a file\n1\ta list\n2\tline\n")
    ids = tmp_path / "ids.txt"

    records = encoded(request_of(model, tmp_path / "texts.jsonl.gz", tmp_path / "v.npy", ids=ids))
    lines = encoded(request_of(model, tmp_path / "texts.tsv", tmp_path / "t.npy"))

    assert ids.read_text() == "7\n1\n2\n"
    np.testing.assert_array_equal(records, lines)


def test_a_record_of_a_query_is_no_document(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"query": "open a file", "positive": "a list"}\n')
    (tmp_path / "texts.txt").write_text("open a file")
    asked = {"query": True, "dim": 8}

    found = encoded(request_of(model, file, tmp_path / "v.npy", **asked))

    expected = encoded(request_of(model, tmp_path / "texts.txt", tmp_path / "t.npy", **asked))
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(UserError, match="line 1: has no 'text'; its keys are 'query', 'positive'"):
        verb.encode(request_of(model, file, tmp_path / "v.npy"))


def test_vectors_stand_in_the_order_of_the_lines_whatever_the_parts(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join([LINES[0], "", *LINES[1:]]))
    expected = encoded(request_of(model, tmp_path / "texts.txt", tmp_path / "v.npy"))
    monkeypatch.setattr(verb, "AT_ONCE", 3)

    found = encoded(
        request_of(model, tmp_path / "texts.txt", tmp_path / "v.npy", tokens_per_batch=8)
    )

    assert len(found) == 10
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("content", "words", "sentence"),
    [
        ("", (), "texts.txt holds no texts"),
        ("a", ("--out", "v.csv"), "Did you mean|Known: .npy, .parquet"),
        ("a", ("--layer", "9"), "Layer 9 was asked for; this encoder has 4"),
        ("a", ("--layer", "0"), "only a fitted model has it"),
    ],
)
def test_a_mistake_is_a_sentence_and_leaves_the_old_vectors(
    content: str, words: tuple[str, ...], sentence: str, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "texts.txt").write_text(content)
    (tmp_path / "v.npy").write_text("old")

    done = run("encode", "texts.txt", "--out", "v.npy", "--model", model, *words, cwd=tmp_path)

    assert done.returncode == 2
    assert re.search(sentence, done.stderr), done.stderr
    assert (tmp_path / "v.npy").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2


def test_vectors_and_ids_are_not_written_over_the_texts_or_each_other(tmp_path: Path) -> None:
    texts, table = tmp_path / "texts.txt", tmp_path / "own.parquet"
    texts.write_text("read a file\n")
    table.write_bytes(b"PAR1")
    two = EncodeRequest(str(texts), tmp_path / "v.npy", ids=tmp_path / "v.npy")

    for request, names in [
        (EncodeRequest(str(table), table), "FILE"),
        (EncodeRequest(str(texts), tmp_path / "v.npy", ids=texts), "FILE"),
        (two, "--ids"),
    ]:
        with pytest.raises(UserError, match=f"and {names} names the same file"):
            verb.encode(request)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "texts.txt": b"read a file\n",
        "own.parquet": b"PAR1",
    }


def test_a_full_disk_ends_no_process_by_a_signal(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would where a mapped file has no room, so none is mapped."""
    (tmp_path / "texts.txt").write_text("\n".join(LINES))
    monkeypatch.setattr(np, "memmap", lambda *_, **__: pytest.fail("a file was mapped"))

    found = encoded(request_of(model, tmp_path / "texts.txt", tmp_path / "v.npy"))

    assert found.shape == (9, 32)


@pytest.mark.parametrize("kind", verb.FORMATS)
def test_a_value_that_float16_cannot_hold_is_refused(kind: str, tmp_path: Path) -> None:
    out = tmp_path / f"v{kind}"

    with (
        pytest.raises(UserError, match="the value 100000, which is too large for it. Leave"),
        verb.FORMATS[kind](out, (1, 2), "float16") as write,
    ):
        write(["a"], np.array([[1.0, -1e5]], np.float32))
    assert not list(tmp_path.iterdir())


def test_a_malformed_line_is_named_before_the_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n{"title": "b"}\n')

    with pytest.raises(UserError, match="texts.jsonl, line 2: has no 'text'"):
        verb.encode(request_of(tmp_path / "no-model", tmp_path / "texts.jsonl", tmp_path / "v.npy"))


def test_a_corpus_is_not_taken_for_queries(model: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Give a file of them, such as its queries\.jsonl"):
        verb.encode(request_of(model, tiny_corpus, tmp_path / "v.npy", query=True))


def test_vectors_can_be_imported_as_an_index(
    model: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    """What is compared by dot is not normalised, and so may be cut again."""
    plain = make_model(model, tmp_path / "dot", similarity="dot", document_prefix="text ")
    verb.encode(request_of(plain, tiny_corpus, tmp_path / "v.npy", ids=tmp_path / "ids.txt"))

    done = run(
        "index", "import", "--corpus", tiny_corpus, "--model", plain, "--vectors", "v.npy",
        "--ids", "ids.txt", "--dim", "8", "--indexes", "indexes", cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr


def test_without_pyarrow_the_extra_is_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "find_spec", lambda _: None)

    with pytest.raises(UserError, match=r"pip install 'm2dr\[datasets\]'"):
        verb.encode(request_of(model, tmp_path / "a.txt", tmp_path / "v.parquet"))


def test_a_file_that_grows_or_shrinks_meanwhile_leaves_the_old_vectors(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(LINES))
    (tmp_path / "v.npy").write_text("old")
    usual = verb.CutEncoder

    for lines in (LINES[:5], [*LINES, "more"]):

        def changed(*given: object, lines: list[str] = lines, **options: object) -> object:
            (tmp_path / "texts.txt").write_text("\n".join(lines))
            return usual(*given, **options)

        monkeypatch.setattr(verb, "CutEncoder", changed)
        with pytest.raises(UserError, match="has changed while it was encoded"):
            verb.encode(request_of(model, tmp_path / "texts.txt", tmp_path / "v.npy"))
        (tmp_path / "texts.txt").write_text("\n".join(LINES))

    assert (tmp_path / "v.npy").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("first", "query"),
    [
        ("id\ttext", False),
        ("ID\tText\tlabel", False),
        ("_id\ttitle\ttext", False),
        ("text\tid", False),
        ("query_id\tquery", True),
        ("text", False),
    ],
)
def test_a_table_that_names_its_columns_is_read_by_them(
    first: str, query: bool, tmp_path: Path
) -> None:
    names = first.lower().split("\t")
    cells = {"title": "A title", "text": "the text", "query": "the text", "label": "x"}
    rows = [[cells.get(name, f"d{number}") for name in names] for number in range(2)]
    lines = [first, *("\t".join(row) for row in rows)]
    (tmp_path / "t.tsv").write_text("\n".join(lines) + "\n")

    found = list(open_texts(str(tmp_path / "t.tsv"), queries=query)())

    has_ids = len(names) > 1
    assert [one.id for one in found] == (["d0", "d1"] if has_ids else ["0", "1"])
    assert {one.text for one in found} == {"the text"}
    assert {one.title for one in found} == {"A title" if "title" in names else ""}


def test_a_table_without_names_begins_with_its_first_text(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("d1\ttext\nd2\ta tab\tin it\n")

    found = [(one.id, one.text) for one in open_texts(str(tmp_path / "t.tsv"))()]

    assert found == [("d1", "text"), ("d2", "a tab\tin it")]


def test_half_a_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("id\tpassage\nd1\ta text\n")

    with pytest.raises(UserError, match=r"t\.tsv, line 1: begins with 'id', as a header does, and"):
        open_texts(str(tmp_path / "t.tsv"))
