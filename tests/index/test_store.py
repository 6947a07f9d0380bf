import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.core.files import sha256_of
from m2dr.index.exact import ExactIndex
from m2dr.index.faiss_build import build_index, open_index
from m2dr.index.funnel import Funnel, FunnelIndex
from m2dr.index.layout import store_folder, stored_layers
from m2dr.index.listing import list_stores
from m2dr.index.manifest import Shard, StoreManifest, StorePlan, texts_digest
from m2dr.index.searchable import Docids, encode_docids
from m2dr.index.store import Store, open_store
from m2dr.index.store_writer import StoreWriter

lines = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1)


def test_a_store_says_what_it_holds(store: Store) -> None:
    assert (store.documents, store.layer, store.width) == (35, 6, 16)


def test_documents_of_layer_0_are_stored_indexed_and_listed_as_those_of_any(
    tmp_path: Path, build: Callable[..., Store], vectors: NDArray[np.float32]
) -> None:
    folder = store_folder(tmp_path / "indexes", "tiny", "0123456789abcdef", 0)

    store = build(folder, vectors, layer=0)
    index = open_index(build_index(store, 8))

    assert folder.name == "layer-00"
    assert stored_layers(tmp_path / "indexes", "tiny", "0123456789abcdef") == (0,)
    assert (open_store(folder).layer, index.layer, index.manifest.layer) == (0, 0, 0)
    assert [(row.layer, row.indexes, row.problem) for row in list_stores(tmp_path)] == [
        (0, ("8",), "")
    ]
    assert list(store.problems()) == []


def test_damaged_documents_of_layer_0_are_made_again_by_a_command_that_names_it(
    tmp_path: Path, build: Callable[..., Store], vectors: NDArray[np.float32]
) -> None:
    store = build(tmp_path / "layer-00", vectors, layer=0)
    (store.folder / "vectors-00001.f16").unlink()

    with pytest.raises(UserError, match="m2dr index corpus .*--layer 0 --overwrite"):
        open_store(store.folder)


def test_vectors_are_kept_at_full_width_and_not_normalised(
    store: Store, vectors: NDArray[np.float32]
) -> None:
    np.testing.assert_array_equal(store.rows([34, 0]), vectors[[34, 0]].astype(np.float16))


def test_blocks_are_views_of_files_that_nobody_can_write_to(store: Store) -> None:
    _, block = next(store.blocks())

    assert isinstance(block, np.memmap)
    assert not block.flags.writeable


@pytest.mark.parametrize("row", [-1, 35])
def test_a_row_that_is_not_there_is_refused(store: Store, row: int) -> None:
    with pytest.raises(IndexError, match="there are 35"):
        store.rows([row])


def test_a_folder_without_a_store_is_refused_with_the_command_that_makes_one(
    tmp_path: Path,
) -> None:
    with pytest.raises(UserError, match="holds no store.*Make one with the command that made it"):
        open_store(tmp_path / "layer-03")


def test_a_half_written_store_says_how_far_it_got_and_how_to_go_on(
    tmp_path: Path, plan: StorePlan, vectors: NDArray[np.float32]
) -> None:
    writer = StoreWriter(tmp_path / "layer-06", plan)
    writer.write(0, [f"d{row}" for row in range(10)], vectors[:10], texts="")

    expected = "half-written: 1 shard with 10 documents of tiny.*--layer 6 --resume"
    with pytest.raises(UserError, match=expected):
        open_store(tmp_path / "layer-06")


@pytest.mark.parametrize("size", [None, 0, 319])
def test_a_missing_or_cut_off_shard_is_named(store: Store, size: int | None) -> None:
    shard = store.folder / "vectors-00002.f16"
    shard.unlink() if size is None else shard.write_bytes(bytes(size))

    with pytest.raises(UserError, match=r"vectors-00002\.f16 is missing or has another size"):
        open_store(store.folder)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, r"docids\.txt cannot be read \(No such file"),
        (b"d1\nd2\n", "has 2 docids for 35 documents"),
        (b"d1\n" * 35, "is not the file that was written"),
        (b"d1\nd\xff\n", r"docids\.txt, line 2: is not UTF-8"),
    ],
)
def test_docids_that_are_not_those_written_are_refused(
    store: Store, data: bytes | None, reason: str
) -> None:
    path = store.folder / "docids.txt"
    path.unlink() if data is None else path.write_bytes(data)

    with pytest.raises(UserError, match=f"{reason}.*m2dr index corpus .* --overwrite"):
        open_store(store.folder)


