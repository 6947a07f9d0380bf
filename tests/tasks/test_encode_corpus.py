"""Encoding of a corpus: interrupted, resumed, shared among workers, and again when it changes."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from world import make_corpus, stopped_after

from m2dr.core.errors import Interrupted, UserError
from m2dr.core.files import sha256_of
from m2dr.core.requests import FitIndexRequest, IndexRequest
from m2dr.data.loaders import open_dataset
from m2dr.index.faiss import open_faiss
from m2dr.index.folder import IndexFolder
from m2dr.index.manifest import built_indexes
from m2dr.index.store import Store, open_store
from m2dr.maps.files import Maps
from m2dr.model.embed import TextEncoder
from m2dr.model.tokens import Ragged
from m2dr.tasks.indexing.encode import ShardEncoder
from m2dr.tasks.indexing.fit_index import fit_index
from m2dr.tasks.indexing.index import index_corpus

Asked = Callable[..., IndexRequest]


@pytest.fixture
def ask(tiny_backbone: Path, tmp_path: Path) -> Asked:
    corpus = make_corpus(tmp_path / "tiny")

    def ask(**changes: object) -> IndexRequest:
        fields = {
            "layers": (2, 4), "dims": (8,), "root": tmp_path / "indexes", "device": "cpu",
            "dtype": "fp32", "shard_rows": 10, "exits": False,
        }  # fmt: skip
        return IndexRequest(str(corpus), str(tiny_backbone), **{**fields, **changes})  # type: ignore[arg-type]  # fields of any type

    return ask


def change(corpus: str | Path, rows: Callable[[list[dict[str, str]]], None]) -> None:
    path = Path(corpus) / "corpus.jsonl"
    documents = [json.loads(line) for line in path.read_text().splitlines()]
    rows(documents)
    path.write_text("".join(json.dumps(row) + "\n" for row in documents))


def some(rows: list[dict[str, str]]) -> None:
    """Two texts change, one document goes, one comes, and one has another place."""
    rows[3]["text"] = "a path and a line"
    rows[25]["text"] = "numbers of a list"
    del rows[12]
    rows.insert(0, {"_id": "new", "title": "", "text": "open the file"})
    rows.append(rows.pop(7))


def store_of(request: IndexRequest, layer: int = 4) -> Store:
    return open_store(next(request.root.glob(f"*/*/layer-{layer:02d}")))


def digests(root: Path) -> dict[str, str]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): sha256_of(path) for path in files}


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of documents that were encoded, by shard."""
    counts: list[int] = []
    usual = TextEncoder.of_tokens

    def counting(encoder: TextEncoder[Any], rows: Ragged, *rest: Any) -> object:
        counts.append(len(rows))
        return usual(encoder, rows, *rest)

    monkeypatch.setattr(TextEncoder, "of_tokens", counting)
    return counts


# Shards


