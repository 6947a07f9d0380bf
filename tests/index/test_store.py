import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from m2dr.core.errors import UserError
from m2dr.core.files import sha256_of
from m2dr.core.records import Cut, Label
from m2dr.index.docids import Docids, encode_docids
from m2dr.index.exact import ExactIndex
from m2dr.index.faiss import build_index
from m2dr.index.folder import IndexFolder
from m2dr.index.manifest import (
    IndexManifest,
    StoreManifest,
    StorePlan,
)
from m2dr.index.store import (
    Store,
    StoreWriter,
    begin_store,
    clear_store,
    open_store,
    text_digests,
)
from m2dr.index.vectors import FORMATS

Floats = NDArray[np.float32]
Build = Callable[..., Store]
DOCIDS = [f"d{row}" for row in range(35)]
lines = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1)


def shard(number: int, size: int = 10) -> slice:
    return slice(size * number, size * number + size)


def write(writer: StoreWriter, number: int, vectors: Floats, docids: Sequence[str] = DOCIDS) -> int:
    part = shard(number, writer.plan.shard_rows)
    return writer.write(number, docids[part], vectors[part], text_digests(docids[part]))


def encode(folder: Path, plan: StorePlan, vectors: Floats) -> None:
    """What the command does: write what is missing, and finish."""
    if (folder / "store.json").exists():
        return
    writer = begin_store(folder, plan)
    for number in range(4):
        if not writer.has(number):
            write(writer, number, vectors)
    writer.finish()


def digests(folder: Path) -> dict[str, str]:
    return {path.name: sha256_of(path) for path in sorted(folder.iterdir())}


# Reading


@settings(max_examples=25, deadline=None)
@given(
    documents=st.integers(1, 40),
    shard_rows=st.integers(1, 45),
    block=st.integers(1, 45),
    seed=st.integers(0, 99),
)
def test_what_is_stored_is_read_back_by_blocks_and_by_rows(
    tmp_path_factory: pytest.TempPathFactory,
    build: Build,
    documents: int,
    shard_rows: int,
    block: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(documents, 3)).astype(np.float32)
    names = [f"<dbpedia:Å {row}>" for row in range(documents)]

    store = build(tmp_path_factory.mktemp("store"), vectors, names, shard_rows=shard_rows)

    stored = vectors.astype(np.float16)
    starts, blocks = zip(*store.blocks(block), strict=True)
    wanted = rng.integers(0, documents, 7)
    np.testing.assert_array_equal(np.concatenate(blocks), stored)
    assert list(starts) == list(np.cumsum([0, *map(len, blocks)])[:-1])
    assert max(map(len, blocks)) <= block
    np.testing.assert_array_equal(store.rows(wanted), stored[wanted])
    assert list(store.docids) == names
    assert store.digests().tobytes() == text_digests(names)


@pytest.mark.parametrize("name", ["vectors-00002.f16", "docids.txt"])
@pytest.mark.parametrize("data", [None, b"", b"d1\nd2\n", b"d1\nd\xff\n", b"d1\n" * 35])
def test_missing_or_changed_files_are_named(store: Store, name: str, data: bytes | None) -> None:
    path = store.folder / name
    path.unlink() if data is None else path.write_bytes(data)

    with pytest.raises(UserError, match=name):
        open_store(store.folder)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("value", [1.0, np.nan, np.inf])
def test_damaged_vectors_are_neither_indexed_nor_searched(
    tmp_path: Path, build: Build, vectors: Floats, value: float, similarity: str
) -> None:
    store = build(tmp_path / "layer-06", vectors, similarity=similarity)
    path = store.folder / "vectors-00002.f16"
    held = np.fromfile(path, "<f2")
    held[5 * 16 + 3] = value
    path.write_bytes(held.tobytes())

    with pytest.raises(
        UserError, match=r"vectors-00002\.f16 is missing or not|encoded anew|finite"
    ):
        ExactIndex(open_store(store.folder), 8).search(vectors, 3)
    for engine in ("flat", "int8", "bits1"):
        with pytest.raises(UserError, match=r"vectors-00002\.f16|encoded anew|not finite"):
            build_index(open_store(store.folder), 8, engine)
    with pytest.raises(UserError, match=r"vectors-00002\.f16 is missing or not"):
        open_store(store.folder).rows([0, 24])
    assert not list(store.folder.rglob("manifest.json"))