def test_a_changed_byte_is_found_when_the_store_is_verified(store: Store) -> None:
    told: list[int] = []
    assert not list(store.problems(told.append))
    shard = store.folder / "vectors-00003.f16"
    shard.write_bytes(bytes(shard.stat().st_size))

    (problem,) = store.problems()
    assert "vectors-00003.f16 is not the file that was written" in problem
    assert told == [10, 10, 10, 5]


@given(names=st.lists(lines))
def test_docids_read_as_they_were_written(names: list[str]) -> None:
    docids = Docids(encode_docids(names))

    assert list(docids) == names
    assert docids[::-1] == names[::-1]
    assert docids.take(range(len(names))) == names


@given(names=st.lists(lines, unique=True))
def test_the_rank_of_a_docid_is_its_place_when_all_are_sorted(names: list[str]) -> None:
    ranks = Docids(encode_docids(names)).ranks()

    assert [names[row] for row in np.argsort(ranks)] == sorted(names)


@pytest.mark.parametrize("row", [2, -3])
def test_a_docid_beyond_the_last_is_refused(row: int) -> None:
    docids = Docids(b"a\nb\n")

    assert docids[-1] == "b"
    with pytest.raises(IndexError, match="there are 2 docids"):
        docids[row]


def contradicting(folder: Path, **fields: object) -> None:
    """Change fields of store.json, and the digest of its texts with them."""
    manifest = StoreManifest.read(folder)
    changed = replace(manifest, **fields)
    replace(changed, texts=fields.get("texts", texts_digest(changed.shards))).write(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda _: {"shards": ()}, "has 0 rows in its shards for 35 documents"),
        (lambda _: {"shards": (), "documents": 0}, "has 0 documents, .* not at least 1"),
        (
            lambda shards: {"shards": shards[:1] + shards, "documents": 45},
            "names shard 1 'vectors-00000.f16' where 'vectors-00001.f16' belongs",
        ),
        (
            lambda shards: {
                "shards": (replace(shards[0], name="../layer-02/vectors-00000.f16"), *shards[1:])
            },
            r"names shard 0 '\.\./layer-02/vectors-00000.f16' where 'vectors-00000.f16' belongs",
        ),
        (lambda shards: {"shards": shards[:-1]}, "has 30 rows in its shards for 35 documents"),
        (
            lambda shards: {"shards": (replace(shards[0], rows=15), *shards[1:]), "documents": 40},
            "gives vectors-00000.f16 15 rows, and each shard has 10",
        ),
        (
            lambda shards: {"shards": (*shards[:-1], replace(shards[-1], rows=-5)), "documents": 25},
            "gives vectors-00003.f16 -5 rows",
        ),
        (lambda _: {"width": 0}, "has 0 documents, dims"),
        (lambda _: {"layer": -1}, "has layer -1, and layers count from 0"),
        (lambda _: {"texts": "00"}, "has another digest of its texts than its shards"),
    ],
)  # fmt: skip
def test_a_manifest_that_contradicts_itself_is_refused(
    store: Store, change: Callable[[tuple[Shard, ...]], dict[str, object]], reason: str
) -> None:
    contradicting(store.folder, **change(store.manifest.shards))

    with pytest.raises(UserError, match=rf"store\.json {reason}.*m2dr index corpus.* --overwrite"):
        open_store(store.folder)
    assert [bool(listed.problem) for listed in list_stores(store.folder)] == [True]


def test_a_store_is_not_searched_nor_indexed_without_its_shards(store: Store) -> None:
    contradicting(store.folder, shards=())

    for use in (
        lambda: ExactIndex(open_store(store.folder), 8),
        lambda: build_index(open_store(store.folder), 8),
    ):
        with pytest.raises(UserError, match="has 0 rows in its shards for 35 documents"):
            use()
    assert not (store.folder / "dim-8").exists()


def damage(store: Store, value: float | None) -> Path:
    """Change one vector of the third shard, and no size."""
    path = store.folder / "vectors-00002.f16"
    held = np.fromfile(path, "<f2")
    held[5 * 16 + 3] = held[5 * 16 + 3] * -2 - 1 if value is None else value
    path.write_bytes(held.tobytes())
    return path