@pytest.mark.parametrize("stage", ["_read", "_run", "_write"])
@pytest.mark.parametrize("error", [UserError, KeyboardInterrupt])
def test_an_error_of_any_stage_ends_all_and_keeps_what_was_run(
    ask: Asked, stage: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, before, calls = getattr(ShardEncoder, stage), threading.active_count(), []

    def failing(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise error("here")
        return usual(*arguments)

    monkeypatch.setattr(ShardEncoder, stage, failing)
    with pytest.raises((error, Interrupted), match="here|stopped after"):
        index_corpus(ask())
    assert threading.active_count() == before
    monkeypatch.undo()
    assert index_corpus(ask()).documents == 40


def test_ctrl_c_keeps_what_is_written_and_the_same_command_goes_on(
    ask: Asked, encoded: list[int]
) -> None:
    with stopped_after(4), pytest.raises(Interrupted, match="stopped after 20 of 40 documents"):
        index_corpus(ask())
    encoded.clear()

    index_corpus(ask())

    assert encoded == [10, 10]
    index_corpus(ask(root=ask().root.with_name("whole")))
    assert digests(ask().root) == digests(ask().root.with_name("whole"))


def test_a_store_goes_on_as_it_was_begun_where_nothing_is_named(ask: Asked) -> None:
    lengths = {"query_length": 7, "document_length": 9}
    begun = ask(layers=(4,), store="f32", **lengths)
    with stopped_after(2), pytest.raises(Interrupted):
        index_corpus(begun)

    index_corpus(ask(layers=(4,), shard_rows=None))
    index_corpus(ask(layers=(2, 4), dims=(16,), shard_rows=None))

    plans = [store_of(begun, layer).manifest.plan for layer in (2, 4)]
    assert {plan.shard_rows for plan in plans} == {10}
    assert {(plan.label.query_length, plan.label.document_length) for plan in plans} == {(7, 9)}
    assert plans[1].dtype == "f32"
    with pytest.raises(UserError, match="document_length 9, not 8; --overwrite"):
        index_corpus(ask(document_length=8))


def test_only_a_missing_shard_is_encoded_again(ask: Asked, encoded: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("m2dr.index.store.StoreWriter.finish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            index_corpus(ask(layers=(2,)))
    folder = next(ask().root.glob("*/*/layer-02"))
    (folder / "vectors-00001.f16").write_bytes(b"cut off")
    change(ask().corpus, lambda rows: rows[35].update(text="changed meanwhile"))
    encoded.clear()

    index_corpus(ask(layers=(2,)))

    assert encoded == [10, 10]  # the second, and the one of the text that changed


def test_a_finished_store_is_not_encoded_again(ask: Asked, encoded: list[int]) -> None:
    index_corpus(ask())
    before, _ = digests(ask().root), encoded.clear()

    index_corpus(ask(shard_rows=7))
    assert digests(ask().root) == before
    index_corpus(ask(dims=(16,)))
    assert not encoded
    assert before.items() <= digests(ask().root).items()
    with pytest.raises(UserError, match="dtype 'f16', not 'f32'; --overwrite"):
        index_corpus(ask(store="f32"))
    index_corpus(ask(store="f32", overwrite=True))
    index_corpus(ask())
    assert store_of(ask()).manifest.dtype == "f32"
    index_corpus(ask(overwrite=True))  # what was named once holds
    assert store_of(ask()).manifest.dtype == "f32"
    index_corpus(ask(store="f16", overwrite=True))
    assert store_of(ask()).manifest.dtype == "f16"


# A corpus that changes


@pytest.mark.parametrize("dtype", ["f16", "int8"])
def test_a_changed_corpus_is_encoded_where_it_changed_at_all_layers(
    ask: Asked, encoded: list[int], dtype: str
) -> None:
    asked = ask(store=dtype, dims=(8, 16), engines=("flat", "hnsw"))
    index_corpus(asked)
    before = store_of(asked)
    vectors = dict(zip(before.docids, before.rows(range(40)), strict=True))
    change(asked.corpus, some)
    encoded.clear()

    index_corpus(replace(asked, layers=(2,), dims=(8,), engines=()))

    assert sum(encoded) == 3
    names = [document.id for document in open_dataset(asked.corpus).documents()]
    for layer in (2, 4):
        store = store_of(asked, layer)
        assert list(store.docids) == names
        assert not list(store.problems())
        assert [(one.dim, one.engine) for one in built_indexes(store.folder)] == [
            (8, "flat"), (8, "hnsw"), (16, "flat"), (16, "hnsw")
        ]  # fmt: skip
        for built in built_indexes(store.folder):
            assert list(open_faiss(built.folder).docids) == names
    for docid, vector in zip(names, store_of(asked).rows(range(40)), strict=True):
        if docid not in ("new", "d3", "d25"):
            np.testing.assert_array_equal(vector, vectors[docid])
    index_corpus(replace(asked, root=asked.root.with_name("fresh")))
    fresh = store_of(replace(asked, root=asked.root.with_name("fresh")))
    found, expected = (
        np.asarray(store.rows(range(40)), np.float32) for store in (store_of(asked), fresh)
    )
    np.testing.assert_allclose(found, expected, atol=0.05 if dtype == "int8" else 1e-2)
    assert not [path for path in asked.root.rglob("*") if path.suffix in (".new", ".lock")]


def test_fields_that_change_encode_nothing(ask: Asked, encoded: list[int]) -> None:
    asked = ask(layers=(4,))
    index_corpus(asked)
    change(asked.corpus, lambda rows: [row.update(year=str(i)) for i, row in enumerate(rows)])  # type: ignore[func-returns-value]  # for each
    encoded.clear()

    index_corpus(asked)

    assert not encoded
    assert store_of(asked).manifest.fields


@pytest.mark.usefixtures("exits_of_few")
def test_words_follow_documents_and_exits_stay(
    ask: Asked, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = ask(layers=(4,), exits=True)
    index_corpus(asked)
    maps = Maps(IndexFolder.holding(store_of(asked).folder))
    assert maps.are_fitted
    exits = maps.folder
    before = (exits / "exits.safetensors").read_bytes()
    change(asked.corpus, some)

    index_corpus(asked)

    assert maps.are_fitted
    assert (exits / "exits.safetensors").read_bytes() == before
    assert "Refitted " in capfd.readouterr().err
    assert not maps.is_old()
    assert maps.is_old(1)
    fit_index(
        FitIndexRequest(
            asked.corpus, asked.model, root=asked.root, device="cpu", dtype="fp32", overwrite=True
        )
    )
    assert (exits / "exits.safetensors").read_bytes() != before
    assert not maps.is_old(1)


def test_documents_that_are_cut_are_counted(ask: Asked, capfd: pytest.CaptureFixture[str]) -> None:
    index_corpus(ask(layers=(4,), document_length=3))
    assert "of 40 documents were cut at 3 tokens" in capfd.readouterr().err
    index_corpus(ask(layers=(4,), document_length=64, overwrite=True))
    assert "were cut at" not in capfd.readouterr().err