@given(names=st.lists(lines, unique=True))
def test_docids_read_as_they_were_written_and_are_ranked(names: list[str]) -> None:
    docids = Docids(encode_docids(names))

    assert list(docids) == names
    assert docids[::-1] == names[::-1]
    assert docids.take(range(len(names))) == names
    assert [names[row] for row in np.argsort(docids.ranks)] == sorted(names)


# Writing


class Stopped(BaseException):
    """The process was killed here."""


@pytest.mark.parametrize("steps", range(0, 36, 3))
def test_a_run_stopped_anywhere_and_resumed_ends_with_the_same_bytes(
    tmp_path: Path, plan: StorePlan, vectors: Floats, steps: int
) -> None:
    encode(tmp_path / "whole", plan, vectors)
    left = iter(range(steps, -1, -1))
    replace_file, write_bytes = os.replace, Path.write_bytes

    def tick() -> None:
        if next(left, 0) == 0:
            raise Stopped("here")

    def half_written(path: Path, data: bytes) -> int:
        write_bytes(path, bytes(data)[: len(data) // 2])
        tick()
        return write_bytes(path, data)

    def not_renamed(source: Path, target: Path) -> None:
        tick()
        replace_file(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_bytes", half_written)
        patch.setattr(os, "replace", not_renamed)
        with pytest.raises(Stopped, match="here"):
            encode(tmp_path / "resumed", plan, vectors)
    with pytest.raises(UserError, match="holds no store|half-written"):
        open_store(tmp_path / "resumed")

    encode(tmp_path / "resumed", plan, vectors)

    assert digests(tmp_path / "resumed") == digests(tmp_path / "whole")
    assert sorted(digests(tmp_path / "whole")) == [
        "digests.bin",
        "docids.txt",
        "store.json",
        *(f"vectors-0000{number}.f16" for number in range(4)),
    ]


def test_shards_that_are_whole_and_of_the_same_documents_are_kept(
    tmp_path: Path, plan: StorePlan, vectors: Floats
) -> None:
    writer = begin_store(tmp_path, plan)
    for number in range(4):
        write(writer, number, vectors)
    (tmp_path / "vectors-00001.f16").write_bytes(b"half")
    (tmp_path / "vectors-00003.f16.17.tmp").write_bytes(b"left over")
    texts = [*DOCIDS[:25], "other", *DOCIDS[26:]]

    again = begin_store(tmp_path, plan)
    assert again.numbers() == [0, 2, 3]
    again.drop_other(Docids(encode_docids(DOCIDS)), np.frombuffer(text_digests(texts), "S16"))

    assert again.numbers() == [0, 3]
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("dtype", ["f16", "f32", "int8"])
def test_vectors_are_copied_bit_by_bit(
    tmp_path: Path, build: Build, plan: StorePlan, vectors: Floats, dtype: str
) -> None:
    before = build(tmp_path / "before", vectors, dtype=dtype)
    writer = begin_store(tmp_path / "after", replace(plan, dtype=dtype, shard_rows=35))
    rows = np.array([7, 3, 34])

    writer.write(
        0, ["a", "b", "c", "d"], vectors[:1], bytes(64), (np.array([0, 2, 3]), before.packed(rows))
    )
    writer.finish()

    after = open_store(tmp_path / "after")
    assert [part.tobytes() for part in after.packed(np.array([0, 2, 3]))] == [
        part.tobytes() for part in before.packed(rows)
    ]
    np.testing.assert_array_equal(after.rows([1]), before.rows([0]))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layer": 5}, "layer 6, not 5"),
        ({"dtype": "f32"}, "dtype 'f16', not 'f32'"),
        ({"shard_rows": 20}, "shard_rows 10, not 20"),
        ({"runtime": "openvino"}, "runtime 'torch', not 'openvino'"),
    ],
)
def test_a_store_of_other_settings_is_refused_until_it_is_cleared(
    tmp_path: Path, plan: StorePlan, vectors: Floats, changes: dict[str, object], reason: str
) -> None:
    write(begin_store(tmp_path, plan), 0, vectors)

    with pytest.raises(UserError, match=f"{reason}; --overwrite"):
        begin_store(tmp_path, replace(plan, **changes))  # type: ignore[arg-type]  # fields of any type
    moved = replace(plan, label=replace(plan.label, model="elsewhere"))
    assert begin_store(tmp_path, moved).numbers() == [0]
    clear_store(tmp_path)
    assert begin_store(tmp_path, replace(plan, **changes)).numbers() == []  # type: ignore[arg-type]  # likewise


def test_a_store_with_a_hole_or_a_repeated_docid_is_not_finished(
    tmp_path: Path, plan: StorePlan, vectors: Floats
) -> None:
    with pytest.raises(UserError, match="tiny has no documents"):
        begin_store(tmp_path / "none", plan).finish()
    writer = begin_store(tmp_path / "hole", plan)
    write(writer, 0, vectors)
    write(writer, 2, vectors)
    with pytest.raises(ValueError, match="missing"):
        writer.finish()
    write(writer, 1, vectors, DOCIDS[5:])
    with pytest.raises(UserError, match="comes twice"):
        writer.finish()
    assert not (tmp_path / "hole" / "store.json").exists()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.nan, "'d3' is not finite"),
        (-70000.0, "'d3' is not finite, or too large for f16; use --store f32"),
    ],
)
def test_a_value_that_the_store_cannot_hold_is_refused_with_its_document(
    tmp_path: Path, plan: StorePlan, vectors: Floats, value: float, reason: str
) -> None:
    vectors[3, 5] = value
    with pytest.raises(UserError, match=reason):
        write(begin_store(tmp_path, plan), 0, vectors)
    assert not list(tmp_path.glob("vectors-*"))
    if np.isfinite(value):
        encode(tmp_path / "f32", replace(plan, dtype="f32"), vectors)
        np.testing.assert_array_equal(open_store(tmp_path / "f32").rows(range(35)), vectors)


