"""m2dr encode: files of texts become vectors, those of sentence-transformers and of m2dr.Encoder."""

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


def test_a_beir_corpus_and_its_queries_keep_their_ids(
    model: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in (tiny_corpus / "corpus.jsonl").read_text().splitlines()]
    same = m2dr.Encoder.from_pretrained(model, dim=8, device="cpu", dtype="fp32")
    expected = same.encode_documents(rows)

    ids = tmp_path / "ids.txt"
    found = encoded(request_of(model, tiny_corpus, tmp_path / "v.npy", dim=8, ids=ids))
    assert ids.read_text().splitlines() == [row["_id"] for row in rows]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    queries = request_of(
        model, tiny_corpus / "queries.jsonl", tmp_path / "q.npy", ids=ids, query=True
    )

    assert len(encoded(queries)) == len(ids.read_text().splitlines()) == 40


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
        ("a", ("--out", "v.csv"), "does not end in .npy"),
        ("a", ("--layer", "0"), "only a fitted model has it"),
    ],
)
def test_a_mistake_is_a_sentence_and_leaves_the_old_vectors(
    content: str, words: tuple[str, ...], sentence: str, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "texts.txt").write_text(content)
    (tmp_path / "v.npy").write_text("old")

    words = words if "--out" in words else ("--out", "v.npy", *words)
    done = run("encode", "texts.txt", "--model", model, *words, cwd=tmp_path)

    assert done.returncode == 2
    assert re.search(sentence, done.stderr), done.stderr
    assert (tmp_path / "v.npy").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_file_that_grows_or_shrinks_meanwhile_leaves_the_old_vectors(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(LINES))
    (tmp_path / "v.npy").write_text("old")
    usual = verb.Encoder

    for lines in (LINES[:5], [*LINES, "more"]):

        def changed(*given: object, lines: list[str] = lines, **options: object) -> object:
            (tmp_path / "texts.txt").write_text("\n".join(lines))
            return usual(*given, **options)

        monkeypatch.setattr(verb, "Encoder", changed)
        with pytest.raises(UserError, match="has changed while it was encoded"):
            verb.encode(request_of(model, tmp_path / "texts.txt", tmp_path / "v.npy"))
        (tmp_path / "texts.txt").write_text("\n".join(LINES))

    assert (tmp_path / "v.npy").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2