@pytest.mark.parametrize("engine", ["flat", "int8", "binary"])
@pytest.mark.parametrize("value", [None, np.nan, np.inf])
def test_no_index_is_built_of_damaged_vectors(
    store: Store, engine: str, value: float | None
) -> None:
    damage(store, value)

    refused = r"vectors-00002\.f16 is not the file that was written.*m2dr index corpus|not finite"
    with pytest.raises(UserError, match=refused):
        build_index(open_store(store.folder), 8, engine)
    assert not list(store.folder.rglob("manifest.json"))


def test_an_index_is_not_built_of_vectors_that_change_between_two_dims(store: Store) -> None:
    build_index(store, 8)
    path = store.folder / "vectors-00001.f16"
    path.unlink()

    with pytest.raises(UserError, match=r"vectors-00001\.f16 is missing"):
        build_index(store, 4)


@pytest.mark.parametrize("kept", [0, 2**30])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("value", [None, np.nan, np.inf])
def test_damaged_vectors_are_not_searched(
    tmp_path: Path,
    build: Callable[..., Store],
    vectors: NDArray[np.float32],
    value: float | None,
    similarity: str,
    kept: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("m2dr.index.exact.KEPT_BYTES", kept)
    store = build(tmp_path / "layer-06", vectors, similarity=similarity)
    damage(store, value)

    with pytest.raises(UserError, match=r"vectors-00002\.f16 is not the file that was written"):
        ExactIndex(open_store(store.folder), 8).search(vectors, 3)
    with pytest.raises(UserError, match=r"vectors-00002\.f16 is not the file that was written"):
        FunnelIndex(open_store(store.folder), Funnel.parse("4:20,8")).search(vectors, 3)


@pytest.mark.parametrize("kept", [0, 2**30])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_where_digests_take_too_long_vectors_that_are_not_finite_are_refused(
    tmp_path: Path,
    build: Callable[..., Store],
    vectors: NDArray[np.float32],
    value: float,
    similarity: str,
    kept: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("m2dr.index.exact.HASHED_BYTES", 0)
    monkeypatch.setattr("m2dr.index.exact.KEPT_BYTES", kept)
    store = build(tmp_path / "layer-06", vectors, similarity=similarity)
    damage(store, value)

    with pytest.raises(UserError, match="not a number|not finite"):
        ExactIndex(open_store(store.folder), 8).search(np.abs(vectors), 3)


@pytest.mark.parametrize("dtype", ["f16", "f32", "int8"])
def test_a_store_is_compared_with_its_digests_once(
    tmp_path: Path,
    build: Callable[..., Store],
    vectors: NDArray[np.float32],
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = build(tmp_path / "layer-06", vectors, dtype=dtype)
    read: list[str] = []

    def reading(path: Path) -> str:
        read.append(path.name)
        return sha256_of(path)

    monkeypatch.setattr("m2dr.index.store.sha256_of", reading)
    for _ in range(2):
        blocks = np.concatenate([block for _, block in store.blocks(7, compare=True)])

    np.testing.assert_array_equal(blocks, store.rows(range(35)))
    assert read == [f"vectors-0000{number}.{dtype}" for number in range(4)]


def test_a_record_of_a_shard_that_names_another_file_is_refused(
    tmp_path: Path, plan: StorePlan, vectors: NDArray[np.float32]
) -> None:
    writer = StoreWriter(tmp_path / "layer-06", plan)
    writer.write(0, [f"d{row}" for row in range(10)], vectors[:10], texts="")
    record = tmp_path / "layer-06" / "vectors-00000.json"
    record.write_text(record.read_text().replace("vectors-00000.f16", "../vectors-00000.f16"))

    with pytest.raises(UserError, match=r"records 10 rows in '\.\./vectors-00000\.f16', where"):
        StoreWriter(tmp_path / "layer-06", plan).numbers()


def test_docids_that_are_no_regular_file_are_refused(store: Store) -> None:
    path = store.folder / "docids.txt"
    path.unlink()
    os.mkfifo(path)

    with pytest.raises(UserError, match=r"docids\.txt cannot be read \(it is a FIFO"):
        open_store(store.folder)