# Replacing all layers at once


@pytest.mark.parametrize("at_once", [True, False])
def test_new_stores_take_the_place_of_old_ones_and_other_files_stay(
    tmp_path: Path, build: Build, vectors: Floats, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "tiny" / "0123456789ab"
    old = build(home / "layer-06", vectors)
    (home / "layer-02").mkdir()
    (home / "notes.txt").write_text("of a person")
    build(IndexFolder(home).new.path / "layer-06", vectors + 1)
    (IndexFolder(home).new.path / "syncing").touch()
    if not at_once:
        monkeypatch.setattr("m2dr.index.folder.ctypes.CDLL", lambda *_, **__: object())

    IndexFolder(home).swap_in()

    np.testing.assert_array_equal(
        open_store(home / "layer-06").rows([3]), (vectors[[3]] + 1).astype(np.float16)
    )
    assert sorted(path.name for path in home.iterdir()) == ["layer-02", "layer-06", "notes.txt"]
    assert [path.name for path in home.parent.iterdir()] == ["0123456789ab"]
    with pytest.raises(UserError, match="not the file that was written"):
        old.rows([3])


def test_an_exchange_that_was_stopped_is_ended(
    tmp_path: Path, build: Build, vectors: Floats
) -> None:
    home = tmp_path / "tiny" / "0123456789ab"
    build(home.with_name("0123456789ab.old") / "layer-06", vectors)
    build(IndexFolder(home).new.path / "layer-06", vectors + 1)
    (IndexFolder(home).new.path / "syncing").touch()

    IndexFolder(home).end_sync()  # between the first rename and the second

    np.testing.assert_array_equal(
        open_store(home / "layer-06").rows([3]), vectors[[3]].astype(np.float16)
    )
    assert IndexFolder(home).new.path.exists()  # a sync goes on from there
    (IndexFolder(home).new.path / "syncing").unlink()
    IndexFolder(home).end_sync()
    assert not IndexFolder(home).new.path.exists()


# Number formats


matrices = arrays(
    np.float32,
    st.tuples(st.integers(1, 9), st.integers(1, 7)),
    elements=st.floats(-6e4, 6e4, width=32),
)
# How far a coordinate may move: half a step between neighbours of the format.
ERRORS: dict[str, Callable[[NDArray[np.float32]], NDArray[np.float32]]] = {
    "f32": lambda rows: 0 * rows,
    "f16": lambda rows: np.abs(rows) * 2**-11 + 2**-25,
    "int8": lambda rows: np.abs(rows).max(axis=1, keepdims=True) / 127 * 0.5001 + 1e-38 + 0 * rows,
}


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(vectors=matrices)
def test_what_is_kept_is_as_near_as_the_format_allows(
    tmp_path_factory: pytest.TempPathFactory, name: str, vectors: NDArray[np.float32]
) -> None:
    row = FORMATS[name]
    path = tmp_path_factory.getbasetemp() / f"packed.{name}"
    path.write_bytes(b"".join(part.tobytes() for part in row.pack(vectors)))

    parts = row.parts(path, *vectors.shape)

    assert path.stat().st_size == row.bytes_of(*vectors.shape)
    found = np.asarray(row.vectors(parts), np.float64)
    assert (np.abs(found - vectors) <= ERRORS[name](vectors)).all()
    assert row.vectors(parts).dtype == row.read_as


# Manifests


@pytest.fixture
def manifest(label: Label) -> IndexManifest:
    return IndexManifest("tiny", 35, 6, 8, "flat", "cosine", label, 10, "aa", "bb", "cc")


def test_paths_are_no_part_of_what_identifies_a_store(label: Label, tmp_path: Path) -> None:
    first = StoreManifest(
        corpus="tiny",
        layer=6,
        width=16,
        label=label,
        documents=0,
        shards=(),
        docids="aa",
        texts="b",
    )
    moved = replace(first, label=replace(label, model="elsewhere"))

    assert first.digest == moved.digest
    assert first.digest != replace(first, texts="cc").digest
    replace(first, documents=3).write(tmp_path)
    with pytest.raises(UserError, match="other numbers of rows than of documents"):
        StoreManifest.read(tmp_path)


def test_the_home_of_a_folder_is_found_from_within_and_from_above(
    tmp_path: Path, manifest: IndexManifest
) -> None:
    one, other = tmp_path / "a" / "0123456789ab", tmp_path / "b" / "0123456789ab"
    for home in (one, other, one.with_name("0123456789ab.new")):
        (home / "layer-06").mkdir(parents=True)
        (home / "layer-06" / "store.json").touch()
    index = one / "layer-06" / "dim-8"
    index.mkdir()
    manifest.write(index)

    for folder in (one, one / "layer-06", index, tmp_path / "a"):
        assert IndexFolder.found(folder) == [IndexFolder(one)]
    assert IndexFolder.found(tmp_path) == [IndexFolder(one), IndexFolder(other)]
    assert IndexFolder.at(index) == IndexFolder(one)
    with pytest.raises(UserError, match="holds 2 indexes"):
        IndexFolder.at(tmp_path)
    with pytest.raises(UserError, match="holds no finished index"):
        IndexFolder.at(tmp_path / "none")


def test_labels_agree_wherever_the_model_lies_and_name_what_differs(label: Label) -> None:
    label.accept(replace(label, model="elsewhere", cuts=()), "tiny")
    other = replace(label, fingerprint="f" * 64, model="models/second")
    expected = (
        r"tiny were encoded by model 0123456789ab \(models/first\), and the queries by "
        r"ffffffffffff \(models/second\)"
    )
    with pytest.raises(UserError, match=expected):
        label.accept(other, "tiny")
    with pytest.raises(UserError, match=r"pooling .* against .*, similarity .* against"):
        label.accept(replace(label, pooling="cls", similarity="dot"), "tiny")


FITTED = (Cut(0, 8), Cut(6, 8))


@pytest.mark.parametrize(
    ("changes", "query", "documents", "expected"),
    [
        ({}, (6, 16), (6, 16), None),
        ({}, (6, 12), (6, 12), None),
        ({}, (6, 4), (6, 4), "L6D4 was not trained"),
        ({"cuts": (Cut(1, 8), Cut(6, 16)), "documents": "last"}, (1, 8), (6, 8), "L6D8 was not"),
        ({}, (1, 8), (6, 8), "not aligned"),
        ({"documents": "last"}, (1, 8), (6, 8), None),
        ({"documents": "last"}, (1, 8), (1, 8), "against documents of layer 6"),
        ({"cuts": FITTED}, (0, 8), (0, 8), None),
        ({"cuts": FITTED}, (0, 8), (6, 8), "not aligned"),
        ({"cuts": FITTED, "documents": "last"}, (0, 8), (6, 8), None),
        ({"cuts": FITTED, "documents": "last"}, (0, 8), (0, 8), "of layer 6"),
    ],
)
def test_what_was_not_trained_to_match_is_warned_of(
    label: Label,
    changes: dict[str, object],
    query: tuple[int, int],
    documents: tuple[int, int],
    expected: str | None,
) -> None:
    found = replace(label, **changes).warnings(Cut(*query), Cut(*documents))  # type: ignore[arg-type]  # fields of any type

    assert len(found) == (expected is not None)
    if expected:
        assert expected in found[0]
